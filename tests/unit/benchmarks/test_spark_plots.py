"""The plots of Spark: which figures stand under which query, and where their aims are drawn."""

from pathlib import Path

from bench import spark_plots
from bench.plots import Bar
from bench.spark_plots import (
    ALL,
    FILTERED,
    LARGER,
    OFFLINE,
    PARQUET,
    PUSHED,
    SINK,
    SOCKETS,
    TO_PARQUET,
)

RATES = {
    f"{SOCKETS}: {ALL}": 90.0,
    f"{OFFLINE}: {ALL}": 200.0,
    f"{PARQUET}: {ALL}": 300.0,
    f"{LARGER}: {FILTERED}": 40.0,
    f"{LARGER}: {PUSHED}": 100.0,
    f"{OFFLINE}: {PUSHED}": 700.0,
    f"{OFFLINE}: {TO_PARQUET}": 7.0,
    SINK: 5.0,
}


def test_every_query_has_its_ways_and_their_aims() -> None:
    assert spark_plots.read_groups(RATES) == [
        (ALL, [Bar(OFFLINE, 200, 500_000), Bar(SOCKETS, 90, 100), Bar(PARQUET, 300)]),
        # The way that was not measured without push-down has nothing to be three times of.
        (PUSHED, [Bar(OFFLINE, 700), Bar(LARGER, 100, 120)]),
        (FILTERED, [Bar(LARGER, 40)]),
    ]


def test_writing_has_its_aims() -> None:
    bars = [bar for _, bars in spark_plots.write_groups(RATES) for bar in bars]
    assert [(bar.value, bar.aim) for bar in bars] == [(5, 50_000), (7, 150_000)]


def test_the_cpu_may_be_three_times_that_of_parquet() -> None:
    cpu_us = {f"{OFFLINE}: {ALL}": 6.0, f"{PARQUET}: {ALL}": 4.0, f"{OFFLINE}: {PUSHED}": 1.0}
    assert spark_plots.cpu_groups(cpu_us) == [(ALL, [Bar(OFFLINE, 6, 12), Bar(PARQUET, 4)])]


def test_every_plot_that_the_page_shows_is_drawn_and_twice_the_same(tmp_path: Path) -> None:
    cpu_us = {f"{OFFLINE}: {ALL}": 6.0, f"{PARQUET}: {ALL}": 4.0}
    seen: list[dict[str, bytes]] = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        lines = spark_plots.draw(RATES, cpu_us, folder)
        drawn = {each.name: each.read_bytes() for each in folder.iterdir()}
        assert {line.rpartition("/")[2].rstrip(")") for line in lines} == set(drawn)
        seen.append(drawn)
    assert seen[0] == seen[1]
