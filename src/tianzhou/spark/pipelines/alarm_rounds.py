"""Rounds of an alarm pipeline: observations update alarms, and alarms create notices.

A round is one transaction that includes its number, so that a round repeated by Spark after a crash
changes nothing. Notices are stored as rows until they are delivered; the next rounds retry failed
deliveries.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, select, update

from tianzhou.clock import Clock, wall_ms
from tianzhou.errors import TianzhouError
from tianzhou.spark.options import parse_duration_ms, parsed
from tianzhou.spark.pipelines import tables
from tianzhou.spark.pipelines.alarm_delivery import Notice, NoticeError, notifiers, notify_all
from tianzhou.spark.pipelines.alarms import Alarm, Rule, evaluate, rules_for
from tianzhou.spark.pipelines.common import NEVER, Outcome, PipelineOptions, short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 100
_WAIT_S = 1
_GRACE_S = 30
"""How long the current round may take to finish when the pipeline is stopped."""


def parse_whole(text: str) -> int:
    """A whole number of at least 0. Raises ValueError."""
    if not text.strip().isdecimal():
        raise ValueError("a whole number of at least 0 is expected")
    return int(text)


def parse_notifiers(text: str) -> str:
    """Check the notifiers; they are created when they are needed. Raises ConfigError."""
    notifiers(text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmOptions(PipelineOptions):
    """Options of alarm pipelines."""

    threshold: int = parsed(100, parse_whole)  # without a matching rule in the database
    window: int = parsed(600_000, parse_duration_ms)  # ms; also the interval between notices
    repeat_max: int = parsed(3, parse_whole)  # notices after the first, while an alarm is open
    notify: str = parsed("log", parse_notifiers)  # log, http(s)://..., smtp(s)://...
    every: int = parsed(60_000, parse_duration_ms)  # ms between two checks
    once: bool = False  # check once, and end
    rounds: int | None = None  # end after this number of checks
    checkpoint: Path | None = None  # where Spark keeps the number of the round

    @property
    def fallback(self) -> Rule:
        return Rule(self.threshold, self.window // 1000, self.repeat_max)


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed value of a group and a topic."""

    group: str
    topic: str
    value: int = 0
    by_window: Mapping[int, int] = field(default_factory=dict[int, int])
    """Values by window length in seconds, where they depend on it."""
    detail: str = ""


# -- one round -------------------------------------------------------------------------------------


def rules_of(connection: Connection, kind: str) -> list[Rule]:
    """The enabled rules of a kind."""
    return [
        Rule(row.threshold, row.window_s, row.repeat_max, row.tenant, row.consumer_group, row.topic)
        for row in tables.rows_of(connection, tables.alarm_rules, kind=kind)
        if row.enabled
    ]


def update_alarms(
    connection: Connection,
    kind: str,
    observations: Iterable[Observation],
    fallback: Rule,
    now_ms: int,
) -> int:
    """Update the alarms of a kind; returns the number of new notices.

    An alarm whose group or topic was not observed counts as observed with 0.
    """
    rules = rules_of(connection, kind)
    known = {
        (row.tenant, row.consumer_group, row.topic): row
        for row in tables.rows_of(connection, tables.alarms, kind=kind)
    }
    notice_count = 0
    seen: set[tuple[str, str, str]] = set()
    for each in observations:
        for rule in rules_for(rules, each.group, each.topic, fallback):
            key = (rule.tenant, each.group, each.topic)
            seen.add(key)
            notice_count += _evaluate(connection, kind, each, rule, known.get(key), now_ms)
    for key, row in known.items():
        if row.is_open and key not in seen:
            rule = Rule(row.threshold, tenant=row.tenant)
            unobserved = Observation(row.consumer_group, row.topic)
            notice_count += _evaluate(connection, kind, unobserved, rule, row, now_ms)
    return notice_count


def _evaluate(
    connection: Connection, kind: str, seen: Observation, rule: Rule, row: Any, now_ms: int  # noqa: ANN401 - a row of alarms
) -> int:  # fmt: skip
    before = None if row is None else _alarm_of(row)
    value = seen.by_window.get(rule.window_s, seen.value)
    after, event = evaluate(before, value, rule, now_ms)
    key = {
        "kind": kind, "tenant": rule.tenant, "consumer_group": seen.group, "topic": seen.topic,
    }  # fmt: skip
    if after is not None and after != before:
        values = _columns(after) | {"threshold": rule.threshold}
        tables.upsert(connection, tables.alarms, [key | values])
    if event is None:
        return 0
    values = {
        "event": event, "value": value, "threshold": rule.threshold, "at_ms": now_ms,
        "detail": seen.detail,
    }  # fmt: skip
    connection.execute(tables.alarm_events.insert().values(key | values))
    return 1


_STATE_COLUMNS = {
    "is_open": "is_open",
    "opened_ms": "opened_ms",
    "recovered_ms": "recovered_ms",
    "is_notified": "told_open",
    "notice_count": "told_count",
    "notified_ms": "told_ms",
    "value": "value",
}
"""The column of each field of an alarm."""


def _alarm_of(row: Any) -> Alarm:  # noqa: ANN401 - a row of alarms
    return Alarm(**{name: getattr(row, column) for name, column in _STATE_COLUMNS.items()})


def _columns(alarm: Alarm) -> dict[str, object]:
    values = {column: getattr(alarm, name) for name, column in _STATE_COLUMNS.items()}
    # The columns of flags are numbers.
    return {name: int(each) if isinstance(each, bool) else each for name, each in values.items()}


def deliver(engine: Engine, notify: str, now_ms: int) -> int:
    """Deliver the outstanding notices; returns the number of delivered ones."""
    table = tables.alarm_events
    to = notifiers(notify)
    with engine.connect() as connection:
        due = (table.c.told_ms.is_(None)) & (table.c.try_count < _ATTEMPTS_MAX)
        rows = connection.execute(select(table).where(due).order_by(table.c.id)).all()
    delivered_count = 0
    for row in rows:
        notice = Notice(
            row.kind, row.event, row.tenant, row.consumer_group, row.topic, row.value,
            row.threshold, row.at_ms, row.detail,
        )  # fmt: skip
        try:
            notify_all(notice, to)
            changed: dict[str, object] = {"told_ms": now_ms}
            delivered_count += 1
        except NoticeError as e:
            log.warning("alarm of group %s: notice not delivered: %s", row.consumer_group, e)
            changed = {"try_count": row.try_count + 1}
        with engine.begin() as connection:
            connection.execute(update(table).where(table.c.id == row.id).values(changed))
    return delivered_count


# -- many rounds -----------------------------------------------------------------------------------

Observe = Callable[[int, list[Rule]], list[Observation]]
"""Observes the cluster; gets the time and the rules."""


def run_rounds(
    spark: "SparkSession",
    options: AlarmOptions,
    kind: str,
    observe: Observe,
    *,
    stop: threading.Event = NEVER,
    clock: Clock = wall_ms,
) -> Outcome:
    """Check once, `rounds` times, or until stopped.

    A failed check, for example with an unavailable broker, changes no alarm: the state of the
    groups is unknown. Consecutive failures are logged once.
    """
    engine = tables.open_database(options.database)
    notice_counts: list[int] = []
    failure_count = 0

    def one(query: str | None, batch: int) -> None:
        nonlocal failure_count
        now_ms = clock()
        try:
            with engine.connect() as connection:
                rules = rules_of(connection, kind)
            with short_errors():
                seen = observe(now_ms, rules)
        except TianzhouError as e:
            if query is None:
                raise
            failure_count += 1
            if failure_count == 1:
                log.warning("%s alarms: check of the cluster failed: %s", kind, e)
            return
        if failure_count:
            log.warning("%s alarms: working again after %d failed checks", kind, failure_count)
            failure_count = 0

        def work(connection: Connection) -> None:
            notice_counts.append(update_alarms(connection, kind, seen, options.fallback, now_ms))

        if query is None:
            with engine.begin() as connection:
                work(connection)
        else:
            tables.apply_once(engine, query, batch, work)
        deliver(engine, options.notify, now_ms)

    try:
        if options.once:
            one(None, 0)
        else:
            _stream(spark, options, kind, one, stop)
    finally:
        engine.dispose()
    total = sum(notice_counts)
    return Outcome(total, f"{len(notice_counts)} rounds, {total} notices")


def _stream(
    spark: "SparkSession",
    options: AlarmOptions,
    kind: str,
    one: Callable[[str, int], None],
    stop: threading.Event,
) -> None:
    """Run rounds by a stream of ticks, whose checkpoint numbers them.

    On a stop the current round is finished. If Spark has not recorded it by then, the next run
    repeats it, and its number makes that a no-op. A round that Spark starts after the stop is
    skipped, since the next run observes the state of its time anyway.
    """
    started = threading.Event()
    ended = threading.Event()
    round_lock = threading.Lock()
    name: list[str] = []
    count = 0

    def tick(_: "DataFrame", batch: int) -> None:
        nonlocal count
        started.wait()
        with round_lock:
            if not ended.is_set():
                one(name[0], batch)
                count += 1
                if options.rounds is not None and count >= options.rounds:
                    ended.set()

    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    writer = ticks.writeStream.foreachBatch(tick).trigger(
        processingTime=f"{options.every} milliseconds"
    )
    if options.checkpoint is not None:
        writer = writer.option("checkpointLocation", str(options.checkpoint))
    query = writer.start()
    name.append(f"{kind} {query.id}")
    started.set()
    try:
        while not (ended.is_set() or stop.is_set() or query.awaitTermination(_WAIT_S)):
            pass
    finally:
        ended.set()
        if round_lock.acquire(timeout=_GRACE_S):
            round_lock.release()
        query.stop()
