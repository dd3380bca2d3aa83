"""Counters of a broker. Everything only counts up; rates are made by whoever reads them twice.

The finest counts are kept, by queue; those of topics and groups are their sums (`history.py`).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class Counts:
    """Messages and bytes, and in how many requests they came or went."""

    messages: int = 0
    size_bytes: int = 0
    calls: int = 0
    took_ms: int = 0
    """What the appends took; nearly all take 0."""

    def add(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.size_bytes += size_bytes
        self.calls += 1


@dataclass(slots=True)
class Stats:
    """What went through the broker since it started."""

    started_ms: int
    collect: Callable[[], None] = lambda: None
    """Brings in what was counted elsewhere; called before anyone reads what was stored."""
    _put: Counts = field(default_factory=Counts, init=False)
    put_failures: int = 0
    got: Counts = field(default_factory=Counts)
    pulls_found: int = 0
    pulls_missed: int = 0
    _by_queue: dict[tuple[str, int], Counts] = field(
        default_factory=dict[tuple[str, int], Counts], init=False
    )
    by_group: dict[tuple[str, int, str], Counts] = field(
        default_factory=dict[tuple[str, int, str], Counts]
    )
    """What went out, by topic, queue and group."""
    sent_back: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Messages that consumers gave back to have them again, by topic and group."""
    dead: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Messages that became dead letters, by topic and group."""
    put_slowest_ms: int = 0
    put_times: Counter[int] = field(default_factory=Counter[int])
    """How many appends took so many ms; nearly all take 0."""

    @property
    def put(self) -> Counts:
        """What came in."""
        self.collect()
        return self._put

    @property
    def by_queue(self) -> dict[tuple[str, int], Counts]:
        """What came in, by topic and queue."""
        self.collect()
        return self._by_queue

    def stored(
        self, topic: str, messages: int, size_bytes: int, took_ms: int, queue_id: int = 0
    ) -> None:
        self.stored_by(topic, queue_id, messages, size_bytes, 1)
        if took_ms > 0:
            self._by_queue[topic, queue_id].took_ms += took_ms
            self.took(took_ms)

    def stored_by(
        self, topic: str, queue_id: int, messages: int, size_bytes: int, calls: int
    ) -> None:
        """Count several sends at once."""
        counts = self._by_queue.get((topic, queue_id))
        if counts is None:
            counts = self._by_queue[topic, queue_id] = Counts()
        counts.messages += messages
        counts.size_bytes += size_bytes
        counts.calls += calls
        total = self._put
        total.messages += messages
        total.size_bytes += size_bytes
        total.calls += calls

    def took(self, took_ms: int) -> None:
        """Note an append, or several in one go, that took its time."""
        self.put_times[min(took_ms, 10_000)] += 1
        self.put_slowest_ms = max(self.put_slowest_ms, took_ms)

    def delivered(
        self, topic: str, group: str, messages: int, size_bytes: int, queue_id: int = 0
    ) -> None:
        self.got.add(messages, size_bytes)
        self.pulls_found += 1
        counts = self.by_group.get((topic, queue_id, group))
        if counts is None:
            counts = self.by_group[topic, queue_id, group] = Counts()
        counts.add(messages, size_bytes)

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted; its counters go with it."""
        _drop(self.by_queue, lambda key: key[0] == topic)
        _drop(self.by_group, lambda key: key[0] == topic)
        _drop(self.sent_back, lambda key: key[0] == topic)
        _drop(self.dead, lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """A group is deleted; its counters go with it."""
        _drop(self.by_group, lambda key: key[2] == group)
        _drop(self.sent_back, lambda key: key[1] == group)
        _drop(self.dead, lambda key: key[1] == group)


def _drop(table: dict[K, V], unwanted: Callable[[K], bool]) -> None:
    for key in [key for key in table if unwanted(key)]:
        del table[key]
