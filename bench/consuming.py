"""Consumer workloads: one process consumes messages of 1 KiB from eight queues.

`batches` has an async handler for lists of 32, `single` an async handler for single messages,
`threads` a blocking function for lists of 32, `lite pull` polls. Time is measured from the first
message to the last; CPU is that of this process.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

from tianzhou.client import (
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    QueueReader,
    ReceivedMessage,
)

_KIB = b"x" * 1024
_TOPIC = "BenchConsume"
_PATIENCE_S = 120.0

Consume = Callable[[str, int], Awaitable[tuple[float, float]]]
"""Consumes a number of messages; returns wall and CPU seconds."""


async def fill(namesrv: str, message_count: int) -> None:
    """Check that enough messages are stored."""
    async with Producer("bench_fill", namesrv=namesrv) as producer:
        await producer.send(_TOPIC, b"warm")
        for start in range(0, message_count, 1000):
            size = min(1000, message_count - start)
            await producer.send_many([Message(_TOPIC, _KIB) for _ in range(size)])
    async with QueueReader("bench_fill", namesrv=namesrv) as reader:
        queues = await reader.queues(_TOPIC)
        stored_count = sum([await reader.max_offset(queue) for queue in queues])
    assert stored_count > message_count, stored_count


class _Meter:
    """Counts messages and measures times."""

    def __init__(self, message_count: int) -> None:
        self.left_count = message_count
        self.done = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.wall_s = self.cpu_s = 0.0

    def take(self, count: int) -> None:
        if not self.wall_s:
            self.wall_s, self.cpu_s = -time.monotonic(), -time.process_time()
        self.left_count -= count
        if self.left_count <= 0 and not self.done.is_set():
            self.wall_s += time.monotonic()
            self.cpu_s += time.process_time()
            self.done.set()


async def _push(
    namesrv: str, message_count: int, subscribe: Callable[[PushConsumer, _Meter], None]
) -> tuple[float, float]:
    meter = _Meter(message_count)
    consumer = PushConsumer(f"bench_{uuid4().hex}", namesrv=namesrv, start="first")
    subscribe(consumer, meter)
    async with consumer, asyncio.timeout(_PATIENCE_S):
        await meter.done.wait()
    return meter.wall_s, meter.cpu_s


async def in_batches(namesrv: str, message_count: int) -> tuple[float, float]:
    def subscribe(consumer: PushConsumer, meter: _Meter) -> None:
        @consumer.batch_handler(_TOPIC, size=32)
        async def count(messages: list[ReceivedMessage]) -> None:
            meter.take(len(messages))

    return await _push(namesrv, message_count, subscribe)


async def one_by_one(namesrv: str, message_count: int) -> tuple[float, float]:
    def subscribe(consumer: PushConsumer, meter: _Meter) -> None:
        @consumer.handler(_TOPIC)
        async def count(_: ReceivedMessage) -> None:
            meter.take(1)

    return await _push(namesrv, message_count, subscribe)


async def in_threads(namesrv: str, message_count: int) -> tuple[float, float]:
    def subscribe(consumer: PushConsumer, meter: _Meter) -> None:
        def count(messages: list[ReceivedMessage]) -> None:
            meter.loop.call_soon_threadsafe(meter.take, len(messages))

        consumer.subscribe_batches(_TOPIC, count, size=32)

    return await _push(namesrv, message_count, subscribe)


async def by_polling(namesrv: str, message_count: int) -> tuple[float, float]:
    meter = _Meter(message_count)
    async with (
        LitePullConsumer(f"bench_{uuid4().hex}", namesrv=namesrv, start="first") as consumer,
        asyncio.timeout(_PATIENCE_S),
    ):
        await consumer.subscribe(_TOPIC)
        while not meter.done.is_set():
            meter.take(len(await consumer.poll()))
    return meter.wall_s, meter.cpu_s


CONSUMES: dict[str, Consume] = {
    "consume, batches": in_batches,
    "consume, single": one_by_one,
    "consume, threads": in_threads,
    "consume, lite pull": by_polling,
}
