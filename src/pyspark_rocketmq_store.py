"""Spark discovers this module: `format("rocketmq-store")` works without a call of `register`."""

from tianzhou.spark.offline.source import StoreSource as DefaultSource

__all__ = ["DefaultSource"]
