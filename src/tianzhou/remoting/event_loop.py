"""The event loop that programs run on (uvloop where it is installed), and their periodic tasks."""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop if it is installed, otherwise an asyncio loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def spare_collections() -> None:
    """Make full garbage collections rare; called when a server has started.

    A full collection visits every entry of every table and blocks the loop meanwhile: 70 ms for
    200,000 topics. Objects that exist now are not visited again. Cyclic garbage dies young here,
    and young objects are visited as often as before.
    """
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_COLLECTION_AFTER)


_FULL_COLLECTION_AFTER = 1_000
"""Collections of younger objects before a full one; Python's own figure is 10."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program on a new loop, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


class Tasks:
    """Tasks on one event loop that run until `cancel`."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, work: Coroutine[object, object, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def repeat(self, period_s: Callable[[], float], work: Callable[[], None]) -> None:
        """Call `work` periodically, first after one period; exceptions are logged."""
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
        except Exception:  # a bug in one call must not end the later ones
            log.exception("background work failed")
