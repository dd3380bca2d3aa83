"""Spark discovers this module: `format("rocketmq")` works without a call of `register`."""

from tianzhou.spark.source.source import RocketmqSource as DefaultSource

__all__ = ["DefaultSource"]
