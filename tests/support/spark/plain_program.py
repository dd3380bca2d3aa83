"""A program with its own Spark session: Tianzhou is installed and never imported.

    plain_program.py NAMESRV STORE TOPIC

Prints as JSON the result of every way of reading the topic: the bodies, or Spark's error.
"""

import json
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def read(spark: SparkSession, name: str, options: dict[str, str]) -> list[str] | str:
    """Bodies of the messages with one tag."""
    frame = spark.read.format(name).options(**options).load().where("tags = 'wanted'")
    try:
        return sorted(row[0] for row in frame.selectExpr("string(body)").collect())
    except PySparkException as error:
        return str(error)


def main(namesrv: str, store: str, topic: str) -> None:
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    sources = {
        "rocketmq": {"subscribe": topic, "nameServer": namesrv},
        "rocketmq-store": {"subscribe": topic, "path": store},
    }
    results: dict[str, Any] = {"default": spark.conf.get(PUSH_DOWN)}
    for name, options in sources.items():
        results[f"{name}, nothing set"] = read(spark, name, options)
        results[f"{name}, push-down off"] = read(spark, name, options | {"pushDown": "true"})
        spark.conf.set(PUSH_DOWN, "true")
        results[f"{name}, push-down on"] = read(spark, name, options | {"pushDown": "true"})
        spark.conf.set(PUSH_DOWN, "false")
    results["imported"] = [
        name for name in sys.modules if name.split(".")[0].startswith("tianzhou")
    ]
    spark.stop()
    print(json.dumps(results))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
