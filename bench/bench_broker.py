"""The broker next to Apache's: sends, batches, sync flush, pulls, start-up, memory, idle CPU.

One server runs at a time, with its nameserver; rounds of ours and of Apache's alternate. The load
comes from one process of a generator written in C that knows nothing of the servers (mqload); CPU
is the server's own user and system time. Rounds in which the rest of the machine was busy are
repeated a few times, and counted.

The source of the generator is looked for where MQLOAD_SOURCE says, else in ../shared/bench.
`python -m bench.bench_broker` prints one line per figure; `--work send-1k-64-16` runs one work.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench import broker_servers
from bench.broker_servers import Measured
from bench.machine import rss_mib

SOURCE = Path(__file__).resolve().parents[2] / "shared" / "bench" / "mqload.c"
DISTURBED_ABOVE_CORES = 0.15
REPEATS_MAX = 2
QUEUES = 8
FILL_COUNT = 200_000

Started = Callable[..., AbstractContextManager[Measured]]
SERVERS: dict[str, Started] = {"tianzhou": broker_servers.tianzhou, "apache": broker_servers.apache}


@dataclass(frozen=True, slots=True)
class Work:
    """One load; `settings` need a broker of their own."""

    name: str
    meaning: str
    arguments: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()


def _send(name: str, meaning: str, size: int, conns: int, window: int, *more: str) -> Work:
    return Work(
        name, meaning,
        ("send", "--topic", "BenchSend", "--size", str(size), "--conns", str(conns),
         "--window", str(window), *more),
    )  # fmt: skip


def _pull(size: int, conns: int) -> Work:
    label = "1 KiB" if size == 1024 else f"{size} B"
    return Work(
        f"pull-{size}-{conns}", f"pull 32 x {label}, {conns} connections",
        ("pull", "--topic", f"BenchPull{size}", "--conns", str(conns), "--max", "32"),
    )  # fmt: skip


WORKS = [
    _send("send-1k-1-1", "send 1 KiB (1,1)", 1024, 1, 1),
    _send("send-1k-8-1", "send 1 KiB (8,1)", 1024, 8, 1),
    _send("send-1k-16-8", "send 1 KiB (16,8)", 1024, 16, 8),
    _send("send-1k-64-16", "send 1 KiB (64,16)", 1024, 64, 16),
    _send("send-100-16-8", "send 100 B (16,8)", 100, 16, 8),
    _send("batch-16-4", "batch 32 x 100 B (16,4), per message", 100, 16, 4, "--batch", "32"),
    *(_pull(size, conns) for size in (1024, 100) for conns in (1, 4, 16)),
    Work(
        "sync-64-4", "send 1 KiB, SYNC_FLUSH (64,4)",
        ("send", "--topic", "BenchSend", "--size", "1024", "--conns", "64", "--window", "4"),
        (("flushDiskType", "SYNC_FLUSH"),),
    ),
]  # fmt: skip
QUICK = {"send-1k-1-1", "send-1k-64-16", "batch-16-4", "pull-1024-4"}


@dataclass(slots=True)
class Samples:
    """What the rounds of one work on one server gave."""

    rate: list[float] = field(default_factory=list[float])
    cpu_us: list[float] = field(default_factory=list[float])
    p50_us: list[float] = field(default_factory=list[float])
    p99_us: list[float] = field(default_factory=list[float])
    p999_us: list[float] = field(default_factory=list[float])
    disturbed_count: int = 0
    """Rounds that count although others were busy, for lack of better ones."""
    repeated_count: int = 0

    def add(self, load: dict[str, Any]) -> None:
        self.disturbed_count += load["other_cpu_cores"] > DISTURBED_ABOVE_CORES
        self.rate.append(load["msgs_per_s"])
        self.cpu_us.append(load["cpu_us_per_msg"])
        latency = load["lat_us"]
        self.p50_us.append(latency["p50"])
        self.p99_us.append(latency["p99"])
        self.p999_us.append(latency["p999"])


@dataclass(slots=True)
class Results:
    """Everything measured, by server."""

    works: dict[tuple[str, str], Samples] = field(default_factory=dict[tuple[str, str], Samples])
    """By name of the work and of the server."""
    start_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    idle_mib: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    idle_cpu_percent: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    loaded_mib: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def others(self) -> dict[str, dict[str, list[float]]]:
        """What does not belong to a load, by its name and by server."""
        return {
            "start of both servers to the first accepted send, s": self.start_s,
            "idle memory of both servers, MiB": self.idle_mib,
            "idle CPU of both servers, % of a core": self.idle_cpu_percent,
            "memory of both servers after the loads, MiB": self.loaded_mib,
        }


COLUMNS: dict[str, Callable[[Samples], list[float]]] = {
    "messages/s": lambda samples: samples.rate,
    "CPU us/message": lambda samples: samples.cpu_us,
    "p50 us": lambda samples: samples.p50_us,
    "p99 us": lambda samples: samples.p99_us,
    "p99.9 us": lambda samples: samples.p999_us,
}


@contextmanager
def generator() -> Generator[Path]:
    """The built load generator."""
    source = Path(os.environ.get("MQLOAD_SOURCE", SOURCE))
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not source.is_file() or compiler is None:
        raise SystemExit(
            f"bench: the load generator needs a C compiler and its source, looked for at {source}; "
            "name it with MQLOAD_SOURCE"
        )
    with tempfile.TemporaryDirectory(prefix="mqload-") as directory:
        program = Path(directory) / "mqload"
        subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
        yield program


def run_load(
    program: Path, server: Measured, arguments: tuple[str, ...], *more: str
) -> dict[str, Any]:
    """One run of the generator; raises RuntimeError for a run with errors in it."""
    command = [
        str(program), *arguments, "--queues", str(QUEUES), "--port", str(server.port),
        "--server-pid", str(server.pid), *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"mqload failed on {server.name}: {done.stderr[-500:]} {done.stdout}")
    told: dict[str, Any] = json.loads(done.stdout)
    # A pull at the end of its queue starts over; everything else that is not a success is a fault.
    faults = {code: count for code, count in told["errors"].items() if code not in ("19", "20")}
    if faults or told["bad_frames"] or told["conns_lost"] or told["offset_gaps"]:
        raise RuntimeError(f"{server.name}: the load met errors: {done.stdout}")
    return told


def measure_works(
    program: Path,
    server: Measured,
    works: list[Work],
    results: Results,
    *,
    quick: bool,
    repeats_max: int,
) -> None:
    warmup_s, duration_s = ("1", "2") if quick else ("2", "5")
    for work in works:
        samples = results.works.setdefault((work.name, server.name), Samples())
        times = ("--warmup", warmup_s, "--duration", duration_s)
        load = run_load(program, server, work.arguments, *times)
        for _ in range(repeats_max):
            if load["other_cpu_cores"] <= DISTURBED_ABOVE_CORES:
                break
            samples.repeated_count += 1
            load = run_load(program, server, work.arguments, *times)
        samples.add(load)
        say(
            f"{server.name:<9} {work.meaning:<40} {load['msgs_per_s']:>10,.0f}/s "
            f"{load['cpu_us_per_msg']:>8.2f} us, others {load['other_cpu_cores']:.2f} cores"
        )


def prepare(program: Path, server: Measured, works: list[Work], *, quick: bool) -> None:
    """Topics, messages to pull, and a warm compiler on the other side."""
    broker_servers.create_topic(server.port, "BenchSend", QUEUES)
    warm = ("send", "--topic", "BenchSend", "--conns", "16", "--window", "8")
    run_load(program, server, warm, "--warmup", "0", "--duration", "2" if quick else "8")
    for size in (1024, 100):
        if any(f"BenchPull{size}" in work.arguments for work in works):
            topic = f"BenchPull{size}"
            broker_servers.create_topic(server.port, topic, QUEUES)
            fill = ("send", "--topic", topic, "--size", str(size), "--batch", "32")
            count = str(FILL_COUNT // 10 if quick else FILL_COUNT)
            run_load(program, server, fill, "--conns", "4", "--window", "4", "--count", count)


def measure_idle(server: Measured, results: Results, *, quick: bool) -> None:
    """Memory of both programs, and CPU, while nobody asks."""
    processes = [psutil.Process(server.pid), psutil.Process(server.namesrv_pid)]
    mib = rss_mib(server.pid) + rss_mib(server.namesrv_pid)
    results.idle_mib.setdefault(server.name, []).append(mib)

    def cpu_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    period_s = 3.0 if quick else 10.0
    before = cpu_s()
    time.sleep(period_s)
    used = 100 * (cpu_s() - before) / period_s
    results.idle_cpu_percent.setdefault(server.name, []).append(used)


def measure(
    *, quick: bool, only: str | None = None, rounds: int = 3, repeats_max: int = REPEATS_MAX
) -> Results:
    results = Results()
    chosen = [
        work for work in WORKS if (work.name == only if only else not quick or work.name in QUICK)
    ]
    with generator() as program:
        for number in range(1 if quick else rounds):
            say(f"round {number + 1}")
            for name, started in SERVERS.items():
                for settings in dict.fromkeys(work.settings for work in chosen):
                    works = [work for work in chosen if work.settings == settings]
                    with started(**dict(settings)) as server:
                        if not settings:
                            results.start_s.setdefault(name, []).append(server.start_s)
                            measure_idle(server, results, quick=quick)
                        prepare(program, server, works, quick=quick)
                        measure_works(
                            program, server, works, results, quick=quick, repeats_max=repeats_max
                        )
                        if not settings:
                            mib = rss_mib(server.pid) + rss_mib(server.namesrv_pid)
                            results.loaded_mib.setdefault(name, []).append(mib)
    return results


def say(text: str) -> None:
    sys.stderr.write(f"bench: {text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first look")
    parser.add_argument("--work", choices=[work.name for work in WORKS], help="one work only")
    options = parser.parse_args()
    results = measure(quick=options.quick, only=options.work)
    for (work, server), samples in results.works.items():
        print(
            f"{server:<9} {work:<16} {statistics.median(samples.rate):>12,.0f}/s "
            f"{statistics.median(samples.cpu_us):>8.2f} us"
        )


if __name__ == "__main__":
    main()
