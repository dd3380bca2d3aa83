"""The committed offsets of consumer groups.

The table is keyed like RocketMQ's file, "topic@group". A client may commit any offset, backward as
well as forward: a consumer that was reset, or that shares its group with a slower one, moves it
back.

A reset is the exception. A consumer that does not know of it yet would commit its old offset, so
commits are ignored until the consumer has received the new offset (`take_reset`).

Changes are numbered, so that a slave which copies the table gets what has changed since it last
asked. The numbers by key are stored from the first such request on, also those of removed keys:
otherwise the offsets of a removed topic or group would be in force again at a promoted slave.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from tianzhou.broker.tables.saver import convert_table, unknown_keys
from tianzhou.remoting.scheduler import Steps

SEPARATOR = "@"
NOT_FOUND = -1
PULLED_MAX = 65_536
"""Pairs of topic and group whose pull offsets are stored; the oldest are evicted first."""
REMOVED_MAX = 10_000
"""Removed keys that are in the changes for slaves; the oldest are forgotten first."""
_KEYS_PER_SLICE = 512
_RECENT_CHANGES = 1024
"""So many changes are searched one by one, before the list of all is copied."""


class Changes(NamedTuple):
    """Offsets that changed, oldest change first."""

    offsets: dict[str, dict[int, int]]
    """All offsets of each "topic@group" in which any changed; none: it was removed."""
    last: int
    """The number of the last change."""
    has_more: bool
    """Whether there are later changes."""


class OffsetTable:
    """Committed queue offsets by topic, group and queue."""

    def __init__(
        self,
        on_change: Callable[[], None] = lambda: None,
        is_full: Callable[[int], bool] = lambda count: False,
    ) -> None:
        """`is_full` returns whether a table of so many offsets is full."""
        self.by_key: dict[str, dict[int, int]] = {}
        """Offsets by queue, by "topic@group"."""
        self.count = 0
        """How many offsets there are."""
        self.change_count = 0
        """How many changes were made since the start; the number of the last one."""
        self._changed_at: dict[str, int] = {}
        """The number of the last change by "topic@group", ascending; see `changes_after`."""
        self._removed: dict[str, None] = {}
        """Numbered keys that are not in the table any more, in the order of their removal."""
        self._is_numbering = self._is_numbered = False
        """Whether changes are numbered, and whether every key has a number."""
        self._is_full = is_full
        self._on_change = on_change
        self._others: dict[str, object] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        """The next offset after the last pull of each queue, by "topic@group"; not saved."""
        self._resets: dict[str, set[int]] = {}
        """Queues with a reset that the consumer has not received, by "topic@group"."""

    def has(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the group has committed an offset there."""
        return queue_id in self.by_key.get(f"{topic}{SEPARATOR}{group}", ())

    def commit(
        self, group: str, topic: str, queue_id: int, queue_offset: int, *, always: bool = False
    ) -> int | None:
        """Commit an offset; returns the previous one if the group went back.

        A full table accepts no new offset, unless `always`.
        """
        key = f"{topic}{SEPARATOR}{group}"
        if self._resets and queue_id in self._resets.get(key, ()):
            return None
        queues = self.by_key.get(key)
        before = None if queues is None else queues.get(queue_id)
        if before == queue_offset:
            return None
        if before is None:
            if not always and self._is_full(self.count):
                return None
            self.count += 1
        if queues is None:
            queues = self.by_key[key] = {}
        queues[queue_id] = queue_offset
        self._changed(key)
        return before if before is not None and queue_offset < before else None

    def note_pull(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Store the next pull offset of a group: uncommitted messages before it are in flight."""
        key = f"{topic}{SEPARATOR}{group}"
        if self._resets and queue_id in self._resets.get(key, ()):
            return  # the pull was before the reset
        queues = self._pulled.get(key)
        if queues is None:
            if len(self._pulled) >= PULLED_MAX:
                del self._pulled[next(iter(self._pulled))]
            queues = self._pulled[key] = {}
        queues[queue_id] = queue_offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """The next pull offset of a group, NOT_FOUND if unknown."""
        return self._pulled.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id, NOT_FOUND)

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the offset of a group; commits are ignored until a consumer has received it."""
        key = f"{topic}{SEPARATOR}{group}"
        queues = self.by_key.get(key, {})
        if queue_id not in queues:
            if self._is_full(self.count):
                return
            self.count += 1
        queues[queue_id] = queue_offset
        self.by_key[key] = queues
        self._resets.setdefault(key, set()).add(queue_id)
        self._pulled.pop(key, None)
        self._changed(key)

    def is_reset(self, group: str, topic: str, queue_id: int | None = None) -> bool:
        """Whether a reset is pending, of one queue or of any."""
        waiting = self._resets.get(f"{topic}{SEPARATOR}{group}") if self._resets else None
        return bool(waiting) if queue_id is None else waiting is not None and queue_id in waiting

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset of a pending reset, which ends it; None if none is pending."""
        if not self.is_reset(group, topic, queue_id):
            return None
        key = f"{topic}{SEPARATOR}{group}"
        self._resets[key].discard(queue_id)
        if not self._resets[key]:
            del self._resets[key]
        return self.by_key[key][queue_id]

    def find(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, NOT_FOUND if there is none."""
        queues = self.by_key.get(f"{topic}{SEPARATOR}{group}")
        return NOT_FOUND if queues is None else queues.get(queue_id, NOT_FOUND)

    def of_topic_and_group(self, topic: str, group: str) -> dict[int, int]:
        """Offsets by queue."""
        return dict(self.by_key.get(f"{topic}{SEPARATOR}{group}", {}))

    def topics_of(self, group: str) -> Steps[set[str]]:
        """Topics in which a group has committed offsets."""
        ending = f"{SEPARATOR}{group}"
        names: set[str] = set()
        for keys in _some(self.by_key):
            names.update(_split_key(key)[0] for key in keys if key.endswith(ending))
            yield
        return names

    def groups_of(self, topic: str) -> Steps[set[str]]:
        """Groups that have committed offsets in a topic."""
        beginning = f"{topic}{SEPARATOR}"
        names: set[str] = set()
        for keys in _some(self.by_key):
            pairs = (_split_key(key) for key in keys if key.startswith(beginning))
            names.update(group for name, group in pairs if name == topic)
            yield
        return names

    def progress(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Topic, group, and the offsets by queue."""
        for key, queues in list(self.by_key.items()):
            yield *_split_key(key), queues

    def copy(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of a group in a topic to another group."""
        queues = self.by_key.get(f"{topic}{SEPARATOR}{source}")
        if queues is not None:
            key = f"{topic}{SEPARATOR}{target}"
            self.count += len(queues) - len(self.by_key.get(key, ()))
            self.by_key[key] = dict(queues)
            self._resets.pop(key, None)  # pending resets of the replaced offsets
            self._pulled.pop(key, None)
            self._changed(key)

    def remove_group(self, group: str) -> Steps[None]:
        for topic in (yield from self.topics_of(group)):
            self._remove(topic, group)
            yield
        yield from self._remove_pulls(lambda _, name: name == group)

    def remove_topic(self, topic: str) -> Steps[None]:
        for group in (yield from self.groups_of(topic)):
            self._remove(topic, group)
            yield
        yield from self._remove_pulls(lambda name, _: name == topic)

    def _remove_pulls(self, unwanted: Callable[[str, str], bool]) -> Steps[None]:
        for keys in _some(self._pulled):
            for key in keys:
                if unwanted(*_split_key(key)):
                    self._pulled.pop(key, None)
            yield

    def _remove(self, topic: str, group: str) -> None:
        key = f"{topic}{SEPARATOR}{group}"
        queues = self.by_key.pop(key, None)
        if queues is not None:
            self.count -= len(queues)
            self._changed(key)
        self._resets.pop(key, None)

    # -- copies on slaves --------------------------------------------------------------------------

    def _changed(self, key: str) -> None:
        self.change_count += 1
        if self._is_numbering:
            self._changed_at.pop(key, None)
            self._changed_at[key] = self.change_count
            self._removed.pop(key, None)
            if key not in self.by_key:
                self._note_removed(key)
        self._on_change()

    def _note_removed(self, key: str) -> None:
        self._removed[key] = None
        if len(self._removed) > REMOVED_MAX:
            oldest = next(iter(self._removed))
            del self._removed[oldest], self._changed_at[oldest]

    def changes_after(self, change: int, offset_count: int) -> Steps[Changes]:
        """What changed after the change of this number, about so many offsets at most."""
        if not self._is_numbered:
            yield from self._number()
        numbered = list(islice(self._newest_after(change), _RECENT_CHANGES))
        if len(numbered) < _RECENT_CHANGES:
            numbered.reverse()
        else:
            first = bisect_right(list(self._changed_at.values()), change)
            numbered = list(islice(self._changed_at.items(), first, first + offset_count + 1))
        return self._read_changes(numbered, change, offset_count)

    def _number(self) -> Steps[None]:
        """Give every key a number. Keys that change meanwhile get a later one."""
        self._is_numbering = True
        for keys in _some(self.by_key):
            for key in keys:
                if key in self.by_key and key not in self._changed_at:
                    self.change_count += 1
                    self._changed_at[key] = self.change_count
            yield
        self._is_numbered = True

    def _newest_after(self, change: int) -> Iterator[tuple[str, int]]:
        for key, number in reversed(self._changed_at.items()):
            if number <= change:
                return
            yield key, number

    def _read_changes(
        self, numbered: list[tuple[str, int]], change: int, offset_count: int
    ) -> Changes:
        offsets: dict[str, dict[int, int]] = {}
        left = offset_count
        for key, number in numbered:
            if left <= 0:
                return Changes(offsets, change, has_more=True)
            offsets[key] = dict(self.by_key.get(key, ()))
            left -= max(len(offsets[key]), 1)
            change = number
        return Changes(offsets, change, has_more=False)

    def put_over(self, offsets: Mapping[str, Mapping[int, int]]) -> Steps[None]:
        """Replace the offsets of each "topic@group" of another broker's table; others stay.

        A key without offsets is removed.
        """
        for key, theirs in offsets.items():
            ours = self.by_key.get(key, {})
            if ours != theirs:
                self.count += len(theirs) - len(ours)
                self.by_key[key] = dict(theirs)
                if not theirs:
                    del self.by_key[key]
                self._changed(key)
            self._resets.pop(key, None)
            self._pulled.pop(key, None)
            yield

    # -- a log that was cut ------------------------------------------------------------------------

    def limit(self, end_of: Callable[[str, int], int | None]) -> Steps[int]:
        """Lower the offsets behind the ends of their queues; returns how many.

        A consumer at such an offset would pass the next messages, which are other ones. `end_of` is
        called with topic and queue; None: the end is not known, and the offset stays.
        """
        count = 0
        for keys in _some(self.by_key):
            for key in keys:
                count += self._limit(key, self.by_key.get(key, {}), end_of)
                self._limit(key, self._pulled.get(key, {}), end_of)
            yield
        return count

    def _limit(
        self, key: str, queues: dict[int, int], end_of: Callable[[str, int], int | None]
    ) -> int:
        topic, _ = _split_key(key)
        ends = {queue_id: end_of(topic, queue_id) for queue_id in queues}
        lowered = {
            queue_id: end
            for queue_id, end in ends.items()
            if end is not None and queues[queue_id] > end
        }
        if lowered:
            queues.update(lowered)
            self._changed(key)
        return len(lowered)

    # -- on the wire and on disk -------------------------------------------------------------------

    def as_file(self) -> dict[str, object]:
        """The content of `consumerOffset.json`, with unknown keys of other versions."""
        return {**self._others, "offsetTable": self.by_key}

    def load(self, content: dict[str, object]) -> None:
        """Load the content of a file. Raises BodyError; then nothing has changed."""
        table = content.get("offsetTable", {})
        self.by_key = convert_table(table, dict[str, dict[int, int]], "consumer offsets")
        self.count = sum(map(len, self.by_key.values()))
        self._others = unknown_keys(content, "offsetTable")


def _some(keys: Iterable[str]) -> Iterator[list[str]]:
    """A copy of the keys, in lists that take a fraction of a millisecond to process."""
    copied = list(keys)
    return (copied[at : at + _KEYS_PER_SLICE] for at in range(0, len(copied), _KEYS_PER_SLICE))


def _split_key(key: str) -> tuple[str, str]:
    topic, _, group = key.rpartition(SEPARATOR)
    return topic, group
