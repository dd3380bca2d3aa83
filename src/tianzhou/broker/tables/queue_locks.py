"""Queue locks for orderly consumption, each held by one client of a group at a time.

A client locks its queues before it consumes them, and renews the locks every 20 s. A lock that is
not renewed expires, which releases the queues of a dead client; until then no other client gets
them, because the client may still be processing messages. Each group has its own locks.
"""

from collections.abc import Iterable
from typing import NamedTuple


class QueueName(NamedTuple):
    """A queue as clients name it."""

    topic: str
    broker_name: str
    queue_id: int


class QueueLock(NamedTuple):
    """A lock, and when it was acquired or renewed, by steady time."""

    client_id: str
    since_ms: int


class QueueLocks:
    """All locks by group and queue."""

    def __init__(self) -> None:
        self.by_group: dict[str, dict[QueueName, QueueLock]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def new_count(self, group: str, queues: Iterable[QueueName]) -> int:
        """How many of the queues have no lock of the group so far."""
        table = self.by_group.get(group, {})
        return sum(queue not in table for queue in queues)

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Iterable[QueueName],
        now_ms: int,
        live_ms: int,
    ) -> list[QueueName]:
        """Lock queues or renew their locks; returns those that the client holds now."""
        table = self.by_group.get(group, {})
        locked: list[QueueName] = []
        for queue in queues:
            held = table.get(queue)
            self._count += held is None
            if held is None or held.client_id == client_id or _is_expired(held, now_ms, live_ms):
                table[queue] = QueueLock(client_id, now_ms)
                locked.append(queue)
        if table:
            self.by_group[group] = table
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueName]) -> int:
        """Release locks of the client; returns how many."""
        table = self.by_group.get(group, {})
        owned = [queue for queue in queues if _owner(table.get(queue)) == client_id]
        # A queue may be named twice.
        count = sum(table.pop(queue, None) is not None for queue in owned)
        self._count -= count
        if not table:
            self.by_group.pop(group, None)
        return count

    def owner(self, group: str, queue: QueueName, now_ms: int, live_ms: int) -> str | None:
        """The client that holds the lock of a queue."""
        held = self.by_group.get(group, {}).get(queue)
        return None if held is None or _is_expired(held, now_ms, live_ms) else held.client_id

    def remove_expired(self, now_ms: int, live_ms: int) -> int:
        """Remove expired locks; returns how many."""
        count = 0
        for group in list(self.by_group):
            table = self.by_group[group]
            over = [queue for queue, held in table.items() if _is_expired(held, now_ms, live_ms)]
            for queue in over:
                del table[queue]
            count += len(over)
            if not table:
                del self.by_group[group]
        self._count -= count
        return count


def _is_expired(held: QueueLock, now_ms: int, live_ms: int) -> bool:
    return now_ms - held.since_ms > live_ms


def _owner(held: QueueLock | None) -> str | None:
    return None if held is None else held.client_id
