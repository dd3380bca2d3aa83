"""RocketMQ topics in PySpark: data sources, a sink, and a ready-to-use session.

    from tianzhou.spark import session

    spark = session("orders")
    spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876") \
        .option("subscribe", "orders").load().groupBy("tags").count().show()

`format("rocketmq")` reads and writes topics of a cluster, in batches and as a stream;
`format("rocketmq-store")` reads the store directory of a broker. Requires the extra `spark`.
"""

from tianzhou.spark.parquet_options import PARQUET
from tianzhou.spark.session import register, session
from tianzhou.spark.source.commit_progress import commit_progress

__all__ = ["PARQUET", "commit_progress", "register", "session"]
