"""Options, columns, rows and retries of the sink, without Spark's machinery."""

import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tianzhou.errors import ConfigError, ConnectError, MessageRefused, RouteNotFound
from tianzhou.spark.sink.options import Delivery, SinkOptions, read_sink_options
from tianzhou.spark.sink.rows import messages_of
from tianzhou.spark.sink.tasks import RateLimit, retry

TEXT = StringType()
NAMESRV = {"nameserver": "127.0.0.1:9876"}


def schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def read(
    given: dict[str, str], columns: StructType, *, overwrite: bool = False, streaming: bool = False
) -> SinkOptions:
    return read_sink_options(NAMESRV | given, columns, overwrite=overwrite, streaming=streaming)


def test_all_columns_and_options_are_accepted() -> None:
    columns = schema(
        topic=TEXT, body=BinaryType(), tags=TEXT, keys=ArrayType(TEXT),
        properties=MapType(TEXT, TEXT), orderKey=TEXT, delayMs=LongType(),
    )  # fmt: skip
    given = {
        "delivery": "SYNC", "inflight": "4", "batchbytes": "64k", "retryfor": "5s",
        "checkpointlocation": "x",
    }  # fmt: skip
    options = read(given, columns)
    assert (options.delivery, options.batch_bytes, options.retry_for) == (
        Delivery.SYNC,
        65536,
        5000,
    )
    assert options.in_flight_limit == 1
    assert read({"topic": "a", "inflight": "4"}, schema(body=TEXT)).in_flight_limit == 4


@pytest.mark.parametrize(
    ("given", "columns", "reason"),
    [
        ({}, schema(body=TEXT), "column topic or the option topic"),
        ({"topic": "a"}, schema(tags=TEXT), "needs a column body"),
        ({"topic": "a"}, schema(body=TEXT, tag=TEXT), "unknown column tag, did you mean tags"),
        ({"topic": "a"}, schema(body=LongType()), "body must be binary or string, it is bigint"),
        (
            {"topic": "a"},
            schema(body=TEXT, delayMs=LongType(), deliverAt=TimestampType()),
            "exclude each other",
        ),
        ({"topic": "a", "exactlyonce": "true"}, schema(body=TEXT), "needs the option ledger"),
        ({"topic": "a", "ledger": "sqlite://"}, schema(body=TEXT), "are for exactlyOnce=true"),
        (
            {"topic": "a", "exactlyonce": "true", "ledger": "sqlite://"},
            schema(body=TEXT, delayMs=LongType()),
            "cannot be transactional",
        ),
        (
            {"topic": "a", "exactlyonce": "true", "ledger": "mysql://h/b"},
            schema(body=TEXT),
            "only SQLite and PostgreSQL are supported",
        ),
        ({"topic": "a", "inflght": "1"}, schema(body=TEXT), "did you mean inFlight"),
        ({"topic": "a", "retryfor": "soon"}, schema(body=TEXT), "a duration such as"),
    ],
)
def test_unwritable_columns_are_rejected(
    given: dict[str, str], columns: StructType, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(given, columns)


def test_overwriting_and_transaction_ids_of_streams_are_rejected() -> None:
    with pytest.raises(ConfigError, match="cannot be overwritten"):
        read({"topic": "a"}, schema(body=TEXT), overwrite=True)
    given = {"topic": "a", "exactlyonce": "true", "ledger": "sqlite://", "transactionid": "x"}
    with pytest.raises(ConfigError, match="a stream has an id of its own"):
        read(given, schema(body=TEXT), streaming=True)


def test_rows_are_converted_to_messages() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    batch = pa.RecordBatch.from_pylist(
        [
            {"topic": "t", "body": b"x", "keys": ["a", "b"], "tags": "red", "orderKey": "s"},
            {"topic": None, "body": b"y", "keys": None, "tags": "", "orderKey": None},
        ]
    )
    first, second = messages_of(batch, "other")
    assert (first.topic, first.keys, first.tags, first.shard) == ("t", ("a", "b"), "red", "s")
    assert (second.topic, second.keys, second.tags, second.shard) == ("other", (), None, None)
    kinds = pa.schema(
        [("body", pa.string()), ("deliverAt", pa.timestamp("us", "UTC")), ("keys", pa.string())]
    )
    timed = pa.RecordBatch.from_pylist(
        [{"body": "z", "deliverAt": moment, "keys": "k"}], schema=kinds
    )
    (third,) = messages_of(timed, "t")
    assert (third.payload, third.deliver_at, third.keys) == (b"z", moment, "k")
    mapped = pa.schema([("body", pa.string()), ("properties", pa.map_(pa.string(), pa.string()))])
    (fourth,) = messages_of(
        pa.RecordBatch.from_pylist([{"body": "z", "properties": [("p", "v")]}], schema=mapped), "t"
    )
    assert fourth.properties == {"p": "v"}
    late = pa.RecordBatch.from_pylist([{"body": "z", "delayMs": 1500}, {"body": "z", "delayMs": 0}])
    assert [message.delay for message in messages_of(late, "t")] == [1.5, None]


def test_a_row_without_a_body_is_rejected() -> None:
    batch = pa.RecordBatch.from_pylist([{"body": None}], schema=pa.schema([("body", pa.string())]))
    with pytest.raises(MessageRefused, match="topic t: the body of a row is null"):
        list(messages_of(batch, "t"))


async def test_only_retriable_errors_are_retried() -> None:
    calls: list[int] = []

    async def twice() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectError("away")
        if len(calls) == 2:
            raise RouteNotFound("not yet")
        return "done"

    assert await retry(twice, 60_000) == "done"
    assert len(calls) == 3

    async def never() -> None:
        calls.append(1)
        raise MessageRefused("no")

    with pytest.raises(MessageRefused):
        await retry(never, 60_000)
    assert len(calls) == 4

    async def away() -> None:
        raise ConnectError("away")

    with pytest.raises(ConnectError):
        await retry(away, 50)


async def test_a_rate_limit_is_respected_with_small_batches() -> None:
    assert SinkOptions(max_rows_per_second=50).count_limit == 5
    assert SinkOptions(max_rows_per_second=3).count_limit == 1
    assert SinkOptions().count_limit == SinkOptions(max_rows_per_second=100_000).count_limit == 1024
    pace, began_s = RateLimit(200), time.monotonic()
    for _ in range(60):
        await pace.wait()
    # Sixty rows at 200 a second, less the burst of a tenth of a second.
    assert time.monotonic() - began_s >= 0.19
