"""Handles a request in slices while later requests of its connection wait.

For handlers whose successors must see their effect: a batch is stored before the message that was
sent after it, a heartbeat is handled before the unregistration that follows it.
"""

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, NamedTuple

from tianzhou.protocol.command import Command
from tianzhou.remoting import slices
from tianzhou.remoting.connection import Connection, Deferral
from tianzhou.remoting.slices import Steps

Response = Command | Awaitable[Command | Deferral] | Deferral


def handle_in_order(connection: Connection, steps: Steps[Response]) -> Response:
    """The response that the steps end with. Raises what they raise in their first slice."""
    handled = slices.answer(_handled(steps))
    if not isinstance(handled, asyncio.Future):
        return handled.response
    connection.pause()
    handled.add_done_callback(lambda _: connection.resume())
    return _Unfinished(handled)


class _Handled(NamedTuple):
    """Distinguishes a response that is a future from the future of a response."""

    response: Response


def _handled(steps: Steps[Response]) -> Steps[_Handled]:
    return _Handled((yield from steps))


class _Unfinished:
    """The response to a request that is still being handled."""

    __slots__ = ("_handled",)

    def __init__(self, handled: "asyncio.Future[_Handled]") -> None:
        self._handled = handled

    def __await__(self) -> Generator[Any, Any, Command | Deferral]:
        response = (yield from self._handled).response
        if isinstance(response, Command | Deferral):
            return response
        return (yield from response.__await__())

    def close(self) -> None:
        """It will not be awaited: the rest of the steps is dropped."""
        self._handled.cancel()
