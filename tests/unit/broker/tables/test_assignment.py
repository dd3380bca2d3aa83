"""Queue assignment, and the message request modes of groups."""

from itertools import chain

import pytest

from tianzhou.broker.tables.assignment import ModeTable, averagely, by_circle, share_for_pop
from tianzhou.errors import BodyError
from tianzhou.protocol.bodies.queues import MessageQueue, SetMessageRequestModeBody

CLIENTS = ["a", "b", "c"]


def queues(count: int, broker: str = "x") -> list[MessageQueue]:
    return [MessageQueue(topic="t", broker_name=broker, queue_id=each) for each in range(count)]


def test_averagely_gives_adjacent_queues_and_one_more_to_the_first() -> None:
    assert [averagely(range(8), CLIENTS, each) for each in CLIENTS] == [
        [0, 1, 2], [3, 4, 5], [6, 7],
    ]  # fmt: skip
    assert [averagely(range(2), CLIENTS, each) for each in CLIENTS] == [[0], [1], []]


def test_by_circle_is_round_robin() -> None:
    assert [by_circle(range(5), CLIENTS, each) for each in CLIENTS] == [[0, 3], [1, 4], [2]]


@pytest.mark.parametrize("share", [averagely, by_circle])
@pytest.mark.parametrize("count", range(10))
def test_every_queue_has_one_owner(share: type, count: int) -> None:
    shares = [share(range(count), CLIENTS, each) for each in CLIENTS]
    assert sorted(chain.from_iterable(shares)) == list(range(count))
    assert share(range(count), CLIENTS, "stranger") == []


def test_by_pop_all_share_all_without_a_neighbour_count() -> None:
    both = queues(4) + queues(2, "y")
    for number in (-1, 0, 2, 9):
        mine = share_for_pop(averagely, both, CLIENTS, "b", number)
        assert [(each.broker_name, each.queue_id) for each in mine] == [("x", -1), ("y", -1)]


def test_by_pop_neighbours_share() -> None:
    clients = ["a", "b", "c", "d"]
    mine = share_for_pop(averagely, queues(8), clients, "d", 1)
    assert [each.queue_id for each in mine] == [6, 7, 0, 1]
    few = share_for_pop(averagely, queues(2), clients, "c", 1)
    assert [each.queue_id for each in few] == [0], "each has one, though there are more of them"
    assert share_for_pop(averagely, queues(2), clients, "stranger", 1) == []


def test_modes_are_by_topic_and_group_and_survive_their_file() -> None:
    changes: list[int] = []
    table = ModeTable(lambda: changes.append(1))
    mode = SetMessageRequestModeBody(
        topic="t", consumer_group="g", mode="POP", pop_share_queue_count=2
    )
    table.put("t", "g", mode)
    assert changes == [1]
    loaded = ModeTable()
    loaded.load(
        {"messageRequestModeMap": {"t": {"g": {"mode": "POP", "popShareQueueNum": 2,
                                               "topic": "t", "consumerGroup": "g"}}}}
    )  # fmt: skip
    assert loaded.modes == table.modes
    assert loaded.find("t", "g", "PULL", 7) == mode
    assert loaded.find("t", "other", "POP", 7).pop_share_queue_count == 7
    assert loaded.find("%RETRY%g", "g", "POP", 7).mode == "PULL"


def test_a_file_with_other_content_is_rejected() -> None:
    with pytest.raises(BodyError, match="modes of groups"):
        ModeTable().load({"messageRequestModeMap": {"t": 5}})
