"""A slave of an elected master: does what the role state machine says, step by step.

    follow        hellos to that master until it answers        -> `offered`
    open_stream   the offer was accepted: HA connection, reports  -> `heard`, `disconnected`
    stop          no report leaves after it has returned

Whether a master may be followed, and what of the own log has to be cut first, is decided between
the hello and the connection, by the state machine: here is only the sequence. When the connection
ends, and the host of the master refuses three attempts to connect again within 300 ms, the process
of the master is gone: `refused`.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from tianzhou.errors import ProtocolError, RemoteBusy, RemotingError, ReplicationError, StoreError
from tianzhou.ha import elected_hello, hello
from tianzhou.ha.epochs import EpochFile, of_copy, within_log
from tianzhou.ha.follower import FollowerStatus
from tianzhou.ha.frames import encode_opening
from tianzhou.ha.hello import Broker, LogState, Membership, Offer
from tianzhou.ha.log_tail import EMPTY_TAIL, tail_of
from tianzhou.ha.master_connection import (
    MasterConnection,
    Problem,
    ReplicaStore,
    Times,
    connect_to_master,
    is_sync_flush,
)
from tianzhou.ha.slave_side import SlaveSide
from tianzhou.protocol.codes import ResponseCode
from tianzhou.remoting import sockets
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client
from tianzhou.remoting.limits import Limits

log = logging.getLogger(__name__)

_REFUSED_ATTEMPTS = 3
_ATTEMPT_S = 0.1
_HEARD_S = 0.05
"""Between two calls of `heard` while the confirm offset changes all the time."""
_HEARTBEAT_S = 0.4
_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY)
_LOGGED_MAX = 100


class Target(NamedTuple):
    """The master to follow."""

    id: int
    listen: str
    ha_host: str
    """Where its HA port is; the port is in its answer to the hello."""


class Observer(Protocol):
    """What is called when something happens; never while `stop` runs or after it."""

    def offered(self, target: Target, offer: Offer, log_state: LogState) -> None:
        """The master has answered the hello in which this log was described."""
        ...

    def connected(self) -> None:
        """The HA connection is open."""
        ...

    def received(self, confirm_offset: int) -> None:
        """Bytes or a heartbeat of the master came in, and are appended."""
        ...

    def announced(self, lines: bytes) -> None:
        """The master has changed entries of its tables. Raises ReplicationError."""
        ...

    def heard(self, confirm_offset: int) -> None:
        """The same, not more often than the role state machine needs it."""
        ...

    def agreed(self, epoch: int) -> None:
        """The master lets this slave take over from its epoch."""
        ...

    def disconnected(self, why: str) -> None:
        """The connection ended, or could not be made; it is tried again."""
        ...

    def refused(self) -> None:
        """The host of the master refuses connections to the HA port, after a connection ended."""
        ...


class ElectedFollower:
    """Connects to one master at a time."""

    def __init__(
        self,
        store: ReplicaStore,
        epochs: EpochFile,
        client: Client,
        observer: Observer,
        *,
        times: Times = Times(),  # noqa: B008 - frozen
        version: str = "",
    ) -> None:
        """`client` is used for the hello, with the credentials of this broker; it stays open."""
        self._store = store
        self._epochs = epochs
        self._client = client
        self._observer = observer
        self._times = times
        self._version = version
        self._task: asyncio.Task[None] | None = None
        self._connection: MasterConnection | None = None
        self._accepted: asyncio.Future[int] | None = None
        self._target: Target | None = None
        self._address = ""
        self._state = "stopped"
        self._problem: str | None = None
        self._master_end = 0
        self._heard_s = 0.0
        self._confirm_offset = -1
        self._lost: tuple[str, int] | None = None
        """The HA port of the last connection, until the master answers a hello again."""
        self._logged: set[str] = set()

    # -- what the state machine says ---------------------------------------------------------------

    def follow(self, target: Target, own: Broker, member: Callable[[], Membership]) -> None:
        """Begin to send hellos, each with what `member` returns then; only after `stop`."""
        assert self._task is None, "one master at a time"
        self._target = target
        self._logged.clear()
        self._task = asyncio.get_running_loop().create_task(self._run(target, own, member))

    def open_stream(self, epoch: int) -> None:
        """Connect to the master that has offered this epoch; no effect if that is over."""
        accepted = self._accepted
        if accepted is not None and not accepted.done():
            accepted.set_result(epoch)

    def ask_handover(self) -> None:
        """Ask the master on the open connection to hand over."""
        if self._connection is not None:
            self._connection.ask_handover()

    async def stop(self) -> None:
        """Close the connection; nothing is appended, reported or observed after that."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        self._target = None
        self._state = "stopped"

    # -- status ------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether the HA connection is open."""
        return self._connection is not None

    @property
    def listen_address(self) -> str | None:
        """Where the master listens for requests."""
        return self._target.listen if self._target else None

    def status(self) -> FollowerStatus:
        """The present state, for operators."""
        connection = self._connection
        state, problem = self._state, self._problem
        if connection is not None and connection.refusal is not None:
            state, problem = "paused", str(connection.refusal)
        elif connection is not None:
            problem = None
        side = connection.side if connection else None
        return FollowerStatus(
            master_address=self._address,
            state=state,
            problem=problem,
            is_ours=True,
            bytes_per_second=connection.bytes_per_second if connection else 0.0,
            last_read_ms=connection.last_read_ms if connection else 0,
            last_write_ms=connection.last_write_ms if connection else 0,
            end_log_offset=self._store.end_log_offset,
            master_end=max(self._master_end, side.master_end if side else 0),
        )

    # -- attempts ----------------------------------------------------------------------------------

    async def _run(self, target: Target, own: Broker, member: Callable[[], Membership]) -> None:
        while True:
            problem = await self._attempt(target, own, member)
            self._problem = problem.text
            self._state = "waiting to connect again"
            self._log_once(logging.WARNING, f"master {target.listen}: {problem.text}")
            self._observer.disconnected(problem.text)
            if self._lost is not None and await _refuses(*self._lost):
                self._observer.refused()
            times = self._times
            await asyncio.sleep(times.lasting_retry_s if problem.is_lasting else times.retry_s)

    async def _attempt(
        self, target: Target, own: Broker, member: Callable[[], Membership]
    ) -> Problem:
        """One hello and what follows; returns why it ended."""
        self._state = "connecting"
        try:
            await self._wait_flushed()
            offer, state = await self._say_hello(target, own, member())
            self._lost, self._master_end = None, offer.log.end_offset
            self._accepted = asyncio.get_running_loop().create_future()
            self._observer.offered(target, offer, state)
            epoch = await self._accepted
            if offer.token is None or self._log_state() != replace(state, tail=EMPTY_TAIL):
                # The log was cut since, so the token is for another log.
                await self._wait_flushed()
                offer, state = await self._say_hello(target, own, member())
            if offer.epoch != epoch or offer.token is None:
                return Problem("the master began another epoch after it had answered the hello")
            return await self._stream(target, offer, state)
        except ProtocolError as error:
            return Problem(str(error), is_lasting=True)
        except RemotingError as error:
            return Problem(f"the master cannot be reached: {error}")
        except StoreError as error:
            return Problem(f"the store refuses the master's log: {error}", is_lasting=True)
        except OSError as error:
            cause = sockets.cause_of(error)
            return Problem(f"the master's HA port {self._address} cannot be reached: {cause}")
        except Exception as error:
            log.exception("replication: an attempt to follow the master failed")
            return Problem(f"internal error: {error!r}", is_lasting=True)

    async def _say_hello(
        self, target: Target, own: Broker, member: Membership
    ) -> tuple[Offer, LogState]:
        state = self._log_state()
        state = replace(state, tail=tail_of(self._store, state.file_bytes))
        request = hello.make_request(own, state, self._version, member)
        timeout_ms = int(self._times.request_s * 1000)
        response = await self._client.request(target.listen, request, timeout_ms)
        if response.code in _BUSY:
            raise RemoteBusy(f"{response.remark} (response code {response.code})")
        if response.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"the master refuses this slave: {response.remark}")
        offer = hello.read_response(response)
        problem = elected_hello.problem_with(offer, member, state)
        if problem is not None:
            raise ReplicationError(problem)
        return offer, state

    async def _stream(self, target: Target, offer: Offer, state: LogState) -> Problem:
        assert offer.token is not None
        self._address = format_address(target.ha_host, offer.ha_port)
        side = self._side(offer, state)
        sock = await connect_to_master(self._client, target.ha_host, offer, self._times.request_s)
        connection = MasterConnection(
            sock, side, self._store, self._epochs, self._times, lambda: None, self._received,
            self._observer.announced,
        )  # fmt: skip
        self._connection = connection
        self._confirm_offset, self._heard_s = -1, 0.0
        try:
            connection.start(encode_opening(offer.token))
            self._state = "following"
            self._log_once(
                logging.INFO,
                f"master {target.listen}: connected, epoch {offer.epoch}, the log here ends at "
                f"{self._store.end_log_offset}",
            )
            self._observer.connected()
            problem = await asyncio.shield(connection.ended)
            # What it has confirmed counts, also if it is gone.
            self._observer.heard(side.confirm_offset)
            self._lost = (target.ha_host, offer.ha_port)
            return problem
        finally:
            connection.close(Problem("stopped"))
            self._master_end = max(self._master_end, side.master_end)
            self._connection = None

    # -- the log -----------------------------------------------------------------------------------

    def _log_state(self) -> LogState:
        store = self._store
        end = store.end_log_offset
        return LogState(
            first_offset=store.first_log_offset,
            end_offset=end,
            file_bytes=store.config.mapped_file_size_commit_log,
            epochs=within_log(self._epochs.epochs, end),
            is_flushed=is_sync_flush(store),
        )

    def _side(self, offer: Offer, state: LogState) -> SlaveSide:
        if state.is_empty:
            self._epochs.save(())  # entries of a log that is gone
        else:
            self._epochs.save(of_copy(state.epochs, state.end_offset, offer.log.epochs))
        return SlaveSide(
            None if state.is_empty else state.end_offset,
            state.file_bytes,
            is_ours=True,
            is_flushed=state.is_flushed,
            epochs=self._epochs.epochs,
            report_interval_ms=int(self._times.report_s * 1000),
        )

    async def _wait_flushed(self) -> None:
        """With SYNC_FLUSH the first report acknowledges the whole log. Raises StoreError."""
        store, end = self._store, self._store.end_log_offset
        if is_sync_flush(store) and store.flushed_log_offset < end:
            await asyncio.wrap_future(store.flushed(end))

    # -- observing ---------------------------------------------------------------------------------

    def _received(self, connection: MasterConnection) -> None:
        """Called after each receive; a busy master is not observed thousands of times a second."""
        side = connection.side
        self._observer.received(side.confirm_offset)
        now_s = asyncio.get_running_loop().time()
        is_news = side.confirm_offset != self._confirm_offset
        if now_s - self._heard_s >= (_HEARD_S if is_news else _HEARTBEAT_S):
            self._heard_s, self._confirm_offset = now_s, side.confirm_offset
            self._observer.heard(side.confirm_offset)
        if side.agreed_epoch is not None:
            epoch, side.agreed_epoch = side.agreed_epoch, None
            self._observer.heard(side.confirm_offset)
            self._observer.agreed(epoch)

    def _log_once(self, level: int, text: str) -> None:
        # Offsets in the texts differ at each attempt.
        kind = re.sub(r"[0-9]+", "0", text)
        if kind not in self._logged:
            if len(self._logged) >= _LOGGED_MAX:
                self._logged.clear()
            self._logged.add(kind)
            log.log(level, "replication: %s", text)


async def _refuses(host: str, port: int) -> bool:
    """Whether connections are refused, as after the end of a process; a time-out is none."""
    for _ in range(_REFUSED_ATTEMPTS):
        began_s = asyncio.get_running_loop().time()
        try:
            (await sockets.connected(host, port, _ATTEMPT_S, Limits())).close()
        except ConnectionRefusedError:
            pass
        except OSError:
            return False
        else:
            return False
        await asyncio.sleep(_ATTEMPT_S * 0.9 - (asyncio.get_running_loop().time() - began_s))
    return True
