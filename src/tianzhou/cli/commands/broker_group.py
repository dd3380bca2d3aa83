"""`tianzhou broker group`, and what operators do with a group whose master is elected.

group     who is the master, who is in sync, why a replica is no candidate, etcd's health
switch    another master, planned: no message is lost, clients retry for less than a second
pause     no elections until `resume`
retire    remove a replica from the group
init      found a group whose replicas have messages already
elect     force an election that loses messages
resync    let a replica start again from the master's log
"""

import getpass
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
import typer
from rich.console import RenderableType

from tianzhou.admin.replication.groups import (
    Group,
    Member,
    Price,
    ask,
    load_group,
    price_of,
    responsible,
    wait_for_group,
)
from tianzhou.cli.shared.command import Session, command
from tianzhou.cli.shared.output import (
    Cell,
    CommandResult,
    format_duration,
    format_size,
    format_time,
    key_values,
    plural,
    table,
)
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.errors import ConfigError, TargetError
from tianzhou.protocol.bodies.ha_group import GroupInfo

app = typer.Typer(name="broker", help="Manage groups of brokers whose master is elected.")
"""Its commands are those of `tianzhou broker`, too."""

Name = Annotated[str, argument("NAME", "brokerName of the group.", show_default=False)]
AtBroker = Annotated[
    str | None,
    option(
        "--broker, -b HOST:PORT",
        "Any replica of the group, if no nameserver knows one.",
    ),
]
ReplicaId = Annotated[
    int, option("--id ID", "The replica, as `tianzhou broker group` shows it.", min=1)
]

_SWITCHES_SHOWN = 5


# -- what a group looks like -----------------------------------------------------------------------


@command(
    app, "group", reads=True, watches=True,
    examples=[
        "tianzhou broker group broker-a", "tianzhou broker group broker-a --watch --every 0.5",
        "tianzhou broker group broker-a --broker 10.0.0.2:10911 --json",
    ],
)  # fmt: skip
async def show_group(session: Session, name: Name, broker: AtBroker = None) -> CommandResult:
    """Show a group whose master is elected: replicas, switches, etcd, and what needs attention.

    A replica is in sync if it has every acknowledged message, so that it can become the master.
    """
    group = await load_group(session.admin, name, broker)
    sections: list[RenderableType] = [_summary(group), _replicas(group)]
    if group.info.history:
        sections.append(_switches(group.info))
    if group.info.etcd.members:
        sections.append(_etcd(group.info))
    notes = [f"attention: {each.text}" for each in group.alarms]
    return CommandResult(_as_data(group), sections, group.warnings, notes=notes)


def _as_data(group: Group) -> dict[str, object]:
    """The newest answer, with what each replica says of itself."""
    data: dict[str, object] = msgspec.to_builtins(group.info)
    data["replicas"] = [
        msgspec.to_builtins(each.seen)
        | {"own": msgspec.to_builtins(each.own), "problem": each.problem}
        for each in group.members
    ]
    data["alarms"] = msgspec.to_builtins(group.alarms)
    del data["own"]
    return data


def _summary(group: Group) -> RenderableType:
    info, master = group.info, group.master
    pairs: list[tuple[str, Cell]] = [
        ("epoch", str(info.epoch)),
        ("master", master.label if master else "none"),
        ("in sync", f"{len(info.in_sync)} of {len(info.replicas)}: "
                    f"{', '.join(map(str, info.in_sync)) or 'none'}"),
        ("sends need", f"{info.min_in_sync} in sync (minInSyncReplicas)"),
        ("elections", "paused" if info.is_paused else "automatic"),
        ("last change", info.cause),
    ]  # fmt: skip
    if info.group is None:
        pairs = [("state", "the group does not exist yet, or no replica that answers reaches etcd")]
    if info.lost:
        pairs.append(("lost", f"{', '.join(map(str, info.lost))}: they may have lost messages"))
    return key_values(pairs, title=f"Group {group.name} of {info.cluster}")


_COLUMNS = [
    ">id", "!address", "role", "in sync", "alive", ">log ends", ">bytes behind", ">ms behind",
    ">priority", "elections",
]  # fmt: skip


def _replicas(group: Group) -> RenderableType:
    rows = [_row(each, group.master) for each in group.members]
    return table(_COLUMNS, rows, title="Replicas")


def _row(each: Member, master: Member | None) -> list[Cell]:
    seen, own = each.seen, each.own
    return [
        str(seen.id), seen.address, own.mode if own else "no answer", _sync(each),
        seen.is_alive, each.end_offset, each.behind_bytes(master), seen.behind_ms,
        str(seen.priority), _candidate(each),
    ]  # fmt: skip


def _sync(each: Member) -> str:
    seen = each.seen
    if not seen.is_in_sync:
        return "lost" if seen.is_lost else "no"
    if seen.is_connected is False:
        return "yes, not connected"
    return "yes, stalled" if seen.is_current is False else "yes"


def _candidate(each: Member) -> str | None:
    """Why it is no candidate, or why it stands; what stops it comes first."""
    if each.own is None:
        return each.problem
    for reason in (each.own.stopped, each.own.untrusted):
        if reason is not None:
            return reason.text
    if each.own.mode == "master":
        refusal = each.own.refusal
        return None if refusal is None else f"sends are refused: {refusal.text}"
    return each.own.candidate.text if each.own.candidate else None


def _switches(info: GroupInfo) -> RenderableType:
    rows: list[list[Cell]] = [
        [
            format_time(each.time_ms), str(each.epoch), str(each.master), each.cause,
            format_duration(each.duration_ms),
        ]
        for each in reversed(info.history[-_SWITCHES_SHOWN:])
    ]  # fmt: skip
    return table(["time", ">epoch", ">master", "cause", ">took"], rows, title="Last switches")


def _etcd(info: GroupInfo) -> RenderableType:
    rows: list[list[Cell]] = [
        [
            each.endpoint, "answers" if each.is_answering else "down",
            "leader" if each.is_leader else "", each.latency_ms, each.version,
            each.problem or None,
        ]
        for each in info.etcd.members
    ]  # fmt: skip
    columns = ["!endpoint", "state", "role", ">ms", "version", "problem"]
    return table(columns, rows, title=f"etcd {info.etcd.cluster_id}".rstrip())


# -- planned switches ------------------------------------------------------------------------------


@command(
    app, "switch", destroys=True,
    examples=[
        "tianzhou broker switch broker-a --to 2 --dry-run",
        "tianzhou broker switch broker-a --to 2 --yes",
        "tianzhou broker switch broker-a        # to the replica that is best",
    ],
)  # fmt: skip
async def switch_master(
    session: Session,
    name: Name,
    to: Annotated[
        int | None, option("--to ID", "The new master, which must be in sync.", min=1)
    ] = None,
    broker: AtBroker = None,
) -> None:
    """Make another replica the master, without loss: for maintenance of the present one.

    The master stops to store, the other replica confirms that it has everything, and takes over.
    Meanwhile sends are refused, usually for less than half a second; clients retry. If it takes
    longer than four seconds, the old master goes on.
    """
    group = await load_group(session.admin, name, broker)
    session.warn_all(group.warnings)
    master = group.master
    if master is None:
        raise TargetError(f"{name} has no master now: {group.info.cause}")
    target = None if to is None else group.member(to)
    if target is not None:
        _check_target(group, target)
    session.print(f"{master.label} is the master of epoch {group.info.epoch}")
    what = "the best replica" if target is None else target.label
    behind = None if target is None else target.behind_bytes(master)
    if target is not None and behind is not None:
        session.print(f"{target.label} is {format_size(behind)} behind")
    if not session.confirm(f"make {what} the master of {name}"):
        return
    began_s = time.monotonic()
    at = responsible(group)
    await ask(session.admin, at.seen.address, "switch", replica_id=to, by=_user())
    after = await wait_for_group(session.admin, group, _leads_above(group.info.epoch))
    if after.epoch <= group.info.epoch:
        raise TargetError(
            f"{master.label} is still the master: see its last decisions in "
            f"`tianzhou broker group {name} --json`"
        )
    took_ms = int((time.monotonic() - began_s) * 1000)
    session.print(
        f"replica {after.master} ({after.master_address}) is the master of epoch {after.epoch}, "
        f"after {format_duration(took_ms)}"
    )
    if to is not None and after.master != to:
        raise TargetError(f"replica {after.master} was elected, not {to}: {after.cause}")


def _check_target(group: Group, target: Member) -> None:
    if target.seen.is_master:
        raise TargetError(f"{target.label} is the master already")
    if not target.seen.is_in_sync:
        members = ", ".join(map(str, group.info.in_sync)) or "none"
        raise TargetError(
            f"{target.label} is not in sync, so it may lack messages; in sync: {members}"
        )


def _leads_above(epoch: int) -> Callable[[GroupInfo], bool]:
    """Whether an answer is of the master of a later epoch, which serves clients."""
    return lambda info: info.epoch > epoch and info.own.mode == "master"


def _user() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return ""


# -- pausing ---------------------------------------------------------------------------------------


@command(
    app, "pause", destroys=True, examples=["tianzhou broker pause broker-a --yes"],
)  # fmt: skip
async def pause_elections(session: Session, name: Name, broker: AtBroker = None) -> None:
    """Stop elections: a lost master is not replaced until `tianzhou broker resume`.

    For maintenance of the network or of etcd. Switches by `tianzhou broker switch` work, and a
    master that may have been replaced still stops by itself.
    """
    group = await load_group(session.admin, name, broker)
    if group.info.is_paused:
        session.print(f"elections of {name} are paused already: {group.info.cause}")
        return
    if session.confirm(f"pause elections of {name}: a lost master is not replaced"):
        await _ask(session, group, "pause")
        session.print(f"elections of {name} are paused; end it: tianzhou broker resume {name}")


@command(app, "resume", examples=["tianzhou broker resume broker-a"])
async def resume_elections(session: Session, name: Name, broker: AtBroker = None) -> None:
    """Allow elections again, after `tianzhou broker pause`."""
    group = await load_group(session.admin, name, broker)
    if not group.info.is_paused:
        session.print(f"elections of {name} are not paused")
        return
    await _ask(session, group, "resume")
    session.print(f"elections of {name} are automatic again")


async def _ask(session: Session, group: Group, what: str, replica_id: int | None = None) -> None:
    at = responsible(group)
    await ask(session.admin, at.seen.address, what, replica_id=replica_id, by=_user())


# -- members ---------------------------------------------------------------------------------------


@command(
    app, "retire", destroys=True,
    examples=["tianzhou broker retire broker-a --id 3 --yes"],
)  # fmt: skip
async def retire_replica(
    session: Session, name: Name, replica_id: ReplicaId, broker: AtBroker = None
) -> None:
    """Remove a replica from the group: its host is gone, or its disk was replaced.

    Refused for the master, and if fewer replicas than minInSyncReplicas would be in sync. A replica
    that runs stops, and can come back only with an empty store; one that is down joins again if it
    is started.
    """
    group = await load_group(session.admin, name, broker)
    member = group.member(replica_id)
    if member.seen.is_master:
        raise TargetError(f"{member.label} is the master: switch to another replica first")
    state = "answers" if member.own else "does not answer"
    session.print(f"{member.label} {state}; in sync: {_sync(member)}")
    if session.confirm(f"remove replica {replica_id} from {name}"):
        await _ask(session, group, "retire", replica_id)
        session.print(f"replica {replica_id} is no member of {name} any more")


@command(
    app, "resync", destroys=True,
    examples=["tianzhou broker resync broker-a --id 1 --yes"],
)  # fmt: skip
async def resync_replica(
    session: Session, name: Name, replica_id: ReplicaId, broker: AtBroker = None
) -> None:
    """Let a replica that has stopped start again from the master's log.

    For a replica whose log the master contradicts, after a forced election. What it has and the
    master lacks is saved in a file beside its store first, then cut.
    """
    group = await load_group(session.admin, name, broker)
    member = group.member(replica_id)
    own = member.own
    if own is None:
        raise TargetError(f"{member.label} does not answer: {member.problem}")
    session.print(f"{member.label}: {own.stopped.text if own.stopped else own.mode}")
    if not session.confirm(f"cut the log of replica {replica_id} to what the master has"):
        return
    done, _ = await ask(session.admin, member.seen.address, "resync", by=_user())
    session.print(f"{done}; watch it: tianzhou broker group {name} --watch")


@command(
    app, "init", destroys=True,
    examples=["tianzhou broker init broker-a --id 2 --yes"],
)  # fmt: skip
async def init_group(
    session: Session, name: Name, replica_id: ReplicaId, broker: AtBroker = None
) -> None:
    """Found a group in an etcd without its state: the log of this replica is the one that counts.

    For stores that have messages already: brokers that had fixed roles before, or an etcd that was
    wiped. Empty stores found their group by themselves. Replicas whose messages differ stop.
    """
    group = await load_group(session.admin, name, broker)
    if group.info.group is not None:
        raise TargetError(f"{name} exists, with epoch {group.info.epoch}: nothing to found")
    member = group.member(replica_id)
    longest = group.longest
    if member.own is None:
        raise TargetError(f"{member.label} does not answer: {member.problem}")
    session.print(f"{member.label}: its log ends at {member.own.end_offset:,}")
    if (
        longest is not None
        and longest is not member
        and (longest.end_offset or 0) > (member.own.end_offset)
    ):
        more = (longest.end_offset or 0) - member.own.end_offset
        session.warn(f"warning: the log of {longest.label} is {more:,} bytes longer")
    if not session.confirm(f"found {name} with the log of replica {replica_id}"):
        return
    await ask(session.admin, member.seen.address, "init", by=_user())
    after = await wait_for_group(session.admin, group, _leads_above(0))
    session.print(f"replica {after.master} is the master of epoch {after.epoch}")


# -- forced elections ------------------------------------------------------------------------------


@command(
    app, "elect", destroys=True,
    examples=[
        "tianzhou broker elect broker-a --dry-run --force --accept-loss",
        "tianzhou broker elect broker-a --id 3 --force --accept-loss --yes",
    ],
)  # fmt: skip
async def force_election(
    session: Session,
    name: Name,
    replica_id: Annotated[
        int | None,
        option("--id ID", "The new master; default: the one with the longest log.", min=1),
    ] = None,
    force: Annotated[
        bool, option("--force", "Elect a replica though it may lack messages.")
    ] = False,
    accept_loss: Annotated[
        bool, option("--accept-loss", "Acknowledged messages that it lacks are lost.")
    ] = False,
    broker: AtBroker = None,
) -> None:
    """Elect a replica that is not in sync: the last resort, which loses messages.

    A lost master is replaced without this command while an in-sync replica lives. Use it if all of
    them are gone for ever. What is lost is stated first. Make sure that the old master and its
    in-sync slaves are stopped: while they reach each other they go on.
    """
    group = await load_group(session.admin, name, broker)
    session.warn_all(group.warnings)
    if replica_id is None:
        if group.longest is None:
            raise TargetError(f"no replica of {name} answers")
        replica_id = group.longest.seen.id
    price = price_of(group, replica_id)
    for line in _price(group, price):
        session.print(line)
    if not (force and accept_loss):
        raise ConfigError("an election that may lose messages needs --force and --accept-loss")
    if not session.confirm(f"elect replica {replica_id} of {name} and lose what it lacks"):
        return
    address = price.candidate.seen.address
    await ask(session.admin, address, "elect", replica_id=replica_id, accept_loss=True, by=_user())
    after = await wait_for_group(session.admin, group, _leads_above(group.info.epoch))
    if after.epoch <= group.info.epoch or after.master != replica_id:
        raise TargetError(
            f"replica {replica_id} was not elected: see its last decisions in "
            f"`tianzhou broker group {name} --json`"
        )
    session.print(f"replica {replica_id} is the master of epoch {after.epoch}")
    session.print("  replicas that have more than it stop; then: tianzhou broker resync")


def _price(group: Group, price: Price) -> Sequence[str]:
    candidate = price.candidate
    lines = [f"{candidate.label}: its log ends at {candidate.end_offset or 0:,}"]
    if candidate.seen.is_in_sync:
        lines.append("  it is in sync, so it has every acknowledged message")
    if price.longest is not None:
        about = (
            ""
            if price.lost_messages is None
            else (f", about {plural(price.lost_messages, 'message')}")
        )
        lines.append(
            f"  {price.longest.label} has a log up to {price.longest.end_offset or 0:,}: "
            f"{price.lost_bytes:,} bytes more{about}, which are lost"
        )
    for each in price.unknown:
        end = each.end_offset
        known = "an unknown end" if end is None else f"{end:,} when it was last heard"
        lines.append(f"  {each.label} does not answer: its log went up to {known}")
    if not price.unknown and price.longest is None:
        lines.append("  no replica that answers has more")
    return lines
