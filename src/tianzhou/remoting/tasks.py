"""The long-running and periodic tasks of a server, cancelled together."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)


class Tasks:
    """Tasks on one event loop that run until `cancel`."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, work: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def repeat(self, period_s: Callable[[], float], work: Callable[[], None]) -> None:
        """Call `work` again and again, after a pause each; what it raises is logged."""
        self.run(_repeat(period_s, work))

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _repeat(period_s: Callable[[], float], work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(period_s())
        try:
            work()
        except Exception:  # a bug in one round must not end all rounds to come
            log.exception("background work failed")
