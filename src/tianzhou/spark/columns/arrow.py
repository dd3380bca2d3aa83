"""Decodes records into Arrow batches of the wanted columns, at most 8,192 rows each.

The compiled kernel fills the buffers of the arrays; without it, and for records that it declines,
`without_kernel.py` decodes one message after the other. This module adds what both leave out:
decompression of bodies, numbers stored as text in properties, and the column `value`. A value that
cannot be decoded is null in its row and counted (`malformed.py`).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tianzhou.client.queues import Queue
from tianzhou.errors import BodyError
from tianzhou.protocol import kernel
from tianzhou.protocol.filter.tags import parse_tags
from tianzhou.protocol.pure.frames import Buffer
from tianzhou.protocol.records.compression import plain_body
from tianzhou.protocol.sysflag import (
    COMPRESSED,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tianzhou.spark import schema
from tianzhou.spark.columns import without_kernel
from tianzhou.spark.columns.malformed import MalformedCounter
from tianzhou.spark.options import ReadingOptions, ValueFormat
from tianzhou.spark.push_down import NO_FILTERS, PushedFilters

ROWS_MAX = 8192
BATCH_BYTES = 3 * 1024 * 1024
"""Approximate size of the records in a batch.

With bodies of 1 KiB a batch is a sixth larger in Arrow, and Spark's Arrow pools allocations of up
to 4 MiB; larger ones come from the system each time. Smaller batches cost more in Python.
"""
_DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""Limit of a decompressed body, as in consumers; a larger one is null."""
_GROUP_BYTES_MAX = 256 * 1024 * 1024
"""A batch whose decompressed bodies are larger in total is split."""

Longs = without_kernel.Longs
Arrays = dict[str, pa.Array]

_TIMES = ("bornTimestamp", "storeTimestamp")
_TIME_MIN_US = -62_135_510_400_000_000
_TIME_MAX_US = 253_402_128_000_000_000
"""From the second day of year 1 to the last of 9999: Python supports these years in any zone."""
_STATES = {
    TRANSACTION_PREPARED: "prepared",
    TRANSACTION_COMMIT: "commit",
    TRANSACTION_ROLLBACK: "rollback",
}
_UTC_US = pa.timestamp("us", tz="UTC")
_OFFSET_MAX = 2**63 - 1
_WHOLE = "^-?[0-9]{1,18}$"


# -- arrays ----------------------------------------------------------------------------------------


def decode_arrays(
    buffer: Buffer, starts: Longs | None, names: list[str], *, check_crc: bool = True
) -> list[pa.Array]:
    """One array per name, as defined in `without_kernel.py`. Raises RecordError."""
    raw_starts = None if starts is None else starts.astype(np.int64).tobytes()
    decoded = kernel.decode_columns(buffer, raw_starts, names, check_crc)
    if decoded is None:
        return without_kernel.columns(buffer, starts, names, check_crc)
    count, buffers = decoded
    return [_array(name, each, count) for name, each in zip(names, buffers, strict=True)]


def _array(name: str, part: Any, count: int) -> pa.Array:  # noqa: ANN401 - bytes or a tuple of them
    kind = without_kernel.FIELDS[name][0] if name in without_kernel.FIELDS else pa.string()
    if kind in (pa.int32(), pa.int64()):
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(part)])
    if name == "keys":
        ends, *texts = part
        return pa.ListArray.from_arrays(_ends(ends), _texts(pa.string(), (None, *texts)))
    if name == "properties":
        ends, name_ends, names, value_ends, values = part
        keys = _texts(pa.string(), (None, name_ends, names))
        items = _texts(pa.string(), (None, value_ends, values))
        return pa.MapArray.from_arrays(_ends(ends), keys, items)
    return _texts(kind, part)


def _texts(kind: pa.DataType, part: tuple[bytes | None, bytes, bytes]) -> pa.Array:
    bits, ends, data = part
    mask = None if bits is None else pa.py_buffer(bits)
    buffers = [mask, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(ends) // 4 - 1, buffers)


def _ends(raw: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(raw) // 4, [None, pa.py_buffer(raw)])


# -- batches ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decoder:
    """Decodes batches of one schema; serialized from the driver to executors."""

    schema_json: str
    value_format: ValueFormat | None = None
    only_tags: frozenset[str] | None = None
    """Rows with other tags are dropped: brokers compare hashes only."""
    only_keys: frozenset[str] | None = None
    """Rows without any of these keys are dropped."""
    first_ms: int | None = None
    """Rows stored earlier are dropped: after a clock was set back, times are out of order."""
    stop_ms: int | None = None
    """Rows stored at this time or later are dropped."""
    fail_on_malformed: bool = False
    with_log_offsets: bool = False
    """Whether `arrays` always includes physicalOffset."""

    @staticmethod
    def of(
        wanted: StructType, options: ReadingOptions, pushed: PushedFilters = NO_FILTERS
    ) -> "Decoder":
        """Raises ConfigError for an invalid schema."""
        schema.check_projection(wanted, options)
        return Decoder(
            wanted.json(),
            options.value_format,
            wanted_tags(options, pushed),
            frozenset(options.keys) or None,
            pushed.first_ms,
            pushed.stop_ms,
            options.fail_on_malformed,
        )

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(StructType.fromJson(json.loads(self.schema_json)), timezone="UTC")

    def narrowed(self, first_ms: int | None, stop_ms: int | None) -> "Decoder":
        """This decoder with additional bounds of the store time; None changes nothing."""
        firsts = [each for each in (self.first_ms, first_ms) if each is not None]
        stops = [each for each in (self.stop_ms, stop_ms) if each is not None]
        return replace(self, first_ms=max(firsts, default=None), stop_ms=min(stops, default=None))

    @property
    def _has_times(self) -> bool:
        return self.first_ms is not None or self.stop_ms is not None

    @cached_property
    def sources(self) -> list[str]:
        """The raw columns needed for the wanted columns."""
        names = {"queueOffset", "physicalOffset"} if self.with_log_offsets else {"queueOffset"}
        wanted = set(self.arrow_schema.names)
        if self.only_tags is not None:
            wanted.add("tags")
        if self._has_times:
            wanted.add("storeTimestamp")
        if wanted & {"body", schema.VALUE, *_TIMES}:
            names |= {"topic", "queueId"}  # to report malformed messages
        for name in wanted:
            if name in ("body", schema.VALUE):
                names |= {"body", "sysFlag"}
            elif name == "transactionState":
                names.add("sysFlag")
            elif name == "brokerName":
                continue
            elif properties := schema.BY_NAME[name].properties:
                names |= {without_kernel.PROPERTY + each for each in properties}
            else:
                names.add(name)
        return sorted(names)

    def arrays(self, buffer: Buffer, starts: Longs | None = None) -> Arrays:
        """The raw columns of records. Raises RecordError.

        Checksums cover bodies only, so they are checked only where bodies are decoded.
        """
        if self.only_keys is not None:
            starts = with_keys(buffer, starts, self.only_keys)
        decoded = decode_arrays(buffer, starts, self.sources, check_crc=self.checks_bodies)
        return dict(zip(self.sources, decoded, strict=True))

    @property
    def checks_bodies(self) -> bool:
        return "body" in self.sources

    def batches(
        self,
        arrays: Arrays,
        broker_name: str,
        *,
        first: int = 0,
        stop: int = _OFFSET_MAX,
        queue_offset_delta: int = 0,
        malformed: MalformedCounter | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the rows whose queue offset is from `first` to before `stop`.

        Raises BodyError for malformed values if the options say so.
        """
        malformed = MalformedCounter(self.fail_on_malformed) if malformed is None else malformed
        if queue_offset_delta:
            arrays = arrays | {"queueOffset": pc.add(arrays["queueOffset"], queue_offset_delta)}
        arrays = self._filtered(arrays, first, stop)
        for part in _row_groups(arrays, broker_name, malformed):
            columns = [
                self._column(field, part, broker_name, malformed) for field in self.arrow_schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _filtered(self, arrays: Arrays, first: int, stop: int) -> Arrays:
        if (first, stop) == (0, _OFFSET_MAX) and self.only_tags is None and not self._has_times:
            return arrays
        offsets = arrays["queueOffset"].to_numpy()
        keep = (offsets >= first) & (offsets < stop)
        if self.only_tags is not None:
            tags = arrays[without_kernel.PROPERTY + "TAGS"]
            accepted = pa.array(sorted(self.only_tags), pa.string())
            keep &= pc.is_in(tags, value_set=accepted).to_numpy(zero_copy_only=False)
        if self.first_ms is not None:
            keep &= arrays["storeTimestamp"].to_numpy() >= self.first_ms * 1000
        if self.stop_ms is not None:
            keep &= arrays["storeTimestamp"].to_numpy() < self.stop_ms * 1000
        if keep.all():
            return arrays
        mask = pa.array(keep)
        return {name: array.filter(mask) for name, array in arrays.items()}

    def _column(
        self, field: pa.Field, arrays: Arrays, broker_name: str, malformed: MalformedCounter
    ) -> pa.Array:
        name, count = field.name, len(arrays["queueOffset"])
        if name == "brokerName":
            return pa.repeat(pa.scalar(broker_name, pa.string()), count)
        if name == "transactionState":
            return transaction_states(arrays["sysFlag"])
        if name == schema.VALUE:
            return values_of(arrays["body"], self.value_format, field.type)
        if name in _TIMES:
            return times_of(arrays, name, broker_name, malformed)
        properties = schema.BY_NAME[name].properties
        if not properties:
            return arrays[name].cast(field.type) if name in ("keys", "properties") else arrays[name]
        texts = [arrays[without_kernel.PROPERTY + each] for each in properties]
        some = [each for each in texts if each.null_count < count] or texts[:1]
        text = some[0] if len(some) == 1 else pc.coalesce(*some)
        return text if pa.types.is_string(field.type) else number_of(text, field.type)


def with_keys(buffer: Buffer, starts: Longs | None, wanted: frozenset[str]) -> Longs:
    """Start positions of the records with one of the wanted keys. Raises RecordError.

    Of other records only the keys are decoded.
    """
    keys, sizes = decode_arrays(buffer, starts, ["keys", "storeSize"], check_crc=False)
    if starts is None:
        ends = np.cumsum(sizes.to_numpy(), dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends])[: len(ends)]
    fits = pc.is_in(keys.flatten(), value_set=pa.array(sorted(wanted), pa.string()))
    parents = pc.list_parent_indices(keys).filter(fits)
    found: Longs = starts[np.unique(parents.to_numpy())]
    return found


def wanted_tags(options: ReadingOptions, pushed: PushedFilters) -> frozenset[str] | None:
    """The tags that rows may have, None for any."""
    if options.tags and not (given := parse_tags(options.tags)).selects_all:
        return frozenset(given.tags)
    return pushed.tags


def _row_groups(arrays: Arrays, broker_name: str, malformed: MalformedCounter) -> Iterator[Arrays]:
    """Rows in groups of batch size, with decompressed bodies."""
    count = len(arrays["queueOffset"])
    for at in range(0, count, ROWS_MAX):
        part = arrays
        if count > ROWS_MAX:
            part = {name: array.slice(at, ROWS_MAX) for name, array in arrays.items()}
        flags = part.get("sysFlag")
        if "body" in part and flags is not None and (flags.to_numpy() & COMPRESSED).any():
            yield from _decompressed(part, broker_name, malformed)
        else:
            yield part


def _decompressed(
    arrays: Arrays, broker_name: str, malformed: MalformedCounter
) -> Iterator[Arrays]:
    """The same rows with decompressed bodies, split into groups if these are large.

    A body that cannot be decompressed, or exceeds the limit, is null.
    """
    bodies: list[bytes | None] = []
    begin, total = 0, 0
    pairs = zip(arrays["body"].to_pylist(), arrays["sysFlag"].to_pylist(), strict=True)
    for row, (body, flag) in enumerate(pairs):
        plain: bytes | None = body
        if body:  # like consumers: an empty body is not decompressed, whatever its flag
            try:
                plain = plain_body(body, flag, _DECOMPRESSED_BYTES_MAX)
            except BodyError as e:
                plain = None
                malformed.add(message_position(arrays, row, broker_name), e)
        size = len(plain or b"")
        if total + size > _GROUP_BYTES_MAX:
            yield _with_bodies(arrays, begin, bodies)
            begin, bodies, total = row, [], 0
        bodies.append(plain)
        total += size
    yield _with_bodies(arrays, begin, bodies)


def _with_bodies(arrays: Arrays, begin: int, bodies: list[bytes | None]) -> Arrays:
    part = {name: array.slice(begin, len(bodies)) for name, array in arrays.items()}
    return part | {"body": pa.array(bodies, pa.binary())}


def message_position(arrays: Arrays, row: int, broker_name: str) -> str:
    """Queue and offset of a message, for logs and errors."""
    topic, queue_id, queue_offset = (
        arrays[name][row].as_py() for name in ("topic", "queueId", "queueOffset")
    )
    return f"queue {Queue(topic, broker_name, queue_id)}, offset {queue_offset}"


# -- computed columns ------------------------------------------------------------------------------


def times_of(arrays: Arrays, name: str, broker_name: str, malformed: MalformedCounter) -> pa.Array:
    """A column of times; null outside of the years that Python and Spark support."""
    us = arrays[name].to_numpy()
    if not len(us) or (us.min() >= _TIME_MIN_US and us.max() <= _TIME_MAX_US):
        return arrays[name].view(_UTC_US)
    wrong = (us < _TIME_MIN_US) | (us > _TIME_MAX_US)
    for row in np.flatnonzero(wrong).tolist():
        why = f"{name} is outside of the years 1 to 9999"
        malformed.add(message_position(arrays, row, broker_name), why)
    return pc.if_else(pa.array(~wrong), arrays[name], None).view(_UTC_US)


def transaction_states(flags: pa.Array) -> pa.Array:
    """The transaction states of system flags, null outside transactions."""
    bits = flags.to_numpy() & TRANSACTION_MASK
    if not bits.any():
        return pa.nulls(len(flags), pa.string())
    return pa.array([_STATES.get(each) for each in bits.tolist()], pa.string())


def number_of(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers, or times from milliseconds, parsed from properties; null where that fails."""
    if text.null_count == len(text):
        return pa.nulls(len(text), kind)
    whole = pc.match_substring_regex(text, pattern=_WHOLE)
    numbers = pc.if_else(whole, text, None).cast(pa.int64())
    if pa.types.is_timestamp(kind):
        ms = pc.if_else(pc.less_equal(numbers, _TIME_MAX_US // 1000), numbers, None)
        ms = pc.if_else(pc.less_equal(pa.scalar(_TIME_MIN_US // 1000, pa.int64()), ms), ms, None)
        return pc.multiply(ms, 1000).view(_UTC_US).cast(kind)
    most = 2**31 - 1
    small = pc.if_else(pc.less_equal(pc.abs(numbers), most), numbers, None)
    return small.cast(kind)


def values_of(bodies: pa.Array, value_format: ValueFormat | None, kind: pa.DataType) -> pa.Array:
    """The column `value`: bodies as text, or parsed from JSON.

    Bytes that are not UTF-8 are replaced; a body that is not JSON, or does not match the schema, is
    null, so that one invalid message does not stop a job.
    """
    if value_format is ValueFormat.TEXT:
        try:
            return bodies.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [
                None if each is None else str(each, "utf-8", "replace")
                for each in bodies.to_pylist()
            ]
            return pa.array(texts, pa.string())
    documents = [_json(each) for each in bodies.to_pylist()]
    try:
        return pa.array(documents, kind)
    except _UNFIT:
        return pa.array([_fitting(each, kind) for each in documents], kind)


_UNFIT = (pa.ArrowException, ArithmeticError, ValueError, TypeError, RecursionError)
"""Errors of Arrow for values that do not match a type, such as a lone surrogate in a text."""


def _json(body: bytes | None) -> object:
    try:
        found: object = None if body is None else json.loads(body)
    except (ValueError, RecursionError):
        return None
    # Arrow also accepts lists of pairs as structs, but not mixed with dictionaries.
    return cast(dict[str, object], found) if isinstance(found, dict) else None


def _fitting(document: object, kind: pa.DataType) -> object:
    try:
        pa.array([document], kind)
    except _UNFIT:
        return None
    return document
