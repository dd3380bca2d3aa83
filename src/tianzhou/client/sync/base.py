"""What all blocking clients share: the loop thread, start and close, and forks."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from tianzhou.client.loop_thread import loop_thread


class AsyncClient(Protocol):
    """What all asynchronous clients have."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...


C = TypeVar("C", bound=AsyncClient)
T = TypeVar("T")

_fork_lock = threading.Lock()
"""Held while a forked child replaces a client of its parent."""


def _renew_lock() -> None:
    global _fork_lock  # another thread of the parent may have held it
    _fork_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_lock)


class BlockingClient(Generic[C]):
    """Runs an asynchronous client on the loop thread; a forked child gets a client of its own."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._pid = os.getpid()
        self._client = make()
        self._running = False

    def start(self) -> None:
        """Connect and begin; see the asynchronous client."""
        self._run(self._here().start())
        self._running = True

    def close(self) -> None:
        """Finish and disconnect; see the asynchronous client."""
        client = self._here()
        self._running = False
        self._run(client.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _here(self) -> C:
        """The client of this process; created and started again after a fork."""
        if self._pid == os.getpid():
            return self._client
        with _fork_lock:
            if self._pid != os.getpid():
                self._client = self._make()
                if self._running:
                    self._run(self._client.start())
                self._pid = os.getpid()
        return self._client

    @staticmethod
    def _run(work: Coroutine[Any, Any, T]) -> T:
        return loop_thread.run(work)


async def call_on_loop(function: Callable[[C], T], client: C) -> T:
    """Call a short function on the event loop that owns the client's state."""
    return function(client)


async def next_or_none(stream: AsyncGenerator[T]) -> T | None:
    """The next item of a stream, None at its end."""
    return await anext(stream, None)


def copy_result(done: asyncio.Future[T], result: Future[T]) -> None:
    """Copy the outcome of an asyncio future to a thread-safe one."""
    if done.cancelled():
        result.set_exception(CancelledError())
    elif (error := done.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())
