"""Found by Spark itself: `format("rocketmq-store")` without a call of `register`."""

from tianzhou.spark.offline.source import StoreSource as DefaultSource

__all__ = ["DefaultSource"]
