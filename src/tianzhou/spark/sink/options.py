"""Options and columns of `format("rocketmq")` for writing.

topic        string; or the option `topic` for all rows
body         binary or string
tags, keys   string; keys also as an array
properties   map of strings
orderKey     string: rows with the same key keep their order, in the queue of its hash
delayMs      milliseconds until delivery       deliverAt   the time of delivery
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql.types import StructType

from tianzhou.errors import ConfigError
from tianzhou.spark.options import (
    ClusterOptions,
    closest,
    parse_duration_ms,
    parse_size_bytes,
    parsed,
    read_options,
)

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "orderKey": ("string",),
    "delayMs": ("bigint", "int"),
    "deliverAt": ("timestamp",),
}
"""Columns and their permitted types."""


class Delivery(StrEnum):
    """How a task sends batches."""

    ASYNC = "async"
    SYNC = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(ClusterOptions):
    """Options of `format("rocketmq")` for writing."""

    topic: str = ""  # for rows without a value in the column `topic`
    group: str = "tianzhou-spark"  # producer group
    delivery: Delivery = Delivery.ASYNC  # sync: one batch at a time in each task
    in_flight: int = 16  # batches in flight in each task
    batch_bytes: int = parsed(256 * 1024, parse_size_bytes)
    batch_count: int = 1024  # messages in a batch
    retry_for: int = parsed(60_000, parse_duration_ms)  # total time of retries of a send, ms
    max_rows_per_second: int | None = None  # of each task
    exactly_once: bool = False
    ledger: str = ""  # URL of the database that records the written batches
    transaction_id: str = ""  # of a batch write; a second write with the same id is dropped
    transaction_timeout: int = parsed(24 * 3_600_000, parse_duration_ms)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.exactly_once and not self.ledger:
            raise ConfigError("option exactlyOnce needs the option ledger, the URL of a database")
        if not self.exactly_once and (self.ledger or self.transaction_id):
            raise ConfigError("options ledger and transactionId are for exactlyOnce=true")

    @property
    def in_flight_limit(self) -> int:
        """Batches in flight in a task."""
        return 1 if self.delivery is Delivery.SYNC else self.in_flight

    @property
    def count_limit(self) -> int:
        """Messages per batch; fewer at a low rate, so that sends are spread evenly."""
        rate = self.max_rows_per_second
        return self.batch_count if rate is None else max(min(self.batch_count, rate // 10), 1)


def read_sink_options(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool
) -> SinkOptions:
    """The options of a write, checked against the schema. Raises ConfigError."""
    ignored = ("path", "checkpointlocation")
    options = read_options(
        SinkOptions, {key: value for key, value in given.items() if key.lower() not in ignored}
    )
    options.client_settings()
    if overwrite:
        raise ConfigError('a topic cannot be overwritten; write with mode("append")')
    if streaming and options.transaction_id:
        raise ConfigError("option transactionId is for batches; a stream has an id of its own")
    check_columns(schema, options)
    if options.exactly_once:
        from tianzhou.monitor.database import engine_of  # only exactlyOnce needs a database

        engine_of(options.ledger).dispose()
    return options


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises ConfigError for columns that cannot be written."""
    names = {field.name for field in schema.fields}
    for field in schema.fields:
        kinds = COLUMNS.get(field.name)
        if kinds is None:
            raise ConfigError(f"unknown column {field.name}{closest(field.name, COLUMNS)}")
        if field.dataType.simpleString() not in kinds:
            raise ConfigError(
                f"column {field.name} must be {' or '.join(kinds)}, it is "
                f"{field.dataType.simpleString()}"
            )
    if "body" not in names:
        raise ConfigError("the sink needs a column body")
    if "topic" not in names and not options.topic:
        raise ConfigError("the sink needs a column topic or the option topic")
    if {"delayMs", "deliverAt"} <= names:
        raise ConfigError("columns delayMs and deliverAt exclude each other")
    if options.exactly_once and names & {"delayMs", "deliverAt"}:
        raise ConfigError("a delayed message cannot be transactional: not with exactlyOnce")
