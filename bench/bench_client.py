"""The client: messages per second and CPU per message, as one process sends them.

    python -m bench.bench_client [--apache] [--seconds 5] [--profile WORK]

Works, all with bodies of 1 KiB unless said: `loop` awaits each send before the next; `in flight`
keeps many on their way by `submit`; `send_many` sends lists of 100; `linger` lets the producer make
batches of what `submit` gives it (bodies of 1 KiB, and of 100 bytes). Then messages are consumed,
see `bench/consuming.py`. CPU is this process's own.
"""

import argparse
import asyncio
import cProfile
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

import psutil
from tests.apache.jvm import run_java

from bench import broker_servers, consuming
from bench.broker_servers import Measured
from tianzhou.client import HeaderEncoding, Message, Producer
from tianzhou.client.producer_settings import ProducerSettings
from tianzhou.remoting import loop

_KIB = b"x" * 1024
_SMALL = b"x" * 100
_IN_FLIGHT = 512
_MANY = 100
_CONSUMED = 200_000


@dataclass(frozen=True, slots=True)
class Figure:
    """What one work came to."""

    server: str
    work: str
    messages_per_s: int
    cpu_us: float
    """CPU of the client per message."""
    cores: float
    """CPU of the client per second."""


Work = Callable[[Producer, str, float], Awaitable[int]]
"""Sends until a moment of the monotonic clock; returns how many messages."""


async def in_a_loop(producer: Producer, topic: str, until_s: float) -> int:
    count = 0
    while time.monotonic() < until_s:
        await producer.send(Message(topic, _KIB))
        count += 1
    return count


async def in_flight(producer: Producer, topic: str, until_s: float) -> int:
    return await _submitted(producer, topic, until_s, _KIB)


async def in_flight_small(producer: Producer, topic: str, until_s: float) -> int:
    return await _submitted(producer, topic, until_s, _SMALL)


async def _submitted(producer: Producer, topic: str, until_s: float, body: bytes) -> int:
    count = 0
    futures: list[Awaitable[object]] = []
    while time.monotonic() < until_s:
        futures = [await producer.submit(Message(topic, body)) for _ in range(_IN_FLIGHT)]
        count += len(futures)
    await asyncio.gather(*futures)
    return count


async def many(producer: Producer, topic: str, until_s: float) -> int:
    return await _many(producer, topic, until_s, _KIB)


async def many_small(producer: Producer, topic: str, until_s: float) -> int:
    return await _many(producer, topic, until_s, _SMALL)


async def _many(producer: Producer, topic: str, until_s: float, body: bytes) -> int:
    async def sender() -> int:
        count = 0
        while time.monotonic() < until_s:
            await producer.send_many([Message(topic, body) for _ in range(_MANY)])
            count += _MANY
        return count

    return sum(await asyncio.gather(*(sender() for _ in range(4))))


WORKS: dict[str, tuple[Work, ProducerSettings]] = {
    "loop": (in_a_loop, ProducerSettings()),
    "in flight": (in_flight, ProducerSettings(in_flight_count=_IN_FLIGHT)),
    "in flight, binary headers": (
        in_flight,
        ProducerSettings(in_flight_count=_IN_FLIGHT, header_encoding=HeaderEncoding.ROCKETMQ),
    ),
    "send_many": (many, ProducerSettings()),
    "send_many, 100 B": (many_small, ProducerSettings()),
    "linger": (in_flight, ProducerSettings(in_flight_count=4096, linger_ms=2, batch_count=100)),
    "linger, 100 B": (
        in_flight_small,
        ProducerSettings(in_flight_count=4096, linger_ms=2, batch_count=100),
    ),
}


async def measure_one(namesrv: str, server: str, work: str, seconds: float) -> Figure:
    send, settings = WORKS[work]
    async with Producer("bench_client", settings=settings, namesrv=namesrv) as producer:
        topic = "BenchClient"
        await producer.send(topic, b"warm")
        await send(producer, topic, time.monotonic() + seconds / 10)
        cpu_s, began_s = time.process_time(), time.monotonic()
        count = await send(producer, topic, began_s + seconds)
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - began_s
    return Figure(server, work, int(count / wall_s), cpu_s / count * 1e6, cpu_s / wall_s)


async def measure_consume(namesrv: str, server: str, work: str, count: int) -> Figure:
    wall_s, cpu_s = await consuming.CONSUMES[work](namesrv, count)
    return Figure(server, work, int(count / wall_s), cpu_s / count * 1e6, cpu_s / wall_s)


def namesrv_of(server: Measured) -> str:
    """The address that the server's nameserver listens on."""
    listening = psutil.Process(server.namesrv_pid).net_connections(kind="inet")
    ports = [each.laddr.port for each in listening if each.status == psutil.CONN_LISTEN]
    return f"127.0.0.1:{ports[0]}"


def measure_java(namesrv: str, server: str, seconds: float) -> list[Figure]:
    """The stock client of Java at the same works; start-up and compiling are not counted."""
    done = run_java(
        broker_servers.APACHE_VERSION, "ClientBench", namesrv, str(seconds), str(_CONSUMED),
        jvm_options=("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xmx2g"),
        timeout_s=60 + 8 * seconds,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the Java client failed: {done.stderr[-1000:]}")
    figures: list[Figure] = []
    for line in done.stdout.splitlines():
        name, count, wall, cpu = line.split("\t")
        wall_s, cpu_s = float(wall), float(cpu)
        figures.append(
            Figure(
                server, f"Java client: {name}", int(int(count) / wall_s),
                cpu_s / int(count) * 1e6, cpu_s / wall_s,
            )
        )  # fmt: skip
    return figures


def measure(*, seconds: float, apache: bool = False) -> list[Figure]:
    """All works against our broker, and Apache's if asked for."""
    figures: list[Figure] = []
    for start in [broker_servers.tianzhou, *([broker_servers.apache] if apache else [])]:
        with start() as server:
            namesrv = namesrv_of(server)
            for work in WORKS:
                figures.append(loop.run(measure_one(namesrv, server.name, work, seconds)))
                print(figures[-1], file=sys.stderr)
            loop.run(consuming.fill(namesrv, _CONSUMED))
            for work in consuming.CONSUMES:
                figures.append(loop.run(measure_consume(namesrv, server.name, work, _CONSUMED)))
                print(figures[-1], file=sys.stderr)
            figures += measure_java(namesrv, server.name, seconds)
    return figures


def profile(work: str, seconds: float) -> None:
    """Where the time of one work goes."""
    with broker_servers.tianzhou() as server:
        namesrv = namesrv_of(server)
        with cProfile.Profile() as profiler:
            loop.run(measure_one(namesrv, server.name, work, seconds))
    profiler.print_stats("tottime")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apache", action="store_true", help="measure against Apache's, too")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--profile", choices=WORKS, help="show where the time of one work goes")
    arguments = parser.parse_args()
    if arguments.profile:
        profile(arguments.profile, arguments.seconds)
    else:
        figures = measure(seconds=arguments.seconds, apache=arguments.apache)
        print(json.dumps([asdict(figure) for figure in figures], indent=1))


if __name__ == "__main__":
    main()
