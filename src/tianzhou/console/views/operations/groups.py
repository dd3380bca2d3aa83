"""The forms of consumer groups: a new one, and settings, pause and deletion of one."""

import msgspec

from tianzhou.admin.changes.groups import check_own_group, group_on_masters, group_state
from tianzhou.admin.fanout import BrokerRef
from tianzhou.console.text import Text
from tianzhou.console.views.operations.silent import Silent, not_there, silent_brokers
from tianzhou.console.web.ask import Ask
from tianzhou.errors import TargetError
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig


class NewGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What the form of a new group offers."""

    clusters: tuple[str, ...]
    brokers: tuple[str, ...]


class GroupOnBroker(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a group on one broker."""

    broker: str
    is_enabled: bool
    retries: int
    retry_queues: int
    is_broadcast_allowed: bool
    is_from_min: bool
    is_orderly: bool
    is_notified: bool


class TopicLag(msgspec.Struct, frozen=True, kw_only=True):
    """The backlog of a group on a topic."""

    topic: str
    lag: int


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it is, for the forms that change it."""

    group: str
    refusal: str
    """Why it cannot be changed; empty: it can."""
    brokers: tuple[GroupOnBroker, ...]
    lacking: tuple[str, ...]
    silent: tuple[Silent, ...]
    is_same: bool
    is_paused: bool
    """On at least one broker."""
    members: tuple[str, ...] | None
    topics: tuple[TopicLag, ...]
    retries_waiting: int
    dead_letters: int | None
    warnings: tuple[str, ...]


async def new_group(ask: Ask) -> NewGroup:
    """The form of a new group."""
    info = await ask.cluster.admin.clusters.info()
    return NewGroup(clusters=tuple(sorted(info.clusters)), brokers=tuple(sorted(info.brokers)))


async def group_change(ask: Ask) -> GroupChange:
    """The settings of a group, its members, backlog and dead letters."""
    admin, name = ask.cluster.admin, ask.path["group"]
    on = await group_on_masters(admin, name)
    existing = {at: each for at, each in on.responses.items() if each is not None}
    if not existing:
        raise not_there(Text("group"), name, on.failures)
    state = await group_state(admin, name, existing)
    rows = tuple(_on_broker(at, each) for at, each in sorted(existing.items()))
    return GroupChange(
        group=name,
        refusal=_refusal(name),
        brokers=rows,
        lacking=tuple(sorted(at.label for at, each in on.responses.items() if each is None)),
        silent=silent_brokers(on.failures),
        is_same=len({msgspec.structs.replace(row, broker="") for row in rows}) == 1,
        is_paused=not all(row.is_enabled for row in rows),
        members=state.members,
        topics=tuple(TopicLag(topic=topic, lag=lag) for topic, lag in state.lag_by_topic),
        retries_waiting=state.retry_count,
        dead_letters=state.dead_letter_count,
        warnings=state.warnings,
    )


def _refusal(name: str) -> str:
    try:
        check_own_group(name)
    except TargetError as e:
        return str(e)
    return ""


def _on_broker(at: BrokerRef, config: SubscriptionGroupConfig) -> GroupOnBroker:
    return GroupOnBroker(
        broker=at.label,
        is_enabled=config.consume_enable,
        retries=config.retry_max_times,
        retry_queues=config.retry_queue_count,
        is_broadcast_allowed=config.consume_broadcast_enable,
        is_from_min=config.consume_from_min_enable,
        is_orderly=bool(config.consume_orderly),
        is_notified=config.notify_consumer_ids_changed_enable,
    )
