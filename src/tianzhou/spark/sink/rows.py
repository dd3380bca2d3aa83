"""Converts rows of a record batch to messages.

`messages_of` converts them one by one. For ordinary rows `items_of` encodes the items of a batch
(`protocol/records/batch.py`) in the kernel, directly from the buffers of the columns; both produce
the same bytes.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import RecordBatch

from tianzhou.client.identity import unique_ids
from tianzhou.client.message import Message
from tianzhou.errors import MessageRefused
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol import kernel, properties

Rows = npt.NDArray[np.int32]
"""Numbers of rows in a record batch."""

_DELAYS = ("delayMs", "deliverAt")
_SPECIAL_PROPERTIES = sorted(properties.RESERVED | {properties.SHARDING_KEY})
_NO_SHARD = -1


class Items(NamedTuple):
    """Concatenated items of a batch, and the end of each."""

    data: bytes
    ends: npt.NDArray[np.int32]


# -- vectorized ------------------------------------------------------------------------------------


def may_be_items(batch: RecordBatch) -> bool:
    """Whether the rows can be encoded together: none is delayed or has a reserved property."""
    names = batch.schema.names
    if any(name in names for name in _DELAYS):
        return False
    maps = batch.column("properties") if "properties" in names else None
    if not isinstance(maps, pa.MapArray):
        return True
    used = pc.unique(maps.keys)
    return not pc.any(pc.is_in(used, value_set=pa.array(_SPECIAL_PROPERTIES, pa.string()))).as_py()


def rows_by_topic(batch: RecordBatch, topic: str) -> list[tuple[str, Rows]]:
    """The rows of each topic; `topic` is the default of rows without one."""
    everything = np.arange(batch.num_rows, dtype=np.int32)
    if "topic" not in batch.schema.names:
        return [(topic, everything)]
    coded = pc.fill_null(batch.column("topic"), "").dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    names: list[str] = coded.dictionary.to_pylist()
    found: dict[str, list[Rows]] = {}
    for code, name in enumerate(names):
        found.setdefault(name or topic, []).append(everything[codes == code])
    return [(name, np.sort(np.concatenate(parts))) for name, parts in found.items()]


def allows_batches(topic: str) -> bool:
    """Whether brokers accept batches for a topic."""
    return not topic.startswith(RETRY_TOPIC_PREFIX)


def rows_by_queue(batch: RecordBatch, rows: Rows, queue_count: int) -> list[tuple[int, Rows]]:
    """The rows of each queue index, by the hash of their order key; -1 for rows without one."""
    coded = batch.column("orderKey").dictionary_encode()
    keys: list[str] = coded.dictionary.to_pylist()
    indices = np.array(
        [*(abs(properties.java_hash(key)) % queue_count for key in keys), _NO_SHARD], np.int64
    )
    codes = pc.fill_null(coded.indices, len(keys)).to_numpy(zero_copy_only=False)
    index_of_rows = indices[codes[rows]]
    return [
        (int(index), rows[index_of_rows == index]) for index in np.unique(index_of_rows).tolist()
    ]


def items_of(batch: RecordBatch, rows: Rows) -> Items | None:
    """The items of some rows; None if they must be converted one by one."""
    columns = {name: batch.column(at) for at, name in enumerate(batch.schema.names)}
    keys = columns.get("keys")
    is_text = keys is not None and pa.types.is_string(keys.type)
    parts = (
        _texts(columns["body"]),
        _texts(columns.get("tags")),
        _texts(keys) if is_text else None,
        None if is_text else _lists(keys),
        _map(columns.get("properties")),
        _texts(columns.get("orderKey")),
    )
    ids = "".join(unique_ids.next_many(len(rows))).encode()
    found = kernel.encode_rows(parts, rows.astype(np.int32).tobytes(), ids)
    return None if found is None else Items(found[0], np.frombuffer(found[1], np.int32))


def _view(buffer: pa.Buffer | None) -> memoryview | None:
    return None if buffer is None else memoryview(buffer).cast("B")


def _texts(array: pa.Array | None) -> tuple[object, ...] | None:
    if array is None:
        return None
    if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        array = array.cast(pa.binary())  # Spark's large types, if it is set to use them
    bits, ends, data = array.buffers()
    return _view(bits), array.offset, _view(ends) or b"", _view(data) or b""


def _lists(array: pa.Array | None) -> tuple[object, ...] | None:
    return _nested(array, array.values) if isinstance(array, pa.ListArray) else None


def _map(array: pa.Array | None) -> tuple[object, ...] | None:
    return _nested(array, array.keys, array.items) if isinstance(array, pa.MapArray) else None


def _nested(array: pa.Array, *inner: pa.Array) -> tuple[object, ...]:
    bits, ends = array.buffers()[:2]
    return _view(bits), array.offset, _view(ends) or b"", *map(_texts, inner)


# -- one by one ------------------------------------------------------------------------------------


def messages_of(batch: RecordBatch, topic: str) -> Iterator[Message]:
    """The messages of a record batch, in order; `topic` is the default of rows without one.

    Raises MessageRefused for an invalid row.
    """
    columns: dict[str, list[Any]] = {
        name: batch.column(index).to_pylist() for index, name in enumerate(batch.schema.names)
    }
    nothing: list[Any] = [None] * batch.num_rows
    names = ("topic", "tags", "keys", "properties", "orderKey", "delayMs", "deliverAt")
    topics, tags, keys, maps, shards, delays, times = (columns.get(name, nothing) for name in names)
    for at, body in enumerate(columns["body"]):
        if body is None:
            raise MessageRefused(f"topic {topics[at] or topic}: the body of a row is null")
        yield Message(
            topics[at] or topic,
            body,
            tags[at] or None,
            _keys(keys[at]),
            _properties(maps[at]),
            delay=delays[at] / 1000 if (delays[at] or 0) > 0 else None,
            deliver_at=times[at],
            shard=shards[at],
        )


def _keys(value: Any) -> str | tuple[str, ...]:  # noqa: ANN401 - text, a list or nothing
    if not value:
        return ()
    return value if isinstance(value, str) else tuple(each for each in value if each)


def _properties(value: list[tuple[str, str | None]] | None) -> dict[str, str]:
    """Without properties that are null."""
    return {name: text for name, text in value or () if text is not None}
