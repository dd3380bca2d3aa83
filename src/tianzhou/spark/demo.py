"""The Spark job at the end of `tianzhou up --demo`: statistics of the messages just sent.

    python -m tianzhou.spark.demo NAMESERVER TOPIC SINCE_MS

It runs in a separate process, so that it can neither block nor crash the servers, and prints a
table.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from pyspark.sql import functions as f

from tianzhou.spark.session import session

_COLUMNS = "tags string, storeSize int, bornTimestamp timestamp, storeTimestamp timestamp"
_LINE = "  {:<12} {:>10} {:>12} {:>14} {:>14}"


def count(namesrv: str, topic: str, since_ms: int) -> list[Any]:
    """Messages, bytes, and milliseconds from the producer to the store, by tag."""
    # In a JVM that lives for seconds the optimizing compiler does not pay off.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    spark = session("tianzhou demo", master="local[2]", spark_sql_shuffle_partitions=1)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        sent = (
            spark.read.format("rocketmq")
            .options(nameServer=namesrv, subscribe=topic, startingTimestamp=str(since_ms))
            .schema(_COLUMNS)
            .load()
        )
        return (
            sent.selectExpr(
                "*", "unix_millis(storeTimestamp) - unix_millis(bornTimestamp) AS tookMs"
            )
            .groupBy("tags")
            .agg(
                *(f.expr("count(*) AS messages"), f.expr("sum(storeSize) AS bytes")),
                *(f.expr("median(tookMs) AS median"), f.expr("percentile(tookMs, 0.99) AS p99")),
                f.expr("min(storeTimestamp) AS first"),
            )
            .orderBy("first")
            .collect()
        )
    finally:
        spark.stop()


def lines(found: Sequence[Any]) -> list[str]:
    """The table as lines of text."""
    shown = [_LINE.format("tag", "messages", "bytes", "stored in, ms", "99 of 100, ms")]
    shown += [
        _LINE.format(row.tags, f"{row.messages:,}", f"{row.bytes:,}", f"{row.median:.1f}",
                     f"{row.p99:.1f}")
        for row in found
    ]  # fmt: skip
    total = sum(row.messages for row in found)
    return [*shown, f"Spark counted {total:,} messages in the log"]


def main(namesrv: str, topic: str, since_ms: str) -> None:
    """Run the job and print its result."""
    for line in lines(count(namesrv, topic, int(since_ms))):
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
