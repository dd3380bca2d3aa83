"""Samples, hours, charts and retention, on both databases."""

import random

import pytest
from sqlalchemy import Engine, func, select

from tianzhou.console.collect import history, tables
from tianzhou.console.collect.counting import Ledger, Position, SeriesKey
from tianzhou.console.collect.history import (
    CLUSTER,
    GROUP,
    HOUR_MS,
    MINUTE_MS,
    ROUND,
    TOPIC,
    History,
    Sample,
    Sampler,
    SeriesName,
    chart,
    recent,
)
from tianzhou.console.collect.snapshot import Broker, Group, GroupTopic, Snapshot, Topic

START_HOUR = 480_000
START_MS = START_HOUR * HOUR_MS
G, T = SeriesName(GROUP, "g"), SeriesName(TOPIC, "t")


def write(engine: Engine, kept: History, minute: int, **samples: Sample) -> None:
    """Write the samples of a minute after the start; names are groups."""
    named = {SeriesName(GROUP, name): sample for name, sample in samples.items()}
    with engine.begin() as connection:
        at = START_MS // MINUTE_MS + minute
        kept.write(connection, at, named | {SeriesName(ROUND): Sample(None, 60)})


def lags(engine: Engine, minutes: int, name: SeriesName = G) -> list[float | None]:
    to_ms = START_MS + (minutes - 1) * MINUTE_MS
    found = chart(engine, "c", name, START_MS, to_ms, now_ms=to_ms)
    assert found.step_ms == MINUTE_MS
    return [point.lag for point in found.points]


def test_a_minute_without_a_sample_is_zero_and_one_without_a_round_is_unknown(
    engine: Engine,
) -> None:
    kept = History("c")
    write(engine, kept, 0, g=Sample(5, 60))
    write(engine, kept, 1, g=Sample(0, 0))
    write(engine, kept, 3, g=Sample(None, None))
    write(engine, kept, 4, g=Sample(7, 0))
    assert lags(engine, 6) == [5, 0, None, None, 7, None]
    assert lags(engine, 2, SeriesName(GROUP, "never seen")) == [0, 0]
    with engine.connect() as connection:
        # Three samples of the group, and one of each round.
        assert tables.count_of(connection, tables.samples) == 3 + 4


def test_two_rounds_in_one_minute_count_together(engine: Engine) -> None:
    kept = History("c")
    write(engine, kept, 0, g=Sample(5, 60))
    write(engine, kept, 0, g=Sample(3, 120))
    found = chart(engine, "c", G, START_MS, START_MS, now_ms=START_MS)
    assert [(point.lag, point.done_per_s) for point in found.points] == [(3, 1.5)]


def test_series_of_two_clusters_are_apart(engine: Engine) -> None:
    one, two = History("c"), History("d")
    write(engine, one, 0, g=Sample(5, 0))
    write(engine, two, 0, g=Sample(9, 0))
    assert lags(engine, 1) == [5]


def test_an_hour_has_the_largest_and_the_mean_lag_and_all_messages(engine: Engine) -> None:
    chance, kept = random.Random(7), History("c")
    samples = [Sample(chance.choice((0, 3, 50)), chance.choice((0, 0, 120))) for _ in range(3 * 60)]
    for minute, sample in enumerate(samples):
        if minute % 60 != 30:  # a minute without a round
            write(engine, kept, minute, g=sample)
    with engine.begin() as connection:
        assert kept.roll_up(connection, START_MS + 3 * HOUR_MS)
        assert not kept.roll_up(connection, START_MS + 3 * HOUR_MS)
    later_ms = START_MS + 30 * 24 * HOUR_MS
    found = chart(engine, "c", G, START_MS, START_MS + 2 * HOUR_MS, now_ms=later_ms)
    assert found.step_ms == HOUR_MS
    for hour, point in enumerate(found.points):
        wanted = [
            sample
            for minute, sample in enumerate(samples)
            if minute // 60 == hour and minute % 60 != 30
        ]
        assert point.lag_max == max(each.lag or 0 for each in wanted)
        assert point.lag == pytest.approx(sum(each.lag or 0 for each in wanted) / 59)
        done = sum(each.done or 0 for each in wanted)
        assert point.done_per_s == pytest.approx(done / (59 * 60))


def test_hours_that_a_restart_left_out_are_added(engine: Engine) -> None:
    for minute in (0, 61, 122):
        write(engine, History("c"), minute, g=Sample(minute + 1, 0))
    after = History("c")
    with engine.begin() as connection:
        assert after.roll_up(connection, START_MS + 5 * HOUR_MS)
        hours = select(tables.hours.c.hour).distinct().order_by(tables.hours.c.hour)
        assert connection.execute(hours).scalars().all() == [
            START_HOUR, START_HOUR + 1, START_HOUR + 2,
        ]  # fmt: skip
    # The same again changes nothing.
    again = History("c")
    with engine.begin() as connection:
        again.roll_up(connection, START_MS + 5 * HOUR_MS)
        assert tables.count_of(connection, tables.hours) == 6


def test_what_is_older_than_its_time_is_deleted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "DELETED_MAX", 50)
    kept = History("c", minutes_kept=60, hours_kept=2)
    for minute in range(180):
        write(engine, kept, minute, g=Sample(1, 1))
    now_ms = START_MS + 180 * MINUTE_MS
    with engine.begin() as connection:
        History("c").roll_up(connection, now_ms)
    deleted: list[int] = []
    while not deleted or deleted[-1]:
        with engine.begin() as connection:
            deleted.append(kept.expire(connection, now_ms))
    assert max(deleted) <= 50
    assert sum(deleted) == 2 * 120
    with engine.connect() as connection:
        oldest = connection.execute(select(func.min(tables.samples.c.minute))).scalar_one()
        hours = connection.execute(select(func.min(tables.hours.c.hour))).scalar_one()
    assert oldest == START_MS // MINUTE_MS + 120
    assert hours == START_HOUR + 1


def test_the_last_minutes_of_several_series(engine: Engine) -> None:
    kept = History("c")
    for minute in range(5):
        write(engine, kept, minute, g=Sample(minute, 0), h=Sample(10 * minute, 0))
    now_ms = START_MS + 4 * MINUTE_MS
    found = recent(engine, "c", GROUP, ["h", "g", "none"], now_ms=now_ms, minutes=3)
    assert {name: [point.lag for point in points] for name, points in found.items()} == {
        "h": [20, 30, 40],
        "g": [2, 3, 4],
        "none": [0, 0, 0],
    }


def test_a_long_chart_has_a_bounded_number_of_points(engine: Engine) -> None:
    found = chart(engine, "c", G, 0, 10**15, now_ms=10**15)
    assert len(found.points) <= history.POINTS_MAX + 1


# -- from snapshots --------------------------------------------------------------------------------


def snapshot(**fields: object) -> Snapshot:
    return Snapshot(
        cluster="c",
        version=1,
        as_of_ms=START_MS,
        topics=(Topic(name="t", as_of_ms=1), Topic(name="unread")),
        groups=(
            Group(name="g", topics=(GroupTopic(topic="t", lag=4),), lag=4),
            Group(name="unknown", missing=("b",)),
        ),
        brokers=(Broker(name="a", broker_id=0, address="a:1", answered=True, **fields),),  # type: ignore[arg-type]
    )


def test_samples_hold_what_was_counted_since_the_round_before() -> None:
    ledger, sampler = Ledger(), Sampler()
    topic, group = SeriesKey("t"), SeriesKey("t", "g")
    for key in (topic, group):
        ledger.begin(key, "a", Position((0,), 0), "2026-01-01")
    ledger.add(topic, "a", (5,), 1, "2026-01-01")
    first = sampler.samples(snapshot(in_today=100), ledger, 1_000)
    # It is not known since when these were counted.
    assert {each.done for each in first.values()} == {None}
    ledger.add(topic, "a", (9,), 2, "2026-01-01")
    ledger.add(group, "a", (3,), 2, "2026-01-01", (9,))
    second = sampler.samples(snapshot(in_today=107), ledger, 61_000)
    assert second[T] == Sample(0, 4)
    assert second[G] == Sample(4, 3)
    assert second[SeriesName(TOPIC, "unread")] == Sample(0, None)
    assert second[SeriesName(GROUP, "unknown")] == Sample(None, None)
    assert second[SeriesName(ROUND)] == Sample(None, 60)
    assert second[SeriesName(history.BROKER_IN, "a")] == Sample(0, 7)
    assert second[SeriesName(CLUSTER)].done == 4
    # After midnight the figure of the broker begins again.
    third = sampler.samples(snapshot(in_today=2), ledger, 121_000)
    assert third[SeriesName(history.BROKER_IN, "a")] == Sample(0, 2)
    assert third[T] == Sample(0, 0)
