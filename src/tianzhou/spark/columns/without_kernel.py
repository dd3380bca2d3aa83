"""Decodes records into columns message by message: without the kernel, or where that declines.

    columns(buffer, starts, names, check_crc) -> one array for each name

`starts` are the positions where records begin, None for a buffer of consecutive records. Names are
those of `schema.COLUMNS` that are fields of the record, and `property:NAME` for the text of a
property. Times are in microseconds, clipped to 64 bits. The kernel (`decode_columns.rs`) has the
same contract but declines damaged and unusual records; here RecordError says what is wrong where.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tianzhou.message import StoredMessage
from tianzhou.protocol.pure.frames import Buffer
from tianzhou.protocol.records.message_id import id_of, offset_id_of
from tianzhou.protocol.records.record import decode_record, decode_records
from tianzhou.remoting.address import format_address

PROPERTY = "property:"

Longs = npt.NDArray[np.int64]

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


def columns(
    buffer: Buffer, starts: Longs | None, names: Sequence[str], check_crc: bool
) -> list[pa.Array]:
    """Decode the named columns. Raises RecordError."""
    read_body = "body" in names
    if starts is None:
        messages = decode_records(buffer, check_crc=check_crc, read_body=read_body)
    else:
        messages = [
            decode_record(buffer, start, check_crc=check_crc, read_body=read_body)
            for start in starts.tolist()
        ]
    return [_column(messages, name) for name in names]


def _column(messages: list[StoredMessage], name: str) -> pa.Array:
    if name.startswith(PROPERTY):
        key = name.removeprefix(PROPERTY)
        return pa.array([each.properties.get(key) for each in messages], pa.string())
    kind, value_of = FIELDS[name]
    return pa.array([value_of(each) for each in messages], kind)


def _us(time_ms: int) -> int:
    return min(max(time_ms * 1000, _LONG_MIN), _LONG_MAX)


FIELDS: dict[str, tuple[pa.DataType, Callable[[StoredMessage], object]]] = {
    "queueId": (pa.int32(), lambda it: it.queue_id),
    "flag": (pa.int32(), lambda it: it.flag),
    "sysFlag": (pa.int32(), lambda it: it.sys_flag),
    "storeSize": (pa.int32(), lambda it: it.size_bytes),
    "bodyCrc": (pa.int32(), lambda it: it.body_crc),
    "reconsumeTimes": (pa.int32(), lambda it: it.reconsume_count),
    "queueOffset": (pa.int64(), lambda it: it.queue_offset),
    "physicalOffset": (pa.int64(), lambda it: it.log_offset),
    "preparedOffset": (pa.int64(), lambda it: it.prepared_log_offset),
    "bornTimestamp": (pa.int64(), lambda it: _us(it.born_time_ms)),
    "storeTimestamp": (pa.int64(), lambda it: _us(it.store_time_ms)),
    "topic": (pa.string(), lambda it: it.topic),
    "body": (pa.binary(), lambda it: it.body),
    "bornHost": (pa.string(), lambda it: format_address(*it.born_host)),
    "storeHost": (pa.string(), lambda it: format_address(*it.store_host)),
    "offsetMsgId": (pa.string(), offset_id_of),
    "msgId": (pa.string(), id_of),
    "keys": (pa.list_(pa.string()), lambda it: it.keys),
    "properties": (pa.map_(pa.string(), pa.string()), lambda it: list(it.properties.items())),
}
"""The Arrow type and the value of each column that is a field of the record."""
