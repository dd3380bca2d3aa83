"""A producer, or an ordered consumer, in a process of its own: the load of tests of failover.

    python -m tests.support.failover_load send NAMESRV TOPIC NAME FILE
    python -m tests.support.failover_load receive NAMESRV TOPIC GROUP FILE
    python -m tests.support.failover_load burst BROKER TOPIC NAME FILE

The producer has several lanes. Each sends numbered batches to one queue, repeats a batch until it
is acknowledged with SEND_OK, and only then sends the next one. The file gets a line for each
acknowledged batch: "LANE SEQUENCE COUNT QUEUE OFFSET TIME", and one for each message received:
"QUEUE OFFSET TIME". Both end when standard input is closed, or after LIMIT_S.
A burst connects to a broker, and sends when standard input is closed, without waiting for answers.
"""

import asyncio
import sys
import time
from contextlib import suppress
from typing import TextIO

from tests.support.brokers import peer_of
from tianzhou.client import Message, Producer, PushConsumer, Queue, ReceivedMessage, SendStatus
from tianzhou.errors import TianzhouError

LANES = 8
QUEUES = 4
BATCH = 20
LIMIT_S = 420.0
TRIES_MAX = 2_000_000
BURST_COUNT, BURST_S = 200, 1.0
_PAUSE_S = 0.01
_FILLING = "x" * 60


def body_of(name: str, lane: int, sequence: int) -> bytes:
    """The body of a message; the name, the lane and the number can be read from it."""
    return f"{name} {lane} {sequence} {_FILLING}".encode()


async def _send(namesrv: str, topic: str, name: str, out: TextIO) -> None:
    async with Producer(
        f"p-{name}", namesrv=namesrv, template_queue_count=QUEUES, retry_when_not_stored=False
    ) as producer:
        await asyncio.gather(*(_lane(producer, topic, name, lane, out) for lane in range(LANES)))


async def _lane(producer: Producer, topic: str, name: str, lane: int, out: TextIO) -> None:
    queue = Queue(topic, "broker-a", lane % QUEUES)
    sequence = 0
    for _ in range(TRIES_MAX):
        messages = [
            Message(topic, body_of(name, lane, sequence + number), keys=f"{name}-{lane}")
            for number in range(BATCH)
        ]
        try:
            results = await producer.send_many(messages, queue=queue)
        except TianzhouError:
            await asyncio.sleep(_PAUSE_S)
            continue
        if {each.status for each in results} != {SendStatus.SEND_OK}:
            await asyncio.sleep(_PAUSE_S)
            continue
        first = results[0]
        offsets = [each.queue_offset for each in results]
        assert offsets == list(range(offsets[0], offsets[0] + BATCH)), offsets
        out.write(
            f"{lane} {sequence} {BATCH} {first.queue.queue_id} {offsets[0]} {time.monotonic()}\n"
        )
        sequence += BATCH


async def _receive(namesrv: str, topic: str, group: str, out: TextIO) -> None:
    consumer = PushConsumer(
        group, namesrv=namesrv, start="first", ordered=True, lock_ms=1000, persist_offsets_ms=500,
        pull_error_pause_ms=500,
    )  # fmt: skip

    @consumer.batch_handler(topic, size=32)
    async def work(messages: list[ReceivedMessage]) -> None:
        for each in messages:
            out.write(f"{each.queue_id} {each.queue_offset} {time.monotonic()}\n")

    async with consumer:
        await asyncio.sleep(LIMIT_S)


async def _burst(broker: str, topic: str, name: str) -> None:
    async with peer_of(broker) as peer:
        await _input_ended(LIMIT_S)
        sends = [
            asyncio.create_task(peer.send(topic, body_of(name, 0, number)))
            for number in range(BURST_COUNT)
        ]
        await asyncio.wait(sends, timeout=BURST_S)
        for each in sends:
            each.cancel()
        await asyncio.gather(*sends, return_exceptions=True)


async def _input_ended(limit_s: float) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await ended.wait()


async def _until_input_ends(work: asyncio.Task[None]) -> None:
    waiting = asyncio.create_task(_input_ended(LIMIT_S))
    await asyncio.wait((waiting, work), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if work.done():
        work.result()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def main(kind: str, namesrv: str, topic: str, name: str, path: str) -> None:
    """Run until the input ends."""
    if kind == "burst":
        await _burst(namesrv, topic, name)
        return
    work = {"send": _send, "receive": _receive}[kind]
    with open(path, "a", buffering=1) as out:  # noqa: ASYNC230, PTH123 - a line at a time
        await _until_input_ends(asyncio.create_task(work(namesrv, topic, name, out)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
