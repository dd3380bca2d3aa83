"""Counters of a broker. They only grow; a reader computes rates from two readings.

Counts are by queue; those of topics and groups are sums (`history`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tianzhou.limits import STATISTICS_MAX
from tianzhou.remoting.server import Server

K = TypeVar("K")
V = TypeVar("V")


class BoundedCounter(Counter[K]):
    """A counter with a limited number of keys; further keys are not counted."""

    def __setitem__(self, key: K, count: int) -> None:
        if len(self) < STATISTICS_MAX or key in self:
            super().__setitem__(key, count)


@dataclass(slots=True)
class Counts:
    """Messages and bytes, and the number of requests that contained them."""

    messages: int = 0
    size_bytes: int = 0
    calls: int = 0
    took_ms: int = 0
    """The time of appends or reads; nearly all take 0."""


@dataclass(slots=True)
class Stats:
    """What the broker stored and delivered since it started."""

    started_ms: int
    collect: Callable[[], None] = lambda: None
    """Adds what the fast path counted; called before counters are read."""
    _put: Counts = field(default_factory=Counts, init=False)
    put_failures: int = 0
    _got: Counts = field(default_factory=Counts, init=False)
    _pulls_found: int = field(default=0, init=False)
    pulls_missed: int = 0
    _by_queue: dict[tuple[str, int], Counts] = field(
        default_factory=dict[tuple[str, int], Counts], init=False
    )
    _by_group: dict[tuple[str, int, str], Counts] = field(
        default_factory=dict[tuple[str, int, str], Counts], init=False
    )
    sent_back: Counter[tuple[str, str]] = field(default_factory=BoundedCounter[tuple[str, str]])
    """Messages that consumers sent back for a retry, by topic and group."""
    dead: Counter[tuple[str, str]] = field(default_factory=BoundedCounter[tuple[str, str]])
    """Messages that became dead letters, by topic and group."""
    popped: Counter[tuple[str, str]] = field(default_factory=BoundedCounter[tuple[str, str]])
    """Queues whose messages a pop received, by topic and group; RocketMQ's checkpoints."""
    acked: Counter[tuple[str, str]] = field(default_factory=BoundedCounter[tuple[str, str]])
    """Popped messages that were acknowledged, by topic and group."""
    committed: Counter[str] = field(default_factory=BoundedCounter[str])
    """Transactions that were committed, by topic."""
    rolled_back: Counter[str] = field(default_factory=BoundedCounter[str])
    """Transactions that were rolled back, by topic."""
    channels: Callable[[], Mapping[str, int]] = dict[str, int]
    """How often connections were opened and closed, under RocketMQ's names."""
    put_slowest_ms: int = 0
    put_times: Counter[int] = field(default_factory=Counter[int])
    """How many appends took how many ms."""

    @property
    def put(self) -> Counts:
        """Stored messages."""
        self.collect()
        return self._put

    @property
    def by_queue(self) -> dict[tuple[str, int], Counts]:
        """Stored messages by topic and queue."""
        self.collect()
        return self._by_queue

    @property
    def got(self) -> Counts:
        """Delivered messages."""
        self.collect()
        return self._got

    @property
    def pulls_found(self) -> int:
        """Pulls that returned messages."""
        self.collect()
        return self._pulls_found

    @property
    def by_group(self) -> dict[tuple[str, int, str], Counts]:
        """Delivered messages by topic, queue and group."""
        self.collect()
        return self._by_group

    def stored(
        self, topic: str, messages: int, size_bytes: int, took_ms: int = 0, queue_id: int = 0
    ) -> None:
        self.stored_many([(topic, queue_id, messages, size_bytes, 1)])
        if took_ms > 0:
            if (counts := self._by_queue.get((topic, queue_id))) is not None:
                counts.took_ms += took_ms
            self.took(took_ms)

    def stored_many(self, counted: Iterable[tuple[str, int, int, int, int]]) -> None:
        """Count topic, queue, messages, bytes and sends of many queues; runs every second."""
        by_queue, total = self._by_queue, self._put
        for topic, queue_id, messages, size_bytes, calls in counted:
            counts = by_queue.get((topic, queue_id)) or _added(by_queue, (topic, queue_id))
            counts.messages += messages
            counts.size_bytes += size_bytes
            counts.calls += calls
            total.messages += messages
            total.size_bytes += size_bytes
            total.calls += calls

    def took(self, took_ms: int) -> None:
        """Count a slow append, or a slow batch of them."""
        self.put_times[min(took_ms, 10_000)] += 1
        self.put_slowest_ms = max(self.put_slowest_ms, took_ms)

    @property
    def events(self) -> dict[str, Counter[tuple[str, str]]]:
        """The counters by topic and group without a size, by name."""
        return {
            "sent_back": self.sent_back,
            "dead": self.dead,
            "popped": self.popped,
            "acked": self.acked,
        }

    def delivered(
        self,
        topic: str,
        group: str,
        messages: int,
        size_bytes: int,
        queue_id: int = 0,
        took_ms: int = 0,
    ) -> None:
        self.delivered_by(topic, group, queue_id, messages, size_bytes, 1)
        if took_ms > 0 and (counts := self._by_group.get((topic, queue_id, group))) is not None:
            counts.took_ms += took_ms

    def delivered_by(
        self, topic: str, group: str, queue_id: int, messages: int, size_bytes: int, calls: int
    ) -> None:
        """Count several pulls at once."""
        key = (topic, queue_id, group)
        counts = self._by_group.get(key) or _added(self._by_group, key)
        self._pulls_found += calls
        for each in (counts, self._got):
            each.messages += messages
            each.size_bytes += size_bytes
            each.calls += calls

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted: remove its counters."""
        _drop(self.by_queue, lambda key: key[0] == topic)
        _drop(self.by_group, lambda key: key[0] == topic)
        for counter in self.events.values():
            _drop(counter, lambda key: key[0] == topic)
        for of_topic in (self.committed, self.rolled_back):
            of_topic.pop(topic, None)

    def forget_group(self, group: str) -> None:
        """A group is deleted: remove its counters."""
        _drop(self.by_group, lambda key: key[2] == group)
        for counter in self.events.values():
            _drop(counter, lambda key: key[1] == group)


def _added(table: dict[K, Counts], key: K) -> Counts:
    """A new counter, which is not added to a full table."""
    counts = Counts()
    if len(table) < STATISTICS_MAX:
        table[key] = counts
    return counts


def _drop(table: dict[K, V], unwanted: Callable[[K], bool]) -> None:
    for key in [key for key in table if unwanted(key)]:
        del table[key]


def channel_activity(server: Server) -> dict[str, int]:
    """How often connections were opened and closed, under the names of CHANNEL_ACTIVITY."""
    counts = server.counts
    return {
        "CONNECT": counts.opened,
        "CLOSE": counts.opened - len(server.connections),
        "IDLE": counts.idle_peers,
        "EXCEPTION": counts.broken_peers + counts.cut_peers,
    }
