"""Delayed, timed, transactional and popped messages during switches, and what must become of them.

    async with Kinds(namesrv).running() as kinds:
        ...switches...
        await kinds.complete()      # sends no more, and waits until everything has arrived

Each message that was acknowledged has to be delivered at least once; one whose transaction was
rolled back, never. Delayed ones must not be early.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.support.brokers import eventually
from tianzhou.client import (
    Message,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from tianzhou.errors import TianzhouError

DELAYED, TIMED, TRANSACTIONAL, POPPED = "delayed", "timed", "transactional", "popped"
DELAY_LEVEL, DELAY_S = 2, 5.0
TIMED_S = 4.0
INVISIBLE_S = 10.0
PATIENCE_S = 120.0
SENT_MAX = 100_000
_PAUSE_S = 0.005
_EARLY_S = 1.1
"""The time of a timer has whole seconds."""


class Kinds:
    """Producers and consumers in this process."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self.acknowledged: dict[str, dict[bytes, float]] = {
            topic: {} for topic in (DELAYED, TIMED, TRANSACTIONAL, POPPED)
        }
        """By topic: bodies and when they were sent."""
        self.rolled_back: set[bytes] = set()
        self.received: dict[str, dict[bytes, float]] = {topic: {} for topic in self.acknowledged}
        self._is_over = False
        self._senders = list[asyncio.Task[None]]()

    # -- the listener of transactions --------------------------------------------------------------

    async def execute(self, message: Message, transaction_id: str) -> TransactionState:
        """See `TransactionListener`."""
        assert isinstance(message.body, bytes)
        return self._outcome(message.body)

    async def check(self, message: ReceivedMessage) -> TransactionState:
        """See `TransactionListener`."""
        return self._outcome(message.body)

    def _outcome(self, body: bytes) -> TransactionState:
        if int(body) % 3:
            return TransactionState.COMMIT
        self.rolled_back.add(body)
        return TransactionState.ROLLBACK

    # -- running -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Kinds"]:
        """Send and receive until the end of the block."""
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(
                TransactionProducer("p-kinds", self, namesrv=self._namesrv)
            )
            push = PushConsumer(
                "c-kinds", namesrv=self._namesrv, start="first", pull_error_pause_ms=500
            )
            for topic in (DELAYED, TIMED, TRANSACTIONAL):
                push.subscribe(topic, self._on_message)
            sends = (
                (DELAYED, self._send(producer, DELAYED, delay_level=DELAY_LEVEL)),
                (TIMED, self._send(producer, TIMED, delay=TIMED_S)),
                (POPPED, self._send(producer, POPPED)),
                (TRANSACTIONAL, self._transact(producer)),
            )
            self._senders = [
                asyncio.create_task(self._repeat(topic, send)) for topic, send in sends
            ]
            stack.push_async_callback(self._end)
            await self._each_has(1)
            await stack.enter_async_context(push)
            simple = await stack.enter_async_context(
                SimpleConsumer(
                    "s-kinds",
                    namesrv=self._namesrv,
                    start="first",
                    invisible_ms=int(INVISIBLE_S * 1000),
                )
            )
            await simple.subscribe(POPPED)
            popping = asyncio.create_task(self._pop(simple))
            stack.push_async_callback(_cancelled, popping)
            yield self

    async def reach(self, count: int) -> None:
        """Wait until so many of each kind are acknowledged."""
        await self._each_has(count)

    async def complete(self) -> None:
        """Send no more; everything that was acknowledged has to arrive."""
        await self._end()
        wanted = {
            topic: bodies.keys() - self.rolled_back for topic, bodies in self.acknowledged.items()
        }

        def missing() -> dict[str, int]:
            return {
                topic: len(bodies - self.received[topic].keys()) for topic, bodies in wanted.items()
            }

        try:
            await eventually(lambda: not any(missing().values()), "all kinds", PATIENCE_S)
        except AssertionError as e:
            examples = {
                topic: sorted(bodies - self.received[topic].keys())[:5]
                for topic, bodies in wanted.items()
            }
            raise AssertionError(f"{e}: missing {missing()}, for example {examples}") from e
        wrong = self.received[TRANSACTIONAL].keys() & self.rolled_back
        assert not wrong, f"{len(wrong)} messages of rolled back transactions were delivered"
        self._assert_not_early(DELAYED, DELAY_S)
        self._assert_not_early(TIMED, TIMED_S)

    def _assert_not_early(self, topic: str, delay_s: float) -> None:
        early = {
            body: self.received[topic][body] - sent_s
            for body, sent_s in self.acknowledged[topic].items()
            if self.received[topic][body] - sent_s < delay_s - _EARLY_S
        }
        assert not early, f"{topic}: early: {list(early.items())[:5]}"

    async def _each_has(self, count: int) -> None:
        def least() -> bool:
            return min(map(len, self.acknowledged.values())) >= count

        await eventually(least, f"{count} of each kind", PATIENCE_S)

    async def _end(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._senders)

    # -- sending -----------------------------------------------------------------------------------

    async def _repeat(self, topic: str, send: Callable[[bytes], Awaitable[bool]]) -> None:
        for number in range(SENT_MAX):
            if self._is_over:
                return
            body, sent_s = b"%d" % number, time.monotonic()
            try:
                is_acknowledged = await send(body)
            except TianzhouError:
                is_acknowledged = False
            if is_acknowledged:
                self.acknowledged[topic][body] = sent_s
            await asyncio.sleep(_PAUSE_S)

    def _send(
        self,
        producer: TransactionProducer,
        topic: str,
        **options: Any,  # noqa: ANN401 - of Message
    ) -> Callable[[bytes], Awaitable[bool]]:
        async def send(body: bytes) -> bool:
            result = await producer.send(Message(topic, body, **options))
            return result.status is SendStatus.SEND_OK

        return send

    def _transact(self, producer: TransactionProducer) -> Callable[[bytes], Awaitable[bool]]:
        async def send(body: bytes) -> bool:
            result = await producer.send_in_transaction(Message(TRANSACTIONAL, body))
            return result.sent.status is SendStatus.SEND_OK

        return send

    # -- receiving ---------------------------------------------------------------------------------

    async def _on_message(self, message: ReceivedMessage) -> None:
        self.received[message.topic].setdefault(message.body, time.monotonic())

    async def _pop(self, consumer: SimpleConsumer) -> None:
        while True:
            try:
                for message in await consumer.receive(wait=1.0):
                    self.received[POPPED].setdefault(message.body, time.monotonic())
                    await consumer.ack(message)
            except TianzhouError:
                await asyncio.sleep(0.1)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
