"""State shared by the connections of one server or client: limits, receive buffer, timer, counts.

One receive buffer is enough, because a connection reads and handles its content within one callback
of the event loop. One timer is enough, too: it fires at the next request time-out or the next sweep
of idle and stalled connections, and exists only while there are connections.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tianzhou.remoting.limits import Limits
from tianzhou.remoting.pending_requests import NEVER_S
from tianzhou.remoting.repeated_failures import RepeatedFailures

log = logging.getLogger(__name__)

_SWEEP_MIN_S, _SWEEP_MAX_S = 0.01, 5.0
# Requests whose deadlines are within this span fail in one wake-up.
_GRAIN_S = 0.01
# How long to wait for handlers that were cancelled.
_CANCELLED_S = 1.0


class ManagedConnection(Protocol):
    """A connection, as the shared state uses it."""

    kept_bytes: int
    counted_bytes: int

    @property
    def host(self) -> str: ...
    def count_unsent(self) -> None: ...
    def cut(self, reason: str) -> None: ...
    def abort(self, reason: str) -> None: ...
    def sweep(self, now_s: float) -> None: ...
    def expire(self, now_s: float) -> float: ...


ConnectionT = TypeVar("ConnectionT", bound=ManagedConnection)


@dataclass(slots=True)
class Counts:
    """Events since the start."""

    opened: int = 0
    late_responses: int = 0  # responses after the time-out of their request
    refused_connections: int = 0  # above a limit, or of the wrong protocol
    broken_peers: int = 0  # closed for invalid frames
    cut_peers: int = 0  # closed for not reading, or for holding too much memory
    idle_peers: int = 0  # closed without traffic


class SharedState(Generic[ConnectionT]):
    """The shared state. It is used on the event loop that `start` was called on."""

    __slots__ = (
        "_next_sweep_s", "_repeats", "_sweep_s", "_timer", "_waiter", "connections",
        "counts", "handled_bytes", "hosts", "kept_bytes", "limits", "loop", "receive", "serves",
        "tasks", "unsent_bytes", "wakes_s",
    )  # fmt: skip

    loop: asyncio.AbstractEventLoop
    receive: memoryview

    def __init__(self, limits: Limits, *, serves: bool) -> None:
        self.limits = limits
        self.serves = serves
        """True for a server, False for a client."""
        self.connections: set[ConnectionT] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.hosts: Counter[str] = Counter()
        """The number of connections of each address."""
        self.kept_bytes = 0
        self.unsent_bytes = 0
        """As of the last count of each connection; may include bytes sent since."""
        self.handled_bytes = 0
        """Bodies of the requests that are handled by tasks."""
        self.counts = Counts()
        self._repeats = RepeatedFailures()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_sweep_s = NEVER_S
        self.wakes_s = NEVER_S
        """When the timer fires next, in loop time."""
        shortest_ms = min(limits.idle_ms, limits.write_stall_ms, limits.goodbye_ms)
        self._sweep_s = min(max(shortest_ms / 4000, _SWEEP_MIN_S), _SWEEP_MAX_S)

    def start(self) -> None:
        """Bind to the running loop; may be called again on the same loop."""
        loop = asyncio.get_running_loop()
        if not hasattr(self, "loop"):
            self.loop = loop
            self.receive = memoryview(bytearray(self.limits.receive_bytes))
        elif self.loop is not loop:
            raise RuntimeError("a server or client cannot be used on two event loops")

    # -- connections and tasks ---------------------------------------------------------------------

    def add(self, connection: ConnectionT) -> None:
        self.connections.add(connection)
        self.hosts[connection.host] += 1
        self.counts.opened += 1
        if self._next_sweep_s == NEVER_S:
            self._next_sweep_s = self.loop.time() + self._sweep_s
            self.wake_by(self._next_sweep_s)

    def remove(self, connection: ConnectionT) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self.hosts[connection.host] -= 1
            if self.hosts[connection.host] <= 0:
                del self.hosts[connection.host]
        if not self.connections:
            self._next_sweep_s = NEVER_S
            self._stop_timer()
        self._wake_waiter()

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Run a handler's coroutine in a task, until it ends or the server cancels it."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a handler's task failed", exc_info=error)
        self._wake_waiter()

    def _wake_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def emptied(self) -> None:
        """Wait until no connection and no task is left."""
        while self.connections or self.tasks:
            self._waiter = self.loop.create_future()
            await self._waiter

    async def cut_rest(self, reason: str) -> None:
        """Abort every connection, cancel every task, and wait for their end."""
        for connection in tuple(self.connections):
            connection.abort(reason)
        for task in tuple(self.tasks):
            task.cancel()
        try:
            async with asyncio.timeout(_CANCELLED_S):
                await self.emptied()
        except TimeoutError:
            log.error("%s: %d handlers did not end after being cancelled", reason, len(self.tasks))  # noqa: TRY400 - the time-out has nothing to add
        for kind, count in self._repeats.pop_unlogged():
            log.warning("%s: %d more since the last such line", kind, count)

    # -- memory ------------------------------------------------------------------------------------

    def cut_largest_kept(self) -> None:
        """Cut the connections with most unread bytes until the sum is within the limit."""
        self._cut_largest(
            "unread", self.limits.kept_bytes, lambda: self.kept_bytes, lambda each: each.kept_bytes
        )

    def cut_largest_unsent(self) -> None:
        """Cut the connections with most unsent bytes until the sum is within the limit."""
        for connection in self.connections:
            connection.count_unsent()
        self._cut_largest(
            "unsent", self.limits.unsent_bytes,
            lambda: self.unsent_bytes, lambda each: each.counted_bytes,
        )  # fmt: skip

    def _cut_largest(
        self, what: str, limit: int, total: Callable[[], int], size: Callable[[ConnectionT], int]
    ) -> None:
        while (total_bytes := total()) > limit:
            largest = max(self.connections, key=size, default=None)
            if largest is None or not (size_bytes := size(largest)):
                return
            largest.cut(
                f"{size_bytes} bytes are {what}, most of {total_bytes} in all; {limit} are allowed"
            )

    # -- time --------------------------------------------------------------------------------------

    def wake_by(self, deadline_s: float) -> None:
        """Make the timer fire at the deadline at the latest, plus `_GRAIN_S`."""
        if deadline_s < self.wakes_s:
            self._stop_timer()
            self.wakes_s = deadline_s
            self._timer = self.loop.call_at(deadline_s + _GRAIN_S, self._on_timer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.wakes_s = None, NEVER_S

    def _on_timer(self) -> None:
        self._timer, self.wakes_s = None, NEVER_S
        now_s = self.loop.time()
        sweep_is_due = now_s >= self._next_sweep_s
        if sweep_is_due:
            self._next_sweep_s = now_s + self._sweep_s
        next_s = self._next_sweep_s
        for connection in tuple(self.connections):
            if sweep_is_due:
                connection.sweep(now_s)
            next_s = min(next_s, connection.expire(now_s))
        if sweep_is_due:
            self.cut_largest_unsent()
        if self.connections:
            self.wake_by(next_s)

    # -- logging -----------------------------------------------------------------------------------

    def log_failure(
        self, kind: Hashable, text: str, level: int = logging.WARNING,
        error: Exception | None = None,
    ) -> None:  # fmt: skip
        """Log a failure; if one of its kind was logged in the last minute, only count it."""
        if (ending := self._repeats.ending(kind, self.loop.time())) is not None:
            log.log(level, "%s%s", text, ending, exc_info=error)
