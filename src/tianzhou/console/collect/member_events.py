"""The history of members: who came to a consumer group and who left it, found by comparing rounds.

Each event moves queues between members (rebalance), which explains pauses and messages that are
consumed twice. Members are read every few minutes, so what came and left in between is not seen.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from sqlalchemy import Connection, Engine, delete, select

from tianzhou.console.collect import tables
from tianzhou.console.collect.snapshot import Member, Snapshot
from tianzhou.monitor.database import reading

CAME, WENT, MOVED, UPDATED = "came", "went", "address", "version"
"""Values of `MemberEvent.what`."""
KEPT_MS = 30 * 24 * 3_600_000
EVENTS_MAX = 2_000
"""Events of one round; of a cluster that restarts as a whole the rest is not written."""

Members = Mapping[str, tuple[Member, ...]]
"""By group."""


class MemberEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the members of a group."""

    group: str
    at_ms: int
    """When the members were read."""
    client_id: str
    what: str
    """CAME, WENT, MOVED (another host) or UPDATED (another version of the client)."""
    address: str
    version: str
    language: str


def members_in(snapshot: Snapshot, before: Members) -> Members:
    """The newest known members of each group; a group whose members are not known keeps its."""
    return {
        group.name: group.members if group.members is not None else before[group.name]
        for group in snapshot.groups
        if group.members is not None or group.name in before
    }


def events_between(before: Members, snapshot: Snapshot) -> Iterator[MemberEvent]:
    """What changed; nothing of groups whose members were not known before, or are not now."""
    for group in snapshot.groups:
        old = before.get(group.name)
        if old is None or group.members is None or old == group.members:
            continue
        at_ms = group.members_ms if group.members_ms is not None else snapshot.as_of_ms
        was = {each.client_id: each for each in old}
        now = {each.client_id: each for each in group.members}
        for client_id in sorted(was.keys() | now.keys()):
            what = _what(was.get(client_id), now.get(client_id))
            if what:
                member = now[client_id] if client_id in now else was[client_id]
                yield MemberEvent(
                    group=group.name, at_ms=at_ms, client_id=client_id, what=what,
                    address=member.address, version=member.version, language=member.language,
                )  # fmt: skip


def _what(was: Member | None, now: Member | None) -> str:
    if was is None:
        return CAME
    if now is None:
        return WENT
    if was.version != now.version:
        return UPDATED
    # Its port differs from broker to broker, and another one is asked in each round.
    return MOVED if _host(was) != _host(now) else ""


def _host(member: Member) -> str:
    return member.address.rpartition(":")[0]


# -- database --------------------------------------------------------------------------------------


def write(connection: Connection, cluster: str, events: Iterable[MemberEvent]) -> None:
    """Add events in the transaction of a connection."""
    rows = [
        {
            "cluster": cluster, "consumer_group": each.group, "at_ms": each.at_ms,
            "client_id": each.client_id[:255], "what": each.what, "address": each.address[:255],
            "version": each.version[:64], "language": each.language[:64],
        }
        for each, _ in zip(events, range(EVENTS_MAX), strict=False)
    ]  # fmt: skip
    if rows:
        connection.execute(tables.member_events.insert(), rows)


def expire(connection: Connection, cluster: str, now_ms: int) -> None:
    """Delete what is too old."""
    table = tables.member_events
    old = (table.c.cluster == cluster) & (table.c.at_ms < now_ms - KEPT_MS)
    connection.execute(delete(table).where(old))


def newest(engine: Engine, cluster: str, group: str, rows_max: int = 500) -> list[MemberEvent]:
    """The events of a group, newest first."""
    table = tables.member_events
    wanted = (table.c.cluster == cluster) & (table.c.consumer_group == group)
    order = (table.c.at_ms.desc(), table.c.id.desc())
    with reading(engine) as connection:
        rows = connection.execute(select(table).where(wanted).order_by(*order).limit(rows_max))
        return [
            MemberEvent(
                group=group, at_ms=row.at_ms, client_id=row.client_id, what=row.what,
                address=row.address, version=row.version, language=row.language,
            )
            for row in rows
        ]  # fmt: skip
