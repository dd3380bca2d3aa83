"""When a stored message may be acknowledged: at once, or once the disk and a slave have it.

Sends that wait for the disk stand in the order of the log. One of them asks the store to be told;
when that happens all whose bytes are safe are let go, and the last of the rest asks again. So
however many wait, the loop is woken once per flush.
"""

import asyncio
from collections import deque
from typing import NamedTuple

from tianzhou.broker.config import BrokerRole
from tianzhou.errors import RequestError, StoreError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import MessageStore


class _Waiting(NamedTuple):
    log_offset: int
    future: asyncio.Future[StoreError | None]


class Durability:
    """Lets sends wait for what the settings promise."""

    def __init__(
        self, store: MessageStore, flush: FlushDiskType, role: BrokerRole, timeout_ms: int
    ) -> None:
        self._store = store
        self._waits_for_disk = flush is FlushDiskType.SYNC_FLUSH
        self._wants_slave = role is BrokerRole.SYNC_MASTER
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Waiting] = deque()
        self._asked = False
        self._loop = asyncio.get_running_loop()

    @property
    def waiting_count(self) -> int:
        """Sends that wait now."""
        return len(self._waiting)

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
        waiting = _Waiting(end_log_offset, self._loop.create_future())
        self._waiting.append(waiting)
        if not self._asked:
            self._ask(end_log_offset)
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                failure = await waiting.future
        except TimeoutError:
            return ResponseCode.FLUSH_DISK_TIMEOUT
        if failure is not None:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, str(failure))
        return self.code_at_once(wait_stored=True)

    def _ask(self, log_offset: int) -> None:
        self._asked = True
        self._store.when_flushed(log_offset, self._told)

    def _told(self, failure: StoreError | None) -> None:
        """Called by the flush thread."""
        self._loop.call_soon_threadsafe(self._let_go, failure)

    def _let_go(self, failure: StoreError | None) -> None:
        self._asked = False
        safe = self._store.flushed_log_offset
        waiting = self._waiting
        while waiting and (failure is not None or waiting[0].log_offset <= safe):
            future = waiting.popleft().future
            if not future.done():
                future.set_result(failure)
        if waiting:
            self._ask(waiting[-1].log_offset)
