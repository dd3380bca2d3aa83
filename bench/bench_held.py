"""Benchmark of a broker with idle connections, topics and long polls: memory and CPU; the latency
of a message to a long poll, and of a changed ACL file.

One broker with default settings, over loopback. `python -m bench.bench_held` prints the figures.
"""

import asyncio
import json
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.broker_servers import Measured, create_topic, tianzhou
from bench.machine import rss_mib
from bench.route_load import frame

CONNECTIONS, TOPICS = 1000, 2000
PARKED, PARKED_CONNECTIONS = 10_000, 100
LATENCIES = 1000
ACCOUNT_CHANGES = 60
_PULL, _SEND_V2, _HEART_BEAT = 11, 310, 34
_HOLD_AND_SUBSCRIBE = 2 | 4


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value."""

    what: str
    unit: str
    value: float


class Line:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def put(self, request: bytes) -> None:
        self._writer.write(request)

    async def answer(self) -> bytes:
        (size,) = struct.unpack(">I", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def ask(self, request: bytes) -> bytes:
        self.put(request)
        return await self.answer()

    def close(self) -> None:
        self._writer.close()


async def dial(port: int) -> Line:
    return Line(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))


@asynccontextmanager
async def lines(port: int, count: int) -> AsyncGenerator[list[Line]]:
    opened = [await dial(port) for _ in range(count)]
    try:
        yield opened
    finally:
        for line in opened:
            line.close()


def heartbeat(number: int) -> bytes:
    body = {"clientID": f"127.0.0.1@{number}", "producerDataSet": [{"groupName": "held"}]}
    return frame(_HEART_BEAT, {}, json.dumps(body).encode())


def pull(topic: str, queue_id: int, queue_offset: int, suspend_ms: int) -> bytes:
    fields = {
        "consumerGroup": "held", "topic": topic, "queueId": str(queue_id),
        "queueOffset": str(queue_offset), "maxMsgNums": "32", "commitOffset": "0",
        "sysFlag": str(_HOLD_AND_SUBSCRIBE), "suspendTimeoutMillis": str(suspend_ms),
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return frame(_PULL, fields)


def send(topic: str, queue_id: int) -> bytes:
    fields = {
        "a": "held", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": str(time.time_ns() // 1_000_000), "h": "0", "i": "UNIQ_KEY\x010001", "j": "0",
        "k": "false", "l": "16", "m": "false",
    }  # fmt: skip
    return frame(_SEND_V2, fields, b"x" * 100)


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


async def idle_percent(pid: int, period_s: float) -> float:
    before = cpu_s(pid)
    await asyncio.sleep(period_s)
    return 100 * (cpu_s(pid) - before) / period_s


async def hold_connections(server: Measured, quick: bool) -> list[Figure]:
    before = rss_mib(server.pid)
    for number in range(TOPICS):
        await asyncio.to_thread(create_topic, server.port, f"held-{number:04}", 8)
    with_topics = rss_mib(server.pid)
    async with lines(server.port, CONNECTIONS) as held:
        for number, line in enumerate(held):
            await line.ask(heartbeat(number))
        with_both = rss_mib(server.pid)
        used = await idle_percent(server.pid, 3 if quick else 10)
    return [
        Figure(f"{TOPICS:,} topics of 8 queues, memory", "MiB", with_topics - before),
        Figure(f"{CONNECTIONS:,} connections with heartbeats, memory", "MiB",
               with_both - with_topics),
        Figure("CPU while both are held", "% of a core", used),
    ]  # fmt: skip


async def hold_pulls(server: Measured, quick: bool) -> list[Figure]:
    create_topic(server.port, "parked", 8)
    before = rss_mib(server.pid)
    async with lines(server.port, PARKED_CONNECTIONS) as held:
        for number in range(PARKED):
            held[number % len(held)].put(pull("parked", number % 8, 0, 60_000))
        await asyncio.sleep(3)
        grown = rss_mib(server.pid) - before
        used = await idle_percent(server.pid, 3 if quick else 10)
    return [
        Figure(f"{PARKED:,} waiting pulls, memory", "MiB", grown),
        Figure(f"{PARKED:,} waiting pulls, CPU", "% of a core", used),
    ]


async def deliver(server: Measured, count: int) -> list[Figure]:
    create_topic(server.port, "deliver", 1)
    sender, puller = await dial(server.port), await dial(server.port)
    times_ms: list[float] = []
    for number in range(count):
        puller.put(pull("deliver", 0, number, 15_000))
        await asyncio.sleep(0.002)
        started = time.perf_counter()
        sender.put(send("deliver", 0))
        await puller.answer()
        times_ms.append((time.perf_counter() - started) * 1000)
        await sender.answer()
    sender.close()
    puller.close()
    times_ms.sort()
    return [
        Figure("send to delivery on a waiting pull, median", "ms", statistics.median(times_ms)),
        Figure("send to delivery on a waiting pull, 99 %", "ms", times_ms[int(count * 0.99)]),
    ]


async def change_accounts(port: int, file: Path, count: int) -> list[Figure]:
    """The time from a change of plain_acl.yml until it applies to requests."""
    times_ms: list[float] = []
    line = await dial(port)
    for number in range(count):
        # Not synchronized with the broker's checks of the file.
        await asyncio.sleep(random.uniform(0.1, 0.4))
        is_open = number % 2 == 1
        started = time.perf_counter()
        _write_accounts(file, is_open=is_open)
        while _is_done(await line.ask(send("deliver", 0))) != is_open:
            pass
        times_ms.append((time.perf_counter() - started) * 1000)
    line.close()
    return [
        Figure("change of an account file until it counts, median", "ms",
               statistics.median(times_ms)),
        Figure("change of an account file until it counts, longest", "ms", max(times_ms)),
    ]  # fmt: skip


def _write_accounts(file: Path, *, is_open: bool) -> None:
    white = ["127.0.0.1"] if is_open else []
    accounts = [{"accessKey": "somebody", "secretKey": "else-entirely", "admin": True}]
    whole = file.with_suffix(".new")
    whole.write_text(json.dumps({"globalWhiteRemoteAddresses": white, "accounts": accounts}))
    whole.replace(file)


def _is_done(answer: bytes) -> bool:
    (size,) = struct.unpack_from(">I", answer)
    response = json.loads(answer[4 : 4 + (size & 0xFFFFFF)])
    return bool(response["code"] == 0)


def account_figures(*, quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-held-") as home:
        file = Path(home) / "conf" / "plain_acl.yml"
        file.parent.mkdir()
        _write_accounts(file, is_open=True)
        with tianzhou(aclEnable="true", rocketmqHome=home) as server:
            create_topic(server.port, "deliver", 1)
            count = ACCOUNT_CHANGES // 4 if quick else ACCOUNT_CHANGES
            return asyncio.run(change_accounts(server.port, file, count))


def figures(*, quick: bool) -> list[Figure]:
    with tianzhou() as server:
        idle = rss_mib(server.pid) + rss_mib(server.namesrv_pid)
        found = [
            Figure("start of nameserver and broker to the first accepted send", "s",
                   server.start_s),
            Figure("idle memory, nameserver and broker", "MiB", idle),
        ]  # fmt: skip
        # Memory freed by one part would hide the use of the next, so small parts run first.
        found += asyncio.run(hold_connections(server, quick))
        found += asyncio.run(hold_pulls(server, quick))
        found += asyncio.run(deliver(server, LATENCIES // 10 if quick else LATENCIES))
    return found + account_figures(quick=quick)


def main() -> None:
    for figure in figures(quick="--quick" in sys.argv):
        print(f"{figure.what:<62} {figure.value:>10.2f} {figure.unit}")


if __name__ == "__main__":
    main()
