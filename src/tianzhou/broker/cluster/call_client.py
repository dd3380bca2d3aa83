"""Sends a request to a client on behalf of another one, with a time-out."""

from tianzhou.errors import RemotingError, RequestError, RequestTimeout
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

CALL_TIMEOUT_MS = 10_000
"""The same as RocketMQ's."""


async def call_client(
    connection: Connection, command: Command, name: str, timeout_ms: int = CALL_TIMEOUT_MS
) -> Command:
    """The response of a client, with any code.

    Raises RequestError with `name` in its remark: CONSUME_MSG_TIMEOUT if the client does not
    respond in time, SYSTEM_ERROR if it cannot be reached.
    """
    try:
        return await connection.request(command, timeout_ms)
    except RequestTimeout as e:
        raise RequestError(
            ResponseCode.CONSUME_MSG_TIMEOUT, f"{name} has not responded within {timeout_ms} ms"
        ) from e
    except RemotingError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{name} cannot be reached: {e}") from e


def forwarded(response: Command) -> Command:
    """The response of a client as a response of the broker."""
    return Command(
        code=response.code,
        remark=response.remark,
        ext_fields=dict(response.fields),
        body=response.body,
    )
