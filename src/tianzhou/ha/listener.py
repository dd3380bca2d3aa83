"""The HA port of a master: accepts slaves, receives their reports, closes them.

`log_sender` sends them the log, `master_side` decides what a peer may do, `progress` what counts as
replicated. A peer costs a socket and a few bytes until its first report; there are few connections,
and of those without a report even fewer, so that slaves always find a free one.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tianzhou.clock import Clock, steady_ms
from tianzhou.ha.handshakes import Handshakes
from tianzhou.ha.log_sender import LogSender, SlaveConnection
from tianzhou.ha.master_side import (
    FIXED_EPOCH,
    EpochRange,
    MasterSide,
    Rules,
    SlaveRefused,
    SlaveState,
)
from tianzhou.ha.progress import Followers
from tianzhou.ha.tokens import Hello, Tokens
from tianzhou.limits import HA_CONNECTIONS_MAX, HA_SILENT_MAX, HA_TOKEN_MS, HA_TOKENS_MAX
from tianzhou.remoting.address import format_address, host_of
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.log_rate_limit import LogRateLimit
from tianzhou.remoting.quota.addresses import Matches, parse_host, parse_pattern
from tianzhou.remoting.repeated_failures import RepeatedFailures
from tianzhou.remoting.sockets import listening, set_options
from tianzhou.remoting.tls.tls_socket import TlsSocket
from tianzhou.store.reading import StoreReader

log = logging.getLogger(__name__)

_RECEIVE_BYTES: Final = 4096
_ACCEPTS_PER_ITERATION: Final = 16
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S: Final = 0.5
_REFUSED_MAX: Final = 64
_REFUSED_MS: Final = 60_000
_DISPLACED_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class SlaveStatus:
    """A connection to the HA port, for operators."""

    address: str
    name: str
    """`id:3` for a slave of ours, the host for one of Apache's."""
    is_ours: bool
    state: SlaveState
    position: int
    """Log offset up to which the log was sent."""
    reported: int
    """The end of its log that the slave reported."""
    acknowledged: int
    bytes_per_second: int
    problem: str | None = None


def allowed_addresses(text: str) -> Callable[[str], bool]:
    """Whether a host is in a list of patterns separated by ';'. Raises ConfigError."""
    matchers: list[Matches] = [parse_pattern(part) for part in text.split(";")]

    def allows(host: str) -> bool:
        address = parse_host(host)
        return address is not None and any(matches(address) for matches in matchers)

    return allows


class Listener:
    """The HA port; used on the event loop that it is started on."""

    def __init__(
        self,
        store: StoreReader,
        acknowledgements: Followers,
        *,
        rules: Rules = Rules(),  # noqa: B008 - frozen
        bytes_per_second: int | None = None,
        allows_default: Callable[[str], bool] = lambda host: True,
        epoch_at: Callable[[int], EpochRange] = lambda log_offset: FIXED_EPOCH,
        confirm_offset: Callable[[], int] = lambda: -1,
        may_heartbeat: Callable[[], bool] = lambda: True,
        on_handover_asked: Callable[[int], None] = lambda broker_id: None,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        is_tls_enforced: bool = False,
        connections_max: int = HA_CONNECTIONS_MAX,
        silent_max: int = HA_SILENT_MAX,
        token_ms: int = HA_TOKEN_MS,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        clock: Clock = steady_ms,
    ) -> None:
        """`bytes_per_second` limits what all slaves together get of the log.

        `allows_default` admits hosts to default HA; slaves of ours need a token instead.
        `epoch_at` returns the epoch of a log offset. Without `may_heartbeat` no heartbeats are
        sent. `on_handover_asked`: a slave of ours asks to take over. `tls`: see `Handshakes`.
        """
        self._acknowledgements = acknowledgements
        self._rules = rules
        self._allows_default = allows_default
        self._epoch_at = epoch_at
        self._confirm_offset = confirm_offset
        self._may_heartbeat = may_heartbeat
        self._on_handover_asked = on_handover_asked
        self._is_tls_enforced = is_tls_enforced
        self._handshakes = Handshakes(tls, clock, self._ready, self._drop_bad)
        self._slaves_max = connections_max - silent_max
        self._silent_max = silent_max
        self._limits = limits
        self._clock = clock
        self._tokens = Tokens(HA_TOKENS_MAX, token_ms)
        self._sender = LogSender(
            store, bytes_per_second, clock, on_lost=self._drop, on_refused=self._refuse,
            on_problem=self._cannot_follow, wake_by=self._wake_by,
        )  # fmt: skip
        self.announced: Callable[[], Iterable[tuple[str, bytes]]] = lambda: ()
        """The lines, by entry, that a slave of ours gets before anything of the log."""
        self._listening: list[socket.socket] = []
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        self._connections: dict[SlaveConnection, None] = {}
        """In the order of their arrival."""
        self._flush_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._refused: OrderedDict[str, tuple[int, SlaveStatus]] = OrderedDict()
        """Slaves that were refused of late, and when."""
        self._repeats = RepeatedFailures()
        self._log_limit = LogRateLimit()

    # -- starting and stopping ---------------------------------------------------------------------

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises RemotingError."""
        self._loop = asyncio.get_running_loop()
        self._sender.start()
        self._listening = await listening(host, port, self._limits.backlog)
        for sock in self._listening:
            self._loop.add_reader(sock.fileno(), self._accept, sock)
        chosen: int = self._listening[0].getsockname()[1]
        return chosen

    async def stop(self) -> None:
        """Close the port and all connections."""
        for sock in self._listening:
            if (retry := self._retries.pop(sock, None)) is not None:
                retry.cancel()
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._listening = []
        self.disconnect_all("the HA port is closed")
        self._sender.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def disconnect_all(self, reason: str) -> None:
        """Close all connections, and make all tokens invalid."""
        self._tokens.clear()
        for connection in tuple(self._connections):
            self._drop(connection, reason)

    # -- for the broker ----------------------------------------------------------------------------

    def displaced_by(self, hello: Hello) -> str | None:
        """The address of a connected slave that has taken the brokerId of this one's store.

        Otherwise two slaves with one id would replace each other for ever.
        """
        for each in self._connections:
            own = each.side.hello
            if own is not None and own.broker_id == hello.broker_id and each.is_counted:
                return each.peer if hello.store_id in each.displaced else None
        return None

    def issue_token(self, hello: Hello) -> bytes:
        """The token with which the slave of a checked hello may connect, once."""
        return self._tokens.issue(hello, self._clock())

    def agree(self, broker_id: int, epoch: int) -> None:
        """Let a slave of ours take over from an epoch; nothing if it is not connected."""
        for connection in self._of(broker_id):
            connection.side.agree(epoch)
            self._sender.send(connection)

    def disconnect(self, broker_id: int, reason: str) -> None:
        """Close the connections of a slave of ours."""
        for connection in self._of(broker_id):
            self._drop_bad(connection, reason)

    def _of(self, broker_id: int) -> list[SlaveConnection]:
        return [
            each
            for each in self._connections
            if each.is_counted and each.side.hello and each.side.hello.broker_id == broker_id
        ]

    def announce(self, entry: str, line: bytes) -> None:
        """Send a line about a changed entry to slaves of ours, before what is stored from now on.

        It replaces one about the same entry that was not sent yet.
        """
        for connection in self._connections:
            connection.side.announce(entry, line)
        self.log_grew()

    def log_grew(self) -> None:
        """Send the new bytes at the end of this loop iteration."""
        if self._connections and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def confirmed(self) -> None:
        """Slaves in default HA, which are readers, get what is confirmed by now."""
        if any(each.side.is_started and not each.side.is_ours for each in self._connections):
            self.log_grew()

    def _flush(self) -> None:
        """The log has grown in this loop iteration."""
        self._flush_is_due = False
        for connection in tuple(self._connections):
            self._sender.send_idle(connection)

    def status(self) -> list[SlaveStatus]:
        """All connections, and slaves that were refused in the last minute."""
        now_ms, bounds = self._clock(), self._sender.bounds()
        connected = [
            self._status(each, each.side.state(bounds), each.side.problem)
            for each in self._connections
        ]
        names = {each.name for each in connected}
        return connected + [
            refused
            for since_ms, refused in self._refused.values()
            if refused.name not in names and now_ms - since_ms < _REFUSED_MS
        ]

    def _status(
        self, connection: SlaveConnection, state: SlaveState, problem: str | None
    ) -> SlaveStatus:
        side = connection.side
        return SlaveStatus(
            address=connection.peer, name=side.name, is_ours=side.is_ours, state=state,
            position=side.sent_log_offset, reported=side.reported, acknowledged=side.acknowledged,
            bytes_per_second=side.bytes_per_second(self._clock()), problem=problem,
        )  # fmt: skip

    def note_refused(self, name: str, address: str, reported: int, why: str) -> None:
        """Show and log a slave that was refused before it connected."""
        status = SlaveStatus(
            address=address, name=name, is_ours=True, state=SlaveState.REFUSED, position=0,
            reported=reported, acknowledged=0, bytes_per_second=0, problem=why,
        )  # fmt: skip
        self._add_refused(status)
        self._warn(("refused", host_of(address)), f"slave {name} at {address}: refused, {why}")

    def _add_refused(self, status: SlaveStatus) -> None:
        self._refused[status.name] = (self._clock(), status)
        self._refused.move_to_end(status.name)
        if len(self._refused) > _REFUSED_MAX:
            self._refused.popitem(last=False)

    # -- accepting ---------------------------------------------------------------------------------

    def _accept(self, listening_socket: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_ITERATION):
            try:
                sock, address = listening_socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause(listening_socket, error)
                    return
                log.debug("HA port: accepting failed: %s", error)
                continue
            self._admit(sock, format_address(address[0], address[1]))

    def _pause(self, sock: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment: the socket stays readable, so the loop would spin."""
        self._warn("accepting failed", f"no more connections can be accepted: {error.strerror}")
        self._loop.remove_reader(sock.fileno())
        self._retries[sock] = self._loop.call_later(_RETRY_S, self._resume, sock)

    def _resume(self, sock: socket.socket) -> None:
        del self._retries[sock]
        self._loop.add_reader(sock.fileno(), self._accept, sock)

    def _admit(self, sock: socket.socket, peer: str) -> None:
        try:
            sock.setblocking(False)
            set_options(sock, self._limits)
        except OSError as error:
            log.debug("HA connection %s: gone at once: %s", peer, error)
            sock.close()
            return
        self._limit_silent()
        side = MasterSide(
            host_of(peer), self._rules, self._clock(),
            redeem=lambda token: self._tokens.redeem(token, self._clock()),
            allows_default=self._allows_default, epoch_at=self._epoch_at,
            confirm_offset=self._confirm_offset, may_heartbeat=self._may_heartbeat,
        )  # fmt: skip
        connection = SlaveConnection(sock, peer, side)
        self._connections[connection] = None
        self._handshakes.begin(connection)
        self._wake_by(side.due_ms())

    def _ready(self, connection: SlaveConnection) -> None:
        """The peer speaks plain text, or TLS from now on; some of it may be there."""
        has_tls = isinstance(connection.sock, TlsSocket)
        connection.side.lacks_tls = self._is_tls_enforced and not has_tls
        connection.on_readable = self._receive
        self._loop.add_reader(connection.sock.fileno(), self._receive, connection)
        if has_tls:
            self._receive(connection)

    def _limit_silent(self) -> None:
        """Before a new connection: close one without a report if there are too many."""
        silent = [each for each in self._connections if not each.is_counted]
        if len(silent) < self._silent_max:
            return
        for each in silent:  # their reports may have arrived
            each.on_readable(each)
        silent = [each for each in silent if each in self._connections and not each.is_counted]
        if len(silent) < self._silent_max:
            return
        self._drop_bad(_oldest_of_one_host(silent), "it sent no report, and others are waiting")

    # -- receiving ---------------------------------------------------------------------------------

    def _receive(self, connection: SlaveConnection) -> None:
        try:
            data = connection.sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._drop(connection, f"the connection was lost: {error.strerror}")
            return
        if not data:
            self._drop(connection, "the slave has closed the connection")
            return
        side = connection.side
        try:
            side.receive(data, self._sender.bounds(), self._clock())
        except SlaveRefused as refusal:
            self._refuse(connection, refusal)
            return
        if not side.is_started:
            self._wake_by(side.due_ms())
        elif not connection.is_counted:
            self._begin(connection)
        elif side.problem is None:
            self._acknowledgements.report(connection, side.reported, side.acknowledged)
            if side.asks_handover and side.hello is not None:
                side.asks_handover = False
                self._on_handover_asked(side.hello.broker_id)

    def _begin(self, connection: SlaveConnection) -> None:
        """The first report of a connection was accepted."""
        side = connection.side
        if not self._has_free_slot(connection):
            text = f"{self._slaves_max} slaves are connected, the limit"
            # Anything can be a slave by default HA; one of ours has said hello.
            others = [each for each in self._connections if each.is_counted and not each.side.hello]
            if not side.is_ours or not others:
                self._drop_bad(connection, text)
                return
            self._drop_bad(_oldest_of_one_host(others), f"{text}, and one of Tianzhou connects")
        connection.is_counted = True
        if side.problem is not None:
            self._cannot_follow(connection)
        else:
            self._refused.pop(side.name, None)
            self._count(connection)
            for entry, line in self.announced() if side.is_ours else ():
                side.announce(entry, line)
            log.info(
                "HA connection %s: slave %s, %s, gets the log from %d on", connection.peer,
                side.name, "Tianzhou" if side.is_ours else "default HA", side.next_log_offset,
            )  # fmt: skip
        self._wake_by(side.due_ms())
        self._sender.send(connection)

    def _cannot_follow(self, connection: SlaveConnection) -> None:
        """The slave stays connected and does not count."""
        side = connection.side
        self._acknowledgements.disconnected(connection)
        self._warn(("problem", side.name), f"slave {side.name} cannot follow: {side.problem}")

    def _has_free_slot(self, connection: SlaveConnection) -> bool:
        """Whether there are few enough slaves; one that connects again takes its own slot."""
        others = [each for each in self._connections if each.is_counted]
        if len(others) < self._slaves_max:
            return True
        side = connection.side
        return side.is_ours and any(each.side.name == side.name for each in others)

    def _count(self, connection: SlaveConnection) -> None:
        side = connection.side
        replaced = self._acknowledgements.connected(
            connection, side.name, side.reported, side.acknowledged, is_exclusive=side.is_ours
        )
        for other in replaced:
            assert isinstance(other, SlaveConnection)
            self._displace(other, connection)
            self._drop(other, f"replaced by a new connection, {connection.peer}")

    def _displace(self, other: SlaveConnection, connection: SlaveConnection) -> None:
        """The new connection of an id may be of another store: the id was given twice, or the disk
        was replaced."""
        before, now = other.side.hello, connection.side.hello
        if before is None or now is None:
            return
        stores = (other.displaced | {before.store_id}) - {now.store_id}
        connection.displaced = stores if len(stores) <= _DISPLACED_MAX else frozenset()
        if before.store_id != now.store_id:
            self._warn(
                ("displaced", now.broker_id),
                f"HA connection {connection.peer} takes the brokerId {now.broker_id} of the slave "
                f"at {other.peer}, which has another store and is refused from now on: if both "
                "are in use, give each a brokerId of its own",
            )

    # -- closing -----------------------------------------------------------------------------------

    def _refuse(self, connection: SlaveConnection, refusal: SlaveRefused) -> None:
        """Close the connection of a peer that no connection can help."""
        if refusal.is_slave:
            self._add_refused(self._status(connection, SlaveState.REFUSED, str(refusal)))
        self._drop_bad(connection, str(refusal))

    def _drop_bad(self, connection: SlaveConnection, why: str) -> None:
        """Close a connection that did something wrong; logged once a minute for each address."""
        self._warn(connection.host, f"HA connection {connection.peer} is closed: {why}")
        self._drop(connection, why)

    def _drop(self, connection: SlaveConnection, why: str) -> None:
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._acknowledgements.disconnected(connection)
        self._sender.forget(connection)
        self._loop.remove_reader(connection.sock.fileno())
        connection.sock.close()
        level = logging.INFO if connection.is_counted else logging.DEBUG
        log.log(level, "HA connection %s is closed: %s", connection.peer, why)

    def _warn(self, kind: object, text: str) -> None:
        ending = self._repeats.ending(("ha", kind), self._loop.time())
        if ending is not None and (more := self._log_limit.ending()) is not None:
            log.warning("%s%s%s", text, ending, more)

    # -- time --------------------------------------------------------------------------------------

    def _wake_by(self, due_ms: int) -> None:
        """Make the timer fire at that time at the latest."""
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        wait_s = max(due_ms - self._clock(), 0) / 1000
        self._timer = self._loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        """Close connections that are overdue, send heartbeats that are due.

        Event loops read before they run timers, so no report is overlooked after a long callback.
        """
        self._timer = None
        now_ms = self._clock()
        for connection in tuple(self._connections):
            reason = connection.side.overdue(now_ms)
            if reason is not None:
                self._drop_bad(connection, reason)
            elif not connection.is_writing:
                self._sender.send(connection)  # a heartbeat is not held back by the rate limit
        if self._connections:
            due_ms = min(each.side.due_ms() for each in self._connections)
            self._wake_by(max(due_ms, now_ms + 1))


def _oldest_of_one_host(connections: list[SlaveConnection]) -> SlaveConnection:
    """The first connection of the host that has most of them."""
    (host, _), = Counter(each.host for each in connections).most_common(1)  # fmt: skip
    return next(each for each in connections if each.host == host)
