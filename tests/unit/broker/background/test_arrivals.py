"""Subscribers are notified of their messages on the event loop."""

import asyncio
from dataclasses import dataclass

from tianzhou.broker.background.arrivals import Arrivals


async def test_subscribers_learn_of_all_topics_or_of_theirs() -> None:
    arrivals = Arrivals()
    of_all: list[tuple[str, int, int]] = []
    of_one: list[tuple[str, int, int]] = []
    arrivals.notify("early", 0, 0, 0, 0)
    arrivals.subscribe(lambda topic, queue_id, code: of_all.append((topic, queue_id, code)))
    arrivals.subscribe_topics(
        ["a"], lambda topic, queue_id, code: of_one.append((topic, queue_id, code))
    )
    arrivals.notify("a", 1, 20, 300, 4000)
    arrivals.notify("b", 2, 0, 0, 0)
    assert of_all == [("a", 1, 300), ("b", 2, 0)]
    assert of_one == [("a", 1, 300)]


async def test_a_message_of_another_thread_is_notified_on_the_loop() -> None:
    arrivals, topics, loops = Arrivals(), list[str](), list[asyncio.AbstractEventLoop]()

    def on_arrival(topic: str, _: int, __: int) -> None:
        topics.append(topic)
        loops.append(asyncio.get_running_loop())

    arrivals.subscribe(on_arrival)
    await asyncio.to_thread(arrivals.notify_from_thread, "a", 0, 0, 0, 0)
    await asyncio.sleep(0)
    assert topics == ["a"]
    assert loops == [asyncio.get_running_loop()]


# -- confirming ------------------------------------------------------------------------------------


@dataclass
class Log:
    """The ends of a log."""

    end_log_offset: int = 0
    readable_log_offset: int = 0


class Confirmed:
    """Arrivals of a log that readers see as far as it is confirmed."""

    def __init__(self) -> None:
        self.log, self.arrivals = Log(), Arrivals()
        self.to_readers: list[tuple[str, int]] = []
        self.to_others: list[str] = []
        self.arrivals.subscribe(lambda topic, at, _: self.to_readers.append((topic, at)))
        self.arrivals.subscribe_topics(["SCHEDULE"], lambda topic, _, __: self._noted(topic))
        self.arrivals.wait_for_confirmation(self.log)

    def _noted(self, topic: str) -> None:
        self.to_others.append(topic)

    def store(self, topic: str, queue_id: int) -> int:
        self.log.end_log_offset += 10
        self.arrivals.notify(topic, queue_id, 0, 0, 0)
        return self.log.end_log_offset

    def confirm(self, log_offset: int) -> list[tuple[str, int]]:
        """Returns of which queues readers are notified."""
        self.log.readable_log_offset = log_offset
        self.to_readers.clear()
        self.arrivals.confirmed(log_offset)
        return list(self.to_readers)


async def test_readers_are_notified_when_the_message_is_confirmed() -> None:
    it = Confirmed()
    first, second = it.store("a", 0), it.store("b", 1)
    assert it.to_readers == []
    assert it.confirm(first - 1) == []
    assert it.confirm(first) == [("a", 0)]
    assert it.confirm(second) == [("b", 1)]
    assert it.confirm(second + 5) == []


async def test_each_message_of_a_queue_ends_the_wait_for_it() -> None:
    """A queue has one entry; readers are notified whenever more of it is confirmed."""
    it = Confirmed()
    ends = [it.store("a", 0) for _ in range(4)]
    other = it.store("b", 0)
    assert it.confirm(ends[0]) == [("a", 0)]
    assert it.confirm(ends[1]) == [("a", 0)]
    assert it.confirm(ends[3]) == [("a", 0)]
    assert it.confirm(other) == [("b", 0)]


async def test_a_message_that_is_confirmed_already_is_notified_at_once() -> None:
    it = Confirmed()
    it.log.readable_log_offset = 100
    it.store("a", 0)
    assert it.to_readers == [("a", 0)]


async def test_delayed_delivery_is_notified_at_once() -> None:
    """It reads the whole log: what it stores lies behind what it has read."""
    it = Confirmed()
    it.store("SCHEDULE", 0)
    assert (it.to_others, it.to_readers) == (["SCHEDULE"], [])


async def test_a_log_that_was_cut_has_no_messages_that_wait() -> None:
    it = Confirmed()
    it.store("a", 0)
    it.log.end_log_offset = 0
    it.arrivals.wait_for_confirmation(it.log)
    assert it.confirm(10) == []
