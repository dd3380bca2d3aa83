"""Pulls of one queue that follow each other without a task for each.

A broker gives 32 messages a pull, so what a pull costs is paid every 32 rows. As long as pulls find
messages, the answer to one sends the next; whatever else a broker answers, or does not, ends the
run, and whoever began it asks again from there, with patience.
"""

import asyncio
from collections.abc import Callable

from tianzhou.errors import RemotingError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.pending import Waiter

Post = Callable[[Waiter, int], bool]
"""Sends a pull from an offset on; False if that is not possible at once."""

_NEXT_FIELD, _DELTA_FIELD = "nextBeginOffset", "offsetDelta"


class PullRun:
    """The waiter of all its pulls, one at a time."""

    __slots__ = ("_at", "_ended", "_post", "_stop", "replies")

    def __init__(self, at: int, stop: int, post: Post, ended: "asyncio.Future[int]") -> None:
        self._at = at
        self._stop = stop
        self._post = post
        self._ended = ended
        self.replies: list[tuple[bytes, int]] = []
        """Records, and what to add to the queue offsets in them."""

    async def ended(self) -> int:
        """Pull as far as it goes; answers up to which offset."""
        self._go_on()
        return await self._ended

    def _go_on(self) -> None:
        if self._at >= self._stop or not self._post(self, self._at):
            self._ended.set_result(self._at)

    # -- the waiter --------------------------------------------------------------------------------

    def done(self) -> bool:
        return self._ended.done()

    def set_result(self, answer: Command, /) -> None:
        try:
            following = int(answer.fields[_NEXT_FIELD])
            delta = int(answer.fields.get(_DELTA_FIELD) or 0)
        except (KeyError, ValueError):
            following = delta = 0
        # A broker that filters may look further than it was asked to: then records must be cut.
        if answer.code != ResponseCode.SUCCESS or not self._at < following <= self._stop:
            self._ended.set_result(self._at)
            return
        self._at = following
        self.replies.append((bytes(answer.body), delta))
        self._go_on()

    def set_exception(self, _: RemotingError, /) -> None:
        self._ended.set_result(self._at)
