"""Counts of days in the database: written once, read back, apart by cluster and source."""

import pytest
from sqlalchemy import Engine

from tianzhou.console.collect import daily, tables
from tianzhou.console.collect.counting import Ledger, Position, SeriesKey
from tianzhou.console.collect.daily import Check, check_of
from tianzhou.console.collect.snapshot import SYSTEM, Broker, Snapshot, Topic
from tianzhou.errors import BodyError
from tianzhou.monitor import tables as shared

DAY, NEXT = "2026-01-01", "2026-01-02"
TOPIC, GROUP = SeriesKey("t"), SeriesKey("t", "g")


def ledger_of() -> Ledger:
    ledger = Ledger()
    for key in (TOPIC, GROUP):
        ledger.begin(key, "a", Position((0, 0), 5), DAY)
    ledger.add(TOPIC, "a", (5, 4), 9, DAY)
    ledger.add(GROUP, "a", (3, 4), 9, DAY, (5, 4))
    ledger.add(GROUP, "a", (1, 4), 10, DAY, (5, 4))
    return ledger


def save(engine: Engine, ledger: Ledger, cluster: str = "c") -> daily.Changes:
    changes = daily.changes_of(ledger)
    with engine.begin() as connection:
        daily.write(connection, cluster, changes, 77)
    daily.written(ledger, changes)
    return changes


def test_a_ledger_is_read_back_with_counts_positions_and_since(engine: Engine) -> None:
    save(engine, ledger_of())
    found = daily.load(engine, "c", DAY)
    assert found.position(TOPIC, "a") == Position((5, 4), 9)
    assert found.position(GROUP, "a") == Position((1, 4), 10)
    assert found.counted(TOPIC, DAY, "2025-12-31").today == 9
    assert found.counted(GROUP, DAY, "2025-12-31") == (7, None, 1)
    found.add(TOPIC, "a", (6, 4), 11, DAY)
    save(engine, found)
    (topic, group) = daily.totals_between(engine, "c", DAY, NEXT)
    assert (topic.produced, topic.consumed, topic.resets, topic.source) == (10, None, 0, "offsets")
    assert (group.produced, group.consumed, group.resets) == (None, 7, 1)
    assert (topic.produced_bytes, topic.distinct_keys) == (None, None)


def test_only_what_changed_is_written(engine: Engine) -> None:
    ledger = ledger_of()
    first = save(engine, ledger)
    assert (len(first.days), len(first.marks)) == (2, 2)
    nothing = save(engine, ledger)
    assert (nothing.days, nothing.marks, nothing.gone) == ([], [], [])
    ledger.add(TOPIC, "a", (6, 4), 11, DAY)
    more = save(engine, ledger)
    assert [key for key, *_ in more.days] == [TOPIC]


def test_clusters_are_apart(engine: Engine) -> None:
    save(engine, ledger_of(), "c")
    assert daily.load(engine, "d", DAY).series == {}
    assert daily.totals_between(engine, "d", DAY, NEXT) == []


def test_counts_of_topics_that_are_gone_stay_and_their_marks_go(engine: Engine) -> None:
    ledger = ledger_of()
    save(engine, ledger)
    ledger.forget(TOPIC)
    save(engine, ledger)
    with engine.connect() as connection:
        assert tables.count_of(connection, tables.marks) == 1
    assert len(daily.totals_between(engine, "c", DAY, NEXT, topic="t", group="")) == 1


def test_a_row_of_spark_wins(engine: Engine) -> None:
    row = {
        "cluster": "c", "topic": "t", "consumer_group": "", "day": DAY, "hour": -1, "produced": 8,
        "produced_bytes": 800, "distinct_keys": 3, "source": "log", "updated_ms": 1,
    }  # fmt: skip
    ledger = ledger_of()
    save(engine, ledger)
    with engine.begin() as connection:
        shared.upsert(connection, shared.topic_stats, [row])
    ledger.add(TOPIC, "a", (50, 4), 11, DAY)
    save(engine, ledger)
    (found,) = daily.totals_between(engine, "c", DAY, DAY, group="")
    assert (found.produced, found.produced_bytes, found.distinct_keys) == (8, 800, 3)
    # A row of the console is replaced by Spark's, as above; other days are not affected.
    ledger.add(TOPIC, "a", (51, 4), 12, NEXT)
    save(engine, ledger)
    (found,) = daily.totals_between(engine, "c", NEXT, NEXT, group="")
    assert (found.produced, found.source) == (1, "offsets")


def test_rows_of_hours_are_only_read_if_wanted(engine: Engine) -> None:
    rows = [
        {
            "cluster": "c", "topic": "t", "consumer_group": "", "day": DAY, "hour": hour,
            "produced": 1, "source": "log", "updated_ms": 1,
        }
        for hour in (-1, 0, 13)
    ]  # fmt: skip
    with engine.begin() as connection:
        shared.upsert(connection, shared.topic_stats, rows)
    assert [row.hour for row in daily.totals_between(engine, "c", DAY, DAY)] == [-1]
    found = daily.totals_between(engine, "c", DAY, DAY, hours=True)
    assert [row.hour for row in found] == [-1, 0, 13]
    assert len(daily.totals_between(engine, "c", DAY, DAY, hours=True, rows_max=2)) == 2


def test_days_that_are_too_old_are_deleted(engine: Engine) -> None:
    ledger = ledger_of()
    ledger.add(TOPIC, "a", (9, 9), 11, NEXT)
    save(engine, ledger, "c")
    save(engine, ledger_of(), "d")
    with engine.begin() as connection:
        daily.expire(connection, "c", NEXT)
    assert {row.day for row in daily.totals_between(engine, "c", DAY, NEXT)} == {NEXT}
    assert {row.day for row in daily.totals_between(engine, "d", DAY, NEXT)} == {DAY}


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x81\xa1a\x01"])
def test_a_damaged_mark_is_an_error(data: bytes) -> None:
    with pytest.raises(BodyError, match="console_marks"):
        daily.unpack(data)


def test_the_check_compares_topics_with_brokers() -> None:
    topics = (
        Topic(name="t", today=5),
        Topic(name="%RETRY%g", kind="retry", today=2),
        Topic(name="TBW102", kind=SYSTEM, today=None),
    )
    brokers = (
        Broker(name="a", broker_id=0, address="", in_today=6),
        Broker(name="b", broker_id=0, address="", in_today=3),
        Broker(name="b", broker_id=1, address="", in_today=None),
    )
    found = Snapshot(cluster="c", version=1, as_of_ms=1, topics=topics, brokers=brokers)
    assert check_of(found) == Check(topics=7, brokers=9)
    assert check_of(found).difference == 2
    unknown = Snapshot(cluster="c", version=1, as_of_ms=1, brokers=brokers[2:], topics=(
        Topic(name="t"),))  # fmt: skip
    assert check_of(unknown).difference is None
