"""A queue that a group member consumes, and its state as operators see it."""

import asyncio
from typing import cast

from tianzhou.client.consumer.process_queue import ConcurrentQueue, OrderedQueue, ProcessQueue
from tianzhou.client.queues import Queue
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.protocol.bodies.clients import ProcessQueueInfo


class HeldQueue:
    """A queue that this member consumes."""

    __slots__ = (
        "full_count", "more_waits", "paused", "queue", "reported_offset", "state", "task", "wake",
    )  # fmt: skip

    def __init__(self, queue: Queue, state: ProcessQueue) -> None:
        self.queue = queue
        self.state = state
        self.wake = asyncio.Event()
        """Set when there may be capacity again, or a pause may be over."""
        self.paused = False
        self.full_count = 0
        self.more_waits = False
        """Whether more messages follow the last ones, so that the next pull returns at once."""
        self.reported_offset: int | None = None
        """The last offset that a pull has committed."""
        self.task: asyncio.Task[None] | None = None

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
