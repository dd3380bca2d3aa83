"""Parked pulls: pulls without a message that wait for one, or for their time to run out.

A parked pull costs only its memory. It is examined when a message arrives in its queue, when its
time is up, and in the sweep, which compares queues and not pulls. Deadlines are in coarse slots, so
parking and waking are two dictionary operations each.

    by queue    (topic, queue id) -> parked pulls
    by slot     deadline rounded up to SLOT_MS -> parked pulls
    by owner    connection -> parked pulls, which end with it
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tianzhou.broker.tables.clients import Subscription
from tianzhou.limits import PARKED_OF_CONNECTION_MAX
from tianzhou.protocol.command import HeaderEncoding

SLOT_MS = 250

QueueKey = tuple[str, int]
H = TypeVar("H")
K = TypeVar("K")
W = TypeVar("W")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WaitingRequest(Generic[H]):
    """What is stored of a parked request: enough to respond to it."""

    header: H
    subscription: Subscription
    opaque: int
    encoding: HeaderEncoding
    account: str | None = None


@dataclass(eq=False, slots=True)
class Parked(Generic[W, T]):
    """One parked pull. `queue_offset` is the first message that could end the wait."""

    owner: W
    key: QueueKey
    queue_offset: int
    deadline_ms: int
    request: T
    cost: int = 1

    @property
    def slot(self) -> int:
        return -(-self.deadline_ms // SLOT_MS)


class ParkedPulls(Generic[W, T]):
    """All parked pulls of a broker."""

    def __init__(self) -> None:
        self._by_queue: dict[QueueKey, dict[Parked[W, T], None]] = {}
        self._by_slot: dict[int, dict[Parked[W, T], None]] = {}
        self._by_owner: dict[W, dict[Parked[W, T], None]] = {}
        self._count = 0
        self.cost = 0
        """How many are parked; those with a long expression count several times."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, parked: Parked[W, T]) -> bool:
        return parked in self._by_owner.get(parked.owner, ())

    def park(
        self,
        owner: W,
        key: QueueKey,
        queue_offset: int,
        deadline_ms: int,
        request: T,
        cost: int = 1,
    ) -> Parked[W, T]:
        parked = Parked(owner, key, queue_offset, deadline_ms, request, cost)
        self._by_queue.setdefault(key, {})[parked] = None
        self._by_slot.setdefault(parked.slot, {})[parked] = None
        self._by_owner.setdefault(owner, {})[parked] = None
        self._count += 1
        self.cost += cost
        return parked

    def has_capacity(self, owner: W, cost: int, cost_max: int) -> bool:
        """Whether one more may be parked, by the limits of the broker and of one connection."""
        own_count = len(self._by_owner.get(owner, ()))
        return self.cost + cost <= cost_max and own_count < PARKED_OF_CONNECTION_MAX

    def has(self, key: QueueKey) -> bool:
        """Whether pulls are parked for a queue."""
        return key in self._by_queue

    def waiting(self, key: QueueKey) -> list[Parked[W, T]]:
        """The parked pulls of a queue, oldest first."""
        return list(self._by_queue.get(key, ()))

    def remove(self, parked: Parked[W, T]) -> None:
        """Remove a pull; does nothing if it was removed."""
        if parked not in self:
            return
        _drop(self._by_queue, parked.key, parked)
        _drop(self._by_slot, parked.slot, parked)
        _drop(self._by_owner, parked.owner, parked)
        self._count -= 1
        self.cost -= parked.cost

    def remove_owner(self, owner: W) -> None:
        """Remove all pulls of a closed connection."""
        for parked in list(self._by_owner.get(owner, ())):
            self.remove(parked)

    def take_due(self, now_ms: int) -> list[Parked[W, T]]:
        """Remove and return pulls whose time is up."""
        last = now_ms // SLOT_MS
        due = [
            parked
            for slot in sorted(slot for slot in self._by_slot if slot <= last)
            for parked in self._by_slot[slot]
        ]
        for parked in due:
            self.remove(parked)
        return due

    def next_deadline_ms(self) -> int | None:
        """When `take_due` returns the next pull; None if none is parked."""
        return min(self._by_slot) * SLOT_MS if self._by_slot else None

    def overdue_queues(self, end_offset: Callable[[QueueKey], int]) -> list[QueueKey]:
        """The sweep: queues with messages for parked pulls, in case a wake-up was missed."""
        return [
            key
            for key, queue in self._by_queue.items()
            if end_offset(key) > min(parked.queue_offset for parked in queue)
        ]

    def take_all(self) -> Iterator[Parked[W, T]]:
        """Remove and yield all pulls, one by one; for the stop."""
        for queue in list(self._by_queue.values()):
            for parked in list(queue):
                self.remove(parked)
                yield parked


def _drop(index: dict[K, dict[Parked[W, T], None]], key: K, parked: Parked[W, T]) -> None:
    group = index[key]
    del group[parked]
    if not group:
        del index[key]
