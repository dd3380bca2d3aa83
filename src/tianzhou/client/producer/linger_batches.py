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
from tianzhou.client.sending.settings import ProducerSettings


@dataclass(slots=True)
class LingerBatch:
    """Messages that are sent together."""

    topic: str
    """On the wire."""
    wait_stored: bool
    # One list for each value: a tuple for each message costs a quarter more CPU, as there is
    # one more object that the garbage collector visits.
    messages: list[Message] = field(default_factory=list[Message])
    unique_ids: list[str] = field(default_factory=list[str])
    futures: list[asyncio.Future[SendResult]] = field(
        default_factory=list[asyncio.Future[SendResult]]
    )
    deadlines_s: list[float] = field(default_factory=list[float])
    """On the loop's clock."""
    pieces: list[bytes] = field(default_factory=list[bytes])
    """The encoded items in pieces; joined they are the body of the batch."""
    size_bytes: int = 0
    send_at_s: float = 0.0
    timer: asyncio.TimerHandle | None = None
    """Until the batch is sent, the linger timer; then the timer of the deadlines."""

    @property
    def last_deadline_s(self) -> float:
        """The batch is not retried after it."""
        return max(self.deadlines_s)

    def overdue(self, now_s: float) -> list[asyncio.Future[SendResult]]:
        """The futures without a result whose deadline has passed."""
        return [
            future
            for future, deadline_s in zip(self.futures, self.deadlines_s, strict=True)
            if deadline_s <= now_s and not future.done()
        ]

    def next_deadline_s(self, now_s: float) -> float:
        """The next deadline, or the last one if all have passed."""
        coming = [deadline_s for deadline_s in self.deadlines_s if deadline_s > now_s]
        return min(coming, default=self.last_deadline_s)


class LingerBatches:
    """The open batches of one producer. `send` is called once with each batch that is ready."""

    __slots__ = ("_batch_bytes", "_batch_count", "_batches", "_linger_s", "_send")

    def __init__(self, send: Callable[[LingerBatch], None], settings: ProducerSettings) -> None:
        self._send = send
        self._linger_s = settings.linger_ms / 1000
        self._batch_bytes = settings.batch_bytes
        self._batch_count = settings.batch_count
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
        """Add a message to its batch; the future gives its result.

        `topic` is the name on the wire, `pieces` are the message encoded for a batch.
        """
        loop = asyncio.get_running_loop()
        key = (topic, message.wait_stored)
        batch = self._batches.get(key)
        if batch is None or batch.size_bytes + size_bytes > self._batch_bytes:
            if batch is not None:
                self._send_batch(key)
            batch = self._batches[key] = LingerBatch(topic, message.wait_stored)
            batch.send_at_s = loop.time() + self._linger_s
            batch.timer = loop.call_at(batch.send_at_s, self._send_batch, key)
        future: asyncio.Future[SendResult] = loop.create_future()
        batch.messages.append(message)
        batch.unique_ids.append(unique_id)
        batch.futures.append(future)
        batch.deadlines_s.append(deadline_s)
        batch.pieces += pieces
        batch.size_bytes += size_bytes
        if len(batch.futures) >= self._batch_count or deadline_s <= batch.send_at_s:
            self._send_batch(key)
        return future

    def send_all(self) -> None:
        """Send all open batches now."""
        for key in tuple(self._batches):
            self._send_batch(key)

    def _send_batch(self, key: tuple[str, bool]) -> None:
        batch = self._batches.pop(key)
        if batch.timer is not None:
            batch.timer.cancel()
            batch.timer = None
        self._send(batch)
