"""Members of a consumer group: what each reports about itself; one member with its stacks."""

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from tianzhou.admin.fanout import BrokerRef, gather_any, run_limited
from tianzhou.admin.group_detail import (
    brokers_of_members,
    filters_of,
    members_of,
)
from tianzhou.admin.groups import Groups
from tianzhou.console.collect.snapshot import Group, Snapshot
from tianzhou.console.text import Text
from tianzhou.console.views.cluster.groups import group_of
from tianzhou.console.views.cluster.state import (
    ClusterState,
    ask_brokers,
    masters_of,
    snapshot_of,
    state_of,
)
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import NotFound
from tianzhou.errors import TianzhouError
from tianzhou.protocol.bodies.clients import ConsumerConnection, ConsumerRunningInfo

MEMBER_S = 1.2
"""A member that does not report within this time is shown without its report."""
ASKED_MAX = 100
"""Members of a group that are asked for a report."""
STACKS_MAX = 512 * 1024


class HeldQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that a member holds."""

    topic: str
    broker: str
    queue_id: int


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """One member."""

    client_id: str
    address: str
    language: str
    version: str
    brokers: tuple[str, ...]
    """That it is connected to."""
    problem: str
    """Why it did not report; the rest is unknown then."""
    subscriptions: tuple[tuple[str, str], ...] | None
    """(topic, filter)."""
    queues: tuple[HeldQueue, ...]
    consume_ms: float | None
    """Mean time to consume a message, of its slowest topic."""


async def read_members(
    ask: Ask, snapshot: Snapshot, group: Group
) -> tuple[tuple[MemberRow, ...] | None, tuple[tuple[str, str], ...]]:
    """The members with their reports, and (broker, reason) for each broker that did not answer."""
    brokers = masters_of(snapshot, group.brokers)
    groups = ask.cluster.admin.groups
    silent = {
        each.name: each.problem
        for each in snapshot.unanswered
        if each.is_master and each.name in group.brokers
    }

    async def read() -> tuple[tuple[MemberRow, ...], dict[str, str]]:
        return await _members(groups, group.name, brokers)

    answered = await ask_brokers(ask, read, "members", group.name)
    if answered.value is None:
        return None, (*silent.items(), *((at.name, answered.problem) for at in brokers))
    rows, failed = answered.value
    if len(failed) == len(brokers) and not rows:
        return None, tuple((silent | failed).items())
    return rows, tuple((silent | failed).items())


async def _members(
    groups: Groups, group: str, brokers: Iterable[BrokerRef]
) -> tuple[tuple[MemberRow, ...], dict[str, str]]:
    connections = await gather_any(brokers, lambda at: groups.connection(at, group))
    online: dict[BrokerRef, ConsumerConnection] = {
        at: view for at, view in connections.responses.items() if view is not None
    }
    through = dict(sorted(brokers_of_members(online).items())[:ASKED_MAX])
    reports = dict(
        zip(
            through,
            await run_limited(
                through.items(), lambda pair: _report(groups, group, pair[0], pair[1])
            ),
            strict=True,
        )
    )
    infos = {name: each for name, each in reports.items() if not isinstance(each, str)}
    rows: list[MemberRow] = []
    for each in members_of(online, infos):
        report = reports.get(each.client_id, "only 100 members are asked at a time")
        times = each.consume_ms.values()
        rows.append(
            MemberRow(
                client_id=each.client_id,
                address=each.address,
                language=each.language,
                version=each.version,
                brokers=each.brokers,
                problem=report if isinstance(report, str) else "",
                subscriptions=None
                if each.subscriptions is None
                else tuple(sorted(each.subscriptions.items())),
                queues=tuple(
                    HeldQueue(
                        topic=queue.topic or "",
                        broker=queue.broker_name or "",
                        queue_id=queue.queue_id,
                    )
                    for queue in each.queues
                ),
                consume_ms=max(times, default=None),
            )
        )
    return tuple(rows), {at.name: str(why) for at, why in connections.failures.items()}


async def _report(
    groups: Groups, group: str, client_id: str, at: BrokerRef, *, stacks: bool = False
) -> ConsumerRunningInfo | str:
    """What a member says about itself, or why it says nothing."""
    try:
        async with asyncio.timeout(MEMBER_S):
            return await groups.running_info(at, group, client_id, stacks=stacks)
    except TimeoutError:
        return f"no report within {MEMBER_S:g} s"
    except TianzhouError as e:
        return str(e)


# -- one member ------------------------------------------------------------------------------------


class MemberQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as its member sees it."""

    topic: str
    broker: str
    queue_id: int
    commit_offset: int | None
    cached_count: int | None
    """Messages that it has pulled and not consumed yet."""
    cached_mib: int | None
    waiting_acks: int | None
    """Of a pop consumer."""
    is_locked: bool
    is_dropped: bool
    pulled_ms: int | None
    consumed_ms: int | None


class MemberTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Rates and times of one topic at a member."""

    topic: str
    filter: str
    pull_per_s: float | None = None
    pull_ms: float | None = None
    ok_per_s: float | None = None
    failed_per_s: float | None = None
    consume_ms: float | None = None
    failed_last_hour: int | None = None


class MemberPage(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a consumer group."""

    state: ClusterState
    group: str
    client_id: str
    address: str = ""
    language: str = ""
    version: str = ""
    problem: str = ""
    """Why it did not report."""
    properties: tuple[tuple[str, str], ...] = ()
    topics: tuple[MemberTopic, ...] = ()
    queues: tuple[MemberQueue, ...] = ()
    is_with_stacks: bool = False
    stacks: str | None = None
    """Stacks of its threads; None: not asked for, or not reported by this client."""
    is_cut: bool = False


async def member(ask: Ask) -> MemberPage:
    """The member `?client=` of a consumer group; with `&stacks=1` the stacks of its threads."""
    snapshot = snapshot_of(ask)
    group, client_id = ask.path["group"], ask.query.get("client", "")
    state = state_of(ask, snapshot)
    is_with_stacks = ask.query.get("stacks") == "1"
    if not snapshot.version:
        return MemberPage(state=state, group=group, client_id=client_id)
    found = group_of(ask, snapshot, group)
    brokers = masters_of(snapshot, found.brokers)
    groups = ask.cluster.admin.groups

    async def read() -> tuple[tuple[str, str, str], ConsumerRunningInfo | str] | None:
        connections = await gather_any(brokers, lambda at: groups.connection(at, group))
        online = {at: view for at, view in connections.responses.items() if view is not None}
        for each in members_of(online, {}):
            if each.client_id == client_id:
                through = brokers_of_members(online)[client_id]
                report = await _report(groups, group, client_id, through, stacks=is_with_stacks)
                return (each.address, each.language, each.version), report
        if connections.failures and not connections.responses:
            raise next(iter(connections.failures.values()))
        return None

    answered = await ask_brokers(ask, read, "member", group, client_id, is_with_stacks)
    if answered.problem:
        return MemberPage(
            state=state, group=group, client_id=client_id, problem=answered.problem
        )  # fmt: skip
    if answered.value is None:
        text = Text("{client} is not a member of {group} any more.", client=client_id, group=group)
        raise NotFound(text)
    (address, language, version), report = answered.value
    page = MemberPage(
        state=state, group=group, client_id=client_id, address=address, language=language,
        version=version, is_with_stacks=is_with_stacks,
    )  # fmt: skip
    if isinstance(report, str):
        return msgspec.structs.replace(page, problem=report)
    stacks = report.jstack
    return msgspec.structs.replace(
        page,
        properties=tuple(sorted(report.properties.items())),
        topics=_topics(report),
        queues=_queues(report),
        stacks=stacks[:STACKS_MAX] if stacks else None,
        is_cut=stacks is not None and len(stacks) > STACKS_MAX,
    )


def _topics(report: ConsumerRunningInfo) -> tuple[MemberTopic, ...]:
    filters: Mapping[str, str] = filters_of(report.subscriptions)
    rows = {topic: MemberTopic(topic=topic, filter=text) for topic, text in filters.items()}
    for topic, each in report.statuses.items():
        rows[topic] = MemberTopic(
            topic=topic,
            filter=filters.get(topic, ""),
            pull_per_s=each.pull_tps,
            pull_ms=each.pull_ms,
            ok_per_s=each.consume_ok_tps,
            failed_per_s=each.consume_failed_tps,
            consume_ms=each.consume_ms,
            failed_last_hour=each.consume_failed_count,
        )
    return tuple(rows[topic] for topic in sorted(rows))


def _queues(report: ConsumerRunningInfo) -> tuple[MemberQueue, ...]:
    rows = [
        MemberQueue(
            topic=queue.topic or "",
            broker=queue.broker_name or "",
            queue_id=queue.queue_id,
            commit_offset=each.commit_offset,
            cached_count=each.cached_count,
            cached_mib=each.cached_size_mib,
            waiting_acks=None,
            is_locked=each.locked,
            is_dropped=each.dropped,
            pulled_ms=each.last_pull_timestamp or None,
            consumed_ms=each.last_consume_timestamp or None,
        )
        for queue, each in report.queues.items()
    ]
    rows += [
        MemberQueue(
            topic=queue.topic or "",
            broker=queue.broker_name or "",
            queue_id=queue.queue_id,
            commit_offset=None,
            cached_count=None,
            cached_mib=None,
            waiting_acks=each.wait_ack_count,
            is_locked=False,
            is_dropped=each.dropped,
            pulled_ms=each.last_pop_timestamp or None,
            consumed_ms=None,
        )
        for queue, each in (report.pop_queues or {}).items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.topic, row.broker, row.queue_id)))
