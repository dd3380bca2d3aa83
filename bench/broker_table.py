"""Results of the broker benchmark as tables and plots: one row per workload, with its targets."""

import statistics
from collections.abc import Callable
from pathlib import Path

from bench import bench_broker, plots
from bench.bench_broker import APACHE, OURS, PURE, Aims, Results, Samples
from bench.machine import median_and_spread

HEADS = [
    "work", "messages/s", "Apache's", "times", "CPU us/message", "Apache's", "times fewer",
    "p50 / p99 / p99.9 ms", "Apache's", "p99 times shorter", "aim", "met",
]  # fmt: skip

Row = tuple[str, Samples, Samples, Aims]
"""Description, Tianzhou's samples, Apache's samples, and the targets of their ratios."""


def rows_of(results: Results) -> list[Row]:
    """Every workload measured on both servers."""
    found: list[Row] = []
    for work in bench_broker.WORKS:
        names = [(work.name, work.meaning, OURS, work.aims)]
        if work.beside is not None:
            names = [
                (work.name, f"{work.meaning} together: send", OURS, work.aims),
                (bench_broker.BESIDE, f"{work.meaning} together: pull", OURS, Aims()),
            ]
        if PURE in work.servers:
            names.append((work.name, f"{work.meaning}, no kernel", PURE, Aims()))
        for name, meaning, server, aims in names:
            ours, theirs = (results.works.get((name, one)) for one in (server, APACHE))
            if ours is not None and theirs is not None:
                found.append((meaning, ours, theirs, aims))
    return found


def cells_of(row: Row) -> list[str]:
    meaning, ours, theirs, aims = row
    gains = gains_of(ours, theirs)
    return [
        meaning,
        spread(ours.rate), spread(theirs.rate), f"{gains['rate']:.1f}",
        spread(ours.cpu_us), spread(theirs.cpu_us), f"{gains['cpu']:.1f}",
        latencies(ours), latencies(theirs), f"{gains['p99']:.1f}",
        describe(aims), verdict(aims, gains),
    ]  # fmt: skip


def gains_of(ours: Samples, theirs: Samples) -> dict[str, float]:
    """How many times better ours are, by median; above 1 is better."""

    def ratio(of: Callable[[Samples], list[float]]) -> float:
        mine, other = statistics.median(of(ours)), statistics.median(of(theirs))
        return other / mine if mine else 0.0

    return {
        "rate": 1 / ratio(lambda samples: samples.rate),
        "cpu": ratio(lambda samples: samples.cpu_us),
        "p50": ratio(lambda samples: samples.p50_us),
        "p99": ratio(lambda samples: samples.p99_us),
    }


_AIMED = {"rate": "rate", "cpu": "CPU", "p50": "p50", "p99": "p99"}


def describe(aims: Aims) -> str:
    parts = [
        f"{label} {getattr(aims, name):.3g}"
        for name, label in _AIMED.items()
        if getattr(aims, name) is not None
    ]
    return ", ".join(parts)


def verdict(aims: Aims, gains: dict[str, float]) -> str:
    """Yes, or the missed target; empty without a target."""
    wanted = {name: getattr(aims, name) for name in _AIMED}
    wanted = {name: least for name, least in wanted.items() if least is not None}
    missed = [
        f"{_AIMED[name]} {gains[name]:.2g}" for name, least in wanted.items() if gains[name] < least
    ]
    if not wanted:
        return ""
    return f"no: {', '.join(missed)}" if missed else "yes"


def spread(values: list[float]) -> str:
    median, low, high = median_and_spread(values)
    digits = 0 if median >= 100 else 1 if median >= 10 else 2
    return f"{median:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def latencies(samples: Samples) -> str:
    medians = (
        statistics.median(values) / 1000
        for values in (samples.p50_us, samples.p99_us, samples.p999_us)
    )
    return " / ".join(f"{ms:.3f}" if ms < 1 else f"{ms:.1f}" for ms in medians)


# -- figures without load --------------------------------------------------------------------------

OTHER_HEADS = ["figure", "Tianzhou", "Apache's", "times", "aim", "met"]


def other_rows(results: Results) -> list[list[str]]:
    """Start, memory, idle CPU; the disk; the workers."""
    rows: list[list[str]] = []
    for what, by_server, limit in (
        ("start of both servers to the first accepted send, s", results.start_s, 1.0),
        ("idle memory of both servers, MiB", results.idle_mib, 80.0),
        ("idle CPU of both servers, % of a core", results.idle_cpu_percent, 0.5),
        ("memory of both servers after the loads, MiB", results.loaded_mib, None),
    ):
        if OURS not in by_server or APACHE not in by_server:
            continue
        ours, theirs = (statistics.median(by_server[name]) for name in (OURS, APACHE))
        rows.append([
            what, spread(by_server[OURS]), spread(by_server[APACHE]),
            f"{theirs / ours:.1f}" if ours else "",
            f"under {limit:g}" if limit is not None else "",
            "" if limit is None else "yes" if ours < limit else "no",
        ])  # fmt: skip
    return rows + _device_rows(results) + _worker_rows(results)


def _device_rows(results: Results) -> list[list[str]]:
    ours = results.works.get(("sync-64-4", OURS))
    if ours is None or not results.device_rate:
        return []
    behind = statistics.median(results.device_rate) / statistics.median(ours.rate)
    waiting = bench_broker.SYNC_WAITING
    return [
        [f"device: syncs/s of {waiting} records each", spread(results.device_syncs), "", "", "",
         ""],
        [f"device: messages/s with {waiting} waiting", spread(results.device_rate), "", "", "", ""],
        ["device's messages/s over the broker's with SYNC_FLUSH", f"{behind:.2f}", "", "",
         "at most 1.5", "yes" if behind <= 1.5 else "no"],
    ]  # fmt: skip


def _worker_rows(results: Results) -> list[list[str]]:
    if not results.workers:
        return []
    samples = results.workers
    gain = statistics.median([sample.gain for sample in samples])

    def row(what: str, values: list[float]) -> list[str]:
        return [what, spread(values), "", "", "", ""]

    return [
        row("one worker alone, messages/s", [each.one_rate for each in samples]),
        row("one worker alone, CPU us/message", [each.one_cpu_us for each in samples]),
        row("two workers, messages/s", [each.two_rate for each in samples]),
        row("two workers, CPU us/message", [each.two_cpu_us for each in samples]),
        row("cores that the two generators took", [each.two_generator_cores for each in samples]),
        ["two workers on two cores over one on one, by CPU", f"{gain:.2f}", "", "",
         "at least 1.7", "yes" if gain >= 1.7 else "no"],
    ]  # fmt: skip


def noise(results: Results) -> str:
    """How many measurements were affected by other load on the machine."""
    every = results.works.values()
    kept = sum(len(samples.rate) for samples in every)
    disturbed = sum(samples.disturbed_count for samples in every)
    return (
        f"{disturbed} of {kept} measurements were disturbed by others on the machine (over "
        f"{bench_broker.DISTURBED_ABOVE_CORES} cores) or by its host (over "
        f"{bench_broker.STOLEN_ABOVE_CORES}), {results.repeated_count} more were repeated for that."
    )


# -- plots -----------------------------------------------------------------------------------------


def draw(results: Results, folder: Path, names: tuple[str, str]) -> None:
    """Plots of CPU, throughput and latency, Tianzhou and Apache."""

    def bars(of: Callable[[Samples], list[float]]) -> list[tuple[str, float, float]]:
        return [
            (meaning, statistics.median(of(ours)), statistics.median(of(theirs)))
            for meaning, ours, theirs, _ in rows_of(results)
        ]

    def in_ms(of: Callable[[Samples], list[float]]) -> Callable[[Samples], list[float]]:
        return lambda samples: [value / 1000 for value in of(samples)]

    plots.pairs(
        folder / "broker-cpu.svg", "The server's CPU per message", "microseconds, less is better",
        bars(lambda samples: samples.cpu_us), names,
    )  # fmt: skip
    plots.pairs(
        folder / "broker-rate.svg", "Throughput", "messages/s, more is better",
        bars(lambda samples: samples.rate), names,
    )  # fmt: skip
    plots.panels(
        folder / "broker-latency.svg", "Latency of a request",
        [
            ("p50, ms", bars(in_ms(lambda samples: samples.p50_us))),
            ("p99, ms", bars(in_ms(lambda samples: samples.p99_us))),
            ("p99.9, ms", bars(in_ms(lambda samples: samples.p999_us))),
        ],
        names,
    )  # fmt: skip
