"""Runs a pipeline: options first, then the database, then Spark; and keeps a record of the run.

What is wrong with options or database is told before Spark is started, which takes seconds. Every
run has a row in `tianzhou_pipeline_runs`: running, done or failed.
"""

import json
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, select, update

from tianzhou.clock import wall_ms
from tianzhou.errors import TianzhouError
from tianzhou.spark.options import read_options
from tianzhou.spark.pipelines import catalog, tables
from tianzhou.spark.pipelines.common import DATABASE, Outcome, PipelineOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRESS_S = 0.5
_SECRETS = ("secretKey", "securityToken", "tlsKeyPassword", "database", "notify")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One run as the database keeps it."""

    pipeline: str
    state: str
    started_ms: int
    ended_ms: int | None
    row_count: int
    note: str | None


def check(name: str, given: Mapping[str, str]) -> PipelineOptions:
    """The options of a run. Raises ConfigError; nothing has been started then."""
    options = read_options(catalog.load(name).Options, given)
    assert isinstance(options, PipelineOptions)
    options.client_settings()
    return options


def run(
    name: str,
    given: Mapping[str, str],
    *,
    spark: "SparkSession | None" = None,
    tell: Tell = lambda line: None,
) -> Outcome:
    """Run a pipeline to its end. Raises ConfigError before Spark starts, later what goes wrong.

    Without a session the one of this process is used, or one is started and stopped again. `tell`
    gets a line for each step.
    """
    module = catalog.load(name)
    options = check(name, given)
    engine = tables.open_database(options.database)
    try:
        with _recorded(engine, name, given) as record:
            with _session(name, spark, tell) as chosen, _progress(chosen, tell):
                outcome: Outcome = module.run(chosen, options)
            record(outcome)
            return outcome
    finally:
        engine.dispose()


@contextmanager
def _session(name: str, given: "SparkSession | None", tell: Tell) -> Generator["SparkSession"]:
    """The session that was given, the one that runs in this process, or a new one."""
    from pyspark import SparkContext

    from tianzhou.spark import session

    if given is not None:
        yield given
        return
    is_running = SparkContext._active_spark_context is not None  # pyright: ignore[reportPrivateUsage] - PySpark tells it nowhere else
    if not is_running:
        tell("starting Spark")
    made = session(f"tianzhou {name}")
    try:
        yield made
    finally:
        if not is_running:
            made.stop()


def status(database: str = DATABASE, *, limit: int = 20) -> list[Run]:
    """The last runs, the newest first. Raises ConfigError."""
    engine = tables.open_database(database)
    try:
        table = tables.runs
        with engine.connect() as connection:
            found = connection.execute(select(table).order_by(table.c.id.desc()).limit(limit)).all()
    finally:
        engine.dispose()
    return [
        Run(row.pipeline, row.state, row.started_ms, row.ended_ms, row.row_count, row.note)
        for row in found
    ]


@contextmanager
def _recorded(
    engine: Engine, name: str, given: Mapping[str, str]
) -> Generator[Callable[[Outcome], None]]:
    shown = {
        key: "***" if key.lower() in map(str.lower, _SECRETS) else value
        for key, value in given.items()
    }
    table = tables.runs
    with engine.begin() as connection:
        row = {
            "pipeline": name, "state": "running", "started_ms": wall_ms(),
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
        end("stopped" if isinstance(e, KeyboardInterrupt) else "failed", note=_reason(e))
        raise
    end("done", row_count=ended[0].row_count, note=ended[0].note)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    name = "" if isinstance(error, TianzhouError) else f"{type(error).__name__}: "
    return f"{name}{lines[0] if lines else ''}"[:500]


@contextmanager
def _progress(spark: "SparkSession", tell: Tell) -> Generator[None]:
    """Tell how far Spark's stages are, from a thread that only looks."""
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        told = ""
        while not ended.wait(_PROGRESS_S):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None and info.numTasks:
                    line = f"stage {stage}: {info.numCompletedTasks} of {info.numTasks} tasks"
                    if line != told:
                        tell(line)
                        told = line

    thread = threading.Thread(target=watch, name="tianzhou-pipeline-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
