"""Sends the log to the slaves of a master, from mapped memory to their sockets.

    the log grew -> at the end of the loop iteration its new bytes leave, one `sendmsg` per slave
    a socket is full -> its slave gets more when it is writable; what is left of one frame is a view
                        of mapped memory, and nothing else is buffered
    a slave is behind -> it gets a slice of the log per loop iteration; what is not in memory is
                         read in a thread first, as a page fault would block the event loop

`sendfile` is not cheaper than `sendmsg` of mapped memory (docs/performance.md).
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tianzhou.clock import Clock
from tianzhou.ha.master_side import LogBounds, MasterSide, SlaveRefused
from tianzhou.remoting.address import host_of
from tianzhou.remoting.quota.buckets import Buckets, Rate
from tianzhou.remoting.tls.tls_socket import TlsSocket
from tianzhou.store.reading import StoreReader

_ITERATION_BYTES: Final = 2 * 1024 * 1024
"""Of the log, to all slaves that are behind, in one loop iteration: about a millisecond."""
_SLICE_BYTES_MIN: Final = 128 * 1024
_HOT_BYTES: Final = 32 * 1024 * 1024
"""So much of the log's end is taken to be in memory."""
_PREFETCH_BYTES: Final = 8 * 1024 * 1024
_PREFETCH_READ_BYTES: Final = 1024 * 1024
_BURST_S: Final = 0.1
_THROTTLED_S: Final = 0.005
_ALL = "all slaves"


class SlaveConnection:
    """A connection to the HA port."""

    __slots__ = (
        "displaced", "is_counted", "is_open", "is_prefetching", "is_writing", "on_readable",
        "peer", "side", "sock", "unsent", "warm_log_offset",
    )  # fmt: skip

    def __init__(self, sock: socket.socket, peer: str, side: MasterSide) -> None:
        self.sock: socket.socket | TlsSocket = sock
        self.peer = peer
        self.side = side
        self.is_open = True
        self.on_readable: Callable[[SlaveConnection], None] = lambda connection: None
        """What reads the socket at present."""
        self.displaced: frozenset[str] = frozenset()
        """Stores with the same brokerId whose connections this one has replaced."""
        self.is_counted = False
        """Its first report was accepted, so it is one of the slaves."""
        self.unsent: list[memoryview] = []
        """The rest of the frame that is being sent."""
        self.is_writing = False
        """It gets more when its socket is writable."""
        self.is_prefetching = False
        self.warm_log_offset = 0
        """What it gets next is in memory up to there."""

    @property
    def host(self) -> str:
        return host_of(self.peer)


class LogSender:
    """Sends to any number of connections of one event loop."""

    def __init__(
        self,
        store: StoreReader,
        bytes_per_second: int | None,
        clock: Clock,
        *,
        on_lost: Callable[[SlaveConnection, str], None],
        on_refused: Callable[[SlaveConnection, SlaveRefused], None],
        on_problem: Callable[[SlaveConnection], None],
        wake_by: Callable[[int], None],
    ) -> None:
        """`bytes_per_second` limits the bytes of the log for all connections together.

        `on_lost` and `on_refused` close a connection. `on_problem` is called when a slave cannot
        follow any more, and `wake_by` when a connection has something due at that time.
        """
        self._store = store
        self._file_bytes = store.log.segments.size_bytes
        self._clock = clock
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._on_problem = on_problem
        self._wake_by = wake_by
        self._rate = Rate(bytes_per_second, _BURST_S) if bytes_per_second else None
        self._bucket = Buckets(1)
        self._throttled: dict[SlaveConnection, None] = {}
        """Those that wait for the rate limit, in the order in which they are served."""
        self._unthrottle: asyncio.TimerHandle | None = None
        self._writing_count = 0

    def start(self) -> None:
        """Use the running event loop."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """All connections are closed."""
        if self._unthrottle is not None:
            self._unthrottle.cancel()
            self._unthrottle = None

    def forget(self, connection: SlaveConnection) -> None:
        """The connection is about to be closed."""
        connection.is_open = False
        connection.unsent.clear()
        self._throttled.pop(connection, None)
        self._end_writing(connection)

    def bounds(self) -> LogBounds:
        store = self._store
        return LogBounds(
            store.first_log_offset, store.end_log_offset, self._file_bytes,
            store.confirmed_log_offset,
        )  # fmt: skip

    def send_idle(self, connection: SlaveConnection) -> None:
        """Send to a connection unless it waits for its socket or for the rate limit."""
        if not connection.is_writing and connection not in self._throttled:
            self.send(connection)

    def send(self, connection: SlaveConnection) -> None:
        """Send a slice of the log, or a heartbeat if one is due."""
        if connection.is_prefetching or not connection.is_open:
            return
        left_bytes = max(_ITERATION_BYTES // max(self._writing_count, 1), _SLICE_BYTES_MIN)
        while True:
            if not connection.unsent:
                if left_bytes <= 0:
                    self._write_later(connection)
                    return
                if not self._load_frame(connection, left_bytes):
                    self._end_writing(connection)
                    return
            try:
                count = connection.sock.sendmsg(connection.unsent)
            except (BlockingIOError, InterruptedError):
                self._write_later(connection)
                return
            except OSError as error:
                self._on_lost(connection, f"the connection was lost: {error.strerror}")
                return
            connection.side.sent(count, self._clock())
            left_bytes -= count
            if not _cut(connection.unsent, count):
                self._write_later(connection)
                return

    def _write_later(self, connection: SlaveConnection) -> None:
        if not connection.is_writing:
            connection.is_writing = True
            self._writing_count += 1
            self._loop.add_writer(connection.sock.fileno(), self.send, connection)
            self._wake_by(connection.side.due_ms())

    def _end_writing(self, connection: SlaveConnection) -> None:
        if connection.is_writing:
            connection.is_writing = False
            self._writing_count -= 1
            self._loop.remove_writer(connection.sock.fileno())

    def _load_frame(self, connection: SlaveConnection, bytes_max: int) -> bool:
        """Make the next frame the unsent bytes; False if there is nothing to send now."""
        side, bounds, now_ms = connection.side, self.bounds(), self._clock()
        if not self._may_send_log(connection, bounds, now_ms):
            bytes_max = 0
        had_problem = side.problem is not None
        try:
            frame = side.next_frame(bounds, now_ms, bytes_max)
        except SlaveRefused as refusal:
            self._on_refused(connection, refusal)
            return False
        if side.problem is not None and not had_problem:
            self._on_problem(connection)
        if frame is None:
            return False
        connection.unsent = [memoryview(frame.head)]
        if frame.body_bytes:
            body = self._store.log_slice(frame.log_offset, frame.body_bytes)
            if body is None or len(body) != frame.body_bytes:
                self._on_lost(connection, "the next part of the log was deleted")
                return False
            connection.unsent.append(body)
            if self._rate is not None:
                self._bucket.spend(_ALL, self._rate, frame.body_bytes, now_ms)
        return True

    def _may_send_log(self, connection: SlaveConnection, bounds: LogBounds, now_ms: int) -> bool:
        """False without more of the log, above the rate limit, and before a read of the disk."""
        if not connection.side.has_more(bounds):
            return False
        if self._rate is not None and self._bucket.left(_ALL, self._rate, now_ms) < 1:
            self._throttle(connection, self._rate, now_ms)
            return False
        if self._is_cold(connection, bounds):
            self._prefetch(connection)
            return False
        return True

    # -- rate limit --------------------------------------------------------------------------------

    def _throttle(self, connection: SlaveConnection, rate: Rate, now_ms: int) -> None:
        self._throttled[connection] = None
        self._wait_for_rate(rate, now_ms)

    def _wait_for_rate(self, rate: Rate, now_ms: int) -> None:
        if self._unthrottle is None:
            missing = 1 - self._bucket.left(_ALL, rate, now_ms)
            wait_s = max(missing / rate.per_second, _THROTTLED_S)
            self._unthrottle = self._loop.call_later(wait_s, self._serve_throttled)

    def _serve_throttled(self) -> None:
        self._unthrottle = None
        assert self._rate is not None
        for connection in tuple(self._throttled):
            now_ms = self._clock()
            if self._bucket.left(_ALL, self._rate, now_ms) < 1:
                # A connection that got nothing stays the next one, so that all get their share.
                self._wait_for_rate(self._rate, now_ms)
                return
            self._throttled.pop(connection, None)  # to the end, if it has to wait again
            self.send(connection)

    # -- cold parts of the log ---------------------------------------------------------------------

    def _is_cold(self, connection: SlaveConnection, bounds: LogBounds) -> bool:
        """Whether sending would wait for the disk, and the whole event loop with it."""
        log_offset = connection.side.next_log_offset
        if bounds.end - log_offset <= _HOT_BYTES or log_offset < connection.warm_log_offset:
            return False
        file = self._store.log.segments.find(log_offset)
        if file is None:
            return False
        start = log_offset - file.first
        stop = min(start + _PREFETCH_BYTES, file.size_bytes)
        try:
            is_cached = file.is_cached(start, stop)
        except FileNotFoundError:  # deleted meanwhile
            return False
        if is_cached:
            connection.warm_log_offset = file.first + stop
        return not is_cached

    def _prefetch(self, connection: SlaveConnection) -> None:
        connection.is_prefetching = True
        log_offset = connection.side.next_log_offset

        def prefetched(_: asyncio.Future[None]) -> None:
            connection.is_prefetching = False
            connection.warm_log_offset = log_offset + _PREFETCH_BYTES
            self.send(connection)

        reading = self._loop.run_in_executor(None, _read_cold, self._store, log_offset)
        reading.add_done_callback(prefetched)


def _cut(unsent: list[memoryview], count: int) -> bool:
    """Remove sent bytes; whether none are left."""
    while unsent and count >= len(unsent[0]):
        count -= len(unsent.pop(0))
    if unsent:
        unsent[0] = unsent[0][count:]
    return not unsent


def _read_cold(store: StoreReader, log_offset: int) -> None:
    """Read a part of the log into the page cache; blocks, so it runs in a thread."""
    file = store.log.segments.find(log_offset)
    if file is None:
        return
    start = log_offset - file.first
    stop = min(start + _PREFETCH_BYTES, file.size_bytes)
    # The file may be deleted by now; an error of the disk shows when its bytes are sent.
    with suppress(OSError), file.opened() as handle:
        for at in range(start, stop, _PREFETCH_READ_BYTES):
            handle.read(at, min(_PREFETCH_READ_BYTES, stop - at))
