"""Runs a pipeline and records the run.

Options and database are checked before Spark starts, which takes seconds. Every run has a row in
`tianzhou_pipeline_runs`: running, done, failed or stopped.
"""

import inspect
import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from sqlalchemy import Engine, select, update

from tianzhou.clock import wall_ms
from tianzhou.errors import PipelineError, TianzhouError
from tianzhou.monitor import tables
from tianzhou.monitor.database import engine_of, is_missing_file
from tianzhou.spark.options import read_options
from tianzhou.spark.pipelines import catalog
from tianzhou.spark.pipelines.common import (
    DATABASE,
    NEVER,
    Outcome,
    PipelineOptions,
    short_errors,
)

_PROGRESS_S = 0.5
_SECRETS = ("secretKey", "securityToken", "tlsKeyPassword", "database", "business", "notify")

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run."""

    pipeline: str
    state: str
    started_ms: int
    ended_ms: int | None
    row_count: int
    note: str | None


def check(name: str, given: Mapping[str, str]) -> PipelineOptions:
    """The options of a run. Raises ConfigError before anything is started."""
    options = read_options(catalog.load(name).Options, given)
    assert isinstance(options, PipelineOptions)
    options.client_settings()
    return options


def run(
    name: str,
    given: Mapping[str, str],
    *,
    spark: SparkSession | None = None,
    on_progress: OnProgress = lambda line: None,
    stop: threading.Event = NEVER,
) -> Outcome:
    """Run a pipeline to its end. Raises ConfigError before Spark starts, PipelineError later.

    Without a session, that of this process is used, or one is started and stopped. `on_progress`
    gets a line for each step. Setting `stop` ends the run: streaming pipelines finish the current
    round, of others the jobs are cancelled. A pipeline that can resume later returns; others raise
    PipelineError.
    """
    module = catalog.load(name)
    options = check(name, given)
    engine = tables.open_database(options.database)
    streams = catalog.entry(name).streams
    more = {"stop": stop} if "stop" in inspect.signature(module.run).parameters else {}
    try:
        with _recorded(engine, name, options.cluster, given, stop) as record:
            try:
                with (
                    short_errors(),
                    _session(name, spark, on_progress) as chosen,
                    _watched(chosen, on_progress, stop, cancels=not streams),
                ):
                    outcome: Outcome = module.run(chosen, options, **more)
            except PipelineError as e:
                if not stop.is_set():
                    raise
                # The error of a job that the stop has cancelled says nothing more.
                raise PipelineError("stopped before its end") from e
            record(outcome)
            return outcome
    finally:
        engine.dispose()


@contextmanager
def _session(
    name: str, given: SparkSession | None, on_progress: OnProgress
) -> Generator[SparkSession]:
    """The given session, the active one of this process, or a new one."""
    from tianzhou.spark import session

    if given is not None:
        yield given
        return
    is_running = SparkContext._active_spark_context is not None  # pyright: ignore[reportPrivateUsage] - PySpark offers no other access
    if not is_running:
        on_progress("starting Spark")
    # Spark's warnings (interrupted threads, late batches) are noise here.
    made = session(f"tianzhou {name}", spark_log_level="ERROR")
    try:
        yield made
    finally:
        if not is_running:
            made.stop()


def status(database: str = DATABASE, *, limit: int = 20) -> list[Run]:
    """The last runs, the newest first. Raises ConfigError."""
    if is_missing_file(engine_of(database)):
        return []
    table = tables.runs
    columns = [table.c[field.name] for field in fields(Run)]
    with tables.transaction(database) as connection:
        newest = select(*columns).order_by(table.c.id.desc()).limit(limit)
        return [Run(*row) for row in connection.execute(newest)]


@contextmanager
def _recorded(
    engine: Engine, name: str, cluster: str, given: Mapping[str, str], stop: threading.Event
) -> Generator[Callable[[Outcome], None]]:
    shown = {
        key: "***" if key.lower() in map(str.lower, _SECRETS) else value
        for key, value in given.items()
    }
    table = tables.runs
    with engine.begin() as connection:
        row = {
            "cluster": cluster, "pipeline": name, "state": "running", "started_ms": wall_ms(),
            "options": json.dumps(shown, sort_keys=True),
        }  # fmt: skip
        key = connection.execute(table.insert().values(row)).inserted_primary_key
        assert key is not None
        run_id = key[0]

    def end(state: str, **more: Any) -> None:  # noqa: ANN401 - columns of the table
        with engine.begin() as connection:
            values = {"state": state, "ended_ms": wall_ms()} | more
            connection.execute(update(table).where(table.c.id == run_id).values(values))

    ended: list[Outcome] = []
    try:
        yield ended.append
    except BaseException as e:
        is_stopped = stop.is_set() or isinstance(e, KeyboardInterrupt)
        end("stopped" if is_stopped else "failed", note=_reason(e))
        raise
    state = "stopped" if stop.is_set() else "done"
    end(state, row_count=ended[0].row_count, note=ended[0].note)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    name = "" if isinstance(error, TianzhouError) else f"{type(error).__name__}: "
    return f"{name}{lines[0] if lines else ''}"[:500]


@contextmanager
def _watched(
    spark: SparkSession, on_progress: OnProgress, stop: threading.Event, *, cancels: bool
) -> Generator[None]:
    """Report the progress of Spark's stages; with `cancels`, cancel all jobs on a stop."""
    ended = threading.Event()
    context = spark.sparkContext
    tracker = context.statusTracker()

    def watch() -> None:
        reported: dict[int, str] = {}
        while not ended.wait(_PROGRESS_S):
            if stop.is_set() and cancels:
                context.cancelAllJobs()
                continue
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None and info.numTasks:
                    line = f"stage {stage}: {info.numCompletedTasks} of {info.numTasks} tasks"
                    if reported.get(stage) != line:
                        on_progress(line)
                        reported[stage] = line

    thread = threading.Thread(target=watch, name="tianzhou-pipeline-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
