"""Who works in the storm: producers that send in every way, consumers of every kind, their books.

A message is a number. The books hold one byte per number and reader, so that what the process needs
in memory is what the clients need, however long it takes.
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
"""All that is on its way together must fit the proxy's buffer, or noise could begin in a body."""

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
        """The numbers that the other does not have."""
        there = other._bytes + bytes(max(len(self._bytes) - len(other._bytes), 0))
        return [number for number, mark in enumerate(self._bytes) if mark > there[number]]


@dataclass(slots=True)
class Books:
    """What was acknowledged, and what arrived at whom."""

    acknowledged: Marks = field(default_factory=Marks)
    arrived: dict[str, Marks] = field(default_factory=dict[str, Marks])
    """By group."""
    sent_by: dict[str, int] = field(default_factory=dict[str, int])
    """How many were acknowledged, by the way they were sent."""
    called_after_close: list[str] = field(default_factory=list[str])
    skipped: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Queue, last offset and next one where a consumer in order left something out."""
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
        """How many acknowledged messages have not arrived, by group; groups with none left out."""
        counts = {
            group: len(self.acknowledged.less(marks)) for group, marks in self.arrived.items()
        }
        return {group: count for group, count in counts.items() if count}


# -- senders ---------------------------------------------------------------------------------------


async def send_one_by_one(producer: Producer, books: Books, stop: asyncio.Event) -> None:
    """Each is awaited before the next."""
    await _send_awaited("awaited", producer, books, stop)


async def send_lingering(producer: Producer, books: Books, stop: asyncio.Event) -> None:
    """The same with a producer that puts messages of several senders into one batch."""
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
    """As many on their way as the producer allows."""
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
    """Batches, of which some messages may fail and others not."""
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
    """Consumers that notice soon what has happened to them."""
    return PushSettings(
        namesrv=namesrv, start="first", pull_suspend_ms=1_000, pull_timeout_ms=3_000,
        rebalance_ms=2_000, heartbeat_ms=2_000, poll_namesrv_ms=2_000, persist_offsets_ms=500,
        lock_ms=2_000,
    )  # fmt: skip


class Listener:
    """A consumer that notes whatever comes, also when nothing may come any more."""

    def __init__(self, group: str, settings: ClientSettings, books: Books, *, kind: str) -> None:
        self.group = group
        self.books = books
        books.arrived.setdefault(group, Marks())
        self.is_closed = False
        self._places: dict[int, int] = {}
        """Of a consumer in order: the highest offset by queue."""
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
        """What comes again may do so from any place; what is new must follow the last."""
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
        """Messages of the fullest queue that it holds."""
        queues = self.consumer.running_info().queues.values()
        return max((info.cached_count for info in queues), default=0)

    async def close(self) -> None:
        await self.consumer.close()
        self.is_closed = True


async def keep_starting(
    namesrv: str, books: Books, *, group: str = "storm-group", kind: str = "single"
) -> Listener:
    """A consumer that runs; a start may fail in this weather and is tried again."""
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
    """Ask for messages with lite pull, until told to stop."""
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
            continue  # it could not even start; once it runs, it goes on
        return
    raise AssertionError(f"lite pull could not be started {_STARTS_MAX} times")
