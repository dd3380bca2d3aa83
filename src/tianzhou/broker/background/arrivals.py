"""Notifies packages of messages that reach a queue: delayed delivery, parked pops, parked pulls.

The store calls `notify` for each message, in the order of the log, on the event loop. Where a
staging pool is in use its commit thread learns of them, and calls `notify_from_thread`.

With automatic failover parked requests are notified once the message is confirmed, as they could
not read it before. Delayed delivery is notified at once: it reads the whole log.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol

OnArrival = Callable[[str, int, int], None]
"""Called with topic, queue id and tag code; it must be quick and raise nothing."""


class ConfirmedLog(Protocol):
    """The log of a store whose readers see only what is confirmed."""

    @property
    def end_log_offset(self) -> int: ...
    @property
    def readable_log_offset(self) -> int: ...


class Arrivals:
    """The subscribers to the messages of one store; create it on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._readers: list[OnArrival] = []
        self._of_all = self._readers
        self._by_topic: dict[str, OnArrival] = {}
        self._log: ConfirmedLog | None = None
        self._unconfirmed = OrderedDict[tuple[str, int], tuple[int, int, int]]()
        """Queues with messages that are not confirmed, by the first: the log offsets that confirm
        the first and the last of them, and the tag code of the last. At most one entry a queue."""

    def subscribe(self, on_arrival: OnArrival) -> None:
        """Notify of the messages of all topics that readers may see."""
        self._readers.append(on_arrival)

    def subscribe_topics(self, topics: Iterable[str], on_arrival: OnArrival) -> None:
        """Notify of the messages of these topics only; a topic has one such subscriber."""
        self._by_topic.update(dict.fromkeys(topics, on_arrival))

    def clear(self) -> None:
        """Notify of nothing any more, until there are new subscribers."""
        self._readers.clear()
        self._by_topic.clear()

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

    # -- confirming --------------------------------------------------------------------------------

    def wait_for_confirmation(self, log: ConfirmedLog) -> None:
        """Notify readers only of what is confirmed; `confirmed` is called from now on."""
        self._log = log
        self._of_all = [self._wait]
        self._unconfirmed.clear()  # those of a log that was cut

    def _wait(self, topic: str, queue_id: int, code: int) -> None:
        assert self._log is not None
        # The message may end before: then the notice comes a little later than it could.
        end = self._log.end_log_offset
        if end <= self._log.readable_log_offset:
            self._notify_readers(topic, queue_id, code)
            return
        key = (topic, queue_id)
        known = self._unconfirmed.get(key)
        self._unconfirmed[key] = (end if known is None else known[0], end, code)

    def confirmed(self, log_offset: int) -> None:
        """Readers see the log up to there."""
        unconfirmed = self._unconfirmed
        left: list[tuple[tuple[str, int], tuple[int, int, int]]] = []
        while unconfirmed:
            key = next(iter(unconfirmed))
            first, last, code = unconfirmed[key]
            if first > log_offset:
                break
            del unconfirmed[key]
            if last > log_offset:
                left.append((key, (log_offset + 1, last, code)))
            self._notify_readers(*key, code)
        for key, waiting in reversed(left):
            unconfirmed[key] = waiting
            unconfirmed.move_to_end(key, last=False)

    def _notify_readers(self, topic: str, queue_id: int, code: int) -> None:
        for on_arrival in self._readers:
            on_arrival(topic, queue_id, code)
