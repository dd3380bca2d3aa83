"""Clients of the fault-injection test: all kinds of producers and consumers, and their records.

A message is a number. The records use one byte per number and group, so that the memory of the
process is that of the clients, however long the test runs.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.client import (
    ClientSettings,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
    ReceivedMessage,
    SendResult,
)
from tianzhou.errors import SendManyError, TianzhouError

TOPIC = "storm"
MANY_COUNT = 16
IN_FLIGHT_COUNT = 16
"""All bytes in flight must fit the proxy's buffer, or noise could begin within a body."""

_STARTS_MAX = 20
_POLL_MS = 500


class Marks:
    """A set of small numbers."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, number: int) -> None:
        if number >= len(self._bytes):
            self._bytes.extend(bytes(number + 1 - len(self._bytes)))
        self._bytes[number] = 1

    @property
    def count(self) -> int:
        return sum(self._bytes)

    def less(self, other: "Marks") -> list[int]:
        """The numbers that are not in the other set."""
        there = other._bytes + bytes(max(len(self._bytes) - len(other._bytes), 0))
        return [number for number, mark in enumerate(self._bytes) if mark > there[number]]


@dataclass(slots=True)
class Books:
    """Acknowledged messages, and received messages by group."""

    acknowledged: Marks = field(default_factory=Marks)
    arrived: dict[str, Marks] = field(default_factory=dict[str, Marks])
    """By group."""
    sent_by: dict[str, int] = field(default_factory=dict[str, int])
    """How many were acknowledged, by the method of sending."""
    called_after_close: list[str] = field(default_factory=list[str])
    skipped: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Queue, last offset and next one where an ordered consumer skipped messages."""
    failed_count: int = 0
    held_max: int = 0
    _next_number: int = 0

    def new_message(self) -> tuple[int, Message]:
        self._next_number += 1
        return self._next_number, Message(TOPIC, f"{self._next_number} {' ' * 200}")

    def acknowledge(self, way: str, number: int) -> None:
        self.acknowledged.add(number)
        self.sent_by[way] = self.sent_by.get(way, 0) + 1

    def arrive(self, group: str, message: ReceivedMessage) -> None:
        self.arrived[group].add(int(message.text))

    def missing(self) -> dict[str, int]:
        """How many acknowledged messages have not arrived, by group, if any."""
        counts = {
            group: len(self.acknowledged.less(marks)) for group, marks in self.arrived.items()
        }
        return {group: count for group, count in counts.items() if count}


# -- senders ---------------------------------------------------------------------------------------


async def send_one_by_one(producer: Producer, books: Books, stop: asyncio.Event) -> None:
    """Each is awaited before the next."""
    await _send_awaited("awaited", producer, books, stop)


async def send_lingering(producer: Producer, books: Books, stop: asyncio.Event) -> None:
    """The same with a producer that batches messages of several senders."""
    await _send_awaited("lingering", producer, books, stop)


async def _send_awaited(way: str, producer: Producer, books: Books, stop: asyncio.Event) -> None:
    while not stop.is_set():
        number, message = books.new_message()
        try:
            await producer.send(message)
        except TianzhouError:
            books.failed_count += 1
        else:
            books.acknowledge(way, number)


async def send_in_flight(producer: Producer, books: Books, stop: asyncio.Event) -> None:
    """As many in flight as the producer allows."""
    flying: set[asyncio.Future[SendResult]] = set()
    while not stop.is_set():
        number, message = books.new_message()
        try:
            future = await producer.submit(message)
        except TianzhouError:
            books.failed_count += 1
            continue
        flying.add(future)
        future.add_done_callback(flying.discard)
        future.add_done_callback(_note_landing(books, number))
        await asyncio.sleep(0)
    await asyncio.gather(*flying, return_exceptions=True)


def _note_landing(books: Books, number: int) -> Callable[[asyncio.Future[SendResult]], None]:
    def note(done: asyncio.Future[SendResult]) -> None:
        if done.exception() is None:
            books.acknowledge("in flight", number)
        else:
            books.failed_count += 1

    return note


async def send_many(producer: Producer, books: Books, stop: asyncio.Event) -> None:
    """Batches, of which some messages may fail."""
    while not stop.is_set():
        made = [books.new_message() for _ in range(MANY_COUNT)]
        outcomes: list[object]
        try:
            outcomes = [*await producer.send_many([message for _, message in made])]
        except SendManyError as error:
            outcomes = [*error.outcomes]
        for (number, _), outcome in zip(made, outcomes, strict=True):
            if isinstance(outcome, SendResult):
                books.acknowledge("many", number)
            else:
                books.failed_count += 1


# -- readers ---------------------------------------------------------------------------------------


def reader_settings(namesrv: str) -> PushSettings:
    """Settings for fast failure detection."""
    return PushSettings(
        namesrv=namesrv, start="first", pull_suspend_ms=1_000, pull_timeout_ms=3_000,
        rebalance_ms=2_000, heartbeat_ms=2_000, poll_namesrv_ms=2_000, persist_offsets_ms=500,
        lock_ms=2_000,
    )  # fmt: skip


class Listener:
    """A consumer that records all messages, also those that must not arrive."""

    def __init__(self, group: str, settings: ClientSettings, books: Books, *, kind: str) -> None:
        self.group = group
        self.books = books
        books.arrived.setdefault(group, Marks())
        self.is_closed = False
        self._places: dict[int, int] = {}
        """The highest offset by queue, of an ordered consumer."""
        self.consumer = PushConsumer(group, settings=settings, ordered=kind == "ordered")
        if kind == "batches":
            self.consumer.subscribe_batches(TOPIC, self.take_many, size=16)
        else:
            self.consumer.subscribe(TOPIC, self.take_next if kind == "ordered" else self.take)

    async def take(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        self.note(message)

    def take_many(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self.note(message)

    async def take_next(self, message: ReceivedMessage) -> None:
        """Redelivery may start at any offset; a new message must follow the last."""
        last = self._places.get(message.queue_id, -1)
        if message.queue_offset > last + 1:
            self.books.skipped.append((message.queue_id, last, message.queue_offset))
        self._places[message.queue_id] = max(last, message.queue_offset)
        self.note(message)

    def note(self, message: ReceivedMessage) -> None:
        if self.is_closed:
            self.books.called_after_close.append(message.text)
        self.books.arrive(self.group, message)

    def held_count(self) -> int:
        """Buffered messages of its fullest queue."""
        queues = self.consumer.running_info().queues.values()
        return max((info.cached_count for info in queues), default=0)

    async def close(self) -> None:
        await self.consumer.close()
        self.is_closed = True


async def keep_starting(
    namesrv: str, books: Books, *, group: str = "storm-group", kind: str = "single"
) -> Listener:
    """A running consumer; a start that fails because of faults is retried."""
    for _ in range(_STARTS_MAX):
        listener = Listener(group, reader_settings(namesrv), books, kind=kind)
        try:
            await listener.consumer.start()
        except TianzhouError:
            await listener.close()
            continue
        return listener
    raise AssertionError(f"no consumer could be started {_STARTS_MAX} times")


async def poll_until(settings: ClientSettings, books: Books, stop: asyncio.Event) -> None:
    """Poll with lite pull until stopped."""
    group = "storm-lite"
    books.arrived[group] = Marks()
    for _ in range(_STARTS_MAX):
        try:
            async with LitePullConsumer(group, settings=settings) as lite:
                await lite.subscribe(TOPIC)
                while not stop.is_set():
                    for message in await lite.poll(_POLL_MS):
                        books.arrive(group, message)
        except TianzhouError:
            continue  # the start failed; a running consumer continues
        return
    raise AssertionError(f"lite pull could not be started {_STARTS_MAX} times")
