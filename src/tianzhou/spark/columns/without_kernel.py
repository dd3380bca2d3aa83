"""Decodes records into columns without the compiled kernel, vectorized with numpy and Arrow.

    columns(buffer, starts, names, check_crc) -> one array for each name

`starts` are the positions where records begin, None for a buffer of consecutive records. Names are
those of `schema.COLUMNS` that are fields of the record, and `property:NAME` for the text of a
property. Times are in microseconds, clipped to 64 bits. The kernel has the same contract
(`columns.rs`) but declines damaged and unusual records; here RecordError says what is wrong where.
"""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tianzhou.errors import RecordError
from tianzhou.protocol import host, properties
from tianzhou.protocol.pure import record
from tianzhou.protocol.pure.frames import Buffer
from tianzhou.protocol.sysflag import BORN_HOST_V6, STORE_HOST_V6
from tianzhou.remoting.address import format_address

PROPERTY = "property:"

Longs = npt.NDArray[np.int64]

_HEAD_BYTES = 112
"""Length of the longest fixed part."""
_PAIR = "(?s)^(?P<name>[^\x01]+)\x01(?P<value>.+)$"
MS_MAX = (2**63 - 1) // 1000


def columns(
    buffer: Buffer, starts: Longs | None, names: Sequence[str], check_crc: bool
) -> list[pa.Array]:
    """Decode the named columns. Raises RecordError."""
    records = Records(buffer, find_starts(buffer) if starts is None else starts)
    records.check(check_crc)
    return [_column(records, name) for name in names]


def find_starts(buffer: Buffer) -> Longs:
    """The start positions of consecutive records. Raises RecordError."""
    starts: list[int] = []
    at, stop = 0, len(buffer)
    while at < stop:
        starts.append(at)
        size = int.from_bytes(buffer[at : at + 4], "big", signed=True)
        if size < record.SIZE_MIN:
            record.decode_record(buffer, at, False, False)
            raise RecordError(f"record at {at}: {size} bytes are too few")
        at += size
    return np.array(starts, np.int64)


@dataclass(frozen=True)
class Records:
    """Records of a buffer; every property is an array with one value per record."""

    buffer: Buffer
    starts: Longs

    @cached_property
    def _bytes(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.buffer, np.uint8)

    @cached_property
    def _heads(self) -> npt.NDArray[np.uint8]:
        positions = self.starts[:, None] + np.arange(_HEAD_BYTES)
        # A position beyond the end reads the last byte; `check` verifies sizes first.
        heads: npt.NDArray[np.uint8] = self._bytes[np.clip(positions, 0, len(self._bytes) - 1)]
        return heads

    def number(self, at: int | Longs, width: int) -> Longs:
        """Signed numbers of `width` bytes at a position of the fixed part."""
        if isinstance(at, int):
            raw = self._heads[:, at : at + width]
        else:
            raw = np.take_along_axis(self._heads, at[:, None] + np.arange(width), axis=1)
        return np.ascontiguousarray(raw).view(f">i{width}").reshape(-1).astype(np.int64)

    def at(self, positions: Longs, width: int) -> Longs:
        """Signed numbers of `width` bytes at positions of the buffer."""
        inside = np.clip(positions[:, None] + np.arange(width), 0, len(self._bytes) - 1)
        numbers: Longs = self._bytes[inside].view(f">i{width}").reshape(-1).astype(np.int64)
        return numbers

    @cached_property
    def sizes(self) -> Longs:
        return self.number(0, 4)

    @cached_property
    def magics(self) -> Longs:
        return self.number(4, 4) & 0xFFFFFFFF

    @cached_property
    def sys_flags(self) -> Longs:
        return self.number(record.SYS_FLAG_AT, 4)

    @cached_property
    def born_host_bytes(self) -> Longs:
        return np.where(self.sys_flags & BORN_HOST_V6, 20, 8).astype(np.int64)

    @cached_property
    def store_host_bytes(self) -> Longs:
        return np.where(self.sys_flags & STORE_HOST_V6, 20, 8).astype(np.int64)

    @cached_property
    def store_time_at(self) -> Longs:
        return 48 + self.born_host_bytes

    @cached_property
    def behind_hosts(self) -> Longs:
        return self.store_time_at + 8 + self.store_host_bytes

    @cached_property
    def body_at(self) -> Longs:
        return self.starts + self.behind_hosts + 16

    @cached_property
    def body_bytes(self) -> Longs:
        return self.number(self.behind_hosts + 12, 4)

    @cached_property
    def topic_at(self) -> Longs:
        return self.body_at + self.body_bytes + self._topic_width

    @cached_property
    def _topic_width(self) -> Longs:
        return np.where(self.magics == record.MAGIC_V2, 2, 1).astype(np.int64)

    @cached_property
    def topic_bytes(self) -> Longs:
        behind = self.body_at + self.body_bytes
        short = self.at(behind, 1)
        return np.where(self._topic_width == 2, self.at(behind, 2), short)

    @cached_property
    def properties_at(self) -> Longs:
        return self.topic_at + self.topic_bytes + 2

    @cached_property
    def properties_bytes(self) -> Longs:
        return self.at(self.properties_at - 2, 2)

    def check(self, check_crc: bool) -> None:
        """Raises RecordError for the first damaged record."""
        if not len(self.starts):
            return
        ends = self.starts + self.sizes
        sound = (self.starts >= 0) & (self.sizes >= record.SIZE_MIN)
        sound &= ends <= len(self._bytes)
        sound &= (self.magics == record.MAGIC_V1) | (self.magics == record.MAGIC_V2)
        for lengths in (self.body_bytes, self.topic_bytes, self.properties_bytes):
            sound &= lengths >= 0
        sound &= self.properties_at + self.properties_bytes == ends
        if check_crc:
            sound &= self._crcs_fit(sound)
        if not sound.all():
            start = int(self.starts[np.argmin(sound)])
            record.decode_record(self.buffer, start, check_crc, False)
            raise RecordError(f"record at {start}: its lengths contradict each other")

    def _crcs_fit(self, sound: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        view = memoryview(self.buffer)
        stored = self.number(8, 4)
        bodies = zip(self.body_at.tolist(), self.body_bytes.tolist(), sound.tolist(), strict=True)
        found = [
            zlib.crc32(view[at : at + size]) & 0x7FFFFFFF if fine and size else -1
            for at, size, fine in bodies
        ]
        crcs = np.array(found, np.int64)
        fit: npt.NDArray[np.bool_] = (crcs == stored) | (crcs == -1)
        return fit

    def slices(self, at: Longs, lengths: Longs) -> pa.Array:
        """Slices of the buffer as a binary array."""
        view = memoryview(self.buffer)
        pairs = zip(at.tolist(), (at + lengths).tolist(), strict=True)
        data = b"".join([view[first:stop] for first, stop in pairs])
        ends = np.zeros(len(at) + 1, np.int32)
        np.cumsum(lengths, out=ends[1:])
        return pa.BinaryArray.from_buffers(
            pa.binary(), len(at), [None, pa.py_buffer(ends), pa.py_buffer(data)]
        )

    def texts(self, at: Longs, lengths: Longs) -> pa.Array:
        """Slices of the buffer as text; bytes that are not UTF-8 are replaced as in Java."""
        raw = self.slices(at, lengths)
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array(
                [str(each, "utf-8", "replace") for each in raw.to_pylist()], pa.string()
            )

    @cached_property
    def property_texts(self) -> pa.Array:
        return self.texts(self.properties_at, self.properties_bytes)


def _column(records: Records, name: str) -> pa.Array:
    if name.startswith(PROPERTY):
        return property_of(records.property_texts, name.removeprefix(PROPERTY))
    return _COLUMNS[name](records)


# -- properties ------------------------------------------------------------------------------------


def property_of(texts: pa.Array, name: str) -> pa.Array:
    """The value of a property, null without one; the last value of a repeated one."""
    # The greedy prefix makes the last occurrence match.
    pattern = f"(?s)^(?:.*\x02)?{re.escape(name)}\x01(?P<value>[^\x02]+)"
    return pc.struct_field(pc.extract_regex(texts, pattern=pattern), "value")


def _properties(records: Records) -> pa.Array:
    texts = records.property_texts
    parts = pc.split_pattern(texts, pattern="\x02")
    pairs = pc.extract_regex(parts.flatten(), pattern=_PAIR)
    parents = pc.list_parent_indices(parts).to_numpy(zero_copy_only=False)
    there = pc.is_valid(pairs).to_numpy(zero_copy_only=False)
    pairs, parents = pairs.filter(pa.array(there)), parents[there]
    names = pc.struct_field(pairs, "name")
    codes = pc.dictionary_encode(names)
    numbers = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if len(np.unique(parents * (len(codes.dictionary) + 1) + numbers)) < len(parents):
        dicts = [list(properties.decode(text).items()) for text in texts.to_pylist()]
        return pa.array(dicts, pa.map_(pa.string(), pa.string()))
    ends = _ends(parents, len(texts))
    return pa.MapArray.from_arrays(ends, names, pc.struct_field(pairs, "value"))


def _keys(records: Records) -> pa.Array:
    found = pc.fill_null(property_of(records.property_texts, properties.KEYS), "")
    parts = pc.split_pattern(found, pattern=properties.KEY_SEPARATOR)
    flat = parts.flatten()
    there = pc.not_equal(flat, "").to_numpy(zero_copy_only=False)
    parents = pc.list_parent_indices(parts).to_numpy(zero_copy_only=False)[there]
    return pa.ListArray.from_arrays(_ends(parents, len(found)), flat.filter(pa.array(there)))


def _ends(parents: Any, count: int) -> pa.Array:  # noqa: ANN401 - an array of numpy, made by Arrow
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(parents, minlength=count), out=ends[1:])
    return pa.array(ends)


# -- addresses and ids -----------------------------------------------------------------------------


def _hosts(records: Records, at: Longs, lengths: Longs) -> pa.Array:
    raw = records.slices(at, lengths).dictionary_encode()
    texts = [format_host(each) for each in raw.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(raw.indices)


def format_host(packed: bytes) -> str:
    """An address of a record as text."""
    address, port = host.unpack(packed)
    return format_address(address, port)


def _offset_ids(records: Records) -> pa.Array:
    hosts_at = records.starts + records.store_time_at + 8
    hosts = records.slices(hosts_at, records.store_host_bytes).to_pylist()
    offsets = records.number(28, 8).tolist()
    ids = [
        (address + log_offset.to_bytes(8, "big", signed=True)).hex().upper()
        for address, log_offset in zip(hosts, offsets, strict=True)
    ]
    return pa.array(ids, pa.string())


def _msg_ids(records: Records) -> pa.Array:
    unique = property_of(records.property_texts, properties.UNIQUE_KEY)
    return pc.coalesce(unique, _offset_ids(records)) if unique.null_count else unique


# -- columns by name -------------------------------------------------------------------------------


def _int(at: int) -> Callable[[Records], pa.Array]:
    return lambda records: pa.array(records.number(at, 4).astype(np.int32))


def _long(at: int) -> Callable[[Records], pa.Array]:
    return lambda records: pa.array(records.number(at, 8))


def _time(ms: Longs) -> pa.Array:
    us = np.clip(ms, -MS_MAX, MS_MAX) * 1000
    us = np.where(ms > MS_MAX, np.iinfo(np.int64).max, us)
    us = np.where(ms < -MS_MAX, np.iinfo(np.int64).min, us)
    return pa.array(us, pa.int64())


_COLUMNS: dict[str, Callable[[Records], pa.Array]] = {
    "queueId": _int(12),
    "flag": _int(16),
    "sysFlag": _int(36),
    "storeSize": _int(0),
    "bodyCrc": _int(8),
    "reconsumeTimes": lambda it: pa.array(it.number(it.behind_hosts, 4).astype(np.int32)),
    "queueOffset": _long(20),
    "physicalOffset": _long(28),
    "preparedOffset": lambda it: pa.array(it.number(it.behind_hosts + 4, 8)),
    "bornTimestamp": lambda it: _time(it.number(40, 8)),
    "storeTimestamp": lambda it: _time(it.number(it.store_time_at, 8)),
    "topic": lambda it: it.texts(it.topic_at, it.topic_bytes),
    "body": lambda it: it.slices(it.body_at, it.body_bytes),
    "bornHost": lambda it: _hosts(it, it.starts + 48, it.born_host_bytes),
    "storeHost": lambda it: _hosts(it, it.starts + it.store_time_at + 8, it.store_host_bytes),
    "offsetMsgId": _offset_ids,
    "msgId": _msg_ids,
    "keys": _keys,
    "properties": _properties,
}
