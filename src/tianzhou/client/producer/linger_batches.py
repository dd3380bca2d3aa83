"""Batches that collect messages for `linger_ms`.

There is one batch per topic and value of `wait_stored`. It is sent when its oldest message has
waited `linger_ms`, before a message that would make it too large, or together with a message whose
deadline comes first. Every message has its own future and deadline.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.client.message import Message
from tianzhou.client.sending.send_request import SendResult


@dataclass(slots=True)
class LingerBatch:
    """Messages that will leave together."""

    topic: str
    """On the wire."""
    wait_stored: bool
    messages: list[Message] = field(default_factory=list[Message])
    pieces: list[bytes] = field(default_factory=list[bytes])
    """Of their items; joined they are the batch."""
    unique_ids: list[str] = field(default_factory=list[str])
    futures: list[asyncio.Future[SendResult]] = field(
        default_factory=list[asyncio.Future[SendResult]]
    )
    deadlines_s: list[float] = field(default_factory=list[float])
    """When the time of each is up, on the loop's clock."""
    size_bytes: int = 0
    leaves_s: float = 0.0
    timer: asyncio.TimerHandle | None = None
    """Until it leaves, for that; then for the deadlines."""

    @property
    def last_deadline_s(self) -> float:
        """No try of the batch makes sense after it."""
        return max(self.deadlines_s)

    def overdue(self, now_s: float) -> list[asyncio.Future[SendResult]]:
        """Those whose time is up, and who have no answer."""
        return [
            future
            for future, deadline_s in zip(self.futures, self.deadlines_s, strict=True)
            if deadline_s <= now_s and not future.done()
        ]

    def next_deadline_s(self, now_s: float) -> float:
        """The first one to come, or the last one if all have passed."""
        coming = [deadline_s for deadline_s in self.deadlines_s if deadline_s > now_s]
        return min(coming, default=self.last_deadline_s)


class LingerBatches:
    """The batches of one producer. `send` is called with each linger_batch that is ready, once."""

    __slots__ = ("_batch_bytes", "_batch_count", "_batches", "_linger_s", "_send")

    def __init__(
        self,
        send: Callable[[LingerBatch], None],
        *,
        linger_ms: float,
        batch_bytes: int,
        batch_count: int,
    ) -> None:
        self._send = send
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._batch_count = batch_count
        self._batches: dict[tuple[str, bool], LingerBatch] = {}

    def add(
        self,
        topic: str,
        message: Message,
        pieces: tuple[bytes, ...],
        size_bytes: int,
        unique_id: str,
        deadline_s: float,
    ) -> asyncio.Future[SendResult]:
        """Put a message on its linger_batch; the future gives its result.

        `topic` is the wire's name, and `pieces` are the message as a batch holds it.
        """
        loop = asyncio.get_running_loop()
        key = (topic, message.wait_stored)
        linger_batch = self._batches.get(key)
        if linger_batch is None or linger_batch.size_bytes + size_bytes > self._batch_bytes:
            if linger_batch is not None:
                self._leave(key)
            linger_batch = self._batches[key] = LingerBatch(topic, message.wait_stored)
            linger_batch.leaves_s = loop.time() + self._linger_s
            linger_batch.timer = loop.call_at(linger_batch.leaves_s, self._leave, key)
        future: asyncio.Future[SendResult] = loop.create_future()
        linger_batch.messages.append(message)
        linger_batch.pieces += pieces
        linger_batch.unique_ids.append(unique_id)
        linger_batch.futures.append(future)
        linger_batch.deadlines_s.append(deadline_s)
        linger_batch.size_bytes += size_bytes
        if len(linger_batch.futures) >= self._batch_count or deadline_s <= linger_batch.leaves_s:
            self._leave(key)
        return future

    def send_all(self) -> None:
        """Let every linger_batch leave now."""
        for key in tuple(self._batches):
            self._leave(key)

    def _leave(self, key: tuple[str, bool]) -> None:
        linger_batch = self._batches.pop(key)
        if linger_batch.timer is not None:
            linger_batch.timer.cancel()
            linger_batch.timer = None
        self._send(linger_batch)
