"""The forms of topics: a new one, and the settings, guided shrink and deletion of one."""

import msgspec

from tianzhou.admin.changes.topics import (
    Drain,
    QueueDrain,
    check_own_topic,
    drain,
    reserved_names,
    topic_on_masters,
    topic_use,
)
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.topics import perm_text
from tianzhou.console.text import Text
from tianzhou.console.views.operations.silent import Silent, not_there, silent_brokers
from tianzhou.console.web.ask import Ask
from tianzhou.errors import TargetError
from tianzhou.protocol.bodies.topics import TopicConfig

KINDS = {
    "normal": "",
    "ordered": "FIFO",
    "ordered-global": "FIFO",
    "delayed": "DELAY",
    "transactional": "TRANSACTION",
}
"""Kinds of topics with their attribute message.type (5.x)."""
DRAIN_ROWS_MAX = 200


class NewTopic(msgspec.Struct, frozen=True, kw_only=True):
    """What the form of a new topic offers."""

    kinds: tuple[str, ...]
    clusters: tuple[str, ...]
    brokers: tuple[str, ...]


class TopicOnBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A topic on one broker."""

    broker: str
    cluster: str
    read_queues: int
    write_queues: int
    permission: str
    is_ordered: bool
    attributes: dict[str, str]


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A group that consumes the topic."""

    group: str
    lag: int | None
    members: int | None


class DrainRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that is only read."""

    broker: str
    queue: int
    stored: int
    left: int
    """Messages that the slowest group has not consumed."""
    slowest: str
    """That group; empty if there is none."""


class Shrinking(msgspec.Struct, frozen=True, kw_only=True):
    """How far the queues are that producers no longer write to."""

    rows: tuple[DrainRow, ...]
    queues: int
    left: int
    is_done: bool
    goal: int
    """Queues to read in the second step."""
    warnings: tuple[str, ...]


class TopicChange(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is, for the forms that change it."""

    topic: str
    refusal: str
    """Why it cannot be changed; empty: it can."""
    brokers: tuple[TopicOnBroker, ...]
    lacking: tuple[str, ...]
    """Masters without it."""
    silent: tuple[Silent, ...]
    is_same: bool
    """Whether all brokers have the same settings."""
    stored: int | None
    last_message_ms: int | None
    groups: tuple[Consumer, ...]
    warnings: tuple[str, ...]
    shrinking: Shrinking | None


async def new_topic(ask: Ask) -> NewTopic:
    """The form of a new topic."""
    info = await ask.cluster.admin.clusters.info()
    return NewTopic(
        kinds=tuple(KINDS),
        clusters=tuple(sorted(info.clusters)),
        brokers=tuple(sorted(info.brokers)),
    )


async def topic_change(ask: Ask) -> TopicChange:
    """The settings of a topic, who uses it, and how far a removal of queues is."""
    admin, name = ask.cluster.admin, ask.path["topic"]
    state = await topic_on_masters(admin, name)
    existing = {at: each for at, each in state.responses.items() if each is not None}
    if not existing:
        raise not_there(Text("topic"), name, state.failures)
    use = await topic_use(admin, name, existing)
    return TopicChange(
        topic=name,
        refusal=await _refusal(ask, name),
        brokers=tuple(_on_broker(at, each) for at, each in sorted(existing.items())),
        lacking=tuple(sorted(at.label for at, each in state.responses.items() if each is None)),
        silent=silent_brokers(state.failures),
        is_same=len({_comparable(each) for each in existing.values()}) == 1,
        stored=use.stored_count,
        last_message_ms=use.last_message_ms,
        groups=tuple(
            Consumer(group=each.group, lag=each.lag_count, members=each.members)
            for each in use.groups
        ),
        warnings=use.warnings,
        shrinking=await _shrinking(ask, name, existing, [each.group for each in use.groups]),
    )


async def _refusal(ask: Ask, name: str) -> str:
    try:
        check_own_topic(name, await reserved_names(ask.cluster.admin))
    except TargetError as e:
        return str(e)
    return ""


async def _shrinking(
    ask: Ask, name: str, existing: dict[BrokerRef, TopicConfig], groups: list[str]
) -> Shrinking | None:
    queues = {
        at: range(each.write_queue_count, each.read_queue_count) for at, each in existing.items()
    }
    if not any(queues.values()):
        return None
    state: Drain = await drain(ask.cluster.admin, name, queues, groups)
    return Shrinking(
        rows=tuple(_drain_row(each) for each in state.queues[:DRAIN_ROWS_MAX]),
        queues=len(state.queues),
        left=state.left_count,
        is_done=state.is_done,
        goal=max(each.write_queue_count for each in existing.values()),
        warnings=state.warnings,
    )


def _drain_row(each: QueueDrain) -> DrainRow:
    slowest = max(each.left, key=lambda pair: pair[1], default=("", 0))
    return DrainRow(
        broker=each.broker_name,
        queue=each.queue_id,
        stored=each.stored_count,
        left=each.left_count,
        slowest=slowest[0],
    )


def _on_broker(at: BrokerRef, config: TopicConfig) -> TopicOnBroker:
    return TopicOnBroker(
        broker=at.label,
        cluster=at.cluster,
        read_queues=config.read_queue_count,
        write_queues=config.write_queue_count,
        permission=perm_text(config.perm),
        is_ordered=config.order,
        attributes=config.attributes or {},
    )


def _comparable(config: TopicConfig) -> tuple[object, ...]:
    attributes = tuple(sorted((config.attributes or {}).items()))
    return (
        config.read_queue_count,
        config.write_queue_count,
        config.perm,
        config.order,
        attributes,
    )
