"""A server in a thread of its own, on an event loop that measures its iterations.

CPU time of the thread is measured, not wall time: other load has no influence.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class MeasuredLoop(asyncio.SelectorEventLoop):
    """Records the CPU time of its longest iteration since `longest_s` was set to 0."""

    longest_s = 0.0

    def _run_once(self) -> None:
        began_s = time.thread_time()
        super()._run_once()  # type: ignore[misc]  # pyright: ignore
        self.longest_s = max(self.longest_s, time.thread_time() - began_s)


class Measured(Generic[T]):
    """A server that runs in a thread."""

    def __init__(self, loop: MeasuredLoop, server: T) -> None:
        self.loop = loop
        self.server = server

    async def run(self, work: Callable[[], Awaitable[R]]) -> R:
        """Run something on the loop of the server."""

        async def doing() -> R:
            return await work()

        future = asyncio.run_coroutine_threadsafe(doing(), self.loop)
        return await asyncio.wrap_future(future)

    async def longest_of(self, request: Callable[[], Awaitable[R]]) -> tuple[R, float]:
        """The response to a request, and the longest iteration until then."""
        await self.run(self._settled)
        await self.run(self._reset)
        answer = await request()
        # Wait for the end of the iteration that sent the response, and of the work it scheduled.
        await self.run(self._settled)
        return answer, self.loop.longest_s

    async def _reset(self) -> None:
        # On the loop itself: at the end of an iteration it could write back an old maximum that it
        # had read before another thread set it to 0.
        self.loop.longest_s = 0.0

    async def _settled(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


@asynccontextmanager
async def measured(
    make: Callable[[], AbstractAsyncContextManager[T]],
) -> AsyncGenerator[Measured[T]]:
    """The server that `make` gives, for as long as the block runs."""
    started: asyncio.Future[tuple[MeasuredLoop, T, asyncio.Event]]
    here = asyncio.get_running_loop()
    started = here.create_future()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MeasuredLoop)
        stop = asyncio.Event()
        try:
            async with make() as server:
                here.call_soon_threadsafe(started.set_result, (loop, server, stop))
                await stop.wait()
        except BaseException as e:
            if not started.done():
                here.call_soon_threadsafe(started.set_exception, e)
            raise

    def run() -> None:
        with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="measured server")
    thread.start()
    try:
        loop, server, stop = await started
        try:
            yield Measured(loop, server)
        finally:
            loop.call_soon_threadsafe(stop.set)
    finally:
        await asyncio.to_thread(thread.join)
