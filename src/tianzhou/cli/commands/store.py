"""`tianzhou store`: inspect, verify and repair a store directory.

`stats`, `dump` and `verify` only read. `rebuild` and `truncate` change files, ask for confirmation,
and refuse a directory that a broker has open.
"""

import base64
import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tianzhou.cli.shared.output import bar_width, console, table_of
from tianzhou.cli.shared.parameters import AsJson, DryRun, Yes, argument, option
from tianzhou.errors import StoreError
from tianzhou.message import StoredMessage
from tianzhou.store.message_store import MessageStore
from tianzhou.store.offline.inspect import Progress as ReportProgress
from tianzhou.store.offline.inspect import StoreDirectory
from tianzhou.store.offline.repair import truncate_log
from tianzhou.store.offline.verify import verify as verify_store

app = typer.Typer(no_args_is_help=True, help="Inspect, verify and repair a store directory.")

Directory = Annotated[Path, argument("DIR", "storePathRootDir of a broker.")]

_out = Console(soft_wrap=True)
_err = Console(stderr=True, soft_wrap=True)


@contextmanager
def _progress(what: str) -> Generator[ReportProgress]:
    """A progress bar on standard error, if that is a terminal."""
    columns = (
        TextColumn(what),
        BarColumn(bar_width(_err)),
        TextColumn("{task.percentage:>3.0f} %"),
    )
    with Progress(
        *columns, TimeRemainingColumn(), console=_err, disable=not _err.is_terminal
    ) as progress:
        task = progress.add_task(what, total=None)

        def show_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield show_progress


@contextmanager
def _errors_as_lines() -> Generator[None]:
    """Print store errors as one line on standard error; exit code 1."""
    try:
        yield
    except StoreError as e:
        _err.print(f"tianzhou store: {e}", markup=False)
        raise typer.Exit(1) from e
    except OSError as e:
        _err.print(f"tianzhou store: {e.filename}: {e.strerror}", markup=False)
        raise typer.Exit(1) from e


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


@app.command()
def stats(directory: Directory, as_json: AsJson = False) -> None:
    """Show the content of a store: log files, queues, index."""
    with _errors_as_lines():
        facts = StoreDirectory(directory).facts()
    if as_json:
        _print_json(asdict(facts) | {"root": str(facts.root)})
        return
    last = "clean" if facts.clean else "unclean, or still open (abort exists)"
    _out.print(f"{facts.root}: last shutdown {last}", markup=False)
    _out.print(
        f"log: {facts.log_files} files of {facts.log_file_bytes:,} bytes from "
        f"{facts.first_log_offset:,} on; index: {facts.index_items:,} items in "
        f"{facts.index_files} files"
    )
    rows = (
        asdict(queue) | {"messages": queue.next_offset - queue.min_offset} for queue in facts.queues
    )
    columns = "!topic, >queue_id=queue, >min_offset=min, >next_offset=next, >messages, >files"
    shown = table_of(rows, columns, queue_id=str)
    console().print(shown)


@app.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Verify every message, queue entry and index item; exit code 1 on findings."""
    with _errors_as_lines(), _progress("verify") as show_progress:
        verdict = verify_store(StoreDirectory(directory), show_progress)
    if as_json:
        _print_json(asdict(verdict))
    else:
        for finding in verdict.findings:
            _out.print(finding, markup=False)
        if verdict.running:
            _out.print(
                "a broker has the store open: data after its last checkpoint was not verified"
            )
        _out.print(
            f"{verdict.messages:,} messages, {verdict.log_bytes:,} bytes, log ends at "
            f"{verdict.end_log_offset:,}: "
            + (f"{len(verdict.findings)} findings" if verdict.findings else "no faults")
        )
    raise typer.Exit(1 if verdict.findings else 0)


@app.command()
def dump(
    directory: Directory,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    queue_id: Annotated[int | None, option("--queue", "Only this queue.")] = None,
    from_log_offset: Annotated[
        int, option("--from", "Start at this log offset, the start of a record.", min=0)
    ] = 0,
    limit: Annotated[int, typer.Option(help="Maximum number of messages.", min=1)] = 100,
    bodies: Annotated[bool, option("--bodies", "Include bodies.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print messages in log order, one line each."""
    with _errors_as_lines():
        shown = 0
        for message in StoreDirectory(directory).messages(from_log_offset):
            if topic not in (None, message.topic) or queue_id not in (None, message.queue_id):
                continue
            shown += 1
            if as_json:
                _print_json(_as_dict(message, bodies=bodies))
            else:
                typer.echo(_as_line(message, bodies=bodies))
            if shown >= limit:
                break


def _as_dict(message: StoredMessage, *, bodies: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "log_offset": message.log_offset, "topic": message.topic, "queue_id": message.queue_id,
        "queue_offset": message.queue_offset, "size_bytes": message.size_bytes,
        "store_time_ms": message.store_time_ms, "born_time_ms": message.born_time_ms,
        "born_host": list(message.born_host), "store_host": list(message.store_host),
        "flag": message.flag, "sys_flag": message.sys_flag,
        "reconsume_count": message.reconsume_count,
        "prepared_log_offset": message.prepared_log_offset, "properties": message.properties,
    }  # fmt: skip
    if bodies:
        shown["body_base64"] = base64.b64encode(message.body).decode()
    return shown


def _as_line(message: StoredMessage, *, bodies: bool) -> str:
    line = (
        f"{message.log_offset} {message.topic}/{message.queue_id}@{message.queue_offset} "
        f"{message.size_bytes} bytes, tags {message.tags or '-'}, keys "
        f"{' '.join(message.keys) or '-'}"
    )
    return f"{line}: {message.body[:200]!r}" if bodies else line


def _confirm(what: str, *, dry_run: bool, yes: bool) -> None:
    """Ask for confirmation; exits if it is refused. `what` begins with a verb."""
    if dry_run:
        _out.print(f"would {what}; nothing was changed", markup=False)
        raise typer.Exit
    if yes:
        return
    if not sys.stdin.isatty():
        _err.print(
            f"tianzhou store: confirmation needed to {what}: pass --yes, or --dry-run to preview",
            markup=False,
        )
        raise typer.Exit(2)
    typer.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)


@app.command()
def rebuild(
    directory: Directory, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Rebuild all queues and the index from the log."""
    with _errors_as_lines():
        store_directory = StoreDirectory(directory)
        config, facts = store_directory.inferred_config(), store_directory.facts()
        what = f"{len(facts.queues)} queues and {facts.index_files} index files"
        _confirm(f"remove and rebuild {what} of {directory}", dry_run=dry_run, yes=yes)
        with _progress("rebuild") as show_progress:
            store = MessageStore.open(
                config, background=False, rebuild=True, progress=show_progress
            )
            report = store.report
            store.close()
    _print_report(report.replayed_count, report.end_log_offset, report.notes, as_json=as_json)


def _lost_count(directory: StoreDirectory, log_offset: int) -> int:
    """Valid messages from a log offset on. Raises StoreError if it is no record boundary."""
    count, is_boundary = 0, log_offset == directory.facts().first_log_offset
    for message in directory.messages():
        start = message.log_offset
        is_boundary = is_boundary or log_offset in (start, start + message.size_bytes)
        count += start >= log_offset
    if not is_boundary:
        raise StoreError(f"no valid record starts or ends at log offset {log_offset}")
    return count


@app.command()
def truncate(
    directory: Directory,
    log_offset: Annotated[
        int, option("--at", "New end of the log; must be the start of a record.", min=0)
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete everything from a log offset on, in log, queues and index."""
    with _errors_as_lines():
        store_directory = StoreDirectory(directory)
        config = store_directory.inferred_config()
        if dry_run or not yes:
            lost = f"{_lost_count(store_directory, log_offset):,} messages of {directory}"
            what = f"delete {lost} from log offset {log_offset} on, irrevocably"
            _confirm(what, dry_run=dry_run, yes=yes)
        with _progress("truncate") as show_progress:
            report = truncate_log(config, log_offset, show_progress)
    _print_report(report.replayed_count, report.end_log_offset, report.notes, as_json=as_json)


def _print_report(messages: int, end_log_offset: int, notes: list[str], *, as_json: bool) -> None:
    if as_json:
        _print_json({"messages": messages, "end_log_offset": end_log_offset, "notes": notes})
        return
    for note in notes:
        _out.print(note, markup=False)
    _out.print(f"{messages:,} messages, the log ends at {end_log_offset:,}")
