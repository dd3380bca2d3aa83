"""Allocation: every queue exactly once, for every member and order."""

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.client.group.rebalance import (
    Allocate,
    averagely,
    averagely_by_circle,
    by_machine_room,
    consistent_hash,
    machine_room_nearby,
    shares,
)
from tianzhou.client.queues import Queue

NAMES = st.text(st.characters(codec="utf-16"), min_size=1, max_size=5)
QUEUES = st.lists(
    st.builds(Queue, st.just("t"), NAMES, st.integers(0, 40)), min_size=1, max_size=40, unique=True
)
CLIENT_IDS = st.lists(NAMES, min_size=1, max_size=12, unique=True)


def room_by_length(name: str) -> str:
    return str(len(name) % 3)


COMPLETE: list[Allocate] = [
    averagely,
    averagely_by_circle,
    consistent_hash(),
    consistent_hash(1),
    machine_room_nearby(averagely, lambda queue: room_by_length(queue.broker_name), room_by_length),
]


@given(st.sampled_from(COMPLETE), QUEUES, CLIENT_IDS, st.randoms())
def test_every_queue_goes_to_exactly_one_member(
    allocate: Allocate, queues: list[Queue], ids: list[str], random: Random
) -> None:
    given_out: Counter[Queue] = Counter()
    for client_id in tuple(ids):
        random.shuffle(queues)
        random.shuffle(ids)
        given_out.update(shares(allocate, "g", client_id, list(queues), list(ids)))
    assert given_out == Counter(queues)


@given(QUEUES, CLIENT_IDS)
def test_machine_room_covers_exactly_its_rooms(queues: list[Queue], ids: list[str]) -> None:
    queues = [Queue(each.topic, f"r{each.queue_id % 2}@b", each.queue_id) for each in queues]
    allocate = by_machine_room(["r1"])
    given_out: Counter[Queue] = Counter()
    for client_id in ids:
        given_out.update(shares(allocate, "g", client_id, queues, ids))
    assert given_out == Counter({each for each in queues if each.broker_name == "r1@b"})


@given(QUEUES, CLIENT_IDS)
def test_average_portions_differ_by_one_at_most(queues: list[Queue], ids: list[str]) -> None:
    sizes = [len(shares(averagely, "g", client_id, queues, ids)) for client_id in ids]
    assert max(sizes) - min(sizes) <= 1


@given(QUEUES, CLIENT_IDS, st.data())
def test_consistent_hash_moves_only_the_queues_of_the_member_that_left(
    queues: list[Queue], ids: list[str], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(ids))
    rest = [each for each in ids if each != gone]
    allocate = consistent_hash()
    for client_id in rest:
        before = shares(allocate, "g", client_id, queues, ids)
        assert before <= shares(allocate, "g", client_id, queues, rest)
