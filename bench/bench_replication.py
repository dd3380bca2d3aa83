"""Benchmark of replication: a master with a slave, compared with one without and with Apache's.

Sends to a master alone, an ASYNC_MASTER and a SYNC_MASTER with one slave, and to Apache's 5.5.0 and
4.9.7 in the same two roles; a SYNC_MASTER whose slave is 2 ms away; an empty slave that catches up;
and an idle slave. Rounds of ours are spread over the run. Master, slave and load generator share
the machine, so each row has the CPU per message of both brokers, and who took the cores.

`replication_table.py` makes the tables; `python -m bench.replication_table` measures ours only, and
prints them.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import psutil
from tests.support.apache.servers import Server

from bench import bench_broker, broker_servers, loads, replicated_servers
from bench.bench_broker import Arguments, sending
from bench.loads import Load, Programs
from bench.progress import Progress, say
from bench.replicated_servers import (
    ALONE,
    APACHE_VERSIONS,
    ASYNC,
    OURS,
    ROLES,
    SYNC,
    Cluster,
    Delay,
    await_in_step,
    end_log_offset,
)
from bench.warm_memory import HELD_MAX_BYTES, WarmMemory, kept

DELAYED = "SYNC_MASTER, 2 ms"
"""The role of a SYNC_MASTER whose slave is behind the proxy."""
DELAY_US = 1_000
"""In each direction."""
REPEATS_MAX = 2
_PIECE_BYTES = 1 << 20
_SETTLED_S = 3.0

WORKS: dict[str, Arguments] = {
    "1 KiB (16,8)": sending(1024, 16, 8),
    "1 KiB (64,16)": sending(1024, 64, 16),
    "32 x 100 B (16,4)": sending(100, 16, 4, "--batch", "32"),
}
IN_FLIGHT_1024 = "1 KiB (64,16)"


@dataclass(frozen=True, slots=True)
class Plan:
    """Durations and sizes."""

    rounds: int = 3
    """Of ours, at most; Apache's have one, as their start takes long."""
    limit_s: float = 460.0
    """No further round of ours is begun if the whole would take longer than this."""
    warmup_s: float = 1.0
    duration_s: float = 2.5
    warm_s: float = 1.5
    apache_warm_s: float = 7.0
    """For the JIT compiler."""
    idle_s: float = 20.0
    copied_bytes: int = 3 << 30
    repeats_max: int = REPEATS_MAX
    memory_bytes: int = HELD_MAX_BYTES
    with_apache: bool = True
    works: tuple[str, ...] = tuple(WORKS)

    @property
    def works_s(self) -> float:
        return len(self.works) * (self.warmup_s + self.duration_s + 0.5)

    @property
    def ours_s(self) -> float:
        """The estimated duration of a round of ours."""
        return len(ROLES) * (2.5 + self.warm_s + self.works_s)

    @property
    def apache_s(self) -> float:
        """The same of Apache's, in one role."""
        return 25 + self.apache_warm_s + self.works_s

    @property
    def delayed_s(self) -> float:
        return self.rounds * (2.5 + self.warm_s + self.works_s / len(self.works))

    @property
    def copied_s(self) -> float:
        return 10 + self.copied_bytes / 150e6

    def expected_s(self) -> float:
        apache_count = 2 * len(APACHE_VERSIONS) if self.with_apache else 0
        memory_s = 15 if self.memory_bytes else 0
        return (
            memory_s
            + self.rounds * self.ours_s
            + apache_count * self.apache_s
            + self.delayed_s
            + self.copied_s
            + self.idle_s
            + _SETTLED_S
            + 5
        )


FULL = Plan()
QUICK = Plan(
    rounds=1, warmup_s=0.5, duration_s=1.0, warm_s=1.0, idle_s=3.0, copied_bytes=256 << 20,
    repeats_max=0, memory_bytes=0, with_apache=False,
)  # fmt: skip


# -- results ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Samples:
    """One workload on one cluster."""

    rate: list[float] = field(default_factory=list[float])
    master_us: list[float] = field(default_factory=list[float])
    slave_us: list[float] = field(default_factory=list[float])
    p50_us: list[float] = field(default_factory=list[float])
    p99_us: list[float] = field(default_factory=list[float])
    master_cores: list[float] = field(default_factory=list[float])
    slave_cores: list[float] = field(default_factory=list[float])
    load_cores: list[float] = field(default_factory=list[float])
    behind_mib: list[float] = field(default_factory=list[float])
    """How far the slave was behind when the load ended."""
    failed_share: list[float] = field(default_factory=list[float])
    """Sends that did not end with SEND_OK."""


@dataclass(slots=True)
class Copied:
    """An empty slave that copied a log."""

    copied_bytes: int
    took_s: float
    master_cpu_s: float
    slave_cpu_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.copied_bytes / self.took_s


@dataclass(slots=True)
class Results:
    """Everything measured."""

    works: dict[tuple[str, str, str], Samples] = field(
        default_factory=dict[tuple[str, str, str], Samples]
    )
    """By servers, role and workload."""
    copied: Copied | None = None
    disk_bytes_per_s: float = 0.0
    idle_percent: tuple[float, float] = (0.0, 0.0)
    """CPU of an idle master and its slave, % of a core."""
    round_count: int = 0
    repeated_count: int = 0
    disturbed_count: int = 0

    def samples(self, servers: str, role: str, work: str) -> Samples:
        return self.works.setdefault((servers, role, work), Samples())

    def median(self, servers: str, role: str, work: str, of: str = "rate") -> float | None:
        found = self.works.get((servers, role, work))
        return statistics.median(getattr(found, of)) if found else None


# -- measuring -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """What all measurements of a run share."""

    plan: Plan
    programs: Programs
    memory: WarmMemory
    results: Results
    progress: Progress


def measure(plan: Plan = FULL) -> Results:
    if plan.memory_bytes:
        bench_broker.check_disk(tempfile.gettempdir())
    results, began_s = Results(), time.monotonic()
    with loads.built() as programs, kept(plan.memory_bytes) as memory:
        run = _Run(plan, programs, memory, results, Progress(plan.expected_s()))
        others = [partial(_apache, run, version) for version in APACHE_VERSIONS]
        for number in range(plan.rounds):
            if number and not _has_time(run, began_s, len(others)):
                say("replication: a busy machine, so there are fewer rounds")
                break
            say(f"replication: round {number + 1} of {plan.rounds}")
            _round_of_ours(run)
            results.round_count += 1
            if plan.with_apache and others:
                others.pop(0)()
        if plan.with_apache:
            for rest in others:
                rest()
        _measure_copying(run)
    return results


def _has_time(run: _Run, began_s: float, other_count: int) -> bool:
    """Whether another round of ours fits."""
    plan = run.plan
    left_s = plan.ours_s + plan.delayed_s / plan.rounds + plan.copied_s + plan.idle_s
    if plan.with_apache:
        left_s += other_count * 2 * plan.apache_s
    return time.monotonic() - began_s + left_s < plan.limit_s


def _round_of_ours(run: _Run) -> None:
    for role in ROLES:
        _measure_cluster(run, role, partial(replicated_servers.tianzhou, role), run.plan.works)
    with replicated_servers.delaying(DELAY_US) as delay:
        start = partial(replicated_servers.tianzhou, SYNC, delay=delay)
        _measure_cluster(run, DELAYED, start, (IN_FLIGHT_1024,), delay)


def _apache(run: _Run, version: str) -> None:
    for role in (ASYNC, SYNC):
        start = partial(replicated_servers.apache, version, role)
        _measure_cluster(run, role, start, run.plan.works)


def _measure_cluster(
    run: _Run,
    role: str,
    start: Callable[..., AbstractContextManager[Cluster]],
    works: tuple[str, ...],
    delay: Delay | None = None,
) -> None:
    run.memory.rebalance()
    with start(keep_files=run.memory.adopt) as cluster:
        _prepare(run, cluster)
        for work in works:
            sample = _measured(run, cluster, WORKS[work])
            _add(run.results.samples(cluster.servers, role, work), sample)
            say(
                f"{cluster.servers:<12} {role:<17} {work:<17} {sample.rate:>10,.0f}/s, CPU us "
                f"{sample.master_us:.2f} and {sample.slave_us:.2f}, others "
                f"{sample.load['other_cpu_cores']:.2f} cores"
            )
        if delay is not None:
            replicated_servers.check_passed(delay, end_log_offset(cluster.master))
    plan = run.plan
    if role == DELAYED:
        expected_s = plan.delayed_s / plan.rounds
    else:
        expected_s = plan.ours_s / len(ROLES) if cluster.servers == OURS else plan.apache_s
    run.progress.done(expected_s, f"{cluster.servers} {role} is done")


def _prepare(run: _Run, cluster: Cluster) -> None:
    broker_servers.create_topic(cluster.master.port, "BenchSend", bench_broker.QUEUES)
    warm_s = run.plan.warm_s if cluster.servers == OURS else run.plan.apache_warm_s
    warm = (*WORKS[IN_FLIGHT_1024], "--warmup", "0", "--duration", str(warm_s))
    loads.run(run.programs.mqload, cluster.measured, warm, beside=cluster.beside, strict=False)
    if cluster.slave is not None:
        await_in_step(cluster.master, cluster.slave)


@dataclass(frozen=True, slots=True)
class _Sample:
    load: Load
    rate: float
    master_us: float
    slave_us: float
    behind_mib: float


def _measured(run: _Run, cluster: Cluster, arguments: Arguments) -> _Sample:
    """One run, repeated while other load on the machine is too large."""
    results = run.results
    sample = _once(run, cluster, arguments)
    for _ in range(run.plan.repeats_max):
        if not bench_broker.is_disturbed(sample.load):
            break
        if results.repeated_count >= _repeats_total_max(run.plan):
            break  # A machine that is never idle would make this last for ever.
        results.repeated_count += 1
        sample = _once(run, cluster, arguments)
    results.disturbed_count += bench_broker.is_disturbed(sample.load)
    return sample


def _repeats_total_max(plan: Plan) -> int:
    """A run has to end in a given time."""
    return plan.rounds * 2


def _once(run: _Run, cluster: Cluster, arguments: Arguments) -> _Sample:
    times = ("--warmup", str(run.plan.warmup_s), "--duration", str(run.plan.duration_s))
    pids = (cluster.master.pid, *cluster.beside)
    before = [cpu_s(pid) for pid in pids]
    # Apache's may reject sends in the second in which their JVMs get no CPU; they are counted.
    load = loads.run(
        run.programs.mqload, cluster.measured, (*arguments, *times), beside=cluster.beside,
        strict=cluster.servers == OURS,
    )  # fmt: skip
    used = [cpu_s(pid) - start for pid, start in zip(pids, before, strict=True)]
    load["stolen_cpu_cores"] = load["steal_cores"]
    # The generator measures the sum without the warm-up; its shares are those of the whole run.
    total_us, total = load["cpu_us_per_msg"], max(sum(used), 0.001)
    shares = [total_us * each / total for each in used]
    behind_bytes = 0
    if cluster.slave is not None:
        behind_bytes = end_log_offset(cluster.master) - end_log_offset(cluster.slave)
        await_in_step(cluster.master, cluster.slave)
    slave_us = shares[1] if cluster.slave is not None else 0.0
    return _Sample(load, load["msgs_per_s"], shares[0], slave_us, max(behind_bytes, 0) / 2**20)


def _add(samples: Samples, sample: _Sample) -> None:
    load = sample.load
    samples.rate.append(sample.rate)
    samples.master_us.append(sample.master_us)
    samples.slave_us.append(sample.slave_us)
    samples.p50_us.append(load["lat_us"]["p50"])
    samples.p99_us.append(load["lat_us"]["p99"])
    samples.master_cores.append(sample.master_us * sample.rate / 1e6)
    samples.slave_cores.append(sample.slave_us * sample.rate / 1e6)
    samples.load_cores.append(load["gen_cpu_cores"])
    samples.behind_mib.append(sample.behind_mib)
    samples.failed_share.append(sum(load["errors"].values()) / max(load["reqs"], 1))


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


# -- catching up, and doing nothing ----------------------------------------------------------------


def _measure_copying(run: _Run) -> None:
    """An empty slave copies a log that is in the master's page cache; then both are idle."""
    plan, results = run.plan, run.results
    results.disk_bytes_per_s = disk_bytes_per_s(min(plan.copied_bytes, 1 << 30))
    run.memory.rebalance()
    with replicated_servers.tianzhou(ALONE, run.memory.adopt) as cluster:
        master = cluster.master
        _fill(run, cluster)
        os.sync()  # the master's writes are not to compete with the slave's
        with cluster.start_slave() as slave:
            results.copied = _copied(master, slave)
            run.progress.done(plan.copied_s, "an empty slave has caught up")
            time.sleep(_SETTLED_S)
            results.idle_percent = _idle_percent(master.pid, slave.pid, plan.idle_s)
    run.progress.done(plan.idle_s, "idle CPU is measured")


def _fill(run: _Run, cluster: Cluster) -> None:
    broker_servers.create_topic(cluster.master.port, "BenchSend", bench_broker.QUEUES)
    fill = sending(1024, 4, 4, "--batch", "32")
    count = run.plan.copied_bytes // loads.RECORD_BYTES
    loads.run(run.programs.mqload, cluster.measured, (*fill, "--count", str(count)), strict=False)


def _copied(master: Server, slave: Server) -> Copied:
    """From the first to the last byte; the first requests of a slave are not of interest here."""
    end, first = end_log_offset(master), 0
    while not (first := end_log_offset(slave)):
        time.sleep(0.001)
    began_s, used_s = time.perf_counter(), (cpu_s(master.pid), cpu_s(slave.pid))
    await_in_step(master, slave)
    took_s = time.perf_counter() - began_s
    return Copied(end - first, took_s, cpu_s(master.pid) - used_s[0], cpu_s(slave.pid) - used_s[1])


def _idle_percent(master_pid: int, slave_pid: int, idle_s: float) -> tuple[float, float]:
    before = cpu_s(master_pid), cpu_s(slave_pid)
    time.sleep(idle_s)
    after = cpu_s(master_pid), cpu_s(slave_pid)
    return 100 * (after[0] - before[0]) / idle_s, 100 * (after[1] - before[1]) / idle_s


def disk_bytes_per_s(size_bytes: int) -> float:
    """How fast the disk takes a file, written in order and synced at its end."""
    piece = os.urandom(_PIECE_BYTES)
    with tempfile.TemporaryFile(prefix="bench-disk-") as file:
        began_s = time.perf_counter()
        for _ in range(size_bytes // _PIECE_BYTES):
            os.write(file.fileno(), piece)
        os.fdatasync(file.fileno())
        return size_bytes / (time.perf_counter() - began_s)
