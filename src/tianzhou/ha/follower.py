"""A slave: finds its master, says hello, and copies its log, again and again until it is stopped.

    1. hello to the master's listen port         -> token, log and epochs of the master
       REQUEST_CODE_NOT_SUPPORTED: Apache's      -> range of its log, from its runtime information
    2. checks: equal file sizes, no gap, own log is the beginning of the master's
    3. HA port: "TZHA" and the token, or default HA; `MasterConnection` does the rest

Nothing is ever truncated here: a slave that is ahead or has other records says so and waits for an
operator. A master that did not respond to the hello is never sent "TZHA", and without that response
default HA is not used either: our own master would not notice different logs then.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from tianzhou.errors import (
    ConnectionClosed,
    ProtocolError,
    RemoteBusy,
    RemotingError,
    ReplicationError,
    StoreError,
)
from tianzhou.ha import hello
from tianzhou.ha.epochs import EpochFile, of_copy, within_log
from tianzhou.ha.frames import encode_opening
from tianzhou.ha.hello import Broker, LogState, Offer
from tianzhou.ha.log_tail import tail_of
from tianzhou.ha.master_connection import (
    MasterConnection,
    Problem,
    ReplicaStore,
    Times,
    connect_to_master,
    is_sync_flush,
)
from tianzhou.ha.slave_side import SlaveSide
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.topics import KVTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting import sockets
from tianzhou.remoting.address import format_address, parse_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.tls.tls_socket import TlsSocket

log = logging.getLogger(__name__)

_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY)
_STABLE_S = 60.0
"""After a connection of this length its problems are logged again."""
_LOGGED_MAX = 100
_NO_MASTER = Problem(
    "no master is known: the nameservers have none of this brokerName, and haMasterAddress is not "
    "set"
)


class MasterAddresses(NamedTuple):
    """Where the master is, as far as it is known."""

    listen: str | None
    ha: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatus:
    """What operators see of a slave."""

    master_address: str
    """The HA port; empty if it is not known."""
    state: str
    """stopped, connecting, following, paused (the store refuses), or waiting to connect again."""
    problem: str | None
    """Why it does not follow."""
    is_ours: bool
    bytes_per_second: float
    last_read_ms: int
    last_write_ms: int
    """By the wall clock; 0: never."""
    end_log_offset: int
    master_end: int
    """The end of the master's log as far as it is known."""


class _Link(NamedTuple):
    """Everything that is needed to connect to the HA port."""

    address: str
    opening: bytes
    side: SlaveSide
    offer: Offer | None = None
    """None: default HA."""


class Follower:
    """Keeps a store equal to its master's log, from `start` to `stop`."""

    def __init__(
        self,
        store: ReplicaStore,
        epochs: EpochFile,
        broker: Broker,
        client: Client,
        master: Callable[[], tuple[str | None, str | None]],
        *,
        on_connected: Callable[[], None] = lambda: None,
        on_failed: Callable[[], None] = lambda: None,
        on_changes: Callable[[bytes], None] = lambda lines: None,
        times: Times = Times(),  # noqa: B008 - frozen
        version: str = "",
    ) -> None:
        """`client` is used for the hello, with the credentials of this broker; it stays open.

        `on_connected` is called when the HA connection is made, `on_failed` when an attempt to
        follow has ended: the master may be elsewhere now. `on_changes`: see MasterConnection.
        """
        self._store = store
        self._epochs = epochs
        self._broker = broker
        self._client = client
        self._master = master
        self._on_connected = on_connected
        self._on_failed = on_failed
        self._on_changes = on_changes
        self._times = times
        self._version = version
        self._task: asyncio.Task[None] | None = None
        self._connection: MasterConnection | None = None
        self._known = MasterAddresses(None, None)
        self._listen = self._address = ""
        self._state = "stopped"
        self._problem: Problem | None = None
        self._master_end = 0
        self._logged: set[str] = set()

    async def start(self) -> None:
        """Begins to follow; returns at once."""
        assert self._task is None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Closes the connection; nothing is appended or reported after that."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        self._state = "stopped"

    @property
    def listen_address(self) -> str | None:
        """Where the master listens for requests; None before the first attempt."""
        return self._listen or None

    def status(self) -> FollowerStatus:
        """The present state."""
        connection = self._connection
        state, problem = self._state, self._problem.text if self._problem else None
        if connection is not None and connection.refusal is not None:
            state, problem = "paused", str(connection.refusal)
        elif connection is not None and connection.side.frame_count:
            problem = None
        end = self._store.end_log_offset
        side = connection.side if connection else None
        return FollowerStatus(
            master_address=self._address,
            state=state,
            problem=problem,
            is_ours=side is not None and side.is_ours,
            bytes_per_second=connection.bytes_per_second if connection else 0.0,
            last_read_ms=connection.last_read_ms if connection else 0,
            last_write_ms=connection.last_write_ms if connection else 0,
            end_log_offset=end,
            master_end=max(self._master_end, side.master_end if side else 0),
        )

    # -- attempts --------------------------------------------------------------------------------

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                problem = await self._follow()
            except Exception as error:
                log.exception("replication: an attempt to follow the master failed")
                problem = Problem(f"internal error: {error!r}", is_lasting=True)
            if loop.time() - began_s >= _STABLE_S:
                self._logged.clear()
            self._problem = problem
            self._state = "waiting to connect again"
            self._on_failed()
            self._log_once(logging.WARNING, f"master {self._address or '?'}: {problem.text}")
            times = self._times
            await asyncio.sleep(times.lasting_retry_s if problem.is_lasting else times.retry_s)

    async def _follow(self) -> Problem:
        """One attempt; returns why it ended."""
        self._known = MasterAddresses(*self._master())
        if self._known == (None, None):
            self._address = ""
            return _NO_MASTER
        self._state = "connecting"
        try:
            await self._wait_flushed()
            link = await self._link()
            self._address = link.address
            host, port = parse_address(link.address)
            sock = await self._connected(host, port, link.offer)
        except ProtocolError as error:
            return Problem(str(error), is_lasting=True)
        except RemotingError as error:
            return Problem(f"the master cannot be reached: {error}{self._hint(error)}")
        except StoreError as error:
            return Problem(f"the store refuses the master's log: {error}", is_lasting=True)
        except OSError as error:
            cause = sockets.cause_of(error)
            return Problem(f"the master's HA port {self._address} cannot be reached: {cause}")
        connection = MasterConnection(
            sock, link.side, self._store, self._epochs, self._times, self._tick,
            on_changes=self._on_changes,
        )  # fmt: skip
        return await self._copy(connection, link)

    async def _copy(self, connection: MasterConnection, link: _Link) -> Problem:
        self._connection = connection
        try:
            connection.start(link.opening)
            self._state = "following"
            protocol = "Tianzhou's protocol" if link.side.is_ours else "default HA"
            self._log_once(
                logging.INFO,
                f"master {link.address}: connected by {protocol}, the log here ends at "
                f"{self._store.end_log_offset}",
            )
            self._on_connected()
            while not (await asyncio.wait((connection.ended,), timeout=self._times.range_s))[0]:
                if not link.side.is_ours:
                    await self._check_again(connection)
            return connection.ended.result()
        finally:
            connection.close(Problem("stopped"))
            self._master_end = max(self._master_end, link.side.master_end)
            self._connection = None

    async def _check_again(self, connection: MasterConnection) -> None:
        """Apache's master goes on with heartbeats after it deleted what the slave needs next."""
        try:
            await self._check_range(self._listen, self._log_state())
        except ReplicationError as error:
            connection.close(Problem(str(error), is_lasting=True))
        except RemotingError:
            pass  # the HA connection shows whether the master is alive

    def _hint(self, error: RemotingError) -> str:
        """What the operator may have to change."""
        text = ""
        if isinstance(error, ConnectionClosed) and not self._client.speaks_tls:
            # A port that accepts only TLS closes plain connections silently.
            text = "; if it accepts TLS only, set useTLS=true"
        if self._known.listen is None and not isinstance(error, RemoteBusy):
            text += (
                f"; no nameserver shows the master, so it is asked at the port below "
                f"haMasterAddress={self._known.ha}, which must be its HA port (listenPort + 1)"
            )
        return text

    def _tick(self) -> None:
        known = MasterAddresses(*self._master())
        moved = any(
            bool(old and new and old != new) for old, new in zip(self._known, known, strict=True)
        )
        if moved and self._connection is not None:
            self._connection.close(Problem(f"the master is at {known.ha or known.listen} now"))

    def _log_once(self, level: int, text: str) -> None:
        # Offsets in the texts differ at each attempt.
        kind = re.sub(r"[0-9]+", "0", text)
        if kind not in self._logged:
            if len(self._logged) >= _LOGGED_MAX:
                self._logged.clear()
            self._logged.add(kind)
            log.log(level, "replication: %s", text)

    # -- hello -----------------------------------------------------------------------------------

    async def _link(self) -> _Link:
        """Raises RemotingError, ProtocolError or StoreError."""
        listen, ha = self._known
        if listen is None:
            host, port = parse_address(ha or "")
            listen = format_address(host, max(port - 1, 0))
        self._listen = listen
        host, port = parse_address(listen)
        self._address = ha or format_address(host, port + 1)
        offer = await self._say_hello(listen)
        if offer is None:
            return _Link(self._address, b"", await self._default_side(listen))
        if offer.token is None or offer.group is not None:
            raise ReplicationError(
                f"the master is an elected one of group {offer.group}: set haEtcdEndpoints here, "
                "too"
            )
        self._master_end = offer.log.end_offset
        side = self._side(offer)
        # The master may have another address for slaves (brokerIP2); the port is the one it named.
        ha_host = parse_address(ha)[0] if ha else host
        address = format_address(ha_host, offer.ha_port)
        return _Link(address, encode_opening(offer.token), side, offer)

    async def _connected(
        self, host: str, port: int, offer: Offer | None
    ) -> socket.socket | TlsSocket:
        timeout_s = self._times.request_s
        if offer is None:
            return await sockets.connected(host, port, timeout_s, Limits())
        return await connect_to_master(self._client, host, offer, timeout_s)

    async def _say_hello(self, listen: str) -> Offer | None:
        """None if the master does not know our protocol."""
        state = self._log_state()
        state = replace(state, tail=tail_of(self._store, state.file_bytes))
        request = hello.make_request(self._broker, state, self._version)
        response = await self._request(listen, request)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if response.code in _BUSY:
            raise RemoteBusy(f"{listen}: {response.remark} (response code {response.code})")
        if response.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"the master refuses this slave: {response.remark}")
        return hello.read_response(response)

    async def _request(self, address: str, request: Command) -> Command:
        return await self._client.request(address, request, int(self._times.request_s * 1000))

    def _log_state(self) -> LogState:
        store = self._store
        end = store.end_log_offset
        state = LogState(
            first_offset=store.first_log_offset,
            end_offset=end,
            file_bytes=store.config.mapped_file_size_commit_log,
            epochs=within_log(self._epochs.epochs, end),
            is_flushed=is_sync_flush(store),
        )
        if state.is_empty:
            # Entries of a log that is gone.
            self._epochs.save(())
        return state

    def _side(self, offer: Offer) -> SlaveSide:
        log_ = self._log_state()
        problem = hello.problem_with(offer, log_)
        if problem is not None:
            raise ReplicationError(problem)
        if not log_.is_empty:
            self._epochs.save(of_copy(log_.epochs, log_.end_offset, offer.log.epochs))
        return self._new_side(log_, is_ours=True)

    async def _default_side(self, listen: str) -> SlaveSide:
        log_ = self._log_state()
        if not log_.is_empty:
            await self._check_range(listen, log_)
        return self._new_side(log_, is_ours=False)

    def _new_side(self, log_: LogState, *, is_ours: bool) -> SlaveSide:
        return SlaveSide(
            None if log_.is_empty else log_.end_offset,
            log_.file_bytes,
            is_ours=is_ours,
            is_flushed=log_.is_flushed,
            epochs=self._epochs.epochs,
            report_interval_ms=int(self._times.report_s * 1000),
        )

    async def _check_range(self, listen: str, own: LogState) -> None:
        """Raises ReplicationError if Apache's master lacks the end of the own log.

        It would send heartbeats for ever, and count a larger end as acknowledged by this slave.
        """
        response = await self._request(listen, Command(code=RequestCode.GET_BROKER_RUNTIME_INFO))
        if response.code != ResponseCode.SUCCESS:
            return  # not allowed: then nothing is known
        table = bodies.decode(KVTable, response.body).table
        first, end = (table.get(f"commitLog{name}Offset", "") for name in ("Min", "Max"))
        if not (first.isdecimal() and end.isdecimal()):
            return
        self._master_end = int(end)
        if own.end_offset > int(end):
            raise ReplicationError(hello.ahead(own.end_offset, int(end)))
        if own.end_offset < int(first):
            raise ReplicationError(hello.gap(own.end_offset, int(first)))

    async def _wait_flushed(self) -> None:
        """With SYNC_FLUSH the first report acknowledges the whole log. Raises StoreError."""
        store, end = self._store, self._store.end_log_offset
        if not is_sync_flush(store) or store.flushed_log_offset >= end:
            return
        await asyncio.wrap_future(store.flushed(end))
