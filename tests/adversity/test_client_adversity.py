"""Producers and consumers under load behind a proxy that cuts, stalls, delays and garbles.

TIANZHOU_ADVERSITY_S says for how many seconds (10 by default), TIANZHOU_ADVERSITY_SEED with which
dice; a failure names them.
"""

import asyncio
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from tests.adversity.proxy import Proxy, trouble
from tests.apache.processes import free_port
from tests.integration.brokers import eventually, running_broker, running_namesrv

from tianzhou.client import Producer, PushConsumer, ReceivedMessage
from tianzhou.errors import TianzhouError

SECONDS = float(os.environ.get("TIANZHOU_ADVERSITY_S", "10"))
SEED = int(os.environ.get("TIANZHOU_ADVERSITY_SEED", "20"))
SENDERS = 8
MIB = 1024 * 1024
TOPIC = "storm"


@asynccontextmanager
async def stormy_cluster(folder: Path) -> AsyncGenerator[tuple[str, Proxy]]:
    """A cluster whose broker is reached through the proxy: it listens on another loopback."""
    port = free_port()
    async with (
        running_namesrv(folder) as namesrv,
        trouble(("127.0.0.1", port), ("127.0.0.2", port), seed=SEED) as proxy,
        running_broker(
            folder / "store",
            namesrvAddr=namesrv,
            listenPort=port,
            bindAddress="127.0.0.2",
            mappedFileSizeCommitLog=64 * MIB,
        ) as broker,
    ):
        await eventually(lambda: broker.registered_with, "registration")
        yield namesrv, proxy


@dataclass(slots=True)
class Books:
    """What was acknowledged, and what arrived."""

    acknowledged: set[str] = field(default_factory=set[str])
    arrived: Counter[str] = field(default_factory=Counter[str])
    called_after_close: list[str] = field(default_factory=list[str])
    held_max: int = 0
    failed_sends: int = 0


async def send_until(producer: Producer, books: Books, name: int, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        body = f"{name}-{number}"
        try:
            await producer.send(TOPIC, body.encode() + b" " * 200)
        except TianzhouError:
            books.failed_sends += 1
        else:
            books.acknowledged.add(body)


class Listener:
    """A consumer that notes whatever comes, also when nothing may come any more."""

    def __init__(self, namesrv: str, books: Books, *, sync: bool) -> None:
        self.books = books
        self.is_closed = False
        self.consumer = PushConsumer(
            "storm-group",
            namesrv=namesrv,
            start="first",
            pull_suspend_ms=1_000,
            pull_timeout_ms=3_000,
            rebalance_ms=2_000,
            heartbeat_ms=2_000,
            poll_namesrv_ms=2_000,
            persist_offsets_ms=500,
        )
        if sync:
            self.consumer.subscribe_batches(TOPIC, self.take_many, size=16)
        else:
            self.consumer.subscribe(TOPIC, self.take)

    async def take(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        self.note(message)

    def take_many(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self.note(message)

    def note(self, message: ReceivedMessage) -> None:
        if self.is_closed:
            self.books.called_after_close.append(message.text)
        self.books.arrived[message.text.strip()] += 1

    async def start(self) -> None:
        await self.consumer.start()

    async def close(self) -> None:
        await self.consumer.close()
        self.is_closed = True


async def keep_starting(namesrv: str, books: Books, *, sync: bool) -> Listener:
    """A consumer that runs; a start may fail in this weather and is tried again."""
    for _ in range(20):
        listener = Listener(namesrv, books, sync=sync)
        try:
            await listener.start()
        except TianzhouError:
            await listener.close()
            continue
        return listener
    raise AssertionError("no consumer could be started 20 times")


async def storm(namesrv: str, proxy: Proxy, books: Books) -> None:
    """Send and consume for a while, with consumers coming and going, then wait for the rest."""
    dice = random.Random(SEED)
    stop = asyncio.Event()
    stays = await keep_starting(namesrv, books, sync=True)
    async with Producer("storm-senders", namesrv=namesrv, heartbeat_ms=2_000) as producer:
        senders = [
            asyncio.create_task(send_until(producer, books, name, stop)) for name in range(SENDERS)
        ]
        loop = asyncio.get_running_loop()
        end_s = loop.time() + SECONDS
        while loop.time() < end_s:
            comes = await keep_starting(namesrv, books, sync=False)
            await asyncio.sleep(min(1 + 2 * dice.random(), max(end_s - loop.time(), 0)))
            books.held_max = max(
                books.held_max,
                *(info.cached_count for info in stays.consumer.running_info().queues.values()),
                0,
            )
            await comes.close()
        stop.set()
        await asyncio.gather(*senders)
    proxy.calm()
    await eventually(
        lambda: not books.acknowledged - set(books.arrived),
        f"all {len(books.acknowledged)} acknowledged messages (seed {SEED}, {proxy.fates})",
    )
    await stays.close()


def client_tasks(before: set[asyncio.Task[object]]) -> set[str]:
    """Tasks of clients that were not there before; a broker has its own for each request."""
    names = {task.get_name() for task in asyncio.all_tasks() - before}
    return {name for name in names if not name.startswith("Task-")}


def socket_count(process: psutil.Process) -> int:
    """Open TCP sockets of this process, listening ones included."""
    return len([each for each in process.net_connections("tcp") if each.status != "TIME_WAIT"])


@pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address is needed")
async def test_nothing_is_lost_and_nothing_is_left(tmp_path: Path) -> None:
    process = psutil.Process()
    async with stormy_cluster(tmp_path) as (namesrv, proxy):
        await asyncio.sleep(0.1)
        before: set[asyncio.Task[object]] = set(asyncio.all_tasks())
        sockets_before, memory_before = socket_count(process), process.memory_info().rss
        books = Books()
        await storm(namesrv, proxy, books)
        assert len(books.acknowledged) > 20 * SECONDS, books.failed_sends
        assert all(proxy.fates[fate] for fate in ("cut", "stall", "delay", "garble")), proxy.fates
        assert books.held_max <= 1000 + 32
        assert process.memory_info().rss - memory_before < 256 * MIB
        await eventually(lambda: not client_tasks(before), "no task of a client")
        await eventually(lambda: not proxy.tasks, "no connection")
        await eventually(lambda: socket_count(process) <= sockets_before, "no socket left")
        counts = Counter(books.arrived)
    assert books.called_after_close == []
    assert not books.acknowledged - set(counts)
