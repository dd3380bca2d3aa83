"""Rounds of an alarm pipeline: what was observed becomes alarms, and alarms become notices.

A round is one transaction with its number, so that a round that Spark repeats after a crash changes
nothing. Notices are rows until a notifier took them: those that could not be delivered are tried
again with the next rounds.
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
from tianzhou.spark.pipelines.alarms import Alarm, Rule, judge, rules_for
from tianzhou.spark.pipelines.common import NEVER, Outcome, PipelineOptions, short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 100
_WAIT_S = 1
_GRACE_S = 30
"""How long a round in hand may take to its end when the pipeline is stopped."""


def parse_whole(text: str) -> int:
    """A whole number from 0 on. Raises ValueError."""
    if not text.strip().isdecimal():
        raise ValueError("a whole number from 0 on is expected")
    return int(text)


def parse_notifiers(text: str) -> str:
    """The notifiers are checked, and made when they are needed. Raises ConfigError."""
    notifiers(text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmOptions(PipelineOptions):
    """Options of alarm pipelines."""

    threshold: int = parsed(100, parse_whole)  # where the table of rules says nothing
    window: int = parsed(600_000, parse_duration_ms)  # ms; also the pause between two notices
    repeat_max: int = parsed(3, parse_whole)  # notices after the first, while an alarm is open
    notify: str = parsed("log", parse_notifiers)  # log, http(s)://..., smtp(s)://...
    every: int = parsed(60_000, parse_duration_ms)  # ms between two looks
    once: bool = False  # look once, and end
    rounds: int | None = None  # end after so many looks
    checkpoint: Path | None = None  # where Spark keeps the number of the round

    @property
    def fallback(self) -> Rule:
        return Rule(self.threshold, self.window // 1000, self.repeat_max)


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of a group and a topic."""

    group: str
    topic: str
    value: int = 0
    by_window: Mapping[int, int] = field(default_factory=dict[int, int])
    """Where the value depends on the length of the window, by seconds."""
    detail: str = ""

    def value_for(self, rule: Rule) -> int:
        return self.by_window.get(rule.window_s, self.value)


# -- one round -------------------------------------------------------------------------------------


def rules_of(connection: Connection, kind: str) -> list[Rule]:
    """The rules of a kind that are in force."""
    return [
        Rule(row.threshold, row.window_s, row.repeat_max, row.tenant, row.consumer_group, row.topic)
        for row in tables.rows_of(connection, tables.alarm_rules, kind=kind)
        if row.enabled
    ]


def settle(
    connection: Connection,
    kind: str,
    observations: Iterable[Observation],
    fallback: Rule,
    now_ms: int,
) -> int:
    """Bring the alarms of a kind up to date; how many notices are due because of it.

    An alarm whose group or topic was not observed is taken to have nothing left.
    """
    rules = rules_of(connection, kind)
    known = {
        (row.tenant, row.consumer_group, row.topic): row
        for row in tables.rows_of(connection, tables.alarms, kind=kind)
    }
    told_count = 0
    seen: set[tuple[str, str, str]] = set()
    for each in observations:
        for rule in rules_for(rules, each.group, each.topic, fallback):
            key = (rule.tenant, each.group, each.topic)
            seen.add(key)
            told_count += _judge(connection, kind, each, rule, known.get(key), now_ms)
    for key, row in known.items():
        if row.is_open and key not in seen:
            rule = Rule(row.threshold, tenant=row.tenant)
            gone = Observation(row.consumer_group, row.topic)
            told_count += _judge(connection, kind, gone, rule, row, now_ms)
    return told_count


def _judge(
    connection: Connection, kind: str, seen: Observation, rule: Rule, row: Any, now_ms: int  # noqa: ANN401 - a row of alarms
) -> int:  # fmt: skip
    before = None if row is None else _alarm_of(row)
    value = seen.value_for(rule)
    after, event = judge(before, value, rule, now_ms)
    place = {
        "kind": kind, "tenant": rule.tenant, "consumer_group": seen.group, "topic": seen.topic,
    }  # fmt: skip
    if after is not None and after != before:
        tables.upsert(connection, tables.alarms, [place | _columns(after, rule)])
    if event is None:
        return 0
    what = {
        "event": event, "value": value, "threshold": rule.threshold, "at_ms": now_ms,
        "detail": seen.detail,
    }  # fmt: skip
    connection.execute(tables.alarm_events.insert().values(place | what))
    return 1


def _alarm_of(row: Any) -> Alarm:  # noqa: ANN401 - a row of alarms
    return Alarm(
        is_open=bool(row.is_open),
        opened_ms=row.opened_ms,
        value=row.value,
        recovered_ms=row.recovered_ms,
        told_open=bool(row.told_open),
        told_count=row.told_count,
        told_ms=row.told_ms,
    )


def _columns(alarm: Alarm, rule: Rule) -> dict[str, object]:
    return {
        "is_open": int(alarm.is_open),
        "opened_ms": alarm.opened_ms,
        "recovered_ms": alarm.recovered_ms,
        "told_open": int(alarm.told_open),
        "told_count": alarm.told_count,
        "told_ms": alarm.told_ms,
        "value": alarm.value,
        "threshold": rule.threshold,
    }


def deliver(engine: Engine, notify: str, now_ms: int) -> int:
    """Hand out the notices that nobody has yet; how many were taken."""
    table = tables.alarm_events
    to = notifiers(notify)
    with engine.connect() as connection:
        due = (table.c.told_ms.is_(None)) & (table.c.try_count < _ATTEMPTS_MAX)
        rows = connection.execute(select(table).where(due).order_by(table.c.id)).all()
    taken_count = 0
    for row in rows:
        notice = Notice(
            row.kind, row.event, row.tenant, row.consumer_group, row.topic, row.value,
            row.threshold, row.at_ms, row.detail,
        )  # fmt: skip
        try:
            notify_all(notice, to)
            changed: dict[str, object] = {"told_ms": now_ms}
            taken_count += 1
        except NoticeError as e:
            log.warning("alarm of group %s: nobody was told yet: %s", row.consumer_group, e)
            changed = {"try_count": row.try_count + 1}
        with engine.begin() as connection:
            connection.execute(update(table).where(table.c.id == row.id).values(changed))
    return taken_count


# -- many rounds -----------------------------------------------------------------------------------

Observe = Callable[[int, list[Rule]], list[Observation]]
"""What is to be seen now; it gets the time and the rules."""


def run_rounds(
    spark: "SparkSession",
    options: AlarmOptions,
    kind: str,
    observe: Observe,
    *,
    stop: threading.Event = NEVER,
    clock: Clock = wall_ms,
) -> Outcome:
    """Look once, so many times, or until stopped.

    A look that fails, for a broker that is away for example, changes no alarm: nothing is known of
    the groups then. It is told once, and the next one tries again.
    """
    engine = tables.open_database(options.database)
    told: list[int] = []
    failures = FailureLog(kind)

    def look(now_ms: int) -> list[Observation]:
        with engine.connect() as connection:
            rules = rules_of(connection, kind)
        with short_errors():
            return observe(now_ms, rules)

    def one(query: str | None, batch: int) -> None:
        now_ms = clock()
        try:
            seen = look(now_ms)
        except TianzhouError as e:
            if query is None:
                raise
            failures.failed(e)
            return
        failures.ended()

        def work(connection: Connection) -> None:
            told.append(settle(connection, kind, seen, options.fallback, now_ms))

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
    return Outcome(sum(told), f"{len(told)} rounds, {sum(told)} notices")


class FailureLog:
    """Looks that failed one after the other: told when they begin, and when they end."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._count = 0

    def failed(self, error: TianzhouError) -> None:
        self._count += 1
        if self._count == 1:
            log.warning("%s alarms: the cluster could not be looked at: %s", self._kind, error)

    def ended(self) -> None:
        if self._count:
            log.warning("%s alarms: they go on after %d failed looks", self._kind, self._count)
        self._count = 0


def _stream(
    spark: "SparkSession",
    options: AlarmOptions,
    kind: str,
    one: Callable[[str, int], None],
    stop: threading.Event,
) -> None:
    """Rounds by a stream of ticks, whose checkpoint numbers them.

    When it is stopped, the round in hand goes to its end. One that Spark has not noted as done by
    then comes again with the next run, and is dropped by its number; one that Spark begins after
    that is left out, since the next run looks at the present anyway.
    """
    started = threading.Event()
    ended = threading.Event()
    in_hand = threading.Lock()
    name: list[str] = []
    count = 0

    def tick(_: "DataFrame", batch: int) -> None:
        nonlocal count
        started.wait()
        with in_hand:
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
        if in_hand.acquire(timeout=_GRACE_S):
            in_hand.release()
        query.stop()
