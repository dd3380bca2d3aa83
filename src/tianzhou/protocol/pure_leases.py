"""What the pure feed knows of topics and queues, and memory of the store that it may write to.

The store lends the memory and stays the owner of every position: what is gathered here is written
and counts once it is settled. The layouts are drawn in `store/consumequeue.py` and
`store/index.py`.
"""

import struct
from typing import Any

from tianzhou.protocol.properties import java_hash
from tianzhou.protocol.pure_answers import binary_queue, json_queue
from tianzhou.protocol.pure_pulls import Grant, QueueFile
from tianzhou.protocol.pure_record import encode_topic
from tianzhou.protocol.pure_texts import POWERS, KeyHashes

IndexState = tuple[int, int, int, int, int, int]
"""Begin and end time, begin and end log offset, slots in use, item count."""

NO_MEMORY = memoryview(b"")

_ENTRY_FORM = "qiq"
_ENTRY_BYTES = 20
_ENTRIES_AT_ONCE = 64
_ENTRIES = [struct.Struct(">" + _ENTRY_FORM * count) for count in range(_ENTRIES_AT_ONCE + 1)]
_INDEX_HEAD = struct.Struct(">qqqqii")
_SLOT, _ITEM = struct.Struct(">i"), struct.Struct(">iqii")
_read_slot, _write_slot, _pack_item = _SLOT.unpack_from, _SLOT.pack_into, _ITEM.pack
_INDEX_HEAD_BYTES, _SLOT_BYTES = _INDEX_HEAD.size, _SLOT.size
_INT32_MAX = 2**31 - 1


class Topic:
    """A topic that the feed knows."""

    __slots__ = (
        "files", "grants", "hashed", "lanes", "magic", "name", "queue_count", "read_count",
        "sys_flag", "tail",
    )  # fmt: skip

    def __init__(self, name: str, queue_count: int, read_count: int, sys_flag: int) -> None:
        self.name = name
        self.queue_count = queue_count
        """Queues that may be sent to, and those that may be read; 0 if there are none."""
        self.read_count = read_count
        self.sys_flag = sys_flag
        """What its messages have in their system flag."""
        self.hashed = java_hash(f"{name}#")
        """With this the hash of every key begins."""
        self.magic, self.tail = encode_topic(name)
        self.lanes: dict[int, Lane] = {}
        self.files: dict[int, QueueFile] = {}
        self.grants: dict[str, Grant] = {}

    def close(self) -> None:
        """It is forgotten; sends that know a lane of it find no room there."""
        for lane in self.lanes.values():
            lane.close()


class Lane:
    """The end of a queue, and what is to be written there."""

    __slots__ = (
        "batched", "binary_queue", "entries", "first", "hashed", "json_queue", "limit", "magic",
        "memory", "next", "owner", "queue_id", "sys_flag", "tail", "taken",
    )  # fmt: skip

    def __init__(self, topic: Topic, queue_id: int) -> None:
        self.queue_id = queue_id
        # What is the topic's, nearer by.
        self.hashed, self.magic, self.tail = topic.hashed, topic.magic, topic.tail
        self.sys_flag = topic.sys_flag
        self.json_queue, self.binary_queue = json_queue(queue_id), binary_queue(queue_id)
        self.owner: Any = None
        """The store's own queue, to name it by."""
        self.memory = NO_MEMORY
        self.first = 0
        """Queue offset of the file's first entry."""
        self.next = self.limit = 0
        """Queue offset of the next entry, and of the first one without room."""
        self.entries: list[int] = []
        """Log offset, size and tags code of each message that is not settled."""
        self.batched = 0
        """By how many these messages are more than the sends that brought them."""
        self.taken = [0, 0, 0]
        """Messages, bytes and sends that were settled since they were asked for."""

    def lend(self, owner: object, memory: memoryview, first: int, next_: int, limit: int) -> None:
        self.owner, self.memory, self.first, self.next = owner, memory, first, next_
        self.limit = min(limit, first + len(memory) // _ENTRY_BYTES)

    def close(self) -> None:
        self.owner, self.memory = None, NO_MEMORY
        self.first = self.next = self.limit = self.batched = 0
        self.entries = []

    def settle(self) -> tuple[Any, int, int, int]:
        """Write what was gathered.

        Answers the queue, its next offset, the end of its last record and the tags code of that.
        """
        entries, self.entries = self.entries, []
        count = len(entries) // 3
        at = (self.next - count - self.first) * _ENTRY_BYTES
        packed = pack_entries(entries)
        self.memory[at : at + len(packed)] = packed
        taken = self.taken
        taken[0] += count
        taken[1] += sum(entries[1::3])
        taken[2] += count - self.batched
        self.batched = 0
        return self.owner, self.next, entries[-3] + entries[-2], entries[-1]


def pack_entries(entries: list[int]) -> bytes:
    """Entries of a queue, given as their numbers in a row."""
    count = len(entries) // 3
    if count <= _ENTRIES_AT_ONCE:
        return _ENTRIES[count].pack(*entries)
    step = 3 * _ENTRIES_AT_ONCE
    return b"".join(pack_entries(entries[at : at + step]) for at in range(0, len(entries), step))


class IndexLease:
    """The last file of the index, and the keys that are to be written there.

    Whoever adds to `keys` sees to it that they have room, and counts them.
    """

    __slots__ = ("_hashes", "_memory", "_slot_count", "_state", "free_count", "key_count", "keys")

    def __init__(
        self,
        memory: memoryview,
        slot_count: int,
        item_max: int,
        room_max: int,
        state: IndexState,
        hashes: KeyHashes,
    ) -> None:
        self._memory = memory
        self._slot_count = slot_count
        self._state = state
        self._hashes = hashes
        self.free_count = min(item_max, room_max) - state[-1]
        """Keys that still have room."""
        self.keys: list[tuple[int, tuple[bytes, ...], int, int]] = []
        """Of each message to file: hash of the topic, keys, log offset and store time."""
        self.key_count = 0
        """Keys of these messages."""

    def settle(self) -> IndexState:
        """Write what was gathered; the numbers of the header then."""
        pending, self.keys, self.key_count = self.keys, [], 0
        memory, slot_count = self._memory, self._slot_count
        hashes, fronts, ends = self._hashes, self._hashes.fronts, self._hashes.ends
        powers = POWERS
        begin_time, _, begin_log_offset, _, slots_used, number = self._state
        if number == 1:
            _, _, begin_log_offset, begin_time = pending[0]
        items: list[bytes] = []
        items_at = _INDEX_HEAD_BYTES + slot_count * _SLOT_BYTES + number * _ENTRY_BYTES
        log_offset = store_time = 0
        for topic_hash, filed, log_offset, store_time in pending:
            seconds = (store_time - begin_time) // 1000
            if not 0 <= seconds <= _INT32_MAX:
                seconds = 0 if seconds < 0 else _INT32_MAX
            for key in filed:
                try:
                    hashed = topic_hash * powers[len(key)] + fronts[key[:-2]] + ends[key[-2:]]
                    hashed &= 0xFFFF_FFFF
                except LookupError:
                    hashed = hashes.of(topic_hash, key)
                if hashed > _INT32_MAX:
                    # The smallest int has no positive twin; RocketMQ files it under 0.
                    hashed = 0x1_0000_0000 - hashed & 0x7FFF_FFFF
                slot_at = _INDEX_HEAD_BYTES + hashed % slot_count * _SLOT_BYTES
                (previous,) = _read_slot(memory, slot_at)
                if not 0 < previous < number:
                    previous = 0
                    slots_used += 1
                items.append(_pack_item(hashed, log_offset, seconds, previous))
                _write_slot(memory, slot_at, number)
                number += 1
        packed = b"".join(items)
        memory[items_at : items_at + len(packed)] = packed
        state = (begin_time, store_time, begin_log_offset, log_offset, slots_used, number)
        _INDEX_HEAD.pack_into(memory, 0, *state)
        self._state = state
        return state
