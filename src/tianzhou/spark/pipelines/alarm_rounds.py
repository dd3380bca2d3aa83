"""The stream of an alarm pipeline: a round (`tianzhou.monitor.rounds`) at regular intervals.

A round is one transaction that includes its number, so that a round repeated by Spark after a crash
changes nothing.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from tianzhou.clock import Clock, wall_ms
from tianzhou.errors import TianzhouError
from tianzhou.monitor import tables
from tianzhou.monitor.channels import channels_of
from tianzhou.monitor.rounds import Observation, deliver, rules_of, update_alarms
from tianzhou.monitor.rules import Rule
from tianzhou.spark.options import parse_duration_ms, parsed
from tianzhou.spark.pipelines.common import NEVER, Outcome, PipelineOptions, short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_WAIT_S = 1
_GRACE_S = 30
"""How long the current round may take to finish when the pipeline is stopped."""


def parse_whole(text: str) -> int:
    """A whole number of at least 0. Raises ValueError."""
    if not text.strip().isdecimal():
        raise ValueError("a whole number of at least 0 is expected")
    return int(text)


def parse_notifiers(text: str) -> str:
    """Check the channels; they are created when they are needed. Raises ConfigError."""
    channels_of(text)
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
                rules = rules_of(connection, options.cluster, kind)
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
            notice_counts.append(
                update_alarms(connection, options.cluster, kind, seen, options.fallback, now_ms)
            )

        if query is None:
            with engine.begin() as connection:
                work(connection)
        else:
            tables.apply_once(engine, query, batch, work)
        deliver(engine, options.cluster, options.notify, now_ms)

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
