"""One consumer group: progress by topic and queue, members, settings, history of its members."""

import asyncio
from collections.abc import Mapping

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from tianzhou.admin.fanout import BrokerRef, Gathered, gather_any
from tianzhou.admin.group_detail import merge_progress, queue_progress
from tianzhou.console.collect import member_events
from tianzhou.console.collect.history import GROUP, SeriesName
from tianzhou.console.collect.member_events import MemberEvent
from tianzhou.console.collect.snapshot import Contradiction, Group, Snapshot
from tianzhou.console.text import Text
from tianzhou.console.views.cluster import charts
from tianzhou.console.views.cluster.charts import ChartData, Spark
from tianzhou.console.views.cluster.groups import GroupRow, group_of, group_row
from tianzhou.console.views.cluster.members import MemberRow, read_members
from tianzhou.console.views.cluster.setting_tables import SettingTable, fields_of, side_by_side
from tianzhou.console.views.cluster.state import (
    ClusterState,
    ask_brokers,
    masters_of,
    snapshot_of,
    state_of,
)
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing
from tianzhou.console.web.refusals import Unavailable
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.stats import ConsumeStats

TABS = ("overview", "queues", "members", "settings", "history")


class GroupTopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a group on one topic."""

    topic: str
    is_retry: bool
    filter: str
    """Empty: no member subscribes to it at the moment."""
    lag: int | None
    consumed_per_s: float | None
    oldest_age_ms: int | None
    oldest_is_minimum: bool
    consumed_today: int | None
    consumed_yesterday: int | None
    resets_today: int | None
    missing: tuple[str, ...]


class GroupQueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a group in one queue."""

    topic: str
    broker: str
    queue_id: int
    end: int
    committed: int
    lag: int
    consumed_until_ms: int | None
    """When the last consumed message was stored; None: not known."""
    client_id: str | None
    """The member that holds the queue; None: none says so."""


class GroupPage(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer group."""

    state: ClusterState
    name: str
    tab: str
    group: GroupRow | None
    """None before the first round."""
    brokers: tuple[str, ...] = ()
    retry_max: int | None = None
    consumed_yesterday: int | None = None
    resets_today: int | None = None
    contradictions: tuple[Contradiction, ...] = ()
    duplicate_ids: tuple[str, ...] = ()
    topics: tuple[GroupTopicRow, ...] = ()
    sparks: dict[str, Spark] = {}
    """lag, rate: the last hour."""
    span: str = charts.FIRST_SPAN
    lag_chart: ChartData | None = None
    rate_chart: ChartData | None = None
    queues: Listing[GroupQueueRow] | None = None
    members: tuple[MemberRow, ...] | None = None
    settings: SettingTable | None = None
    events: Listing[MemberEvent] | None = None
    """Who came and who left, newest first."""
    problems: tuple[tuple[str, str], ...] = ()
    """(broker, reason): what is not in queues, members or settings."""


async def group(ask: Ask) -> GroupPage:
    """One consumer group."""
    snapshot, name = snapshot_of(ask), ask.path["group"]
    state = state_of(ask, snapshot)
    tab = ask.query.get("tab", TABS[0])
    tab = tab if tab in TABS else TABS[0]
    if not snapshot.version:
        return GroupPage(state=state, name=name, tab=tab, group=None)
    found = group_of(ask, snapshot, name)
    if ask.cluster.collector is not None:
        topics = tuple(each.topic for each in found.topics)
        ask.cluster.collector.watch(topics=topics, groups=(name,))
    page = GroupPage(
        state=state,
        name=name,
        tab=tab,
        group=group_row(found),
        brokers=found.brokers,
        retry_max=found.retry_max,
        consumed_yesterday=found.consumed_yesterday,
        resets_today=found.resets_today,
        contradictions=found.contradictions,
        duplicate_ids=found.duplicate_ids,
        sparks={
            "lag": (await charts.sparks(ask, GROUP, [name], charts.lag)).get(name, ()),
            "rate": (await charts.sparks(ask, GROUP, [name], charts.per_s)).get(name, ()),
        },
    )
    if tab == "queues":
        return await _with_queues(ask, page, snapshot, found)
    if tab == "members":
        members, problems = await read_members(ask, snapshot, found)
        return msgspec.structs.replace(page, members=members, problems=problems)
    if tab == "settings":
        return await _with_settings(ask, page, snapshot, found)
    if tab == "history":
        return msgspec.structs.replace(page, events=await _events(ask, name))
    span, series = charts.span_of(ask), SeriesName(GROUP, name)
    return msgspec.structs.replace(
        page,
        topics=_topics(found),
        span=span,
        lag_chart=await charts.chart(ask, span, [(Text("Lag"), series, charts.lag)]),
        rate_chart=await charts.chart(ask, span, [(Text("Consumed"), series, charts.per_s)], "/s"),
    )


def silent_brokers(snapshot: Snapshot, names: tuple[str, ...]) -> dict[str, str]:
    """Which masters of these names did not answer in the last round, with the reason."""
    return {
        each.name: each.problem
        for each in snapshot.unanswered
        if each.is_master and each.name in names
    }


def _topics(found: Group) -> tuple[GroupTopicRow, ...]:
    filters = dict(found.subscriptions)
    rows = [
        GroupTopicRow(
            topic=each.topic,
            is_retry=each.topic.startswith(RETRY_TOPIC_PREFIX),
            filter=filters.get(each.topic, ""),
            lag=each.lag,
            consumed_per_s=each.consumed_per_s,
            oldest_age_ms=each.oldest_age_ms,
            oldest_is_minimum=each.oldest_is_minimum,
            consumed_today=each.consumed_today,
            consumed_yesterday=each.consumed_yesterday,
            resets_today=each.resets_today,
            missing=each.missing,
        )
        for each in found.topics
    ]
    known = {each.topic for each in rows}
    rows += [
        GroupTopicRow(
            topic=topic, is_retry=False, filter=text, lag=None, consumed_per_s=None,
            oldest_age_ms=None, oldest_is_minimum=False, consumed_today=None,
            consumed_yesterday=None, resets_today=None, missing=found.missing,
        )
        for topic, text in found.subscriptions
        if topic not in known
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (row.is_retry, row.topic)))


async def _with_queues(ask: Ask, page: GroupPage, snapshot: Snapshot, found: Group) -> GroupPage:
    groups = ask.cluster.admin.groups
    brokers = masters_of(snapshot, found.brokers)

    async def read() -> Gathered[ConsumeStats]:
        return await gather_any(brokers, lambda at: groups.progress_on(at, found.name))

    answered = await ask_brokers(ask, read, "group-queues", found.name)
    problems = silent_brokers(snapshot, found.brokers)
    stats: Mapping[BrokerRef, ConsumeStats] = {}
    if answered.value is not None:
        stats = answered.value.responses
        problems |= {at.name: str(why) for at, why in answered.value.failures.items()}
    else:
        problems |= {at.name: answered.problem for at in brokers}
    holders, _ = await read_members(ask, snapshot, found)
    held = {
        (queue.topic, queue.broker, queue.queue_id): each.client_id
        for each in holders or ()
        for queue in each.queues
    }
    rows = [
        GroupQueueRow(
            topic=each.topic,
            broker=each.broker_name,
            queue_id=each.queue_id,
            end=each.end_offset,
            committed=each.committed_offset,
            lag=each.lag_count,
            consumed_until_ms=each.last_time_ms or None,
            client_id=held.get((each.topic, each.broker_name, each.queue_id)),
        )
        for each in queue_progress(merge_progress(stats.values()))
    ]
    queues = listing(
        ask,
        rows,
        find=lambda row: (row.topic, row.broker, row.client_id or ""),
        sort={
            "queue": lambda row: (row.topic, row.broker, row.queue_id),
            "end": lambda row: row.end,
            "committed": lambda row: row.committed,
            "lag": lambda row: row.lag,
            "until": lambda row: row.consumed_until_ms,
            "client": lambda row: row.client_id,
        },
        first="-lag",
    )
    return msgspec.structs.replace(page, queues=queues, problems=tuple(problems.items()))


async def _with_settings(
    ask: Ask, page: GroupPage, snapshot: Snapshot, found: Group
) -> GroupPage:  # fmt: skip
    groups = ask.cluster.admin.groups
    brokers = masters_of(snapshot, found.brokers)

    async def read() -> Gathered[SubscriptionGroupConfig | None]:
        return await gather_any(brokers, lambda at: groups.config(at, found.name))

    answered = await ask_brokers(ask, read, "group-settings", found.name)
    problems = silent_brokers(snapshot, found.brokers)
    tables: dict[str, dict[str, str]] = {}
    if answered.value is not None:
        problems |= {at.name: str(why) for at, why in answered.value.failures.items()}
        tables = {
            at.name: fields_of(config, "groupName") if config is not None else {}
            for at, config in answered.value.responses.items()
        }
    else:
        problems |= {at.name: answered.problem for at in brokers}
    settings = side_by_side(tables, problems)
    return msgspec.structs.replace(page, settings=settings, problems=tuple(problems.items()))


async def _events(ask: Ask, group: str) -> Listing[MemberEvent]:
    engine, cluster = ask.database.engine, ask.cluster.name
    try:
        found = await asyncio.to_thread(member_events.newest, engine, cluster, group)
    except SQLAlchemyError as e:
        text = Text("The database does not answer: {why}", why=type(e).__name__)
        raise Unavailable(text, retry_s=10) from e
    return listing(
        ask,
        found,
        find=lambda row: (row.client_id, row.address, row.version, row.what),
        sort={"at": lambda row: row.at_ms, "client": lambda row: row.client_id},
        first="-at",
    )
