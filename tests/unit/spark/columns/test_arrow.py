"""Batches: rows and sizes, compressed bodies, computed columns."""

from dataclasses import replace

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

import pyarrow as pa
from pyspark.sql.types import StructField, StructType
from tests.support.records import encode_record

from tianzhou.errors import BodyError
from tianzhou.protocol.records import compression
from tianzhou.protocol.sysflag import COMPRESSED, TRANSACTION_COMMIT, TRANSACTION_PREPARED
from tianzhou.spark.columns import arrow
from tianzhou.spark.columns.arrow import Decoder
from tianzhou.spark.columns.malformed import MalformedCounter
from tianzhou.spark.options import SourceOptions, ValueFormat, read_options
from tianzhou.spark.push_down import NO_FILTERS, PushedFilters
from tianzhou.spark.schema import BY_NAME

pytestmark = pytest.mark.usefixtures("codec")


def record(
    number: int, *, body: bytes = b"x", properties: str = "", sys_flag: int = 0, stored_ms: int = 0
) -> bytes:
    return encode_record(
        topic="t", body=body, properties_text=properties, queue_id=0, queue_offset=number,
        born_time_ms=1, born_host=("10.0.0.1", 1), store_host=("10.0.0.2", 2), sys_flag=sys_flag,
        store_time_ms=stored_ms,
    )  # fmt: skip


def decoder(*names: str, pushed: PushedFilters = NO_FILTERS) -> Decoder:
    options = read_options(SourceOptions, {"subscribe": "t", "nameServer": "a:1"})
    fields = [StructField(name, BY_NAME[name].spark_type) for name in names]
    return Decoder.of(StructType(fields), options, pushed)


def test_batches_have_at_most_8192_rows_in_order() -> None:
    it = decoder("queueOffset", "brokerName")
    data = b"".join(record(number) for number in range(9000))
    batches = list(it.batches(it.arrays(data), "b", first=100))
    assert [batch.num_rows for batch in batches] == [8192, 708]
    offsets = [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]
    assert offsets == list(range(100, 9000))
    assert batches[0].column("brokerName")[0].as_py() == "b"


def test_offsets_of_static_topics_are_shifted_before_they_are_compared() -> None:
    it = decoder("queueOffset")
    data = b"".join(record(number) for number in range(10))
    (batch,) = it.batches(it.arrays(data), "b", first=105, stop=107, queue_offset_delta=100)
    assert batch.column("queueOffset").to_pylist() == [105, 106]


def test_compressed_bodies_are_decompressed_and_large_groups_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = list(compression.CompressionType)
    plain = [bytes([number]) * 5000 for number in range(6)]
    data = b"".join(
        record(number, body=body)
        if number % 2
        else record(
            number,
            body=compression.compress(body, kinds[number // 2]),
            sys_flag=compression.flag_of(kinds[number // 2]),
        )
        for number, body in enumerate(plain)
    )
    it = decoder("body", "queueOffset")
    (batch,) = it.batches(it.arrays(data), "b")
    assert batch.column("body").to_pylist() == plain
    monkeypatch.setattr(arrow, "_GROUP_BYTES_MAX", 12_000)
    batches = list(it.batches(it.arrays(data), "b"))
    assert [batch.num_rows for batch in batches] == [2, 2, 2]
    assert [body for each in batches for body in each.column("body").to_pylist()] == plain
    assert COMPRESSED & compression.flag_of(kinds[0])


def test_a_body_that_cannot_be_decompressed_is_null_counted_and_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "_DECOMPRESSED_BYTES_MAX", 1000)
    bomb = compression.compress(bytes(1001), compression.CompressionType.ZSTD)
    zstd, zlib = (
        compression.flag_of(kind)
        for kind in (compression.CompressionType.ZSTD, compression.CompressionType.ZLIB)
    )
    rows = [(b"a", 0), (b"b", zlib), (bomb, zstd), (b"", zlib), (b"c", COMPRESSED | 5 << 8)]
    data = b"".join(record(n, body=body, sys_flag=flag) for n, (body, flag) in enumerate(rows))
    it = decoder("body", "queueOffset")
    malformed = MalformedCounter()
    (batch,) = it.batches(it.arrays(data), "broker", malformed=malformed, queue_offset_delta=100)
    assert batch.column("body").to_pylist() == [b"a", None, None, b"", None]
    assert batch.column("queueOffset").to_pylist() == [100, 101, 102, 103, 104]
    malformed.close()
    assert malformed.count == 3
    assert (
        "queue t@broker:0, offset 102: a ZSTD body unpacks to more than 1000 bytes" in caplog.text
    )
    assert caplog.messages[-1] == "malformed values in this task: 3, each null in its row"
    strict = it.batches(it.arrays(data), "broker", malformed=MalformedCounter(fail=True))
    with pytest.raises(BodyError, match=r"queue t@broker:0, offset 1: .* failOnMalformed=false"):
        list(strict)


def test_a_task_logs_some_malformed_messages_and_counts_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = b"".join(record(number, sys_flag=COMPRESSED) for number in range(9000))
    it = decoder("body")
    malformed = MalformedCounter()
    assert (
        sum(batch.num_rows for batch in it.batches(it.arrays(data), "b", malformed=malformed))
        == 9000
    )
    assert malformed.count == 9000
    assert len(caplog.messages) == 10


@pytest.mark.parametrize("ms", [2**63 - 1, -(2**63), 253_402_300_800_000, -62_135_596_800_001])
def test_times_outside_of_the_calendar_are_null(ms: int) -> None:
    usual = 1_700_000_000_000
    it = decoder("storeTimestamp", "deliverTimestamp")
    texts = [f"TIMER_OUT_MS\x01{each}" for each in (usual, ms)]
    data = b"".join(
        record(n, stored_ms=each, properties=text)
        for n, (each, text) in enumerate(zip((usual, ms), texts, strict=True))
    )
    malformed = MalformedCounter()
    (batch,) = it.batches(it.arrays(data), "b", malformed=malformed)
    for name in ("storeTimestamp", "deliverTimestamp"):
        assert batch.column(name).view(pa.int64()).to_pylist() == [usual * 1000, None]
    assert malformed.count == 1


def test_only_records_with_a_wanted_key_are_decoded() -> None:
    texts = ["KEYS\x01a b", "", "KEYS\x01ab", "KEYS\x01b", "KEYS\x01 a  c"]
    data = [record(number, properties=text) for number, text in enumerate(texts)]
    data[2] = data[2].replace(b"x", b"y", 1)  # a body that does not match its checksum
    it = replace(decoder("queueOffset", "body"), only_keys=frozenset({"a", "c"}))
    (batch,) = it.batches(it.arrays(b"".join(data)), "b")
    assert batch.column("queueOffset").to_pylist() == [0, 4]
    none = replace(it, only_keys=frozenset({"d"}))
    assert not list(none.batches(none.arrays(b"".join(data)), "b"))


def test_only_messages_with_exactly_the_wanted_tags_remain() -> None:
    # "Aa" and "BB" have the same hash in Java, so a broker returns both.
    texts = ["TAGS\x01Aa\x02", "TAGS\x01BB\x02", "", "TAGS\x01Aa\x02"]
    it = decoder("queueOffset", pushed=PushedFilters(tags=frozenset({"Aa"})))
    data = b"".join(record(number, properties=text) for number, text in enumerate(texts))
    (batch,) = it.batches(it.arrays(data), "b")
    assert batch.column("queueOffset").to_pylist() == [0, 3]


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        (PushedFilters(first_ms=1_000), [1, 2, 4, 5]),
        (PushedFilters(stop_ms=1_000), [0, 3, 6]),
        (PushedFilters(first_ms=999, stop_ms=1_001), [0, 1, 4]),
        (PushedFilters(first_ms=1_001, stop_ms=1_001), []),
        (PushedFilters(first_ms=-1, stop_ms=10**14), [0, 1, 2, 3, 4]),
    ],
)
def test_only_messages_stored_in_the_wanted_time_remain(
    pushed: PushedFilters, expected: list[int]
) -> None:
    # The clock was set back, twice; the last two are outside of Spark's range of times.
    times_ms = [999, 1_000, 1_001, 998, 1_000, 2**63 - 1, -(2**63)]
    it = decoder("queueOffset", pushed=pushed)
    data = b"".join(record(number, stored_ms=ms) for number, ms in enumerate(times_ms))
    batches = it.batches(it.arrays(data), "b")
    assert [offset for each in batches for offset in each.column(0).to_pylist()] == expected


def test_typed_columns_are_null_for_invalid_properties() -> None:
    texts = [
        "DELAY\x013\x02TIMER_DELIVER_MS\x011700000000123\x02",
        "DELAY\x01soon\x02TIMER_DELIVER_MS\x01-\x02",
        "DELAY\x0199999999999\x02TIMER_DELIVER_MS\x01999999999999999999\x02",
        "TIMER_OUT_MS\x015\x02TIMER_DELIVER_MS\x017\x02",
    ]
    it = decoder("delayLevel", "deliverTimestamp")
    data = b"".join(record(number, properties=text) for number, text in enumerate(texts))
    (batch,) = it.batches(it.arrays(data), "b")
    assert batch.column("delayLevel").to_pylist() == [3, None, None, None]
    times = batch.column("deliverTimestamp").view(pa.int64()).to_pylist()
    assert times == [1_700_000_000_123_000, None, None, 5_000]


def test_transaction_states_are_texts() -> None:
    flags = [0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_COMMIT | TRANSACTION_PREPARED]
    it = decoder("transactionState")
    data = b"".join(record(number, sys_flag=flag) for number, flag in enumerate(flags))
    (batch,) = it.batches(it.arrays(data), "b")
    assert batch.column("transactionState").to_pylist() == [None, "prepared", "commit", "rollback"]


def test_values_are_text_or_json_and_null_for_invalid_bodies() -> None:
    deep, half = b'{"a":' * 100_000, b'{"a": 1, "b": "\\ud800"}'
    bodies = pa.array(
        [
            b'{"a": 1, "b": "x"}', b"\xff", b'{"a": "no number"}', b"[]", b'{"c": 1}',
            None, deep, half, b'{"a": 1e400}', b'{"a": %s}' % (b"9" * 400),
        ],
        pa.binary(),
    )  # fmt: skip
    texts = arrow.values_of(bodies, ValueFormat.TEXT, pa.string()).to_pylist()
    assert texts[:2] == ['{"a": 1, "b": "x"}', "\ufffd"]
    assert texts[5] is None
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    assert arrow.values_of(bodies, ValueFormat.JSON, kind).to_pylist() == [
        {"a": 1, "b": "x"}, None, None, None, {"a": None, "b": None}, None, None, None, None, None,
    ]  # fmt: skip
