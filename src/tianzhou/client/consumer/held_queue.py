"""A queue that a group member consumes, and its state as operators see it."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

from tianzhou.client.consumer.process_queue import ConcurrentQueue, OrderedQueue, ProcessQueue
from tianzhou.client.queues import Queue
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.protocol.bodies.clients import ProcessQueueInfo


@dataclass(slots=True, eq=False)
class HeldQueue:
    """A queue that this member consumes."""

    queue: Queue
    state: ProcessQueue
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be capacity again, or a pause may be over."""
    paused: bool = False
    full_count: int = 0
    more_waits: bool = False
    """Whether more messages follow the last ones, so that the next pull returns at once."""
    reported_offset: int | None = None
    """The last offset that a pull has committed."""
    task: asyncio.Task[None] | None = None

    @property
    def concurrent(self) -> ConcurrentQueue:
        """The state, if messages are consumed in any order."""
        return cast("ConcurrentQueue", self.state)

    @property
    def ordered(self) -> OrderedQueue:
        """The state, if messages are consumed in order."""
        return cast("OrderedQueue", self.state)


def queue_info(held: HeldQueue, committed: int | None) -> ProcessQueueInfo:
    """The state of a queue, as `mqadmin consumerStatus` shows it."""
    state = held.state
    ahead_ms = wall_ms() - steady_ms()
    return ProcessQueueInfo(
        commit_offset=-1 if committed is None else committed,
        cached_min_offset=max(state.progress, 0) if state.message_count else 0,
        cached_max_offset=state.max_offset if state.message_count else 0,
        cached_count=state.message_count,
        cached_size_mib=state.size_bytes // (1024 * 1024),
        locked=state.locked,
        last_lock_timestamp=state.last_lock_ms + ahead_ms,
        dropped=state.dropped,
        last_pull_timestamp=state.last_pull_ms + ahead_ms,
        last_consume_timestamp=state.last_consume_ms + ahead_ms,
    )
