"""Expensive requests: one of a kind at a time per person, and a bounded number per console.

A newer one of the same person ends the older one, which gets 429: the page that it was for is gone.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tianzhou.console.text import Text
from tianzhou.console.web.refusals import TooMany

T = TypeVar("T")

SLOTS = 8
RETRY_S = 5
TAIL_S = 120.0
"""How long a page may follow a topic."""


class Slots:
    """The running requests of one kind. Use it on one event loop."""

    def __init__(self, count: int = SLOTS) -> None:
        self._count = count
        self._running: dict[str, asyncio.Task[Any]] = {}

    async def run(self, person: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`. Raises TooMany."""
        older = self._running.get(person)
        if older is None and len(self._running) >= self._count:
            text = Text("{n} of these run at the moment; try again in a few seconds.",
                        n=self._count)  # fmt: skip
            raise TooMany(text, retry_s=RETRY_S)
        task = asyncio.get_running_loop().create_task(work())
        self._running[person] = task
        if older is not None:
            older.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if self._running.get(person) is task:
                # The console stops.
                task.cancel()
                raise
            text = Text("A newer request of yours has ended this one.")
            raise TooMany(text, retry_s=RETRY_S) from None
        finally:
            if self._running.get(person) is task:
                del self._running[person]


class Tails:
    """The pages of one console that follow topics: one per person. Use it on one event loop."""

    def __init__(self, count: int = SLOTS) -> None:
        self._count = count
        self._open: dict[str, asyncio.Event] = {}

    def enter(self, person: str) -> asyncio.Event:
        """Begin a tail, ending an older one of the person. Raises TooMany.

        The event is set when a newer one begins.
        """
        older = self._open.get(person)
        if older is None and len(self._open) >= self._count:
            text = Text("{n} people follow topics at the moment; try again later.", n=self._count)
            raise TooMany(text, retry_s=int(TAIL_S))
        if older is not None:
            older.set()
        replaced = self._open[person] = asyncio.Event()
        return replaced

    def leave(self, person: str, replaced: asyncio.Event) -> None:
        if self._open.get(person) is replaced:
            del self._open[person]

    def __len__(self) -> int:
        return len(self._open)
