"""The tables of the pipelines, and the two ways to write so that twice does no harm.

upsert       a row that is there is replaced: a day that is computed again is the same day
apply_once   all of a batch in one transaction with the row (query, batch) that says it is done
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

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
from sqlalchemy.types import TypeEngine

from tianzhou.clock import wall_ms
from tianzhou.spark import database
from tianzhou.spark.database import insert_new, rows_of, upsert

__all__ = ["apply_once", "insert_new", "open_database", "rows_of", "token", "upsert"]

VERSION = 1

metadata = MetaData()

Kind = TypeEngine[Any]
NAME, DAY, WORD = String(255), String(10), String(16)
COUNT, WHOLE, TEXT = BigInteger(), Integer(), Text()
TOKEN_CHARACTERS = 512


# -- columns ---------------------------------------------------------------------------------------


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(f"tianzhou_{name}", metadata, *columns)


def _number() -> Column[Any]:
    """Given by the database."""
    return Column("id", WHOLE, primary_key=True)


def _key(name: str, kind: Kind = NAME) -> Column[Any]:
    """Part of the primary key."""
    return Column(name, kind, primary_key=True, autoincrement=False)


def _required(name: str, kind: Kind = COUNT, default: str | None = None) -> Column[Any]:
    """Always there; with a default also where a writer does not name it."""
    return Column(name, kind, nullable=False, server_default=default)


def _optional(name: str, kind: Kind = COUNT) -> Column[Any]:
    """Empty until it is known."""
    return Column(name, kind)


# -- tables ----------------------------------------------------------------------------------------

versions = _table("pipeline_schema", Column("version", WHOLE, primary_key=True))

batches = _table(
    "pipeline_batches", _key("query", String(200)), _key("batch", COUNT), _required("done_ms")
)

runs = _table(
    "pipeline_runs",
    _number(),
    _required("pipeline", String(64)),
    _required("state", WORD),
    _required("started_ms"),
    _optional("ended_ms"),
    _required("row_count", default="0"),
    _required("options", TEXT),
    _optional("note", TEXT),
)

topic_stats = _table(
    "topic_stats",
    _key("topic"),
    # The empty name is the topic itself: what was produced.
    _key("consumer_group"),
    _key("day", DAY),
    # Hours since the day began; -1 is the whole day.
    _key("hour", WHOLE),
    _required("produced", default="0"),
    _required("produced_bytes", default="0"),
    _required("consumed", default="0"),
    _required("consumed_bytes", default="0"),
    _required("distinct_keys", default="0"),
    _required("updated_ms"),
)

alarm_rules = _table(
    "alarm_rules",
    _number(),
    _required("tenant", String(64), default=""),
    _required("kind", WORD),
    # Names, or patterns with * and ?.
    _required("consumer_group", NAME, default="*"),
    _required("topic", NAME, default="*"),
    _required("threshold"),
    _required("window_s", WHOLE, default="600"),
    _required("repeat_max", WHOLE, default="3"),
    _required("enabled", WHOLE, default="1"),
)

alarms = _table(
    "alarms",
    _key("kind", WORD),
    _key("tenant", String(64)),
    _key("consumer_group"),
    _key("topic"),
    _required("is_open", WHOLE),
    _required("opened_ms"),
    _optional("recovered_ms"),
    _required("told_open", WHOLE),
    _required("told_count", WHOLE),
    _optional("told_ms"),
    _required("value"),
    _required("threshold"),
)

alarm_events = _table(
    "alarm_events",
    _number(),
    _required("kind", WORD),
    _required("tenant", String(64)),
    _required("consumer_group", NAME),
    _required("topic", NAME),
    _required("event", WORD),
    _required("value"),
    _required("threshold"),
    _required("at_ms"),
    _required("detail", TEXT, default=""),
    # Empty until a notifier took it.
    _optional("told_ms"),
    _required("try_count", WHOLE, default="0"),
)

trace_latency = _table(
    "trace_latency",
    _key("day", DAY),
    _key("topic"),
    _key("consumer_group"),
    # send, store, deliver or consume.
    _key("step", WORD),
    _required("message_count"),
    _required("p50_ms", Float()),
    _required("p90_ms", Float()),
    _required("p99_ms", Float()),
    _required("max_ms", Float()),
    _required("updated_ms"),
)

slow_messages = _table(
    "slow_messages",
    _key("day", DAY),
    _key("topic"),
    _key("consumer_group"),
    _key("place", WHOLE),
    _required("msg_id", String(64)),
    _optional("keys", TEXT),
    _required("took_ms"),
)

duplicates = _table(
    "duplicates",
    _key("day", DAY),
    _key("topic"),
    # "key" or "msgId".
    _key("by", String(8)),
    _key("token", String(TOKEN_CHARACTERS)),
    _required("copy_count"),
    # JSON: a list of [broker, queue, queue offset], at most a hundred.
    _required("copies", TEXT),
    _required("updated_ms"),
)

reconciliation = _table(
    "reconciliation",
    _key("name", String(128)),
    _key("token", String(TOKEN_CHARACTERS)),
    # "missing" or "extra", as the pipeline says.
    _required("finding", String(8)),
    _required("found_ms"),
)


# -- opening and writing ---------------------------------------------------------------------------


def open_database(url: str) -> Engine:
    """Connect, create what is missing, bring old tables up to date. Raises ConfigError."""
    return database.open_database(url, metadata, versions, VERSION)


def token(text: str) -> str:
    """A key or an id of any length as a value of the columns `token`, different if they differ."""
    if len(text) <= TOKEN_CHARACTERS:
        return text
    mark = f"...{sha256(text.encode(errors='surrogatepass')).hexdigest()}"
    return text[: TOKEN_CHARACTERS - len(mark)] + mark


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
