"""Pull responses: which records are accepted, pulled again, or left out."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.records import encode_record

from tianzhou.client.group.record_decoding import (
    Damage,
    Reading,
    check_offsets,
    read_records,
    unwrapped,
)
from tianzhou.client.queues import Queue
from tianzhou.errors import RecordError
from tianzhou.message import StoredMessage
from tianzhou.protocol.kernel import body_crc
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.batch import BatchItem
from tianzhou.protocol.records.compression import CompressionType, compress, flag_of
from tianzhou.protocol.records.record import decode_records
from tianzhou.protocol.sysflag import INNER_BATCH, NEED_UNWRAP

QUEUE = Queue("t", "a", 3)
HOST = ("127.0.0.1", 80)


def record(queue_offset: int, body: bytes = b"body", topic: str = "t", queue_id: int = 3) -> bytes:
    return encode_record(
        topic=topic, body=body, properties_text="k\x01v\x02", queue_id=queue_id,
        queue_offset=queue_offset, born_time_ms=1, born_host=HOST, store_host=HOST,
        log_offset=queue_offset * 200, store_time_ms=2,
    )  # fmt: skip


def damaged(queue_offset: int, body: bytes = b"bodi") -> bytes:
    return record(queue_offset).replace(b"body", body)


def offsets(reading: Reading) -> list[int]:
    return [each.queue_offset for each in reading.stored]


def test_undamaged_records() -> None:
    reading = read_records(record(5) + record(6) + record(8), QUEUE, 5, 9)
    assert (offsets(reading), reading.damage, reading.left_out) == ([5, 6, 8], None, False)


def test_records_before_a_damaged_one_are_returned() -> None:
    reading = read_records(record(5) + damaged(6) + record(7), QUEUE, 5, 8)
    assert offsets(reading) == [5]
    assert reading.damage == Damage(6, body_crc(b"body"), body_crc(b"bodi"))
    assert "offset 6 is damaged" in str(reading.damage)


def test_record_with_a_known_damage_is_left_out() -> None:
    body = damaged(5) + record(6)
    first = read_records(body, QUEUE, 5, 7)
    assert offsets(first) == []
    again = read_records(body, QUEUE, 5, 7, known=first.damage)
    assert (offsets(again), again.damage, again.left_out) == ([6], None, True)
    # Another damage at the same place happened on the way.
    other = read_records(damaged(5, b"Body"), QUEUE, 5, 6, known=first.damage)
    assert (offsets(other), other.left_out) == ([], False)
    assert other.damage == Damage(5, body_crc(b"body"), body_crc(b"Body"))


def test_two_records_damaged_in_the_log() -> None:
    body = damaged(5) + damaged(6)
    first = read_records(body, QUEUE, 5, 7)
    second = read_records(body, QUEUE, 5, 7, known=first.damage)
    assert (second.left_out, second.damage) == (True, Damage(6, *_crcs()))
    third = read_records(damaged(6), QUEUE, 6, 7, known=second.damage)
    assert (third.left_out, third.damage, offsets(third)) == (True, None, [])


def _crcs() -> tuple[int, int]:
    return body_crc(b"body"), body_crc(b"bodi")


def test_offset_delta_of_a_moved_queue() -> None:
    reading = read_records(record(5, queue_id=0), QUEUE, 105, 106, offset_delta=100)
    (stored,) = reading.stored
    assert (stored.queue_id, stored.queue_offset) == (3, 105)


@pytest.mark.parametrize(
    "body",
    [
        record(5, topic="u"),
        record(5, queue_id=2),
        record(4),
        record(6) + record(5),
        record(5) + record(5),
        record(8),
        record(5)[:-1],
        b"nonsense",
    ],
)
def test_records_of_another_queue_or_range_are_rejected(body: bytes) -> None:
    with pytest.raises(RecordError):
        read_records(body, QUEUE, 5, 8)


def test_light_topic_has_records_of_other_topics() -> None:
    (found,) = decode_records(record(70, topic="parent"))
    check_offsets([found], Queue("%LMQ%child", "a", 0), 5, 8)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.data())
def test_one_flipped_bit_never_changes_a_body(bodies: list[bytes], data: st.DataObject) -> None:
    """Accepted records of a damaged response have the right body and offset."""
    whole = b"".join(record(5 + at, body) for at, body in enumerate(bodies))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    flipped = bytearray(whole)
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        reading = read_records(bytes(flipped), QUEUE, 5, 5 + len(bodies))
    except RecordError:
        return
    found = [(each.queue_offset, each.body) for each in reading.stored]
    assert found == list(enumerate(bodies, 5))[: len(found)]
    if reading.damage is not None:
        assert reading.damage.queue_offset == 5 + len(found)
    else:
        assert len(found) == len(bodies)


# -- batches in one record -------------------------------------------------------------------------


def wrapped(body: bytes, more_flags: int = 0) -> StoredMessage:
    (plain,) = decode_records(record(40, body))
    return msgspec.structs.replace(plain, sys_flag=INNER_BATCH | NEED_UNWRAP | more_flags)


@pytest.mark.parametrize("packed", [False, True])
def test_batch_is_unwrapped(packed: bool) -> None:
    body = batch.encode([BatchItem(b"1", "TAGS\x01a\x02", 7), BatchItem(b"2" * 9)])
    outer = wrapped(body)
    if packed:
        kind = CompressionType.ZLIB
        outer = wrapped(compress(body, kind), flag_of(kind))
    (plain,) = decode_records(record(42))
    one, two, three = unwrapped([outer, plain], 1_000)
    assert (one.queue_offset, one.body, one.flag, one.tags) == (40, b"1", 7, "a")
    assert (two.queue_offset, two.body, two.flag, two.tags) == (41, b"2" * 9, 0, None)
    assert (one.sys_flag, two.sys_flag) == (0, 0)
    assert three is plain


def test_undecodable_batch_is_returned_unchanged() -> None:
    outer = wrapped(b"no batch")
    assert unwrapped([outer], 1_000) == [outer]
