"""Counters of a broker. Everything only counts up; rates are made by whoever reads them twice."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Messages and bytes."""

    messages: int = 0
    size_bytes: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.size_bytes += size_bytes


@dataclass(slots=True)
class Stats:
    """What went through the broker since it started."""

    started_ms: int
    put: Counts = field(default_factory=Counts)
    put_failures: int = 0
    got: Counts = field(default_factory=Counts)
    pulls_found: int = 0
    pulls_missed: int = 0
    by_topic: dict[str, Counts] = field(default_factory=dict[str, Counts])
    by_group: dict[tuple[str, str], Counts] = field(default_factory=dict[tuple[str, str], Counts])
    """By topic and group."""
    put_slowest_ms: int = 0
    put_times: Counter[int] = field(default_factory=Counter[int])
    """How many appends took so many ms; nearly all take 0."""

    def stored(self, topic: str, messages: int, size_bytes: int, took_ms: int) -> None:
        self.put.add(messages, size_bytes)
        counts = self.by_topic.get(topic)
        if counts is None:
            counts = self.by_topic[topic] = Counts()
        counts.add(messages, size_bytes)
        if took_ms > 0:
            self.put_times[min(took_ms, 10_000)] += 1
            self.put_slowest_ms = max(self.put_slowest_ms, took_ms)

    def delivered(self, topic: str, group: str, messages: int, size_bytes: int) -> None:
        self.got.add(messages, size_bytes)
        self.pulls_found += 1
        counts = self.by_group.get((topic, group))
        if counts is None:
            counts = self.by_group[topic, group] = Counts()
        counts.add(messages, size_bytes)

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted; its counters go with it."""
        self.by_topic.pop(topic, None)
        for key in [key for key in self.by_group if key[0] == topic]:
            del self.by_group[key]
