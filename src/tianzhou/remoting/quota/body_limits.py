"""The longest body of a request, by its code.

Most requests have a few names and numbers. Decoding megabytes of JSON for them would block all
other clients, so a body that is too long is refused before it is decoded. Each server has a table
of the requests that may be longer.
"""

from collections.abc import Mapping

from tianzhou.errors import RequestError
from tianzhou.limits import BODY_BYTES_MAX
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command

Longer = Mapping[int, int | None]
"""The longest body by request code; None if the handler checks it."""


def check_body(request: Command, longer: Longer) -> None:
    """Raises RequestError for a body that is too long for its request."""
    size_bytes = len(request.body)
    # Fast path: nearly all bodies are short.
    if size_bytes <= BODY_BYTES_MAX:
        return
    max_bytes = longer.get(request.code, BODY_BYTES_MAX)
    if max_bytes is not None and size_bytes > max_bytes:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"request type {request.code} carries {size_bytes} bytes, {max_bytes} are allowed",
        )
