"""Pulls that find messages: the header, the walk over a queue, and the answer; for the pure feed.

The rules are those of `store/reading.py` and `broker/handlers/pull.py`. Whatever is not plainly
"found" declines: nothing there yet, a wrong offset, a record in a file that is not lent.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from operator import add, sub
from typing import Final, Protocol

from tianzhou.errors import RecordError
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.properties import java_hash
from tianzhou.protocol.pure import ENCODING_BINARY, Header
from tianzhou.protocol.pure_fields import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    NUMBER_DIGITS_MAX,
    has_usual_truths,
    integer,
    long_integer,
)
from tianzhou.protocol.pure_record import decode_record

PULL_CODES: Final = frozenset((
    int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE),
))  # fmt: skip

_COMMIT_OFFSET, _HAS_SUBSCRIPTION = 1, 4
_ENTRY = struct.Struct(">qiq")
_ENTRY_BYTES = _ENTRY.size
_AT_ONCE_MAX = 64
_ENTRIES = [struct.Struct(">" + "qiq" * count) for count in range(_AT_ONCE_MAX + 1)]
_RECORD_BYTES_MIN = 91
_BLANK_SIZE = 2**31 - 1
_ENTRIES_A_READ = 800
"""Entries that one read looks at, at least, when a filter rejects most of them."""
_Place = tuple[int, int, int]
"""Queue offset, log offset and size of a record, by its entry."""
_CLOSE_BYTES = 1024 * 1024
"""Records that lie closer together than this are asked for at once, whether they are in memory."""
_JAVA_SPACE = "".join(map(chr, range(0x21)))
_OPTIONAL_NUMBERS = frozenset(("maxMsgBytes", "requestSource"))

# What hardly changes from pull to pull is remembered, if it is as short as numbers are.
_known_integer = lru_cache(maxsize=1024)(integer)
_known_long_integer = lru_cache(maxsize=1024)(long_integer)

Codes = frozenset[int] | None
"""The hashes of the tags that are wanted; None wants everything."""


class Ending(Protocol):
    """A queue, as far as a pull asks it: where it ends."""

    next_offset: int


class Grant:
    """What the handlers have answered a group in a topic before, and the feed may answer since."""

    __slots__ = ("counts", "inline", "registered")

    def __init__(self) -> None:
        self.inline = False
        """Pulls that bring their subscription with them."""
        self.registered: tuple[int, Codes] | None = None
        """Version and filter of the subscription that heartbeats told."""
        self.counts: dict[int, list[int]] = {}
        """Messages, bytes and pulls that were given to the group, by queue id."""


QueueFile = tuple[Ending, memoryview, int, int, int]
"""A queue, the memory of a file of it, the queue offsets of the file's first entry and of the first
one behind it, and the smallest one whose message is still there."""

LogFile = tuple[int, int, memoryview]
"""Log offsets of a file's first byte and of the first one that is not there, and its memory."""

ReadLimits = tuple[int, int, int, int, int, int, int]
"""Messages a pull; messages of what is new and of what is old; bytes of both; what lies further
than this behind the end of the log is old; records before this log offset are checked before they
leave, and not here."""

Cold = tuple[int, Callable[[memoryview, int, int], bool]]
"""Records before this log offset may have to come from the disk, which is for others to wait for;
and what tells whether a part of some memory is there."""

Given = tuple[int, int, int, list[memoryview]]
"""Messages, bytes, the queue offset to go on with, and the pieces of the log."""


class Pull:
    """The header of a pull."""

    __slots__ = (
        "code", "commit_offset", "count_max", "expression", "group", "is_json", "kind", "opaque",
        "queue_id", "queue_offset", "sys_flag", "topic", "version",
    )  # fmt: skip

    def __init__(self, code: int, opaque: int, *, is_json: bool) -> None:
        self.code = code
        self.opaque = opaque
        self.is_json = is_json
        self.group = self.topic = self.expression = self.kind = ""
        self.queue_id = self.queue_offset = self.count_max = self.sys_flag = 0
        self.commit_offset = self.version = 0

    @property
    def commits(self) -> bool:
        """Whether an offset is to be committed along with it."""
        return bool(self.sys_flag & _COMMIT_OFFSET)


def read_pull(header: Header) -> Pull | None:
    """A pull from its header; None if it is not in its usual form."""
    code, _, _, opaque, flags, _, fields, encoding, _ = header
    if fields is None or flags & (FLAG_RESPONSE | FLAG_ONEWAY):
        return None
    pull = Pull(code, opaque, is_json=encoding != ENCODING_BINARY)
    try:
        pull.group, pull.topic = fields["consumerGroup"], fields["topic"]
        queue_id, count_max = _integer(fields["queueId"]), _integer(fields["maxMsgNums"])
        sys_flag, version = _integer(fields["sysFlag"]), _long_integer(fields["subVersion"])
        suspended_ms = _long_integer(fields["suspendTimeoutMillis"])
        queue_offset = long_integer(fields["queueOffset"])
        commit_offset = long_integer(fields["commitOffset"])
    except KeyError:
        return None
    if (
        queue_id is None or count_max is None or queue_offset is None or sys_flag is None
        or commit_offset is None or version is None or suspended_ms is None
        or not has_usual_truths(fields)
        or any(integer(fields[name]) is None for name in _OPTIONAL_NUMBERS.intersection(fields))
    ):  # fmt: skip
        return None
    pull.queue_id, pull.count_max, pull.queue_offset = queue_id, count_max, queue_offset
    pull.sys_flag, pull.commit_offset, pull.version = sys_flag, commit_offset, version
    pull.expression = fields.get("subscription", "")
    pull.kind = fields.get("expressionType", "")
    return pull


def _integer(text: str) -> int | None:
    return _known_integer(text) if len(text) <= NUMBER_DIGITS_MAX else None


def _long_integer(text: str) -> int | None:
    return _known_long_integer(text) if len(text) <= NUMBER_DIGITS_MAX else None


def selection(pull: Pull, grant: Grant) -> tuple[Codes] | None:
    """What a pull selects by tags; None if the handlers have not granted it."""
    if not pull.sys_flag & _HAS_SUBSCRIPTION:
        if grant.registered is None or grant.registered[0] < pull.version:
            return None
        return (grant.registered[1],)
    if not grant.inline or pull.kind not in ("", "TAG"):
        return None
    if pull.expression in ("", "*"):
        return (None,)
    tags = (tag.strip(_JAVA_SPACE) for tag in pull.expression.split("||"))
    return (frozenset(java_hash(tag) for tag in tags if tag),)


def find(
    pull: Pull,
    codes: Codes,
    file: QueueFile,
    log: LogFile,
    older: list[LogFile],
    limits: ReadLimits,
    high: int,
    cold: Cold,
) -> Given | None:
    """The messages of a pull; None if they are not plainly to be had."""
    _, _, first, _, low = file
    start, count_max = pull.queue_offset, min(pull.count_max, limits[0])
    if start < low or start >= high or start < first or count_max < 1:
        return None
    if codes is None:
        found = _find_newest(start, count_max, file, log, limits, high, cold)
        if found is not None:
            return found
    unchecked: list[_Place] = []
    given = _find_each(start, count_max, codes, file, log, older, limits, high, cold, unchecked)
    if given is None:
        return None  # and nothing is read of what may have to come from the disk
    files = (log, *older)
    if not all(_is_sound(pull, place, files) for place in unchecked):
        return None  # for those who leave out what is damaged, and say so
    return given


def _find_newest(
    start: int,
    count_max: int,
    file: QueueFile,
    log: LogFile,
    limits: ReadLimits,
    high: int,
    cold: Cold,
) -> Given | None:
    """What `find` gives if every entry is wanted, and lies in the last file of the log, and is new.

    That is so for most pulls, and can be seen for all entries at once. None if it is not so.
    """
    _, memory, first, behind, _ = file
    _, new_count, _, new_bytes, _, memory_bytes, checked_from = limits
    begin, end, records = log
    count = min(count_max, new_count, high - start, behind - start)
    if not 0 < count <= _AT_ONCE_MAX or (start - first + count) * _ENTRY_BYTES > len(memory):
        return None
    numbers = _ENTRIES[count].unpack_from(memory, (start - first) * _ENTRY_BYTES)
    places, sizes = numbers[::3], numbers[1::3]
    total, last = sum(sizes), places[-1] + sizes[-1]
    # In a queue places only grow; what is not so reads as zeros, or is broken.
    if (
        places[0] < max(begin, end - memory_bytes, checked_from)
        or min(places) < places[0]
        or max(places) > places[-1]
        or last > end
        or min(sizes) < _RECORD_BYTES_MIN
        or total > min(new_bytes, last - places[0])
    ):
        return None
    hot_from, is_cached = cold
    if places[0] < hot_from and (
        last - places[0] > _CLOSE_BYTES or not is_cached(records, places[0] - begin, last - begin)
    ):
        return None
    if last - places[0] == total:
        pieces = [records[places[0] - begin : last - begin]]
    else:
        # A loop over so many takes a fifth of what a pull costs; this one needs no bytecode.
        starts = list(map(sub, places, repeat(begin)))
        pieces = list(map(records.__getitem__, map(slice, starts, map(add, starts, sizes))))
    return count, total, start + count, pieces


def _find_each(
    start: int,
    count_max: int,
    codes: Codes,
    file: QueueFile,
    log: LogFile,
    older: list[LogFile],
    limits: ReadLimits,
    high: int,
    cold: Cold,
    unchecked: list[_Place],
) -> Given | None:
    """The same entry by entry; notes in `unchecked` what was there before this process."""
    _, memory, first, behind, _ = file
    hot_from, is_cached = cold
    _, new_count, old_count, new_bytes, old_bytes, memory_bytes, checked_from = limits
    stop = min(start + max(count_max, _ENTRIES_A_READ), high, behind)
    begin, end, records = log
    old_below = end - memory_bytes
    pieces: list[memoryview] = []
    got = total = 0
    # Where the run of records that lie side by side begins and ends.
    run = run_end = -1
    at, entry_at = start, (start - first) * _ENTRY_BYTES
    # So many are enough if every one is wanted; more are looked at if not.
    while at < stop and got < count_max:
        part_stop = min(stop, at + count_max)
        part = memory[entry_at : (part_stop - first) * _ENTRY_BYTES]
        if len(part) != (part_stop - at) * _ENTRY_BYTES:
            return None
        entry_at += len(part)
        for log_offset, size, tags_code in _ENTRY.iter_unpack(part):
            if got:
                if log_offset < old_below:
                    count, bytes_max = min(count_max, old_count), old_bytes
                else:
                    count, bytes_max = min(count_max, new_count), new_bytes
                if got >= count or total + size > bytes_max:
                    stop = at
                    break
            at += 1
            if size == _BLANK_SIZE or (codes is not None and tags_code not in codes):
                continue
            # A file whose entries lie elsewhere meanwhile reads as zeros.
            if size < _RECORD_BYTES_MIN:
                return None
            if log_offset < checked_from:
                unchecked.append((at - 1, log_offset, size))
            got += 1
            total += size
            if log_offset == run_end and run_end != end and log_offset >= hot_from:
                run_end += size
                if run_end <= end:
                    continue
                return None
            if run >= 0:
                pieces.append(records[run - begin : run_end - begin])
            if not begin <= log_offset <= end - size:
                found = _file_with(log_offset, log_offset + size, (log, *older))
                if found is None:
                    return None
                begin, end, records = found
            run, run_end = log_offset, log_offset + size
            if log_offset < hot_from and not is_cached(records, run - begin, run_end - begin):
                return None
    if not got:
        return None
    pieces.append(records[run - begin : run_end - begin])
    return got, total, at, pieces


def _is_sound(pull: Pull, place: _Place, files: tuple[LogFile, ...]) -> bool:
    """Whether the record that an entry leads to is whole, and the one that is meant."""
    queue_offset, log_offset, size = place
    found = _file_with(log_offset, log_offset + size, files)
    if found is None:
        return False
    begin, _, records = found
    try:
        fields = decode_record(records, log_offset - begin, True, False)
    except RecordError:
        return False
    meant = (pull.topic, pull.queue_id, queue_offset, log_offset, size)
    return (fields[0], *fields[3:6], fields[-1]) == meant


def _file_with(start: int, stop: int, files: tuple[LogFile, ...]) -> LogFile | None:
    """The file that has all of these bytes."""
    return next((file for file in files if file[0] <= start and stop <= file[1]), None)
