"""The message record, with the kernel and with the pure-Python code."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_strategies

from tianzhou.errors import RecordError
from tianzhou.message import StoredMessage
from tianzhou.protocol import sysflag
from tianzhou.protocol.kernel import body_crc
from tianzhou.protocol.records import record

pytestmark = pytest.mark.usefixtures("codec")

DERIVED = {"sys_flag": 0, "body_crc": 0, "size_bytes": 0}


@given(wire_strategies.stored_messages, st.booleans())
def test_message_round_trips_through_the_record(message: StoredMessage, closed: bool) -> None:
    data = record.encode_stored(message, closed=closed)
    read = record.decode_record(data)
    assert msgspec.structs.replace(read, **DERIVED) == msgspec.structs.replace(message, **DERIVED)
    hosts = sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6
    assert read.sys_flag & ~hosts == message.sys_flag & ~hosts
    assert bool(read.sys_flag & sysflag.BORN_HOST_V6) == (":" in message.born_host[0])
    assert bool(read.sys_flag & sysflag.STORE_HOST_V6) == (":" in message.store_host[0])
    assert (read.size_bytes, read.body_crc) == (len(data), body_crc(message.body))
    assert record.encode_stored(read, closed=closed) == data


@given(st.lists(wire_strategies.stored_messages, max_size=4))
def test_a_reply_holds_its_messages_in_order(messages: list[StoredMessage]) -> None:
    data = [record.encode_stored(message) for message in messages]
    reply = b"".join(data)
    assert record.decode_records(reply) == [record.decode_record(one) for one in data]
    spans = list(record.scan_records(reply))
    assert [reply[start : start + size] for start, size, _ in spans] == data


@given(
    wire_strategies.stored_messages,
    wire_strategies.int64,
    wire_strategies.int64,
    wire_strategies.int64,
)
def test_patching_changes_only_offsets_and_time(
    message: StoredMessage, queue_offset: int, log_offset: int, store_time_ms: int
) -> None:
    buffer = bytearray(b"before" + record.encode_stored(message) + b"behind")
    place = {
        "queue_offset": queue_offset, "log_offset": log_offset, "store_time_ms": store_time_ms,
    }  # fmt: skip
    record.patch_record(buffer, 6, **place)
    expected = msgspec.structs.replace(message, **place)
    assert buffer == b"before" + record.encode_stored(expected) + b"behind"


@given(wire_strategies.mutated(wire_strategies.records) | st.binary(max_size=150))
def test_damage_raises_record_error_or_gives_a_message_of_that_size(data: bytes) -> None:
    try:
        message = record.decode_record(data)
    except RecordError:
        return
    assert message.size_bytes <= len(data)
    assert len(message.body) < message.size_bytes


@given(st.lists(wire_strategies.records, min_size=1, max_size=3).map(b"".join), st.data())
def test_scanning_stops_at_the_first_incomplete_record(reply: bytes, data: st.DataObject) -> None:
    stop = data.draw(st.integers(1, len(reply) - 1))
    whole = [span for span in record.scan_records(reply) if span[0] + span[1] <= stop]
    found: list[tuple[int, int, int]] = []
    consumed = sum(size for _, size, _ in whole)
    if consumed < stop:
        with pytest.raises(RecordError, match=f"record at {consumed}"):
            found.extend(record.scan_records(reply, stop=stop))
        with pytest.raises(RecordError):
            record.decode_records(reply[:stop])
    else:
        assert list(record.scan_records(reply, stop=stop)) == whole
