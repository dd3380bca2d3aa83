"""Damaged records are detected, reported and skipped; intact ones around them are read."""

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

import numpy as np
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from tests.support.records import encode_record

from tianzhou.client.queues import Queue
from tianzhou.errors import DataLost
from tianzhou.spark.columns import malformed
from tianzhou.spark.columns.arrow import Decoder
from tianzhou.spark.columns.malformed import OffsetGaps
from tianzhou.spark.offsets import Range
from tianzhou.spark.options import SourceOptions, read_options
from tianzhou.spark.source.batch import intact_arrays
from tianzhou.spark.source.pull_pipeline import cut

pytestmark = pytest.mark.usefixtures("codec")

FIRST = 100
WANTED = StructType([StructField("queueOffset", LongType()), StructField("body", BinaryType())])
QUEUE = Queue("t", "b", 0)


def record(number: int) -> bytes:
    return encode_record(
        topic="t", body=b"body %d" % number, properties_text="a\x01b", queue_id=0,
        queue_offset=number, born_time_ms=1, born_host=("10.0.0.1", 1), store_host=("10.0.0.2", 2),
        store_time_ms=1_000 + number,
    )  # fmt: skip


def damaged(number: int, how: str) -> bytes:
    """A record that is damaged in some way; a truncated one has lost its end."""
    data = bytearray(record(number))
    if how == "truncated":
        return bytes(data[: len(data) // 2])
    at, new = {
        "body": (89, b"\xff"), "size": (0, b"\x00\x00\x00\x05"), "large": (0, b"\x7f"),
        "magic": (5, b"\x00"), "body length": (84, b"\x7f"), "topic length": (94, b"\x7f"),
        "all of the head": (0, b"\xff" * 80), "hosts": (36, b"\x00\x00\x00\x30"),
    }[how]  # fmt: skip
    data[at : at + len(new)] = new
    return bytes(data)


def decoder() -> Decoder:
    return Decoder.of(WANTED, read_options(SourceOptions, {"subscribe": "t", "nameServer": "a:1"}))


HOW = [
    "body", "size", "large", "magic", "body length", "topic length", "all of the head", "hosts",
    "truncated",
]  # fmt: skip


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("at", [0, 3, 6])
def test_only_the_damaged_record_of_a_response_is_reported_as_lost(
    how: str, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = range(FIRST, FIRST + 7)
    parts = [damaged(n, how) if n == FIRST + at else record(n) for n in numbers]
    part = Range(QUEUE, FIRST, FIRST + 7)
    named = f"queue t@b:0: the message at offset {FIRST + at} cannot be read: "
    with pytest.raises(DataLost, match=f"{named}.*failOnDataLoss=false"):
        intact_arrays(decoder(), b"".join(parts), part, fail=True)
    arrays = intact_arrays(decoder(), b"".join(parts), part, fail=False)
    assert arrays["queueOffset"].to_pylist() == [n for n in numbers if n != FIRST + at]
    assert arrays["body"].to_pylist() == [b"body %d" % n for n in numbers if n != FIRST + at]
    assert named in caplog.text


def test_only_damaged_records_are_lost_if_there_are_several() -> None:
    parts = [record(0), damaged(1, "size"), damaged(2, "body"), record(3), damaged(4, "truncated")]
    arrays = intact_arrays(decoder(), b"".join(parts), Range(QUEUE, 0, 5), fail=False)
    assert arrays["queueOffset"].to_pylist() == [0, 3]
    arrays = intact_arrays(decoder(), b"\x00" * 500, Range(QUEUE, 0, 5), fail=False)
    assert len(arrays["queueOffset"]) == 0


@pytest.mark.parametrize("how", HOW)
def test_a_response_with_damage_is_cut_at_the_end_of_its_block(how: str) -> None:
    parts = [damaged(n, how) if n == 1 else record(n) for n in range(6)]
    whole = cut(b"".join(parts), 6, 4, 0, malformed.starts_of)
    assert whole == b"".join(parts[:4])
    assert malformed.store_time_ms(parts[0]) == 1_000
    assert malformed.store_time_ms(parts[0][:40]) is None


def test_records_at_a_wrong_log_offset_are_detected() -> None:
    data = bytearray(b"".join(record(n) for n in range(3)))
    size = len(data) // 3
    starts = np.arange(3, dtype=np.int64) * size
    for number, start in enumerate(starts.tolist()):
        log_offset = 1_000 + start if number != 1 else 7
        data[start + 28 : start + 36] = log_offset.to_bytes(8, "big")
    assert malformed.misplaced(data, starts, 1_000).tolist() == [False, True, False]
    good, wrong = malformed.intact_records(data, starts, 1_000, check_crc=True)
    assert good.tolist() == [0, 2 * size]
    assert wrong == [(1, f"the record at {size} has log offset 7")]


def test_gaps_of_a_range_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    gaps = OffsetGaps(Range(QUEUE, 5, 20))
    for offsets in ([3, 5, 6], [], [9, 10], [11, 25]):
        gaps.note(np.array(offsets, np.int64))
    gaps.close()
    assert (gaps.first, gaps.count, gaps.following) == (7, 2, 12)
    assert len(caplog.messages) == 1
    gaps.end()
    assert gaps.count == 2 + 8
    OffsetGaps(Range(QUEUE, 0, 3)).close()
    assert len(caplog.messages) == 1
