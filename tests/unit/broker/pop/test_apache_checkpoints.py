"""RocketMQ's pop checkpoints: decoding, and which messages are not acknowledged."""

import json

import pytest

from tianzhou.broker.pop.apache_checkpoints import (
    Acks,
    Checkpoint,
    CheckpointQueue,
    Popped,
    parse_checkpoint_record,
)
from tianzhou.broker.pop.inflight import InFlight, Key
from tianzhou.errors import BodyError

POPPED = Popped(Key("g", "t", 3), 100, 5000)
GRACE_MS = 3000


def checkpoint(**changes: object) -> bytes:
    """As fastjson writes it."""
    record: dict[str, object] = {
        "bm": 0, "bn": "broker-a", "c": "g", "d": [0, 1, 5], "it": 1000, "n": 3, "pt": 5000,
        "q": 3, "ro": 0, "so": 100, "t": "t",
    }  # fmt: skip
    return json.dumps(record | changes).encode()


def ack(tag: str, **changes: object) -> Acks:
    body = {"bn": "broker-a", "c": "g", "pt": 5000, "q": 3, "so": 100, "t": "t"} | changes
    record = parse_checkpoint_record(tag, json.dumps(body).encode())
    assert isinstance(record, Acks)
    return record


def point(**changes: object) -> Checkpoint:
    record = parse_checkpoint_record("ck", checkpoint(**changes))
    assert isinstance(record, Checkpoint)
    return record


@pytest.mark.parametrize(
    ("changes", "queue_offsets"),
    [
        ({}, (100, 101, 105)),
        ({"bm": 0b010}, (100, 105)),
        ({"bm": -1}, ()),
        ({"d": None}, (100, 101, 102)),
        ({"d": [], "n": 2, "bm": 1}, (101,)),
        ({"n": 2}, (100, 101)),
    ],
)
def test_a_checkpoint_has_its_unacknowledged_messages(
    changes: dict[str, object], queue_offsets: tuple[int, ...]
) -> None:
    assert point(**changes) == Checkpoint(POPPED, 1000, queue_offsets)


def test_its_messages_become_in_flight_rows() -> None:
    assert point(n=1).rows() == [InFlight(100, 5000, 1000)]
    assert point().visible_ms == 6000


def test_acknowledgements_of_all_formats() -> None:
    assert ack("ack", ao=101) == Acks(POPPED, (101,))
    assert ack("bAck", aol=[100, 105], ao=0) == Acks(POPPED, (100, 105))
    spelled_out = {
        "ackOffset": 7, "startOffset": 100, "consumerGroup": "g", "topic": "t", "queueId": 3,
        "popTime": 5000,
    }  # fmt: skip
    assert parse_checkpoint_record("ack", json.dumps(spelled_out).encode()) == Acks(POPPED, (7,))


def test_other_messages_are_no_checkpoint_records() -> None:
    assert parse_checkpoint_record("TagA", b"anything") is None
    assert parse_checkpoint_record("", b"") is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"{}", checkpoint(n=300), checkpoint(c=""), checkpoint(so="x")]
)
def test_an_invalid_record_is_rejected(body: bytes) -> None:
    with pytest.raises(BodyError):
        parse_checkpoint_record("ck", body)


def test_unacknowledged_messages_are_returned_once_after_their_time() -> None:
    queue = CheckpointQueue(0)
    queue.add(0, point())
    queue.add(1, ack("ack", ao=101))
    queue.add(2, ack("ack", ao=101, pt=4999))
    assert queue.take_due(6000) == [], "an acknowledgement may still be under way"
    assert queue.take_due(6000 + GRACE_MS) == [Checkpoint(POPPED, 1000, (100, 105))]
    assert queue.take_due(10**12) == []


def test_an_acknowledged_pop_has_no_messages_left() -> None:
    queue = CheckpointQueue(0)
    queue.add(0, point())
    queue.add(1, ack("bAck", aol=[100, 101, 105]))
    (done,) = queue.take_due(10_000)
    assert done.queue_offsets == ()


def test_records_are_processed_up_to_the_first_pending_one() -> None:
    queue = CheckpointQueue(7)
    assert queue.done_offset == 6
    queue.add(7, point(it=90_000))
    queue.add(8, point(pt=4000))
    queue.next_offset = 9
    assert (len(queue), queue.done_offset) == (2, 6)
    assert [each.popped.pop_time_ms for each in queue.take_due(8000)] == [4000]
    assert queue.done_offset == 6, "the first is still open"
    queue.take_due(10**6)
    assert queue.done_offset == 8


def test_a_checkpoint_that_was_written_again_counts_with_its_later_time() -> None:
    queue = CheckpointQueue(0)
    queue.add(0, point())
    queue.add(1, point(it=20_000, rp="1"))
    queue.add(2, point())
    assert queue.take_due(10_000) == []
    (late,) = queue.take_due(5000 + 20_000 + GRACE_MS)
    assert late.invisible_time_ms == 20_000
