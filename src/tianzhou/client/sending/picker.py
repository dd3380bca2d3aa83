"""Picks the queue of the next message: round robin, avoiding brokers that fail or are slow.

Without the fault table: round robin over the queues of a topic; a retry uses the next queue that is
not on the broker that just failed, if there is one.

With it (`send_latency_fault`), the latency of every send is recorded, and a broker that was slow or
failed is avoided for a while:

    latency over, ms      50  100  550  1,000  2,000  3,000  15,000
    avoided for, s         0    0   30     60    120    180     600

A failure counts as 30,000 ms. If all brokers are avoided, one of the better half is used: available
first, then lower latency, then earlier available. These are the rules of 4.9.

Sans-IO: latencies and `now_ms` are arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from tianzhou.client.queues import Queue
from tianzhou.errors import RouteNotFound

LATENCIES_MS = (50, 100, 550, 1_000, 2_000, 3_000, 15_000)
PAUSES_MS = (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000)
FAILURE_LATENCY_MS = 30_000
_BROKERS_MAX = 4_096
"""Broker names come from the network; above this number the oldest entry is removed."""


@dataclass(slots=True)
class _Fault:
    latency_ms: int
    back_ms: int


def pause_ms(latency_ms: int) -> int:
    """How long a broker with this latency is avoided."""
    for limit_ms, pause in zip(reversed(LATENCIES_MS), reversed(PAUSES_MS), strict=True):
        if latency_ms >= limit_ms:
            return pause
    return 0


class FaultTable:
    """The latency of the last send to each broker."""

    __slots__ = ("_counter", "_faults")

    def __init__(self, first_index: int = 0) -> None:
        self._faults: dict[str, _Fault] = {}
        self._counter = count(first_index)

    def note(self, broker_name: str, latency_ms: int, now_ms: int, *, failed: bool) -> None:
        """Record the end of a send."""
        pause = pause_ms(FAILURE_LATENCY_MS if failed else latency_ms)
        self._faults[broker_name] = _Fault(latency_ms, now_ms + pause)
        if len(self._faults) > _BROKERS_MAX:
            del self._faults[next(iter(self._faults))]

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        fault = self._faults.get(broker_name)
        return fault is None or now_ms >= fault.back_ms

    def least(self, now_ms: int) -> str | None:
        """A broker of the better half; None if the table is empty."""
        if not self._faults:
            return None

        def badness(name: str) -> tuple[bool, int, int]:
            fault = self._faults[name]
            return now_ms < fault.back_ms, fault.latency_ms, fault.back_ms

        ranked = sorted(self._faults, key=badness)
        half = len(ranked) // 2
        return ranked[next(self._counter) % half] if half else ranked[0]

    def forget(self, broker_name: str) -> None:
        self._faults.pop(broker_name, None)


class Picker:
    """Picks queues for one producer."""

    __slots__ = ("_counters", "_first_index", "faults")

    def __init__(self, *, use_faults: bool = False, first_index: int = 0) -> None:
        """`first_index` differs between producers, so that they begin with different queues."""
        self._first_index = first_index
        self._counters: dict[str, count[int]] = {}
        self.faults = FaultTable(first_index) if use_faults else None
        """None unless `use_faults` is set."""

    def pick(
        self, topic: str, queues: Sequence[Queue], now_ms: int, last_broker: str | None = None
    ) -> Queue:
        """The queue of the next attempt; `last_broker` is where the previous one failed.

        Raises RouteNotFound if there are no queues.
        """
        if not queues:
            raise RouteNotFound(f"topic {topic}: it has no queue to write to")
        counter = self._counters.get(topic)
        if counter is None:
            counter = self._counters[topic] = count(self._first_index)
        if self.faults is not None:
            return self._pick_healthy(queues, counter, self.faults, now_ms)
        if last_broker is None:
            return queues[next(counter) % len(queues)]
        for _ in queues:
            queue = queues[next(counter) % len(queues)]
            if queue.broker_name != last_broker:
                return queue
        return queues[next(counter) % len(queues)]

    @staticmethod
    def _pick_healthy(
        queues: Sequence[Queue], counter: "count[int]", faults: FaultTable, now_ms: int
    ) -> Queue:
        first = next(counter)
        for index in range(first, first + len(queues)):
            queue = queues[index % len(queues)]
            if faults.is_available(queue.broker_name, now_ms):
                return queue
        least_bad = faults.least(now_ms)
        if least_bad is not None:
            own = [queue for queue in queues if queue.broker_name == least_bad]
            if own:
                return own[next(counter) % len(own)]
            faults.forget(least_bad)
        return queues[next(counter) % len(queues)]
