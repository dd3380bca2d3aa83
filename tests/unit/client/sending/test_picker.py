"""The choice of the next queue."""

import pytest

from tianzhou.client.queues import Queue
from tianzhou.client.sending.picker import FaultTable, Picker, pause_ms
from tianzhou.errors import RouteNotFound

A0, A1, B0 = Queue("t", "a", 0), Queue("t", "a", 1), Queue("t", "b", 0)


def test_round_robin_per_topic() -> None:
    picker = Picker()
    assert [picker.pick("t", (A0, A1, B0), 0) for _ in range(4)] == [A0, A1, B0, A0]
    assert picker.pick("u", (A0, A1), 0) == A0


def test_first_queue_is_random() -> None:
    assert Picker(first_index=2).pick("t", (A0, A1, B0), 0) == B0


def test_retry_avoids_the_broker_that_failed() -> None:
    picker = Picker()
    assert [picker.pick("t", (A0, A1, B0), 0, "a") for _ in range(3)] == [B0, B0, B0]
    assert picker.pick("t", (A0, A1), 0, "a") in (A0, A1)


def test_no_queue() -> None:
    with pytest.raises(RouteNotFound, match="topic t"):
        Picker().pick("t", (), 0)


@pytest.mark.parametrize(
    ("latency_ms", "expected_ms"),
    [
        (0, 0), (50, 0), (549, 0), (550, 30_000), (999, 30_000), (1_000, 60_000),
        (2_000, 120_000), (3_000, 180_000), (14_999, 180_000), (15_000, 600_000),
        (30_000, 600_000),
    ],
)  # fmt: skip
def test_pauses(latency_ms: int, expected_ms: int) -> None:
    assert pause_ms(latency_ms) == expected_ms


def test_slow_broker_is_avoided_for_a_while() -> None:
    picker = Picker(use_faults=True)
    assert picker.faults is not None
    picker.faults.note("a", 600, 1_000, failed=False)
    assert {picker.pick("t", (A0, A1, B0), 1_000) for _ in range(6)} == {B0}
    assert {picker.pick("t", (A0, A1, B0), 30_999) for _ in range(6)} == {B0}
    assert {picker.pick("t", (A0, A1, B0), 31_000) for _ in range(6)} == {A0, A1, B0}


def test_failure_counts_as_the_worst() -> None:
    faults = FaultTable()
    faults.note("a", 1, 0, failed=True)
    assert not faults.is_available("a", 599_999)
    assert faults.is_available("a", 600_000)
    faults.note("a", 1, 5, failed=False)
    assert faults.is_available("a", 5)


def test_if_all_brokers_are_slow_the_better_half_is_used() -> None:
    picker = Picker(use_faults=True)
    faults = picker.faults
    assert faults is not None
    for name, latency_ms in (("a", 3_000), ("b", 600), ("c", 2_000), ("d", 1_000)):
        faults.note(name, latency_ms, 0, failed=False)
    queues = [Queue("t", name, number) for name in "abcd" for number in range(2)]
    chosen = {picker.pick("t", queues, 1).broker_name for _ in range(8)}
    assert chosen == {"b", "d"}


def test_best_one_has_no_queue_here() -> None:
    picker = Picker(use_faults=True)
    faults = picker.faults
    assert faults is not None
    faults.note("elsewhere", 600, 0, failed=False)
    faults.note("a", 3_000, 0, failed=False)
    assert picker.pick("t", (A0, A1), 1) in (A0, A1)
    assert faults.least(1) == "a"


def test_nothing_known() -> None:
    assert FaultTable().least(0) is None


def test_many_brokers_take_bounded_memory() -> None:
    faults = FaultTable()
    for number in range(20_000):
        faults.note(f"b{number}", 1, number, failed=True)
    assert not faults.is_available("b19999", 20_000)
    assert faults.is_available("b0", 1), "it is forgotten"
