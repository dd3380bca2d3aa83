"""Work of requests in slices, so that none holds up the event loop.

A handler whose work grows with its request or with the tables of the server is a generator, which
may be paused at each `yield`:

    def list_topics(...) -> Steps[Command]:
        for topic in many:
            ...
            yield
        return Command(...)

`answer` runs the first slice at once; most requests end in it and cost nothing more. What is left
waits in a queue of the event loop: each iteration runs one slice, whichever request it belongs to,
so a hundred expensive requests delay others no longer than one does. Tables may change between two
slices: steps iterate over copies, and check again what must still hold.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from time import perf_counter
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
K = TypeVar("K")
P = ParamSpec("P")
Steps = Generator[None, None, T]

SLICE_S = 0.002
"""How long a slice may take; a single step that takes longer is not cut."""


def answer(steps: Steps[T]) -> "T | asyncio.Future[T]":
    """The result of the steps if the first slice is enough, otherwise the future of it.

    Raises what the steps raise in their first slice.
    """
    try:
        _run_slice(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    return _queue().add(steps)


def after(before: "asyncio.Future[Any]", steps: Steps[T]) -> "asyncio.Future[T]":
    """The future of steps that begin when `before` is done, however it ends."""
    queue, future = _queue(), asyncio.get_running_loop().create_future()
    before.add_done_callback(lambda _: queue.put(steps, future))
    return future


def in_order(
    unfinished: "dict[K, asyncio.Future[Any]]", key: K, steps: Steps[T]
) -> "T | asyncio.Future[T]":
    """`answer`, but not before earlier steps under the same key are done.

    `unfinished` holds the last of each key that takes more than one slice; it is the caller's.
    """
    before = unfinished.get(key)
    if before is None or before.done():
        try:
            _run_slice(steps)
        except StopIteration as end:
            at_once: T = end.value
            return at_once
        result = _queue().add(steps)
    else:
        result = after(before, steps)
    unfinished[key] = result

    def finished(future: "asyncio.Future[T]") -> None:
        if unfinished.get(key) is future:
            del unfinished[key]

    result.add_done_callback(finished)
    return result


async def finish(steps: Steps[T]) -> T:
    """The result of the steps, for handlers that wait for other things, too."""
    try:
        _run_slice(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    return await _queue().add(steps)


async def turn() -> None:
    """Wait for a slice: others that have work to do come first."""
    await _queue().add(one_step(lambda: None))


def at_once(steps: Steps[T]) -> T:
    """The result of the steps, without any pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def one_step(work: Callable[[], T]) -> Steps[T]:
    """Work that needs no pause, where steps are expected."""
    yield
    return work()


def sliced(handle: Callable[P, Steps[T]]) -> Callable[P, T | Awaitable[T]]:
    """A handler made of steps, as one that answers."""

    def start(*args: P.args, **kwargs: P.kwargs) -> T | Awaitable[T]:
        return answer(handle(*args, **kwargs))

    start.__doc__ = handle.__doc__
    return start


def _run_slice(steps: Steps[Any]) -> None:
    """Raises StopIteration when the steps are done."""
    ends_s = perf_counter() + SLICE_S
    while True:
        next(steps)
        if perf_counter() > ends_s:
            return


class _Queue:
    """What waits for its next slice on one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Steps[Any], asyncio.Future[Any]]] = deque()
        self._is_planned = False

    def add(self, steps: Steps[T]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.put(steps, future)
        return future

    def put(self, steps: Steps[T], future: "asyncio.Future[T]") -> None:
        self._waiting.append((steps, future))
        self._plan(asyncio.get_running_loop())

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_planned:
            self._is_planned = True
            loop.call_soon(self._run_one)

    def _run_one(self) -> None:
        self._is_planned = False
        steps, future = self._waiting.popleft()
        if future.cancelled():
            steps.close()
        else:
            try:
                _run_slice(steps)
            except StopIteration as end:
                future.set_result(end.value)
            except Exception as e:  # noqa: BLE001 - the awaiting caller gets it
                future.set_exception(e)
            else:
                self._waiting.append((steps, future))
        if self._waiting:
            self._plan(asyncio.get_running_loop())


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue] = WeakKeyDictionary()


def _queue() -> _Queue:
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _Queue()
    return queue
