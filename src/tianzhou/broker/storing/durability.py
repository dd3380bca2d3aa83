"""When a stored message may be acknowledged: at once, or when it is on disk and on slaves.

    SYNC_FLUSH    the log is flushed up to its end; after syncFlushTimeout FLUSH_DISK_TIMEOUT
    SYNC_MASTER   enough slaves acknowledged its end; after slaveTimeout FLUSH_SLAVE_TIMEOUT
                  none is in reach when it is stored: SLAVE_NOT_AVAILABLE, without a wait for them

Both waits run in parallel, each with its time-out, and the response is sent when both have ended.
A bad result of replication has precedence over one of the flush, as in RocketMQ. In all of these
cases the message is stored.

A wait is for a log offset, never for a single message: it is a handler that awaits, or the encoded
responses of the fast path in one iteration of the event loop. Waits are in two queues, those for
slaves (and the disk) and those for the disk alone, both nearly in log order, and each is released
from its front. So sends after the loss of a slave do not wait for the time-out of those before it.
The code is decided at the release, by what is flushed and replicated then: SEND_OK is never sent
for less. An entry needs no timer of its own. Up to two flushes are requested from the store at a
time: while one runs the next is already requested, so the disk never waits for the event loop.

With automatic failover "enough slaves" are the counted set of the master's session (`in_sync.py`),
and the waits end with the session.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from tianzhou.broker.config import BrokerConfig, BrokerRole
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError, StoreError, WritesRefused
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, decode, encode, response_to
from tianzhou.protocol.kernel import split_frames
from tianzhou.remoting import error_responses
from tianzhou.remoting.connection import Connection
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import MessageStore

_REQUESTED_MAX = 2
_NOT_AWAITED = -math.inf

Outcome = StoreError | int
"""Why the flush failed, or the response code."""
Held = tuple[Connection, bytes, int]
"""Encoded responses with SUCCESS to one connection, and how many sends they are for."""


class Replicas(Protocol):
    """The slaves of this broker, as far as sends depend on them.

    `ha.progress.Acknowledgements` with fixed roles, `InSync` with automatic failover.
    """

    @property
    def replicated_log_offset(self) -> int:
        """Enough slaves have acknowledged the log up to here."""
        ...

    def are_in_reach(self, end_log_offset: int) -> bool:
        """Whether enough slaves are connected, and not too far behind this end of the log."""
        ...


class _Waiting(NamedTuple):
    log_offset: int
    flush_deadline_s: float
    """_NOT_AWAITED if it does not wait for the disk."""
    slave_deadline_s: float
    """_NOT_AWAITED if it does not wait for slaves."""
    lacks_slave: bool
    """SYNC_MASTER had no slave in reach when it was stored."""
    send_count: int
    end: Callable[[Outcome], None]

    def is_over(self, flushed: int, replicated: int, now_s: float) -> bool:
        return (self.log_offset <= flushed or self.flush_deadline_s <= now_s) and (
            self.log_offset <= replicated or self.slave_deadline_s <= now_s
        )

    def code(self, flushed: int, replicated: int) -> int:
        """The response code if the wait ends now."""
        if self.slave_deadline_s > _NOT_AWAITED and self.log_offset > replicated:
            return ResponseCode.FLUSH_SLAVE_TIMEOUT
        if self.lacks_slave:
            return ResponseCode.SLAVE_NOT_AVAILABLE
        if self.lacks_flush(flushed):
            return ResponseCode.FLUSH_DISK_TIMEOUT
        return ResponseCode.SUCCESS

    def lacks_flush(self, flushed: int) -> bool:
        return self.flush_deadline_s > _NOT_AWAITED and self.log_offset > flushed

    def next_deadline_s(self, now_s: float) -> float:
        """The first deadline after now."""
        if self.flush_deadline_s <= now_s:
            return self.slave_deadline_s
        if self.slave_deadline_s <= now_s:
            return self.flush_deadline_s
        return min(self.flush_deadline_s, self.slave_deadline_s)


class Durability:
    """Delays responses to sends until the durability of the settings is reached."""

    def __init__(
        self,
        store: MessageStore,
        settings: LiveSettings[BrokerConfig],
        replicas: Replicas | None = None,
    ) -> None:
        config = settings.config
        self._store = store
        self._settings = settings
        self.replicas = replicas
        """None while this broker has no port for slaves; set anew when its role changes."""
        self._waits_for_disk = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._flush_timeout_s = config.sync_flush_timeout / 1000
        self._slave_timeout_s = config.slave_timeout / 1000
        self._for_disk = deque[_Waiting]()
        self._for_slaves = deque[_Waiting]()
        self._for_confirmation = deque[tuple[int, asyncio.Future[Outcome]]]()
        """Copies that the broker stores, with automatic failover."""
        self._requested_count = 0
        self._last_log_offset = 0
        """The largest log offset that has to be flushed; a send that created its topic is out of
        order."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_over: StoreError | None = None
        """Why nothing is confirmed any more: the session of the master has ended."""
        self.waiting_count = 0
        """Sends that are waiting."""
        self.on_flushed: Callable[[], None] = lambda: None
        """Called on the event loop when a flush has ended, before waits are ended."""
        self.less_durable: dict[int, int] = {}
        """Messages that were stored although their send did not end with SUCCESS, by its code."""

    # -- sends -------------------------------------------------------------------------------------

    @property
    def may_wait(self) -> bool:
        """Whether sends can have to wait, or lack a slave; depends on the settings alone."""
        return self._waits_for_disk or self._is_sync_master

    def must_wait(self, *, wait_stored: bool) -> bool:
        """Whether the response to a send must wait; producers can opt out."""
        return wait_stored and (self._waits_for_disk or self._has_slaves())

    def code_at_once(self, *, wait_stored: bool) -> int:
        """The response code of a send that need not wait."""
        if wait_stored and self._is_sync_master:
            return ResponseCode.SLAVE_NOT_AVAILABLE
        return ResponseCode.SUCCESS

    def wait_for(self, end_log_offset: int) -> asyncio.Future[Outcome]:
        """Begin to wait until the log is durable up to there; `code_of` the result is the response.

        Call it before anything else can run after the append: a wait that began in a later session
        of the master would be for another message at the same log offset.
        """
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._wait(end_log_offset, 1, partial(_wake, future))
        return future

    async def stored(self, end_log_offset: int) -> int:
        """Wait until the log is durable up to there; returns the response code of the send.

        Raises RequestError if the disk failed.
        """
        return code_of(await self.wait_for(end_log_offset))

    def hold(self, held: Sequence[Held], end_log_offset: int) -> None:
        """Send encoded responses with SUCCESS once the log is durable up to there.

        If it does not become so they are sent with another code, and at once if none has to wait.
        """
        send_count = 0
        for connection, _, count in held:
            connection.hold(count)
            send_count += count
        self._wait(end_log_offset, send_count, partial(_respond, self.less_durable, held))

    # -- copies that the broker stores -------------------------------------------------------------

    async def secured(self, log_offset: int) -> None:
        """Wait until copies before there count as done in progress that is saved or handed out.

        The log is flushed so far, in SYNC_FLUSH or not, and slaves in reach of a SYNC_MASTER have
        acknowledged it or `slaveTimeout` is over. With automatic failover it is confirmed, however
        long that takes: no table may claim what a switch can remove (rule R11). Raises StoreError
        if the disk failed, or the session of the master ended before.
        """
        if self._store.shows_confirmed:
            flushed = asyncio.wrap_future(self._store.flushed(log_offset))
            outcome = await self._confirmed(log_offset)
            if isinstance(outcome, StoreError):
                if not flushed.cancel():  # it may never come: the log may be cut before
                    flushed.exception()
                raise outcome
            await flushed
            return
        replicated: asyncio.Future[Outcome] | None = None
        if self._has_slaves():
            loop = asyncio.get_running_loop()
            replicated = loop.create_future()
            deadline_s = loop.time() + self._slave_timeout_s
            end = partial(_wake, replicated)
            self._add(_Waiting(log_offset, _NOT_AWAITED, deadline_s, False, 0, end))
        await asyncio.wrap_future(self._store.flushed(log_offset))
        if replicated is not None:
            await replicated

    async def is_confirmed(self, log_offset: int, timeout_s: float) -> bool:
        """Wait until no switch can remove what lies before; False if that takes too long.

        With fixed roles there is nothing to wait for.
        """
        if not self._store.shows_confirmed:
            return True
        try:
            outcome = await asyncio.wait_for(self._confirmed(log_offset), timeout_s)
        except TimeoutError:
            return False
        return not isinstance(outcome, StoreError)

    def is_secured(self, log_offset: int, waited_ms: int) -> bool:
        """The same as a question, for copies that have been waited for so long."""
        if self._store.flushed_log_offset < log_offset:
            return False
        if self._store.shows_confirmed:
            return self._store.readable_log_offset >= log_offset
        return self._replicated() >= log_offset or (
            waited_ms >= self._slave_timeout_s * 1000 or not self._has_slaves()
        )

    # -- slaves ------------------------------------------------------------------------------------

    @property
    def _is_sync_master(self) -> bool:
        # Read each time: the role of a running broker changes.
        return self._settings.config.broker_role is BrokerRole.SYNC_MASTER

    def _has_slaves(self) -> bool:
        """Whether what is stored now has to be replicated."""
        replicas = self.replicas
        return (
            self._is_sync_master
            and replicas is not None
            and replicas.are_in_reach(self._store.end_log_offset)
        )

    def _replicated(self) -> int:
        return 0 if self.replicas is None else self.replicas.replicated_log_offset

    def replicas_advanced(self) -> None:
        """The replicated log offset has grown."""
        if self._for_slaves:
            self._release()

    def replicas_lost(self) -> None:
        """The set in force is too small from now on: sends that wait for it need not wait longer.

        They are stored here and not promised (SLAVE_NOT_AVAILABLE).
        """
        replicated = self._replicated()
        lacking = [
            each._replace(slave_deadline_s=_NOT_AWAITED, lacks_slave=True)
            for each in self._for_slaves
            if each.log_offset > replicated
        ]
        kept = [each for each in self._for_slaves if each.log_offset <= replicated]
        waits = sorted((*self._for_disk, *lacking), key=lambda waiting: waiting.log_offset)
        self._for_slaves, self._for_disk = deque(kept), deque(waits)
        self._release()

    def confirmed(self) -> None:
        """The confirm offset of the store has grown."""
        waits, readable = self._for_confirmation, self._store.readable_log_offset
        while waits and waits[0][0] <= readable:
            _wake(waits.popleft()[1], ResponseCode.SUCCESS)

    def begin_session(self, replicas: Replicas) -> None:
        """This broker is the master, and these replicas count, with automatic failover."""
        self.replicas = replicas
        self._is_over = None

    def end_session(self) -> None:
        """The session of the master ends: nothing that waits is acknowledged by a later one."""
        self.replicas = None
        for queue in (self._for_disk, self._for_slaves):
            while queue:
                self._end_first(queue, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        waits = self._for_confirmation
        self._for_confirmation = deque[tuple[int, asyncio.Future[Outcome]]]()
        self._is_over = StoreError("the broker is no longer the master that stored it")
        for _, future in waits:
            _wake(future, self._is_over)

    def expect_session(self) -> None:
        """The next session of this master is about to begin: what waits now is confirmed in it."""
        self._is_over = None

    def role_changed(self) -> None:
        """The role in which sends waited for slaves has ended: end these waits.

        What is not replicated by now is answered as after the time-out.
        """
        now_s = asyncio.get_running_loop().time()
        self._for_slaves = deque(
            waiting._replace(slave_deadline_s=min(waiting.slave_deadline_s, now_s))
            for waiting in self._for_slaves
        )
        self._release()

    # -- queues ------------------------------------------------------------------------------------

    def _confirmed(self, log_offset: int) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if log_offset <= self._store.readable_log_offset:
            future.set_result(ResponseCode.SUCCESS)
        elif self._is_over is not None:
            future.set_result(self._is_over)
        else:
            self._for_confirmation.append((log_offset, future))
        return future

    def _wait(self, log_offset: int, send_count: int, end: Callable[[Outcome], None]) -> None:
        now_s = asyncio.get_running_loop().time()
        is_sync_master = self._is_sync_master
        has_slaves = is_sync_master and self._has_slaves()
        waiting = _Waiting(
            log_offset,
            now_s + self._flush_timeout_s if self._waits_for_disk else _NOT_AWAITED,
            now_s + self._slave_timeout_s if has_slaves else _NOT_AWAITED,
            is_sync_master and not has_slaves,
            send_count,
            end,
        )
        if self._waits_for_disk or has_slaves:
            self._add(waiting)
        else:
            end(waiting.code(log_offset, log_offset))

    def _add(self, waiting: _Waiting) -> None:
        waits_for_slaves = waiting.slave_deadline_s > _NOT_AWAITED
        (self._for_slaves if waits_for_slaves else self._for_disk).append(waiting)
        self.waiting_count += waiting.send_count
        self._expire_by(waiting.next_deadline_s(_NOT_AWAITED))
        flushed = self._store.flushed_log_offset
        if waiting.lacks_flush(flushed):
            self._last_log_offset = max(self._last_log_offset, waiting.log_offset)
            if self._requested_count < _REQUESTED_MAX:
                self._request_flush()
        elif waiting.is_over(flushed, self._replicated(), _NOT_AWAITED):
            # Disk and slaves were faster than the save of a new topic: nothing else releases it.
            self._release()

    def _request_flush(self) -> None:
        self._requested_count += 1
        loop = asyncio.get_running_loop()

        def on_flushed(failure: StoreError | None) -> None:
            # The store calls back in its flush thread.
            loop.call_soon_threadsafe(self._flush_ended, failure)

        self._store.when_flushed(self._last_log_offset, on_flushed)

    def _flush_ended(self, failure: StoreError | None) -> None:
        self._requested_count -= 1
        if failure is not None:
            self._end_unflushed(failure)
        self.on_flushed()
        self._release()

    def _end_unflushed(self, failure: StoreError) -> None:
        """The disk failed: what is not flushed by now never will be."""
        flushed = self._last_log_offset = self._store.flushed_log_offset
        for queue in (self._for_disk, self._for_slaves):
            for _ in range(len(queue)):
                if queue[0].lacks_flush(flushed):
                    self._end_first(queue, failure)
                else:
                    queue.rotate(-1)

    def _release(self) -> None:
        """End the waits that are over, up to the first of each queue that is not."""
        flushed, replicated = self._store.flushed_log_offset, self._replicated()
        now_s = asyncio.get_running_loop().time()
        for queue in (self._for_disk, self._for_slaves):
            while queue and queue[0].is_over(flushed, replicated, now_s):
                self._end_first(queue, queue[0].code(flushed, replicated))
            if queue:
                self._expire_by(queue[0].next_deadline_s(now_s))
        is_waiting = self._for_disk or self._for_slaves
        if (
            is_waiting
            and self._last_log_offset > flushed
            and self._requested_count < _REQUESTED_MAX
        ):
            self._request_flush()

    def _end_first(self, queue: deque[_Waiting], outcome: Outcome) -> None:
        first = queue.popleft()
        self.waiting_count -= first.send_count
        first.end(outcome)

    def _expire_by(self, deadline_s: float) -> None:
        """Call `_expire` at this time, or earlier."""
        if self._timer is not None:
            if self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._release()


def code_of(outcome: Outcome) -> int:
    """The response code of a wait that ended. Raises RequestError if the disk failed."""
    if isinstance(outcome, StoreError):
        raise not_stored(outcome)
    return outcome


def not_stored(failure: StoreError) -> RequestError:
    """The response to a request whose message the store refuses."""
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    return RequestError(failure.code if isinstance(failure, WritesRefused) else code, str(failure))


def _wake(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():  # the handler may have been cancelled
        future.set_result(outcome)


def _respond(less_durable: dict[int, int], held: Sequence[Held], outcome: Outcome) -> None:
    for connection, frames, send_count in held:
        if outcome != ResponseCode.SUCCESS:
            frames = with_outcome(frames, outcome)
            if not isinstance(outcome, StoreError):
                less_durable[outcome] = less_durable.get(outcome, 0) + send_count
        connection.release(send_count, frames)


def with_outcome(frames: bytes, outcome: Outcome) -> bytes:
    """Encoded responses, those to sends with another outcome than SUCCESS."""
    bounds, _ = split_frames(frames, len(frames))
    responses: list[bytes] = []
    for start, stop in bounds:
        response = decode(frames[start:stop])
        is_send = "msgId" in response.fields
        responses.append(encode(_changed(response, outcome)) if is_send else frames[start:stop])
    return b"".join(responses)


def _changed(response: Command, outcome: Outcome) -> Command:
    """The response in place of SUCCESS."""
    if isinstance(outcome, StoreError):
        refusal = error_responses.refusal(not_stored(outcome))
        return response_to(response, refusal.code, remark=refusal.remark)
    response.code = outcome
    return response
