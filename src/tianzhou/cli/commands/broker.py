"""`tianzhou broker COMMAND`: show running brokers, change their settings, trigger cleaning.

Without a command `tianzhou broker` starts a broker (`serve.broker`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from tianzhou.admin.clusters import choose
from tianzhou.admin.fanout import BrokerRef, gather
from tianzhou.admin.rates import BrokerRates, rates_of
from tianzhou.admin.replication.links import Links, load_links, slave_state
from tianzhou.admin.replication.promotion import ShownMaster, plan_promotion, promote
from tianzhou.cli.commands import broker_group
from tianzhou.cli.shared.bulk_change import report_done
from tianzhou.cli.shared.command import Session, command
from tianzhou.cli.shared.common_options import (
    EVERYWHERE,
    BrokerOption,
    Changes,
    ClusterOption,
    KeyPattern,
    Where,
    masters,
    matching_names,
    pairs_of,
    resolve_brokers,
)
from tianzhou.cli.shared.output import (
    Cell,
    CommandResult,
    format_duration,
    format_time,
    key_values,
    plural,
    table,
    table_of,
    up_or_down,
)
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.errors import TargetError
from tianzhou.protocol.bodies.ha import HAConnectionInfo
from tianzhou.protocol.codes import RequestCode

app = typer.Typer(name="broker", no_args_is_help=True, help="Manage running brokers.")

Broker = Annotated[
    str, argument("BROKER", "Name or address of a broker, or a cluster.", show_default=False)
]
_IN_STEP_MS = 1000
"""A slave that lacks what was stored so long ago is catching up, or stands still."""
_SECRET_WORDS = ("secret", "password", "accesskey")


class CleanTarget(StrEnum):
    """What a broker can clean on request."""

    LOG = "log"
    QUEUES = "queues"
    TOPICS = "topics"


_CLEANING = {
    CleanTarget.LOG: ("delete expired log files", RequestCode.DELETE_EXPIRED_COMMITLOG),
    CleanTarget.QUEUES: ("delete expired queue files", RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
    CleanTarget.TOPICS: ("delete queues of deleted topics", RequestCode.CLEAN_UNUSED_TOPIC),
}


@command(
    app, "list", reads=True, watches=True,
    examples=["tianzhou broker list", "tianzhou broker list --watch"],
)  # fmt: skip
async def list_brokers(session: Session, cluster: ClusterOption = None) -> CommandResult:
    """List the brokers: address, version, and whether they respond."""
    brokers = await session.admin.clusters.brokers(cluster=cluster)
    gathered = await gather(brokers, lambda at: rates_of(session.admin, at))
    data = [
        {
            "cluster": at.cluster, "broker": at.name, "id": at.broker_id, "address": at.address,
            "version": gathered.responses[at].version if at in gathered.responses else None,
            "answers": at in gathered.responses,
        }
        for at in brokers
    ]  # fmt: skip
    took_ms = [
        gathered.responses[at].answer_ms if at in gathered.responses else None for at in brokers
    ]
    shown = table_of(
        (row | {"ms": ms} for row, ms in zip(data, took_ms, strict=True)),
        "!cluster, !broker, >id, !address, version, answers=state, >ms",
        id=str, answers=up_or_down,
    )  # fmt: skip
    return CommandResult(data, [shown], gathered.warnings)


@command(
    app, "show", reads=True, watches=True,
    examples=["tianzhou broker show broker-a", "tianzhou broker show 10.0.0.7:10911"],
)  # fmt: skip
async def show_broker(session: Session, broker: Broker) -> CommandResult:
    """Show the state of a broker: rates, latency, waiting requests, disk, log range."""
    brokers = await resolve_brokers(session, broker)
    gathered = await gather(brokers, session.admin.brokers.runtime)
    rates = await gather(brokers, lambda at: rates_of(session.admin, at))
    data = [asdict(each) for each in rates.responses.values()]
    sections = [
        key_values(
            [
                ("address", each.address),
                ("version", each.version),
                ("up", _uptime(each, session.now_ms)),
                ("in", f"{each.in_tps or 0:,.1f}/s, {each.in_today or 0:,} today"),
                ("out", f"{each.out_tps or 0:,.1f}/s, {each.out_today or 0:,} today"),
                ("slowest store", _ms(each.put_max_ms)),
                ("waiting", f"{plural(each.waiting_sends or 0, 'send')}, "
                            f"{plural(each.waiting_pulls or 0, 'pull')}"),
                ("disk", None if each.disk_ratio is None else f"{each.disk_ratio:.0%} full"),
                ("log", f"{gathered.responses[at].get('commitLogMinOffset', '?')} to "
                        f"{gathered.responses[at].get('commitLogMaxOffset', '?')}"),
                ("oldest message", format_time(int(_digits(
                    gathered.responses[at].get("earliestMessageTimeStamp"))))),
            ],
            title=f"Broker {at.label}",
        )
        for at, each in rates.responses.items() if at in gathered.responses
    ]  # fmt: skip
    return CommandResult(data, sections, rates.warnings)


def _uptime(rates: BrokerRates, now_ms: int) -> str | None:
    return format_duration(max(now_ms - rates.boot_ms, 0)) if rates.boot_ms else None


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f} ms"


def _digits(text: str | None) -> str:
    return text if text and text.lstrip("-").isdecimal() else "0"


@command(
    app, "runtime", reads=True, watches=True,
    examples=["tianzhou broker runtime broker-a", "tianzhou broker runtime broker-a '*Tps'"],
)  # fmt: skip
async def show_runtime(
    session: Session,
    broker: Broker,
    pattern: Annotated[str | None, argument("[PATTERN]", "Only names that match: '*Tps'.")] = None,
) -> CommandResult:
    """Show all run-time figures of a broker, by RocketMQ's names."""
    brokers = await resolve_brokers(session, broker)
    gathered = await gather(brokers, session.admin.brokers.runtime)
    chosen = {
        at.label: {name: figures[name] for name in matching_names(figures, pattern)}
        for at, figures in gathered.responses.items()
    }
    sections = [
        key_values(figures.items(), title=f"Broker {name}") for name, figures in chosen.items()
    ]
    return CommandResult(chosen, sections, gathered.warnings)


@command(
    app, "lag", reads=True, watches=True,
    examples=["tianzhou broker lag broker-a", "tianzhou broker lag broker-a --min-lag 1000"],
)  # fmt: skip
async def show_lag(
    session: Session,
    broker: Broker,
    min_lag: Annotated[int, option("--min-lag", "Only queues with at least this lag.", min=0)] = 1,
    orderly: Annotated[bool, option("--orderly", "Only groups that consume orderly.")] = False,
) -> CommandResult:
    """Show the lag of every group on a broker, queue by queue."""
    brokers = await resolve_brokers(session, broker, only_masters=True)
    gathered = await gather(
        brokers, lambda at: session.admin.brokers.consume_stats(at, orderly=orderly)
    )
    data = [
        {
            "group": group, "topic": queue.topic, "broker": at.name, "queue": queue.queue_id,
            "end": each.broker_offset, "committed": each.consumer_offset,
            "lag": each.broker_offset - each.consumer_offset,
        }
        for at, stats in gathered.responses.items()
        for by_group in stats.stats
        for group, few in sorted(by_group.items())
        for one in few
        for queue, each in sorted(
            one.offsets.items(), key=lambda pair: (pair[0].topic or "", pair[0].queue_id)
        )
        if each.broker_offset - each.consumer_offset >= min_lag
    ]  # fmt: skip
    total = sum(stats.total_diff for stats in gathered.responses.values())
    shown = table_of(data, "group, topic, !broker, >queue, >end, >committed, >lag")
    notes = [
        f"{plural(total, 'message')} to consume on {', '.join(a.name for a in gathered.responses)}"
    ]
    return CommandResult(data, [shown] if data else [], gathered.warnings, notes=notes)


@command(
    app, "config", reads=True, destroys=True,
    examples=[
        "tianzhou broker config broker-a",
        "tianzhou broker config broker-a 'flush*'",
        "tianzhou broker config broker-a --set pullBatchMaxMessageCount=320 --yes",
    ],
)  # fmt: skip
async def config(
    session: Session,
    broker: Broker,
    pattern: KeyPattern = None,
    changes: Changes = None,
    only_masters: Annotated[bool, option("--masters", "Of a cluster: only masters.")] = False,
) -> CommandResult | None:
    """Show the settings of a broker, or change some at run time."""
    brokers = await resolve_brokers(session, broker, only_masters=only_masters)
    gathered = await gather(brokers, session.admin.brokers.settings)
    if changes:
        await _change(session, gathered.responses, pairs_of(changes))
        return None
    chosen = {
        at.label: {key: _hide(key, settings[key]) for key in matching_names(settings, pattern)}
        for at, settings in gathered.responses.items()
    }
    if not any(chosen.values()):
        raise TargetError(f"{broker} has no setting that matches {pattern!r}")
    sections = [key_values(pairs.items(), title=f"Broker {name}") for name, pairs in chosen.items()]
    return CommandResult(chosen, sections, gathered.warnings)


def _hide(key: str, value: str) -> str:
    return "***" if value and any(word in key.lower() for word in _SECRET_WORDS) else value


async def _change(
    session: Session, now: dict[BrokerRef, dict[str, str]], changes: dict[str, str]
) -> None:
    for at, settings in now.items():
        unknown = [key for key in changes if key not in settings]
        if unknown:
            raise TargetError(
                f"{at.label} has no setting {', '.join(unknown)}; "
                f"see `tianzhou broker config {at.name}`"
            )
        for key, value in changes.items():
            session.print(f"  {at.label}: {key} {_hide(key, settings[key])} -> {_hide(key, value)}")
    names = ", ".join(at.label for at in now)
    if not session.confirm(f"change {plural(len(changes), 'setting')} of {names}"):
        return
    done = await gather(now, lambda at: session.admin.brokers.change_settings(at, changes))
    session.warn_all(done.warnings)
    session.print(f"changed on {', '.join(at.label for at in done.responses)}")
    for at, remark in done.responses.items():
        if remark:
            session.print(f"  {at.label}: {remark}")


@command(
    app, "stats", reads=True,
    examples=[
        "tianzhou broker stats TOPIC_PUT_NUMS orders",
        "tianzhou broker stats GROUP_GET_NUMS orders@billing",
    ],
)  # fmt: skip
async def show_statistic(
    session: Session,
    name: Annotated[str, argument("NAME", "Statistic, such as TOPIC_PUT_NUMS.")],
    key: Annotated[str, argument("KEY", "Topic, or topic@group.")],
    broker: BrokerOption = None,
) -> CommandResult:
    """Show a statistic of the brokers over the last minute, hour and day."""
    brokers = await masters(session, broker=broker)
    gathered = await gather(brokers, lambda at: session.admin.brokers.statistic(at, name, key))
    data = [
        {
            "broker": at.name, "period": period, "sum": each.sum, "tps": each.tps,
            "average": each.average,
        }
        for at, stats in gathered.responses.items()
        if stats is not None
        for period, each in (("minute", stats.minute), ("hour", stats.hour), ("day", stats.day))
        if each is not None
    ]  # fmt: skip
    if not data:
        note = f"no broker has a statistic {name} of {key}"
        return CommandResult(data, [], gathered.warnings, notes=[note])
    shown = table_of(data, "!broker, period=last, >sum, >tps=per second, >average")
    return CommandResult(data, [shown], gathered.warnings)


@command(
    app, "clean", destroys=True,
    examples=[
        "tianzhou broker clean log --broker broker-a --yes",
        "tianzhou broker clean topics --dry-run",
    ],
)  # fmt: skip
async def clean(
    session: Session,
    what: Annotated[
        CleanTarget,
        typer.Argument(help="Expired log files, expired queue files, or queues of deleted topics."),
    ],
    where: Where = EVERYWHERE,
) -> None:
    """Clean now what brokers clean periodically."""
    brokers = await where.masters(session)
    action, code = _CLEANING[what]
    if not session.confirm(f"{action} on {', '.join(at.name for at in brokers)}"):
        return
    done = await gather(brokers, lambda at: session.admin.brokers.clean(at, code))
    session.warn_all(done.warnings)
    session.print(f"{', '.join(at.name for at in done.responses)}: requested to {action}")


@command(
    app, "ha", reads=True, watches=True,
    examples=["tianzhou broker ha broker-a", "tianzhou broker ha DefaultCluster --watch"],
)  # fmt: skip
async def show_ha(session: Session, broker: Broker) -> CommandResult:
    """Show replication: the slaves of a master, the master of a slave, how far they are behind."""
    brokers = await resolve_brokers(session, broker)
    info = await session.admin.clusters.info()
    registered = choose(info) if info.brokers else []
    gathered = await load_links(session.admin, brokers, registered)
    if not gathered.responses:
        raise TargetError(f"{broker} reports no replication status: {'; '.join(gathered.warnings)}")
    data = {at.label: msgspec.to_builtins(links.info) for at, links in gathered.responses.items()}
    rows = [row for at, links in gathered.responses.items() for row in _ha_rows(at, links, session)]
    notes = [
        f"{at.label} is a master without slaves, its log ends at {links.info.master_max_offset:,}"
        for at, links in gathered.responses.items()
        if links.info.master and not links.info.connections
    ]
    if any(not links.is_reported for links in gathered.responses.values()):
        notes.append(
            "brokers of 4.9 report no replication status: shown are the registered slaves and the "
            "ends of the logs"
        )
    columns = [
        "!broker", "role", "!with", "state", ">log ends", ">acknowledged", ">bytes behind",
        ">ms behind", ">bytes/s",
    ]  # fmt: skip
    shown = [table(columns, rows)] if rows else []
    return CommandResult(data, shown, gathered.warnings, notes=notes)


def _slave_place(slave: HAConnectionInfo) -> str:
    """How a connected slave stands; far behind, it does not count for SYNC_MASTER."""
    if not slave.in_sync:
        return "behind"
    return "catching up" if (slave.behind_ms or 0) >= _IN_STEP_MS else "in sync"


def _ha_rows(at: BrokerRef, links: Links, session: Session) -> list[list[Cell]]:
    info = links.info
    if not info.master:
        client = info.client
        behind = None if client.behind_bytes is None else max(client.behind_bytes, 0)
        return [
            [
                at.label, info.role or "SLAVE", client.broker_addr or client.master_addr,
                slave_state(client, session.now_ms), client.max_offset, None, behind,
                None, client.transferred_bytes_per_second if links.is_reported else None,
            ]
        ]  # fmt: skip
    return [
        [
            at.label, info.role or "master",
            " ".join(filter(None, (slave.slave_name, slave.addr))),
            slave.problem or _slave_place(slave), info.master_max_offset,
            slave.slave_ack_offset, slave.diff, slave.behind_ms,
            slave.transferred_bytes_per_second if links.is_reported else None,
        ]
        for slave in info.connections
    ]  # fmt: skip


class MasterRole(StrEnum):
    """What a slave is promoted to."""

    ASYNC = "async"
    SYNC = "sync"


_ROLES = {MasterRole.ASYNC: "ASYNC_MASTER", MasterRole.SYNC: "SYNC_MASTER"}


@command(
    app, "promote", destroys=True,
    examples=[
        "tianzhou broker promote broker-a --dry-run",
        "tianzhou broker promote 'broker-a[1]' --role sync --yes",
    ],
)  # fmt: skip
async def promote_slave(
    session: Session,
    broker: Annotated[
        str,
        argument("BROKER", "Name, NAME[ID] or address of a slave of Tianzhou.", show_default=False),
    ],
    role: Annotated[
        MasterRole, option("--role", "Whether sends will wait for a slave (sync).")
    ] = MasterRole.ASYNC,
    force: Annotated[
        bool, option("--force", "Even if a nameserver still shows a master, which must be down.")
    ] = False,
) -> None:
    """Make a slave the master, by hand: its master is down and stays down."""
    plan = await plan_promotion(session.admin, broker)
    slave, new_role = plan.slave, _ROLES[role]
    session.warn_all(plan.warnings)
    session.print(
        f"{slave.label} ({slave.address}) is a slave, its log ends at {plan.end_offset:,}"
    )
    for at, end in sorted(plan.other_ends.items()):
        session.print(f"{at.label} ({at.address}) is a slave, too, its log ends at {end:,}")
    if plan.better is not None:
        more = plan.other_ends[plan.better] - plan.end_offset
        session.warn(
            f"warning: the log of {plan.better.label} is {more:,} bytes longer; promote that one, "
            "or these messages are lost"
        )
    if plan.obstacle is None:
        session.print(f"no nameserver shows a master of {slave.name}")
    elif force:
        session.warn(f"warning: {plan.obstacle.partition(';')[0]}; going on by --force")
    else:
        raise TargetError(plan.obstacle)
    if not session.confirm(f"make {slave.label} the {new_role} of {slave.name}"):
        return
    remark = await promote(session.admin, slave, new_role, force=force)
    session.print(f"{slave.address} is the {new_role} of {slave.name}, with id 0")
    for line in filter(None, (remark, *_after_promotion(slave, plan.masters, force=force))):
        session.print(f"  {line}")


def _after_promotion(
    slave: BrokerRef, masters: Sequence[ShownMaster], *, force: bool
) -> Iterator[str]:
    if force and masters:
        yield f"now: make sure that {masters[0].address} is stopped, two masters lose messages"
    yield (
        f"old master: before it starts again, set brokerRole=SLAVE and brokerId={slave.broker_id} "
        "in its configuration file; it then follows this one"
    )
    yield (
        "if it reports that its log is ahead or has diverged: stop it, move its store directory "
        "away, start it with an empty one; what only it had is in the directory moved away"
    )
    yield f"watch it: tianzhou broker ha {slave.name}"


@command(
    app, "flush-offset", destroys=True,
    examples=["tianzhou broker flush-offset 10.0.0.8:10911 0 --yes"],
)  # fmt: skip
async def set_flush_offset(
    session: Session,
    broker: Broker,
    log_offset: Annotated[int, argument("BYTES", "Log offset of the master.", min=0)],
) -> None:
    """Set the flushed log offset of its master on a slave (5.x); a master ignores it."""
    brokers = await resolve_brokers(session, broker)
    names = ", ".join(at.label for at in brokers)
    if not session.confirm(f"set the flush offset of the master to {log_offset:,} on {names}"):
        return
    done = await gather(
        brokers, lambda at: session.admin.brokers.set_master_flush_offset(at, log_offset)
    )
    report_done(session, f"flush offset of the master: set to {log_offset:,}", done)


app.registered_commands += broker_group.app.registered_commands
