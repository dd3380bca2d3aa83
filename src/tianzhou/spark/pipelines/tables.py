"""The tables of the pipelines, and the two ways to write so that twice does no harm.

upsert       a row that is there is replaced: a day that is computed again is the same day
apply_once   all of a batch in one transaction with the row (query, batch) that says it is done
"""

from collections.abc import Callable

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

from tianzhou.clock import wall_ms
from tianzhou.spark import database
from tianzhou.spark.database import insert_new, rows_of, upsert

__all__ = ["apply_once", "insert_new", "open_database", "rows_of", "upsert"]

VERSION = 1

metadata = MetaData()

versions = Table("tianzhou_pipeline_schema", metadata, Column("version", Integer, primary_key=True))

batches = Table(
    "tianzhou_pipeline_batches",
    metadata,
    Column("query", String(200), primary_key=True),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("done_ms", BigInteger, nullable=False),
)

runs = Table(
    "tianzhou_pipeline_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("pipeline", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    Column("row_count", BigInteger, nullable=False, server_default="0"),
    Column("options", Text, nullable=False),
    Column("note", Text),
)

topic_stats = Table(
    "tianzhou_topic_stats",
    metadata,
    Column("topic", String(255), primary_key=True),
    # The empty name is the topic itself: what was produced.
    Column("consumer_group", String(255), primary_key=True),
    Column("day", String(10), primary_key=True),
    # Hours since the day began; -1 is the whole day.
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("produced", BigInteger, nullable=False, server_default="0"),
    Column("produced_bytes", BigInteger, nullable=False, server_default="0"),
    Column("consumed", BigInteger, nullable=False, server_default="0"),
    Column("consumed_bytes", BigInteger, nullable=False, server_default="0"),
    Column("distinct_keys", BigInteger, nullable=False, server_default="0"),
    Column("updated_ms", BigInteger, nullable=False),
)

alarm_rules = Table(
    "tianzhou_alarm_rules",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("tenant", String(64), nullable=False, server_default=""),
    Column("kind", String(16), nullable=False),
    # Names, or patterns with * and ?.
    Column("consumer_group", String(255), nullable=False, server_default="*"),
    Column("topic", String(255), nullable=False, server_default="*"),
    Column("threshold", BigInteger, nullable=False),
    Column("window_s", Integer, nullable=False, server_default="600"),
    Column("repeat_max", Integer, nullable=False, server_default="3"),
    Column("enabled", Integer, nullable=False, server_default="1"),
)

alarms = Table(
    "tianzhou_alarms",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("tenant", String(64), primary_key=True),
    Column("consumer_group", String(255), primary_key=True),
    Column("topic", String(255), primary_key=True),
    Column("is_open", Integer, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("recovered_ms", BigInteger),
    Column("told_open", Integer, nullable=False),
    Column("told_count", Integer, nullable=False),
    Column("told_ms", BigInteger),
    Column("value", BigInteger, nullable=False),
    Column("threshold", BigInteger, nullable=False),
)

alarm_events = Table(
    "tianzhou_alarm_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("tenant", String(64), nullable=False),
    Column("consumer_group", String(255), nullable=False),
    Column("topic", String(255), nullable=False),
    Column("event", String(16), nullable=False),
    Column("value", BigInteger, nullable=False),
    Column("threshold", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("detail", Text, nullable=False, server_default=""),
    # Empty until a notifier took it.
    Column("told_ms", BigInteger),
    Column("try_count", Integer, nullable=False, server_default="0"),
)

trace_latency = Table(
    "tianzhou_trace_latency",
    metadata,
    Column("day", String(10), primary_key=True),
    Column("topic", String(255), primary_key=True),
    Column("consumer_group", String(255), primary_key=True),
    # send, store, deliver or consume.
    Column("step", String(16), primary_key=True),
    Column("message_count", BigInteger, nullable=False),
    Column("p50_ms", Float, nullable=False),
    Column("p90_ms", Float, nullable=False),
    Column("p99_ms", Float, nullable=False),
    Column("max_ms", Float, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
)

slow_messages = Table(
    "tianzhou_slow_messages",
    metadata,
    Column("day", String(10), primary_key=True),
    Column("topic", String(255), primary_key=True),
    Column("consumer_group", String(255), primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("msg_id", String(64), nullable=False),
    Column("keys", Text),
    Column("took_ms", BigInteger, nullable=False),
)

duplicates = Table(
    "tianzhou_duplicates",
    metadata,
    Column("day", String(10), primary_key=True),
    Column("topic", String(255), primary_key=True),
    # "key" or "msgId".
    Column("by", String(8), primary_key=True),
    Column("token", String(512), primary_key=True),
    Column("copy_count", BigInteger, nullable=False),
    # JSON: a list of [broker, queue, queue offset], at most a hundred.
    Column("copies", Text, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
)

reconciliation = Table(
    "tianzhou_reconciliation",
    metadata,
    Column("name", String(128), primary_key=True),
    Column("token", String(512), primary_key=True),
    # "missing": in the table and not in the log; "extra": the other way round.
    Column("finding", String(8), nullable=False),
    Column("found_ms", BigInteger, nullable=False),
)


def open_database(url: str) -> Engine:
    """Connect, create what is missing, bring old tables up to date. Raises ConfigError."""
    return database.open_database(url, metadata, versions, VERSION)


def apply_once(
    engine: Engine, query: str, batch: int, work: Callable[[Connection], object]
) -> bool:
    """Do the work of a batch in one transaction, unless it was done; whether it was done now.

    For `foreachBatch`: Spark repeats a batch after a crash, under the same number.
    """
    with engine.begin() as connection:
        row = {"query": query, "batch": batch, "done_ms": wall_ms()}
        if not insert_new(connection, batches, row):
            return False
        work(connection)
    return True
