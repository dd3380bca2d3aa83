"""What all blocking clients share: start and close, forks, and how their methods are declared.

    class Producer(BlockingClient[producer.Producer]):
        send = blocking(producer.Producer.send)

declares a method that runs the asynchronous one on the loop thread and waits for its result. Name,
parameters, types and docstring are those of the asynchronous method, for type checkers and `help`.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from tianzhou.client.lifetime import Lifetime
from tianzhou.client.loop_thread import loop_thread

C = TypeVar("C", bound=Lifetime)
C_co = TypeVar("C_co", bound=Lifetime, covariant=True)
P = ParamSpec("P")
T = TypeVar("T")

_fork_lock = threading.Lock()
"""Held while a forked child replaces a client of its parent."""


def _renew_lock() -> None:
    global _fork_lock  # another thread of the parent may have held it
    _fork_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_lock)


class BlockingClient(Generic[C_co]):
    """Runs an asynchronous client on the loop thread; a forked child gets a client of its own."""

    def __init__(self, make: Callable[[], C_co]) -> None:
        self._make = make
        self._pid = os.getpid()
        self._client = make()
        self._running = False
        self._subscriptions: dict[object, Callable[[Lifetime], Coroutine[Any, Any, None]]] = {}
        """The last change of each topic's subscription, repeated in a forked child."""

    def start(self) -> None:
        """Connect and begin; see the asynchronous client."""
        loop_thread.run(self._local_client().start())
        self._running = True

    def close(self) -> None:
        """Finish and disconnect; see the asynchronous client."""
        client = self._local_client()
        self._running = False
        loop_thread.run(client.close())

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

    def _local_client(self) -> C_co:
        """The client of this process; created and started again after a fork."""
        if self._pid == os.getpid():
            return self._client
        with _fork_lock:
            if self._pid != os.getpid():
                self._client = self._make()
                for subscribe in self._subscriptions.values():
                    loop_thread.run(subscribe(self._client))
                if self._running:
                    loop_thread.run(self._client.start())
                self._pid = os.getpid()
        return self._client


# -- declaring methods -----------------------------------------------------------------------------


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """A blocking method that waits for an asynchronous one."""

    @wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return loop_thread.run(_bound(method, self)(*args, **kwargs))

    return call


def unchanged(
    method: Callable[Concatenate[C, P], T],
) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """A method that calls other public methods only, which block if `self` is a blocking client."""
    return cast("Callable[Concatenate[BlockingClient[C], P], T]", method)


def on_loop(
    method: Callable[Concatenate[C, P], T],
) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """A blocking method that calls a plain one on the event loop that owns the client's state."""

    @wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = _bound(method, self)

        async def run() -> T:
            return bound(*args, **kwargs)

        return loop_thread.run(run())

    return call


def subscribing(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, None] | None],
) -> Callable[Concatenate[BlockingClient[C], P], None]:
    """A blocking method that changes the subscription of a topic, its first parameter."""

    @wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> None:
        async def change(client: Lifetime) -> None:
            done = getattr(client, method.__name__)(*args, **kwargs)
            if done is not None:
                await done

        loop_thread.run(change(self._local_client()))  # pyright: ignore[reportPrivateUsage]
        topic = args[0] if args else kwargs["topic"]
        self._subscriptions[topic] = change  # pyright: ignore[reportPrivateUsage]

    return call


def in_background(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, asyncio.Future[T]] | asyncio.Future[T]],
) -> Callable[Concatenate[BlockingClient[C], P], Future[T]]:
    """A method that returns the future of an asynchronous one as a thread-safe future.

    Callbacks run on the loop thread and must not block.
    """

    @wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        bound = _bound(method, self)
        result: Future[T] = Future()
        result.set_running_or_notify_cancel()  # from here on it cannot be cancelled

        async def begin() -> None:
            begun = bound(*args, **kwargs)
            future = begun if isinstance(begun, asyncio.Future) else await begun
            future.add_done_callback(lambda done: _copy_result(done, result))

        loop_thread.run(begin())
        return result

    call.__dict__["__signature__"] = inspect.signature(method).replace(return_annotation=Future)
    return call


def _bound(method: Callable[Concatenate[C, P], T], client: BlockingClient[C]) -> Callable[P, T]:
    """The method of a client's asynchronous client, which a subclass may have overridden."""
    bound: Callable[P, T] = getattr(client._local_client(), method.__name__)  # pyright: ignore[reportPrivateUsage]
    return bound


def _copy_result(done: asyncio.Future[T], result: Future[T]) -> None:
    """Copy the outcome of an asyncio future to a thread-safe one."""
    if done.cancelled():
        result.set_exception(CancelledError())
    elif (error := done.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())
