"""When a stored message may be acknowledged: at once, or when it is on disk and on a slave.

Sends that wait for the disk are in one queue, nearly in log order: handlers that await, and blocks
of encoded responses of the fast path. An entry needs no timer of its own. Up to two flushes are
requested from the store at a time: while one runs the next is already requested, so the disk never
waits for the event loop.
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
from tianzhou.protocol.kernel import split_frames
from tianzhou.remoting import error_responses
from tianzhou.remoting.connection import Connection
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import MessageStore

_REQUESTED_MAX = 2

Outcome = StoreError | int
"""Why the flush failed, or the response code."""


class _Waiting(NamedTuple):
    log_offset: int
    deadline_s: float
    send_count: int
    end: Callable[[Outcome], None]


class Durability:
    """Delays responses to sends until the durability of the settings is reached."""

    def __init__(
        self, store: MessageStore, flush: FlushDiskType, role: BrokerRole, timeout_ms: int
    ) -> None:
        self._store = store
        self._waits_for_disk = flush is FlushDiskType.SYNC_FLUSH
        self._wants_slave = role is BrokerRole.SYNC_MASTER
        self._timeout_s = timeout_ms / 1000
        self._waiting: deque[_Waiting] = deque()
        self._requested_count = 0
        self._last_log_offset = 0
        """The largest log offset waited for; a send that created its topic is out of order."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.waiting_count = 0
        """Sends that are waiting."""

    def must_wait(self, *, wait_stored: bool) -> bool:
        """Whether the response to a send must wait; producers can opt out."""
        return wait_stored and self._waits_for_disk

    def code_at_once(self, *, wait_stored: bool) -> int:
        """The response code of a send that need not wait for the disk."""
        if self._wants_slave and wait_stored:
            # Slaves are not supported, so none has the message.
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
        """Send encoded responses with SUCCESS once the log is on disk up to there."""
        connection.hold(send_count)
        self._wait(end_log_offset, send_count, partial(_respond, connection, frames, send_count))

    # -- queue -------------------------------------------------------------------------------------

    def _wait(self, log_offset: int, send_count: int, end: Callable[[Outcome], None]) -> None:
        deadline_s = self._loop.time() + self._timeout_s
        self._waiting.append(_Waiting(log_offset, deadline_s, send_count, end))
        self._last_log_offset = max(self._last_log_offset, log_offset)
        self.waiting_count += send_count
        if self._timer is None:
            self._timer = self._loop.call_at(deadline_s, self._expire)
        if self._requested_count < _REQUESTED_MAX:
            self._request_flush()

    def _request_flush(self) -> None:
        self._requested_count += 1
        self._store.when_flushed(self._last_log_offset, self._on_flushed)

    def _on_flushed(self, failure: StoreError | None) -> None:
        """Called by the flush thread."""
        self._loop.call_soon_threadsafe(self._release_flushed, failure)

    def _release_flushed(self, failure: StoreError | None) -> None:
        self._requested_count -= 1
        safe = self._store.flushed_log_offset
        outcome = self.code_at_once(wait_stored=True) if failure is None else failure
        waiting = self._waiting
        while waiting and (failure is not None or waiting[0].log_offset <= safe):
            self._end_first(outcome)
        if waiting and self._requested_count < _REQUESTED_MAX:
            self._request_flush()

    def _end_first(self, outcome: Outcome) -> None:
        first = self._waiting.popleft()
        self.waiting_count -= first.send_count
        first.end(outcome)

    def _expire(self) -> None:
        """End waits that timed out; deadlines are in the order of the queue."""
        waiting, now_s = self._waiting, self._loop.time()
        while waiting and waiting[0].deadline_s <= now_s:
            self._end_first(ResponseCode.FLUSH_DISK_TIMEOUT)
        self._timer = self._loop.call_at(waiting[0].deadline_s, self._expire) if waiting else None


def _wake(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():  # the handler may have been cancelled
        future.set_result(outcome)


def _refused(failure: StoreError) -> RequestError:
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(failure))


def _respond(connection: Connection, frames: bytes, send_count: int, outcome: Outcome) -> None:
    if outcome != ResponseCode.SUCCESS:
        frames = with_outcome(frames, outcome)
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
        refusal = error_responses.refusal(_refused(outcome))
        return response_to(response, refusal.code, remark=refusal.remark)
    response.code = outcome
    return response
