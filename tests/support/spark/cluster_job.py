"""A program for spark-submit: sink and source on a cluster, and the code that each side runs.

Arguments: nameserver, topic, count, a file for the results, and day and database of `topic-stats`,
which follows in the same application: an application takes longer to start than to run.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from tianzhou.spark import session
from tianzhou.spark.pipelines import __main__ as pipelines

PARTITIONS = 2


def where(_: Iterable[int]) -> Iterable[tuple[str, str, str | None]]:
    """Runs in an executor: its folder, the path of its code, and why the kernel is not used."""
    import tianzhou
    from tianzhou.protocol import kernel

    yield str(Path.cwd()), tianzhou.__file__, kernel.WHY_PURE


def write(spark: SparkSession, namesrv: str, topic: str, count: int) -> None:
    rows = spark.range(0, count, 1, PARTITIONS).selectExpr(
        "string(id) AS body", "concat('k', id) AS keys", "if(id % 4 = 0, 'a', 'b') AS tags"
    )
    rows.write.format("rocketmq").mode("append").options(nameServer=namesrv, topic=topic).save()


def read(spark: SparkSession, namesrv: str, topic: str) -> list[tuple[int, str]]:
    stored = spark.read.format("rocketmq").options(nameServer=namesrv, subscribe=topic).load()
    rows = stored.selectExpr("int(string(body)) AS n", "tags").collect()
    return sorted((row.n, row.tags) for row in rows)


def main(namesrv: str, topic: str, count: int, report: Path, day: str, database: str) -> None:
    spark = session("cluster job")
    write(spark, namesrv, topic, count)
    seen: dict[str, object] = {"rows": read(spark, namesrv, topic)}
    tasks = spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS)
    seen["executors"] = tasks.mapPartitions(where).collect()
    given = {"nameServer": namesrv, "topics": topic, "days": day, "database": database}
    words = [f"{key}={value}" for key, value in given.items()]
    seen["code"] = pipelines.main(["topic-stats", "keys=false", *words])
    report.write_text(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    namesrv, topic, count, report, day, database = sys.argv[1:]
    main(namesrv, topic, int(count), Path(report), day, database)
