"""Decides what the event loop runs next, so that no work delays clients for long.

One iteration of the loop runs the callbacks that are ready, in the order in which they became so.
Reading a socket is one callback: it handles the requests of one connection for about 0.1 ms, then
other connections follow (`connection.py`). All longer work is a unit: a function that works for one
slice and returns when it is due again. Each iteration runs one slice of one unit, round-robin, so a
hundred units delay a request no longer than one does. There are three kinds of units:

    generators        requests and tables to encode, whose work grows with their size: `answer`,
                      `finish`, `sliced`, `InOrder`, `handle_in_order`
    background work   delayed and timed messages, at the time they fall due: `BackgroundWork`
    queued requests   expensive ones that can wait, such as messages that consumers send back; one
                      queue per connection, served round-robin: `FairQueue`

Generators. A slice is 2 ms. The first runs at once: most requests end in it and cost nothing more.
Tables may change between two slices: steps iterate over copies, and check again what must still
hold. They do not rest as background work does: a client waits for the result, and a batch that is
stored in slices is itself what clients send.

Background work and queued requests share a `Budget`. They write to the same log as ordinary sends.
Growth of the log between two slices comes from clients: comparing two numbers shows whether clients
send, and costs them nothing. A slice is 0.4 ms; while clients send it is 0.15 ms, begins with a
yield of the processor, and after 0.6 ms of work there is a rest of 1 ms. A response wakes the
sending process, and Linux lets it wait for the processor of the process that woke it, which it
expects to sleep shortly: if the broker goes on with other work, one sender in ten waits until the
broker rests. And a process that never sleeps is scheduled late itself. A rest is always followed by
work, and a slice serves at least one message, so the work makes progress.

When nothing is ready the loop sleeps, except for 0.2 ms after a request of a client that sends its
next request at once (`BusyPoll`).

Over 500 lines: all kinds of units share the ready queue and are explained on this page.
"""

import asyncio
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator, Hashable
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

from tianzhou.clock import Clock, steady_ms
from tianzhou.errors import TianzhouError
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection, Deferral

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
Steps = Generator[None, None, T]
"""Work that may be paused at each `yield`."""
Response = Command | Awaitable[Command | Deferral] | Deferral

STEPS_SLICE_S = 0.002
"""How long a slice of a generator may take; a single step that takes longer is not cut."""
SLICE_S = 0.0004
"""How long a slice of background work may take."""
SHARED_SLICE_S = 0.00015
"""The same while clients send: a few messages."""
BURST_S = 0.0006
"""Background work between two rests, while clients send."""
REST_S = 0.001
"""The shortest time that the timers of the loop can measure."""
_RECENT_S = 1.0
"""Clients count as sending for so long after a message."""
HELD_S_MAX = 0.005
"""A response of a `FairQueue` is held back for about so long at most."""
_RETRY_MS = 1000
_SLEEP_MS_MAX = 1000
"""A timer does not notice that the wall clock is set forward, so it fires this often."""
POLL_S = 0.0002
"""How long to poll for the next request."""
IMMEDIATE_S = 0.0004
"""A request within this time of the last one counts as immediate: the loop may have slept."""
PAUSE_REQUESTS = 32
"""Requests that are served without polling after a poll that found none."""

# -- the ready queue -------------------------------------------------------------------------------

Slice = Callable[[], None]


class _Ready:
    """The slices that are ready on one event loop."""

    def __init__(self) -> None:
        self._slices: dict[Slice, None] = {}
        self._is_scheduled = False

    def add(self, run: Slice) -> None:
        """Run a slice in one of the next loop iterations, as the only slice of the iteration."""
        self._slices[run] = None
        self._schedule()

    def discard(self, run: Slice) -> None:
        self._slices.pop(run, None)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_one)

    def _run_one(self) -> None:
        self._is_scheduled = False
        if not self._slices:
            return
        run = next(iter(self._slices))
        del self._slices[run]
        if self._slices:
            self._schedule()
        run()


_ready_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Ready] = WeakKeyDictionary()


def _ready() -> _Ready:
    loop = asyncio.get_running_loop()
    ready = _ready_by_loop.get(loop)
    if ready is None:
        ready = _ready_by_loop[loop] = _Ready()
    return ready


# -- generators ------------------------------------------------------------------------------------


def answer(steps: Steps[T]) -> "T | asyncio.Future[T]":
    """The result of the steps if the first slice is enough, otherwise the future of it.

    Raises what the steps raise in their first slice.
    """
    done = _run_slice(steps)
    return done[0] if done is not None else _continue(steps)


async def finish(steps: Steps[T]) -> T:
    """The result of the steps, for handlers that wait for other things, too."""
    done = _run_slice(steps)
    return done[0] if done is not None else await _continue(steps)


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


class InOrder:
    """Runs generators one after the other: none begins before the last one has ended."""

    def __init__(self) -> None:
        self._last: asyncio.Future[Any] | None = None

    def answer(self, steps: Steps[T]) -> "T | asyncio.Future[T]":
        """As the function `answer`."""
        before = self._last
        if before is not None and before.done():
            before = None
        if before is None and (done := _run_slice(steps)) is not None:
            return done[0]
        self._last = future = _continue(steps, before)
        return future


def handle_in_order(connection: Connection, steps: Steps[Response]) -> Response:
    """The response that the steps end with; later requests of the connection wait until then.

    For handlers whose successors must see their effect: a batch is stored before the message that
    was sent after it, a heartbeat is handled before the unregistration that follows it. Raises what
    the steps raise in their first slice.
    """
    handled = answer(_handled(steps))
    if not isinstance(handled, asyncio.Future):
        return handled.response
    connection.pause()
    handled.add_done_callback(lambda _: connection.resume())
    return _Unfinished(handled)


class _Handled(NamedTuple):
    """Distinguishes a response that is a future from the future of a response."""

    response: Response


def _handled(steps: Steps[Response]) -> Steps[_Handled]:
    return _Handled((yield from steps))


class _Unfinished:
    """The response to a request that is still being handled."""

    __slots__ = ("_handled",)

    def __init__(self, handled: "asyncio.Future[_Handled]") -> None:
        self._handled = handled

    def __await__(self) -> Generator[Any, Any, Command | Deferral]:
        response = (yield from self._handled).response
        if isinstance(response, Command | Deferral):
            return response
        return (yield from response.__await__())

    def close(self) -> None:
        """It will not be awaited: the rest of the steps is dropped."""
        self._handled.cancel()


def _run_slice(steps: Steps[T]) -> tuple[T] | None:
    """The result of the steps; None if they are not done."""
    ends_s = perf_counter() + STEPS_SLICE_S
    try:
        while True:
            next(steps)
            if perf_counter() > ends_s:
                return None
    except StopIteration as end:
        return (end.value,)


def _continue(steps: Steps[T], before: "asyncio.Future[Any] | None" = None) -> "asyncio.Future[T]":
    """The future of the steps, which go on in further slices; not before `before` is done."""
    ready = _ready()
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    run = partial(_run_next_slice, ready, steps, future)
    if before is None:
        ready.add(run)
    else:
        before.add_done_callback(lambda _: ready.add(run))
    return future


def _run_next_slice(ready: _Ready, steps: Steps[T], future: "asyncio.Future[T]") -> None:
    # Not a closure that names itself: its cycle would keep the result, such as a table of
    # megabytes, until the next full garbage collection, and those are rare.
    if future.cancelled():
        steps.close()
        return
    try:
        done = _run_slice(steps)
    except Exception as e:  # noqa: BLE001 - the awaiting caller gets it
        future.set_exception(e)
    else:
        if done is None:
            ready.add(partial(_run_next_slice, ready, steps, future))
        else:
            future.set_result(done[0])


# -- the budget of background work -----------------------------------------------------------------


def _no_yield() -> None:
    """For systems that cannot yield the processor."""


_yield_processor: Callable[[], None] = getattr(os, "sched_yield", _no_yield)


class Budget:
    """The slices and rests of all background work on one log."""

    def __init__(
        self, written: Callable[[], int], now_s: Callable[[], float] = perf_counter
    ) -> None:
        """`written` returns how many bytes the log has."""
        self._written = written
        self.now_s = now_s
        self._known = written()
        self._seen_s = self._began_s = self._rest_until_s = now_s() - _RECENT_S
        self._worked_s = 0.0
        """Since the last rest."""

    def begin(self) -> float:
        """A slice begins; returns how long it may take."""
        slice_s = SLICE_S
        if self._clients_send():
            slice_s = SHARED_SLICE_S
            _yield_processor()
        self._began_s = self.now_s()
        return slice_s

    def pause(self) -> None:
        """Note that the growth of the log since `begin` or the last `pause` is the slice's own."""
        self._known = self._written()
        now_s = self.now_s()
        self._worked_s += now_s - self._began_s
        self._began_s = now_s

    def end(self) -> None:
        """The slice is over; a rest begins if it is time for one."""
        self.pause()
        if not self._clients_send():
            self._worked_s = 0.0
        elif self._worked_s >= BURST_S:
            self._worked_s = 0.0
            self._rest_until_s = self.now_s() + REST_S

    def rest_s(self) -> float:
        """How long to wait before the next slice, mostly 0."""
        return REST_S if self.now_s() < self._rest_until_s else 0.0

    def _clients_send(self) -> bool:
        """Whether a client has sent in the last second."""
        written = self._written()
        now_s = self.now_s()
        if written != self._known:
            self._known = written
            self._seen_s = now_s
        return now_s - self._seen_s < _RECENT_S


Work = Callable[[int, float], int | None]
"""Called with the time in ms and the length of the slice; returns when the next slice is due: now
if there is more to do, None for never."""


class BackgroundWork:
    """Work in slices at due times. A slice that fails is logged once and retried after a second."""

    def __init__(self, name: str, work: Work, clock: Clock, budget: Budget) -> None:
        self._name = name
        self._work = work
        self._clock = clock
        self._budget = budget
        self._is_on = self._is_failing = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms: int | None = None

    @property
    def is_scheduled(self) -> bool:
        """Whether a slice is due, now or later."""
        return self._due_ms is not None

    def start(self) -> None:
        """Run the first slice at once, and later ones when they are due."""
        self._is_on = True
        self.wake(self._clock())

    def stop(self) -> None:
        """Run no more slices."""
        self._is_on = False
        self._cancel()

    def wake(self, at_ms: int) -> None:
        """Run a slice at that time, or earlier if an earlier slice is due."""
        if not self._is_on or (self._due_ms is not None and self._due_ms <= at_ms):
            return
        self._cancel()
        self._due_ms = at_ms
        wait_s = min(at_ms - self._clock(), _SLEEP_MS_MAX) / 1000
        wait_s = max(wait_s, self._budget.rest_s())
        if wait_s <= 0:
            self._become_ready()
        else:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._become_ready)

    def wake_now(self) -> None:
        """Run a slice at once, whatever is due."""
        self._due_ms = None
        self.wake(self._clock())

    def _become_ready(self) -> None:
        self._timer = None
        _ready().add(self._run)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif self._due_ms is not None:
            _ready().discard(self._run)
        self._due_ms = None

    def _run(self) -> None:
        self._due_ms = None
        now_ms = self._clock()
        slice_s = self._budget.begin()
        try:
            next_ms = self._work(now_ms, slice_s)
            self._is_failing = False
        except Exception as e:
            # A bug must not end all further slices; a full disk is temporary.
            if not self._is_failing:
                known = isinstance(e, TianzhouError | OSError)
                log.error("%s: trying again: %s", self._name, e, exc_info=not known)  # noqa: TRY400 - see known
            self._is_failing = True
            next_ms = now_ms + _RETRY_MS
        self._budget.end()
        if next_ms is not None:
            self.wake(next_ms)


# -- requests that can wait ------------------------------------------------------------------------


class Owner(Hashable, Protocol):
    """A connection; see `Connection`."""

    @property
    def has_unread(self) -> bool: ...
    def hold_responses(self) -> None: ...
    def send_held(self) -> None: ...


class FairQueue:
    """Queues of expensive requests of one kind, one per connection, served round-robin.

    Requests ask `admits`; those that are not admitted `wait`. Responses are held back while their
    connection has further requests, for a few milliseconds, and sent together: each write wakes
    another process and brings new requests, and sending them one by one cost as much as the work
    itself.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._work = BackgroundWork("queued requests", self._run_slice, steady_ms, budget)
        self._admits_until_s = 0.0
        """End of the slice that admits requests now; 0 without one."""
        self._late: asyncio.TimerHandle | None = None
        """Sends responses that are held back while no slice is due."""
        self._queues: OrderedDict[Owner, deque[Slice]] = OrderedDict()
        self._held: dict[Owner, float] = {}
        """Connections whose responses are held back, and since when."""
        self.waiting_count = 0
        """Queued requests."""

    def admits(self, owner: Owner) -> bool:
        """Whether a request may run at once; then call `passed` when it is done."""
        if self._admits_until_s:
            if self._queues or self._budget.now_s() >= self._admits_until_s:
                return False
        elif self._work.is_scheduled or self._budget.rest_s():
            return False  # between two slices
        else:
            slice_s = self._budget.begin()
            self._admits_until_s = self._budget.now_s() + slice_s
            self._work.start()
        self._hold(owner)
        return True

    def passed(self) -> None:
        """An admitted request is done."""
        self._budget.pause()

    def wait(self, owner: Owner, work: Slice) -> None:
        """Queue a request; its work must not raise."""
        self._queues.setdefault(owner, deque()).append(work)
        self.waiting_count += 1
        if not self._work.is_scheduled:
            self._work.start()

    def close(self) -> None:
        """Drop all queued requests, and send the responses that are held back."""
        self._queues.clear()
        self.waiting_count = 0
        self._work.stop()
        self._admits_until_s = 0.0
        if self._late is not None:
            self._late.cancel()
        for owner in self._held:
            owner.send_held()
        self._held.clear()

    def _run_slice(self, now_ms: int, slice_s: float) -> int | None:
        """End the admission of requests, and serve queued ones."""
        self._admits_until_s = 0.0
        ends_s = self._budget.now_s() + slice_s
        try:
            while self._queues:
                self._next()()
                if self._budget.now_s() >= ends_s:
                    break
        except Exception:  # a bug must not delay the requests behind
            log.exception("a queued request failed")
        self._send_held()
        return now_ms if self._queues else None

    def _next(self) -> Slice:
        """The oldest request of the connection that is next."""
        owner, queue = self._queues.popitem(last=False)
        work = queue.popleft()
        if queue:
            self._queues[owner] = queue
        self.waiting_count -= 1
        self._hold(owner)
        return work

    def _hold(self, owner: Owner) -> None:
        if owner not in self._held:
            owner.hold_responses()
            self._held[owner] = self._budget.now_s()

    def _send_held(self) -> None:
        """Send held-back responses of connections without further requests, or held for long."""
        now_s = self._budget.now_s()
        ready = [
            owner
            for owner, since_s in self._held.items()
            if now_s - since_s >= HELD_S_MAX or not (owner in self._queues or owner.has_unread)
        ]
        for owner in ready:
            del self._held[owner]
            owner.send_held()
        if self._held and self._late is None:
            self._late = asyncio.get_running_loop().call_later(HELD_S_MAX, self._send_late)

    def _send_late(self) -> None:
        self._late = None
        self._send_held()


# -- when nothing is ready -------------------------------------------------------------------------


class BusyPoll:
    """Busy-polls briefly after a request from a client that sends its next one immediately.

    To sleep and to be woken takes a system longer than to serve one request, on a virtual machine
    several times as long; a client that waits for each response before it sends the next request
    pays for that with every request. So after such a request the loop polls for the next one for as
    long as that may take, and then sleeps as usual. After a poll that found nothing it pauses for
    some requests. With one processor it never polls, because the client needs the processor.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        now_s: Callable[[], float] = perf_counter,
        processor_count: int | None = None,
    ) -> None:
        """`call_soon` is the loop's; None means the processors that this process may run on."""
        self._call_soon = call_soon
        self._now_s = now_s
        if processor_count is None:
            processor_count = usable_processor_count()
        self._is_useful = processor_count > 1
        self._answered_s = self._until_s = 0.0
        self._pause_count = 0
        self._is_polling = False

    def answered(self) -> None:
        """A client that seems to be the only active one was answered."""
        if not self._is_useful:
            return
        now_s = self._now_s()
        gap_s, self._answered_s = now_s - self._answered_s, now_s
        if gap_s > IMMEDIATE_S:
            return
        if self._pause_count:
            self._pause_count -= 1
            return
        self._until_s = now_s + POLL_S
        if not self._is_polling:
            self._is_polling = True
            self._call_soon(self._poll)

    def _poll(self) -> None:
        """Schedule itself again until the time is up: meanwhile the loop does not sleep."""
        if self._now_s() < self._until_s:
            self._call_soon(self._poll)
        else:
            self._is_polling = False
            self._pause_count = PAUSE_REQUESTS


def usable_processor_count() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
