"""One topic: its groups and rates, its queues, its settings on each broker."""

from collections.abc import Mapping

import msgspec

from tianzhou.admin.fanout import BrokerRef, Gathered, gather_any
from tianzhou.admin.topics import perm_text
from tianzhou.console.collect.history import GROUP, GROUP_TOPIC, TOPIC, SeriesName
from tianzhou.console.collect.snapshot import Snapshot, Topic
from tianzhou.console.text import Text
from tianzhou.console.views.cluster import charts
from tianzhou.console.views.cluster.charts import ChartData, Spark
from tianzhou.console.views.cluster.groups import GroupRow, group_row
from tianzhou.console.views.cluster.setting_tables import SettingTable, side_by_side
from tianzhou.console.views.cluster.state import (
    ClusterState,
    ask_brokers,
    masters_of,
    snapshot_of,
    state_of,
)
from tianzhou.console.views.cluster.topics import TopicRow, topic_row
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing
from tianzhou.console.web.refusals import NotFound
from tianzhou.protocol.bodies.stats import TopicStatsTable

TABS = ("overview", "queues", "settings")


class TopicGroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A group that consumes a topic: its figures on this topic, its state as a whole."""

    group: GroupRow
    filter: str
    """Empty: not known, no member is on line."""
    lag: int | None
    consumed_per_s: float | None
    oldest_age_ms: int | None
    oldest_is_minimum: bool
    consumed_today: int | None
    missing: tuple[str, ...]


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of a topic."""

    broker: str
    queue_id: int
    begin: int
    end: int
    stored: int
    last_ms: int | None
    """When the last message was stored; None: never."""


class TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    """One topic."""

    state: ClusterState
    name: str
    tab: str
    topic: TopicRow | None
    """None before the first round."""
    perms: tuple[str, ...]
    """RW, R- and so on; one if all brokers have the same."""
    groups: tuple[TopicGroupRow, ...] = ()
    group_sparks: dict[str, Spark] = {}
    span: str = charts.FIRST_SPAN
    chart: ChartData | None = None
    queues: Listing[QueueRow] | None = None
    queue_problems: tuple[tuple[str, str], ...] = ()
    """(broker, reason): whose queues are not in the list."""
    settings: SettingTable | None = None


async def topic(ask: Ask) -> TopicPage:
    """One topic."""
    snapshot, name = snapshot_of(ask), ask.path["topic"]
    state = state_of(ask, snapshot)
    tab = ask.query.get("tab", TABS[0])
    tab = tab if tab in TABS else TABS[0]
    if not snapshot.version:
        return TopicPage(state=state, name=name, tab=tab, topic=None, perms=())
    found = topic_of(ask, snapshot, name)
    page = TopicPage(
        state=state,
        name=name,
        tab=tab,
        topic=topic_row(found),
        perms=tuple(sorted({perm_text(each.perm) for each in found.queues})),
    )
    if ask.cluster.collector is not None:
        ask.cluster.collector.watch(topics=(name,), groups=found.groups)
    if tab == "queues":
        return await _with_queues(ask, page, snapshot, found)
    if tab == "settings":
        return msgspec.structs.replace(page, settings=_settings(found))
    groups = _groups(snapshot, found)
    span = charts.span_of(ask)
    lines = [(Text("Incoming"), SeriesName(TOPIC, name), charts.per_s)]
    return msgspec.structs.replace(
        page,
        groups=groups,
        group_sparks=await _lag_sparks(ask, snapshot, name, groups),
        span=span,
        chart=await charts.chart(ask, span, lines, "/s"),
    )


def topic_of(ask: Ask, snapshot: Snapshot, name: str) -> Topic:
    """A topic by name. Raises NotFound."""
    found = snapshot.topic(name) if ask.scope.sees(name) else None
    if found is None:
        raise NotFound(Text("There is no topic {name} in this cluster.", name=name))
    return found


def _groups(snapshot: Snapshot, topic: Topic) -> tuple[TopicGroupRow, ...]:
    names = set(topic.groups)
    rows: list[TopicGroupRow] = []
    for group in snapshot.groups:
        if group.name not in names:
            continue
        on = next((each for each in group.topics if each.topic == topic.name), None)
        rows.append(
            TopicGroupRow(
                group=group_row(group),
                filter=dict(group.subscriptions).get(topic.name, ""),
                lag=on.lag if on is not None else None,
                consumed_per_s=on.consumed_per_s if on is not None else None,
                oldest_age_ms=on.oldest_age_ms if on is not None else None,
                oldest_is_minimum=on.oldest_is_minimum if on is not None else False,
                consumed_today=on.consumed_today if on is not None else None,
                missing=on.missing if on is not None else group.missing,
            )
        )
    return tuple(sorted(rows, key=lambda row: -(row.lag or 0)))


async def _lag_sparks(
    ask: Ask, snapshot: Snapshot, topic: str, groups: tuple[TopicGroupRow, ...]
) -> dict[str, Spark]:
    # A group that consumes one topic has no series for that topic besides its own.
    shown = {each.group.name for each in groups}
    several = {each.name for each in snapshot.groups if len(each.topics) > 1} & shown
    found = await charts.sparks(ask, GROUP_TOPIC, sorted(several), charts.lag, topic=topic)
    return found | await charts.sparks(ask, GROUP, sorted(shown - several), charts.lag)


async def _with_queues(
    ask: Ask, page: TopicPage, snapshot: Snapshot, found: Topic
) -> TopicPage:  # fmt: skip
    topics = ask.cluster.admin.topics
    brokers = masters_of(snapshot, (each.broker for each in found.queues))

    async def read() -> Gathered[TopicStatsTable]:
        return await gather_any(brokers, lambda at: topics.stats_on(at, found.name))

    answered = await ask_brokers(ask, read, "topic-queues", found.name)
    problems = {each.name: each.problem for each in snapshot.unanswered if each.is_master}
    tables: Mapping[BrokerRef, TopicStatsTable] = {}
    if answered.value is not None:
        tables = answered.value.responses
        problems |= {at.name: str(why) for at, why in answered.value.failures.items()}
    else:
        problems |= {at.name: answered.problem for at in brokers}
    rows = [
        QueueRow(
            broker=at.name,
            queue_id=queue.queue_id,
            begin=each.min_offset,
            end=each.max_offset,
            stored=max(each.max_offset - each.min_offset, 0),
            last_ms=each.last_update_timestamp or None,
        )
        for at, table in tables.items()
        for queue, each in table.offsets.items()
    ]
    queues = listing(
        ask,
        sorted(rows, key=lambda row: (row.broker, row.queue_id)),
        find=lambda row: (row.broker,),
        sort={
            "queue": lambda row: (row.broker, row.queue_id),
            "begin": lambda row: row.begin,
            "end": lambda row: row.end,
            "stored": lambda row: row.stored,
            "last": lambda row: row.last_ms,
        },
        first="queue",
    )
    return msgspec.structs.replace(page, queues=queues, queue_problems=tuple(problems.items()))


def _settings(found: Topic) -> SettingTable:
    return side_by_side(
        {
            each.broker: {
                "readQueueNums": str(each.read),
                "writeQueueNums": str(each.write),
                "perm": perm_text(each.perm),
                "order": "true" if each.is_ordered else "false",
                **dict(each.attributes),
            }
            for each in found.queues
        }
    )
