"""Derives queue entries and index items from many records of a log file in one call.

The pure-Python version of the kernel's `walk_records` and `put_index_items`; both have this
contract, and the kernel declines only arguments of the wrong type. A walk passes *plain* records
only. It stops before anything else (a damaged record, the filler, the unused end, a text that is
not UTF-8, a topic that cannot be a directory, numbers that no writer gives) and returns the
position; the caller then handles that record alone.
"""

import struct

from tianzhou.errors import RecordError
from tianzhou.protocol import derived
from tianzhou.protocol.pure.frames import Buffer
from tianzhou.protocol.pure.record import MAGIC_V2, decode_record, head_bytes

Run = tuple[str, int, int, bytes]
"""Topic, queue id, the first queue offset, and queue entries of consecutive queue offsets."""
Walk = tuple[int, int, int, list[Run], bytes]
"""Where the walk stopped; how many records it passed, and the store time of the last one (0 without
any); runs of queue entries, those of one queue in the order of the log; and index items."""

ENTRY = struct.Struct(">qiq")
"""Log offset, size of the record, tags code: as in a queue file."""
LOOSE_ITEM = struct.Struct(">iqq")
"""Key hash, log offset, store time: an index item on its way to a file."""

_INDEX_HEADER_BYTES = 40
_SLOT = struct.Struct(">i")
_ITEM = struct.Struct(">iqii")
_INT32_MAX = 2**31 - 1
SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""


def walk_records(
    buffer: Buffer,
    first: int,
    start: int,
    stop: int,
    queues_from: int,
    index_from: int,
    keys_max: int,
    delay_levels_ms: tuple[int, ...],
    check_crc: bool,
    torn: bool,
) -> Walk:
    """Walks the log file that begins at log offset `first` from position `start` on.

    Stops before records that begin at position `stop` or later. Derives entries of records from log
    offset `queues_from` on, items from `index_from` on and at most `keys_max` of a record. With
    `torn` a record whose text lost a sector is not plain.
    """
    view = memoryview(buffer)
    position, count, store_time_ms = start, 0, 0
    open_runs: dict[tuple[str, int], tuple[int, bytearray]] = {}
    runs: list[tuple[str, int, int, bytearray]] = []
    items: list[bytes] = []
    while 0 <= position < stop:
        try:
            fields = decode_record(view, position, check_crc, False)
        except RecordError:
            break
        topic, _, found, queue_id, queue_offset, log_offset, _, sys_flag = fields[:8]
        store_time, size = fields[10], fields[15]
        # A file always has space for the filler after its last record.
        if log_offset != first + position or position + size + 8 > len(view):
            break
        if queue_id < 0 or queue_offset < 0 or not derived.is_topic_name(topic):
            break
        if not _is_sound_text(view, position, size, sys_flag, torn):
            break
        if log_offset >= queues_from and derived.has_queue_entry(sys_flag):
            code = derived.tags_code(topic, found, store_time, delay_levels_ms)
            if not -(2**63) <= code < 2**63:
                break
            known = open_runs.get((topic, queue_id))
            if known is None or known[0] + len(known[1]) // ENTRY.size != queue_offset:
                known = open_runs[topic, queue_id] = (queue_offset, bytearray())
                runs.append((topic, queue_id, *known))
            known[1].extend(ENTRY.pack(log_offset, size, code))
        if log_offset >= index_from:
            for key in derived.index_keys(found, sys_flag)[:keys_max]:
                hashed = derived.key_hash(topic, key)
                items.append(LOOSE_ITEM.pack(hashed, log_offset, store_time))
        position, count, store_time_ms = position + size, count + 1, store_time
    plain = [(*run[:3], bytes(run[3])) for run in runs]
    return position, count, store_time_ms, plain, b"".join(items)


def text_ranges(
    view: memoryview, position: int, size_bytes: int, sys_flag: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where topic and properties of a sound record begin and end."""
    body_at = position + head_bytes(sys_flag)
    at = body_at + int.from_bytes(view[body_at - 4 : body_at], "big")
    width = 2 if view[position + 7] == MAGIC_V2 & 0xFF else 1
    topic_end = at + width + int.from_bytes(view[at : at + width], "big")
    return (at + width, topic_end), (topic_end + 2, position + size_bytes)


def has_lost_sector(view: memoryview, at: int, end: int) -> bool:
    """Whether a sector that never arrived, and so reads as zeros, lies in a text."""
    while at < end:
        stop = min(at - at % SECTOR_BYTES + SECTOR_BYTES, end)
        if not any(view[at:stop]):
            return True
        at = stop
    return False


def _is_sound_text(
    view: memoryview, position: int, size_bytes: int, sys_flag: int, torn: bool
) -> bool:
    try:
        for at, end in text_ranges(view, position, size_bytes, sys_flag):
            str(view[at:end], "utf-8")
            if torn and has_lost_sector(view, at, end):
                return False
    except UnicodeDecodeError:
        return False
    return True


def put_index_items(
    file: memoryview, slot_count: int, number: int, begin_time_ms: int, items: bytes
) -> int:
    """Writes items to an index file from item `number` on; the caller writes the header.

    Returns how many slots came into use.
    """
    slots_used = 0
    items_at = _INDEX_HEADER_BYTES + slot_count * _SLOT.size
    for hashed, log_offset, store_time_ms in LOOSE_ITEM.iter_unpack(items):
        slot_at = _INDEX_HEADER_BYTES + hashed % slot_count * _SLOT.size
        (previous,) = _SLOT.unpack_from(file, slot_at)
        if not 0 < previous < number:
            previous = 0
            slots_used += 1
        seconds = min(max((store_time_ms - begin_time_ms) // 1000, 0), _INT32_MAX)
        _ITEM.pack_into(file, items_at + number * _ITEM.size, hashed, log_offset, seconds, previous)
        _SLOT.pack_into(file, slot_at, number)
        number += 1
    return slots_used
