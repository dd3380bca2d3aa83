"""Snapshots: packing, staleness, lookups."""

import zlib

import pytest

from tianzhou.console.collect import snapshot as snapshots
from tianzhou.console.collect.snapshot import Broker, Group, GroupTopic, Snapshot, Topic
from tianzhou.errors import BodyError


def sample() -> Snapshot:
    groups = tuple(
        Group(
            name=f"PAY_group_{number:04}",
            topics=(GroupTopic(topic=f"PAY_topic_{number % 1000}", lag=number, committed=7),),
            lag=number,
        )
        for number in range(2300)
    )
    brokers = (Broker(name="a", broker_id=0, address="h:1", answered=True),
               Broker(name="a", broker_id=1, address="h:2", problem="time-out"))  # fmt: skip
    return Snapshot(
        cluster="c", version=7, as_of_ms=1_000, groups=groups, brokers=brokers,
        topics=(Topic(name="PAY_topic_0"),),
    )  # fmt: skip


def test_packing_returns_the_same_snapshot_in_about_100_bytes_a_group() -> None:
    packed = snapshots.pack(sample())
    assert snapshots.unpack(packed) == sample()
    assert len(packed) < 100 * 2300


@pytest.mark.parametrize(
    "damaged", [b"", b"not packed", zlib.compress(b"{}"), snapshots.pack(sample())[:-20]]
)
def test_a_damaged_snapshot_is_rejected(damaged: bytes) -> None:
    with pytest.raises(BodyError, match="cannot be read"):
        snapshots.unpack(damaged)


def test_a_snapshot_that_unpacks_to_more_than_the_limit_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "PACKED_BYTES_MAX", 1000)
    with pytest.raises(BodyError, match="larger than 1,000 bytes"):
        snapshots.unpack(snapshots.pack(sample()))


def test_a_snapshot_is_stale_after_three_intervals() -> None:
    found = sample()
    assert not found.is_stale(1_000 + 3 * found.interval_ms)
    assert found.is_stale(1_001 + 3 * found.interval_ms)


def test_unanswered_brokers_and_lookups_by_name() -> None:
    found = sample()
    assert [each.label for each in found.unanswered] == ["a[1]"]
    assert found.broker("a", 1) is found.brokers[1]
    assert found.topic("PAY_topic_0") is found.topics[0]
    group = found.group("PAY_group_0003")
    assert group is not None
    assert group.lag == 3
    assert found.group("none") is None
    assert found.topic("none") is None
    assert found.broker("none") is None
