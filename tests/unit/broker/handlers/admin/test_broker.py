"""Figures of the run-time information, from counters alone."""

from tianzhou.broker.handlers.admin.broker import put_percentile_ms, put_times
from tianzhou.broker.statistics.counters import Stats


def test_appends_are_sorted_into_the_steps_that_rocketmq_has() -> None:
    stats = Stats(started_ms=0)
    for took_ms in (0, 0, 0, 1, 9, 10, 60, 150, 400, 700, 1500, 2500, 3500, 4500, 7000, 99_000):
        stats.stored("t", 1, 1, took_ms)
    steps = dict(part.rsplit(":", 1) for part in put_times(stats).split(" "))
    assert steps == {
        "[<=0ms]": "3", "[0~10ms]": "2", "[10~50ms]": "1", "[50~100ms]": "1", "[100~200ms]": "1",
        "[200~500ms]": "1", "[500ms~1s]": "1", "[1~2s]": "1", "[2~3s]": "1", "[3~4s]": "1",
        "[4~5s]": "1", "[5~10s]": "1", "[10s~]": "1",
    }  # fmt: skip


def test_percentiles_of_appends() -> None:
    stats = Stats(started_ms=0)
    assert put_percentile_ms(stats, 990) == 0
    for _ in range(980):
        stats.stored("t", 1, 1, 0)
    for took_ms in range(1, 21):
        stats.stored("t", 1, 1, took_ms)
    assert put_percentile_ms(stats, 500) == 0
    assert put_percentile_ms(stats, 990) == 10
    assert put_percentile_ms(stats, 999) == 19
