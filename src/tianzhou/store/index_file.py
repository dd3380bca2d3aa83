"""One file of the index of keys: a hash table from topic and key to log offsets.

    header   begin time:i64  end time:i64  begin log offset:i64  end log offset:i64
             slots in use:i32  item count:i32                                            40 bytes
    slots    number of the newest item of each slot:i32
    items    key hash:i32  log offset:i64  seconds since begin time:i32  previous item:i32

All big-endian. The hash is Java's of `topic#key`, made positive; its remainder by the number of
slots chooses the slot. Items are numbered from 1 (the count says one more than there are) and
only ever added; those of one slot form a chain from the newest back. So the slots can be computed
again from the items, which is what recovery does. Files are named by the time of their creation.

A file has its full length at once, and disk blocks as they are needed: pages of slots one by one
for the first few hundred items, then all of them; items a piece at a time.
"""

import contextlib
import struct
from collections.abc import Iterable, Iterator
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
# Written over the header whole: `pack_into` blanks the place first, and who is killed between the
# two leaves an index that seems to be empty.
_head = HEADER.pack

_RESERVE_BYTES_MIN = 16 * PAGE_BYTES
_RESERVE_BYTES = 256 * PAGE_BYTES
_FEW_ITEMS = 256
"""With more of them nearly every page of slots is used sooner or later."""
_INT32_MAX = 2**31 - 1
_ZEROS = bytes(PAGE_BYTES)


class IndexFile:
    """One hash file; the numbers of its header are kept in memory and written with each item."""

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
        """Pages of slots that have disk blocks for certain, while not all of them do."""
        self.has_slots = False
        """All slots have disk blocks."""
        self.ready_count = 0
        """Items below this number have disk blocks for certain."""
        self.begin_time_ms = self.end_time_ms = 0
        self.begin_log_offset = self.end_log_offset = 0
        self.slots_used = 0
        self.count = 1
        """Number that the next item gets."""
        self.flushed_count = 1

    def create(self, *, end_log_offset: int, end_time_ms: int, whole: bool) -> None:
        """Makes the file; it begins where the one before ended. If it fails nothing is left.

        With `whole` all of its slots get disk blocks.
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
            with contextlib.suppress(OSError):
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
        handle = self._disk.open(self.path, writable=False)
        try:
            numbers = HEADER.unpack(handle.read(0, HEADER.size))
        finally:
            handle.close()
        self.begin_time_ms, self.end_time_ms = numbers[0], numbers[1]
        self.begin_log_offset, self.end_log_offset = numbers[2], numbers[3]
        self.slots_used, self.count = numbers[4], max(numbers[5], 1)
        self.flushed_count = self.count

    def items(self) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        """Number and content of all items; the file is only read."""
        if self._view is None:
            handle = self._disk.open(self.path, writable=False)
            try:
                self._view = handle.map()
            finally:
                handle.close()
        items = self.view[self._items_at + ITEM.size : self._items_at + self.count * ITEM.size]
        return enumerate(ITEM.iter_unpack(items), 1)

    def slot(self, slot: int) -> int:
        """The number of the newest item of a slot, as the file has it."""
        number: int = SLOT.unpack_from(self.view, HEADER.size + slot * SLOT.size)[0]
        return number

    def previous(self, number: int) -> int:
        """The item before an item in the chain of its slot, as the file has it."""
        return self._item(number)[3]

    @property
    def plausible(self) -> bool:
        """Whether the header could be one of ours."""
        return (
            self.count <= self.item_max
            and 0 <= self.begin_log_offset <= self.end_log_offset
            and self.slots_used >= 0
        )

    @property
    def room(self) -> int:
        return self.item_max - self.count

    @property
    def view(self) -> memoryview:
        view = self._view
        if view is None:
            handle = self._disk.open(self.path)
            try:
                view = self._view = handle.map()
            finally:
                handle.close()
        return view

    def ensure_space(self, count: int, hashes: Iterable[int] = ()) -> None:
        """Gives disk blocks to the next items and to their slots. Raises OSError.

        Without their `hashes` all slots get blocks, and so they do once there are many items.
        """
        stop = self._items_at + (self.count + count) * ITEM.size
        pages = set[int]()
        if not self.has_slots and self.count + count <= _FEW_ITEMS:
            pages = {self._slot_at(hashed) // PAGE_BYTES for hashed in hashes}
        if stop <= self._reserved and (self.has_slots or (pages and pages <= self._slot_pages)):
            return
        handle = self._disk.open(self.path)
        try:
            self._reserve_slots(handle, pages)
            if stop > self._reserved:
                self._reserve_items(handle, stop)
        finally:
            handle.close()
        if self.has_slots:
            self.ready_count = (self._reserved - self._items_at) // ITEM.size

    def _slot_at(self, hashed: int) -> int:
        return HEADER.size + hashed % self.slot_count * SLOT.size

    def _reserve_slots(self, handle: DiskFile, pages: set[int]) -> None:
        """These pages of slots, or all of them if none is named."""
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
        """Adds the items of one message; there is room for them."""
        # This is done for every message, hence the plain names for what the loop needs.
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

    def writable_memory(
        self,
    ) -> tuple[memoryview, int, int, int, tuple[int, int, int, int, int, int]]:
        """What the compiled feed must know to add items: memory, slots, items at most, items that
        have disk blocks, and the numbers of the header."""
        state = (
            self.begin_time_ms, self.end_time_ms, self.begin_log_offset, self.end_log_offset,
            self.slots_used, self.count,
        )  # fmt: skip
        return self.view, self.slot_count, self.item_max, self.reserved_count, state

    @property
    def reserved_count(self) -> int:
        """How many items have disk blocks."""
        return max(self._reserved - self._items_at, 0) // ITEM.size

    def settle(self, state: tuple[int, int, int, int, int, int]) -> None:
        """Take over the numbers of the header as the feed has written it."""
        (
            self.begin_time_ms, self.end_time_ms, self.begin_log_offset, self.end_log_offset,
            self.slots_used, self.count,
        ) = state  # fmt: skip

    def put_many(self, items: bytes) -> None:
        """Adds loose items (see `pure_walk`), for which there is room."""
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
            # The time is kept in whole seconds, so the range is widened by one of them.
            if item == hashed and begin_ms - 1000 < time_ms <= end_ms:
                found.append(log_offset)
            if time_ms + 1000 < begin_ms or previous >= number:
                break
            number = previous
        return found

    def flush(self) -> None:
        count = self.count
        if count > self.flushed_count:
            handle = self._disk.open(self.path)
            try:
                handle.sync()
            finally:
                handle.close()
            self.flushed_count = count

    def cut(self, before_log_offset: int, *, counted: bool = False) -> bool:
        """Keeps the items below a log offset and computes the slots again.

        False if items are missing between those kept and that log offset. A caller who knows how
        many there must be (`counted`) will notice that by itself: then the first place without an
        item is the end, as an interrupted cut leaves it.
        """
        announced, view = self.count, self.view
        kept, last, whole = 1, -1, True
        items = view[self._items_at + ITEM.size : self._items_at + self.item_max * ITEM.size]
        slots: dict[int, int] = {}
        for number, (hashed, log_offset, seconds, _) in enumerate(ITEM.iter_unpack(items), 1):
            if number >= announced or log_offset >= before_log_offset:
                break
            if log_offset < max(last, 0) or hashed < 0 or seconds < 0 or not (hashed or log_offset):
                whole = counted
                break
            slots[hashed % self.slot_count] = number
            kept, last = number + 1, log_offset
        if not whole:
            # A message with several keys may have lost some of them: its items go as a whole.
            while kept > 1 and self._item(kept - 1)[1] == last:
                kept -= 1
            slots = {slot: number for slot, number in slots.items() if number < kept}
        self._keep(kept, slots)
        return whole

    def _item(self, number: int) -> tuple[int, int, int, int]:
        found: tuple[int, int, int, int] = ITEM.unpack_from(
            self.view, self._items_at + number * ITEM.size
        )
        return found

    def _keep(self, count: int, slots: dict[int, int]) -> None:
        # The count comes first: whoever is interrupted after that finds no more items than there
        # are, and computes the slots again.
        before, self.count, self.slots_used = self.count, count, len(slots)
        if count > 1:
            _, log_offset, seconds, _ = self._item(count - 1)
            self.end_log_offset = log_offset
            self.end_time_ms = self.begin_time_ms + seconds * 1000
        self._write_header()
        view = self.view
        self._clear(HEADER.size, self._items_at)
        self._reserve_slots_of(slots)
        for slot, number in slots.items():
            SLOT.pack_into(view, HEADER.size + slot * SLOT.size, number)
        # The chain of a slot runs through `previous`, which is right for every item kept, as it
        # only ever points back.
        items_stop = self._items_at + min(before, self.item_max) * ITEM.size
        items_start = self._items_at + count * ITEM.size
        self._clear(items_start, items_stop)
        self.flushed_count = 0
        self.flush()

    def _clear(self, start: int, stop: int) -> None:
        """Writes zeros where there is anything else; pages without blocks stay so."""
        view = self.view
        for at in range(start, stop, PAGE_BYTES):
            end = min(at + PAGE_BYTES, stop)
            if bytes(view[at:end]) != _ZEROS[: end - at]:
                view[at:end] = _ZEROS[: end - at]

    def _reserve_slots_of(self, slots: Iterable[int]) -> None:
        pages = {self._slot_at(slot) // PAGE_BYTES for slot in slots}
        if pages:
            handle = self._disk.open(self.path)
            try:
                self._reserve_slots(handle, pages if len(pages) <= _FEW_ITEMS else set())
            finally:
                handle.close()

    def unmap(self) -> None:
        self._view = None

    def release(self) -> None:
        """Takes the items out of this process's memory, but for those written last."""
        view = self._view
        if view is not None:
            stop = self._items_at + self.count * ITEM.size - _RESERVE_BYTES
            self._disk.release(view, self._items_at, stop)
