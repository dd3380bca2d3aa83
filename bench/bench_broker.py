"""Benchmark of the broker against Apache's: workloads, start-up, memory, idle CPU, two workers.

One server runs at a time, with its nameserver; rounds of Tianzhou and Apache alternate. Load comes
from generators written in C (`loads.py`); CPU is the user and system time of the server. Rounds
with other load on the machine are repeated a few times, and counted.

`python -m bench.bench_broker` prints one line per figure; `--work send-1k-64-16` runs one workload,
`--server pure` measures one server only.

Longer than 500 lines: the table of workloads and their measurement belong together.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from bench import broker_servers, loads, warm_memory
from bench.broker_servers import Measured
from bench.loads import Load, Programs
from bench.machine import rss_mib, stolen_cpu_s
from bench.progress import Progress, say
from bench.warm_memory import WarmMemory

DISTURBED_ABOVE_CORES = 0.15
STOLEN_ABOVE_CORES = 0.05
"""Cores that the host of a virtual machine may steal in a valid measurement."""
REPEATS_MAX = 2
QUEUES = 8
TOPIC_QUEUES = 4
"""Per topic, in workloads with many topics."""
FILL_COUNT = 200_000
PULL_COUNT = 32
PULL_COUNT_LEAST = 30
"""Average number of messages per response to such a pull, the last one of a queue included."""
SYNC_WAITING = 256

OURS, APACHE, PURE = "tianzhou", "apache", "pure"

Started = Callable[..., AbstractContextManager[Measured]]
SERVERS: dict[str, Started] = {
    OURS: broker_servers.tianzhou,
    APACHE: broker_servers.apache,
    PURE: broker_servers.pure,
}
START_S = {OURS: 1.0, APACHE: 15.0, PURE: 1.0}
"""Start-up times of the servers, for the estimate."""

Arguments = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Aims:
    """How many times better than Apache's a figure should be; None without a target."""

    rate: float | None = None
    cpu: float | None = None
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """One workload; `settings` need a separate broker."""

    name: str
    meaning: str
    arguments: Arguments
    aims: Aims = Aims()
    settings: tuple[tuple[str, str], ...] = ()
    servers: tuple[str, ...] = (OURS, APACHE)
    topics: int = 0
    """The number of topics, if the other generator is used instead of mqload."""
    beside: Arguments | None = None
    """A second workload at the same time."""
    pulled_least: int = PULL_COUNT_LEAST

    @property
    def pulls(self) -> bool:
        return self.arguments[0] == "pull" or self.beside is not None

    @property
    def sends(self) -> bool:
        return self.arguments[0] == "send"


DISK_USED_MAX, DISK_FREE_BYTES = 55, 30 << 30
"""Maximum disk usage in percent before a run, and the space that a run needs."""


def sending(size: int, conns: int, window: int, *more: str) -> Arguments:
    return (
        "send", "--topic", "BenchSend", "--size", str(size), "--conns", str(conns), "--window",
        str(window), "--queues", str(QUEUES), *more,
    )  # fmt: skip


def _pull(size: int, conns: int) -> Arguments:
    return (
        "pull", "--topic", f"BenchPull{size}", "--conns", str(conns), "--max", str(PULL_COUNT),
        "--queues", str(QUEUES),
    )  # fmt: skip


def _many(count: int) -> Work:
    label = "1 topic" if count == 1 else f"{count:,} topics"
    arguments = (
        "send", "--prefix", f"BenchMany{count}", "--topics", str(count), "--queues",
        str(TOPIC_QUEUES), "--conns", "64", "--window", "16", "--size", "1024",
    )  # fmt: skip
    return Work(f"topics-{count}", f"send 1 KiB (64,16), {label}", arguments, topics=count)


_TAGGED = (
    "pull", "--prefix", "BenchTags", "--queues", str(QUEUES), "--conns", "4", "--max", "32",
    "--subscription", loads.tag(7),
)  # fmt: skip
_ALL = (OURS, APACHE, PURE)
_SYNC = (("flushDiskType", "SYNC_FLUSH"),)
BACKLOG_PERCENT = 2
_BACKLOG = (("accessMessageInMemoryMaxRatio", str(BACKLOG_PERCENT)),)
"""By the rule of Apache's broker, messages further behind than so much of memory are on disk."""

WORKS = [
    Work("send-1k-1-1", "send 1 KiB (1,1)", sending(1024, 1, 1), Aims(cpu=2, p50=1 / 0.7)),
    Work("send-1k-8-1", "send 1 KiB (8,1)", sending(1024, 8, 1)),
    Work("send-1k-16-8", "send 1 KiB (16,8)", sending(1024, 16, 8), Aims(4, 8, p99=3)),
    Work(
        "send-1k-64-16", "send 1 KiB (64,16)", sending(1024, 64, 16), Aims(4, 8, p99=3),
        servers=_ALL,
    ),
    Work("send-100-16-8", "send 100 B (16,8)", sending(100, 16, 8), Aims(cpu=8)),
    Work(
        "batch-16-4", "batches 32 x 100 B (16,4)", sending(100, 16, 4, "--batch", "32"), Aims(cpu=4)
    ),
    *(_many(count) for count in (1, 100, 2000)),
    *(
        Work(f"pull-1024-{conns}", f"pull 32 x 1 KiB, {conns} conn.", _pull(1024, conns),
             Aims(2, 3), servers=_ALL if conns == 4 else (OURS, APACHE))
        for conns in (1, 4, 16)
    ),
    *(
        Work(f"pull-100-{conns}", f"pull 32 x 100 B, {conns} conn.", _pull(100, conns))
        for conns in (1, 4, 16)
    ),
    Work(
        "backlog-16", "pull 32 x 1 KiB from the start of the log, 16 conn.", _pull(1024, 16),
        settings=_BACKLOG, pulled_least=1,
    ),
    Work("tags-1-percent", "pull 1 KiB, 1 % pass the tags, 4 conn.", _TAGGED, topics=1),
    Work(
        "both", "send 1 KiB (16,8) and pull 32 x 1 KiB", sending(1024, 16, 8),
        beside=_pull(1024, 4),
    ),
    Work(
        "sync-64-4", "send 1 KiB (64,4), SYNC_FLUSH", sending(1024, 64, 4), Aims(rate=4),
        settings=_SYNC,
    ),
]  # fmt: skip
BESIDE = "both-pull"
"""The second of two simultaneous workloads."""
QUICK = {"send-1k-1-1", "send-1k-64-16", "batch-16-4", "pull-1024-4"}
WORKERS = "workers"


# -- results ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Samples:
    """The results of one workload on one server."""

    rate: list[float] = field(default_factory=list[float])
    cpu_us: list[float] = field(default_factory=list[float])
    p50_us: list[float] = field(default_factory=list[float])
    p99_us: list[float] = field(default_factory=list[float])
    p999_us: list[float] = field(default_factory=list[float])
    disturbed_count: int = 0
    """Rounds that count despite other load, for lack of better ones."""

    def add(self, load: Load) -> None:
        self.disturbed_count += is_disturbed(load)
        self.rate.append(load["msgs_per_s"])
        self.cpu_us.append(load["cpu_us_per_msg"])
        latency = load["lat_us"]
        self.p50_us.append(latency["p50"])
        self.p99_us.append(latency["p99"])
        self.p999_us.append(latency["p999"])


@dataclass(frozen=True, slots=True)
class WorkersSample:
    """One round with one loaded worker, and with two."""

    one_rate: float
    one_cpu_us: float
    two_rate: float
    two_cpu_us: float
    two_generator_cores: float

    @property
    def gain(self) -> float:
        """The estimated throughput of two workers on two cores, relative to one worker.

        Computed from the CPU per message, since the generators run on the same cores.
        """
        return 2 * self.one_cpu_us / self.two_cpu_us


@dataclass(slots=True)
class Results:
    """Everything measured, by server."""

    works: dict[tuple[str, str], Samples] = field(default_factory=dict[tuple[str, str], Samples])
    """By name of the workload and of the server."""
    start_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    idle_mib: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    idle_cpu_percent: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    loaded_mib: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    device_rate: list[float] = field(default_factory=list[float])
    """Messages per second that the disk allows for this number of waiting senders."""
    device_syncs: list[float] = field(default_factory=list[float])
    workers: list[WorkersSample] = field(default_factory=list[WorkersSample])
    repeated_count: int = 0
    """Measurements that were repeated because of other load on the machine."""

    def samples(self, work: str, server: str) -> Samples:
        return self.works.setdefault((work, server), Samples())

    def note(self, table: dict[str, list[float]], server: str, value: float) -> None:
        table.setdefault(server, []).append(value)


# -- measuring -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """Durations, number of rounds, and the selected workloads."""

    rounds: int = 3
    warmup_s: float = 2.0
    duration_s: float = 5.0
    idle_s: float = 10.0
    warm_s: float = 8.0
    """Warm-up before the first workload, for the JIT compiler of Apache's broker."""
    fill_count: int = FILL_COUNT
    repeats_max: int = REPEATS_MAX
    memory_bytes: int = warm_memory.HELD_MAX_BYTES
    """The maximum amount of memory that is filled first."""
    only_works: frozenset[str] | None = None
    only_server: str | None = None

    @property
    def times(self) -> Arguments:
        return ("--warmup", str(self.warmup_s), "--duration", str(self.duration_s))

    @property
    def warm_times(self) -> Arguments:
        return ("--warmup", "0", "--duration", str(self.warm_s))

    @property
    def step_s(self) -> float:
        """Estimated duration of one workload on one server."""
        return self.warmup_s + self.duration_s + 0.5

    def works(self, server: str) -> list[Work]:
        return [
            work
            for work in WORKS
            if server in work.servers
            and (self.only_server in (None, server))
            and (self.only_works is None or work.name in self.only_works)
        ]

    @property
    def wants_workers(self) -> bool:
        return self.only_server is None and (self.only_works is None or WORKERS in self.only_works)

    @property
    def repeats_total_max(self) -> int:
        """A third of all measurements."""
        return self.rounds * sum(len(self.works(server)) for server in SERVERS) // 3

    def expected_s(self) -> float:
        """Estimated duration of the whole plan."""
        total_s = 3 * self.step_s + START_S[OURS] if self.wants_workers else 0.0
        for server in SERVERS:
            works = self.works(server)
            for settings in dict.fromkeys(work.settings for work in works):
                total_s += self.prepare_s(server) + (0 if settings else self.idle_s)
            total_s += self.step_s * len(works)
        return total_s * self.rounds

    def prepare_s(self, server: str) -> float:
        return START_S[server] + self.warm_s + self.fill_count / 25_000


FULL = Plan()
QUICK_PLAN = Plan(
    rounds=1, warmup_s=0.5, duration_s=1.0, idle_s=2.0, warm_s=2.0, fill_count=FILL_COUNT // 10,
    repeats_max=0, memory_bytes=0, only_works=frozenset(QUICK),
)  # fmt: skip


def measure(plan: Plan = FULL) -> Results:
    if plan.memory_bytes:  # short runs write little
        check_disk(tempfile.gettempdir())
    results = Results()
    with loads.built() as programs, warm_memory.kept(plan.memory_bytes) as memory:
        progress = Progress(plan.expected_s())
        for number in range(plan.rounds):
            say(f"broker: round {number + 1} of {plan.rounds}")
            for name, started in SERVERS.items():
                works = plan.works(name)
                for settings in dict.fromkeys(work.settings for work in works):
                    chosen = [work for work in works if work.settings == settings]
                    memory.rebalance()
                    with started(memory.adopt, **dict(settings)) as server:
                        _measure_server(programs, server, chosen, results, plan, progress)
            if plan.wants_workers:
                _measure_workers(programs, memory, results, plan, progress)
    return results


def check_disk(directory: str) -> None:
    """Fail if the disk is so full that brokers would delete messages while they are read."""
    usage = psutil.disk_usage(directory)
    if usage.percent > DISK_USED_MAX or usage.free < DISK_FREE_BYTES:
        raise SystemExit(
            f"bench: the disk of {directory} is {usage.percent:.0f} % full, {usage.free >> 30} GiB "
            f"are free. From 75 % on brokers delete what is being measured: free some, so that at "
            f"most {DISK_USED_MAX} % are used and {DISK_FREE_BYTES >> 30} GiB free, or set TMPDIR"
        )


def _measure_server(
    programs: Programs,
    server: Measured,
    works: list[Work],
    results: Results,
    plan: Plan,
    progress: Progress,
) -> None:
    plain = not works[0].settings
    if plain:
        results.note(results.start_s, server.name, server.start_s)
        _measure_idle(server, results, plan)
    prepare(programs, server, works, plan)
    expected_s = plan.prepare_s(server.name) + (plan.idle_s if plain else 0)
    progress.done(expected_s, f"{server.name}: started and prepared")
    # Pulls come first: Apache's broker returns messages that are further behind the end of the log
    # than 40 % of the memory in small batches, and a faster server would get there sooner.
    for work in sorted(works, key=lambda work: (not work.pulls, work.sends)):
        if work.topics and work.sends:
            _prepare_topics(programs, server, work, plan)
        _measure_work(programs, server, work, results, plan, progress)
    if plain:
        mib = rss_mib(server.pid) + rss_mib(server.namesrv_pid)
        results.note(results.loaded_mib, server.name, mib)


def _measure_work(
    programs: Programs,
    server: Measured,
    work: Work,
    results: Results,
    plan: Plan,
    progress: Progress,
) -> None:
    if work.name == "sync-64-4" and server.name == OURS:
        rate, syncs = loads.device_messages_per_s(SYNC_WAITING, min(plan.duration_s, 3))
        results.device_rate.append(rate)
        results.device_syncs.append(syncs)
    samples = results.samples(work.name, server.name)
    try:
        found = _run(programs, server, work, plan)
    except RuntimeError as e:
        # A server without CPU time may reject some requests; a second failure counts.
        say(f"{e}; once more")
        results.repeated_count += 1
        found = _run(programs, server, work, plan)
    for _ in range(plan.repeats_max):
        if not is_disturbed(found[0]):
            break
        if results.repeated_count >= plan.repeats_total_max:
            break  # A machine that is never idle would make this last for ever.
        results.repeated_count += 1
        found = _run(programs, server, work, plan)
    samples.add(found[0])
    if len(found) > 1:
        results.samples(BESIDE, server.name).add(found[1])
    load = found[0]
    progress.done(
        plan.step_s,
        f"{server.name:<9} {work.meaning:<38} {load['msgs_per_s']:>10,.0f}/s "
        f"{load['cpu_us_per_msg']:>8.2f} us, others {load['other_cpu_cores']:.2f} cores, host "
        f"{load['stolen_cpu_cores']:.2f}",
    )


def is_disturbed(load: Load) -> bool:
    """Whether other load on the machine exceeded the limit."""
    others: float = load["other_cpu_cores"]
    stolen: float = load["stolen_cpu_cores"]
    return others > DISTURBED_ABOVE_CORES or stolen > STOLEN_ABOVE_CORES


def _run(programs: Programs, server: Measured, work: Work, plan: Plan) -> list[Load]:
    began_s, stolen_s = time.perf_counter(), stolen_cpu_s()
    found = _loaded(programs, server, work, plan)
    stolen_cores = (stolen_cpu_s() - stolen_s) / (time.perf_counter() - began_s)
    for load in found:
        load["stolen_cpu_cores"] = stolen_cores
    return found


def _loaded(programs: Programs, server: Measured, work: Work, plan: Plan) -> list[Load]:
    program = programs.topicload if work.topics else programs.mqload
    if work.beside is None:
        found = loads.run(program, server, (*work.arguments, *plan.times))
        if work.pulls and not work.topics:
            check_answers(server.name, found, work.pulled_least)
        return [found]
    both = loads.run_both(
        program, server, (*work.arguments, *plan.times), server, (*work.beside, *plan.times)
    )
    check_answers(server.name, both[1])
    # The server's CPU cannot be divided, so messages of both kinds count the same here.
    messages = sum(load["msgs"] for load in both)
    cpu_us = statistics.mean(load["server_cpu_s"] for load in both) * 1e6 / messages
    for load in both:
        load["cpu_us_per_msg"] = cpu_us
    return list(both)


def check_answers(server: str, load: Load, least: int = PULL_COUNT_LEAST) -> None:
    """Reject a run whose pulls returned too few messages. Raises RuntimeError."""
    if load["msgs"] < least * load["reqs"]:
        raise RuntimeError(
            f"{server}: pulls of {PULL_COUNT} brought {load['msgs'] / load['reqs']:.1f} messages "
            f"each; the messages are too old to count as in memory"
        )


def prepare(programs: Programs, server: Measured, works: list[Work], plan: Plan) -> None:
    """Store messages to pull, and warm up the JIT compiler of Apache's broker."""
    port, words = server.port, {word for work in works for word in work.arguments}
    words |= {word for work in works for word in work.beside or ()}
    broker_servers.create_topic(port, "BenchSend", QUEUES)
    warm = (*sending(1024, 16, 8), *plan.warm_times)
    # With other load on the machine a cold server may reject some of these, which does not matter.
    loads.run(programs.mqload, server, warm, strict=False)
    for size in (1024, 100):
        topic = f"BenchPull{size}"
        if topic in words:
            _fill(programs, server, topic, size, plan.fill_count)
    for work in works:
        if work.settings == _BACKLOG:
            behind_bytes = psutil.virtual_memory().total * BACKLOG_PERCENT // 100
            _fill(programs, server, "BenchBehind", 1024, 2 * behind_bytes // loads.RECORD_BYTES)
        if work.name == "tags-1-percent":
            broker_servers.create_topic(port, "BenchTags", QUEUES)
            loads.fill_tagged(port, "BenchTags", QUEUES, plan.fill_count, 1024)


def _fill(programs: Programs, server: Measured, topic: str, size: int, count: int) -> None:
    broker_servers.create_topic(server.port, topic, QUEUES)
    fill = (
        "send", "--topic", topic, "--size", str(size), "--batch", "32", "--conns", "4",
        "--window", "4", "--queues", str(QUEUES), "--count", str(count),
    )  # fmt: skip
    loads.run(programs.mqload, server, fill, strict=False)


def _prepare_topics(programs: Programs, server: Measured, work: Work, plan: Plan) -> None:
    names = loads.topic_names(f"BenchMany{work.topics}", work.topics)
    loads.create_topics(server.port, names, TOPIC_QUEUES)
    # The first messages of a queue create its files.
    loads.run(programs.topicload, server, (*work.arguments, *plan.warm_times), strict=False)


def _measure_idle(server: Measured, results: Results, plan: Plan) -> None:
    """Memory and CPU of broker and nameserver without load."""
    processes = [psutil.Process(server.pid), psutil.Process(server.namesrv_pid)]
    mib = rss_mib(server.pid) + rss_mib(server.namesrv_pid)
    results.note(results.idle_mib, server.name, mib)

    def cpu_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = cpu_s()
    time.sleep(plan.idle_s)
    used = 100 * (cpu_s() - before) / plan.idle_s
    results.note(results.idle_cpu_percent, server.name, used)


def _measure_workers(
    programs: Programs, memory: WarmMemory, results: Results, plan: Plan, progress: Progress
) -> None:
    """Load one of two workers alone, then both equally."""
    sample, stolen_cores = _workers_sample(programs, memory, plan)
    for _ in range(plan.repeats_max):
        if stolen_cores <= STOLEN_ABOVE_CORES:
            break
        results.repeated_count += 1
        sample, stolen_cores = _workers_sample(programs, memory, plan)
    results.workers.append(sample)
    progress.done(
        3 * plan.step_s + START_S[OURS],
        f"one worker {sample.one_rate:,.0f}/s {sample.one_cpu_us:.2f} us, two "
        f"{sample.two_rate:,.0f}/s {sample.two_cpu_us:.2f} us: {sample.gain:.2f} times, host "
        f"{stolen_cores:.2f}",
    )


def _workers_sample(
    programs: Programs, memory: WarmMemory, plan: Plan
) -> tuple[WorkersSample, float]:
    """A round, and the cores that the host stole meanwhile."""
    memory.rebalance()
    with broker_servers.two_workers(memory.adopt) as (one, other):
        for worker in (one, other):
            broker_servers.create_topic(worker.port, "BenchSend", QUEUES)
            short = (*sending(1024, 64, 16), "--warmup", "0", "--duration", "1")
            loads.run(programs.mqload, worker, short)
        load = (*sending(1024, 64, 16), *plan.times)
        began_s, stolen_s = time.perf_counter(), stolen_cpu_s()
        alone = loads.run(programs.mqload, one, load)
        both = loads.run_both(programs.mqload, one, load, other, load)
        stolen_cores = (stolen_cpu_s() - stolen_s) / (time.perf_counter() - began_s)
    rate = sum(load["msgs_per_s"] for load in both)
    cpu_s, messages = (sum(load[key] for load in both) for key in ("server_cpu_s", "msgs"))
    sample = WorkersSample(
        alone["msgs_per_s"], alone["cpu_us_per_msg"], rate, cpu_s * 1e6 / messages,
        sum(load["gen_cpu_cores"] for load in both),
    )  # fmt: skip
    return sample, stolen_cores


# -- alone -----------------------------------------------------------------------------------------


@contextmanager
def generator() -> Generator[Path]:
    """The built mqload."""
    with loads.built() as programs:
        yield programs.mqload


def run_load(program: Path, server: Measured, arguments: Arguments, *more: str) -> dict[str, Any]:
    """One run of mqload on the queues that these topics have."""
    return loads.run(program, server, (*arguments, "--queues", str(QUEUES), *more))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, for a quick check")
    names = [*(work.name for work in WORKS), WORKERS]
    parser.add_argument("--work", choices=names, action="append", help="only this; repeatable")
    parser.add_argument("--server", choices=SERVERS, help="one server only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument(
        "--fill", type=int, default=FILL_COUNT, metavar="COUNT",
        help="messages of each topic that is pulled; 12700000 of 1 KiB are a log of 13 GB",
    )  # fmt: skip
    options = parser.parse_args()
    works = frozenset(options.work) if options.work else None
    plan = plan_of(options.rounds, options.seconds, works, options.server)
    plan = QUICK_PLAN if options.quick else replace(plan, fill_count=options.fill)
    results = measure(plan)
    for (work, server), samples in results.works.items():
        print(
            f"{server:<9} {work:<16} {statistics.median(samples.rate):>12,.0f}/s "
            f"{statistics.median(samples.cpu_us):>8.2f} us"
        )


def plan_of(
    rounds: int,
    seconds: float,
    works: frozenset[str] | None = None,
    server: str | None = None,
) -> Plan:
    """A plan with this number of rounds and duration of measurements; the rest is derived."""
    return Plan(
        rounds=rounds, warmup_s=min(2.0, seconds / 3), duration_s=seconds,
        idle_s=min(10.0, 2 * seconds), warm_s=min(8.0, 2 * seconds), only_works=works,
        only_server=server,
    )  # fmt: skip


if __name__ == "__main__":
    main()
