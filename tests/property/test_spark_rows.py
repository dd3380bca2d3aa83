"""Rows that the kernel encodes: the same bytes as message by message, or declined."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

import pyarrow as pa

from tianzhou.client.producer.selectors import by_hash
from tianzhou.client.queues import Queue
from tianzhou.client.sending.send_request import batch_item
from tianzhou.errors import MessageRefused
from tianzhou.protocol import kernel, properties
from tianzhou.protocol.records import batch
from tianzhou.spark.sink import rows as sink_rows

TEXT, TEXTS = pa.string(), pa.list_(pa.string())
MAP = pa.map_(pa.string(), pa.string())
PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=8)
NAMES = st.sampled_from(["a", "b", "Städte", "amount"])
ODD = st.sampled_from(["TAGS", "", "x\x01y", "\x02", "__SHARDINGKEY"])
ROW = {
    "body": st.binary(min_size=1, max_size=40),
    "tags": st.none() | PLAIN,
    "keys": st.none() | st.lists(st.none() | PLAIN, max_size=3),
    "properties": st.none() | st.dictionaries(NAMES, PLAIN, max_size=3).map(lambda d: [*d.items()]),
    "orderKey": st.none() | PLAIN,
}
ODD_ROW = ROW | {
    "body": st.none() | st.binary(max_size=4),
    "tags": st.none() | PLAIN | ODD,
    "properties": st.lists(st.tuples(NAMES | ODD, st.none() | PLAIN | ODD), max_size=3),
}
TYPES = {"body": pa.binary(), "tags": TEXT, "keys": TEXTS, "properties": MAP, "orderKey": TEXT}
COLUMNS = st.sets(st.sampled_from(["tags", "keys", "properties", "orderKey"]))


def record_batch(
    rows: list[dict[str, Any]], columns: set[str], *, one_key: bool, skipped: int
) -> pa.RecordBatch:
    """Some columns of rows, without the first ones: then the arrays begin inside of buffers."""
    types = {name: kind for name, kind in TYPES.items() if name == "body" or name in columns}
    if one_key and "keys" in types:
        types["keys"] = TEXT
        rows = [row | {"keys": " ".join(filter(None, row["keys"] or ()))} for row in rows]
    chosen = [{name: row[name] for name in types} for row in rows]
    whole = pa.RecordBatch.from_pylist(chosen, schema=pa.schema([*types.items()]))
    return whole.slice(skipped)


def taken(made: pa.RecordBatch) -> list[bytes] | None:
    """The items of all rows; None if the kernel declines."""
    if not sink_rows.may_be_items(made):
        return None
    items = sink_rows.items_of(made, np.arange(made.num_rows, dtype=np.int32))
    if items is None:
        return None
    edges = [0, *items.ends.tolist()]
    return [items.data[start:stop] for start, stop in pairwise(edges)]


def one_by_one(made: pa.RecordBatch, found: list[bytes]) -> list[bytes]:
    """The rows encoded by Python with the given ids."""
    ids = [
        properties.decode(batch.decode(each)[0].properties_text)[properties.UNIQUE_KEY]
        for each in found
    ]
    messages = sink_rows.messages_of(made, "t")
    return [batch_item(message, id_) for message, id_ in zip(messages, ids, strict=True)]


@given(
    st.lists(st.fixed_dictionaries(ROW), min_size=1, max_size=6), COLUMNS, st.booleans(), st.data()
)
def test_ordinary_rows_give_the_same_bytes_in_the_kernel(
    rows: list[dict[str, Any]], columns: set[str], one_key: bool, data: st.DataObject
) -> None:
    if kernel.WHY_PURE is not None:
        pytest.skip(f"no kernel: {kernel.WHY_PURE}")
    skipped = data.draw(st.integers(0, len(rows) - 1))
    made = record_batch(rows, columns, one_key=one_key, skipped=skipped)
    found = taken(made)
    assert found is not None
    assert found == one_by_one(made, found)


@given(st.lists(st.fixed_dictionaries(ODD_ROW), min_size=1, max_size=4), COLUMNS)
def test_unusual_rows_are_declined_or_equal(rows: list[dict[str, Any]], columns: set[str]) -> None:
    made = record_batch(rows, columns, one_key=False, skipped=0)
    found = taken(made)
    if found is not None:
        assert found == one_by_one(made, found)
        return
    if kernel.WHY_PURE is None:
        # The reason: a row is refused, or it has one of the unusual texts.
        try:
            for message in sink_rows.messages_of(made, "t"):
                batch_item(message, "0" * 32)
        except MessageRefused:
            return
        assert "properties" in columns


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b"]) | st.none(), st.none() | PLAIN), min_size=1),
    st.integers(1, 9),
)
def test_every_row_is_assigned_to_its_topic_and_queue(
    rows: list[tuple[str | None, str | None]], queue_count: int
) -> None:
    made = pa.RecordBatch.from_pydict(
        {"topic": [row[0] for row in rows], "orderKey": [row[1] for row in rows]},
        schema=pa.schema([("topic", TEXT), ("orderKey", TEXT)]),
    )
    queues = [Queue("t", "b", number) for number in range(queue_count)]
    seen: list[int] = []
    for topic, numbers in sink_rows.rows_by_topic(made, "other"):
        for place, some in sink_rows.rows_by_queue(made, numbers, queue_count):
            assert some.tolist() == sorted(some.tolist())
            for number in map(int, some):
                wanted, key = rows[number]
                assert topic == (wanted or "other")
                expected = -1 if key is None else by_hash(key)(queues, None).queue_id  # type: ignore[arg-type]  # it is not looked at
                assert place == expected
                seen.append(number)
    assert sorted(seen) == list(range(len(rows)))
