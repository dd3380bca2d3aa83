"""Consecutive pulls of one queue without an asyncio task for each.

A broker returns 32 messages per pull by default, so the cost of a pull is paid every 32 rows. While
responses contain messages, or a filter rejects all of them, the callback of each response sends
the next pull. Any other response and any failure ends the pipeline; its caller retries from there.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tianzhou.errors import RecordError, RemotingError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.record import scan_records
from tianzhou.remoting.pending_requests import Waiter
from tianzhou.spark.columns.malformed import queue_offset_at

Post = Callable[[Waiter, int], bool]
"""Sends a pull at an offset; False if that is not possible immediately."""

_NEXT_FIELD, _DELTA_FIELD = "nextBeginOffset", "offsetDelta"


@dataclass(slots=True, eq=False)
class PullPipeline:
    """Sends pulls in sequence; it is the waiter of each of them."""

    _at: int
    _stop: int
    _post: Post
    _ended: "asyncio.Future[int]"
    filtered: bool = field(kw_only=True)
    responses: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]], init=False)
    """Undecoded records, and the delta to add to their queue offsets."""

    async def ended(self) -> int:
        """Pull until the pipeline ends; returns the next offset."""
        self._post_next()
        return await self._ended

    def _post_next(self) -> None:
        if self._at >= self._stop or not self._post(self, self._at):
            self._ended.set_result(self._at)

    # -- waiter ------------------------------------------------------------------------------------

    def done(self) -> bool:
        return self._ended.done()

    def set_result(self, response: Command, /) -> None:
        try:
            following = int(response.fields[_NEXT_FIELD])
            delta = int(response.fields.get(_DELTA_FIELD) or 0)
            if following > self._at:
                self._accept(response, following, delta)
                return
        except (KeyError, ValueError, RecordError):
            pass
        self._ended.set_result(self._at)

    def _accept(self, response: Command, following: int, delta: int) -> None:
        """Store the records of a response and send the next pull. Raises RecordError."""
        if response.code == ResponseCode.SUCCESS:
            records = bytes(response.body)
            self.responses.append((cut(records, following, self._stop, delta), delta))
        elif response.code != ResponseCode.PULL_RETRY_IMMEDIATELY or not self.filtered:
            self._ended.set_result(self._at)
            return
        self._at = following
        self._post_next()

    def set_exception(self, _: RemotingError, /) -> None:
        self._ended.set_result(self._at)


def whole_starts(records: bytes) -> Iterator[int]:
    """Where the records of a response begin. Raises RecordError."""
    return (start for start, _, _ in scan_records(records))


def cut(
    records: bytes,
    following: int,
    stop: int,
    delta: int,
    starts_of: Callable[[bytes], Iterable[int]] = whole_starts,
) -> bytes:
    """The records of a response before an offset. Raises RecordError as `starts_of` does.

    A broker that filters scans beyond the requested count; the next block reads those messages.
    """
    if following <= stop:
        return records
    for start in starts_of(records):
        if queue_offset_at(records, start) >= stop - delta:
            return records[:start]
    return records
