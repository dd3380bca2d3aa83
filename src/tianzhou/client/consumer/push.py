"""The push consumer: pulls messages and calls your handlers.

    consumer = PushConsumer("billing", namesrv="localhost:9876")

    @consumer.handler("orders", tags="paid || refunded")
    async def bill(message: ReceivedMessage) -> None:
        ...

    async with consumer:
        await consumer.wait_closed()

Delivery is at least once: a message is done when its handler has returned, and offsets are saved
afterwards, so messages in flight at a crash are delivered again. `close` calls no further handler,
and none runs after it has returned. Without handlers, `async for message in consumer` yields the
messages; asking for the next one acknowledges the one before.

Path of a message: pull task (`group_member`) -> work queue -> one of `consume_threads` workers ->
handler -> `concurrent.apply_outcome` or `orderly.apply_outcome`.

Over 500 lines: workers, ordered queues and streams share the state of running handlers.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import TypeVar, Unpack

import msgspec

from tianzhou.client import namespaces
from tianzhou.client.connection.hub import Reply
from tianzhou.client.consumer import concurrent, orderly
from tianzhou.client.consumer.callbacks import (
    BatchHandler,
    BoundHandler,
    Caller,
    Handler,
    Later,
    Outcome,
    bind,
)
from tianzhou.client.consumer.concurrent import Redelivery
from tianzhou.client.consumer.group_member import GroupMember
from tianzhou.client.consumer.held_queue import HeldQueue
from tianzhou.client.consumer.operator_requests import (
    direct_message,
    direct_response,
    stack_dump,
)
from tianzhou.client.consumer.process_queue import (
    Batch,
    ConcurrentQueue,
    OrderedQueue,
    ProcessQueue,
)
from tianzhou.client.group.membership import success
from tianzhou.client.group.settings import PushOptions, PushSettings
from tianzhou.client.group.subscriptions import by_tags
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.observe.telemetry import Span
from tianzhou.client.observe.trace import ConsumeReturn, Handling
from tianzhou.client.queues import Queue
from tianzhou.client.settings import ClientSettings, settings_from
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.errors import ClientClosed, ConfigError
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.clients import GetConsumerRunningInfoRequest
from tianzhou.remoting.connection import Connection

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)

_YIELD_AFTER_S = 0.01
"""A worker yields to the event loop after so long, even if its handlers never await."""
_CONTINUOUSLY_S = 60.0
"""Ordered: a queue that always has messages releases the worker after so long."""
_HANDLER_WAIT_S = 10.0
"""Ordered: an offset reset waits so long for the running handler."""
_LOCK_AGAIN_MS = 100
_LOCK_REFUSED_MS = 3_000

_Work = tuple[HeldQueue, Batch | None]
_Observation = tuple[tuple[Span, float] | None, Handling | None]


class PushConsumer(GroupMember):
    """A consumer that calls handlers; keywords are the fields of `PushSettings`.

    Register handlers with `handler` or `subscribe`, then use `async with`, or `start` and `close`.
    """

    def __init__(
        self, group: str, *, settings: ClientSettings | None = None, **options: Unpack[PushOptions]
    ) -> None:
        """Nothing is connected yet. Raises ConfigError."""
        self._settings = settings_from(PushSettings, settings, options)
        super().__init__(group, self._settings)
        self._handlers: dict[str, BoundHandler] = {}
        self._work: asyncio.Queue[_Work | None] = asyncio.Queue()
        self._executor = ThreadPoolExecutor(
            self._settings.consume_threads, thread_name_prefix=f"consume {group}"
        )
        self._caller = Caller(group, self._executor, self._telemetry)
        self._redelivery: Redelivery | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._lock_task: asyncio.Task[None] | None = None
        self._running: set[HeldQueue] = set()
        self._running_count = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._leaving: dict[Queue, HeldQueue] = {}
        self._open: dict[ReceivedMessage, tuple[HeldQueue, Batch]] = {}
        self._observations: dict[ReceivedMessage, _Observation] = {}
        """Spans and traces of the messages that a stream has yielded."""
        self._close_task: asyncio.Task[None] | None = None

    # -- handlers ----------------------------------------------------------------------------------

    def handler(self, topic: str, *, tags: str = "*", sql: str | None = None) -> Callable[[H], H]:
        """Decorator: subscribe a function to a topic; it is called with one message."""

        def register(call: H) -> H:
            self.subscribe(topic, call, tags=tags, sql=sql)
            return call

        return register

    def batch_handler(
        self, topic: str, *, size: int | None = None, tags: str = "*", sql: str | None = None
    ) -> Callable[[B], B]:
        """Decorator: subscribe a function; it is called with a list of at most `size` messages.

        `size` defaults to the setting `batch_size`.
        """

        def register(call: B) -> B:
            self.subscribe_batches(topic, call, size=size, tags=tags, sql=sql)
            return call

        return register

    def subscribe(
        self, topic: str, handler: Handler | None = None, *, tags: str = "*", sql: str | None = None
    ) -> None:
        """Consume a topic; may be called while running. Raises ConfigError.

        `tags` is `*`, or tags joined by `||`; `sql` is an SQL92 condition on properties instead.
        Without a handler, read the messages with `async for`.
        """
        bound = None if handler is None else bind(topic, handler)
        self._subscribe(topic, tags, sql, bound)

    def subscribe_batches(
        self,
        topic: str,
        handler: BatchHandler,
        *,
        size: int | None = None,
        tags: str = "*",
        sql: str | None = None,
    ) -> None:
        """Consume a topic in lists of at most `size` messages. Raises ConfigError."""
        size = self._settings.batch_size if size is None else size
        if size < 1:
            raise ConfigError(f"topic {topic}: a batch has at least 1 message, not {size}")
        self._subscribe(topic, tags, sql, bind(topic, handler, size))

    def _subscribe(
        self, topic: str, tags: str, sql: str | None, handler: BoundHandler | None
    ) -> None:
        topic = namespaces.strip(self._settings.namespace, topic) if topic else topic
        if handler is None and self._handlers:
            raise ConfigError(f"topic {topic}: other topics have handlers, this one needs one, too")
        if handler is not None and self._subscriptions and not self._handlers:
            raise ConfigError(f"topic {topic}: other topics have no handlers, so this one cannot")
        self._add_subscription(topic, tags, sql)
        if handler is not None:
            self._handlers[topic] = handler

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic and release its queues."""
        self._remove_subscription(topic)
        self._handlers.pop(namespaces.strip(self._settings.namespace, topic), None)

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and start consuming. Raises ConfigError, RemotingError, BrokerError.

        A topic that does not exist yet is no error: it is consumed once it is created.
        """
        if not self._subscriptions:
            raise ConfigError(f"group {self._name}: no topic is subscribed")
        if self._settings.ordered and not self._handlers:
            raise ConfigError(f"group {self._name}: ordered messages need a handler")
        if not self._settings.broadcasting:
            self._subscriptions[self._retry_topic] = by_tags(self._retry_topic, "*", wall_ms())
        await super().start()

    def _begin(self) -> None:
        settings = self._settings
        if not settings.broadcasting:
            self._redelivery = Redelivery(self._calls, settings)
        self._caller.tracer = self._tracer
        if self._handlers:
            loop = asyncio.get_running_loop()
            self._workers = [
                loop.create_task(self._work_forever(), name=f"consume {self._name} {number}")
                for number in range(settings.consume_threads)
            ]
        if self._ordered_with_locks:
            self._lock_task = self._run(self._renew_forever(), "locks")
            # It outlives the other tasks: the queue stays locked while its handler runs.
            self._tasks.discard(self._lock_task)
        if not settings.ordered and self._redelivery is not None:
            self._run(self._expire_forever(), "overdue")
        super()._begin()

    async def close(self) -> None:
        """Wait for running handlers, save offsets, unlock queues, leave the group.

        No further handler is called. Running ones get `close_timeout_ms`; then coroutines are
        cancelled, and threads, which cannot be, end by themselves, uncommitted. Called from a
        coroutine handler, it returns immediately and closes after that handler.
        """
        if asyncio.current_task() in self._workers:
            self._close_task = asyncio.create_task(self.close(), name=f"close {self._name}")
            return
        self._wake_streams()
        try:
            await super().close()
        finally:
            if self._lock_task is not None:
                self._lock_task.cancel()
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _stop(self) -> None:
        await super()._stop()
        try:
            async with asyncio.timeout(self._settings.close_timeout_ms / 1000):
                await self._quiet.wait()
        except TimeoutError:
            log.warning(
                "group %s: %d handlers still run, their messages will be delivered again",
                self._name, self._running_count,
            )  # fmt: skip
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers)
        if self._lock_task is not None:
            self._lock_task.cancel()
            await asyncio.wait((self._lock_task,))
            await self._offsets.persist([*self._held, *self._leaving])
            await orderly.unlock(self._calls, [*self._held.values(), *self._leaving.values()])
        for message in tuple(self._observations):
            self._end_observation(message, done=False)

    async def wait_closed(self) -> None:
        """Wait until the consumer is closed."""
        await self._close_done.wait()

    def suspend(self) -> None:
        """Stop pulling until `resume`; pulled messages are still handled."""
        self._suspended = True

    def resume(self) -> None:
        """Continue pulling."""
        self._suspended = False
        for held in self._held.values():
            held.wake.set()

    @property
    def _ordered_with_locks(self) -> bool:
        return self._settings.ordered and not self._settings.broadcasting

    # -- work --------------------------------------------------------------------------------------

    def _new_state(self, queue_offset: int) -> ProcessQueue:
        if self._settings.ordered:
            return OrderedQueue(queue_offset, steady_ms())
        return ConcurrentQueue(queue_offset, steady_ms())

    def _on_pulled(self, held: HeldQueue, messages: list[ReceivedMessage]) -> None:
        if self._settings.ordered:
            held.ordered.put(messages)
            if not held.ordered.consuming:
                held.ordered.consuming = True
                self._work.put_nowait((held, None))
            return
        if held.queue.topic == self._retry_topic:
            batches = concurrent.cut_by_topic(held.concurrent, messages, self._batch_size)
        else:
            batches = held.concurrent.put(messages, self._batch_size(messages[0].topic))
        for batch in batches:
            self._work.put_nowait((held, batch))

    def _batch_size(self, topic: str) -> int:
        handler = self._handlers.get(topic)
        return handler.batch_size if handler else 1

    async def _work_forever(self) -> None:
        loop = asyncio.get_running_loop()
        yielded_s = loop.time()
        while True:
            work = await self._work.get()
            if work is None or self._closing:
                continue
            held, batch = work
            if held.state.dropped:
                continue
            self._enter()
            try:
                if batch is None:
                    await self._consume_in_order(held)
                elif not batch.finished:
                    await self._consume(held, batch)
            except Exception:  # a worker must go on
                log.exception("group %s, queue %s: consuming failed", self._name, held.queue)
            finally:
                self._exit()
            if loop.time() - yielded_s > _YIELD_AFTER_S:
                await asyncio.sleep(0)
                yielded_s = loop.time()

    def _enter(self) -> None:
        self._running_count += 1
        self._quiet.clear()

    def _exit(self) -> None:
        self._running_count -= 1
        if not self._running_count:
            self._quiet.set()

    async def _call(self, topic: str, messages: list[ReceivedMessage]) -> Outcome:
        """Call the handler of a topic; without one the topic was unsubscribed."""
        handler = self._handlers.get(topic)
        if handler is None:
            return Outcome(Later())
        started_ms = steady_ms()
        outcome = await self._caller.call(handler, messages)
        done = len(messages) if outcome.later is None else outcome.later.done_count
        self._rates.consumed(
            messages[0].stored.topic, done, len(messages) - done, started_ms, steady_ms()
        )
        return outcome

    def _later(self, delay_ms: int, work: _Work) -> None:
        """Queue work after a delay, unless the consumer is closed by then."""
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._put, work)

    def _put(self, work: _Work) -> None:
        if not self._closing:
            self._work.put_nowait(work)

    # -- in any order ------------------------------------------------------------------------------

    async def _consume(self, held: HeldQueue, batch: Batch) -> None:
        batch.started_ms = steady_ms()
        outcome = await self._call(batch.messages[0].topic, batch.messages)
        if outcome.later is None and not (held.state.dropped or batch.finished):
            # Fast path of `_apply_outcome`, without its awaits.
            held.concurrent.finish(batch, steady_ms())
            self._advance(held)
        else:
            await self._apply_outcome(held, batch, outcome)

    async def _apply_outcome(self, held: HeldQueue, batch: Batch, outcome: Outcome) -> None:
        if held.state.dropped or batch.finished:
            return  # the queue was released, or the message was sent back for taking too long
        if not await concurrent.apply_outcome(held, batch, outcome, self._redelivery):
            self._later(self._settings.local_retry_ms, (held, batch))
        self._advance(held)

    def _advance(self, held: HeldQueue) -> None:
        if not held.state.dropped:
            self._offsets.update(held.queue, held.state.progress)
            held.wake.set()

    async def _expire_forever(self) -> None:
        timeout_ms = self._settings.consume_timeout_ms
        assert self._redelivery is not None
        while True:
            await asyncio.sleep(min(timeout_ms, 60_000) / 1000)
            for held in tuple(self._held.values()):
                await concurrent.send_back_overdue(held, self._redelivery, timeout_ms)
                self._advance(held)

    # -- in order ----------------------------------------------------------------------------------

    async def _consume_in_order(self, held: HeldQueue) -> None:
        """Call the handler until the queue is empty or has to wait."""
        loop = asyncio.get_running_loop()
        state = held.ordered
        began_s = loop.time()
        self._running.add(held)
        try:
            while not (state.dropped or self._closing):
                if self._ordered_with_locks and not state.lock_holds(steady_ms()):
                    self._run(self._recover_lock(held), "lock")
                    return
                if loop.time() - began_s > _CONTINUOUSLY_S:
                    self._later(10, (held, None))
                    return
                if not await self._consume_next(held):
                    return
        finally:
            self._running.discard(held)
            held.wake.set()

    async def _consume_next(self, held: HeldQueue) -> bool:
        """Call the handler with the next messages; False if the queue is empty or has to wait."""
        state = held.ordered
        messages = state.next_messages(1, steady_ms())
        if not messages:
            state.consuming = False
            return False
        topic = messages[0].topic
        if (size := self._batch_size(topic)) > 1:
            messages += state.next_messages(size - 1, steady_ms())
            # Retry topics mix the messages of several topics.
            same = sum(1 for _ in takewhile(lambda each: each.topic == topic, messages))
            if same < len(messages):
                state.give_back(len(messages) - same, messages[same:])
                del messages[same:]
        outcome = await self._call(topic, messages)
        may_continue = await orderly.apply_outcome(
            held, messages, outcome, self._calls, self._settings
        )
        if self._held.get(held.queue) is held or held.queue in self._leaving:
            self._offsets.update(held.queue, state.progress)
        if not may_continue:
            pause_ms = orderly.pause_ms(outcome.later, self._settings)
            self._later(pause_ms, (held, None))
        return may_continue

    async def _can_claim(self, queue: Queue) -> bool:
        if queue in self._leaving:
            return False
        return not self._ordered_with_locks or await orderly.lock_one(self._calls, queue)

    async def _can_pull(self, held: HeldQueue) -> bool:
        if not self._ordered_with_locks or held.state.lock_holds(steady_ms()):
            return True
        held.wake.clear()
        await asyncio.sleep(_LOCK_AGAIN_MS / 1000)
        return False

    async def _recover_lock(self, held: HeldQueue) -> None:
        """Acquire a lost lock again, then continue with the queue."""
        while not (held.state.dropped or self._closing):
            if await orderly.lock_one(self._calls, held.queue):
                held.state.set_lock(True, steady_ms())
                self._work.put_nowait((held, None))
                return
            await asyncio.sleep(_LOCK_REFUSED_MS / 1000)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lock_ms / 1000)
            await orderly.renew(self._calls, [*self._held.values(), *self._leaving.values()])

    async def _on_given_up(self, held: HeldQueue) -> None:
        if not self._ordered_with_locks:
            return
        self._leaving[held.queue] = held
        if held in self._running:
            self._run(self._unlock(held), "unlock")
        else:
            await self._unlock(held)

    async def _handler_ended(self, held: HeldQueue) -> None:
        while held in self._running:
            held.wake.clear()
            await held.wake.wait()

    async def _wait_for_handler(self, held: HeldQueue) -> None:
        try:
            async with asyncio.timeout(_HANDLER_WAIT_S):
                await self._handler_ended(held)
        except TimeoutError:
            log.warning("group %s, queue %s: the handler still runs", self._name, held.queue)

    async def _unlock(self, held: HeldQueue) -> None:
        """Save the offset and release the queue for its next owner, after its running handler."""
        await self._handler_ended(held)
        self._offsets.update(held.queue, held.state.progress)
        await self._offsets.persist((held.queue,))
        if held.queue not in self._held:
            self._offsets.forget(held.queue)
        await orderly.unlock(self._calls, (held,))
        self._leaving.pop(held.queue, None)
        self._rebalance_wanted.set()

    # -- async for ---------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """The messages, for a consumer without handlers; see the module."""
        if self._handlers:
            raise ConfigError(f"group {self._name}: the messages go to its handlers")
        return self._stream()

    async def _stream(self) -> AsyncGenerator[ReceivedMessage]:
        while (message := await self.next_message()) is not None:
            yield message
            await self.ack(message)

    async def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message before asking for the next one. Idempotent."""
        await self._end(message, None)

    async def retry(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have a message delivered again; see `Later` for the delay level."""
        await self._end(message, Later(delay_level))

    async def _end(self, message: ReceivedMessage, later: Later | None) -> None:
        if (work := self._open.pop(message, None)) is not None:
            self._end_observation(message, done=later is None)
            await self._apply_outcome(*work, Outcome(later))

    def _begin_observation(self, message: ReceivedMessage) -> None:
        """Start span and trace of a message that a stream yields."""
        tracer, telemetry = self._tracer, self._telemetry
        if tracer is not None or telemetry is not None:
            self._observations[message] = (
                telemetry.begin_processing(message) if telemetry else None,
                tracer.begin((message,)) if tracer else None,
            )

    def _end_observation(self, message: ReceivedMessage, *, done: bool) -> None:
        span, handling = self._observations.pop(message, (None, None))
        if span is not None and self._telemetry is not None:
            self._telemetry.end_processing(span, message.topic, done=done)
        if handling is not None:
            handling.end(ConsumeReturn.SUCCESS if done else ConsumeReturn.FAILED)

    async def next_message(self) -> ReceivedMessage | None:
        """The next message, to be ended by `ack` or `retry`; None once the consumer is closed."""
        while not self._closing:
            if self._hub is None:
                raise ClientClosed(f"group {self._name}: the consumer was not started")
            held, batch = await self._work.get() or (None, None)
            if held is None or batch is None or held.state.dropped or batch.finished:
                continue
            batch.started_ms = steady_ms()
            message = batch.messages[0]
            self._open[message] = (held, batch)
            self._begin_observation(message)
            return message
        self._wake_streams()
        return None

    def _wake_streams(self) -> None:
        self._work.put_nowait(None)

    # -- for brokers -------------------------------------------------------------------------------

    def on_request(self, connection: Connection, request: Command) -> Reply:
        """Handle a request of a broker."""
        if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._consume_directly(request)
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            header = headers.decode(GetConsumerRunningInfoRequest, request.fields)
            info = self.running_info()
            if header.jstack_enable:
                info = msgspec.structs.replace(info, jstack=stack_dump())
            return success(bodies.encode(info))
        return super().on_request(connection, request)

    async def _consume_directly(self, request: Command) -> Command:
        """Call the handler with a message that an operator chose; responds with the outcome."""
        message = direct_message(request, self._settings)
        started_ms = steady_ms()
        outcome = None
        if message.topic in self._handlers and not self._closing:
            self._enter()
            try:
                outcome = await self._call(message.topic, [message])
            finally:
                self._exit()
        return direct_response(message, outcome, steady_ms() - started_ms, self._settings)

    def _info_properties(self) -> dict[str, str]:
        return super()._info_properties() | {
            "PROP_CONSUMEORDERLY": "true" if self._settings.ordered else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(self._settings.consume_threads),
        }
