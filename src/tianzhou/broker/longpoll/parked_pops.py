"""Parked pops: pop requests without a message that wait for one.

A request for any queue is parked under queue id -1. When a message arrives, the requests for its
queue and for any queue are tried in the order of their arrival, those of a group until one gets no
message, because a message is for one of them. `serve` tries one: it responds and removes it, or
leaves it parked.
"""

from tianzhou.broker.longpoll.parked_pulls import Parked, ParkedPulls, WaitingRequest
from tianzhou.broker.longpoll.waker import Serve, Waker
from tianzhou.clock import Clock
from tianzhou.protocol.headers.pop import NotificationRequest, PopMessageRequest
from tianzhou.remoting.connection import Connection

ANY_QUEUE = -1


WaitingPop = WaitingRequest[PopMessageRequest | NotificationRequest]
PopParked = Parked[Connection, WaitingPop]


class ParkedPops(Waker[Connection, WaitingPop]):
    """All parked pops of a broker."""

    def __init__(self, steady: Clock, serve: Serve[Connection, WaitingPop]) -> None:
        super().__init__(ParkedPulls[Connection, WaitingPop](), steady, serve)
        self._queues: dict[str, set[int]] = {}
        """Queue ids by topic with parked requests; may contain stale ones."""
        self._without_message: set[tuple[str, int, str, type]] = set()

    def __len__(self) -> int:
        return len(self._parked)

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
        self.arm()
        return True

    def remove(self, parked: PopParked) -> None:
        self._parked.remove(parked)

    def connection_closed(self, connection: Connection) -> None:
        self._parked.remove_owner(connection)

    # -- waking ------------------------------------------------------------------------------------

    def _on_arrival(self, topic: str, queue_id: int, _: int) -> None:
        if len(self._parked):
            self.wake(((topic, queue_id), (topic, ANY_QUEUE)))

    def visible(self, topic: str) -> None:
        """There may be messages for the parked requests of a topic."""
        queues = {each for each in self._queues.pop(topic, ()) if self._parked.has((topic, each))}
        if queues:
            self._queues[topic] = queues
            self.wake((topic, each) for each in (*queues, ANY_QUEUE))

    def visible_everywhere(self) -> None:
        """There may be messages for all parked requests."""
        for topic in list(self._queues):
            self.visible(topic)

    def _wake_arrived(self) -> None:
        self._without_message.clear()
        super()._wake_arrived()

    def _try(self, parked: PopParked) -> bool:
        header = parked.request.header
        kind = (*parked.key, header.consumer_group, type(header))
        if kind in self._without_message:
            return False
        if not self._serve(parked, False):
            self._without_message.add(kind)
        return True
