"""One connection of a slave to its master: receives, appends to the store, reports.

At most 1 MiB is received and appended in one iteration of the event loop, then one report leaves.
With SYNC_FLUSH a report says what is on the disk, so it leaves when the flush thread is done.

If the store cannot append (disk full), nothing is received until it can: what was received stays in
the buffer, the master stops sending, and reports say that the slave is alive.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tianzhou.clock import wall_ms
from tianzhou.errors import ReplicationError, StoreCorrupt, StoreError
from tianzhou.ha.epochs import EpochFile
from tianzhou.ha.hello import Offer, needs_tls
from tianzhou.ha.slave_side import SlaveSide
from tianzhou.remoting import sockets
from tianzhou.remoting.client import Client
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.tls.tls_socket import TlsSocket
from tianzhou.store.config import FlushDiskType, StoreConfig
from tianzhou.store.flush import FlushCallback

log = logging.getLogger(__name__)

_TICK_S = 1.0
_FLUSHES_MAX = 2
"""Flushes requested at a time: one runs, the next one includes what was appended meanwhile."""


class ReplicaStore(Protocol):
    """What replication needs of a store."""

    @property
    def config(self) -> StoreConfig: ...

    @property
    def first_log_offset(self) -> int: ...

    @property
    def end_log_offset(self) -> int: ...

    @property
    def flushed_log_offset(self) -> int: ...

    def log_slice(self, log_offset: int, max_bytes: int) -> memoryview | None: ...

    def begin_copy_at(self, log_offset: int) -> None: ...

    def append_copied(self, data: memoryview) -> int: ...

    def when_flushed(self, log_offset: int, callback: FlushCallback) -> None: ...

    def flushed(self, log_offset: int) -> Future[None]: ...


class Problem(NamedTuple):
    """Why a slave does not follow."""

    text: str
    is_lasting: bool = False
    """It will probably be the same at the next attempt, until an operator acts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long a slave waits for what, in seconds."""

    retry_s: float = 1.0
    lasting_retry_s: float = 5.0
    silence_s: float = 20.0
    """A connection without a byte is closed (haHousekeepingInterval)."""
    report_s: float = 5.0
    """Between reports while nothing happens (haSendHeartbeatInterval)."""
    range_s: float = 30.0
    """Between checks whether a master of Apache's still has what comes next."""
    request_s: float = 3.0
    """For a response of the master, and for connecting."""


def is_sync_flush(store: ReplicaStore) -> bool:
    """Whether only what is on the disk is acknowledged."""
    return store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH


async def connect_to_master(
    client: Client, host: str, offer: Offer, timeout_s: float
) -> socket.socket | TlsSocket:
    """The HA port of an offer, with TLS where both sides have it.

    Raises ReplicationError if they do not agree, OSError if the port cannot be reached.
    """
    is_tls = needs_tls(offer, speaks_tls=client.speaks_tls)
    sock = await sockets.connected(host, offer.ha_port, timeout_s, Limits())
    if not is_tls:
        return sock
    try:
        return await client.secured(sock, host, timeout_s)
    except ssl.SSLError as error:
        raise ReplicationError(
            f"the TLS handshake with the master's HA port failed: {error.strerror or error}: check "
            "tlsClientTrustCertPath and tlsClientCertPath here, tlsServerCertPath and "
            "tlsServerTrustCertPath on the master, and that no certificate has expired"
        ) from error


class MasterConnection:
    """A connected socket; `ended` gets the reason when it is closed."""

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        side: SlaveSide,
        store: ReplicaStore,
        epochs: EpochFile,
        times: Times,
        on_tick: Callable[[], None],
        on_received: "Callable[[MasterConnection], None]" = lambda connection: None,
        on_changes: Callable[[bytes], None] = lambda lines: None,
    ) -> None:
        """`on_tick` is called about once a second while the connection is open.

        `on_received` is called when something of the master was received and appended,
        `on_changes` with announced changes of tables before messages behind them are acknowledged;
        it may raise ReplicationError.
        """
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._tls = sock if isinstance(sock, TlsSocket) else None
        self._store = store
        self._epochs = epochs
        self._times = times
        self._on_tick = on_tick
        self._on_received = on_received
        self._on_changes = on_changes
        self.side = side
        self.ended: asyncio.Future[Problem] = self._loop.create_future()
        self.refusal: StoreError | None = None
        """Why the store does not append; meanwhile nothing is received."""
        self._is_pause_logged = False
        self.last_read_ms = self.last_write_ms = 0
        """By the wall clock; 0: never."""
        self.bytes_per_second = 0.0
        self._tick_s = min(_TICK_S, times.silence_s / 4, times.report_s / 2)
        self._timers: list[asyncio.TimerHandle] = []
        self._read_s = self._rate_s = self._loop.time()
        self._byte_count = 0
        self._unsent = b""
        self._pending_report = b""
        """Behind `_unsent`; a newer report replaces it."""
        self._waits_for_disk = is_sync_flush(store)
        self._flush_requested = 0
        self._flush_count = 0

    def start(self, opening: bytes) -> None:
        """Sends what the connection begins with and the first report, and receives from now on."""
        self._send(opening + self.side.first_report(self._now_ms()))
        if not self.ended.done():
            self._loop.add_reader(self._sock, self._receive)
            self._timers = [self._loop.call_later(self._tick_s, self._tick)]
            self._receive_more()

    def close(self, problem: Problem) -> None:
        """Does nothing if it is closed."""
        if self.ended.done():
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        for timer in self._timers:
            timer.cancel()
        self._sock.close()
        self.ended.set_result(problem)

    # -- receiving -------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            count = self._sock.recv_into(self.side.space())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        if not count:
            self.close(Problem("the master closed the connection"))
            return
        self._read_s = self._loop.time()
        self.last_read_ms = wall_ms()
        self._byte_count += count
        try:
            self.side.received(count)
            changes, self.side.changes = self.side.changes, []
            for lines in changes:
                self._on_changes(lines)
            self._append()
            self._on_received(self)
        except ReplicationError as error:
            self.close(Problem(str(error), is_lasting=True))
        except Exception as error:
            # Else the loop would call this again for ever, and the state of the buffer is unknown.
            log.exception("replication: receiving from the master failed")
            self.close(Problem(f"internal error: {error!r}", is_lasting=True))
        if self._tls is not None and self._tls.has_more:
            self._receive_more()

    def _receive_more(self) -> None:
        """Of TLS: what was received already makes no socket readable."""
        if self._tls is not None:
            self._loop.call_later(0, self._receive_unless_paused)

    def _receive_unless_paused(self) -> None:
        if self.refusal is None and not self.ended.done():
            self._receive()

    def _append(self) -> None:
        """Appends what was received. Raises ReplicationError."""
        side, store = self.side, self._store
        log_offset, data = side.contents()
        try:
            if side.epochs_changed:
                # Before the first byte of the epoch: else the epoch file would not describe it.
                self._epochs.save(side.epochs)
                side.epochs_changed = False
            if data:
                self._check_end(log_offset)
                side.appended(store.append_copied(data))
        except StoreCorrupt as error:
            raise ReplicationError(f"what the master sent is no log: {error}") from error
        except StoreError as error:
            side.appended(max(store.end_log_offset - log_offset, 0) if data else 0)
            self._pause(error)
        self._report()

    def _check_end(self, log_offset: int) -> None:
        store = self._store
        if log_offset == store.end_log_offset:
            return
        if store.end_log_offset != store.first_log_offset:
            raise ReplicationError(
                f"the log here ends at {store.end_log_offset}, {log_offset} comes next from the "
                "master: something else than replication wrote to it"
            )
        store.begin_copy_at(log_offset)

    def _pause(self, refusal: StoreError) -> None:
        if self.ended.done():
            return
        if not self._is_pause_logged:
            self._is_pause_logged = True
            log.warning("replication pauses, it is tried again every second: %s", refusal)
        self.refusal = refusal
        self._loop.remove_reader(self._sock)

    def _resume(self) -> None:
        self.refusal = None
        try:
            self._append()
        except ReplicationError as error:
            self.close(Problem(str(error), is_lasting=True))
            return
        if self.refusal is None and not self.ended.done():
            self._is_pause_logged = False
            log.info("replication goes on: the store appends again")
            self._read_s = self._loop.time()
            self._loop.add_reader(self._sock, self._receive)
            self._receive_more()

    # -- reports ---------------------------------------------------------------------------------

    def _report(self) -> None:
        end = self._store.end_log_offset
        if self.side.next_log_offset is None:
            end = 0
        elif self._waits_for_disk:
            if end > self._flush_requested and self._flush_count < _FLUSHES_MAX:
                self._flush_count += 1
                self._flush_requested = end
                self._store.when_flushed(end, self._on_flushed)
            end = min(end, self._store.flushed_log_offset)
        report = self.side.report(end, self._now_ms())
        if report is not None:
            self._send(report)

    def _on_flushed(self, failure: StoreError | None) -> None:
        """Called by the flush thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._flushed, failure)

    def _flushed(self, failure: StoreError | None) -> None:
        self._flush_count -= 1
        if self.ended.done():
            return
        if failure is not None:
            self._flush_requested = 0
            self._pause(failure)
        else:
            self._report()

    def ask_handover(self) -> None:
        """Ask the master to hand over; not repeated here if the socket is full just now."""
        if not self.ended.done() and self.side.next_log_offset is not None:
            self._send(self.side.handover_request())

    def _send(self, data: bytes) -> None:
        if self._unsent:
            self._pending_report = data
            return
        try:
            count = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            self._lost(error)
            return
        if count:
            self.last_write_ms = wall_ms()
        self._unsent = data[count:]
        if self._unsent:
            self._loop.add_writer(self._sock, self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock)
        data, self._unsent, self._pending_report = self._unsent + self._pending_report, b"", b""
        self._send(data)

    # -- time ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_s = self._loop.time()
        self._timers = [self._loop.call_later(self._tick_s, self._tick)]
        self.bytes_per_second = self._byte_count / max(now_s - self._rate_s, 0.001)
        self._byte_count, self._rate_s = 0, now_s
        if self.refusal is not None:
            self._resume()
        elif now_s - self._read_s >= self._times.silence_s:
            silence_s = self._times.silence_s
            self.close(Problem(f"the master sent nothing for {silence_s:g} s"))
        if not self.ended.done():
            self._report()
            self._on_tick()

    def _lost(self, error: OSError) -> None:
        self.close(Problem(f"the connection to the master was lost: {sockets.cause_of(error)}"))

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)
