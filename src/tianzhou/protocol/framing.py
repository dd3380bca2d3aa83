"""A stream of bytes cut into frames.

Laws, held by property tests: however the stream is split, the same frames come out; an incomplete
frame consumes nothing; a complete one consumes exactly its length. A length that
cannot be (below the header word, or above the limit) raises FrameError once the frames before it
have been taken, and before any of the bytes it promises are awaited.
"""

from tianzhou.limits import FRAME_BYTES_MAX
from tianzhou.protocol import kernel


def split(
    buffer: bytes | bytearray | memoryview, limit_bytes: int = FRAME_BYTES_MAX
) -> tuple[list[tuple[int, int]], int]:
    """Find the complete frames in `buffer`.

    Returns their (start, stop) pairs, length prefix included, and the index of the first byte that
    belongs to no complete frame.
    """
    return kernel.split_frames(buffer, limit_bytes)
