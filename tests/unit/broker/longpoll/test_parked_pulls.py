"""Parked pulls: woken by queue, by time, by a closed connection."""

from tianzhou.broker.longpoll.parked_pulls import SLOT_MS, ParkedPulls

QUEUE, OTHER = ("t", 0), ("t", 1)


def test_a_pull_waits_for_its_queue_only() -> None:
    pulls = ParkedPulls[str, str]()
    assert not pulls.has(QUEUE)
    parked = pulls.park("connection", QUEUE, 5, 1000, "request")
    assert pulls.has(QUEUE)
    assert not pulls.has(OTHER)
    assert pulls.waiting(QUEUE) == [parked]
    assert pulls.waiting(OTHER) == []
    pulls.remove(parked)
    pulls.remove(parked)
    assert len(pulls) == 0
    assert not pulls.has(QUEUE)
    assert pulls.next_deadline_ms() is None


def test_time_runs_out_at_the_deadline_and_not_before() -> None:
    pulls = ParkedPulls[str, str]()
    late = pulls.park("c", QUEUE, 0, 4 * SLOT_MS, "late")
    early = pulls.park("c", OTHER, 0, 3 * SLOT_MS - 1, "early")
    assert pulls.next_deadline_ms() == 3 * SLOT_MS
    assert pulls.take_due(3 * SLOT_MS - 1) == []
    assert pulls.take_due(3 * SLOT_MS) == [early]
    assert pulls.take_due(100 * SLOT_MS) == [late]
    assert len(pulls) == 0


def test_a_closed_connection_removes_its_pulls() -> None:
    pulls = ParkedPulls[str, str]()
    for queue in (QUEUE, OTHER):
        pulls.park("gone", queue, 0, 1000, "r")
    stays = pulls.park("stays", QUEUE, 0, 1000, "r")
    pulls.remove_owner("gone")
    pulls.remove_owner("unknown")
    assert pulls.waiting(QUEUE) == [stays]
    assert not pulls.has(OTHER)
    assert len(pulls) == 1


def test_the_sweep_finds_queues_with_messages_for_parked_pulls() -> None:
    pulls = ParkedPulls[str, str]()
    pulls.park("c", QUEUE, 5, 1000, "r")
    pulls.park("c", QUEUE, 3, 1000, "r")
    pulls.park("c", OTHER, 3, 1000, "r")
    ends = {QUEUE: 4, OTHER: 3}
    assert pulls.overdue_queues(ends.__getitem__) == [QUEUE]


def test_all_pulls_are_removed_at_the_stop() -> None:
    pulls = ParkedPulls[str, int]()
    for number in range(5):
        pulls.park("c", ("t", number % 2), 0, 1000 * number, number)
    assert sorted(parked.request for parked in pulls.take_all()) == [0, 1, 2, 3, 4]
    assert len(pulls) == 0
    assert pulls.next_deadline_ms() is None
