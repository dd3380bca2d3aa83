"""Collects a frame that arrives in several reads.

Whole frames are read straight from the receive buffer; only an incomplete one at its end is copied
here. The buffer grows with the bytes that arrive, by an eighth at a time, so a length prefix of
16 MiB costs nothing until the bytes arrive.
"""

from tianzhou.protocol.kernel import split_frames

_PREFIX_BYTES = 4


class PartialFrame:
    """One frame: empty, then partial, then complete; `pop` makes it empty again."""

    __slots__ = ("_bytes", "_limit_bytes", "_total_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = bytearray()
        self._total_bytes = 0  # 0 while the length prefix itself is incomplete

    def __len__(self) -> int:
        """The number of bytes collected."""
        return len(self._bytes)

    @property
    def complete(self) -> bool:
        """True when nothing is missing."""
        return 0 < self._total_bytes == len(self._bytes)

    def add(self, view: memoryview) -> int:
        """Copy the missing bytes from the front of `view`; returns how many were copied.

        Raises FrameError when the length prefix is complete and invalid.
        """
        copied = 0
        if not self._total_bytes:
            copied = min(_PREFIX_BYTES - len(self._bytes), len(view))
            self._bytes += view[:copied]
            if len(self._bytes) < _PREFIX_BYTES:
                return copied
            # The prefix alone is never a whole frame, so this only checks the length.
            split_frames(self._bytes, self._limit_bytes)
            self._total_bytes = _PREFIX_BYTES + int.from_bytes(self._bytes, "big")
        more = min(self._total_bytes - len(self._bytes), len(view) - copied)
        self._bytes += view[copied : copied + more]
        return copied + more

    def pop(self) -> memoryview:
        """Remove and return the complete frame."""
        frame = memoryview(self._bytes)
        self._bytes = bytearray()
        self._total_bytes = 0
        return frame
