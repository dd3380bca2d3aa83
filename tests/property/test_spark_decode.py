"""Columns with and without the kernel equal the values of the record codec."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_strategies
from tests.support.records import encode_record

from tianzhou.errors import RecordError
from tianzhou.message import StoredMessage
from tianzhou.protocol import kernel, properties
from tianzhou.protocol.records import message_id, record
from tianzhou.remoting.address import format_address

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

import numpy as np
import pyarrow as pa

from tianzhou.spark.columns import arrow, without_kernel

NAMES = [
    "queueId", "flag", "sysFlag", "storeSize", "bodyCrc", "reconsumeTimes", "queueOffset",
    "physicalOffset", "preparedOffset", "bornTimestamp", "storeTimestamp", "topic", "body",
    "bornHost", "storeHost", "offsetMsgId", "msgId", "keys", "properties", "property:TAGS",
    "property:KEYS", "property:a.b",
]  # fmt: skip

_known = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a.b", "axb", "TAGSX"])
_pieces = st.lists(
    st.tuples(_known | st.text("ab\x01", max_size=3), st.text("xy \x01é", max_size=4)), max_size=5
)
property_texts = _pieces.map(lambda pairs: "\x02".join(f"{a}\x01{b}" for a, b in pairs)) | st.text(
    "TAGS\x01\x02k", max_size=12
)


@st.composite
def odd_records(draw: st.DrawFn) -> bytes:
    """Records with arbitrary property texts."""
    return with_properties(draw(wire_strategies.stored_messages), draw(property_texts))


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Records whose properties have nearly the same names in nearly the same order."""
    usual = draw(st.permutations(["TAGS", "KEYS", "UNIQ_KEY", "a.b", "a", "TAG"]))
    values = st.sampled_from(["", "x", "y z", "\x01"])
    texts: list[str] = []
    for _ in range(draw(st.integers(2, 6))):
        kept = [name for name in usual if draw(st.integers(0, 7))]
        pairs = [f"{name}\x01{draw(values)}" for name in kept]
        texts.append("\x02".join(pairs) + draw(st.sampled_from(["", "\x02", "\x02TAG"])))
    message = draw(wire_strategies.stored_messages)
    return [with_properties(message, text) for text in texts]


def with_properties(message: StoredMessage, text: str) -> bytes:
    return encode_record(
        topic=message.topic, body=message.body, properties_text=text,
        queue_id=message.queue_id, born_time_ms=message.born_time_ms,
        born_host=message.born_host, store_host=message.store_host,
        store_time_ms=message.store_time_ms, queue_offset=message.queue_offset,
        log_offset=message.log_offset, flag=message.flag, sys_flag=message.sys_flag,
        reconsume_count=message.reconsume_count, prepared_log_offset=message.prepared_log_offset,
    )  # fmt: skip


def us(time_ms: int) -> int:
    return max(min(time_ms * 1000, 2**63 - 1), -(2**63))


def expected(message: StoredMessage) -> list[object]:
    named = message.properties
    return [
        message.queue_id, message.flag, message.sys_flag, message.size_bytes, message.body_crc,
        message.reconsume_count, message.queue_offset, message.log_offset,
        message.prepared_log_offset, us(message.born_time_ms), us(message.store_time_ms),
        message.topic, message.body, format_address(*message.born_host),
        format_address(*message.store_host), message_id.offset_id_of(message),
        message_id.id_of(message), message.keys, list(named.items()),
        named.get(properties.TAGS), named.get(properties.KEYS), named.get("a.b"),
    ]  # fmt: skip


@given(st.lists(wire_strategies.records | odd_records(), max_size=5))
def test_columns_with_and_without_the_kernel_equal_the_record_codec(data: list[bytes]) -> None:
    buffer = b"".join(data)
    rows = [expected(record.decode_record(one)) for one in data]
    for found in (
        arrow.decode_arrays(buffer, None, NAMES),
        without_kernel.columns(buffer, None, NAMES, True),
    ):
        for array in found:
            array.validate(full=True)
        assert [list(row) for row in zip(*(array.to_pylist() for array in found), strict=True)] == (
            rows
        )


@pytest.mark.skipif(kernel.WHY_PURE is not None, reason="no compiled kernel")
@given(st.lists(wire_strategies.records, max_size=5))
def test_the_kernel_accepts_ordinary_records_and_equals_the_python_version(
    data: list[bytes],
) -> None:
    buffer = b"".join(data)
    assert kernel.decode_columns(buffer, None, NAMES, True) is not None
    arrays = zip(
        arrow.decode_arrays(buffer, None, NAMES),
        without_kernel.columns(buffer, None, NAMES, True),
        strict=True,
    )
    for one, other in arrays:
        assert one.type.equals(other.type)
        assert one.equals(other)


@pytest.mark.skipif(kernel.WHY_PURE is not None, reason="no compiled kernel")
@given(alike())
def test_records_are_decoded_independently_of_their_neighbours(data: list[bytes]) -> None:
    rows = [expected(record.decode_record(one)) for one in data]
    assert kernel.decode_columns(b"".join(data), None, NAMES, True) is not None
    found = arrow.decode_arrays(b"".join(data), None, NAMES)
    assert [list(row) for row in zip(*(each.to_pylist() for each in found), strict=True)] == rows


@given(st.lists(wire_strategies.records, min_size=1, max_size=5), st.data(), st.binary(max_size=9))
def test_records_are_decoded_at_given_positions(
    data: list[bytes], draw: st.DataObject, space: bytes
) -> None:
    starts, buffer = list[int](), space
    for one in data:
        starts.append(len(buffer))
        buffer += one + space
    chosen = draw.draw(st.lists(st.sampled_from(range(len(data))), max_size=6))
    places = np.array([starts[number] for number in chosen], np.int64)
    rows = [expected(record.decode_record(data[number])) for number in chosen]
    for memory in (buffer, memoryview(bytearray(buffer))):
        for found in (
            arrow.decode_arrays(memory, places, NAMES),
            without_kernel.columns(memory, places, NAMES, True),
        ):
            columns = [array.to_pylist() for array in found]
            assert [list(row) for row in zip(*columns, strict=True)] == rows


@given(wire_strategies.mutated(wire_strategies.records) | st.binary(max_size=150), st.booleans())
def test_damage_raises_record_error_exactly_if_the_codec_does(data: bytes, check_crc: bool) -> None:
    try:
        rows = [expected(each) for each in record.decode_records(data, check_crc=check_crc)]
    except RecordError:
        rows = None
    works: list[Callable[[], list[pa.Array]]] = [
        lambda: arrow.decode_arrays(data, None, NAMES, check_crc=check_crc),
        lambda: without_kernel.columns(data, None, NAMES, check_crc),
    ]
    for work in works:
        try:
            columns = [array.to_pylist() for array in work()]
        except RecordError:
            assert rows is None
        else:
            assert [list(row) for row in zip(*columns, strict=True)] == rows
