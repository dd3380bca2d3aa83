"""Allocation strategies on small examples."""

from collections.abc import Sequence

import pytest

from tianzhou.client.group.rebalance import (
    Allocate,
    averagely,
    averagely_by_circle,
    by_config,
    by_machine_room,
    consistent_hash,
    machine_room_nearby,
    shares,
)
from tianzhou.client.queues import Queue, java_order
from tianzhou.errors import ConfigError

QUEUES = [Queue("t", broker, number) for broker in ("a", "b") for number in range(4)]
IDS = ["10.0.0.1@1", "10.0.0.2@1", "10.0.0.3@1"]


def numbers(allocate: Allocate, client_id: str, queues: Sequence[Queue] = QUEUES) -> list[int]:
    """Positions of the own queues in the list of all."""
    return [queues.index(each) for each in allocate("g", client_id, queues, IDS)]


def test_averagely_assigns_neighbours_and_the_remainder_to_the_first() -> None:
    assert [numbers(averagely, each) for each in IDS] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [numbers(averagely, each, QUEUES[:2]) for each in IDS] == [[0], [1], []]


def test_by_circle_is_round_robin() -> None:
    assert [numbers(averagely_by_circle, each) for each in IDS] == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_consistent_hash_without_virtual_nodes_assigns_nothing() -> None:
    assert not consistent_hash(0)("g", IDS[0], QUEUES, IDS)
    with pytest.raises(ConfigError, match="virtual_node_count is -1"):
        consistent_hash(-1)


def test_by_config_assigns_existing_queues_of_the_list() -> None:
    mine = by_config([QUEUES[5], Queue("t", "c", 0)])
    assert mine("g", IDS[0], QUEUES, IDS) == [QUEUES[5]]


def test_by_machine_room_uses_the_part_before_the_at_sign() -> None:
    queues = [Queue("t", name, 0) for name in ("r1@a", "r1@b", "r2@a", "r1@a@b", "r1@", "plain")]
    allocate = by_machine_room(["r1"])
    assert [numbers(allocate, each, queues) for each in IDS] == [[0], [1], []]
    many = [Queue("t", "r1@a", number) for number in range(8)]
    # Java gives the surplus from the end, one each, so portions are not neighbours only.
    assert [numbers(allocate, each, many) for each in IDS] == [[0, 1, 6], [2, 3, 7], [4, 5]]


def test_nearby_assigns_the_own_room_first_and_shares_rooms_without_members() -> None:
    rooms = {"10.0.0.1@1": "east", "10.0.0.2@1": "east", "10.0.0.3@1": "west"}
    brokers = {"a": "east", "b": "north"}
    allocate = machine_room_nearby(
        averagely, lambda queue: brokers[queue.broker_name], lambda each: rooms[each]
    )
    assert [numbers(allocate, each) for each in IDS] == [[0, 1, 4, 5], [2, 3, 6], [7]]


def test_nearby_rejects_brokers_and_clients_without_room() -> None:
    homeless = machine_room_nearby(averagely, lambda _: "", lambda _: "east")
    with pytest.raises(ConfigError, match="t@a:0 is in no machine room"):
        homeless("g", IDS[0], QUEUES, IDS)
    lost = machine_room_nearby(averagely, lambda _: "east", lambda _: "")
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1@1 is in no machine room"):
        lost("g", IDS[0], QUEUES, IDS)


def test_shares_sorts_and_is_empty_for_non_members() -> None:
    shuffled, ids = QUEUES[::-1], IDS[::-1]
    assert shares(averagely, "g", IDS[0], shuffled, ids) == set(QUEUES[:3])
    assert not shares(averagely, "g", "10.0.0.9@1", QUEUES, IDS)
    assert not shares(averagely, "g", IDS[0], [], IDS)


def always(queue: Queue) -> Allocate:
    return lambda group, client_id, queues, ids: [queue]


def test_unknown_queue_of_a_custom_strategy_is_rejected() -> None:
    assert shares(always(QUEUES[7]), "g", IDS[0], QUEUES, IDS) == {QUEUES[7]}
    with pytest.raises(ConfigError, match="returned u@a:9, which is not one of the 8 queues"):
        shares(always(Queue("u", "a", 9)), "g", IDS[0], QUEUES, IDS)


def test_queues_sort_like_java_strings() -> None:
    # U+FFFD sorts after the surrogates that begin U+1F600, though its code point is lower.
    names = [Queue("t", "\ufffd", 0), Queue("t", "\U0001f600", 0), Queue("t", "z", 10)]
    assert [each.broker_name for each in java_order(names)] == ["z", "\U0001f600", "\ufffd"]
    assert [each.queue_id for each in java_order([Queue("t", "a", 10), Queue("t", "a", 9)])] == [
        9,
        10,
    ]
