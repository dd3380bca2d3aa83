"""Piles: messages that wait a little for others, to share a batch with them.

One pile per topic and way of waiting. A pile leaves when its oldest message has waited `linger_ms`,
or before the message that would make it too large, or with a message that has no time to linger.
Every message keeps a future and a deadline of its own.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.client.message import Message
from tianzhou.client.sending.send_request import SendResult


@dataclass(slots=True)
class Pile:
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


class Piles:
    """The piles of one producer. `send` is called with each pile that is ready, once."""

    __slots__ = ("_batch_bytes", "_batch_count", "_linger_s", "_piles", "_send")

    def __init__(
        self,
        send: Callable[[Pile], None],
        *,
        linger_ms: float,
        batch_bytes: int,
        batch_count: int,
    ) -> None:
        self._send = send
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._batch_count = batch_count
        self._piles: dict[tuple[str, bool], Pile] = {}

    def add(
        self,
        topic: str,
        message: Message,
        pieces: tuple[bytes, ...],
        size_bytes: int,
        unique_id: str,
        deadline_s: float,
    ) -> asyncio.Future[SendResult]:
        """Put a message on its pile; the future gives its result.

        `topic` is the wire's name, and `pieces` are the message as a batch holds it.
        """
        loop = asyncio.get_running_loop()
        key = (topic, message.wait_stored)
        pile = self._piles.get(key)
        if pile is None or pile.size_bytes + size_bytes > self._batch_bytes:
            if pile is not None:
                self._leave(key)
            pile = self._piles[key] = Pile(topic, message.wait_stored)
            pile.leaves_s = loop.time() + self._linger_s
            pile.timer = loop.call_at(pile.leaves_s, self._leave, key)
        future: asyncio.Future[SendResult] = loop.create_future()
        pile.messages.append(message)
        pile.pieces += pieces
        pile.unique_ids.append(unique_id)
        pile.futures.append(future)
        pile.deadlines_s.append(deadline_s)
        pile.size_bytes += size_bytes
        if len(pile.futures) >= self._batch_count or deadline_s <= pile.leaves_s:
            self._leave(key)
        return future

    def send_all(self) -> None:
        """Let every pile leave now."""
        for key in tuple(self._piles):
            self._leave(key)

    def _leave(self, key: tuple[str, bool]) -> None:
        pile = self._piles.pop(key)
        if pile.timer is not None:
            pile.timer.cancel()
            pile.timer = None
        self._send(pile)
