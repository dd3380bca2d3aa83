"""The topics of a cluster."""

import msgspec

from tianzhou.console.collect.history import TOPIC
from tianzhou.console.collect.snapshot import NORMAL, Topic
from tianzhou.console.views.cluster import charts
from tianzhou.console.views.cluster.charts import Spark
from tianzhou.console.views.cluster.state import ClusterState, snapshot_of, state_of
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """One topic."""

    name: str
    kind: str
    message_type: str
    is_ordered: bool
    queues: int
    """That producers write to, over all brokers."""
    brokers: int
    in_per_s: float | None
    today: int | None
    yesterday: int | None
    stored: int | None
    groups: int
    last_message_ms: int | None
    settings_differ: bool
    missing: tuple[str, ...]
    """Brokers whose part is not in the sums."""


class Topics(msgspec.Struct, frozen=True, kw_only=True):
    """Topics; with `?kinds=all` also those for retries, dead letters and the system."""

    state: ClusterState
    topics: Listing[TopicRow]
    is_all: bool
    hidden: int
    """Topics for retries, dead letters and the system that are not shown."""
    sparks: dict[str, Spark]


async def topics(ask: Ask) -> Topics:
    """The topics of a cluster."""
    snapshot = snapshot_of(ask)
    is_all = ask.query.get("kinds") == "all"
    visible = [each for each in snapshot.topics if ask.scope.sees(each.name)]
    chosen = visible if is_all else [each for each in visible if each.kind == NORMAL]
    found = listing(
        ask,
        [topic_row(each) for each in chosen],
        find=lambda row: (row.name, row.message_type),
        sort={
            "name": lambda row: row.name,
            "queues": lambda row: row.queues,
            "in": lambda row: row.in_per_s,
            "today": lambda row: row.today,
            "yesterday": lambda row: row.yesterday,
            "stored": lambda row: row.stored,
            "groups": lambda row: row.groups,
            "last": lambda row: row.last_message_ms,
        },
        first="name",
    )
    return Topics(
        state=state_of(ask, snapshot),
        topics=found,
        is_all=is_all,
        hidden=len(visible) - len(chosen),
        sparks=await charts.sparks(ask, TOPIC, [row.name for row in found.rows], charts.per_s),
    )


def topic_row(topic: Topic) -> TopicRow:
    """The line of a topic in tables."""
    return TopicRow(
        name=topic.name,
        kind=topic.kind,
        message_type=topic.message_type,
        is_ordered=topic.is_ordered,
        queues=topic.queue_count,
        brokers=len(topic.queues),
        in_per_s=topic.in_per_s,
        today=topic.today,
        yesterday=topic.yesterday,
        stored=topic.stored,
        groups=len(topic.groups),
        last_message_ms=topic.last_message_ms,
        settings_differ=topic.settings_differ,
        missing=topic.missing,
    )
