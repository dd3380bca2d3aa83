"""What the connections of one server or client share: limits, receive buffer, timer, counts.

One receive buffer serves them all, because a connection reads and handles it within one call of the
event loop. One timer serves them all, too: it sleeps until the next request runs out of time or the
next look at idle and stalled connections is due, and it exists only while there are connections.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tianzhou.remoting.limits import Limits
from tianzhou.remoting.pending_requests import NEVER_S
from tianzhou.remoting.repeated_failures import RepeatedFailures, and_more

log = logging.getLogger(__name__)

_SWEEP_MIN_S, _SWEEP_MAX_S = 0.01, 5.0
# Requests that run out of time within this span fail together, in one wake-up.
_GRAIN_S = 0.01
# A handler that does not end when it is cancelled gets this long, then the program goes on without
# it.
_CANCELLED_S = 1.0


class ManagedConnection(Protocol):
    """What a switchboard knows of a connection."""

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
    """What happened since the start."""

    opened: int = 0
    late_responses: int = 0  # responses after the time-out of their request
    refused_connections: int = 0  # above the limit, or not what the port speaks
    broken_peers: int = 0  # closed for bytes that are no frames
    cut_peers: int = 0  # closed for not reading, or for holding too much memory
    idle_peers: int = 0  # closed because nothing came or went for long


class SharedState(Generic[ConnectionT]):
    """The shared state. Everything happens on the event loop that `start` was called on."""

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
        """How many connections each address has."""
        self.kept_bytes = 0
        self.unsent_bytes = 0
        """As the connections counted last; what has left since is still in it."""
        self.handled_bytes = 0
        """Bodies of the requests that tasks are at work on."""
        self.counts = Counts()
        self._repeats = RepeatedFailures()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_sweep_s = NEVER_S
        self.wakes_s = NEVER_S
        """When the timer rings next, in the loop's time."""
        shortest_ms = min(limits.idle_ms, limits.write_stall_ms, limits.goodbye_ms)
        self._sweep_s = min(max(shortest_ms / 4000, _SWEEP_MIN_S), _SWEEP_MAX_S)

    def start(self) -> None:
        """Bind to the running loop; may be called again on the same one."""
        loop = asyncio.get_running_loop()
        if not hasattr(self, "loop"):
            self.loop = loop
            self.receive = memoryview(bytearray(self.limits.receive_bytes))
        elif self.loop is not loop:
            raise RuntimeError("a server or client lives on one event loop, this is another")

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
        """Run a handler's coroutine in a task that lives until it ends or the server cancels it."""
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
        """Return when no connection and no task is left."""
        while self.connections or self.tasks:
            self._waiter = self.loop.create_future()
            await self._waiter

    async def cut_rest(self, reason: str) -> None:
        """Abort every connection, cancel every task, and see them end."""
        for connection in tuple(self.connections):
            connection.abort(reason)
        for task in tuple(self.tasks):
            task.cancel()
        try:
            async with asyncio.timeout(_CANCELLED_S):
                await self.emptied()
        except TimeoutError:
            log.error("%s: %d handlers do not end, though cancelled", reason, len(self.tasks))  # noqa: TRY400 - the time-out has nothing to add
        self._log_unlogged()

    # -- memory ------------------------------------------------------------------------------------

    def cut_largest_kept(self) -> None:
        """Cut the connections that keep most until all together keep no more than allowed."""
        while self.kept_bytes > self.limits.kept_bytes:
            greediest = max(self.connections, key=lambda each: each.kept_bytes, default=None)
            if greediest is None or not greediest.kept_bytes:
                return
            greediest.cut(
                f"keeps {greediest.kept_bytes} bytes of unfinished frames, most of "
                f"{self.kept_bytes} in all; {self.limits.kept_bytes} are allowed"
            )

    def cut_largest_unsent(self) -> None:
        """The same for what peers do not read."""
        for connection in self.connections:
            connection.count_unsent()
        while self.unsent_bytes > self.limits.unsent_bytes:
            greediest = max(self.connections, key=lambda each: each.counted_bytes, default=None)
            if greediest is None or not greediest.counted_bytes:
                return
            greediest.cut(
                f"{greediest.counted_bytes} bytes are unsent, most of {self.unsent_bytes} in all; "
                f"{self.limits.unsent_bytes} are allowed"
            )

    # -- time --------------------------------------------------------------------------------------

    def wake_by(self, deadline_s: float) -> None:
        """Make sure that the timer rings no later than about then."""
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
        self,
        kind: Hashable,
        text: str,
        level: int = logging.WARNING,
        error: Exception | None = None,
    ) -> None:
        """Log a failure; if one of its kind was logged within the last minute, count it only."""
        unlogged_count = self._repeats.note(kind, self.loop.time())
        if unlogged_count is not None:
            log.log(level, "%s%s", text, and_more(unlogged_count), exc_info=error)

    def _log_unlogged(self) -> None:
        """Log the counts that have not been logged yet."""
        for kind, count in self._repeats.untold():
            log.warning("%s: %d more since the last such line", kind, count)
