"""The event loop that programs run on: uvloop where it is installed, asyncio's own elsewhere."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop of the best kind there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def spare_collections() -> None:
    """Have the garbage collector look at everything seldom; called when a server has started.

    A full collection looks at every entry of every table and holds up the loop meanwhile: 70 ms
    for 200,000 topics. What is there now stays and is not looked at again. Garbage in circles dies
    young here, and young objects are looked at as often as before.
    """
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_COLLECTION_AFTER)


_FULL_COLLECTION_AFTER = 1_000
"""Collections of younger objects before a full one; Python's own figure is 10."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end on a loop of its own, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
