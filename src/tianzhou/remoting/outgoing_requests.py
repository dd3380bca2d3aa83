"""The requests that a connection sends, with or without a response."""

import asyncio
from abc import abstractmethod
from collections import OrderedDict
from typing import Any

from tianzhou.errors import ConnectionClosed, FrameError, RemoteBusy
from tianzhou.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, encode
from tianzhou.remoting.pending_requests import PendingRequests, Waiter
from tianzhou.remoting.shared_state import SharedState
from tianzhou.remoting.write_buffer import WriteBuffer

_WOKEN_PER_ITERATION = 32
OTHER_FLAGS = ~(FLAG_RESPONSE | FLAG_ONEWAY)


class OutgoingRequests(WriteBuffer):
    """The requesting side of a connection."""

    __slots__ = ("_frame_bytes", "_gate_shut", "_pending", "_writable", "peer", "reason")

    def __init__(self, shared: SharedState[Any]) -> None:
        super().__init__(shared)
        self.peer = "?"
        self.reason = "not connected"
        """Why the connection was closed, for error messages."""
        self._frame_bytes = shared.limits.frame_bytes
        self._pending = PendingRequests()
        self._gate_shut = False
        """No frame is read or handled; see `connection.py`."""
        self._writable: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @abstractmethod
    def _open_gate(self) -> None:
        """Resume reading if it was paused: the response to a request must be read."""

    def oneway(self, command: Command) -> None:
        """Send a request without a response.

        Raises ConnectionClosed, and RemoteBusy while the peer reads too slowly.
        """
        self._check_open()
        if self._writing_paused:
            raise RemoteBusy(f"{self.peer} reads too slowly, request {command.code} is not sent")
        command.flag = command.flag & OTHER_FLAGS | FLAG_ONEWAY
        command.opaque = self._pending.next_opaque()
        self._put(self._encode(command))

    async def request(
        self, command: Command, timeout_ms: int, deadline_s: float | None = None
    ) -> Command:
        """Send a request and wait for the response, whatever its code; sets the request's opaque.

        The deadline, in loop time, is for callers that have used a part of the time-out already.
        Raises ConnectionClosed, RequestTimeout, and RemoteBusy: at once if there are
        `Limits.requests_pending` pending requests, after the time-out if the peer does not read.
        """
        loop = self._shared.loop
        if deadline_s is None:
            deadline_s = loop.time() + timeout_ms / 1000
        if self._writing_paused:
            await self.writable(deadline_s)
        self._check_open()
        pending = self._pending
        if len(pending) >= self._shared.limits.requests_pending:
            raise RemoteBusy(
                f"{self.peer} has not answered {len(pending)} requests, "
                f"request {command.code} is not sent"
            )
        future: asyncio.Future[Command] = loop.create_future()
        opaque = self._submit(command, future, timeout_ms, deadline_s)
        try:
            return await future
        finally:
            pending.forget(opaque)

    def post(self, command: Command, waiter: Waiter, timeout_ms: int, deadline_s: float) -> bool:
        """Send a request whose response is passed to `waiter`, without a task and a future.

        False, and nothing is sent, where `request` would wait or raise. The waiter is called while
        frames are read, so it must be fast.
        """
        requests_pending = self._shared.limits.requests_pending
        if self.closed or self._writing_paused or len(self._pending) >= requests_pending:
            return False
        self._submit(command, waiter, timeout_ms, deadline_s)
        return True

    def _submit(self, command: Command, waiter: Waiter, timeout_ms: int, deadline_s: float) -> int:
        pending = self._pending
        opaque = pending.add(waiter, command.code, timeout_ms, deadline_s)
        try:
            command.flag &= OTHER_FLAGS
            command.opaque = opaque
            self._put(self._encode(command))
            self._shared.wake_by(pending.next_deadline_s)
            if self._gate_shut:
                self._open_gate()
        except BaseException:
            pending.forget(opaque)
            raise
        return opaque

    async def writable(self, deadline_s: float) -> None:
        """Wait until few bytes are unsent; the deadline is in loop time.

        Raises RemoteBusy at the deadline, and ConnectionClosed.
        """
        self._check_open()
        while self._writing_paused:
            waiter: asyncio.Future[None] = self._shared.loop.create_future()
            self._writable[waiter] = None
            try:
                async with asyncio.timeout_at(deadline_s):
                    await waiter
            except TimeoutError:
                raise RemoteBusy(f"{self.peer} reads too slowly, nothing more is sent") from None
            finally:
                self._writable.pop(waiter, None)
            self._check_open()

    def expire(self, now_s: float) -> float:
        """Fail requests whose deadline has passed; returns a lower bound of the next deadline."""
        if self._pending.next_deadline_s <= now_s:
            self._pending.expire(now_s, self.peer)
        return self._pending.next_deadline_s

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionClosed(f"connection to {self.peer}: {self.reason}")

    def _encode(self, command: Command) -> bytes:
        frame = encode(command)
        if len(frame) > self._frame_bytes:
            raise FrameError(
                f"command {command.code} has {len(frame)} bytes, over {self._frame_bytes}"
            )
        return frame

    def _wake_writers(self) -> None:
        """Wake callers of `writable`, a few per iteration: all at once would fill the buffer."""
        if self._writing_paused and not self.closed:
            return
        for _ in range(min(len(self._writable), _WOKEN_PER_ITERATION)):
            waiter, _ = self._writable.popitem(last=False)
            if not waiter.done():
                waiter.set_result(None)
        if self._writable:
            self._shared.loop.call_soon(self._wake_writers)
