"""Who is connected: producers and consumers by group, as their heartbeats tell.

A client is known by its channel, the connection it sends heartbeats on, and forgotten when that
closes, when it unregisters, or when its heartbeats stay away. Channels are only compared here,
never used; what has to be told to whom is returned.

All consumers of a group are taken to subscribe alike: the newest heartbeat decides for the group,
as in RocketMQ. Where two of them differ, messages are lost to both in turns, so the difference is
reported with both sides named.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from tianzhou.errors import FilterError
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol.filter import SqlFilter, TagFilter, compile_sql, is_tag_type, parse_tags

C = TypeVar("C")


class MessageModel(StrEnum):
    """Whether the members of a group share the messages or each get all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


# -- subscriptions ---------------------------------------------------------------------------------

_EXPRESSION_UNIT = 64
"""Characters of an expression that cost as much as a subscription; it is kept compiled."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of one topic."""

    topic: str
    expression: str
    expression_type: str
    version: int
    tags: TagFilter
    sql: SqlFilter | None = None
    problem: str | None = None
    """Why the expression cannot be used; a pull by it is refused with this text."""
    class_filter: bool = False

    @property
    def is_by_tags(self) -> bool:
        return is_tag_type(self.expression_type)

    @property
    def cost(self) -> int:
        """What it takes of a table's limit: long expressions take more memory."""
        return 1 + len(self.expression) // _EXPRESSION_UNIT

    @property
    def description(self) -> str:
        """The subscription for a person."""
        return f"{self.topic} by {self.expression_type} {self.expression!r}"


def make_subscription(
    topic: str,
    expression: str | None,
    expression_type: str | None,
    version: int,
    *,
    class_filter: bool = False,
) -> Subscription:
    """Compile a subscription; a bad SQL expression is kept with its problem. Never raises."""
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
    """Two members of a group that do not subscribe alike."""

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
    """When its last heartbeat came, by steady time."""
    account: str | None = None
    """The account of its latest heartbeat; None without access control, and if it needs none."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict[str, Subscription])
    wants: frozenset[tuple[str, str, str]] = frozenset()
    """Its subscriptions without their versions, which differ from start to start."""
    cost: int = 0
    """What the subscriptions take of the limits."""

    def subscribe(self, subscriptions: Iterable[Subscription]) -> None:
        self.subscriptions = {each.topic: each for each in subscriptions}
        self.cost = sum(each.cost for each in self.subscriptions.values())
        self.wants = frozenset(
            (each.topic, each.expression_type, each.expression)
            for each in self.subscriptions.values()
            if not each.topic.startswith(RETRY_TOPIC_PREFIX)
        )


@dataclass(slots=True)
class ConsumerGroup(Generic[C]):
    """The connected members of one consumer group, and what the group wants."""

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
        """Whether it subscribes to others and no more to this one.

        A consumer that only pulls need not say what it reads, so no subscriptions tell nothing.
        """
        return bool(self.subscriptions) and topic not in self.subscriptions


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """What one heartbeat says about one group."""

    group: str
    consume_type: str
    message_model: str
    consume_from: str
    subscriptions: tuple[Subscription, ...]


@dataclass(frozen=True, slots=True)
class Change(Generic[C]):
    """A group whose members or subscriptions have changed; `notify` are those to tell."""

    group: str
    notify: tuple[C, ...] = ()
    differences: tuple[Difference, ...] = ()
    """Differences between members that were not there before."""


class ConsumerTable(Generic[C]):
    """All connected consumers."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup[C]] = {}
        self._groups_of: dict[C, set[str]] = {}
        self._cost_of: dict[C, int] = {}
        self.subscription_count = 0
        """All subscriptions of all members, as their limits count them."""
        self.version = 0
        """Moves whenever a member comes, goes or tells anything at all."""

    def get(self, group: str) -> ConsumerGroup[C] | None:
        return self.groups.get(group)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        found = self.groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def groups_of_topic(self, topic: str) -> set[str]:
        """Groups that subscribe to a topic now."""
        return {name for name, group in self.groups.items() if topic in group.subscriptions}

    def groups_of(self, channel: C) -> Collection[str]:
        """The groups of a connection."""
        return self._groups_of.get(channel, ())

    # -- coming ------------------------------------------------------------------------------------

    def growth(self, channel: C, told: ConsumerHeartbeat) -> tuple[int, int]:
        """By how much a heartbeat would raise the number of subscriptions, and the connection's."""
        group = self.groups.get(told.group)
        known = None if group is None else group.members.get(channel)
        cost = sum({each.topic: each.cost for each in told.subscriptions}.values())
        grown = cost - (0 if known is None else known.cost)
        return grown, self._cost_of.get(channel, 0) + grown

    def heartbeat(
        self,
        channel: C,
        client: Client,
        told: ConsumerHeartbeat,
    ) -> Change[C] | None:
        """Note a heartbeat; None if nothing has changed by it."""
        self.version += 1
        group = self.groups.get(told.group)
        if group is None:
            group = self.groups[told.group] = ConsumerGroup(told.group)
        group.consume_type = told.consume_type
        group.message_model = told.message_model
        group.consume_from = told.consume_from
        known = group.members.get(channel)
        client.subscribe(told.subscriptions)
        self._count(channel, client.cost - (0 if known is None else known.cost))
        group.members[channel] = client
        self._groups_of.setdefault(channel, set()).add(told.group)
        resubscribed = _update_subscriptions(group, told.subscriptions)
        differences: tuple[Difference, ...] = ()
        if known is None or client.wants != known.wants:
            before = set(group.differences)
            group.differences = _differences_among(group)
            differences = tuple(each for each in group.differences if each not in before)
        joined = known is None
        if not (joined or resubscribed or differences):
            return None
        # Members of a broadcasting group share nothing, so none has to make room for another.
        notify = tuple(group.members) if (joined or resubscribed) else ()
        return Change(group.name, () if group.is_broadcasting else notify, differences)

    # -- going -------------------------------------------------------------------------------------

    def unregister(self, channel: C, group_name: str) -> Change[C] | None:
        """A consumer says goodbye to one group; None if it was not there."""
        group = self.groups.get(group_name)
        if group is None or channel not in group.members:
            return None
        self.version += 1
        self._count(channel, -group.members.pop(channel).cost)
        self._forget(channel, group_name)
        if not group.members:
            del self.groups[group_name]
        else:
            group.differences = _differences_among(group)
        return Change(group_name, () if group.is_broadcasting else tuple(group.members))

    def closed(self, channel: C) -> Iterator[Change[C]]:
        """A connection has ended; its groups lose it one by one, as the changes are taken."""
        for group in sorted(self._groups_of.get(channel, ())):
            change = self.unregister(channel, group)
            if change is not None:
                yield change

    def expired(self, now_ms: int, timeout_ms: int) -> list[C]:
        """Channels without a heartbeat for too long; whoever closes them tells `closed`."""
        return list(
            dict.fromkeys(
                channel
                for group in self.groups.values()
                for channel, client in group.members.items()
                if now_ms - client.seen_ms > timeout_ms
            )
        )

    def _count(self, channel: C, grown: int) -> None:
        self.subscription_count += grown
        self._cost_of[channel] = self._cost_of.get(channel, 0) + grown

    def _forget(self, channel: C, group: str) -> None:
        groups = self._groups_of.get(channel)
        if groups is not None:
            groups.discard(group)
            if not groups:
                del self._groups_of[channel]
                self._cost_of.pop(channel, None)


def _update_subscriptions(group: ConsumerGroup[C], subscriptions: Iterable[Subscription]) -> bool:
    """Let the group want what the newest heartbeat wants; True if a topic came or went."""
    changed = False
    told: set[str] = set()
    for new in subscriptions:
        told.add(new.topic)
        old = group.subscriptions.get(new.topic)
        changed = changed or old is None
        if old is None or new.version > old.version:
            group.subscriptions[new.topic] = new
    for topic in group.subscriptions.keys() - told:
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
    expected = first.wants
    found: dict[str, Difference] = {}
    for other in members:
        # Sets of one group are nearly always equal, and comparing them is cheap.
        if other.wants == expected:
            continue
        for topic in sorted({topic for topic, _, _ in other.wants ^ expected} - found.keys()):
            found[topic] = Difference(
                group.name, topic,
                first.client_id, _wording(first, topic),
                other.client_id, _wording(other, topic),
            )  # fmt: skip
    return tuple(found.values())


def _wording(client: Client, topic: str) -> str:
    subscription = client.subscriptions.get(topic)
    if subscription is None:
        return "not at all"
    return f"by {subscription.expression_type} {subscription.expression!r}"


# -- client ids ------------------------------------------------------------------------------------


class ClientIds(Generic[C]):
    """Which account uses a client id, for as long as a channel is open that sent it.

    Replies and requests to clients go by this id, so one account must not take that of another.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, dict[C, str | None]] = {}
        self._ids_of: dict[C, dict[str, None]] = {}

    def claim(self, channel: C, client_id: str, account: str | None) -> bool:
        """Use an id; False if a channel of another account does. Without account all is allowed."""
        users = self._accounts.get(client_id, {})
        if account is not None and any(
            other != account for at, other in users.items() if at is not channel
        ):
            return False
        ids = self._ids_of.setdefault(channel, {})
        ids.pop(client_id, None)
        ids[client_id] = None
        self._accounts.setdefault(client_id, {})[channel] = account
        if len(ids) > _IDS_OF_CHANNEL_MAX:
            oldest = next(iter(ids))
            del ids[oldest]
            self._release(channel, oldest)
        return True

    def closed(self, channel: C) -> None:
        """A connection has ended."""
        for client_id in self._ids_of.pop(channel, ()):
            self._release(channel, client_id)

    def _release(self, channel: C, client_id: str) -> None:
        users = self._accounts[client_id]
        del users[channel]
        if not users:
            del self._accounts[client_id]


_IDS_OF_CHANNEL_MAX = 64
"""A client uses one; of a connection that sends many the latest are remembered."""

# -- producers -------------------------------------------------------------------------------------


class ProducerTable(Generic[C]):
    """All connected producers."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[C, Client]] = {}
        self._groups_of: dict[C, set[str]] = {}
        self._by_client_id: dict[str, C] = {}
        self._id_of: dict[C, str] = {}
        """The client id of the latest heartbeat of each connection."""

    def groups_of(self, channel: C) -> Collection[str]:
        """The groups of a connection."""
        return self._groups_of.get(channel, ())

    def find(self, client_id: str) -> C | None:
        """The channel of a client by its id, whatever its groups."""
        return self._by_client_id.get(client_id)

    def heartbeat(self, channel: C, client: Client, group: str) -> bool:
        """Note a heartbeat; True if the producer is new to the group."""
        if self._id_of.get(channel) != client.client_id:
            self._release_id(channel)
            self._id_of[channel] = client.client_id
        self._by_client_id[client.client_id] = channel
        members = self.groups.setdefault(group, {})
        is_new = channel not in members
        members[channel] = client
        self._groups_of.setdefault(channel, set()).add(group)
        return is_new

    def unregister(self, channel: C, group: str) -> bool:
        """A producer says goodbye; False if it was not there."""
        members = self.groups.get(group)
        client = None if members is None else members.pop(channel, None)
        if members is None or client is None:
            return False
        if not members:
            del self.groups[group]
        groups = self._groups_of[channel]
        groups.discard(group)
        if not groups:
            del self._groups_of[channel]
            self._release_id(channel)
        return True

    def _release_id(self, channel: C) -> None:
        client_id = self._id_of.pop(channel, None)
        # The client may be back already, on a new channel.
        if client_id is not None and self._by_client_id.get(client_id) is channel:
            del self._by_client_id[client_id]

    def closed(self, channel: C) -> Iterator[str]:
        """A connection has ended; gives the groups it belonged to, which lose it one by one."""
        for group in sorted(self._groups_of.get(channel, ())):
            self.unregister(channel, group)
            yield group

    def expired(self, now_ms: int, timeout_ms: int) -> list[C]:
        """Channels without a heartbeat for too long."""
        return list(
            dict.fromkeys(
                channel
                for members in self.groups.values()
                for channel, client in members.items()
                if now_ms - client.seen_ms > timeout_ms
            )
        )
