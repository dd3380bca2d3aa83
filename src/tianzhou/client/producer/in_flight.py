"""A message on its way to a broker, for as long as it has no answer.

The first try of a send costs no task: its `Flight` waits among the connection's pending requests,
and tells the producer when an answer, or the lack of one, is there.
"""

import asyncio
from typing import Protocol

from tianzhou.client.connection.retry_policy import Tries
from tianzhou.client.message import Message
from tianzhou.client.queues import Queue
from tianzhou.client.sending.send_request import Outgoing, SendResult
from tianzhou.errors import RemotingError, TianzhouError
from tianzhou.protocol.command import Command


class Control(Protocol):
    """Who is told how a first try ended: the producer."""

    def landed(self, flight: "Flight", answer: Command) -> None: ...
    def crashed(self, flight: "Flight", error: TianzhouError) -> None: ...


class Flight:
    """A message on its way: the `Waiter` of its first try."""

    __slots__ = (
        "_control", "chosen", "deadline_s", "future", "message", "out", "queue", "timeout_ms",
        "tries",
    )  # fmt: skip

    def __init__(
        self,
        control: Control,
        message: Message,
        out: Outgoing,
        tries: Tries,
        timeout_ms: int,
        deadline_s: float,
        chosen: Queue | None,
    ) -> None:
        self._control = control
        self.message = message
        self.out = out
        self.tries = tries
        self.timeout_ms = timeout_ms
        self.deadline_s = deadline_s
        self.chosen = chosen
        """The queue that the program chose; every try goes there."""
        self.queue: Queue | None = None
        """Where the first try went."""
        self.future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        """An answer is always wanted, even if the program has lost its interest."""
        return False

    def set_result(self, result: Command, /) -> None:
        """The first try was answered."""
        self._control.landed(self, result)

    def set_exception(self, exception: RemotingError, /) -> None:
        """The first try failed."""
        self._control.crashed(self, exception)
