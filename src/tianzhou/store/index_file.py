"""One file of the index of keys: a hash table from topic and key to log offsets.

    header   begin time:i64  end time:i64  begin log offset:i64  end log offset:i64
             slots in use:i32  item count:i32                                            40 bytes
    slots    number of the newest item of each slot:i32
    items    key hash:i32  log offset:i64  seconds since begin time:i32  previous item:i32

All big-endian. The hash is Java's of `topic#key`, made positive; modulo the number of slots it
selects the slot. Items are numbered from 1 (the count is one more than there are) and only
appended; those of one slot form a chain from the newest back. So recovery can compute the slots
again from the items. Files are named by the time of their creation.

A file has its full length from the start, and disk blocks as needed: single pages of slots for the
first few hundred items, then all slots; items in pieces.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from tianzhou.protocol import kernel
from tianzhou.protocol.pure.walk import LOOSE_ITEM
from tianzhou.store.files.disk import PAGE_BYTES, Disk, DiskFile

HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
ITEM = struct.Struct(">iqii")
_HEADER_BYTES, _SLOT_BYTES, _ITEM_BYTES = HEADER.size, SLOT.size, ITEM.size
assert (_HEADER_BYTES, _SLOT_BYTES, _ITEM_BYTES) == (40, 4, 20)
_read_slot, _write_slot, _write_item = SLOT.unpack_from, SLOT.pack_into, ITEM.pack_into
# Written as a whole: `pack_into` zeroes its target first, and a process killed in between would
# leave an index that seems to be empty.
_head = HEADER.pack

_RESERVE_BYTES_MIN = 16 * PAGE_BYTES
_RESERVE_BYTES = 256 * PAGE_BYTES
_FEW_ITEMS = 256
"""With more items nearly every page of slots is used."""
_INT32_MAX = 2**31 - 1
_ZEROS = bytes(PAGE_BYTES)


class IndexFile:
    """One file; its header is held in memory and written with each item."""

    __slots__ = (
        "_disk", "_items_at", "_reserved", "_slot_pages", "_view", "begin_log_offset",
        "begin_time_ms", "count", "end_log_offset", "end_time_ms", "flushed_count", "has_slots",
        "item_max", "path", "ready_count", "size_bytes", "slot_count", "slots_used",
    )  # fmt: skip

    def __init__(self, disk: Disk, path: Path, slot_count: int, item_max: int) -> None:
        self._disk = disk
        self.path = path
        self.slot_count = slot_count
        self.item_max = item_max
        self._items_at = HEADER.size + slot_count * SLOT.size
        self.size_bytes = self._items_at + item_max * ITEM.size
        self._view: memoryview | None = None
        self._reserved = 0
        self._slot_pages: set[int] = set()
        """Pages of slots that certainly have disk blocks, while not all of them have."""
        self.has_slots = False
        """All slots have disk blocks."""
        self.ready_count = 0
        """Items below this number certainly have disk blocks."""
        self.begin_time_ms = self.end_time_ms = 0
        self.begin_log_offset = self.end_log_offset = 0
        self.slots_used = 0
        self.count = 1
        """Number of the next item."""
        self.flushed_count = 1

    def create(self, *, end_log_offset: int, end_time_ms: int, whole: bool) -> None:
        """Creates the file, which continues the one before; removes it again if that fails.

        With `whole` all slots get disk blocks.
        """
        whole = whole or self._items_at <= _RESERVE_BYTES_MIN
        handle = self._disk.open(self.path, create=True)
        try:
            handle.resize(self.size_bytes)
            handle.reserve(0, self._items_at if whole else HEADER.size)
            handle.sync()
            self._view = handle.map()
            self._disk.sync_directory(self.path.parent)
        except OSError:
            self._view = None
            with suppress(OSError):
                self._disk.remove(self.path)
            raise
        finally:
            handle.close()
        self.has_slots = whole
        self.begin_time_ms = self.end_time_ms = end_time_ms
        self.begin_log_offset = self.end_log_offset = end_log_offset
        self._write_header()

    def load(self) -> None:
        """Reads the header."""
        with closing(self._disk.open(self.path, writable=False)) as handle:
            self._set_header(handle.read(0, HEADER.size))
        self.flushed_count = self.count

    def read_header(self) -> None:
        """Reads the header that the feed has written to the mapped file."""
        self._set_header(self.view[:_HEADER_BYTES])

    def _set_header(self, header: bytes | memoryview) -> None:
        (
            self.begin_time_ms, self.end_time_ms, self.begin_log_offset, self.end_log_offset,
            self.slots_used, count,
        ) = HEADER.unpack(header)  # fmt: skip
        self.count = max(count, 1)

    def items(self) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        """Number and content of all items, without write access."""
        if self._view is None:
            with closing(self._disk.open(self.path, writable=False)) as handle:
                self._view = handle.map()
        items = self.view[self._items_at + ITEM.size : self._items_at + self.count * ITEM.size]
        return enumerate(ITEM.iter_unpack(items), 1)

    def slot(self, slot: int) -> int:
        """The number of the newest item of a slot, from the file."""
        number: int = SLOT.unpack_from(self.view, HEADER.size + slot * SLOT.size)[0]
        return number

    def previous(self, number: int) -> int:
        """The previous item in the chain of an item, from the file."""
        return self._item(number)[3]

    @property
    def plausible(self) -> bool:
        """Whether the header is possible."""
        return (
            self.count <= self.item_max
            and 0 <= self.begin_log_offset <= self.end_log_offset
            and self.slots_used >= 0
        )

    @property
    def free_count(self) -> int:
        return self.item_max - self.count

    @property
    def view(self) -> memoryview:
        view = self._view
        if view is None:
            with closing(self._disk.open(self.path)) as handle:
                view = self._view = handle.map()
        return view

    def ensure_space(self, count: int, hashes: Iterable[int] = ()) -> None:
        """Allocates disk blocks for the next items and their slots. Raises OSError.

        Without `hashes`, and once there are many items, all slots get blocks.
        """
        stop = self._items_at + (self.count + count) * ITEM.size
        pages = set[int]()
        if not self.has_slots and self.count + count <= _FEW_ITEMS:
            pages = {self._slot_at(hashed) // PAGE_BYTES for hashed in hashes}
        if stop <= self._reserved and (self.has_slots or (pages and pages <= self._slot_pages)):
            return
        with closing(self._disk.open(self.path)) as handle:
            self._reserve_slots(handle, pages)
            if stop > self._reserved:
                self._reserve_items(handle, stop)
        if self.has_slots:
            self.ready_count = (self._reserved - self._items_at) // ITEM.size

    def ensure_mapped(self) -> None:
        """Maps the file, so that appending items to reserved space cannot fail. Raises OSError."""
        _ = self.view

    def _slot_at(self, hashed: int) -> int:
        return HEADER.size + hashed % self.slot_count * SLOT.size

    def _reserve_slots(self, handle: DiskFile, pages: set[int]) -> None:
        """Allocates these pages of slots, or all if the set is empty."""
        if self.has_slots:
            return
        if pages:
            for page in pages - self._slot_pages:
                start = page * PAGE_BYTES
                handle.reserve(start, min(PAGE_BYTES, self.size_bytes - start))
                self._slot_pages.add(page)
        else:
            handle.reserve(0, self._items_at)
            self.has_slots = True
            self._slot_pages.clear()

    def _reserve_items(self, handle: DiskFile, stop: int) -> None:
        start = self._items_at + self.count * ITEM.size
        more = min(max(self.count * ITEM.size, _RESERVE_BYTES_MIN), _RESERVE_BYTES)
        end = min(max(stop, start + more), self.size_bytes)
        handle.reserve(start, end - start)
        self._reserved = end

    def put(self, hashes: Iterable[int], log_offset: int, store_time_ms: int) -> None:
        """Appends the items of one message; `ensure_space` was called before."""
        # Called for every message, hence the local variables.
        view, number, slot_count = self._view or self.view, self.count, self.slot_count
        if number == 1:
            self.begin_time_ms, self.begin_log_offset = store_time_ms, log_offset
        begin_time_ms = self.begin_time_ms
        seconds = (store_time_ms - begin_time_ms) // 1000
        if not 0 <= seconds <= _INT32_MAX:
            seconds = 0 if seconds < 0 else _INT32_MAX
        item_at = self._items_at + number * _ITEM_BYTES
        for hashed in hashes:
            slot_at = _HEADER_BYTES + hashed % slot_count * _SLOT_BYTES
            (previous,) = _read_slot(view, slot_at)
            if not 0 < previous < number:
                previous = 0
                self.slots_used += 1
            _write_item(view, item_at, hashed, log_offset, seconds, previous)
            _write_slot(view, slot_at, number)
            number += 1
            item_at += _ITEM_BYTES
        self.count = number
        self.end_time_ms, self.end_log_offset = store_time_ms, log_offset
        view[:_HEADER_BYTES] = _head(
            begin_time_ms, store_time_ms, self.begin_log_offset, log_offset,
            self.slots_used, number,
        )  # fmt: skip

    def writable_memory(self) -> tuple[memoryview, int, int, int]:
        """What the kernel needs to append items: memory with the header, number of slots, most
        items, and items with disk blocks."""
        # A batch of the feed that could not be committed has left its header there.
        self._write_header()
        return self.view, self.slot_count, self.item_max, self.reserved_count

    @property
    def reserved_count(self) -> int:
        """How many items have disk blocks."""
        return max(self._reserved - self._items_at, 0) // ITEM.size

    def put_many(self, items: bytes) -> None:
        """Appends items given as LOOSE_ITEM (`protocol/pure/walk.py`); there is space for them."""
        count = len(items) // LOOSE_ITEM.size
        _, log_offset, store_time_ms = LOOSE_ITEM.unpack_from(items)
        if self.count == 1:
            self.begin_time_ms, self.begin_log_offset = store_time_ms, log_offset
        self.slots_used += kernel.put_index_items(
            self.view, self.slot_count, self.count, self.begin_time_ms, items
        )
        self.count += count
        _, self.end_log_offset, self.end_time_ms = LOOSE_ITEM.unpack_from(
            items, (count - 1) * LOOSE_ITEM.size
        )
        self._write_header()

    def _write_header(self) -> None:
        self.view[:_HEADER_BYTES] = _head(
            self.begin_time_ms, self.end_time_ms, self.begin_log_offset, self.end_log_offset,
            self.slots_used, self.count,
        )  # fmt: skip

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return begin_ms <= self.end_time_ms and end_ms >= self.begin_time_ms

    def find(self, hashed: int, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Log offsets of items with a hash and a time, newest first."""
        found: list[int] = []
        view, count = self.view, self.count
        (number,) = SLOT.unpack_from(view, HEADER.size + hashed % self.slot_count * SLOT.size)
        while 0 < number < count and len(found) < limit:
            item, log_offset, seconds, previous = ITEM.unpack_from(
                view, self._items_at + number * ITEM.size
            )
            time_ms = self.begin_time_ms + seconds * 1000
            # Times are stored in whole seconds, so the range is widened by one second.
            if item == hashed and begin_ms - 1000 < time_ms <= end_ms:
                found.append(log_offset)
            if time_ms + 1000 < begin_ms or previous >= number:
                break
            number = previous
        return found

    def flush(self) -> None:
        count = self.count
        if count > self.flushed_count:
            with closing(self._disk.open(self.path)) as handle:
                handle.sync()
            self.flushed_count = count

    def drop_from(self, log_offset: int) -> None:
        """Removes the items from a log offset on, durably. The slots must be right.

        Takes as long as there are such items, unlike `cut`, which is for slots that may be wrong:
        they are, if this was interrupted.
        """
        numbers = range(1, self.count)
        before, kept = (
            self.count,
            1 + bisect_left(numbers, log_offset, key=lambda number: self._item(number)[1]),
        )
        if kept == before:
            return
        view = self.view
        for number in range(before - 1, kept - 1, -1):
            hashed, _, _, previous = self._item(number)
            SLOT.pack_into(view, self._slot_at(hashed), previous)
            self.slots_used -= not previous
        self._end_with(kept)
        self._clear(
            self._items_at + kept * ITEM.size,
            self._items_at + min(before, self.item_max) * ITEM.size,
        )
        self.flushed_count = 0
        self.flush()

    def zero_rest(self) -> None:
        """Zeroes everything after the last item, which an interrupted cut may have left there."""
        with closing(self._disk.open(self.path)) as handle:
            start = self._items_at + self.count * ITEM.size
            self._reserved = self.ready_count = 0
            handle.zero(start, self.size_bytes - start)
            handle.sync()

    def cut(self, before_log_offset: int, *, counted: bool = False) -> bool:
        """Retains the items below a log offset and computes the slots again.

        False if items are missing between those and the log offset. A caller that compares the
        number of items afterwards (`counted`) detects that itself: then the first position without
        an item is the end, as an interrupted cut leaves it.
        """
        announced, view = self.count, self.view
        count, last, whole = 1, -1, True
        items = view[self._items_at + ITEM.size : self._items_at + self.item_max * ITEM.size]
        slots: dict[int, int] = {}
        for number, (hashed, log_offset, seconds, _) in enumerate(ITEM.iter_unpack(items), 1):
            if number >= announced or log_offset >= before_log_offset:
                break
            if log_offset < max(last, 0) or hashed < 0 or seconds < 0 or not (hashed or log_offset):
                whole = counted
                break
            slots[hashed % self.slot_count] = number
            count, last = number + 1, log_offset
        if not whole:
            # A message with several keys may have lost some: all of its items are removed.
            while count > 1 and self._item(count - 1)[1] == last:
                count -= 1
            slots = {slot: number for slot, number in slots.items() if number < count}
        self._retain(count, slots)
        return whole

    def _item(self, number: int) -> tuple[int, int, int, int]:
        item: tuple[int, int, int, int] = ITEM.unpack_from(
            self.view, self._items_at + number * ITEM.size
        )
        return item

    def _retain(self, count: int, slots: dict[int, int]) -> None:
        # The count is written first: after an interruption the header never counts more items than
        # there are, and the slots are computed again.
        before, self.slots_used = self.count, len(slots)
        self._end_with(count)
        view = self.view
        self._clear(HEADER.size, self._items_at)
        self._reserve_slots_of(slots)
        for slot, number in slots.items():
            SLOT.pack_into(view, HEADER.size + slot * SLOT.size, number)
        # The chain of a slot uses `previous`, which is right for every retained item, because it
        # only points back.
        items_stop = self._items_at + min(before, self.item_max) * ITEM.size
        items_start = self._items_at + count * ITEM.size
        self._clear(items_start, items_stop)
        self.flushed_count = 0
        self.flush()

    def _end_with(self, count: int) -> None:
        """Makes an item the next one, in the header."""
        self.count = count
        if count > 1:
            _, log_offset, seconds, _ = self._item(count - 1)
            self.end_log_offset = log_offset
            self.end_time_ms = self.begin_time_ms + seconds * 1000
        self._write_header()

    def _clear(self, start: int, stop: int) -> None:
        """Writes zeros to pages that are not zero; pages without blocks get none."""
        view = self.view
        for at in range(start, stop, PAGE_BYTES):
            end = min(at + PAGE_BYTES, stop)
            if bytes(view[at:end]) != _ZEROS[: end - at]:
                view[at:end] = _ZEROS[: end - at]

    def _reserve_slots_of(self, slots: Iterable[int]) -> None:
        pages = {self._slot_at(slot) // PAGE_BYTES for slot in slots}
        if pages:
            with closing(self._disk.open(self.path)) as handle:
                self._reserve_slots(handle, pages if len(pages) <= _FEW_ITEMS else set())

    def unmap(self) -> None:
        self._view = None

    def release(self) -> None:
        """Releases the resident memory of all items except the last ones."""
        view = self._view
        if view is not None:
            stop = self._items_at + self.count * ITEM.size - _RESERVE_BYTES
            self._disk.release(view, self._items_at, stop)
