"""The event loop of the blocking clients: one per process, on a thread of its own.

The first call starts it, so a process that forks before it uses a client (gunicorn, Spark) has no
thread; a child that forks later starts its own. The thread is a daemon: the program can end without
stopping it.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tianzhou.errors import ClientError
from tianzhou.remoting.event_loop import new_event_loop

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers that block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine; an interrupted wait cancels it.

        Raises what it raises, and ClientError on the loop's own thread, which would deadlock.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError(
                "a blocking client is called on its own event loop; use the async one"
            )
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a coroutine; the future gives its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop())

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, running."""
        with self._lock:
            if self._loop is None:
                self._loop = new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="tianzhou-client", daemon=True
                )
                self._thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def forget(self) -> None:
        """Begin again in a forked process, where the thread does not exist.

        A reference to the parent's loop remains: destroying it would change the poll set that both
        processes share.
        """
        if self._loop is not None:
            _abandoned.append(self._loop)
        self._lock, self._loop, self._thread = threading.Lock(), None, None


_abandoned: list[asyncio.AbstractEventLoop] = []

loop_thread = LoopThread()
"""The loop of this process."""

if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=loop_thread.forget)
