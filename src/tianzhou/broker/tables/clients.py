"""The connected clients: producers and consumers by group, from their heartbeats.

A client is identified by its channel, the connection that it sends heartbeats on. It is removed
when the channel closes, when it unregisters, or when heartbeats stop. Channels are only compared
here; which of them to notify is returned.

All consumers of a group should have the same subscriptions: the newest heartbeat decides for the
group, as in RocketMQ. Where two members differ, both miss messages, so the difference is reported
with both clients named.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from tianzhou.errors import FilterError
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol.filter import SqlFilter, TagFilter, compile_sql, is_tag_type, parse_tags

C = TypeVar("C")
V = TypeVar("V")


class MessageModel(StrEnum):
    """Whether the members of a group share the messages or each receive all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


# -- subscriptions ---------------------------------------------------------------------------------

_EXPRESSION_UNIT = 64
"""Characters of a compiled expression that cost as much as one subscription."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of a group to one topic."""

    topic: str
    expression: str
    expression_type: str
    version: int
    tags: TagFilter
    sql: SqlFilter | None = None
    problem: str | None = None
    """Why the expression is invalid; a pull that uses it is rejected with this text."""
    class_filter: bool = False

    @property
    def is_by_tags(self) -> bool:
        return is_tag_type(self.expression_type)

    @property
    def accept_tags(self) -> Callable[[int], bool] | None:
        """The filter of queue entries; None if it rejects nothing."""
        return self.tags.matches if self.is_by_tags and not self.tags.selects_all else None

    @property
    def cost(self) -> int:
        """How much it counts for the limits: long expressions take more memory."""
        return 1 + len(self.expression) // _EXPRESSION_UNIT

    @property
    def description(self) -> str:
        """The subscription in words."""
        return f"{self.topic} by {self.expression_type} {self.expression!r}"


def make_subscription(
    topic: str,
    expression: str | None,
    expression_type: str | None,
    version: int,
    *,
    class_filter: bool = False,
) -> Subscription:
    """Compile a subscription; an invalid expression is stored as its `problem`. Never raises."""
    text = expression or ""
    if is_tag_type(expression_type):
        tags = parse_tags(expression)
        return Subscription(topic, tags.text, "TAG", version, tags, class_filter=class_filter)
    kind = expression_type or ""
    everything = parse_tags(None)
    if kind != "SQL92":
        problem = f"subscriptions are by TAG or by SQL92, not by {kind[:40]!r}"
        return Subscription(topic, text, kind, version, everything, problem=problem)
    try:
        return Subscription(topic, text, kind, version, everything, sql=compile_sql(text))
    except FilterError as e:
        return Subscription(topic, text, kind, version, everything, problem=str(e))


@dataclass(frozen=True, slots=True)
class Difference:
    """Two members of a group with different subscriptions."""

    group: str
    topic: str
    client_id: str
    description: str
    other_client_id: str
    other_description: str

    def __str__(self) -> str:
        return (
            f"group {self.group}: members subscribe differently to {self.topic}: "
            f"{self.client_id} {self.description}, "
            f"{self.other_client_id} {self.other_description}; "
            f"messages will be missed until all members subscribe alike"
        )


# -- members ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Client:
    """One connected member of a group."""

    client_id: str
    language: int
    version: int
    seen_ms: int
    """When its last heartbeat arrived, by steady time."""
    account: str | None = None
    """The account of its latest heartbeat; None if no account is needed."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict[str, Subscription])
    signature: frozenset[tuple[str, str, str]] = frozenset()
    """Its subscriptions without their versions, which differ between starts; for comparison."""
    cost: int = 0
    """How much the subscriptions count for the limits."""

    def subscribe(self, subscriptions: Iterable[Subscription]) -> None:
        self.subscriptions = {each.topic: each for each in subscriptions}
        self.cost = sum(each.cost for each in self.subscriptions.values())
        self.signature = frozenset(
            (each.topic, each.expression_type, each.expression)
            for each in self.subscriptions.values()
            if not each.topic.startswith(RETRY_TOPIC_PREFIX)
        )


@dataclass(slots=True)
class ConsumerGroup(Generic[C]):
    """The connected members of one consumer group, and its subscriptions."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = MessageModel.CLUSTERING
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[C, Client] = field(default_factory=dict[C, Client])
    subscriptions: dict[str, Subscription] = field(default_factory=dict[str, Subscription])
    differences: tuple[Difference, ...] = ()

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        return [client.client_id for client in self.members.values()]

    def has_left(self, topic: str) -> bool:
        """Whether the group subscribes to other topics and no longer to this one.

        A consumer that only pulls may have no subscriptions, so a group without any has not left.
        """
        return bool(self.subscriptions) and topic not in self.subscriptions


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """The part of a heartbeat for one consumer group."""

    group: str
    consume_type: str
    message_model: str
    consume_from: str
    subscriptions: tuple[Subscription, ...]


@dataclass(frozen=True, slots=True)
class Change(Generic[C]):
    """A group whose members or subscriptions changed; `notify` are the channels to notify."""

    group: str
    notify: tuple[C, ...] = ()
    differences: tuple[Difference, ...] = ()
    """New differences between members."""


class _Memberships(Generic[C, V]):
    """The channels of each name (group or client id), and the names of each channel."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[C, V]] = {}
        self._names: dict[C, dict[str, None]] = {}

    def groups_of(self, channel: C) -> Collection[str]:
        """The groups of a channel, or its client ids; the latest comes last."""
        return self._names.get(channel, {}).keys()

    def _put(self, channel: C, name: str, value: V) -> V | None:
        """Add a channel to a name; returns its value before."""
        members = self._by_name.setdefault(name, {})
        before = members.get(channel)
        members[channel] = value
        names = self._names.setdefault(channel, {})
        names.pop(name, None)
        names[name] = None
        return before

    def _remove(self, channel: C, name: str) -> V | None:
        """Remove a channel from a name; returns its value, None if it was not there."""
        members = self._by_name.get(name)
        if members is None or channel not in members:
            return None
        value = members.pop(channel)
        if not members:
            del self._by_name[name]
        names = self._names[channel]
        del names[name]
        if not names:
            del self._names[channel]
        return value


class _ClientTable(_Memberships[C, Client]):
    """What the tables of producers and consumers have in common."""

    def expired(self, now_ms: int, timeout_ms: int) -> list[C]:
        """Channels whose last heartbeat is too old; the caller closes them."""
        return list(
            dict.fromkeys(
                channel
                for members in self._by_name.values()
                for channel, client in members.items()
                if now_ms - client.seen_ms > timeout_ms
            )
        )


class ConsumerTable(_ClientTable[C]):
    """All connected consumers."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, ConsumerGroup[C]] = {}
        self._cost_of: dict[C, int] = {}
        self.subscription_count = 0
        """All subscriptions of all members, by their cost."""
        self.version = 0
        """Incremented by each heartbeat and each removal."""

    def get(self, group: str) -> ConsumerGroup[C] | None:
        return self.groups.get(group)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        online = self.groups.get(group)
        return None if online is None else online.subscriptions.get(topic)

    def groups_of_topic(self, topic: str) -> set[str]:
        """The connected groups that subscribe to a topic."""
        return {name for name, group in self.groups.items() if topic in group.subscriptions}

    # -- registering -------------------------------------------------------------------------------

    def growth(self, channel: C, heartbeat: ConsumerHeartbeat) -> tuple[int, int]:
        """By how much a heartbeat would raise the subscription count, and the connection's new
        count.
        """
        group = self.groups.get(heartbeat.group)
        known = None if group is None else group.members.get(channel)
        cost = sum({each.topic: each.cost for each in heartbeat.subscriptions}.values())
        grown = cost - (0 if known is None else known.cost)
        return grown, self._cost_of.get(channel, 0) + grown

    def heartbeat(
        self,
        channel: C,
        client: Client,
        heartbeat: ConsumerHeartbeat,
    ) -> Change[C] | None:
        """Register the heartbeat of a consumer; None if it changed nothing."""
        self.version += 1
        known = self._put(channel, heartbeat.group, client)
        group = self.groups.get(heartbeat.group)
        if group is None:
            members = self._by_name[heartbeat.group]
            group = self.groups[heartbeat.group] = ConsumerGroup(heartbeat.group, members=members)
        group.consume_type = heartbeat.consume_type
        group.message_model = heartbeat.message_model
        group.consume_from = heartbeat.consume_from
        client.subscribe(heartbeat.subscriptions)
        self._count(channel, client.cost - (0 if known is None else known.cost))
        resubscribed = _update_subscriptions(group, heartbeat.subscriptions)
        differences: tuple[Difference, ...] = ()
        if known is None or client.signature != known.signature:
            before = set(group.differences)
            group.differences = _differences_among(group)
            differences = tuple(each for each in group.differences if each not in before)
        joined = known is None
        if not (joined or resubscribed or differences):
            return None
        # Members of a broadcasting group share no queues, so they need not rebalance.
        notify = tuple(group.members) if (joined or resubscribed) else ()
        return Change(group.name, () if group.is_broadcasting else notify, differences)

    # -- removing ----------------------------------------------------------------------------------

    def unregister(self, channel: C, group_name: str) -> Change[C] | None:
        """Remove a consumer from a group; None if it was not there."""
        client = self._remove(channel, group_name)
        if client is None:
            return None
        group = self.groups[group_name]
        self.version += 1
        self._count(channel, -client.cost)
        if not self.groups_of(channel):
            del self._cost_of[channel]
        if not group.members:
            del self.groups[group_name]
        else:
            group.differences = _differences_among(group)
        return Change(group_name, () if group.is_broadcasting else tuple(group.members))

    def closed(self, channel: C) -> Iterator[Change[C]]:
        """A connection has closed: remove it from its groups, one per iteration step."""
        for group in sorted(self.groups_of(channel)):
            change = self.unregister(channel, group)
            if change is not None:
                yield change

    def _count(self, channel: C, grown: int) -> None:
        self.subscription_count += grown
        self._cost_of[channel] = self._cost_of.get(channel, 0) + grown


def _update_subscriptions(group: ConsumerGroup[C], subscriptions: Iterable[Subscription]) -> bool:
    """Set the subscriptions of the newest heartbeat; True if a topic was added or removed."""
    changed = False
    topics: set[str] = set()
    for new in subscriptions:
        topics.add(new.topic)
        old = group.subscriptions.get(new.topic)
        changed = changed or old is None
        if old is None or new.version > old.version:
            group.subscriptions[new.topic] = new
    for topic in group.subscriptions.keys() - topics:
        del group.subscriptions[topic]
        changed = True
    return changed


# -- differences -----------------------------------------------------------------------------------


def _differences_among(group: ConsumerGroup[C]) -> tuple[Difference, ...]:
    """One difference per topic: the first member against the first that disagrees with it."""
    members = iter(group.members.values())
    first = next(members, None)
    if first is None:
        return ()
    expected = first.signature
    differences: dict[str, Difference] = {}
    for other in members:
        # They are nearly always equal, and comparing sets is cheap.
        if other.signature == expected:
            continue
        for topic in sorted(
            {topic for topic, _, _ in other.signature ^ expected} - differences.keys()
        ):
            differences[topic] = Difference(
                group.name, topic,
                first.client_id, _wording(first, topic),
                other.client_id, _wording(other, topic),
            )  # fmt: skip
    return tuple(differences.values())


def _wording(client: Client, topic: str) -> str:
    subscription = client.subscriptions.get(topic)
    if subscription is None:
        return "not at all"
    return f"by {subscription.expression_type} {subscription.expression!r}"


# -- client ids ------------------------------------------------------------------------------------


class ClientIds(_Memberships[C, str | None]):
    """Which account uses a client id, while a channel is open that sent it.

    Replies and requests to clients are addressed by this id, so an account must not use the id of
    another one.
    """

    def claim(self, channel: C, client_id: str, account: str | None) -> bool:
        """Register the use of an id; False if a channel of another account uses it.

        Without an account all ids are allowed.
        """
        users = self._by_name.get(client_id, {})
        if account is not None and any(
            other != account for at, other in users.items() if at is not channel
        ):
            return False
        self._put(channel, client_id, account)
        ids = self.groups_of(channel)
        if len(ids) > _IDS_OF_CHANNEL_MAX:
            self._remove(channel, next(iter(ids)))
        return True

    def closed(self, channel: C) -> None:
        """A connection has closed."""
        for client_id in list(self.groups_of(channel)):
            self._remove(channel, client_id)


_IDS_OF_CHANNEL_MAX = 64
"""A client uses one; of a connection that sends many, only the latest count."""

# -- producers -------------------------------------------------------------------------------------


class ProducerTable(_ClientTable[C]):
    """All connected producers."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = self._by_name
        self._by_client_id: dict[str, C] = {}
        self._id_of: dict[C, str] = {}
        """The client id of the latest heartbeat of each connection."""

    def find(self, client_id: str) -> C | None:
        """The channel of a client by its id, in any group."""
        return self._by_client_id.get(client_id)

    def heartbeat(self, channel: C, client: Client, group: str) -> bool:
        """Register the heartbeat of a producer; True if it is new to the group."""
        if self._id_of.get(channel) != client.client_id:
            self._release_id(channel)
            self._id_of[channel] = client.client_id
        self._by_client_id[client.client_id] = channel
        return self._put(channel, group, client) is None

    def unregister(self, channel: C, group: str) -> bool:
        """Remove a producer from a group; False if it was not there."""
        if self._remove(channel, group) is None:
            return False
        if not self.groups_of(channel):
            self._release_id(channel)
        return True

    def _release_id(self, channel: C) -> None:
        client_id = self._id_of.pop(channel, None)
        # The client may be connected again, on a new channel.
        if client_id is not None and self._by_client_id.get(client_id) is channel:
            del self._by_client_id[client_id]

    def closed(self, channel: C) -> Iterator[str]:
        """A connection has closed: remove it from its groups, one per iteration step."""
        for group in sorted(self.groups_of(channel)):
            self.unregister(channel, group)
            yield group
