"""The sending side of a connection: joins frames of one loop iteration, and counts unsent bytes."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tianzhou.remoting.shared_state import SharedState

# Small replies are joined, since a system call costs more than copying them; large ones are not
# copied.
_JOIN_BYTES = 64 * 1024
_COUNTED_BYTES = 4 * 1024

NO_SOCKET = -1
_NOT_BEGUN = -2


class WriteBuffer(asyncio.BufferedProtocol, ABC):
    """The sending side of a connection."""

    __slots__ = (
        "_holds_back", "_in_turn", "_outgoing", "_outgoing_bytes", "_shared", "_socket",
        "_transport", "_writing_paused", "_written_bytes", "closed", "counted_bytes", "deferred_by",
        "secure",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, shared: SharedState[Any]) -> None:
        self._shared = shared
        self.closed = True  # until there is a transport
        self.secure = False
        """True if the connection is encrypted."""
        self._socket = _NOT_BEGUN
        self.counted_bytes = 0
        """Unsent bytes, as they were counted last for the limit of all connections."""
        self.deferred_by: Callable[[], None] | None = None
        """Set while the feed has yet to `pay` its answers; a call of it makes it do so."""
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = self._written_bytes = 0
        self._in_turn = False  # a flush will follow at the end of this loop iteration
        self._holds_back = False  # `send_held` will be called
        self._writing_paused = False

    @abstractmethod
    def cut(self, reason: str) -> None:
        """Close at once and drop what is unsent, because the peer misbehaves; logged."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that have left this program."""
        return self._written_bytes - self.unsent_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the peer to read what it was sent before."""
        return self._transport.get_write_buffer_size()

    def send_frames(self, frames: bytes) -> None:
        """Send frames that are encoded already, on the terms of `Connection.send`."""
        if not self.closed:
            self._put(frames)

    def begin_direct(self) -> None:
        """From now on there are frames that need not pass through the transport; see `socket`."""
        if self._socket == _NOT_BEGUN:
            found = None if self.secure else self._transport.get_extra_info("socket")
            self._socket = NO_SOCKET if found is None else found.fileno()

    @property
    def socket(self) -> int:
        """The descriptor of the socket if frames may be written there now, else NO_SOCKET.

        They may once `begin_direct` was called, while no earlier bytes are unsent. The writer
        reports with `wrote`, and passes what the socket did not accept to `send_frames`.
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
        """So many bytes have left by way of `socket`."""
        self._written_bytes += size_bytes

    def pay(self, frames: bytes) -> None:
        """Give the answers that were owed."""
        self.deferred_by = None
        if self.closed or not frames:
            return
        if self._in_turn and not self._holds_back:
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
        """Hold frames back until `send_held`, or until responses to sends leave before."""
        self._holds_back = True

    def send_held(self) -> None:
        """Send what was held back."""
        self._holds_back = False
        self._end_turn()

    def _put(self, frame: bytes) -> None:
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)
        if self._outgoing_bytes >= _JOIN_BYTES:
            self._flush()
        elif not (self._in_turn or self._holds_back):
            self._in_turn = True
            self._shared.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Send what was put in this loop iteration, unless it is held back."""
        self._in_turn = False
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
            # `_put` sees to it that all but the last are small together; that one is not copied.
            last = outgoing.pop()
            if outgoing:
                self._transport.write(b"".join(outgoing))
            self._transport.write(last)
        if size_bytes >= _COUNTED_BYTES or self._writing_paused:
            # Small ones are counted by the next sweep; the question costs as much as they do.
            self._check_unsent()

    def _check_unsent(self) -> None:
        """Cut a peer that does not read, and others if all together do not read enough."""
        if self._writing_paused:
            unsent_bytes = self.unsent_bytes
            if unsent_bytes > self._shared.limits.unsent_cut_bytes:
                self.cut(f"{unsent_bytes} bytes are unsent")
                return
        self.count_unsent()
        if self._shared.unsent_bytes > self._shared.limits.unsent_bytes:
            self._shared.cut_largest_unsent()

    def count_unsent(self) -> None:
        """Bring the share of this connection in `SharedState.unsent_bytes` up to date."""
        if self.closed:
            return  # what it had when it was closed counts until it is gone, or was cut
        unsent_bytes = self._transport.get_write_buffer_size()
        self._shared.unsent_bytes += unsent_bytes - self.counted_bytes
        self.counted_bytes = unsent_bytes

    def _forget_unsent(self) -> None:
        self._shared.unsent_bytes -= self.counted_bytes
        self.counted_bytes = 0
