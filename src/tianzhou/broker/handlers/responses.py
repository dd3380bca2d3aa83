"""Responses that several handlers make."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from tianzhou.broker.handlers.deps import Deps, WaitingPull
from tianzhou.broker.longpoll.parked_pops import WaitingPop
from tianzhou.broker.storing.durability import Outcome, code_of
from tianzhou.errors import RequestError
from tianzhou.protocol.bodies import encode_steps
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, response_to
from tianzhou.protocol.headers import Header, encode
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps

_NOT_CONFIRMED: Final = (
    "stored here, but the replicas in sync did not confirm it in time, so another master may not "
    "have it: repeat the request"
)


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
    outcome: asyncio.Future[Outcome] | None = None
    if deps.durability.must_wait(wait_stored=True):
        outcome = deps.durability.wait_for(end_log_offset)
    elif not is_new_topic:
        return answer
    return _when_stored(deps, answer, outcome, is_new_topic)


async def _when_stored(
    deps: Deps, answer: Command, outcome: asyncio.Future[Outcome] | None, is_new_topic: bool
) -> Command:
    if is_new_topic:
        await deps.saved()
    # With fixed roles a time-out is no failure, as in RocketMQ: the message is stored, and a retry
    # would store it twice. With elected ones it is: a switch may remove the message.
    if outcome is not None:
        code = code_of(await outcome)
        if code == ResponseCode.FLUSH_SLAVE_TIMEOUT and deps.store.shows_confirmed:
            raise RequestError(code, _NOT_CONFIRMED)
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
