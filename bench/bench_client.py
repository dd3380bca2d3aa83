"""Benchmark of the client: messages per second and CPU per message of one process.

    python -m bench.bench_client [--apache] [--seconds 5] [--rounds 3] [--profile WORK]

Workloads, with bodies of 1 KiB by default: `loop` awaits each send before the next; `in flight`
sends with `submit`; `send_many` sends lists of 100; `linger` batches the messages of `submit`
(bodies of 1 KiB and of 100 bytes). Consuming: see `bench/consuming.py`. CPU is that of this
process.

Of several rounds the one with the least CPU per message is reported: other load on the machine can
only increase the cost. The Java client runs the same workloads.
"""

import argparse
import asyncio
import cProfile
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, replace

import psutil
from tests.support.apache.jvm import run_java

from bench import broker_servers, consuming
from bench.broker_servers import Measured
from tianzhou.client import HeaderEncoding, Message, Producer
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.remoting import event_loop

OURS, JAVA = "ours", "Java's"
_KIB = b"x" * 1024
_SMALL = b"x" * 100
_IN_FLIGHT = 512
_MANY = 100
_CONSUMED = 200_000


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of one workload."""

    server: str
    work: str
    messages_per_s: int
    cpu_us: float
    """CPU of the client per message."""
    cores: float
    """CPU of the client per second."""
    client: str = OURS
    p50_us: float | None = None
    """Latency of sends that were awaited one by one."""
    p99_us: float | None = None


Work = Callable[[Producer, str, float], Awaitable[int]]
"""Sends until a time of the monotonic clock; returns the number of messages."""

_latencies_s: list[float] = []
"""Of the sends of `in_a_loop` since the list was emptied."""


async def in_a_loop(producer: Producer, topic: str, until_s: float) -> int:
    count = 0
    began_s = time.monotonic()
    while began_s < until_s:
        await producer.send(Message(topic, _KIB))
        ended_s = time.monotonic()
        _latencies_s.append(ended_s - began_s)
        count, began_s = count + 1, ended_s
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
        _latencies_s.clear()
        cpu_s, began_s = time.process_time(), time.monotonic()
        count = await send(producer, topic, began_s + seconds)
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - began_s
    figure = Figure(server, work, int(count / wall_s), cpu_s / count * 1e6, cpu_s / wall_s)
    if not _latencies_s:
        return figure
    ordered = sorted(_latencies_s)
    p50_us, p99_us = (ordered[len(ordered) * per // 100] * 1e6 for per in (50, 99))
    return replace(figure, p50_us=p50_us, p99_us=p99_us)


async def measure_consume(namesrv: str, server: str, work: str, count: int) -> Figure:
    wall_s, cpu_s = await consuming.CONSUMES[work](namesrv, count)
    return Figure(server, work, int(count / wall_s), cpu_s / count * 1e6, cpu_s / wall_s)


def best(figures: Iterable[Figure]) -> Figure:
    """The round with the least CPU per message."""
    return min(figures, key=lambda figure: figure.cpu_us)


def namesrv_of(server: Measured) -> str:
    """The address that the server's nameserver listens on."""
    listening = psutil.Process(server.namesrv_pid).net_connections(kind="inet")
    ports = [each.laddr.port for each in listening if each.status == psutil.CONN_LISTEN]
    return f"127.0.0.1:{ports[0]}"


def measure_java(namesrv: str, server: str, seconds: float, rounds: int) -> list[Figure]:
    """The Java client with the same workloads, without start-up and JIT compilation."""
    done = run_java(
        broker_servers.APACHE_VERSION, "ClientBench", namesrv, str(seconds), str(_CONSUMED),
        str(rounds),
        jvm_options=("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xmx2g"),
        timeout_s=120 + 8 * seconds * (rounds + 1),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the Java client failed: {done.stderr[-1000:]}")
    by_work: dict[str, list[Figure]] = {}
    for line in done.stdout.splitlines():
        figure = java_figure(server, line)
        by_work.setdefault(figure.work, []).append(figure)
    return [best(figures) for figures in by_work.values()]


def java_figure(server: str, line: str) -> Figure:
    """A line of ClientBench: workload, messages, wall time, CPU, and two latencies or none."""
    work, count, wall, cpu, *latencies = line.split("\t")
    wall_s, cpu_s = float(wall), float(cpu)
    p50_us, p99_us = map(float, latencies) if latencies else (None, None)
    return Figure(
        server, work, int(int(count) / wall_s), cpu_s / int(count) * 1e6, cpu_s / wall_s,
        JAVA, p50_us, p99_us,
    )  # fmt: skip


def measure(*, seconds: float, rounds: int = 3, apache: bool = False) -> list[Figure]:
    """All workloads of both clients against Tianzhou's broker, and optionally Apache's."""
    figures: list[Figure] = []
    for start in [broker_servers.tianzhou, *([broker_servers.apache] if apache else [])]:
        with start() as server:
            namesrv, name = namesrv_of(server), server.name
            # Creates the topic. Until its own route is known, for a second, every send of the
            # producer that created it runs in a task, at twice the CPU of later ones.
            event_loop.run(measure_one(namesrv, name, "loop", 0.5))
            for work in WORKS:
                each = (
                    event_loop.run(measure_one(namesrv, name, work, seconds)) for _ in range(rounds)
                )
                figures.append(best(each))
                print(figures[-1], file=sys.stderr)
            event_loop.run(consuming.fill(namesrv, _CONSUMED))
            for work in consuming.CONSUMES:
                each = (
                    event_loop.run(measure_consume(namesrv, name, work, _CONSUMED))
                    for _ in range(rounds)
                )
                figures.append(best(each))
                print(figures[-1], file=sys.stderr)
            figures += measure_java(namesrv, name, seconds, rounds)
    return figures


# -- tables ----------------------------------------------------------------------------------------

HEADS = (
    "broker", "work", "messages/s", "Java's", "ratio", "CPU us per message", "Java's", "ratio",
)  # fmt: skip
LATENCY_HEADS = ("broker", "client", "p50, us", "p99, us")


def rows(figures: Iterable[Figure]) -> list[list[str]]:
    """Both clients side by side; ratios above 1 are in our favour."""
    table: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in figures:
        table.setdefault((figure.server, figure.work), {})[figure.client] = figure
    return [_row(server, work, clients) for (server, work), clients in table.items()]


def _row(server: str, work: str, clients: dict[str, Figure]) -> list[str]:
    ours, java = clients.get(OURS), clients.get(JAVA)
    cells = [_cells(each) for each in (ours, java)]
    rate_ratio = cpu_ratio = ""
    if ours and java:
        rate_ratio = f"{ours.messages_per_s / java.messages_per_s:.2f}"
        cpu_ratio = f"{java.cpu_us / ours.cpu_us:.2f}"
    (rate, cpu), (java_rate, java_cpu) = cells
    return [server, work, rate, java_rate, rate_ratio, cpu, java_cpu, cpu_ratio]


def _cells(figure: Figure | None) -> tuple[str, str]:
    return (f"{figure.messages_per_s:,}", f"{figure.cpu_us:,.1f}") if figure else ("", "")


def latency_rows(figures: Iterable[Figure]) -> list[list[str]]:
    """Latency of sends, one at a time."""
    return [
        [figure.server, figure.client, f"{figure.p50_us:,.0f}", f"{figure.p99_us:,.0f}"]
        for figure in figures
        if figure.p50_us is not None and figure.p99_us is not None
    ]


def profile(work: str, seconds: float) -> None:
    """Profile one workload."""
    with broker_servers.tianzhou() as server:
        namesrv = namesrv_of(server)
        with cProfile.Profile() as profiler:
            event_loop.run(measure_one(namesrv, server.name, work, seconds))
    profiler.print_stats("tottime")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apache", action="store_true", help="measure against Apache's, too")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", choices=WORKS, help="show where the time of one work goes")
    arguments = parser.parse_args()
    if arguments.profile:
        profile(arguments.profile, arguments.seconds)
    else:
        figures = measure(
            seconds=arguments.seconds, rounds=arguments.rounds, apache=arguments.apache
        )
        print(json.dumps([asdict(figure) for figure in figures], indent=1))


if __name__ == "__main__":
    main()
