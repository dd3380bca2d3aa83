"""Plots of the Spark benchmark: rows per second of queries and writes, with their targets."""

from collections.abc import Mapping
from pathlib import Path

from bench import plots
from bench.plots import Bar, Group

ALL, SUM, GROUP = "all columns", "sum of two columns", "group by tag"
PUSHED, FILTERED = "1 % by tag, by the option tags", "1 % by tag, filtered by Spark"
OFFLINE, PARQUET = "offline", "Parquet"
SOCKETS, LARGER = "sockets", "sockets, larger pulls"
TO_PARQUET, SINK = "write to Parquet", "sink: into a topic"

QUERIES = (ALL, SUM, GROUP, PUSHED, FILTERED)
WAYS = (OFFLINE, LARGER, SOCKETS, PARQUET)
RATE_AIMS: Mapping[str, float] = {
    f"{OFFLINE}: {ALL}": 500_000,
    f"{OFFLINE}: {SUM}": 600_000,
    f"{OFFLINE}: {GROUP}": 400_000,
    f"{OFFLINE}: {TO_PARQUET}": 150_000,
    SINK: 50_000,
}
PUSHED_TIMES = 3
"""Target: the option tags is this many times faster than a filter in Spark."""
SOCKETS_SHARE = 0.5
"""Target: the rate over sockets, relative to offline."""
CPU_TIMES = 3
"""Target: at most this many times the CPU of Spark reading Parquet."""

Values = Mapping[str, float]
"""Figures by their names, `way: query`."""


def aim_of(what: str, rates: Values) -> float | None:
    """The target of a figure in rows per second, if the figures it depends on were measured."""
    way, _, query = what.partition(": ")
    if query == PUSHED:
        plain = rates.get(f"{way}: {FILTERED}")
        return None if plain is None else PUSHED_TIMES * plain
    if query == ALL and way in (SOCKETS, LARGER):
        whole = rates.get(f"{OFFLINE}: {ALL}")
        return None if whole is None else SOCKETS_SHARE * whole
    return RATE_AIMS.get(what)


def read_groups(rates: Values) -> list[Group]:
    """The queries, each with its measured ways of reading."""
    groups: list[Group] = []
    for query in QUERIES:
        names = {way: f"{way}: {query}" for way in WAYS}
        bars = [
            Bar(way, rates[what], aim_of(what, rates))
            for way, what in names.items()
            if what in rates
        ]
        if bars:
            groups.append((query, bars))
    return groups


def write_groups(rates: Values) -> list[Group]:
    """Writes into a topic, and into Parquet."""
    named = {
        SINK: ("rows of Spark into a topic", "topics"),
        f"{OFFLINE}: {TO_PARQUET}": ("messages into Parquet", "topics"),
        f"{PARQUET}: {TO_PARQUET}": ("the same rows from Parquet into Parquet", PARQUET),
    }
    return [
        (label, [Bar(way, rates[what], aim_of(what, rates))])
        for what, (label, way) in named.items()
        if what in rates
    ]


def cpu_groups(cpu_us: Values) -> list[Group]:
    """The offline queries compared with the same queries on Parquet."""
    groups: list[Group] = []
    for query in (ALL, SUM, GROUP):
        ours, theirs = (cpu_us.get(f"{way}: {query}") for way in (OFFLINE, PARQUET))
        if ours is not None and theirs is not None:
            groups.append((query, [Bar(OFFLINE, ours, CPU_TIMES * theirs), Bar(PARQUET, theirs)]))
    return groups


def draw(rates: Values, cpu_us: Values, folder: Path) -> list[str]:
    """Write the plots; returns the lines of the page that show them."""
    plots.marked(
        folder / "spark-rate.svg", "Spark reads, on two cores", "rows/s, more is better",
        read_groups(rates), "{:,.0f}",
    )  # fmt: skip
    plots.marked(
        folder / "spark-write.svg", "Spark writes, on two cores", "rows/s, more is better",
        write_groups(rates), "{:,.0f}",
    )  # fmt: skip
    plots.marked(
        folder / "spark-cpu.svg", "Spark's CPU per row, all its processes",
        "microseconds, less is better; the aim is at most this", cpu_groups(cpu_us), "{:.2f}",
    )  # fmt: skip
    return [
        "![Rows a second of each query, with the aims](plots/spark-rate.svg)",
        "![Rows a second of writing, with the aims](plots/spark-write.svg)",
        "![CPU per row, beside Parquet](plots/spark-cpu.svg)",
    ]
