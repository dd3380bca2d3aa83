"""How long the body of a request may be, by its code.

Requests carry a few names and numbers, and decoding megabytes of JSON for them would let one peer
hold up everybody: what is too long is refused before anything looks into it. Each server has a
table of those that may be longer.
"""

from collections.abc import Mapping

from tianzhou.errors import RequestError
from tianzhou.limits import BODY_BYTES_MAX
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command

Longer = Mapping[int, int | None]
"""The longest body by request code; None if that is for its handler to say."""


def check_body(request: Command, longer: Longer) -> None:
    """Raises RequestError for a body that is too long for its request."""
    size_bytes = len(request.body)
    # Nearly all bodies are short, and then nothing needs to be looked up.
    if size_bytes <= BODY_BYTES_MAX:
        return
    max_bytes = longer.get(request.code, BODY_BYTES_MAX)
    if max_bytes is not None and size_bytes > max_bytes:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"request type {request.code} carries {size_bytes} bytes, {max_bytes} are allowed",
        )
