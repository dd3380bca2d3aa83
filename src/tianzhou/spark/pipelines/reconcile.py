"""`reconcile`: what a database says was sent or handled, against what the log has.

    outbox   rows of the outbox that are sent          against   messages that carry their OUTBOX_ID
    tokens   tokens that a group has handled           against   keys (or ids) of the messages

missing    the outbox says sent, the log has no such message; or the log has it, nobody handled it
extra      the other way round

Both sides are cut at the same moment: what is younger than `settle` is not looked at, since it may
be on its way.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, TableClause, column, delete, select, table
from sqlalchemy.exc import SQLAlchemyError

from tianzhou.client.database import idempotence, outbox, sql
from tianzhou.clock import wall_ms
from tianzhou.errors import ConfigError
from tianzhou.spark import database
from tianzhou.spark.options import parse_duration_ms, parse_names, parsed
from tianzhou.spark.pipelines import tables
from tianzhou.spark.pipelines.common import Outcome, PipelineOptions, frame_of, messages, moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MISSING, EXTRA = "missing", "extra"


class Against(StrEnum):
    """Which table is compared."""

    OUTBOX = "outbox"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(PipelineOptions):
    """Options of `reconcile`."""

    against: Against = Against.OUTBOX  # outbox, or tokens that a group has handled
    business: str = ""  # URL of the database of the program; the one of the results unless given
    table: str = ""  # its name, if it is not the usual one
    topics: tuple[str, ...] = parsed((), parse_names)  # where the messages are
    group: str = ""  # of tokens: the group that handled them
    settle: int = parsed(60_000, parse_duration_ms)  # ms; what is younger may be on its way
    since: int = parsed(24 * 3_600_000, parse_duration_ms)  # ms; how far to look back

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        if not self.topics:
            raise ConfigError("the option topics is needed: where the messages are")
        if self.against is Against.TOKENS and not self.group:
            raise ConfigError("the option group is needed: whose tokens are looked at")
        if self.table:
            sql.checked_table(self.table)
        if self.business:
            _business(self).dispose()

    @property
    def name(self) -> str:
        """Under which findings are kept."""
        return f"{self.against} {self.group or ','.join(self.topics)}"[:128]


def run(spark: "SparkSession", options: Options) -> Outcome:
    """Compare, and replace the findings of before."""
    now_ms = wall_ms()
    begin_ms, end_ms = now_ms - options.since, now_ms - options.settle
    said = _said(options, begin_ms, end_ms)
    logged = _logged(spark, options, begin_ms, now_ms)
    found = differences(
        frame_of(spark, ((each,) for each in said), "token string"),
        logged,
        outbox=options.against is Against.OUTBOX,
        end=moment(end_ms),
    ).collect()
    engine = tables.open_database(options.database)
    try:
        with engine.begin() as connection:
            kept = tables.reconciliation
            connection.execute(delete(kept).where(kept.c.name == options.name))
            tables.upsert(connection, kept, finding_rows(found, options.name, now_ms))
    finally:
        engine.dispose()
    missing = sum(row.finding == MISSING for row in found)
    return Outcome(len(found), f"{missing} missing, {len(found) - missing} extra")


def _logged(spark: "SparkSession", options: Options, begin_ms: int, now_ms: int) -> "DataFrame":
    """Tokens of the log with the time of each."""
    from pyspark.sql import functions as f

    columns = "storeTimestamp, msgId, keys, properties"
    stored = messages(spark, options, options.topics, columns, since_ms=begin_ms)
    if options.against is Against.OUTBOX:
        token = f.col("properties").getItem(outbox.OUTBOX_ID)
    else:
        token = f.expr("coalesce(get(keys, 0), msgId)")
    return stored.select(token.alias("token"), "storeTimestamp").where("token IS NOT NULL")


def differences(
    said: "DataFrame", logged: "DataFrame", *, outbox: bool, end: datetime
) -> "DataFrame":
    """Tokens that only one side has; of the log only those that are old enough count as alone."""
    from pyspark.sql import functions as f

    log = logged.groupBy("token").agg(f.min("storeTimestamp").alias("storedAt"))
    both = said.distinct().withColumn("said", f.lit(True)).join(log, "token", "full_outer")
    only_said = both.where("storedAt IS NULL").select(
        "token", f.lit(MISSING if outbox else EXTRA).alias("finding")
    )
    only_logged = both.where(f.col("said").isNull() & (f.col("storedAt") < f.lit(end))).select(
        "token", f.lit(EXTRA if outbox else MISSING).alias("finding")
    )
    return only_said.unionByName(only_logged)


def _said(options: Options, begin_ms: int, end_ms: int) -> list[str]:
    """Tokens of the program's table. Raises ConfigError if it cannot be read."""
    engine = _business(options)
    try:
        with engine.connect() as connection:
            return [str(row[0]) for row in connection.execute(_query(options, begin_ms, end_ms))]
    except SQLAlchemyError as e:
        raise database.database_error(options.business or options.database, e) from e
    finally:
        engine.dispose()


def _business(options: Options) -> Engine:
    """The program's database. Raises ConfigError for one that cannot be there."""
    url = options.business or options.database
    engine = database.engine_of(url)
    if database.is_missing_file(engine):
        raise ConfigError(f"database {url}: there is no such file")
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
    """A table of the program; its name may begin with that of a schema."""
    schema, _, own = name.rpartition(".")
    return table(own, *map(column, columns), schema=schema or None)


def finding_rows(found: Iterable[Any], name: str, now_ms: int) -> list[dict[str, object]]:
    """The rows of the table from what Spark found."""
    return [
        {"name": name, "token": tables.token(row.token), "finding": row.finding, "found_ms": now_ms}
        for row in found
    ]
