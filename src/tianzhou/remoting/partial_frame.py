"""The beginning of a frame whose rest has not come yet.

Whole frames are read straight from the receive buffer; only what is left over at its end is copied
here. The buffer grows by what arrives, an eighth at a time, so a length that promises 16 MiB costs
nothing until the bytes come.
"""

from tianzhou.protocol.kernel import split_frames

_PREFIX_BYTES = 4


class PartialFrame:
    """Collects one frame. It is empty, then partial, then complete, and is taken: empty again."""

    __slots__ = ("_bytes", "_limit_bytes", "_total_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = bytearray()
        self._total_bytes = 0  # 0 while the length prefix itself is incomplete

    def __len__(self) -> int:
        """How many bytes have been collected."""
        return len(self._bytes)

    @property
    def complete(self) -> bool:
        """True when nothing is missing."""
        return 0 < self._total_bytes == len(self._bytes)

    def add(self, view: memoryview) -> int:
        """Take from the front of `view` what the frame still lacks; returns how much that was.

        Raises FrameError as soon as the length prefix is there and cannot be.
        """
        taken = 0
        if not self._total_bytes:
            taken = min(_PREFIX_BYTES - len(self._bytes), len(view))
            self._bytes += view[:taken]
            if len(self._bytes) < _PREFIX_BYTES:
                return taken
            # The prefix alone is never a whole frame, so this only checks the length.
            split_frames(self._bytes, self._limit_bytes)
            self._total_bytes = _PREFIX_BYTES + int.from_bytes(self._bytes, "big")
        more = min(self._total_bytes - len(self._bytes), len(view) - taken)
        self._bytes += view[taken : taken + more]
        return taken + more

    def take(self) -> memoryview:
        """The complete frame; the collection starts anew."""
        frame = memoryview(self._bytes)
        self._bytes = bytearray()
        self._total_bytes = 0
        return frame
