"""How far each consumer group has come in each queue.

The table is keyed as RocketMQ's file is, "topic@group". An offset goes wherever a client says, back
as well as forward: a consumer that was reset, or that shares its group with a slower one, moves it
back, and it is not for the broker to know better.

A reset is the exception. A consumer that has not heard of it yet would soon commit what it had
before, so commits are passed over until it was told where to go on (`take_reset`).
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from tianzhou.errors import BodyError
from tianzhou.remoting.slices import Steps

SEPARATOR = "@"
NOT_FOUND = -1
PULLED_MAX = 65_536
"""Topics of groups whose pulls are known; the oldest are forgotten first."""
_TOGETHER = 512


class OffsetTable:
    """Committed queue offsets by topic, group and queue."""

    def __init__(
        self,
        on_change: Callable[[], None] = lambda: None,
        is_full: Callable[[int], bool] = lambda count: False,
    ) -> None:
        """`is_full` tells whether a table of so many offsets takes no more."""
        self.by_key: dict[str, dict[int, int]] = {}
        """Offsets by queue, by "topic@group"."""
        self.count = 0
        """How many offsets there are."""
        self._is_full = is_full
        self._on_change = on_change
        self._others: dict[str, object] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        """Where the last pull of a group in a queue went on, by "topic@group"; not saved."""
        self._resets: dict[str, set[int]] = {}
        """Queues whose consumer has yet to be told of a reset, by "topic@group"."""

    def has(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the group has committed an offset there."""
        return queue_id in self.by_key.get(f"{topic}{SEPARATOR}{group}", ())

    def commit(
        self, group: str, topic: str, queue_id: int, queue_offset: int, *, always: bool = False
    ) -> int | None:
        """Note how far a group is; returns the offset from before if the group went back.

        A full table takes no new offset, unless `always`.
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
        self._on_change()
        return before if before is not None and queue_offset < before else None

    def note_pull(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note where a group pulls next, which is what it has in flight beyond its offset."""
        key = f"{topic}{SEPARATOR}{group}"
        if self._resets and queue_id in self._resets.get(key, ()):
            return  # it was before the reset
        queues = self._pulled.get(key)
        if queues is None:
            if len(self._pulled) >= PULLED_MAX:
                del self._pulled[next(iter(self._pulled))]
            queues = self._pulled[key] = {}
        queues[queue_id] = queue_offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """Where a group pulls next, NOT_FOUND if no pull is known."""
        return self._pulled.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id, NOT_FOUND)

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Move a group, whatever its consumers commit until one of them was told."""
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
        self._on_change()

    def is_reset(self, group: str, topic: str, queue_id: int | None = None) -> bool:
        """Whether a consumer has yet to be told of a reset, of one queue or of any."""
        waiting = self._resets.get(f"{topic}{SEPARATOR}{group}") if self._resets else None
        return bool(waiting) if queue_id is None else waiting is not None and queue_id in waiting

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where a group was reset to, if its consumer has not been told: now it is."""
        if not self.is_reset(group, topic, queue_id):
            return None
        key = f"{topic}{SEPARATOR}{group}"
        self._resets[key].discard(queue_id)
        if not self._resets[key]:
            del self._resets[key]
        return self.by_key[key][queue_id]

    def find(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, NOT_FOUND if the group never committed one there."""
        queues = self.by_key.get(f"{topic}{SEPARATOR}{group}")
        return NOT_FOUND if queues is None else queues.get(queue_id, NOT_FOUND)

    def of_topic_and_group(self, topic: str, group: str) -> dict[int, int]:
        """Offsets by queue."""
        return dict(self.by_key.get(f"{topic}{SEPARATOR}{group}", {}))

    def topics_of(self, group: str) -> Steps[set[str]]:
        """Topics in which a group has committed something."""
        ending = f"{SEPARATOR}{group}"
        found: set[str] = set()
        for keys in _some(self.by_key):
            found.update(_parts(key)[0] for key in keys if key.endswith(ending))
            yield
        return found

    def groups_of(self, topic: str) -> Steps[set[str]]:
        """Groups that have committed something in a topic."""
        beginning = f"{topic}{SEPARATOR}"
        found: set[str] = set()
        for keys in _some(self.by_key):
            named = (_parts(key) for key in keys if key.startswith(beginning))
            found.update(group for name, group in named if name == topic)
            yield
        return found

    def progress(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Topic, group, and the offsets by queue."""
        for key, queues in list(self.by_key.items()):
            yield *_parts(key), queues

    def copy(self, source: str, target: str, topic: str) -> None:
        """Let a group stand where another one stands in a topic."""
        queues = self.by_key.get(f"{topic}{SEPARATOR}{source}")
        if queues is not None:
            key = f"{topic}{SEPARATOR}{target}"
            self.count += len(queues) - len(self.by_key.get(key, ()))
            self.by_key[key] = dict(queues)
            self._resets.pop(key, None)  # they were of what is no more
            self._pulled.pop(key, None)
            self._on_change()

    def remove_group(self, group: str) -> Steps[None]:
        for topic in (yield from self.topics_of(group)):
            self._remove(topic, group)
            yield
        yield from self._forget_pulls(lambda _, name: name == group)

    def remove_topic(self, topic: str) -> Steps[None]:
        for group in (yield from self.groups_of(topic)):
            self._remove(topic, group)
            yield
        yield from self._forget_pulls(lambda name, _: name == topic)

    def _forget_pulls(self, unwanted: Callable[[str, str], bool]) -> Steps[None]:
        for keys in _some(self._pulled):
            for key in keys:
                if unwanted(*_parts(key)):
                    self._pulled.pop(key, None)
            yield

    def _remove(self, topic: str, group: str) -> None:
        key = f"{topic}{SEPARATOR}{group}"
        queues = self.by_key.pop(key, None)
        if queues is not None:
            self.count -= len(queues)
            self._on_change()
        self._resets.pop(key, None)

    # -- on the wire and on disk -------------------------------------------------------------------

    def as_file(self) -> dict[str, object]:
        """What `consumerOffset.json` holds; parts that only other versions know are kept."""
        return {**self._others, "offsetTable": self.by_key}

    def load(self, found: dict[str, object]) -> None:
        """Take over the content of a file. Raises BodyError and changes nothing if it is wrong."""
        table = found.get("offsetTable", {})
        try:
            self.by_key = msgspec.convert(table, dict[str, dict[int, int]], strict=False)
        except msgspec.ValidationError as e:
            raise BodyError(f"the consumer offsets cannot be read: {e}") from e
        self.count = sum(map(len, self.by_key.values()))
        self._others = {key: value for key, value in found.items() if key != "offsetTable"}


def _some(keys: Iterable[str]) -> Iterator[list[str]]:
    """A copy of the keys, in pieces that take a fraction of a millisecond to look at."""
    copied = list(keys)
    return (copied[at : at + _TOGETHER] for at in range(0, len(copied), _TOGETHER))


def _parts(key: str) -> tuple[str, str]:
    topic, _, group = key.rpartition(SEPARATOR)
    return topic, group
