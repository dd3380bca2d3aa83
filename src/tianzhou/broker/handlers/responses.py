"""Responses that several handlers make."""

from collections.abc import Awaitable

from tianzhou.broker.handlers.deps import Deps, WaitingPull
from tianzhou.broker.longpoll.parked_pops import WaitingPop
from tianzhou.errors import RequestError
from tianzhou.protocol.bodies import encode_steps
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, response_to
from tianzhou.protocol.headers import Header, encode
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps


def success(header: Header) -> Command:
    return Command(code=ResponseCode.SUCCESS, ext_fields=encode(header))


def success_with(body: object) -> Steps[Command]:
    """A response with a body of any size, which is encoded in slices."""
    return Command(code=ResponseCode.SUCCESS, body=(yield from encode_steps(body)))


async def saved(deps: Deps) -> Command:
    """The response to a change of tables, after they are saved. Raises RequestError."""
    if not await deps.saved():
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            "the change is in effect, but it cannot be saved: see the broker's log",
        )
    return Command(code=ResponseCode.SUCCESS)


def when_stored(
    deps: Deps, answer: Command, end_log_offset: int, *, is_new_topic: bool = False
) -> Command | Awaitable[Command]:
    """The response, at once or when everything before a log offset is durable."""
    if is_new_topic or deps.durability.must_wait(wait_stored=True):
        return _when_stored(deps, answer, end_log_offset, is_new_topic)
    return answer


async def _when_stored(
    deps: Deps, answer: Command, end_log_offset: int, is_new_topic: bool
) -> Command:
    if is_new_topic:
        await deps.saved()
    if deps.durability.must_wait(wait_stored=True):
        # A time-out is no failure: the message is stored, and a retry would store it twice.
        await deps.durability.stored(end_log_offset)
    return answer


def respond_parked(
    connection: Connection, waiting: WaitingPull | WaitingPop, answer: Command
) -> None:
    """Send the response to a request that was parked."""
    request = Command(code=0, opaque=waiting.opaque, encoding=waiting.encoding)
    connection.send(
        response_to(
            request,
            answer.code,
            remark=answer.remark,
            ext_fields=answer.ext_fields,
            body=answer.body,
        )
    )
