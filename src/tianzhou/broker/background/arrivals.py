"""Notifies packages of messages that reach a queue: delayed delivery, parked pops, parked pulls.

The store calls `notify` for each message, in the order of the log, on the event loop. Where a
staging pool is in use its commit thread learns of them, and calls `notify_from_thread`.
"""

import asyncio
from collections.abc import Callable, Iterable

OnArrival = Callable[[str, int, int], None]
"""Called with topic, queue id and tag code; it must be quick and raise nothing."""


class Arrivals:
    """The subscribers to the messages of one store; create it on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._of_all: list[OnArrival] = []
        self._by_topic: dict[str, OnArrival] = {}

    def subscribe(self, on_arrival: OnArrival) -> None:
        """Notify of the messages of all topics."""
        self._of_all.append(on_arrival)

    def subscribe_topics(self, topics: Iterable[str], on_arrival: OnArrival) -> None:
        """Notify of the messages of these topics only; a topic has one such subscriber."""
        self._by_topic.update(dict.fromkeys(topics, on_arrival))

    def notify(self, topic: str, queue_id: int, _: int, code: int, __: int) -> None:
        """A message is in a queue (topic, queue id, queue offset, tag code, store time)."""
        if topic in self._by_topic:
            self._by_topic[topic](topic, queue_id, code)
        for on_arrival in self._of_all:
            on_arrival(topic, queue_id, code)

    def notify_from_thread(
        self, topic: str, queue_id: int, queue_offset: int, code: int, time_ms: int
    ) -> None:
        """As `notify`, from another thread."""
        arrival = (topic, queue_id, queue_offset, code, time_ms)
        self._loop.call_soon_threadsafe(self.notify, *arrival)
