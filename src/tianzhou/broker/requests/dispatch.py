"""From a request code to its handler. What a handler raises is answered by `remoting`."""

from collections.abc import Awaitable, Callable, Mapping

from tianzhou.broker.requests.unsupported import REFUSED
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

Answer = Command | Awaitable[Command | None] | None
Handle = Callable[[Connection, Command], Answer]


class HandlerTable:
    """The handlers of a broker by request code."""

    def __init__(self, handlers: Mapping[int, Handle]) -> None:
        self._handlers = dict(handlers)

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that are served."""
        return frozenset(self._handlers)

    def __call__(self, connection: Connection, request: Command) -> Answer:
        handle = self._handlers.get(request.code)
        if handle is None:
            raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, explain(request.code))
        return handle(connection, request)


def explain(code: int) -> str:
    """Why a request is not served, for a person."""
    try:
        name = RequestCode(code).name
    except ValueError:
        return f"request type {code} not supported: no RocketMQ version has it"
    why = REFUSED.get(code)
    if why is not None:
        return f"request type {code} ({name}) not supported because {why}"
    return f"request type {code} ({name}) not supported: a broker does not serve it"
