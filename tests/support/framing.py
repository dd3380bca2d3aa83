"""A stream of bytes cut into frames, under the limit of the protocol."""

from tianzhou.limits import FRAME_BYTES_MAX
from tianzhou.protocol import kernel
from tianzhou.protocol.pure.frames import Buffer


def split(buffer: Buffer, limit_bytes: int = FRAME_BYTES_MAX) -> tuple[list[tuple[int, int]], int]:
    """See `pure.frames.split_frames`."""
    return kernel.split_frames(buffer, limit_bytes)
