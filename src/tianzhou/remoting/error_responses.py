"""Responses to requests that fail or are refused. For exceptions of handlers:

RequestError            its own code and remark
ProtocolError           SYSTEM_ERROR and the text: the request could not be read
anything else           SYSTEM_ERROR and "internal error": a bug of ours, which is logged
"""

import asyncio
from collections.abc import Awaitable, Callable

from tianzhou.errors import ProtocolError, RequestError
from tianzhou.limits import HEADER_BYTES_MAX, PROPERTIES_BYTES_MAX
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, HeaderEncoding, header_bytes, origin_of

_REMARK_CHARACTERS_MAX = 1_000


def refusal(error: Exception) -> Command:
    """The response to a request that failed with `error`."""
    if isinstance(error, RequestError):
        return _response(error.code, error.remark)
    if isinstance(error, ProtocolError):
        return _response(ResponseCode.SYSTEM_ERROR, str(error))
    return _response(ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}: {error}")


def is_bug(error: Exception) -> bool:
    """False for exceptions that are meant as a response."""
    return not isinstance(error, RequestError | ProtocolError)


def busy(running_count: int) -> Command:
    """The response of a server at its limit of running handlers."""
    return _response(
        ResponseCode.SYSTEM_BUSY, f"system busy: {running_count} requests are being handled"
    )


def full(handled_bytes: int, limit_bytes: int) -> Command:
    """The response of a server at its limit of bytes of requests in flight."""
    return _response(
        ResponseCode.SYSTEM_BUSY,
        f"system busy: requests under way hold {handled_bytes} bytes, {limit_bytes} are allowed",
    )


def refuse_header(
    frame: memoryview, reply: Callable[[tuple[int, HeaderEncoding], Command], None]
) -> bool:
    """Whether the header of a request is too long; if so, `reply` is called with the error."""
    size_bytes = header_bytes(frame)
    if size_bytes <= HEADER_BYTES_MAX:
        return False
    remark = (
        f"the header of the request has {size_bytes} bytes, {HEADER_BYTES_MAX} are allowed: "
        f"properties of a message have at most {PROPERTIES_BYTES_MAX} bytes"
    )
    reply(origin_of(frame), _response(ResponseCode.SYSTEM_ERROR, remark))
    return True


def over_limit(why: str) -> Command:
    """The response of a server at its limit of connections."""
    return _response(ResponseCode.SYSTEM_BUSY, f"system busy: {why}, try another server or later")


def discard_awaitable(work: Awaitable[object]) -> None:
    """Close an awaitable that will not be awaited, so that asyncio does not warn."""
    if isinstance(work, asyncio.Future):
        work.cancel()
    elif (close := getattr(work, "close", None)) is not None:
        close()  # coroutines have it, and wrappers of them may


def not_supported(request: Command) -> Command:
    """The response of a program that handles no requests."""
    return _response(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request type {request.code} not supported"
    )


def _response(code: int, remark: str) -> Command:
    # A text with a lone surrogate could not be encoded.
    readable = remark[:_REMARK_CHARACTERS_MAX].encode(errors="replace").decode()
    return Command(code=code, remark=readable)
