"""The sending side of a connection: joins the frames of a loop iteration, counts unsent bytes."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tianzhou.remoting.shared_state import SharedState

# Small frames are joined: copying them costs less than a system call. Large ones are not copied.
_JOIN_BYTES = 64 * 1024
_COUNTED_BYTES = 4 * 1024

NO_SOCKET = -1
_NOT_DIRECT = -2


class WriteBuffer(asyncio.BufferedProtocol, ABC):
    """The sending side of a connection."""

    __slots__ = (
        "_flush_follows", "_holds_back", "_outgoing", "_outgoing_bytes", "_shared", "_socket",
        "_transport", "_writing_paused", "_written_bytes", "closed", "counted_bytes", "deferred_by",
        "secure",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, shared: SharedState[Any]) -> None:
        self._shared = shared
        self.closed = True  # until `connection_made`
        self.secure = False
        """True if the connection is encrypted."""
        self._socket = _NOT_DIRECT
        self.counted_bytes = 0
        """Unsent bytes as of the last count, for the limit over all connections."""
        self.deferred_by: Callable[[], None] | None = None
        """Set while the feed has deferred responses; a call makes it `send_deferred` them."""
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = self._written_bytes = 0
        self._flush_follows = False  # at the end of this loop iteration
        self._holds_back = False  # `send_held` will be called
        self._writing_paused = False

    @abstractmethod
    def cut(self, reason: str) -> None:
        """Close at once and drop unsent bytes because the peer misbehaves; logged."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that the kernel has accepted."""
        return self._written_bytes - self.unsent_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes in the buffer of the transport."""
        return self._transport.get_write_buffer_size()

    def send_frames(self, frames: bytes) -> None:
        """Send encoded frames; otherwise as `Connection.send`."""
        if not self.closed:
            self._put(frames)

    def begin_direct(self) -> None:
        """Allow frames to be written without the transport; see `socket`."""
        if self._socket == _NOT_DIRECT:
            sock = None if self.secure else self._transport.get_extra_info("socket")
            self._socket = NO_SOCKET if sock is None else sock.fileno()

    @property
    def socket(self) -> int:
        """The descriptor of the socket if frames may be written to it now, else NO_SOCKET.

        They may after `begin_direct`, while no earlier bytes are unsent. The writer then calls
        `wrote`, and passes what the socket did not accept to `send_frames`.
        """
        if (
            self._socket < 0
            or self._outgoing
            or self.deferred_by is not None
            or self.closed
            # The socket of a broken connection may be closed, and its number be reused, before
            # `connection_lost` is called.
            or self._transport.is_closing()
            or self._transport.get_write_buffer_size()
        ):
            return NO_SOCKET
        return self._socket

    def wrote(self, size_bytes: int) -> None:
        """Count bytes that were written to `socket`."""
        self._written_bytes += size_bytes

    def send_deferred(self, frames: bytes) -> None:
        """Send the responses that the feed has deferred."""
        self.deferred_by = None
        if self.closed or not frames:
            return
        if self._flush_follows and not self._holds_back:
            self._put(frames)
            return
        if self._outgoing:
            self._put(frames)
            self._flush()  # senders do not wait for what is held back
            return
        size_bytes = len(frames)
        self._written_bytes += size_bytes
        self._transport.write(frames)
        if size_bytes >= _COUNTED_BYTES or self._writing_paused:
            self._check_unsent()

    def hold_responses(self) -> None:
        """Hold frames back until `send_held` or `send_deferred`."""
        self._holds_back = True

    def send_held(self) -> None:
        """Send the frames that were held back."""
        self._holds_back = False
        self._end_iteration()

    def _put(self, frame: bytes) -> None:
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)
        if self._outgoing_bytes >= _JOIN_BYTES:
            self._flush()
        elif not (self._flush_follows or self._holds_back):
            self._flush_follows = True
            self._shared.loop.call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        """Send the frames of this loop iteration, unless they are held back."""
        self._flush_follows = False
        if self._outgoing and not self._holds_back:
            self._flush()

    def _flush(self) -> None:
        outgoing, size_bytes = self._outgoing, self._outgoing_bytes
        if not outgoing or self.closed:
            return
        self._outgoing, self._outgoing_bytes = [], 0
        self._written_bytes += size_bytes
        if size_bytes < _JOIN_BYTES:
            self._transport.write(b"".join(outgoing))
        else:
            # `_put` keeps the sum of all but the last small; the last is not copied.
            last = outgoing.pop()
            if outgoing:
                self._transport.write(b"".join(outgoing))
            self._transport.write(last)
        if size_bytes >= _COUNTED_BYTES or self._writing_paused:
            # Small writes are counted by the next sweep: counting costs as much as the write.
            self._check_unsent()

    def _check_unsent(self) -> None:
        """Cut the peer, or those with most unsent bytes, if a limit is exceeded."""
        if self._writing_paused:
            unsent_bytes = self.unsent_bytes
            if unsent_bytes > self._shared.limits.unsent_cut_bytes:
                self.cut(f"{unsent_bytes} bytes are unsent")
                return
        self.count_unsent()
        if self._shared.unsent_bytes > self._shared.limits.unsent_bytes:
            self._shared.cut_largest_unsent()

    def count_unsent(self) -> None:
        """Update the share of this connection in `SharedState.unsent_bytes`."""
        if self.closed:
            return  # its last count stands until `connection_lost` or `abort`
        unsent_bytes = self._transport.get_write_buffer_size()
        self._shared.unsent_bytes += unsent_bytes - self.counted_bytes
        self.counted_bytes = unsent_bytes

    def _forget_unsent(self) -> None:
        self._shared.unsent_bytes -= self.counted_bytes
        self.counted_bytes = 0
