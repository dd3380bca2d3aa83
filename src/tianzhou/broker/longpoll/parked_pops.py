"""Requests of pop consumption that found nothing and wait.

One that waits for any queue waits under queue id -1. When a message arrives, those who wait for its
queue or for any are tried in the order they came, each group until one of it finds nothing: a
message is for one of them. Trying is left to `serve`, which answers and lets go, or does not.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.longpoll.parked_pulls import Parked, ParkedPulls, QueueKey
from tianzhou.broker.tables.clients import Subscription
from tianzhou.clock import Clock
from tianzhou.protocol.command import HeaderEncoding
from tianzhou.protocol.headers.pop import NotificationRequest, PopMessageRequest
from tianzhou.remoting.connection import Connection

ANY_QUEUE = -1
_TRIED_A_TURN = 256
_RING_MS_MIN, _RING_MS_MAX = 10, 1000


@dataclass(frozen=True, slots=True)
class WaitingPop:
    """What is left of a request while it waits: enough to answer it."""

    header: PopMessageRequest | NotificationRequest
    subscription: Subscription
    opaque: int
    encoding: HeaderEncoding
    account: str | None = None


PopParked = Parked[Connection, WaitingPop]
Serve = Callable[[PopParked, bool], bool]
"""Tries to answer one; told whether its time is up. Returns whether it was answered."""


class ParkedPops:
    """Everyone who waits for something to pop."""

    def __init__(self, steady: Clock, serve: Serve) -> None:
        self._steady = steady
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._parked = ParkedPulls[Connection, WaitingPop]()
        self._queues: dict[str, set[int]] = {}
        """Queue ids by topic for which somebody waits, or did."""
        self._arrived: dict[QueueKey, None] = {}
        self._to_try: deque[PopParked] = deque()
        self._in_vain: set[tuple[str, int, str, type]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = True

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, parked: PopParked) -> bool:
        return parked in self._parked

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """How many of a group wait for a queue."""
        waiting = self._parked.waiting((topic, queue_id))
        return sum(each.request.header.consumer_group == group for each in waiting)

    def has_capacity(self, connection: Connection, waiting: WaitingPop, cost_max: int) -> bool:
        """Whether one more may wait."""
        return self._parked.has_capacity(connection, waiting.subscription.cost, cost_max)

    def park(self, connection: Connection, wait_ms: int, waiting: WaitingPop) -> bool:
        """Let a request wait; False if there is no more waiting."""
        if not self._is_open:
            return False
        topic, queue_id = waiting.header.topic, max(waiting.header.queue_id, ANY_QUEUE)
        deadline_ms = self._steady() + wait_ms
        cost = waiting.subscription.cost
        self._parked.park(connection, (topic, queue_id), 0, deadline_ms, waiting, cost)
        self._queues.setdefault(topic, set()).add(queue_id)
        if self._timer is None:
            self._set_timer()
        return True

    def remove(self, parked: PopParked) -> None:
        self._parked.remove(parked)

    def connection_closed(self, connection: Connection) -> None:
        self._parked.remove_owner(connection)

    # -- waking ------------------------------------------------------------------------------------

    def subscribe(self, arrivals: Arrivals) -> None:
        """Learn of every message that arrives."""
        arrivals.subscribe(self._on_arrival)

    def _on_arrival(self, topic: str, queue_id: int, _: int) -> None:
        if len(self._parked):
            self.arrived(topic, queue_id)

    def arrived(self, topic: str, queue_id: int) -> None:
        """A message is in a queue; those who wait are tried when this turn of the loop is over."""
        for key in ((topic, queue_id), (topic, ANY_QUEUE)):
            if self._parked.has(key):
                if not self._arrived:
                    self._loop.call_soon(self._wake_arrived)
                self._arrived[key] = None

    def visible(self, topic: str) -> None:
        """There may be something for those who wait for any queue of a topic."""
        queues = self._queues.get(topic)
        for queue_id in list(queues or ()):
            if self._parked.has((topic, queue_id)):
                self.arrived(topic, queue_id)
            elif queues is not None:
                queues.discard(queue_id)
        if queues is not None and not queues:
            del self._queues[topic]

    def visible_everywhere(self) -> None:
        """There may be something for everyone."""
        for topic in list(self._queues):
            self.visible(topic)

    def _wake_arrived(self) -> None:
        arrived, self._arrived = self._arrived, {}
        is_idle = not self._to_try
        self._in_vain.clear()
        for key in arrived:
            self._to_try.extend(self._parked.waiting(key))
        if is_idle:
            self._try_some()

    def _try_some(self) -> None:
        """Try some of those who are to be woken; thousands must not hold up everybody else."""
        tried = 0
        while self._to_try and tried < _TRIED_A_TURN:
            parked = self._to_try.popleft()
            kind = (*parked.key, parked.request.header.consumer_group, type(parked.request.header))
            if parked in self._parked and kind not in self._in_vain:
                tried += 1
                if not self._serve(parked, False):
                    self._in_vain.add(kind)
        if self._to_try:
            self._loop.call_soon(self._try_some)

    # -- time --------------------------------------------------------------------------------------

    def expire_due(self) -> None:
        """Answer those whose time is up."""
        for parked in self._parked.take_due(self._steady()):
            self._serve(parked, True)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        deadline_ms = self._parked.next_deadline_ms()
        if deadline_ms is not None and self._is_open:
            wait_ms = min(max(deadline_ms - self._steady(), _RING_MS_MIN), _RING_MS_MAX)
            self._timer = self._loop.call_later(wait_ms / 1000, self.expire_due)

    def close(self) -> None:
        """Answer everyone: the broker stops."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        for parked in self._parked.take_all():
            self._serve(parked, True)
