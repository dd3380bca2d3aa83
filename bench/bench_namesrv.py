"""Benchmark of the nameserver against Apache's: route queries, CPU per query, memory, start-up.

Both servers run at the same time on this machine; rounds of load with the same frames alternate
between them. CPU is that of the server process. `--json` prints one line per figure.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.apache.servers import apache_namesrv, free_port

from bench import route_load
from bench.machine import Meter, median_and_spread, rss_mib

APACHE_VERSION = "5.5.0"
BROKERS = 100
TOPICS_PER_BROKER = 1000
CONNECTIONS, WINDOW = 8, 16
DISTURBED_ABOVE_CORES = 0.3
"""Rounds in which the rest of the machine used more than this are repeated, up to a limit."""

# JVMs of tests are tuned for short runs; a measured one gets the default compiler and collector.
APACHE_JVM = ("-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xms512m", "-Xmx4g")

SHAPES = {
    "wide": "1,000 topics, each on all 100 brokers",
    "narrow": "100,000 topics, each on one of 100 brokers",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A nameserver under test."""

    name: str
    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value with its spread."""

    server: str
    shape: str
    what: str
    median: float
    low: float
    high: float


def topics_of(shape: str, broker: int) -> list[str]:
    prefix = "orders" if shape == "wide" else f"orders-{broker:03}"
    return [f"{prefix}-{number:04}" for number in range(TOPICS_PER_BROKER)]


def asked_topics(shape: str) -> list[str]:
    if shape == "wide":
        return topics_of(shape, 0)
    return [
        topics_of(shape, broker)[number * 97 % 1000]
        for number in range(10)
        for broker in range(100)
    ]


@contextmanager
def tianzhou_namesrv() -> Generator[Server]:
    """`mqnamesrv` as a user starts it, ready to answer."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-namesrv-") as directory:
        settings = Path(directory) / "namesrv.properties"
        settings.write_text(f"listenPort={port}\nkvConfigPath={directory}/kvConfig.json\n")
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "mqnamesrv"), "-c", str(settings)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_answer(port)
            yield Server("tianzhou", process.pid, port)
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def apache() -> Generator[Server]:
    with apache_namesrv(APACHE_VERSION, jvm_options=APACHE_JVM) as server:
        yield Server("apache", server.pid, server.port)


def wait_for_answer(port: int, deadline_s: float = 60) -> None:
    """Wait for a response to a route query, of a topic that does not exist."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
                sock.sendall(route_load.route_query("no-such-topic"))
                route_load.read_answer(sock)
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


@contextmanager
def registered(server: Server, shape: str) -> Generator[None]:
    """Register all brokers over persistent connections; closing these unregisters them."""
    with ExitStack() as stack:
        for broker in range(BROKERS):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            route_load.register_broker(sock, broker, topics_of(shape, broker))
        yield


def measure_queries(servers: list[Server], shape: str, rounds: int, round_s: float) -> list[Figure]:
    rates: dict[str, list[float]] = {server.name: [] for server in servers}
    costs: dict[str, list[float]] = {server.name: [] for server in servers}
    topics = asked_topics(shape)
    for server in servers:  # warm caches and compilers
        route_load.run(
            server.port, topics, connections=CONNECTIONS, window=WINDOW, duration_s=round_s
        )
    repeats_left = rounds
    while any(len(rates[server.name]) < rounds for server in servers):
        for server in servers:
            meter = Meter(server.pid)
            load = route_load.run(
                server.port, topics, connections=CONNECTIONS, window=WINDOW, duration_s=round_s
            )
            usage = meter.stop()
            if usage.other_cpu_cores > DISTURBED_ABOVE_CORES and repeats_left > 0:
                repeats_left -= 1
                say(f"{server.name}, {shape}: round disturbed by others, repeated")
                continue
            rates[server.name].append(load.queries / load.wall_s)
            costs[server.name].append(usage.process_cpu_s * 1e6 / load.queries)
    return [
        Figure(server.name, shape, what, *median_and_spread(values[server.name]))
        for server in servers
        for what, values in (("queries/s", rates), ("CPU us/query", costs))
    ]


def measure_memory(shape: str) -> list[Figure]:
    figures: list[Figure] = []
    with tianzhou_namesrv() as server:
        idle = rss_mib(server.pid)
        figures.append(Figure(server.name, shape, "idle MiB", idle, idle, idle))
        with registered(server, shape):
            grown = (rss_mib(server.pid) - idle) * 2**20 / (BROKERS * TOPICS_PER_BROKER)
        figures.append(Figure(server.name, shape, "bytes/registered topic", grown, grown, grown))
    return figures


def measure_start(repeats: int) -> list[Figure]:
    """Seconds from the command to the first response."""
    figures: list[Figure] = []
    for name, opened in (("tianzhou", tianzhou_namesrv), ("apache", apache)):
        times: list[float] = []
        for _ in range(repeats):
            started = time.perf_counter()
            with opened() as server:
                wait_for_answer(server.port)
                times.append(time.perf_counter() - started)
        figures.append(Figure(name, "-", "start s", *median_and_spread(times)))
    return figures


def say(text: str) -> None:
    sys.stderr.write(f"bench: {text}\n")


def measure(*, quick: bool) -> list[Figure]:
    rounds, round_s = (2, 1.5) if quick else (5, 4.0)
    figures = measure_start(2 if quick else 5)
    for shape, meaning in SHAPES.items():
        say(f"route queries, {meaning}")
        figures += measure_memory(shape)
        with tianzhou_namesrv() as ours, apache() as theirs:
            idle = rss_mib(theirs.pid)
            figures.append(Figure("apache", shape, "idle MiB", idle, idle, idle))
            with registered(ours, shape), registered(theirs, shape):
                figures += measure_queries([ours, theirs], shape, rounds, round_s)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, for a quick check")
    parser.add_argument("--json", action="store_true", help="one JSON line per figure")
    options = parser.parse_args()
    for figure in measure(quick=options.quick):
        if options.json:
            print(json.dumps(asdict(figure)))
        else:
            print(
                f"{figure.server:<9} {figure.shape:<7} {figure.what:<24} {figure.median:>12.2f}"
                f"  ({figure.low:.2f} to {figure.high:.2f})"
            )


if __name__ == "__main__":
    main()
