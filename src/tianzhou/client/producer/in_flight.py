"""A message in flight: sent, without a response yet.

The first attempt of a send needs no task: its `InFlightSend` is registered with the connection's
pending requests and calls the producer when the response arrives or the attempt fails.
"""

import asyncio
from typing import Protocol

from tianzhou.client.connection.retry_policy import RetryRule
from tianzhou.client.message import Message
from tianzhou.client.queues import Queue
from tianzhou.client.sending.send_request import Outgoing, SendResult
from tianzhou.errors import RemotingError, TianzhouError
from tianzhou.protocol.command import Command


class FirstAttemptListener(Protocol):
    """Called when a first attempt ends: the producer."""

    def on_first_response(self, pending: "InFlightSend", answer: Command) -> None: ...
    def on_first_failure(self, pending: "InFlightSend", error: TianzhouError) -> None: ...


class InFlightSend:
    """A message in flight: the `Waiter` of its first attempt."""

    __slots__ = (
        "_listener", "chosen", "deadline_s", "future", "message", "out", "queue", "timeout_ms",
        "tries",
    )  # fmt: skip

    def __init__(
        self,
        listener: FirstAttemptListener,
        message: Message,
        out: Outgoing,
        tries: RetryRule,
        timeout_ms: int,
        deadline_s: float,
        chosen: Queue | None,
    ) -> None:
        self._listener = listener
        self.message = message
        self.out = out
        self.tries = tries
        self.timeout_ms = timeout_ms
        self.deadline_s = deadline_s
        self.chosen = chosen
        """The queue that the program chose; every attempt goes there."""
        self.queue: Queue | None = None
        """The queue of the first attempt."""
        self.future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        """A response is always processed, even if the program has cancelled its future."""
        return False

    def set_result(self, result: Command, /) -> None:
        """The first attempt got a response."""
        self._listener.on_first_response(self, result)

    def set_exception(self, exception: RemotingError, /) -> None:
        """The first attempt failed."""
        self._listener.on_first_failure(self, exception)
