"""Pulls of one queue that follow each other without a task for each.

A broker gives 32 messages a pull, so what a pull costs is paid every 32 rows. As long as pulls find
messages, or a filter finds none to look at further on, the answer to one sends the next; whatever
else a broker answers, or does not, ends the run, and whoever began it asks again from there, with
patience.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from tianzhou.errors import RecordError, RemotingError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.record import scan_records
from tianzhou.remoting.pending_requests import Waiter
from tianzhou.spark.columns.malformed import queue_offset_at

Post = Callable[[Waiter, int], bool]
"""Sends a pull from an offset on; False if that is not possible at once."""

_NEXT_FIELD, _DELTA_FIELD = "nextBeginOffset", "offsetDelta"


class PullPipeline:
    """The waiter of all its pulls, one at a time."""

    __slots__ = ("_at", "_ended", "_filtered", "_post", "_stop", "replies")

    def __init__(
        self, at: int, stop: int, post: Post, ended: "asyncio.Future[int]", *, filtered: bool
    ) -> None:
        self._at = at
        self._stop = stop
        self._post = post
        self._ended = ended
        self._filtered = filtered
        self.replies: list[tuple[bytes, int]] = []
        """Records, and what to add to the queue offsets in them."""

    async def ended(self) -> int:
        """Pull as far as it goes; answers up to which offset."""
        self._post_next()
        return await self._ended

    def _post_next(self) -> None:
        if self._at >= self._stop or not self._post(self, self._at):
            self._ended.set_result(self._at)

    # -- the waiter --------------------------------------------------------------------------------

    def done(self) -> bool:
        return self._ended.done()

    def set_result(self, answer: Command, /) -> None:
        try:
            following = int(answer.fields[_NEXT_FIELD])
            delta = int(answer.fields.get(_DELTA_FIELD) or 0)
            if following > self._at:
                self._take(answer, following, delta)
                return
        except (KeyError, ValueError, RecordError):
            pass
        self._ended.set_result(self._at)

    def _take(self, answer: Command, following: int, delta: int) -> None:
        """Keep what was found and go on behind it. Raises RecordError."""
        if answer.code == ResponseCode.SUCCESS:
            records = bytes(answer.body)
            self.replies.append((cut(records, following, self._stop, delta), delta))
        elif answer.code != ResponseCode.PULL_RETRY_IMMEDIATELY or not self._filtered:
            self._ended.set_result(self._at)
            return
        self._at = following
        self._post_next()

    def set_exception(self, _: RemotingError, /) -> None:
        self._ended.set_result(self._at)


def whole_starts(records: bytes) -> Iterator[int]:
    """Where the records of a reply begin. Raises RecordError."""
    return (start for start, _, _ in scan_records(records))


def cut(
    records: bytes,
    following: int,
    stop: int,
    delta: int,
    starts_of: Callable[[bytes], Iterable[int]] = whole_starts,
) -> bytes:
    """The records of a reply before an offset. Raises RecordError as `starts_of` does.

    A broker that filters looks further than it was asked to; the next block has that.
    """
    if following <= stop:
        return records
    for start in starts_of(records):
        if queue_offset_at(records, start) >= stop - delta:
            return records[:start]
    return records
