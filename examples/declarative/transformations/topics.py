"""Messages as a table that grows, each once, and their counts by topic and hour.

The counts are what `topic-stats` says of produced messages, as far as the table has them.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table(partition_cols=["topic"])
def messages() -> DataFrame:
    return (
        spark.readStream.format("rocketmq")
        .option("nameServer", spark.conf.get("spark.tianzhou.nameServer"))
        .option("subscribe", spark.conf.get("spark.tianzhou.topics"))
        .option("startingOffsets", "earliest")
        .load()
    )


@dp.materialized_view
def topic_hours() -> DataFrame:
    return (
        spark.read.table("messages")
        .groupBy("topic", f.date_trunc("hour", "storeTimestamp").alias("hour"))
        .agg(f.count("*").alias("messages"), f.sum("storeSize").alias("bytes"))
    )
