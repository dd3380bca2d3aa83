"""`tianzhou cluster`: clusters, their brokers, live rates, latency, faults, exports."""

import asyncio
import itertools
import json
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

from tianzhou.admin import export
from tianzhou.admin.doctor.changes import CAME, WATCH, Change, changes, with_unseen
from tianzhou.admin.doctor.checks import DISK_ERROR, DISK_WARNING, WATCH_S, examine
from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.rates import BrokerRates, snapshot
from tianzhou.admin.store_latency import StoreLatencyWindow
from tianzhou.cli.commands.doctor import BrokerHistory, ExpectOption, WaitOption
from tianzhou.cli.shared.command import Session, command, print_json
from tianzhou.cli.shared.common_options import BrokerOption, ClusterOption, masters
from tianzhou.cli.shared.output import (
    CommandResult,
    format_duration,
    format_time,
    highlight,
    plural,
    table,
    table_of,
)
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.config.files import replace_file
from tianzhou.errors import ConfigError, TargetError, TianzhouError
from tianzhou.names import is_internal_group
from tianzhou.protocol.bodies.route import ClusterInfo

if TYPE_CHECKING:
    from tianzhou.client import Producer

app = typer.Typer(name="cluster", no_args_is_help=True, help="Show and watch clusters.")


@command(app, "list", reads=True, examples=["tianzhou cluster list"])
async def list_clusters(session: Session) -> CommandResult:
    """List the clusters and their brokers."""
    info: ClusterInfo = await session.admin.clusters.info()
    addresses = {
        name: {str(key): address for key, address in sorted((data.addresses or {}).items())}
        for name, data in sorted(info.brokers.items())
    }
    clusters = {
        cluster: {name: addresses[name] for name in sorted(names) if name in addresses}
        for cluster, names in sorted(info.clusters.items())
    }
    data = [{"cluster": cluster, "brokers": brokers} for cluster, brokers in clusters.items()]
    rows = (
        (cluster, name, key, address)
        for cluster, brokers in clusters.items()
        for name, of_broker in brokers.items()
        for key, address in of_broker.items()
    )
    notes = [f"{plural(len(info.clusters), 'cluster')}, {plural(len(info.brokers), 'broker')}"]
    return CommandResult(
        data, [table(["!cluster", "!broker", ">id", "!address"], rows)], notes=notes
    )


@command(
    app, "show", reads=True, watches=True,
    examples=["tianzhou cluster show", "tianzhou cluster show --cluster DefaultCluster --watch"],
)  # fmt: skip
async def show_cluster(session: Session, cluster: ClusterOption = None) -> CommandResult:
    """Show each broker: version, rates, totals of today, disk usage, uptime."""
    result = await snapshot(session.admin, cluster=cluster, backlog=False)
    names = dict.fromkeys(each.cluster for each in result.brokers)
    sections = [
        _cluster_table(
            name, [each for each in result.brokers if each.cluster == name], session.now_ms
        )
        for name in names
    ]
    return CommandResult(result.brokers, sections, result.warnings)


def _cluster_table(name: str, brokers: list[BrokerRates], now_ms: int) -> RenderableType:
    return table_of(
        brokers,
        "!broker, >broker_id=id, !address, version, >in_tps=in/s, >out_tps=out/s, >in_today, "
        ">out_today, >disk_ratio=disk, >boot_ms=up",
        title=f"Cluster {name}",
        broker_id=str, disk_ratio=_disk,
        boot_ms=lambda boot_ms: format_duration(max(now_ms - boot_ms, 0)) if boot_ms else None,
    )  # fmt: skip


@command(
    app, "top", reads=True, live=True,
    examples=[
        "tianzhou cluster top", "tianzhou cluster top --every 5",
        "tianzhou cluster top --once --json",
    ],
)  # fmt: skip
async def top(
    session: Session,
    cluster: ClusterOption = None,
    count: Annotated[int, option("--groups", "Number of groups to show.", min=0)] = 10,
) -> CommandResult:
    """Watch a cluster live: rates in and out, latency, waiting requests, largest backlogs.

    Latency (p99, max) is of messages stored since the last refresh, in buckets of 0, 10, 50, 100 ms
    and so on; the first refresh, and --once, show the figures of the broker itself.
    """
    result = await snapshot(session.admin, cluster=cluster)
    latency = session.state_of(StoreLatencyWindow)
    since = "the last refresh" if latency.has_previous else "the broker start"
    result = replace(result, brokers=latency.update(result.brokers))
    groups = [each for each in result.groups if not is_internal_group(each.group) or each.lag]
    in_tps = sum(each.in_tps or 0 for each in result.brokers)
    out_tps = sum(each.out_tps or 0 for each in result.brokers)
    lag = sum(each.lag for each in result.groups)
    head = Text.assemble(
        ("in ", "dim"), (f"{in_tps:,.1f}/s", "bold green"),
        ("   out ", "dim"), (f"{out_tps:,.1f}/s", "bold green"),
        ("   backlog ", "dim"), (f"{lag:,}", "bold yellow" if lag else "bold green"),
        ("   brokers ", "dim"), (f"{len(result.brokers)}", "bold"),
        (f"   latency since {since}", "dim"),
    )  # fmt: skip
    data = {
        "in_tps": in_tps,
        "out_tps": out_tps,
        "backlog": lag,
        "latency_since": since,
        "brokers": result.brokers,
        "groups": groups[:count],
    }
    brokers = table_of(
        result.brokers,
        "!broker, >broker_id=id, >in_tps=in/s, >out_tps=out/s, >put_p99_ms=p99 ms, "
        ">put_max_ms=max ms, >answer_ms=response ms, >waiting_sends=sends, "
        ">waiting_pulls=pulls, >disk_ratio=disk",
        broker_id=str, disk_ratio=_disk,
    )  # fmt: skip
    sections: list[RenderableType] = [head, brokers]
    if groups and count:
        columns = "group, >lag=backlog, >consume_tps=consumed/s"
        sections.append(table_of(groups[:count], columns, lag=highlight))
    return CommandResult(data, sections, result.warnings)


def _disk(ratio: float | None) -> Text | None:
    if ratio is None:
        return None
    style = "red" if ratio >= DISK_ERROR else "yellow" if ratio >= DISK_WARNING else ""
    return Text(f"{ratio:.0%}", style=style)


# -- measuring, watching, exporting ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Latency:
    """Store latency of one broker."""

    cluster: str
    broker: str
    mean_ms: float | None
    max_ms: float | None
    stored: int
    failed: int
    first_error: str | None


@command(
    app, "latency", reads=True, live=True,
    examples=[
        "tianzhou cluster latency --once", "tianzhou cluster latency --count 1000 --size 1024",
        "tianzhou cluster latency --lines --room fra1 >> latency.log",
    ],
)  # fmt: skip
async def latency(
    session: Session,
    cluster: ClusterOption = None,
    count: Annotated[int, option("--count", "Messages per broker.", min=1, max=1_000_000)] = 100,
    size_bytes: Annotated[
        int, option("--size", "Body size in bytes.", min=1, max=4 * 1024 * 1024)
    ] = 128,
    as_lines: Annotated[
        bool, option("--lines", "One line per broker: time|room|cluster|broker|ms.")
    ] = False,
    room: Annotated[
        str, option("--room NAME", "With --lines: machine room of this client.")
    ] = "noname",
) -> CommandResult:
    """Measure the store latency of each broker with messages sent one after the other.

    They go to the topic named like the broker, which every master has and no group consumes. The
    first message, which opens the connection, is not counted.
    """
    from tianzhou.client import Producer  # Only this command needs a client.

    body = b"a" * size_bytes
    async with Producer("tianzhou_latency", settings=session.client_settings()) as producer:
        brokers = await masters(session, cluster)
        rows = [await _latency_of(producer, at, count, body) for at in brokers]
    exit_code = 0 if any(each.stored for each in rows) else 1
    if as_lines:
        now = format_time(session.now_ms)
        lines = [
            f"{now}|{room}|{each.cluster}|{each.broker}|"
            + ("" if each.mean_ms is None else f"{each.mean_ms:.0f}")
            for each in rows
        ]
        return CommandResult(rows, notes=lines, exit_code=exit_code)
    columns = "cluster, !broker, >mean_ms, >max_ms, >stored, >failed, first_error=first failure"
    return CommandResult(rows, [table_of(rows, columns, failed=highlight)], exit_code=exit_code)


async def _latency_of(producer: "Producer", at: BrokerRef, count: int, body: bytes) -> Latency:
    took_ms: list[float] = []
    failed, first_error = 0, None
    for number in range(count):
        started_s = time.perf_counter()
        try:
            await producer.send(at.name, body)
        except TianzhouError as e:
            failed += 1
            first_error = first_error or str(e)
            continue
        if number or count == 1:
            took_ms.append((time.perf_counter() - started_s) * 1000)
    mean_ms = sum(took_ms) / len(took_ms) if took_ms else None
    stored = count - failed
    return Latency(
        at.cluster, at.name, mean_ms, max(took_ms, default=None), stored, failed, first_error
    )


@command(
    app, "watch", reads=True, endless=True,
    examples=["tianzhou cluster watch", "tianzhou cluster watch --every 10 --json"],
)  # fmt: skip
async def watch(
    session: Session,
    every: Annotated[float, option("--every SECONDS", "Interval between checks.", min=0.2)] = 60.0,
    rounds: Annotated[int | None, option("--rounds", "Exit after this many checks.", min=1)] = None,
    wait_s: WaitOption = WATCH_S,
    expect: ExpectOption = None,
) -> None:
    """Watch a cluster for faults until Ctrl-C; print each when it appears and when it is solved.

    Runs the checks of `tianzhou doctor` periodically, missing brokers included. One line for each
    change, for a terminal, a log, or with --json for a program that raises alarms.
    """
    before: list[Finding] = []
    history = BrokerHistory(session, expect)
    for number in itertools.count(1):
        try:
            found = await examine(session.admin, history.presence, wait_s=wait_s)
        except TianzhouError as e:
            what, advice = str(e), "retried at the next check"
            found = [Finding(Level.ERROR, WATCH, session.target.namesrv, what, advice)]
        history.save()
        after = with_unseen(before, found)
        for change in changes(before, after):
            _print_change(session, change)
        before = after
        if number == rounds:
            return
        await asyncio.sleep(every)


def _print_change(session: Session, change: Change) -> None:
    now_ms = session.now_ms
    found = change.finding
    if session.options.as_json:
        print_json({"time_ms": now_ms, "change": change.kind, **asdict(found)}, lines=True)
        return
    came = change.kind == CAME
    style = ("bold red" if found.level is Level.ERROR else "yellow") if came else "green"
    line = Text.assemble(
        (f"{format_time(now_ms)} ", "dim"), (f"{found.level if came else 'solved':8}", style),
        (f"{found.check}: ", "dim"), (f"{found.subject}: ", "bold"), found.what,
        (f" -> {found.advice}" if came and found.advice else "", "cyan"),
    )  # fmt: skip
    session.out.print(line, soft_wrap=True)


class What(StrEnum):
    """What can be exported."""

    METADATA = "metadata"
    CONFIGS = "configs"
    METRICS = "metrics"


@command(
    app, "export", reads=True,
    examples=[
        "tianzhou cluster export metadata --folder backup",
        "tianzhou cluster export metadata --only topics --special",
        "tianzhou cluster export configs --cluster DefaultCluster",
        "tianzhou cluster export metrics --json        # to standard output, no file",
    ],
)  # fmt: skip
async def export_cluster(
    session: Session,
    what: Annotated[What, argument("WHAT", "metadata, configs or metrics.")],
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    folder: Annotated[Path, option("--folder FOLDER", "Target folder of the file.")] = Path(),
    only: Annotated[str | None, option("--only", "Part of the metadata: topics or groups.")] = None,
    special: Annotated[bool, option("--special", "Include retry and dead-letter topics.")] = False,
) -> CommandResult:
    """Export topics and groups, settings, or rates as JSON, in the layout of `mqadmin`.

    The file is metadata.json (topic.json, subscriptionGroup.json with --only), configs.json or
    metrics.json. Queues of a topic that is on several brokers are added up.
    """
    if only not in (None, *_ONLY) or (what is not What.METADATA and (only or special)):
        raise ConfigError("--only (topics or groups) and --special are options of metadata")
    admin = session.admin
    brokers = await admin.clusters.brokers(cluster=cluster, broker=broker)
    if what is What.METADATA:
        chosen = [at for at in brokers if at.is_master] or brokers
        result = await export.metadata(admin, chosen, special=special, now_ms=session.now_ms)
    elif what is What.CONFIGS:
        result = await export.configs(admin, brokers)
    else:
        result = await export.metrics(admin, brokers)
    document, name = result.document, f"{what}.json"
    if only is not None:
        table_name, name = _ONLY[only]
        document = {key: document[key] for key in (table_name, "exportTime")}
    if session.options.as_json:
        return CommandResult(document, [], result.warnings)
    path = _write_document(folder / name, document)
    return CommandResult(document, [], result.warnings, notes=[f"export {path} success"])


_ONLY = {
    "topics": ("topicConfigTable", "topic.json"),
    "groups": ("subscriptionGroupTable", "subscriptionGroup.json"),
}
"""Values of --only: the table to export, and the file name."""


def _write_document(path: Path, document: export.Document) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")
    except OSError as e:
        raise TargetError(f"{path} cannot be written: {e.strerror or e}") from e
    return path
