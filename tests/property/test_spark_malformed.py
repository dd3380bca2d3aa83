"""Damaged responses: every intact record is found, and nothing else counts as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_strategies

from tianzhou.errors import RecordError
from tianzhou.protocol.records import record

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

import numpy as np

from tianzhou.spark.columns import arrow, malformed

NAMES = ["topic", "queueOffset", "body", "properties", "bornHost", "storeHost", "msgId", "keys"]


@given(
    st.lists(wire_strategies.mutated(wire_strategies.records) | wire_strategies.records, max_size=5)
    | st.just([b"\xff" * 300])
)
def test_walking_ends_and_intact_records_can_be_decoded(parts: list[bytes]) -> None:
    data = b"".join(parts)
    found = list(malformed.walk(data, check_crc=True))
    starts = [start for start, _ in found]
    assert starts == sorted(set(starts))
    assert bool(starts) == bool(data)
    good = [start for start, wrong in found if wrong is None]
    columns = arrow.decode_arrays(data, np.array(good, np.int64), NAMES)
    assert columns[1].to_pylist() == [record.decode_record(data, at).queue_offset for at in good]


@given(st.lists(wire_strategies.records, min_size=2, max_size=5), st.data())
def test_intact_records_after_a_damaged_one_are_found(
    parts: list[bytes], draw: st.DataObject
) -> None:
    number = draw.draw(st.integers(0, len(parts) - 2))
    hurt = bytearray(parts[number])
    at = draw.draw(st.integers(0, len(hurt) - 1))
    hurt[at] ^= draw.draw(st.integers(1, 255))
    try:
        record.decode_record(bytes(hurt))
    except RecordError:
        pass
    else:
        return  # a field that nothing else depends on
    before = b"".join(parts[:number])
    data = before + hurt + b"".join(parts[number + 1 :])
    found = dict(malformed.walk(data, check_crc=True))
    start = len(before)
    assert found[start] is not None
    for each in parts[:number]:
        start -= len(each)
    place = 0
    for index, each in enumerate(parts):
        if index != number:
            assert found[place] is None
        place += len(each)
