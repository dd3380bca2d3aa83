"""`tianzhou pipeline`: run the built-in Spark jobs over topics, and show their runs."""

import asyncio
import logging
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tianzhou.cli.shared.command import Options, Session, command, credentials_of
from tianzhou.cli.shared.context_file import Context
from tianzhou.cli.shared.output import (
    CommandResult,
    format_duration,
    format_size,
    format_time,
    key_values,
    plural,
    table,
    table_of,
)
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.cli.shared.terminal import FAILED, OK
from tianzhou.errors import ConfigError

app = typer.Typer(name="pipeline", no_args_is_help=True, help="Run Spark jobs over topics.")

Database = Annotated[
    str | None, option("--database URL", "Database of the results: sqlite:///... or postgresql://")
]


@command(
    app, "list", reads=True, examples=["tianzhou pipeline list", "tianzhou pipeline list --json"]
)
async def list_pipelines(session: Session) -> CommandResult:
    """List the pipelines."""
    with _extra():
        from tianzhou.spark.pipelines import catalog

    rows = [
        {"name": name, "summary": each.summary, "streams": each.streams}
        for name, each in catalog.PIPELINES.items()
    ]
    shown = table_of(
        rows, "!name, summary, streams=runs", streams=lambda on: "until stopped" if on else "once"
    )
    note = "options of a pipeline: `tianzhou pipeline options NAME`"
    return CommandResult(rows, [shown], notes=[note])


@command(app, "options", reads=True, examples=["tianzhou pipeline options topic-stats"])
async def options(
    session: Session, name: Annotated[str, argument("NAME", "The pipeline.")]
) -> CommandResult:
    """Show the options of a pipeline and their defaults."""
    with _extra():
        from tianzhou.spark.pipelines import catalog

    found = {key: _text(value) for key, value in catalog.option_defaults(name).items()}
    meanings = catalog.option_meanings(name)
    rows = ((key, value, meanings.get(key)) for key, value in found.items())
    return CommandResult(found, [table(["!option", "default", "meaning"], rows)])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - of texts
    return "" if value is None else str(value)


@command(
    app, "run",
    examples=[
        "tianzhou pipeline run topic-stats",
        "tianzhou pipeline run topic-stats --set days=2024-02-29 --set zone=Asia/Shanghai",
        "tianzhou pipeline run topic-stats --set midnight=true --database postgresql://db/stats",
        "tianzhou pipeline run backlog-alarm --set threshold=1000 --set notify=https://hooks/x",
    ],
)  # fmt: skip
async def run(
    session: Session,
    name: Annotated[str, argument("NAME", "The pipeline.")],
    given: Annotated[
        list[str] | None, option("--set, -s OPTION=VALUE", "An option; may be repeated.")
    ] = None,
    database: Database = None,
) -> CommandResult:
    """Run a pipeline. Its options are checked before Spark starts.

    Ctrl-C and SIGTERM stop it cleanly. Exit code 0: complete, or a pipeline without an
    end; 1: failed, or stopped before its end.
    """
    with _extra():
        from tianzhou.spark.pipelines import catalog, runner
    pairs = cluster_pairs(session.target, session.options) | catalog.parse_pairs(given or [])
    if database is not None:
        pairs["database"] = database
    runner.check(name, pairs)

    def show(line: str) -> None:
        session.err.print(Text(f"{name}: {line}", style="dim"), soft_wrap=True)

    _show_notices()
    stop = threading.Event()

    def end() -> None:
        if not stop.is_set():
            show("stopping")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(RuntimeError, ValueError):  # signals can only be handled in the main thread
            asyncio.get_running_loop().add_signal_handler(number, end)
    work = asyncio.ensure_future(
        asyncio.to_thread(runner.run, name, pairs, on_progress=show, stop=stop)
    )
    try:
        outcome = await asyncio.shield(work)
    except asyncio.CancelledError:
        # The caller is cancelled: stop the run, which is recorded as stopped.
        stop.set()
        await asyncio.gather(work, return_exceptions=True)
        raise
    more = [outcome.note] if outcome.note else []
    if stop.is_set() and outcome.is_complete:
        more.append("stopped")
    note = f"{name}: {plural(outcome.row_count, 'row')}" + (f" ({'; '.join(more)})" if more else "")
    code = OK if outcome.is_complete else FAILED
    return CommandResult(asdict(outcome), notes=[note], exit_code=code)


def _show_notices() -> None:
    """Print the notifications of the notifier `log`."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("tianzhou.spark.pipelines").setLevel(logging.INFO)


@contextmanager
def _extra() -> Generator[None]:
    """Guards imports that need the extra `spark`. Raises ConfigError."""
    try:
        yield
    except ModuleNotFoundError as e:
        raise ConfigError(
            f"pipelines need the spark extra: pip install 'tianzhou[spark]' ({e})"
        ) from e


def cluster_pairs(target: Context, options: Options) -> dict[str, str]:
    """The cluster of this command as options of a pipeline."""
    pairs = {"nameServer": target.namesrv}
    account = credentials_of(target, options)
    if account is not None:
        pairs |= {"accessKey": account.access_key, "secretKey": account.secret_key}
    if target.tls:
        pairs["tls"] = "true"
        if target.tls_ca:
            pairs["tlsTrusted"] = target.tls_ca
    return pairs


@command(
    app, "package", reads=True,
    examples=[
        "tianzhou pipeline package --out ship",
        "tianzhou pipeline package --out ship --with psycopg --without pyarrow",
        "tianzhou pipeline package --out ship --pure",
    ],
)  # fmt: skip
async def package(
    session: Session,
    out: Annotated[Path, option("--out FOLDER", "Target folder.")],
    pure: Annotated[
        bool, option("--pure", "A zip of the pure-Python package only, for --py-files.")
    ] = False,
    more: Annotated[list[str] | None, option("--with NAME", "Include this distribution.")] = None,
    without: Annotated[
        list[str] | None,
        option("--without NAME", "Leave out this distribution: the machines have it."),
    ] = None,
) -> CommandResult:
    """Package Tianzhou for a Spark cluster, and print the spark-submit command."""
    with _extra():
        from tianzhou.spark.cluster_package import PYTHON, write_archive, write_zip
    if pure and (more or without):
        raise ConfigError(
            "--with and --without are for archives; a --pure zip has only the package"
        )
    if pure:
        made = await asyncio.to_thread(write_zip, out)
    else:
        made = await asyncio.to_thread(write_archive, out, more=more or (), without=without or ())
    summary = key_values(
        [
            ("file", str(made.path)),
            ("size", format_size(made.size_bytes)),
            ("kernel", "included" if made.has_kernel else "not included: pure Python is used"),
            ("machines need", ", ".join(["Spark", f"Python {PYTHON}", *made.needs])),
        ]
    )
    data = asdict(made) | {"path": str(made.path), "program": str(made.program)}
    return CommandResult(data, [summary], notes=["", *made.commands])


@command(app, "status", reads=True, watches=True, examples=["tianzhou pipeline status --watch"])
async def status(
    session: Session,
    database: Database = None,
    limit: Annotated[int, option("--limit", "Maximum number of runs.", min=1)] = 20,
) -> CommandResult:
    """Show the last runs, newest first."""
    with _extra():
        from tianzhou.spark.pipelines import runner
        from tianzhou.spark.pipelines.common import DATABASE

    found = await asyncio.to_thread(runner.status, database or DATABASE, limit=limit)
    rows = (
        asdict(each)
        | {"took": format_duration((each.ended_ms or session.now_ms) - each.started_ms)}
        for each in found
    )
    columns = "!pipeline, state, !started_ms=started, >took, >row_count=rows, note"
    shown = table_of(rows, columns, started_ms=format_time)
    return CommandResult(found, [shown] if found else [], notes=[plural(len(found), "run")])
