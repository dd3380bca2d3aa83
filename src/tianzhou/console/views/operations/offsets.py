"""The offsets of a group, queue by queue, and the forms that move them."""

import msgspec

from tianzhou.admin.changes.groups import group_on_masters
from tianzhou.admin.fanout import gather_any
from tianzhou.console.text import Text
from tianzhou.console.views.operations.silent import Silent, not_there, silent_brokers
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing
from tianzhou.names import DLQ_TOPIC_PREFIX, is_system_topic
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import ConsumeOffsets


class QueueOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a group in one queue."""

    topic: str
    broker: str
    queue: int
    committed: int
    end: int
    lag: int


class GroupOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is, and what can be moved."""

    group: str
    topic: str
    """Chosen in the address; empty: all topics."""
    topics: tuple[str, ...]
    """With committed offsets."""
    others: tuple[str, ...]
    """Topics that the group has not consumed yet."""
    brokers: tuple[str, ...]
    members: int | None
    """On line; None: unknown."""
    silent: tuple[Silent, ...]
    queues: Listing[QueueOffset]


TOPICS_MAX = 2000


async def group_offsets(ask: Ask) -> GroupOffsets:
    """The committed offsets of a group, from all masters."""
    admin, name = ask.cluster.admin, ask.path["group"]
    on = await group_on_masters(admin, name)
    if not any(on.responses.values()):
        raise not_there(Text("group"), name, on.failures)
    brokers = [*on.responses]
    progress = await gather_any(brokers, lambda at: admin.groups.progress_on(at, name))
    views = await gather_any(brokers, lambda at: admin.groups.connection(at, name))
    members = {
        connection.client_id
        for view in views.responses.values()
        if view is not None
        for connection in view.connections
    }
    rows = [
        _row(queue, each)
        for stats in progress.responses.values()
        for queue, each in stats.offsets.items()
    ]
    rows.sort(key=lambda row: (row.topic, row.broker, row.queue))
    topics = tuple(dict.fromkeys(row.topic for row in rows))
    topic = ask.query.get("topic", "")
    names = await admin.topics.names()
    failures = {**on.failures, **progress.failures}
    return GroupOffsets(
        group=name,
        topic=topic,
        topics=topics,
        others=tuple(
            each
            for each in names
            if each not in topics
            and not is_system_topic(each)
            and not each.startswith(DLQ_TOPIC_PREFIX)
        )[:TOPICS_MAX],
        brokers=tuple(sorted(at.name for at in brokers)),
        members=None if views.failures and not members else len(members),
        silent=silent_brokers(failures),
        queues=listing(
            ask,
            [row for row in rows if topic in ("", row.topic)],
            find=lambda row: (row.topic, row.broker),
            sort={
                "topic": lambda row: (row.topic, row.broker, row.queue),
                "broker": lambda row: (row.broker, row.topic, row.queue),
                "lag": lambda row: row.lag,
            },
            first="topic",
        ),
    )


def _row(queue: MessageQueue, offsets: ConsumeOffsets) -> QueueOffset:
    return QueueOffset(
        topic=queue.topic or "",
        broker=queue.broker_name or "",
        queue=queue.queue_id,
        committed=offsets.consumer_offset,
        end=offsets.broker_offset,
        lag=max(offsets.broker_offset - offsets.consumer_offset, 0),
    )
