"""Results of the replication benchmark as tables: clusters and workloads, then the aims."""

import statistics
from collections.abc import Callable
from dataclasses import replace

from bench.bench_replication import (
    DELAYED,
    FULL,
    IN_FLIGHT_1024,
    WORKS,
    Results,
    Samples,
    measure,
)
from bench.broker_table import spread
from bench.replicated_servers import ALONE, APACHE_VERSIONS, ASYNC, OURS, ROLES, SYNC

HEADS = [
    "work", "brokers", "role", "messages/s", "CPU us/message: master", "slave", "p50 / p99 ms",
    "cores: master, slave, load", "slave behind at the end, MiB", "not SEND_OK",
]  # fmt: skip
AIM_HEADS = ["figure", "value", "aim", "met"]

_CLUSTERS = [
    *((OURS, role) for role in (*ROLES, DELAYED)),
    *((f"Apache {version}", role) for version in APACHE_VERSIONS for role in (ASYNC, SYNC)),
]


def rows(results: Results) -> list[list[str]]:
    """Every workload on every cluster that was measured."""
    return [
        _cells(work, servers, role, results.works[servers, role, work])
        for work in WORKS
        for servers, role in _CLUSTERS
        if (servers, role, work) in results.works
    ]


def _cells(work: str, servers: str, role: str, samples: Samples) -> list[str]:
    has_slave = any(samples.slave_us)
    cores = (samples.master_cores, samples.slave_cores, samples.load_cores)
    latency = (samples.p50_us, samples.p99_us)
    failed = statistics.median(samples.failed_share)
    return [
        work, servers, role, spread(samples.rate), spread(samples.master_us),
        spread(samples.slave_us) if has_slave else "",
        " / ".join(f"{statistics.median(values) / 1000:.1f}" for values in latency),
        ", ".join(f"{statistics.median(values):.2f}" for values in cores),
        f"{statistics.median(samples.behind_mib):,.0f}" if has_slave else "",
        f"{failed:.2%}" if failed else "",
    ]  # fmt: skip


def aim_rows(results: Results) -> list[list[str]]:
    """The figures with a target."""
    found = [*_ratios(results), *_others(results)]
    return [
        [what, value, aim, "" if is_met is None else "yes" if is_met else "no"]
        for what, value, aim, is_met in found
    ]


_Row = tuple[str, str, str, bool | None]


def _ratios(results: Results) -> list[_Row]:
    def of(servers: str, role: str) -> float | None:
        return results.median(servers, role, IN_FLIGHT_1024)

    ours, alone, delayed = (of(OURS, role) for role in (SYNC, ALONE, DELAYED))
    wanted = [
        ("SYNC_MASTER over no slave, messages/s at (64,16)", ours, alone, 0.5),
        ("the same with 2 ms between the brokers", delayed, alone, 0.4),
        *(
            (f"SYNC_MASTER over that of {apache}, (64,16)", ours, of(apache, SYNC), 4.0)
            for apache in (f"Apache {version}" for version in APACHE_VERSIONS)
        ),
    ]
    return [
        (what, f"{rate / other:.2f}", f"at least {aim:g}", rate / other >= aim)
        for what, rate, other, aim in wanted
        if rate and other
    ] + _cpu_ratio(results)


def _cpu_ratio(results: Results) -> list[_Row]:
    """What a master on a host of its own could do, if its CPU is the limit."""
    alone, ours = (
        results.median(OURS, role, IN_FLIGHT_1024, "master_us") for role in (ALONE, SYNC)
    )
    if not alone or not ours:
        return []
    return [("the same by CPU of the master alone, (64,16)", f"{alone / ours:.2f}", "", None)]


def _others(results: Results) -> list[_Row]:
    rows: list[_Row] = []
    if (copied := results.copied) is not None:
        mb_per_s, disk_mb_per_s = copied.bytes_per_s / 1e6, results.disk_bytes_per_s / 1e6
        gb = copied.copied_bytes / 1e9
        rows += [
            (
                f"an empty slave copies {gb:.1f} GB, MB/s", f"{mb_per_s:,.0f}",
                f"at least 500, or the disk's {disk_mb_per_s:,.0f}",
                mb_per_s >= min(500, disk_mb_per_s),
            ),
            ("CPU of the master meanwhile, s/GB", f"{copied.master_cpu_s / gb:.2f}", "", None),
            ("CPU of the slave meanwhile, s/GB", f"{copied.slave_cpu_s / gb:.2f}", "", None),
        ]  # fmt: skip
    master, slave = results.idle_percent
    return [
        *rows,
        ("idle CPU of a slave, % of a core", f"{slave:.2f}", "below 0.5", slave < 0.5),
        ("idle CPU of a master with a slave, % of a core", f"{master:.2f}", "", None),
    ]


def noise(results: Results) -> str:
    """How quiet the machine was."""
    return (
        f"{results.round_count} rounds of ours, one of Apache's. "
        f"{results.repeated_count} measurements were repeated because of other load, "
        f"{results.disturbed_count} count despite it."
    )


def text(results: Results, table: Callable[[list[str], list[list[str]]], str]) -> str:
    """All of it; `table` formats one."""
    return (
        f"{noise(results)} Median, and in brackets the smallest and largest of the rounds.\n\n"
        f"{table(HEADS, rows(results))}\n\n{table(AIM_HEADS, aim_rows(results))}"
    )


def main() -> None:
    def lines(heads: list[str], found: list[list[str]]) -> str:
        return "\n".join(" | ".join(each) for each in [heads, *found])

    print(text(measure(replace(FULL, with_apache=False)), lines))


if __name__ == "__main__":
    main()
