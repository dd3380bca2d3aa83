"""A task of the sink: sends the record batches of a partition to brokers.

    rows without orderKey   batches by topic, round robin over queues, with failover of brokers
    rows with orderKey      batches by queue, one in flight per queue
    delayed rows            single messages, since brokers accept no delayed batches
    transactional rows      single half messages, not yet visible to consumers

Delivery is at least once: a failed send is retried for `retryFor`, then the task fails and Spark
repeats it. All attempts of a message have the same id.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
from pyarrow import RecordBatch

from tianzhou.client.connection.retry_policy import RetryRule
from tianzhou.client.identity import unique_ids
from tianzhou.client.message import Message
from tianzhou.client.producer.producer import Producer
from tianzhou.client.producer.selectors import by_shard
from tianzhou.client.queues import Queue
from tianzhou.client.sending.send_request import (
    Outgoing,
    SendResult,
    SendStatus,
    batch_item,
    may_batch,
    outgoing_batch,
)
from tianzhou.errors import TianzhouError
from tianzhou.protocol import properties
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.records.message_id import decode_offset_id
from tianzhou.spark.sink.options import SinkOptions
from tianzhou.spark.sink.rows import (
    Items,
    Rows,
    allows_batches,
    items_of,
    may_be_items,
    messages_of,
    rows_by_queue,
    rows_by_topic,
)

T = TypeVar("T")

_PAUSE_S, _PAUSE_MAX_S = 0.1, 2.0
_BURST_MAX_S = 0.1
_NO_RETRY = RetryRule(0)


class Half(msgspec.Struct, frozen=True, array_like=True):
    """The position and identity of a half message."""

    broker_name: str
    topic: str
    queue_offset: int
    log_offset: int
    msg_id: str
    transaction_id: str | None = None


@dataclass(slots=True)
class Written:
    """The result of a task."""

    row_count: int = 0
    degraded_count: int = 0
    """Messages stored with weaker durability than the broker is configured for."""
    halves: list[Half] = field(default_factory=list[Half])


def write(batches: Iterator[RecordBatch], options: SinkOptions) -> Written:
    """Send all rows. Raises TianzhouError; then some of them may have been sent."""
    return asyncio.run(_write(batches, options))


async def _write(batches: Iterator[RecordBatch], options: SinkOptions) -> Written:
    rate_limit = RateLimit(options.max_rows_per_second) if options.max_rows_per_second else None
    async with SinkProducer(options) as producer:
        task = SinkTask(producer, options)
        # Encoding rows together does not pay off where they are sent singly or at a limited rate.
        together = rate_limit is None and not options.exactly_once
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            if together and await task.add_rows(batch):
                continue
            for message in messages_of(batch, options.topic):
                if rate_limit is not None:
                    await rate_limit.wait()
                await task.add(message)
        await task.finish()
        return task.written


class RateLimit:
    """Limits the rows per second."""

    def __init__(self, rows_per_second: int) -> None:
        self._pause_s = 1 / rows_per_second
        self._next_s = time.monotonic()

    async def wait(self) -> None:
        """Wait until the next row may be sent."""
        now_s = time.monotonic()
        # After an outage of brokers, at most this much of the missed time is caught up.
        self._next_s = max(self._next_s, now_s - _BURST_MAX_S) + self._pause_s
        ahead_s = self._next_s - now_s
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)


class SinkProducer(Producer):
    """A producer that sends batches to a given queue, and half messages."""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(
            options.group,
            settings=options.client_settings(),
            send_timeout_ms=options.request_timeout,
            in_flight_count=max(options.in_flight_limit * options.batch_count, 1024),
        )
        self._half_extra = {
            properties.TRANSACTION_PREPARED: "true",
            properties.PRODUCER_GROUP: self._group,
            # The driver decides the batch; an earlier check of the broker would get no response.
            properties.CHECK_IMMUNITY_SECONDS: str(options.transaction_timeout // 1000),
        }

    def item(self, message: Message) -> bytes:
        """A message encoded as an item of a batch. Raises MessageRefused."""
        return batch_item(message, unique_ids.next(), self._namespace)

    def pack(self, topic: str, items: list[bytes]) -> Outgoing:
        """A batch, ready to be sent. Raises MessageRefused."""
        return outgoing_batch(self._wire_topic(topic), items, (), self.settings, wait_stored=True)

    async def deliver(self, batch: Outgoing, queue: Queue | None) -> int:
        """Send a batch to a queue, or to any; returns the response code of the broker."""
        wire = None if queue is None else queue._replace(topic=batch.topic)
        tries = self._submitted_rule if queue is None else _NO_RETRY
        stored = await self._sender.send(batch, tries, self._limit(None), wire)
        return stored.answer.code

    async def half(self, message: Message, queue: Queue | None) -> SendResult:
        """Send a half message."""
        wire = None
        if queue is not None:
            wire = queue._replace(topic=self._wire_topic(message.topic))
        return await self._send(message, self._limit(None), wire, self._half_extra)


@dataclass(slots=True)
class _PendingBatch:
    """Messages collected for a batch."""

    topic: str
    queue: Queue | None
    items: list[bytes] = field(default_factory=list[bytes])
    """Encoded items; each entry has one or more messages."""
    count: int = 0
    size_bytes: int = 0


class SinkTask:
    """The sends of one task: batches that fill up, and sends in flight."""

    def __init__(self, producer: SinkProducer, options: SinkOptions) -> None:
        self._producer = producer
        self._options = options
        self._slots = asyncio.Semaphore(options.in_flight_limit)
        self._pending: dict[tuple[str, Queue | None], _PendingBatch] = {}
        self._queues: dict[str, list[Queue]] = {}
        self._last: dict[Queue, asyncio.Task[None]] = {}
        self._sends: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self.written = Written()

    async def add(self, message: Message) -> None:
        """Send a row; waits while too many sends are in flight. Raises what a send raised."""
        queue = None
        if message.shard is not None:
            queue = by_shard(await self._queues_of(message.topic), message)
        self.written.row_count += 1
        if self._options.exactly_once or not may_batch(message):
            await self._launch(lambda: self._send_single(message, queue), queue)
            return
        item = self._producer.item(message)
        pending = await self._batch_with_space(message.topic, queue, len(item))
        await self._put(pending, item, 1)

    async def add_rows(self, batch: RecordBatch) -> bool:
        """Send the rows of a record batch together; False if they must be added one by one."""
        if self._producer.settings.namespace or not may_be_items(batch):
            return False
        made: list[tuple[str, Queue | None, Items]] = []
        for topic, rows in rows_by_topic(batch, self._options.topic):
            if not allows_batches(topic):
                return False
            for queue, some in await self._rows_by_queue(batch, topic, rows):
                items = items_of(batch, some)
                if items is None:
                    return False
                made.append((topic, queue, items))
        for topic, queue, items in made:
            self.written.row_count += len(items.ends)
            await self._add_items(topic, queue, items)
        return True

    async def _rows_by_queue(
        self, batch: RecordBatch, topic: str, rows: Rows
    ) -> list[tuple[Queue | None, Rows]]:
        if "orderKey" not in batch.schema.names:
            return [(None, rows)]
        queues = await self._queues_of(topic)
        return [
            (None if index < 0 else queues[index], some)
            for index, some in rows_by_queue(batch, rows, len(queues))
        ]

    async def finish(self) -> None:
        """Send what is left and wait for all. Raises what a send raised."""
        for pending in list(self._pending.values()):
            await self._send_pending(pending)
        if self._sends:
            await asyncio.wait(self._sends)
        self._check()

    # -- batches -----------------------------------------------------------------------------------

    async def _add_items(self, topic: str, queue: Queue | None, items: Items) -> None:
        data, ends = memoryview(items.data), items.ends
        at = start = 0
        while at < len(ends):
            pending = await self._batch_with_space(topic, queue, int(ends[at]) - start)
            fitting = start + self._options.batch_bytes - pending.size_bytes
            stop = int(np.searchsorted(ends, fitting, "right"))
            # An empty batch accepts its first message, however large it is.
            stop = min(max(stop, at + 1), at + self._options.count_limit - pending.count)
            end = int(ends[stop - 1])
            await self._put(pending, bytes(data[start:end]), stop - at)
            at, start = stop, end

    async def _batch_with_space(
        self, topic: str, queue: Queue | None, size_bytes: int
    ) -> _PendingBatch:
        """The batch of a topic and queue; a full one is sent and replaced by a new one."""
        key = (topic, queue)
        pending = self._pending.get(key)
        if pending is not None and pending.size_bytes + size_bytes > self._options.batch_bytes:
            await self._send_pending(pending)
            pending = None
        if pending is None:
            pending = self._pending[key] = _PendingBatch(topic, queue)
        return pending

    async def _put(self, pending: _PendingBatch, items: bytes, count: int) -> None:
        pending.items.append(items)
        pending.count += count
        pending.size_bytes += len(items)
        if pending.count >= self._options.count_limit:
            await self._send_pending(pending)

    async def _send_pending(self, pending: _PendingBatch) -> None:
        self._pending.pop((pending.topic, pending.queue), None)
        batch = self._producer.pack(pending.topic, pending.items)
        await self._launch(lambda: self._send_batch(batch, pending), pending.queue)

    # -- sends -------------------------------------------------------------------------------------

    async def _launch(
        self, work: Callable[[], Coroutine[Any, Any, None]], queue: Queue | None
    ) -> None:
        """Start a send within the limit in flight; sends to one ordered queue are sequential."""
        await self._slots.acquire()
        try:
            self._check()
        except BaseException:
            self._slots.release()
            raise
        before = None if queue is None else self._last.get(queue)

        async def run() -> None:
            try:
                if before is not None and not before.done():
                    await asyncio.wait((before,))
                if self._failure is None:
                    await work()
            except BaseException as e:  # noqa: BLE001 - raised again by _check, in the task's own call
                self._failure = self._failure or e
            finally:
                self._slots.release()

        send = asyncio.get_running_loop().create_task(run())
        self._sends.add(send)
        send.add_done_callback(self._sends.discard)
        if queue is not None:
            self._last[queue] = send

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _send_batch(self, batch: Outgoing, pending: _PendingBatch) -> None:
        code = await self._retry(lambda: self._producer.deliver(batch, pending.queue))
        if code != ResponseCode.SUCCESS:
            self.written.degraded_count += pending.count

    async def _send_single(self, message: Message, queue: Queue | None) -> None:
        """Send a message outside of batches; with exactlyOnce, as a half message."""
        if self._options.exactly_once:
            sent = await self._retry(lambda: self._producer.half(message, queue))
            _, log_offset = decode_offset_id(sent.offset_msg_id)
            half = Half(
                sent.queue.broker_name, message.topic, sent.queue_offset, log_offset, sent.msg_id,
                sent.transaction_id,
            )  # fmt: skip
            self.written.halves.append(half)
        else:
            sent = await self._retry(lambda: self._producer.send(message, queue=queue))
        if sent.status is not SendStatus.SEND_OK:
            self.written.degraded_count += 1

    async def _queues_of(self, topic: str) -> list[Queue]:
        queues = self._queues.get(topic)
        if queues is None:
            found = await self._retry(lambda: self._producer.queues(topic))
            queues = self._queues[topic] = list(found)
        return queues

    async def _retry(self, send: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await retry(send, self._options.retry_for)


async def retry(send: Callable[[], Coroutine[Any, Any, T]], retry_for_ms: int) -> T:
    """Retry with back-off until success, the deadline, or an error that is not retriable."""
    deadline_s = time.monotonic() + retry_for_ms / 1000
    pause_s = _PAUSE_S
    while True:
        try:
            return await send()
        except TianzhouError as e:
            if not e.retriable or time.monotonic() + pause_s > deadline_s:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_MAX_S)
