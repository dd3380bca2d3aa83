"""Piles: messages that wait a little for others, to share a batch with them.

One pile per topic and way of waiting. A pile leaves when its oldest message has waited `linger_ms`,
or before the message that would make it too large. Every message keeps a future of its own.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.client.message import Message
from tianzhou.client.sending import SendResult


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
    size_bytes: int = 0
    timer: asyncio.TimerHandle | None = None


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
            pile.timer = loop.call_later(self._linger_s, self._leave, key)
        future: asyncio.Future[SendResult] = loop.create_future()
        pile.messages.append(message)
        pile.pieces += pieces
        pile.unique_ids.append(unique_id)
        pile.futures.append(future)
        pile.size_bytes += size_bytes
        if len(pile.futures) >= self._batch_count:
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
        self._send(pile)
