"""Producers and consumers under load behind a proxy that cuts, stalls, delays and garbles.

TIANZHOU_ADVERSITY_S is the duration in seconds (10 by default, 300 with `make storm`) and
TIANZHOU_ADVERSITY_SEED the random seed; a failure prints both. Then the same with flipped bits.

The client must detect what is protected: a body by its CRC, the position of a record by its
neighbours. Unprotected data (a digit in a header, a body sent to the broker, which computes the
CRC) may be accepted; it must not stop the client, nor prevent its recovery afterwards.
"""

import asyncio
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from tests.support.brokers import eventually, running_broker, running_namesrv
from tests.support.cutting_proxy import Flips, Part, Proxy, Way, trouble
from tests.support.ports import free_port
from tests.support.storm import (
    IN_FLIGHT_COUNT,
    MANY_COUNT,
    TOPIC,
    Books,
    keep_starting,
    poll_until,
    reader_settings,
    send_in_flight,
    send_lingering,
    send_many,
    send_one_by_one,
)

from tianzhou.client import Message, Producer, PushConsumer, ReceivedMessage
from tianzhou.client.sending.settings import ProducerSettings

log = logging.getLogger(__name__)

SECONDS = float(os.environ.get("TIANZHOU_ADVERSITY_S", "10"))
SEED = int(os.environ.get("TIANZHOU_ADVERSITY_SEED", "20"))
LATER_S = 120.0
"""Extra time on a busy machine."""
SENDERS_OF_A_WAY = 2
MIB = 1024 * 1024
GROWN_MIB_MAX = 64
"""Allowed growth of clients, broker and nameserver, which all run in this process."""


@asynccontextmanager
async def stormy_cluster(
    folder: Path, flips: Flips | None = None
) -> AsyncGenerator[tuple[str, Proxy]]:
    """A cluster whose broker is reached through the proxy: it listens on another loopback."""
    port = free_port()
    async with (
        running_namesrv(folder) as namesrv,
        trouble(("127.0.0.1", port), ("127.0.0.2", port), seed=SEED, flips=flips) as proxy,
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


WAYS = {
    "awaited": send_one_by_one,
    "in flight": send_in_flight,
    "many": send_many,
    "lingering": send_lingering,
}


def is_storm_complete(proxy: Proxy, books: Books) -> bool:
    """Whether every fault has occurred and the clients have made progress."""
    troubles = [proxy.fates[fate] for fate in ("cut", "stall", "delay", "garble")]
    return all(troubles) and all(books.sent_by.get(way, 0) > 2 * SECONDS for way in WAYS)


async def send_in_all_ways(namesrv: str, books: Books, stop: asyncio.Event) -> None:
    own = ProducerSettings(
        namesrv=namesrv, heartbeat_ms=2_000, in_flight_count=IN_FLIGHT_COUNT, batch_count=MANY_COUNT
    )
    async with (
        Producer("storm-senders", settings=own) as plain,
        Producer("storm-lingerers", settings=own, linger_ms=5) as lingering,
        asyncio.TaskGroup() as senders,
    ):
        for way, send in WAYS.items():
            producer = lingering if way == "lingering" else plain
            for _ in range(SENDERS_OF_A_WAY):
                senders.create_task(send(producer, books, stop))


async def run_storm(namesrv: str, proxy: Proxy, books: Books) -> None:
    """Send and consume for a while, with consumers joining and leaving, then wait for the rest."""
    dice = random.Random(SEED)
    stop, done = asyncio.Event(), asyncio.Event()
    stays = await keep_starting(namesrv, books, kind="batches")
    in_order = await keep_starting(namesrv, books, group="storm-order", kind="ordered")
    loop = asyncio.get_running_loop()
    asking = loop.create_task(poll_until(reader_settings(namesrv), books, done))
    sending = loop.create_task(send_in_all_ways(namesrv, books, stop))
    end_s = loop.time() + SECONDS
    while loop.time() < end_s or (
        loop.time() < end_s + LATER_S and not is_storm_complete(proxy, books)
    ):
        comes = await keep_starting(namesrv, books)
        await asyncio.sleep(min(1 + 2 * dice.random(), max(end_s - loop.time(), 0)))
        books.held_max = max(books.held_max, stays.held_count(), in_order.held_count())
        await comes.close()
    stop.set()
    await sending
    proxy.calm()
    await eventually(
        lambda: not books.missing(), f"all acknowledged messages (seed {SEED}, {proxy.fates})"
    )
    done.set()
    await asking
    await stays.close()
    await in_order.close()


def client_tasks(before: set[asyncio.Task[object]]) -> set[str]:
    """New tasks of clients; a broker has one for each request."""
    names = {task.get_name() for task in asyncio.all_tasks() - before}
    return {name for name in names if not name.startswith("Task-")}


def own_memory(process: psutil.Process) -> int:
    """Anonymous memory in bytes, without the mapped log of the broker."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def socket_count(process: psutil.Process) -> int:
    """Open TCP sockets of this process, listening ones included."""
    return len([each for each in process.net_connections("tcp") if each.status != "TIME_WAIT"])


@pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address is needed")
async def test_nothing_is_lost_and_nothing_is_left(tmp_path: Path) -> None:
    process = psutil.Process()
    async with stormy_cluster(tmp_path) as (namesrv, proxy):
        await asyncio.sleep(0.1)
        before: set[asyncio.Task[object]] = set(asyncio.all_tasks())
        sockets_before, memory_before = socket_count(process), own_memory(process)
        books = Books()
        await run_storm(namesrv, proxy, books)
        grown_mib = (own_memory(process) - memory_before) / MIB
        seen = (books.sent_by, books.failed_count, proxy.fates, f"{grown_mib:.0f} MiB more")
        log.warning("the storm is over: %s", seen)
        assert is_storm_complete(proxy, books), seen
        assert books.held_max <= 1000 + 32
        assert grown_mib < GROWN_MIB_MAX, seen
        await eventually(lambda: not client_tasks(before), "no task of a client")
        await eventually(lambda: not proxy.tasks, "no connection")
        await eventually(lambda: socket_count(process) <= sockets_before, "no socket left")
    assert books.called_after_close == []
    assert books.skipped == []
    assert books.missing() == {}


# -- single bits -----------------------------------------------------------------------------------

FLIPPED_COUNT = 2_000
FLIP_ODDS: dict[Part, float] = {"body": 0.2, "length": 0.04, "header": 0.2}


def line(number: int) -> str:
    return f"{number} {'x' * 200}"


async def read_all(namesrv: str, proxy: Proxy, seen: Counter[str], wanted_count: int) -> None:
    """Consume through the faulty proxy, then the rest without faults."""
    consumer = PushConsumer(
        "readers", namesrv=namesrv, start="first", pull_suspend_ms=500, pull_timeout_ms=1_500,
        pull_error_pause_ms=200, heartbeat_ms=1_000, rebalance_ms=1_000, poll_namesrv_ms=1_000,
        persist_offsets_ms=100_000, api_timeout_ms=1_000, instance_name="readers",
    )  # fmt: skip

    @consumer.handler(TOPIC)
    async def read(message: ReceivedMessage) -> None:
        seen[message.text] += 1

    async with consumer:
        await eventually(
            lambda: proxy.fates["flip"] and len(seen) >= wanted_count,
            f"{wanted_count} messages and some damage (seed {SEED})",
        )
        proxy.calm()
        async with Producer("calm", namesrv=namesrv, instance_name="calm") as producer:
            await producer.send(TOPIC, b"calm again")
        await eventually(lambda: "calm again" in seen, "a message after the damage")


@pytest.mark.skipif(sys.platform != "linux", reason="a second loopback address is needed")
@pytest.mark.parametrize(
    ("part", "way"),
    [
        ("body", "to the client"),
        ("length", "to the client"),
        ("header", "to the client"),
        ("header", "to the broker"),
        ("length", "to the broker"),
    ],
)
async def test_single_bit_errors_do_not_stop_the_client(
    part: Part, way: Way, tmp_path: Path
) -> None:
    sent = {line(number) for number in range(FLIPPED_COUNT)}
    seen: Counter[str] = Counter()
    async with stormy_cluster(tmp_path, Flips(part, way, FLIP_ODDS[part])) as (namesrv, proxy):
        proxy.is_calm = True
        async with Producer("senders", namesrv=namesrv) as producer:
            await producer.send_many(Message(TOPIC, text) for text in sent)
        before: set[asyncio.Task[object]] = set(asyncio.all_tasks())
        proxy.is_calm = False
        # A damaged header may make the consumer skip; damaged bodies and lengths must be detected.
        is_whole = part != "header"
        await read_all(namesrv, proxy, seen, FLIPPED_COUNT if is_whole else 1)
        await eventually(lambda: not client_tasks(before), "no task of a client")
    del seen["calm again"]
    assert set(seen) <= sent
    assert not is_whole or set(seen) == sent
