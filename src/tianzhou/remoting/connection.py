"""A TCP connection that carries frames in both directions; used by servers and clients.

    bytes in  -> whole frames straight from the shared receive buffer, the rest into `PartialFrame`
              -> the feed, if there is one, handles those it can
              -> responses to the pending requests (`outgoing_requests.py`), requests to the handler
    bytes out <- responses of one loop iteration, joined into one write (`write_buffer.py`)

The gate is before the handler. It is shut while the peer of a server does not read (unsent bytes
above the high water mark), while too many handlers of the connection run, while a handler has
paused the connection, and until the next loop iteration once its requests have used their share of
this one. While it is shut the socket is not read, and frames already received are held. So a peer
can occupy at most one receive buffer, one partial frame and the unsent bytes.
Two exceptions prevent a deadlock of both sides: a client reads even if it cannot write, and
handlers that wait for responses of their own peer (there are pending requests) do not count.

A connection is open, then closed (nothing is read or answered any more, unsent bytes may still be
sent), then gone (`on_closed` has been called). All of it runs on one event loop, without locks.

Over 500 lines: reading, the gate and the handlers share their state on every request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from time import perf_counter
from typing import cast

from tianzhou.errors import ConnectionClosed, FrameError, HeaderError, ProtocolError
from tianzhou.limits import HEADER_BYTES_MAX
from tianzhou.protocol.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    Command,
    HeaderEncoding,
    decode,
    encode,
)
from tianzhou.protocol.kernel import split_frames
from tianzhou.remoting import error_responses
from tianzhou.remoting.address import address_of, host_of
from tianzhou.remoting.outgoing_requests import OTHER_FLAGS, OutgoingRequests
from tianzhou.remoting.partial_frame import PartialFrame
from tianzhou.remoting.pending_requests import NEVER_S
from tianzhou.remoting.shared_state import SharedState


class Deferral(Enum):
    """The result of a handler that has parked its request."""

    PARKED = "parked"


PARKED = Deferral.PARKED
"""The response is sent later, with `Connection.send`."""

_Work = Awaitable[Command | Deferral | None]
Answer = Command | _Work | Deferral | None
"""A response, an awaitable of one, PARKED, or None for a request without a response (oneway)."""

Handler = Callable[["Connection", Command], Answer]
"""Answers a request."""

Resume = Callable[[Callable[[], Answer]], None]
"""Resumes a deferred request: calls the given work and sends its response."""

Listener = Callable[["Connection"], None]

Feed = Callable[["Connection", memoryview, int], tuple[int, int] | None]
"""The fast path: handles the frames it can in a buffer, from a position on.

It responds with `send_frames`; or it sets `deferred_by` and calls `send_deferred` in the same loop
iteration. Returns the start and end of the next frame, which is for the handler. Both are equal if
no whole frame is left; the end is -1 if the feed is to be called again from there. None: it handles
nothing.
"""

log = logging.getLogger(__name__)

_SHARE_S = 0.0001
"""How long handlers may work for one connection in one loop iteration."""
_TLS_FIRST_BYTE = 0x16

# Receives the bytes of closed connections, which are ignored: with asyncio's TLS they may arrive
# while another connection uses the shared buffer.
_DISCARDED = memoryview(bytearray(64 * 1024))

_Origin = tuple[int, HeaderEncoding]
"""Opaque and encoding of a request, copied: a handler may change and forward the request."""


class Connection(OutgoingRequests):
    """A connection, made by `Server` or `Client`."""

    __slots__ = (
        "_closed_s", "_draining", "_feed", "_handle", "_held", "_moved_bytes",
        "_moved_s", "_on_closed", "_on_opened", "_partial", "_paused_count", "_running_count",
        "account", "kept_bytes", "local", "received_bytes",
    )  # fmt: skip

    def __init__(
        self,
        shared: "SharedState[Connection]",
        handle: Handler,
        on_opened: Listener | None = None,
        on_closed: Listener | None = None,
        feed: Feed | None = None,
    ) -> None:
        super().__init__(shared)
        self._handle = handle
        self._feed = feed
        self._on_opened = on_opened
        self._on_closed = on_closed
        self.local = "?"
        self.account: str | None = None
        """The account of the current request, if the server has access control."""
        self.kept_bytes = 0
        """Received bytes that are not handled yet: partial frames, and those behind the gate."""
        self._partial = PartialFrame(self._frame_bytes)
        self._held: memoryview | None = None
        self._draining = False
        self._running_count = self._paused_count = 0
        self.received_bytes = 0
        self._moved_bytes = 0
        self._moved_s = self._closed_s = 0.0

    def __repr__(self) -> str:
        return f"<Connection {self.local} to {self.peer}{', closed' if self.closed else ''}>"

    @property
    def host(self) -> str:
        """The address of the peer without its port."""
        return host_of(self.peer)

    # -- for users ---------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        """Send a response or a push; dropped if the connection is closed.

        Never blocks. A peer with more than `Limits.unsent_cut_bytes` unsent bytes is cut.
        """
        if not self.closed:
            self._put(self._encode(command))

    def hold(self, count: int) -> None:
        """Count requests as running that have no task, until `release`."""
        self._running_count += count
        if not self._is_below(self._shared.limits.requests_in_flight_per_connection - 1):
            self._shut_gate()

    def release(self, count: int, frames: bytes) -> None:
        """Send the responses of requests that were counted with `hold`."""
        self._running_count -= count
        self.send_frames(frames)
        self._on_request_done()

    def pause(self) -> None:
        """Handle no further request until `resume`; each call needs its own."""
        self._paused_count += 1
        self._shut_gate()

    def resume(self) -> None:
        """End a `pause`."""
        self._paused_count -= 1
        self._open_gate()

    def defer(self, request: Command) -> Resume:
        """Defer a request without a task; it counts as running until it is resumed.

        The handler returns None. The result must be called once, with the work that the handler
        would have done.
        """
        origin = None if request.flag & FLAG_ONEWAY else (request.opaque, request.encoding)
        self.hold(1)
        return partial(self._resume_deferred, request.code, origin)

    def close(self, reason: str) -> None:
        """Close; unsent bytes are still sent, within `Limits.goodbye_ms`."""
        if self.closed:
            return
        if self.deferred_by is not None:
            self.deferred_by()
        self._flush()
        if not self.closed:  # flushing may have cut it
            self._set_closed(reason)
            self._transport.close()

    def cut(self, reason: str) -> None:
        """Close at once and drop unsent bytes because the peer misbehaves; logged."""
        self._shared.counts.cut_peers += 1
        self._shared.log_failure(f"cut {self.host}", f"connection {self.peer}: cut, {reason}")
        self.abort(reason)

    def abort(self, reason: str) -> None:
        """Close at once and drop unsent bytes, also after `close`."""
        if not self.closed:
            self._set_closed(reason)
        self._forget_unsent()
        self._transport.abort()

    # -- for the server's drain --------------------------------------------------------------------

    def drain(self) -> None:
        """Handle no new request, and close when the running ones are answered."""
        if self.closed or self._draining:
            return
        self._draining = True
        if self.deferred_by is not None:
            self.deferred_by()
        if self._running_count:
            return
        self._flush()
        if self.unsent_bytes:
            self._half_close()
        else:
            self.close("the server stops")

    def _half_close(self) -> None:
        """Send the end of the stream, and read until the peer ends its own.

        Closing a socket with unread bytes makes the kernel drop unsent responses, which a peer that
        pipelines requests would lose.
        """
        self._flush()
        if not self.closed and not self._transport.can_write_eof():
            self.close("the server stops")
        elif not self.closed:
            self._set_closed("the server stops")
            self._closed_s = NEVER_S  # the drain has a deadline of its own
            self._transport.write_eof()
            self._transport.resume_reading()

    # -- for the timer of the shared state ---------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Close an idle connection, cut a stalled one, abort one that does not finish closing."""
        limits = self._shared.limits
        if self.closed:
            if now_s - self._closed_s >= limits.goodbye_ms / 1000:
                self._transport.abort()
            return
        moved_bytes = self.received_bytes + self.sent_bytes
        if moved_bytes != self._moved_bytes:
            self._moved_bytes, self._moved_s = moved_bytes, now_s
            return
        still_ms = (now_s - self._moved_s) * 1000
        if self._writing_paused and still_ms >= limits.write_stall_ms:
            self.cut(f"{self.unsent_bytes} bytes are unsent, none was read for {still_ms:.0f} ms")
        elif still_ms >= limits.idle_ms:
            self._shared.counts.idle_peers += 1
            log.info("connection %s: closed, idle for %.0f ms", self.peer, still_ms)
            self.close("idle")

    # -- life, called by asyncio -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A socket's transport reads and writes; the base class is for pipes and datagrams, too.
        self._transport = cast("asyncio.Transport", transport)
        limits = self._shared.limits
        self._transport.set_write_buffer_limits(limits.unsent_high_bytes, limits.unsent_low_bytes)
        self.peer = address_of(transport.get_extra_info("peername"))
        self.local = address_of(transport.get_extra_info("sockname"))
        self.secure = transport.get_extra_info("ssl_object") is not None
        self.closed = False
        self._moved_s = self._shared.loop.time()
        log.debug("connection %s: opened", self.peer)
        self._shared.add(self)
        self._notify(self._on_opened)

    def eof_received(self) -> None:
        self.close("closed by the peer")

    def connection_lost(self, exc: Exception | None) -> None:
        """May be called twice: also by the code that opens connections, when it is cancelled.

        uvloop closes such a transport without calling its protocol, even after `connection_made`.
        """
        if self not in self._shared.connections:
            return
        if not self.closed:
            self._set_closed(f"lost: {exc}" if exc else "closed by the peer")
        log.debug("connection %s: %s", self.peer, self.reason)
        self._forget_unsent()
        self._notify(self._on_closed)
        self._shared.remove(self)

    def _set_closed(self, reason: str) -> None:
        self.closed, self.reason = True, reason
        self._closed_s = self._shared.loop.time()
        self._outgoing, self._outgoing_bytes = [], 0
        self._partial = PartialFrame(self._frame_bytes)
        self._held = None
        self._shared.kept_bytes -= self.kept_bytes
        self.kept_bytes = 0
        self._pending.fail_all(ConnectionClosed(f"connection to {self.peer}: {reason}"))
        self._wake_writers()

    def _notify(self, listener: Listener | None) -> None:
        if listener is None:
            return
        try:
            listener(self)
        except Exception:  # a bug of the listener must not affect the state of the connection
            log.exception("connection %s: the listener of opened and closed failed", self.peer)

    # -- bytes in ----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return _DISCARDED if self.closed else self._shared.receive

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self._gate_shut:
            # Reading is paused, but the transport had read these bytes before.
            self._hold(self._shared.receive[:nbytes])
        elif not self.closed:
            self._read(self._shared.receive[:nbytes])

    def _read(self, view: memoryview) -> None:
        """Handle the whole frames in `view` and store the rest; responses are sent together."""
        self._flush_follows = True
        try:
            # Usually there is no partial frame, before and after.
            if self.kept_bytes:
                self._read_frames(view)
            elif (rest := self._handle_frames(view)) < len(view):
                self._keep(view[rest:])
        except (FrameError, HeaderError) as error:
            self._refuse_peer(error, view)
        finally:
            self._end_iteration()

    def _read_frames(self, view: memoryview) -> None:
        partial = self._partial
        if len(partial):
            view = view[partial.add(view) :]
            if not partial.complete:
                self._account()
                return
            self._handle_frames(partial.pop())
        rest = self._handle_frames(view)
        if rest < len(view):
            self._keep(view[rest:])
        else:
            self._account()

    def _keep(self, view: memoryview) -> None:
        if self._gate_shut or self.closed:
            self._hold(view)
            return
        self._partial.add(view)
        self._account()

    def _handle_frames(self, view: memoryview) -> int:
        """Handle whole frames while the gate is open; returns where the rest begins."""
        at, ends_s = 0, 0.0
        if self._feed is not None and not self._draining:
            while at < len(view):
                if self._gate_shut or self.closed:
                    return at
                next_frame = self._feed(self, view, at)
                if next_frame is None:
                    break
                at, stop = next_frame
                if at == stop:
                    return at
                if stop > at:
                    # The clock is read only if there is work for the handlers, which is rare.
                    ends_s = ends_s or perf_counter() + _SHARE_S
                    self._on_frame(view[at:stop])
                    at = stop
                    if perf_counter() > ends_s:
                        self._yield_to_others()
            view = view[at:]
        frames, rest = split_frames(view, self._frame_bytes)
        ends_s = ends_s or perf_counter() + _SHARE_S
        on_frame = self._on_frame
        for start, stop in frames:
            if self._gate_shut or self.closed:
                return at + start
            on_frame(view[start:stop])
            if perf_counter() > ends_s:
                self._yield_to_others()
        return at + rest

    def _on_frame(self, frame: memoryview) -> None:
        is_long = len(frame) > HEADER_BYTES_MAX and self._shared.serves
        if is_long and error_responses.refuse_header(frame, self._reply):
            return
        command = decode(frame)
        if command.flag & FLAG_RESPONSE:
            if not self._pending.answer(command):
                self._shared.counts.late_responses += 1
        elif not self._draining:
            self._on_request(command)

    @property
    def has_unread(self) -> bool:
        """Whether received frames wait behind the gate."""
        return self._held is not None

    def _hold(self, view: memoryview) -> None:
        """Store bytes while the gate is shut; those in the shared buffer are copied."""
        if self.closed:
            return
        if self._held is not None:
            view = memoryview(b"".join((self._held, view)))
        elif view.obj is self._shared.receive.obj:
            view = memoryview(bytes(view))
        self._held = view
        self._account()

    def _account(self) -> None:
        shared = self._shared
        kept_bytes = len(self._partial) + (len(self._held) if self._held is not None else 0)
        shared.kept_bytes += kept_bytes - self.kept_bytes
        self.kept_bytes = kept_bytes
        if shared.kept_bytes > shared.limits.kept_bytes:
            shared.cut_largest_kept()

    def _refuse_peer(self, error: ProtocolError, view: memoryview) -> None:
        """Close for an invalid frame, as RocketMQ does: the next frame cannot be located."""
        if self.closed:
            return
        text = str(error)
        if self.received_bytes == len(view) and view[0] == _TLS_FIRST_BYTE and not self.secure:
            text = "the peer speaks TLS, which this port does not"
        self._shared.counts.broken_peers += 1
        kind = f"invalid frames from {self.host}"
        self._shared.log_failure(kind, f"connection {self.peer}: closed, {text}")
        self.close(text)

    # -- requests ----------------------------------------------------------------------------------

    def _on_request(self, request: Command) -> None:
        oneway = request.flag & FLAG_ONEWAY
        origin = None if oneway else (request.opaque, request.encoding)
        code = request.code
        shared = self._shared
        if shared.handled_bytes > shared.limits.handled_bytes:
            self._reply(
                origin, error_responses.full(shared.handled_bytes, shared.limits.handled_bytes)
            )
            return
        try:
            answer = self._handle(self, request)
        except Exception as error:  # noqa: BLE001 - the peer gets a response for every error
            answer = self._refusal(code, error)
        if isinstance(answer, Command):
            self._reply(origin, answer)
        elif answer is not PARKED and answer is not None:
            self._run(code, origin, answer, len(request.body))

    def _resume_deferred(
        self, code: int, origin: _Origin | None, work: Callable[[], Answer]
    ) -> None:
        """Run deferred work, even if the connection is lost."""
        self._running_count -= 1
        try:
            answer = work()
        except Exception as error:  # noqa: BLE001 - as for handlers that answer at once
            answer = self._refusal(code, error)
        if isinstance(answer, Command):
            self._reply(origin, answer)
        elif answer is not PARKED and answer is not None:
            self._run(code, origin, answer, 0)
        self._on_request_done()

    def _on_request_done(self) -> None:
        self._open_gate()
        if self._draining and not self._running_count:
            self._half_close()

    def _reply(self, origin: _Origin | None, answer: Command) -> None:
        """Send a response with the opaque and encoding of its request; none if it was oneway."""
        if origin is None or self.closed:
            return
        answer.opaque, answer.encoding = origin
        answer.flag = answer.flag & OTHER_FLAGS | FLAG_RESPONSE
        try:
            frame = self._encode(answer)
        except ProtocolError as error:
            answer = self._refusal(answer.code, error)
            answer.opaque, answer.encoding = origin
            answer.flag = FLAG_RESPONSE
            frame = encode(answer)
        self._put(frame)

    def _refusal(self, code: int, error: Exception) -> Command:
        if error_responses.is_bug(error):
            self._shared.log_failure(
                f"request {code} failed with {type(error).__name__}",
                f"request {code} from {self.peer} failed",
                logging.ERROR,
                error,
            )
        return error_responses.refusal(error)

    def _run(self, code: int, origin: _Origin | None, work: _Work, body_bytes: int) -> None:
        shared = self._shared
        if len(shared.tasks) >= shared.limits.requests_in_flight:
            error_responses.discard_awaitable(work)
            self._reply(origin, error_responses.busy(len(shared.tasks)))
            return
        self.hold(1)
        shared.handled_bytes += body_bytes
        shared.run(self._finish(code, origin, work, body_bytes))

    async def _finish(
        self, code: int, origin: _Origin | None, work: _Work, body_bytes: int
    ) -> None:
        """Await a handler and send its response.

        A lost connection does not cancel the handler: a peer may close right after a oneway
        request. Only a server that stops cancels it.
        """
        try:
            answer = await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not this task was cancelled, but one that the handler awaited.
            answer = self._refusal(code, RuntimeError("the work was cancelled"))
        except Exception as error:  # noqa: BLE001 - as for handlers that answer at once
            answer = self._refusal(code, error)
        finally:
            self._running_count -= 1
            self._shared.handled_bytes -= body_bytes
        if isinstance(answer, Command):
            self._reply(origin, answer)
        self._on_request_done()

    # -- the gate ----------------------------------------------------------------------------------

    def _shut_gate(self) -> None:
        if not self._gate_shut and not self.closed:
            self._gate_shut = True
            self._transport.pause_reading()

    def _open_gate(self) -> None:
        if self._gate_shut and self._is_free():
            # Not now: this is called while handlers finish, and frames may be being read.
            self._shared.loop.call_soon(self._resume_if_free)

    def _yield_to_others(self) -> None:
        """Handle the remaining frames of a client in the next loop iteration."""
        if self._shared.serves and not self._gate_shut and not self.closed:
            self._shut_gate()
            self._shared.loop.call_soon(self._resume_after_yield)

    def _is_free(self) -> bool:
        limit_count = self._shared.limits.requests_in_flight_per_connection
        return self._may_go_on(limit_count * 3 // 4)  # hysteresis: not for each request

    def _may_go_on(self, running_count_max: int) -> bool:
        return (
            not self._paused_count
            and self._is_below(running_count_max)
            and not (self._writing_paused and self._shared.serves)
        )

    def _is_below(self, running_count_max: int) -> bool:
        # Handlers may be waiting for responses from this peer, which must be read.
        return self._running_count <= running_count_max or len(self._pending) > 0

    def _resume_after_yield(self) -> None:
        """Go on after other connections were served, without the hysteresis of the limit."""
        if self._may_go_on(self._shared.limits.requests_in_flight_per_connection - 1):
            self._reopen_gate()

    def _resume_if_free(self) -> None:
        if self._is_free():
            self._reopen_gate()

    def _reopen_gate(self) -> None:
        if self.closed or not self._gate_shut:
            return
        self._gate_shut = False
        held, self._held = self._held, None
        if held is not None:
            self._read(held)
        if not self._gate_shut and not self.closed:
            self._transport.resume_reading()

    # -- bytes out ---------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._shared.serves:
            self._shut_gate()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._wake_writers()
        self._open_gate()
