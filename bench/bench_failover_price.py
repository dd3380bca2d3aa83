"""Benchmark of what automatic failover costs: three elected replicas that wait for each other.

Sends 1 KiB messages to our broker without replication, to three elected replicas with etcd
(SYNC_MASTER), and to Apache's 5.5.0 in controller mode with `allAckInSyncStateSet`, in turns. All
brokers, etcd and the load generator share the machine, so the cores that each took are shown.

`python -m bench.bench_failover_price` prints the tables and changes no page.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from bench import bench_broker, broker_servers, elected_servers, loads
from bench.bench_broker import sending
from bench.bench_replication import cpu_s
from bench.broker_servers import KeepFiles
from bench.broker_table import spread
from bench.elected_servers import APACHE, ELECTED, REPLICAS, Group
from bench.loads import Load, Programs
from bench.progress import Progress
from bench.replicated_servers import ALONE, OURS, end_log_offset
from bench.warm_memory import HELD_MAX_BYTES, WarmMemory, kept

WORK = sending(1024, 64, 16)
TOPIC = "BenchSend"
HEADS = [
    "brokers", "role", "messages/s", "CPU us/message: master", "both slaves", "p50 / p99 ms",
    "cores: master, slaves, etcd, load", "not SEND_OK",
]  # fmt: skip
AIM_HEADS = ["figure", "value", "aim", "met"]
OF_ALONE, OF_APACHE = 0.4, 5.0
_IN_STEP_S = 60.0
_POLL_S = 0.02

Start = Callable[[KeepFiles | None], AbstractContextManager[Group]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Durations."""

    rounds: int = 3
    warmup_s: float = 1.0
    duration_s: float = 4.0
    warm_s: float = 2.0
    apache_warm_s: float = 7.0
    """For the JIT compiler."""
    repeats_max: int = 2
    memory_bytes: int = HELD_MAX_BYTES
    with_apache: bool = True

    @property
    def ours_s(self) -> float:
        """The estimated duration of one measurement of ours, the start included."""
        return 5 + self.warm_s + self.warmup_s + self.duration_s

    @property
    def apache_s(self) -> float:
        return 45 + self.apache_warm_s + self.warmup_s + self.duration_s

    def expected_s(self) -> float:
        apache_s = self.apache_s if self.with_apache else 0.0
        return (15 if self.memory_bytes else 0) + self.rounds * (2 * self.ours_s + apache_s)


FULL = Plan()
QUICK = Plan(
    rounds=1, warmup_s=0.5, duration_s=1.0, warm_s=1.0, repeats_max=0, memory_bytes=0,
    with_apache=False,
)  # fmt: skip


@dataclass(slots=True)
class Samples:
    """The rounds of one group."""

    rate: list[float] = field(default_factory=list[float])
    master_us: list[float] = field(default_factory=list[float])
    slaves_us: list[float] = field(default_factory=list[float])
    p50_us: list[float] = field(default_factory=list[float])
    p99_us: list[float] = field(default_factory=list[float])
    cores: list[tuple[float, float, float, float]] = field(
        default_factory=list[tuple[float, float, float, float]]
    )
    """Of the master, the slaves, etcd and the load generator."""
    failed_share: list[float] = field(default_factory=list[float])


@dataclass(slots=True)
class Results:
    """Everything measured."""

    groups: dict[tuple[str, str], Samples] = field(default_factory=dict[tuple[str, str], Samples])
    """By servers and role."""
    repeated_count: int = 0
    disturbed_count: int = 0

    def rate(self, servers: str, role: str) -> float | None:
        found = self.groups.get((servers, role))
        return statistics.median(found.rate) if found else None


# -- measuring -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    plan: Plan
    programs: Programs
    memory: WarmMemory
    results: Results


def measure(plan: Plan = FULL) -> Results:
    results, progress = Results(), Progress(plan.expected_s())
    groups: list[tuple[Start, float]] = [
        (elected_servers.alone, plan.ours_s),
        (elected_servers.elected, plan.ours_s),
    ]
    if plan.with_apache:
        groups.append((elected_servers.apache, plan.apache_s))
    with loads.built() as programs, kept(plan.memory_bytes) as memory:
        run = _Run(plan, programs, memory, results)
        for number in range(1, plan.rounds + 1):
            for start, expected_s in groups:
                what = _measure_group(run, start)
                progress.done(expected_s, f"round {number} of {plan.rounds}: {what}")
    return results


def _measure_group(run: _Run, start: Start) -> str:
    """Returns a line about the result."""
    run.memory.rebalance()
    with start(run.memory.adopt) as group:
        _warm(run, group)
        load, cores = _measured(run, group)
    samples = run.results.groups.setdefault((group.servers, group.role), Samples())
    rate, latency = load["msgs_per_s"], load["lat_us"]
    samples.rate.append(rate)
    samples.master_us.append(1e6 * cores[0] / rate)
    samples.slaves_us.append(1e6 * cores[1] / rate)
    samples.p50_us.append(latency["p50"])
    samples.p99_us.append(latency["p99"])
    samples.cores.append(cores)
    samples.failed_share.append(sum(load["errors"].values()) / max(load["reqs"], 1))
    return f"{group.servers}, {group.role}: {rate:,.0f}/s"


def _warm(run: _Run, group: Group) -> None:
    broker_servers.create_topic(group.master.port, TOPIC, bench_broker.QUEUES)
    warm_s = run.plan.apache_warm_s if group.servers == APACHE else run.plan.warm_s
    warm = (*WORK, "--warmup", "0", "--duration", str(warm_s))
    loads.run(run.programs.mqload, group.measured, warm, beside=group.slave_pids, strict=False)
    _await_in_step(group)


def _await_in_step(group: Group) -> None:
    """Wait until the slaves have the log of an idle master."""
    deadline_s, end = time.monotonic() + _IN_STEP_S, end_log_offset(group.master)
    for slave in group.brokers[1:]:
        while (found := end_log_offset(slave)) < end:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{slave.name}: its log ends at {found}, its master's at {end}")
            time.sleep(_POLL_S)


def _measured(run: _Run, group: Group) -> tuple[Load, tuple[float, float, float, float]]:
    """One run, repeated while other load on the machine is too large."""
    found = _once(run, group)
    for _ in range(run.plan.repeats_max):
        if not bench_broker.is_disturbed(found[0]):
            break
        if run.results.repeated_count >= 2 * run.plan.rounds:
            break  # A machine that is never idle would make this last for ever.
        run.results.repeated_count += 1
        found = _once(run, group)
    run.results.disturbed_count += bench_broker.is_disturbed(found[0])
    return found


def _once(run: _Run, group: Group) -> tuple[Load, tuple[float, float, float, float]]:
    times = ("--warmup", str(run.plan.warmup_s), "--duration", str(run.plan.duration_s))
    pids = (group.master.pid, *group.slave_pids, *group.authority_pids)
    before = [cpu_s(pid) for pid in pids]
    # Apache's may reject sends in the second in which their JVMs get no CPU; they are counted.
    load = loads.run(
        run.programs.mqload, group.measured, (*WORK, *times), beside=pids[1:],
        strict=group.servers == OURS,
    )  # fmt: skip
    load["stolen_cpu_cores"] = load["steal_cores"]
    used = [cpu_s(pid) - start for pid, start in zip(pids, before, strict=True)]
    # The generator measures the sum without the warm-up; its shares are those of the whole run.
    total_cores = load["cpu_us_per_msg"] * load["msgs_per_s"] / 1e6
    shares = [total_cores * each / max(sum(used), 0.001) for each in used]
    slaves = 1 + len(group.slave_pids)
    cores = (shares[0], sum(shares[1:slaves]), sum(shares[slaves:]), load["gen_cpu_cores"])
    _await_in_step(group)
    return load, cores


# -- results ---------------------------------------------------------------------------------------


def rows(results: Results) -> list[list[str]]:
    return [_cells(*key, samples) for key, samples in results.groups.items()]


def _cells(servers: str, role: str, samples: Samples) -> list[str]:
    has_slaves = any(samples.slaves_us)
    latency = (samples.p50_us, samples.p99_us)
    failed = statistics.median(samples.failed_share)
    return [
        servers, role, spread(samples.rate), spread(samples.master_us),
        spread(samples.slaves_us) if has_slaves else "",
        " / ".join(f"{statistics.median(values) / 1000:.1f}" for values in latency),
        ", ".join(f"{statistics.median(each):.2f}" for each in zip(*samples.cores, strict=True)),
        f"{failed:.2%}" if failed else "",
    ]  # fmt: skip


def aim_rows(results: Results) -> list[list[str]]:
    """The figures with a target."""
    ours, alone, apache = (
        results.rate(*key) for key in ((OURS, ELECTED), (OURS, ALONE), (APACHE, ELECTED))
    )
    wanted = [
        (f"{REPLICAS} elected replicas over no slave, messages/s", alone, OF_ALONE),
        (f"{REPLICAS} elected replicas over those of {APACHE}", apache, OF_APACHE),
    ]
    return [
        [what, f"{ours / other:.2f}", f"at least {aim:g}", "yes" if ours / other >= aim else "no"]
        for what, other, aim in wanted
        if ours and other
    ]


def text(results: Results, table: Callable[[list[str], list[list[str]]], str]) -> str:
    """All of it; `table` formats one."""
    return (
        f"1 KiB (64,16). {results.repeated_count} measurements were repeated because of other "
        f"load, {results.disturbed_count} count despite it. Median, and in brackets the smallest "
        f"and largest of the rounds.\n\n{table(HEADS, rows(results))}\n\n"
        f"{table(AIM_HEADS, aim_rows(results))}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="default %(default)s")
    parser.add_argument("--without-apache", action="store_true", help="measure ours only")
    options = parser.parse_args()
    plan = replace(FULL, rounds=options.rounds, with_apache=not options.without_apache)

    def lines(heads: list[str], found: list[list[str]]) -> str:
        return "\n".join(" | ".join(each) for each in [heads, *found])

    print(text(measure(plan), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
