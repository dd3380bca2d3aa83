"""`reconcile`: compares the sent or handled messages of a database with the log.

    outbox   sent rows of the outbox             against   messages with their OUTBOX_ID
    tokens   tokens that a group has handled     against   keys (or ids) of the messages

missing    sent by the outbox but not in the log; or in the log but not handled
extra      in the log but not sent by the outbox; or handled but not in the log

Both sides end at the same time: messages younger than `settle` are skipped, since they may be in
flight.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from sqlalchemy import Engine, TableClause, column, select, table
from sqlalchemy.exc import SQLAlchemyError

from tianzhou.client.database import idempotence, outbox, sql
from tianzhou.clock import wall_ms
from tianzhou.errors import ConfigError
from tianzhou.monitor import database, tables
from tianzhou.spark.options import parse_duration_ms, parse_names, parsed
from tianzhou.spark.pipelines.common import Outcome, PipelineOptions, frame_of, messages, moment

MISSING, EXTRA = "missing", "extra"


class Against(StrEnum):
    """Which table is compared."""

    OUTBOX = "outbox"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(PipelineOptions):
    """Options of `reconcile`."""

    against: Against = Against.OUTBOX  # outbox, or tokens that a group has handled
    business: str = ""  # URL of the application's database; default: the result database
    table: str = ""  # name of its table; default: the standard name
    topics: tuple[str, ...] = parsed((), parse_names)  # topics of the messages
    group: str = ""  # with tokens: the consumer group
    settle: int = parsed(60_000, parse_duration_ms)  # ms; younger messages may be in flight
    since: int = parsed(24 * 3_600_000, parse_duration_ms)  # ms; how far to look back

    def __post_init__(self) -> None:
        """Raises ConfigError for missing or invalid options."""
        if not self.topics:
            raise ConfigError("the option topics is needed: the topics of the messages")
        if self.against is Against.TOKENS and not self.group:
            raise ConfigError("the option group is needed: the group whose tokens are compared")
        if self.table:
            sql.checked_table(self.table)
        if self.business:
            _business(self).dispose()

    @property
    def name(self) -> str:
        """The key of the results."""
        return f"{self.against} {self.group or ','.join(self.topics)}"[:128]


def run(spark: SparkSession, options: Options) -> Outcome:
    """Compare, and replace previous results."""
    now_ms = wall_ms()
    begin_ms, end_ms = now_ms - options.since, now_ms - options.settle
    recorded = _recorded(options, begin_ms, end_ms)
    logged = _logged(spark, options, begin_ms)
    found = differences(
        frame_of(spark, ((each,) for each in recorded), "token string"),
        logged,
        outbox=options.against is Against.OUTBOX,
        end=moment(end_ms),
    ).collect()
    results = tables.reconciliation
    rows = finding_rows(found, options.cluster, options.name, now_ms)
    before = (results.c.cluster == options.cluster) & (results.c.name == options.name)
    with tables.transaction(options.database) as connection:
        tables.replace(connection, results, before, rows)
    missing = sum(row.finding == MISSING for row in found)
    return Outcome(len(found), f"{missing} missing, {len(found) - missing} extra")


def _logged(spark: SparkSession, options: Options, begin_ms: int) -> DataFrame:
    """Tokens of the log with their store times."""
    columns = "storeTimestamp, msgId, keys, properties"
    stored = messages(spark, options, options.topics, columns, since_ms=begin_ms)
    if options.against is Against.OUTBOX:
        token = f.col("properties").getItem(outbox.OUTBOX_ID)
    else:
        token = f.expr("coalesce(get(keys, 0), msgId)")
    return stored.select(token.alias("token"), "storeTimestamp").where("token IS NOT NULL")


def differences(
    recorded: DataFrame, logged: DataFrame, *, outbox: bool, end: datetime
) -> DataFrame:
    """Tokens of only one side; those only in the log must be stored before `end`."""
    log = logged.groupBy("token").agg(f.min("storeTimestamp").alias("storedAt"))
    both = recorded.distinct().withColumn("recorded", f.lit(True)).join(log, "token", "full_outer")
    only_recorded = both.where("storedAt IS NULL").select(
        "token", f.lit(MISSING if outbox else EXTRA).alias("finding")
    )
    only_logged = both.where(f.col("recorded").isNull() & (f.col("storedAt") < f.lit(end))).select(
        "token", f.lit(EXTRA if outbox else MISSING).alias("finding")
    )
    return only_recorded.unionByName(only_logged)


def _recorded(options: Options, begin_ms: int, end_ms: int) -> list[str]:
    """Tokens of the application's table. Raises ConfigError if it cannot be read."""
    engine = _business(options)
    try:
        with engine.connect() as connection:
            return [str(row[0]) for row in connection.execute(_query(options, begin_ms, end_ms))]
    except SQLAlchemyError as e:
        raise database.database_error(options.business or options.database, e) from e
    finally:
        engine.dispose()


def _business(options: Options) -> Engine:
    """The application's database. Raises ConfigError for a missing file."""
    url = options.business or options.database
    engine = database.engine_of(url)
    if database.is_missing_file(engine):
        raise ConfigError(f"database {url}: the file does not exist")
    return engine


def _query(options: Options, begin_ms: int, end_ms: int) -> Any:  # noqa: ANN401 - a select
    if options.against is Against.OUTBOX:
        rows = _table(options.table or outbox.TABLE, "id", "state", "sent_ms")
        sent = (rows.c.state == outbox.SENT) & rows.c.sent_ms.between(begin_ms, end_ms)
        return select(rows.c.id).where(sent)
    rows = _table(options.table or idempotence.TABLE, "token", "consumer_group", "created_ms")
    mine = (rows.c.consumer_group == options.group) & (rows.c.created_ms >= begin_ms)
    return select(rows.c.token).where(mine)


def _table(name: str, *columns: str) -> TableClause:
    """A table of the application; its name may include a schema."""
    schema, _, own = name.rpartition(".")
    return table(own, *map(column, columns), schema=schema or None)


def finding_rows(
    found: Iterable[Any], cluster_name: str, name: str, now_ms: int
) -> list[dict[str, object]]:
    """Result rows of Spark as rows of the table."""
    return [
        {
            "cluster": cluster_name, "name": name, "token": tables.token(row.token),
            "finding": row.finding, "found_ms": now_ms,
        }
        for row in found
    ]  # fmt: skip
