"""Parked pops: pop requests without a message that wait for one.

A request for any queue is parked under queue id -1. When a message arrives, the requests for its
queue and for any queue are tried in the order of their arrival, those of a group until one gets no
message, because a message is for one of them. `serve` tries one: it responds and removes it, or
leaves it parked.
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
_TRIED_PER_SLICE = 256
_TIMER_MS_MIN, _TIMER_MS_MAX = 10, 1000


@dataclass(frozen=True, slots=True)
class WaitingPop:
    """What is stored of a parked request: enough to respond to it."""

    header: PopMessageRequest | NotificationRequest
    subscription: Subscription
    opaque: int
    encoding: HeaderEncoding
    account: str | None = None


PopParked = Parked[Connection, WaitingPop]
Serve = Callable[[PopParked, bool], bool]
"""Tries to respond to a request; the flag says that its time is up. Returns whether it did."""


class ParkedPops:
    """All parked pops of a broker."""

    def __init__(self, steady: Clock, serve: Serve) -> None:
        self._steady = steady
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._parked = ParkedPulls[Connection, WaitingPop]()
        self._queues: dict[str, set[int]] = {}
        """Queue ids by topic with parked requests; may contain stale ones."""
        self._arrived: dict[QueueKey, None] = {}
        self._to_try: deque[PopParked] = deque()
        self._without_message: set[tuple[str, int, str, type]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = True

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, parked: PopParked) -> bool:
        return parked in self._parked

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """How many requests of a group are parked for a queue."""
        waiting = self._parked.waiting((topic, queue_id))
        return sum(each.request.header.consumer_group == group for each in waiting)

    def has_capacity(self, connection: Connection, waiting: WaitingPop, cost_max: int) -> bool:
        """Whether one more request may be parked."""
        return self._parked.has_capacity(connection, waiting.subscription.cost, cost_max)

    def park(self, connection: Connection, wait_ms: int, waiting: WaitingPop) -> bool:
        """Park a request; False if the broker is stopping."""
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
        """A message is in a queue; the parked requests are tried in the next loop iteration."""
        for key in ((topic, queue_id), (topic, ANY_QUEUE)):
            if self._parked.has(key):
                if not self._arrived:
                    self._loop.call_soon(self._wake_arrived)
                self._arrived[key] = None

    def visible(self, topic: str) -> None:
        """There may be messages for the parked requests of a topic."""
        queues = self._queues.get(topic)
        for queue_id in list(queues or ()):
            if self._parked.has((topic, queue_id)):
                self.arrived(topic, queue_id)
            elif queues is not None:
                queues.discard(queue_id)
        if queues is not None and not queues:
            del self._queues[topic]

    def visible_everywhere(self) -> None:
        """There may be messages for all parked requests."""
        for topic in list(self._queues):
            self.visible(topic)

    def _wake_arrived(self) -> None:
        arrived, self._arrived = self._arrived, {}
        is_idle = not self._to_try
        self._without_message.clear()
        for key in arrived:
            self._to_try.extend(self._parked.waiting(key))
        if is_idle:
            self._try_some()

    def _try_some(self) -> None:
        """Try some of the woken requests; thousands at once would block the event loop."""
        tried = 0
        while self._to_try and tried < _TRIED_PER_SLICE:
            parked = self._to_try.popleft()
            kind = (*parked.key, parked.request.header.consumer_group, type(parked.request.header))
            if parked in self._parked and kind not in self._without_message:
                tried += 1
                if not self._serve(parked, False):
                    self._without_message.add(kind)
        if self._to_try:
            self._loop.call_soon(self._try_some)

    # -- time --------------------------------------------------------------------------------------

    def expire_due(self) -> None:
        """Respond to requests whose time is up."""
        for parked in self._parked.take_due(self._steady()):
            self._serve(parked, True)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        deadline_ms = self._parked.next_deadline_ms()
        if deadline_ms is not None and self._is_open:
            wait_ms = min(max(deadline_ms - self._steady(), _TIMER_MS_MIN), _TIMER_MS_MAX)
            self._timer = self._loop.call_later(wait_ms / 1000, self.expire_due)

    def close(self) -> None:
        """Respond to all requests: the broker stops."""
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
        for parked in self._parked.take_all():
            self._serve(parked, True)
