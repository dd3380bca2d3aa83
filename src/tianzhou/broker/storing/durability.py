"""When a stored message may be acknowledged: at once, or once the disk and a slave have it.

Whoever waits for the disk stands in one line, in the order of the log or nearly so: handlers that
await, and blocks of answers that the hot path has ready. A place in the line costs no timer. The
store is asked to tell when the log is flushed up to a place, twice at a time: while one flush runs
the next one is ordered already, so the disk never waits for the loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tianzhou.broker.config import BrokerRole
from tianzhou.errors import RequestError, StoreError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, decode, encode, response_to
from tianzhou.protocol.framing import split
from tianzhou.remoting import error_responses
from tianzhou.remoting.connection import Connection
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import MessageStore

_ASKED_MAX = 2

Outcome = StoreError | int
"""Why the disk failed, or the response code of what waited."""


class _Waiting(NamedTuple):
    log_offset: int
    deadline_s: float
    send_count: int
    end: Callable[[Outcome], None]


class Durability:
    """Lets sends wait for what the settings promise."""

    def __init__(
        self, store: MessageStore, flush: FlushDiskType, role: BrokerRole, timeout_ms: int
    ) -> None:
        self._store = store
        self._waits_for_disk = flush is FlushDiskType.SYNC_FLUSH
        self._wants_slave = role is BrokerRole.SYNC_MASTER
        self._timeout_s = timeout_ms / 1000
        self._waiting: deque[_Waiting] = deque()
        self._asked_count = 0
        self._last_log_offset = 0
        """The largest that anyone waited for; a send that created its topic comes late."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.waiting_count = 0
        """Sends that wait now."""

    def must_wait(self, *, wait_stored: bool) -> bool:
        """Whether the answer to a send has to wait; producers may do without."""
        return wait_stored and self._waits_for_disk

    def code_at_once(self, *, wait_stored: bool) -> int:
        """How a send ended that need not wait for the disk."""
        if self._wants_slave and wait_stored:
            # No slave can connect to this version, so none can have the message.
            return ResponseCode.SLAVE_NOT_AVAILABLE
        return ResponseCode.SUCCESS

    async def stored(self, end_log_offset: int) -> int:
        """Wait until the log is on disk up to there; returns the response code of the send.

        Raises RequestError if the disk failed.
        """
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._wait(end_log_offset, 1, partial(_wake, future))
        outcome = await future
        if isinstance(outcome, StoreError):
            raise _refused(outcome)
        return outcome

    def hold(
        self, connection: Connection, frames: bytes, send_count: int, end_log_offset: int
    ) -> None:
        """Let answers that say SUCCESS leave once the log is on disk up to there."""
        connection.hold(send_count)
        self._wait(end_log_offset, send_count, partial(_answer, connection, frames, send_count))

    # -- the line ----------------------------------------------------------------------------------

    def _wait(self, log_offset: int, send_count: int, end: Callable[[Outcome], None]) -> None:
        deadline_s = self._loop.time() + self._timeout_s
        self._waiting.append(_Waiting(log_offset, deadline_s, send_count, end))
        self._last_log_offset = max(self._last_log_offset, log_offset)
        self.waiting_count += send_count
        if self._timer is None:
            self._timer = self._loop.call_at(deadline_s, self._ring)
        if self._asked_count < _ASKED_MAX:
            self._ask()

    def _ask(self) -> None:
        self._asked_count += 1
        self._store.when_flushed(self._last_log_offset, self._told)

    def _told(self, failure: StoreError | None) -> None:
        """Called by the flush thread."""
        self._loop.call_soon_threadsafe(self._let_go, failure)

    def _let_go(self, failure: StoreError | None) -> None:
        self._asked_count -= 1
        safe = self._store.flushed_log_offset
        outcome = self.code_at_once(wait_stored=True) if failure is None else failure
        waiting = self._waiting
        while waiting and (failure is not None or waiting[0].log_offset <= safe):
            self._end_first(outcome)
        if waiting and self._asked_count < _ASKED_MAX:
            self._ask()

    def _end_first(self, outcome: Outcome) -> None:
        first = self._waiting.popleft()
        self.waiting_count -= first.send_count
        first.end(outcome)

    def _ring(self) -> None:
        """End those for whom the disk took too long; the deadlines are in the order of the line."""
        waiting, now_s = self._waiting, self._loop.time()
        while waiting and waiting[0].deadline_s <= now_s:
            self._end_first(ResponseCode.FLUSH_DISK_TIMEOUT)
        self._timer = self._loop.call_at(waiting[0].deadline_s, self._ring) if waiting else None


def _wake(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():  # whoever waited may have been cancelled
        future.set_result(outcome)


def _refused(failure: StoreError) -> RequestError:
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(failure))


def _answer(connection: Connection, frames: bytes, send_count: int, outcome: Outcome) -> None:
    if outcome != ResponseCode.SUCCESS:
        found, _ = split(frames, len(frames))
        frames = b"".join(
            encode(_changed(decode(frames[start:stop]), outcome)) for start, stop in found
        )
    connection.release(send_count, frames)


def refused_sends(frames: bytes, failure: StoreError) -> bytes:
    """What is told instead of answers to sends; other answers among them stay."""
    found, _ = split(frames, len(frames))
    told: list[bytes] = []
    for start, stop in found:
        answer = decode(frames[start:stop])
        is_send = "msgId" in answer.fields
        told.append(encode(_changed(answer, failure)) if is_send else frames[start:stop])
    return b"".join(told)


def _changed(answer: Command, outcome: Outcome) -> Command:
    """What is told instead of SUCCESS."""
    if isinstance(outcome, StoreError):
        refusal = error_responses.refusal(_refused(outcome))
        return response_to(answer, refusal.code, remark=refusal.remark)
    answer.code = outcome
    return answer
