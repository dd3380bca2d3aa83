"""The send pipeline of a producer: start and close, and the way of a message to the broker.

    capacity   wait while too many messages are in flight (`in_flight_limit`)
    post       first attempt, without a task: its `InFlightSend` is registered with the pending
               requests of the connection, and is called when it ends
    retry      further attempts, in a task (`sending.retrying`)
    finish     decode the response, release the capacity, set the result, trace

With `linger_ms` messages are collected in batches first (`linger_batches`).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from tianzhou.client import namespaces
from tianzhou.client.connection.retry_policy import NO_RETRY, RetryRule
from tianzhou.client.connection.shared_hubs import acquire
from tianzhou.client.identity import unique_ids
from tianzhou.client.lifetime import Lifetime
from tianzhou.client.message import Message
from tianzhou.client.observe import trace
from tianzhou.client.observe.telemetry import telemetry_of
from tianzhou.client.observe.trace import Tracer
from tianzhou.client.producer.in_flight_limit import InFlightLimit
from tianzhou.client.producer.linger_batches import LingerBatch, LingerBatches
from tianzhou.client.queues import Queue
from tianzhou.client.sending import send_request
from tianzhou.client.sending.retrying import FirstAttempt, RetryingSender, TimeLimit
from tianzhou.client.sending.send_request import STATUSES, Outgoing, SendResult
from tianzhou.client.sending.settings import ProducerOptions, ProducerSettings
from tianzhou.client.settings import ClientSettings, settings_from
from tianzhou.clock import wall_ms
from tianzhou.errors import (
    ClientClosed,
    ConfigError,
    QueueNotFound,
    RemoteBusy,
    RemotingError,
    RequestTimeout,
    SendTimeout,
    TianzhouError,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command

log = logging.getLogger(__name__)

_GRAIN_S = 0.001
"""Messages of a batch whose deadlines are so close to each other time out together."""

Reselect = Callable[[QueueNotFound], Awaitable[Queue]]
"""Calls the program's selector again after a broker has responded that its queue does not exist."""


class SendPipeline(Lifetime):
    """The base of `Producer`, which adds the methods for programs."""

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Options override `settings`; nothing is connected yet.

        Raises ConfigError for wrong settings and MessageRefused for an invalid group.
        """
        self.settings = settings_from(ProducerSettings, settings, options)
        send_request.check_group(group)
        self._namespace = self.settings.namespace
        self._group = namespaces.wrap(self._namespace, group)
        self._sender = RetryingSender(self._group, self.settings)
        self._in_flight = InFlightLimit(
            self.settings.in_flight_count, self.settings.in_flight_bytes
        )
        self._batches = (
            LingerBatches(lambda batch: self._run(self._send_linger_batch(batch)), self.settings)
            if self.settings.linger_ms
            else None
        )
        self._awaited_rule = RetryRule(
            self.settings.retry_count,
            on_error_response=True,
            until_ok=self.settings.retry_when_not_stored,
        )
        self._submitted_rule = RetryRule(self.settings.async_retry_count)
        self._tracer = (
            Tracer(self._group, "PRODUCE", self.settings) if self.settings.trace else None
        )
        self._telemetry = telemetry_of(self.settings, self._group)
        self._timeout_s = self.settings.send_timeout_ms / 1000
        self._wire_topics: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False

    @property
    def group(self) -> str:
        """The group as brokers know it, with its namespace."""
        return self._group

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._group}{'' if self._running else ', not running'}>"

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start on the running event loop; connections are opened with the first message."""
        if self._running:
            raise ClientClosed(f"group {self._group}: the producer is already started")
        hub = acquire(self.settings)
        self._sender.start(hub)
        if self._tracer is not None:
            self._tracer.start(hub)
        self._running = True

    async def close(self) -> None:
        """Wait for messages in flight (`close_timeout_ms`), then disconnect. Idempotent."""
        if not self._running:
            return
        self._running = False
        if self._batches is not None:
            self._batches.send_all()
        if not await self._in_flight.wait_until_empty(self.settings.close_timeout_ms):
            log.warning(
                "group %s: closed with %d sends in flight", self._group, self._in_flight.count
            )
        hub = self._sender.stop()
        if self._tracer is not None:
            await self._tracer.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
        await hub.leave(self._sender)
        await hub.release()

    # -- one message -------------------------------------------------------------------------------

    async def _send(
        self,
        message: Message,
        limit: TimeLimit,
        queue: Queue | None = None,
        extra: dict[str, str] | None = None,
    ) -> SendResult:
        """An awaited send."""
        rule = self._awaited_rule if queue is None else NO_RETRY
        return await (await self._start_send(message, rule, limit, queue, extra))

    async def _start_send(
        self,
        message: Message,
        rule: RetryRule,
        limit: TimeLimit,
        queue: Queue | None = None,
        extra: dict[str, str] | None = None,
        reselect: Reselect | None = None,
    ) -> asyncio.Future[SendResult]:
        """Wait for capacity and send the message; the future gives its result.

        With telemetry this is done within a span, whose context the message carries.
        """
        self._check_running()
        telemetry, span, began_s = self._telemetry, None, 0.0
        if telemetry is not None:
            began_s = time.monotonic()
            carrier: dict[str, str] = {}
            span = telemetry.begin_send(message, carrier)
            extra = carrier | (extra or {})
        try:
            out = self._outgoing(message, extra)
            size_bytes = len(out.body)
            await self._acquire_capacity(size_bytes, limit.deadline_s)
        except BaseException:
            if span is not None:
                span.end()
            raise
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        pending = InFlightSend(self, future, message, out, rule, limit, queue, reselect)
        if telemetry is not None:
            # No closure: one would make every send slower, with telemetry or without.
            future.add_done_callback(partial(telemetry.end_send, span, message.topic, began_s))
        try:
            pending.queue = self._sender.post(out, queue, pending, limit)
        except TianzhouError as error:
            self._in_flight.remove(size_bytes)
            future.set_exception(error)
            return future
        if pending.queue is None:
            self._run(self._send_in_task(pending, None))
        return future

    def on_first_response(self, pending: "InFlightSend", answer: Command) -> None:
        """The first attempt got a response."""
        queue = pending.queue
        assert queue is not None
        rule = pending.rule
        if answer.code not in STATUSES:
            self.on_first_failure(pending, self._sender.response_error(answer, queue))
        elif (
            rule.until_ok and answer.code != ResponseCode.SUCCESS and rule.retry_count
            and self._sender.is_running
        ):  # fmt: skip
            self._run(self._send_in_task(pending, FirstAttempt(queue, answer)))
        else:
            self._finish(pending, answer, queue)

    def on_first_failure(self, pending: "InFlightSend", error: TianzhouError) -> None:
        """The first attempt failed."""
        queue = pending.queue
        assert queue is not None
        if not self._sender.is_running:  # closed before this response
            self._in_flight.remove(len(pending.out.body))
            fail((pending.future,), error)
            return
        if isinstance(error, RequestTimeout):
            self._sender.hub.probe(queue.broker_name)
        self._run(self._send_in_task(pending, FirstAttempt(queue, error)))

    async def _send_in_task(self, pending: "InFlightSend", first: FirstAttempt | None) -> None:
        """All attempts, or those after the first."""
        out, rule, limit = pending.out, pending.rule, pending.limit
        try:
            try:
                stored = await self._sender.send(out, rule, limit, pending.chosen, first)
            except QueueNotFound as refused:
                if pending.reselect is None:
                    raise
                # The selector used an outdated route.
                chosen = await pending.reselect(refused)
                stored = await self._sender.send(out, rule, limit, chosen)
        except BaseException as error:
            self._in_flight.remove(len(pending.out.body))
            fail((pending.future,), error)
            if not isinstance(error, TianzhouError):
                raise
        else:
            self._finish(pending, stored.answer, stored.queue)

    def _finish(self, pending: "InFlightSend", answer: Command, queue: Queue) -> None:
        """A broker has stored the message."""
        out, future = pending.out, pending.future
        self._in_flight.remove(len(out.body))
        if future.done():
            return
        try:
            result = send_request.result_of(answer, out, pending.message.topic, queue.broker_name)
        except TianzhouError as error:
            future.set_exception(error)
            return
        future.set_result(result)
        if self._tracer is not None and self._sender.is_running:
            took_ms = pending.limit.timeout_ms - pending.limit.left_ms(self._sender.hub.loop.time())
            self._trace(self._tracer, (pending.message,), (result,), int(took_ms), out.sys_flag)

    def _trace(
        self,
        tracer: Tracer,
        messages: Sequence[Message],
        results: Sequence[SendResult],
        took_ms: int,
        sys_flag: int = 0,
    ) -> None:
        store_host = self._sender.hub.routes.master_address(results[0].queue.broker_name) or ""
        began_ms = wall_ms() - took_ms
        for message, result in zip(messages, results, strict=True):
            if result.trace_on:
                kind = trace.traced_kind(message, sys_flag)
                tracer.add(
                    trace.published(
                        message, result, group=tracer.plain_group, store_host=store_host,
                        began_ms=began_ms, cost_ms=took_ms, kind=kind,
                    )
                )  # fmt: skip

    def _outgoing(self, message: Message, extra: dict[str, str] | None = None) -> Outgoing:
        return send_request.outgoing(
            message, self._wire_topic(message.topic), unique_ids.next(), self.settings,
            namespace=self._namespace, extra=extra,
        )  # fmt: skip

    def _wire_topic(self, topic: str) -> str:
        wire_topic = self._wire_topics.get(topic)
        if wire_topic is None:
            wire_topic = namespaces.wrap(self._namespace, topic)
            send_request.check_topic(wire_topic)
            self._wire_topics[topic] = wire_topic
        return wire_topic

    # -- batches -----------------------------------------------------------------------------------

    async def _send_batch(
        self,
        batch: Outgoing,
        messages: Sequence[Message],
        limit: TimeLimit,
        queue: Queue | None = None,
    ) -> list[SendResult]:
        began_s = time.monotonic()
        rule = self._awaited_rule if queue is None else NO_RETRY
        with self._telemetry.sending_batch(messages) if self._telemetry else nullcontext():
            stored = await self._sender.send(batch, rule, limit, queue)
            results = send_request.results_of(
                stored.answer, batch, messages[0].topic, stored.queue.broker_name
            )
        if self._tracer is not None:
            took_ms = int((time.monotonic() - began_s) * 1000)
            self._trace(self._tracer, messages, results, took_ms)
        return results

    # -- linger ------------------------------------------------------------------------------------

    async def _send_linger_batch(self, batch: LingerBatch) -> None:
        """Send until the last deadline; a message whose own deadline passes fails before."""
        messages, futures = batch.messages, batch.futures
        last_s = batch.last_deadline_s
        left_ms = max(round((last_s - asyncio.get_running_loop().time()) * 1000), 1)
        self._watch_deadlines(batch)
        try:
            out = send_request.outgoing_batch(
                batch.topic, batch.pieces, batch.unique_ids, self.settings,
                wait_stored=batch.wait_stored,
            )  # fmt: skip
            limit = TimeLimit(left_ms, last_s)
            results = await self._send_batch(out, messages, limit)
        except BaseException as error:
            fail(futures, error)
            if not isinstance(error, TianzhouError):
                raise
        else:
            for future, result in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(result)
        finally:
            if batch.timer is not None:
                batch.timer.cancel()
            self._in_flight.remove(batch.size_bytes, len(futures))

    def _watch_deadlines(self, batch: LingerBatch) -> None:
        """Fail the messages whose deadline has passed, and schedule the next deadline.

        The last ones fail with the send itself, whose error says what was tried.
        """
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for future in batch.overdue(now_s):
            future.set_exception(
                SendTimeout(
                    f"topic {batch.topic}, group {self._group}: the batch of "
                    f"{len(batch.futures)} messages has no response, and the time is up",
                    try_count=1, retriable=True,
                )
            )  # fmt: skip
        next_s = batch.next_deadline_s(now_s) + _GRAIN_S
        is_last = next_s >= batch.last_deadline_s
        batch.timer = None if is_last else loop.call_at(next_s, self._watch_deadlines, batch)

    # -- inside ------------------------------------------------------------------------------------

    def _check_running(self) -> None:
        if not self._running:
            raise ClientClosed(f"group {self._group}: the producer is not started, or closed")

    def _limit(self, timeout_ms: int | None) -> TimeLimit:
        """The deadline of a send that begins now. Raises ConfigError for an invalid time-out."""
        if timeout_ms is not None and (not isinstance(timeout_ms, int) or timeout_ms < 0):  # pyright: ignore[reportUnnecessaryIsInstance] - not all programs are checked
            raise ConfigError(f"timeout_ms is {timeout_ms!r}; it must be a number of milliseconds")
        timeout_ms = timeout_ms or self.settings.send_timeout_ms
        return TimeLimit(timeout_ms, asyncio.get_running_loop().time() + timeout_ms / 1000)

    async def _acquire_capacity(self, size_bytes: int, deadline_s: float) -> None:
        """Wait for capacity. Raises SendTimeout; nothing has been sent then."""
        in_flight = self._in_flight
        if not in_flight.is_full:
            in_flight.add(size_bytes)
            return
        try:
            left_s = deadline_s - asyncio.get_running_loop().time()
            await in_flight.wait_for_capacity(left_s * 1000)
        except RemoteBusy as e:
            raise SendTimeout(
                f"group {self._group}: nothing was sent: {e}", try_count=0, retriable=True
            ) from e
        in_flight.add(size_bytes, 0)
        if not self._running:
            in_flight.remove(size_bytes)
            self._check_running()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@dataclass(slots=True, eq=False)
class InFlightSend:
    """A message in flight, without a response yet: the `Waiter` of its first attempt."""

    pipeline: SendPipeline
    future: asyncio.Future[SendResult]
    message: Message
    out: Outgoing
    rule: RetryRule
    limit: TimeLimit
    chosen: Queue | None
    """The queue that the program chose; every attempt goes there."""
    reselect: Reselect | None
    queue: Queue | None = None
    """The queue of the first attempt."""

    def done(self) -> bool:
        """A response is always processed, even if the program has cancelled its future."""
        return False

    def set_result(self, result: Command, /) -> None:
        """The first attempt got a response."""
        self.pipeline.on_first_response(self, result)

    def set_exception(self, exception: RemotingError, /) -> None:
        """The first attempt failed."""
        self.pipeline.on_first_failure(self, exception)


def fail(futures: Iterable[asyncio.Future[SendResult]], error: BaseException) -> None:
    """Fail all futures that are not done."""
    if isinstance(error, asyncio.CancelledError):
        # The callers were not cancelled; the producer was closed.
        error = ClientClosed("closed before the broker responded; the message may have been stored")
    for future in futures:
        if not future.done():
            future.set_exception(error)
