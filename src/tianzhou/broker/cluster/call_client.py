"""Asking a client on behalf of somebody else, without waiting for ever and without surprises."""

from tianzhou.errors import RemotingError, RequestError, RequestTimeout
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

CALL_TIMEOUT_MS = 10_000
"""RocketMQ's own."""


async def call_client(
    connection: Connection, command: Command, who: str, timeout_ms: int = CALL_TIMEOUT_MS
) -> Command:
    """A client's answer, whatever its code.

    Raises RequestError with a remark that names the client: CONSUME_MSG_TIMEOUT if it does not
    answer in time, SYSTEM_ERROR if it cannot be reached.
    """
    try:
        return await connection.request(command, timeout_ms)
    except RequestTimeout as e:
        raise RequestError(
            ResponseCode.CONSUME_MSG_TIMEOUT, f"{who} has not answered in {timeout_ms} ms"
        ) from e
    except RemotingError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{who} cannot be asked: {e}") from e


def forwarded(answer: Command) -> Command:
    """A client's answer as the broker's own."""
    return Command(
        code=answer.code, remark=answer.remark, ext_fields=dict(answer.fields), body=answer.body
    )
