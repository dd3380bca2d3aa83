"""Reads a cluster: the queries by which the driver plans, and the pulls of executors.

The methods block; requests run on the event loop of the process (`loop_thread`), so a worker that
Spark forks starts its own. Responses stay bytes; records are decoded to columns later, in bulk.

A range is read in blocks of offsets, several concurrently, because a broker returns 32 messages per
request by default and each request takes a round trip. Blocks are returned in order.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.group.broker_calls import PullStatus
from tianzhou.client.group.subscriptions import Subscription
from tianzhou.client.loop_thread import loop_thread
from tianzhou.client.queues import Queue
from tianzhou.errors import ConfigError, RemotingError, RouteNotFound, TianzhouError
from tianzhou.names import MASTER_ID
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.topics import TopicList
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.pending_requests import Waiter
from tianzhou.spark.columns.malformed import starts_of, store_time_ms
from tianzhou.spark.offsets import (
    BEYOND_END,
    DELETED,
    AtTime,
    Bounds,
    LostRange,
    NamedOffset,
    OffsetSpec,
    OffsetSpecs,
    Positions,
    Range,
    report_loss,
)
from tianzhou.spark.options import ReadFrom, SourceOptions
from tianzhou.spark.source.pull_client import (
    PULL_COUNT_MAX,
    RETRY_DELAY_S,
    PullClient,
    PullResult,
)
from tianzhou.spark.source.pull_pipeline import PullPipeline, cut

log = logging.getLogger(__name__)

I = TypeVar("I")  # noqa: E741 - an item
T = TypeVar("T")

_REQUESTS_MAX = 32
_SAMPLES, _SAMPLE_COUNT = 4, 32
_BOUNDS_ATTEMPTS, _SKIP_ATTEMPTS = 7, 2
"""Attempts to get the bounds of a queue: 6 s in all, and where the queue can be skipped."""
CONFIRM_ATTEMPTS, _CONFIRM_PAUSE_S = 150, 0.2
"""How long reading waits for messages that replicas have not confirmed to a new master: 30 s."""
_BLOCKS_MAX = 4
_BLOCK_BYTES = 1024 * 1024
_BLOCK_COUNT_FIRST = 64
_BLOCK_COUNT_MAX = 4096


@dataclass(slots=True)
class Block:
    """The messages of consecutive offsets."""

    range: Range
    responses: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    """Undecoded records, and the delta to add to their queue offsets."""

    @property
    def size_bytes(self) -> int:
        return sum(len(records) for records, _ in self.responses)


class ClusterReader(PullClient):
    """Queries and reads a cluster as the options say."""

    # -- planning ----------------------------------------------------------------------------------

    def topics(self, pattern: str) -> list[str]:
        """The topics whose whole name matches a pattern. Raises RemotingError."""

        async def ask() -> list[str]:
            command = Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            response = await self._hub.namesrvs.request(command)
            if response.code != ResponseCode.SUCCESS:
                raise broker_error(response, "the list of topics")
            return bodies.decode(TopicList, response.body).topics

        wanted = re.compile(pattern)
        return sorted(topic for topic in loop_thread.run(ask()) if wanted.fullmatch(topic))

    def queues(self, topics: Iterable[str], *, allow_missing: bool = False) -> list[Queue]:
        """All readable queues of topics.

        Raises RouteNotFound for a topic without a route, unless topics may be missing.
        """

        async def ask(topic: str) -> list[Queue]:
            try:
                return await self._calls.queues(topic, refresh=True)
            except RouteNotFound:
                if allow_missing:
                    return []
                raise

        return [queue for found in _gather(topics, ask) for queue in found]

    def bounds(
        self, queues: Iterable[Queue], *, allow_missing: bool = False
    ) -> dict[Queue, Bounds]:
        """The bounds of queues; with `allow_missing` without those of unavailable brokers."""

        attempts_max = _SKIP_ATTEMPTS if allow_missing else _BOUNDS_ATTEMPTS

        async def ask(queue: Queue) -> tuple[Queue, Bounds] | None:
            try:
                return queue, await self._bounds(queue, attempts_max)
            except TianzhouError as error:
                if not allow_missing or not error.retriable:
                    raise
                log.warning("queue %s: skipped, its broker does not respond: %s", queue, error)
                return None

        return dict(found for found in _gather(queues, ask) if found is not None)

    async def _bounds(self, queue: Queue, attempts_max: int) -> Bounds:
        """Retries while another broker takes over, or the broker is back at another address."""
        for number in range(attempts_max):
            try:
                low = await self._calls.min_offset(queue)
                return Bounds(low, max(await self._calls.max_offset(queue), low))
            except TianzhouError as error:
                if number + 1 >= attempts_max or not error.retriable:
                    raise
            if number:
                await asyncio.sleep(RETRY_DELAY_S * 2 ** (number - 1))
            await self._hub.routes.refresh([queue.topic])
        raise AssertionError("attempts_max is at least 1")

    def resolve(self, specs: OffsetSpecs, bounds: dict[Queue, Bounds]) -> Positions:
        """The positions that specs mean. Numbers are not checked against the bounds."""

        async def ask(queue: Queue) -> tuple[Queue, int]:
            return queue, await self._resolve(specs.of(queue), queue, bounds[queue])

        return dict(_gather(bounds, ask))

    async def _resolve(self, spec: OffsetSpec, queue: Queue, held: Bounds) -> int:
        if isinstance(spec, int):
            return spec
        if isinstance(spec, AtTime):
            return await self._time_offset(queue, held, spec.time_ms)
        if spec is NamedOffset.COMMITTED:
            committed = await self._calls.committed(queue)
            return held.low if committed is None else committed
        return held.low if spec is NamedOffset.EARLIEST else held.high

    async def _time_offset(self, queue: Queue, held: Bounds, time_ms: int) -> int:
        """The broker's result if the adjacent messages confirm it, else a binary search.

        Broker versions differ for times before the first and after the last message, and 4.9
        selects a file by its modification time.
        """
        if held.low == held.high:
            return held.high
        guess = min(max(await self._calls.search_offset(queue, time_ms), held.low), held.high)
        for queue_offset in (guess, guess + 1):
            if await self._is_first(queue, held, queue_offset, time_ms):
                return queue_offset
        low, high = held.low, held.high
        while low < high:
            middle = (low + high) // 2
            if await self._store_time_ms(queue, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def _is_first(self, queue: Queue, held: Bounds, queue_offset: int, time_ms: int) -> bool:
        if queue_offset > held.high:
            return False
        if queue_offset < held.high and await self._store_time_ms(queue, queue_offset) < time_ms:
            return False
        return (
            queue_offset == held.low or await self._store_time_ms(queue, queue_offset - 1) < time_ms
        )

    async def _store_time_ms(self, queue: Queue, queue_offset: int) -> int:
        """The store time of the message at an offset, or of the next one after it."""
        while True:
            reply = await self._pull(queue, queue_offset, 1, Subscription(queue.topic), MASTER_ID)
            found = reply.status is PullStatus.FOUND
            if found and (time_ms := store_time_ms(reply.records)) is not None:
                return time_ms
            if reply.next_offset <= queue_offset or reply.next_offset >= reply.max_offset:
                return 2**63 - 1
            queue_offset = reply.next_offset

    def average_bytes(self, positions: Positions) -> float:
        """The average record size, estimated from the next messages of each queue."""

        async def ask(queue: Queue) -> float | None:
            everything = Subscription(queue.topic)
            try:
                reply = await self._pull(queue, positions[queue], 32, everything, MASTER_ID)
            except TianzhouError as error:
                if not error.retriable:
                    raise
                return None  # an estimate from the other queues is enough
            count = reply.next_offset - positions[queue]
            if reply.status is not PullStatus.FOUND or count < 1:
                return None
            return max(len(reply.records) / count, 1.0)

        sizes = [each for each in _gather(positions, ask) if each is not None]
        return sum(sizes) / len(sizes) if sizes else 1.0

    def matching_share(self, ranges: Iterable[Range]) -> float:
        """The share of messages that pass the broker's filter, estimated by sample pulls."""
        if not self._is_filtered:
            return 1.0

        async def ask(queue: Queue) -> tuple[int, int]:
            sampled = matched = 0
            try:
                for at in sample_offsets[queue]:
                    subscription = self._subscription(queue.topic)
                    reply = await self._pull(
                        queue, at, _SAMPLE_COUNT, subscription, self._broker_ids[0]
                    )
                    if reply.next_offset > at:
                        sampled += reply.next_offset - at
                        matched += len(starts_of(reply.records))
            except TianzhouError as error:
                if not error.retriable:
                    raise  # such as an expression that the broker rejects
            return sampled, matched

        sample_offsets: dict[Queue, list[int]] = {}
        for each in ranges:
            step = -(-each.count // _SAMPLES)
            sample_offsets.setdefault(each.queue, []).extend(range(each.first, each.stop, step))
        counts = _gather(sample_offsets, ask)
        sampled = sum(each[0] for each in counts)
        return min(sum(each[1] for each in counts) / sampled, 1.0) if sampled else 1.0

    def commit(self, positions: Positions) -> None:
        """Commit the group's offsets. Raises RemotingError, BrokerError."""

        async def ask(queue: Queue) -> None:
            await self._calls.commit(queue, positions[queue])

        _gather(positions, ask)

    # -- pulling -----------------------------------------------------------------------------------

    def read(self, wanted: Range) -> Iterator[Block]:
        """The messages of a range as blocks, in order.

        Raises DataLost unless the options allow losses, RemotingError, BrokerError.
        """
        pending: deque[Future[Block]] = deque()
        at, count = wanted.first, _BLOCK_COUNT_FIRST
        try:
            while at < wanted.stop or pending:
                while at < wanted.stop and len(pending) < _BLOCKS_MAX:
                    part = Range(wanted.queue, at, min(at + count, wanted.stop))
                    pending.append(loop_thread.submit(self._block(part)))
                    at = part.stop
                block = pending.popleft().result()
                count = _next_count(block, count)
                yield block
        finally:
            for future in pending:
                future.cancel()

    async def _block(self, wanted: Range) -> Block:
        block = Block(wanted)
        at = wanted.first
        while at < wanted.stop:
            at = await self._pull_pipelined(block, at)
            if at < wanted.stop:
                at = self._add_result(block, await self._pull_existing(wanted, at), at)
        return block

    async def _pull_existing(self, wanted: Range, at: int) -> PullResult:
        """Pull messages that the queue held when the range was planned.

        A response without them counts only if the present master gives it: the known one may be
        a slave by now. A new master first waits until its replicas have confirmed the log that it
        took over, and until then responds as at the end of the queue.
        """
        queue, stop = wanted.queue, wanted.stop
        reply = await self._pull_with_retry(queue, at, stop - at)
        if self._advances(reply, at):
            return reply
        for _ in range(CONFIRM_ATTEMPTS):
            await self._hub.routes.refresh([queue.topic])
            reply = await self._pull_with_retry(queue, at, stop - at)
            if reply.status is not PullStatus.NO_NEW or not await self._is_held(queue, stop):
                return reply
            await asyncio.sleep(_CONFIRM_PAUSE_S)
        raise RemotingError(
            f"queue {queue}: the broker has messages from offset {at} on, but its replicas have "
            f"not confirmed them within {CONFIRM_ATTEMPTS * _CONFIRM_PAUSE_S:.0f} s; check that "
            f"enough of them run (tianzhou broker group {queue.broker_name})"
        )

    def _advances(self, reply: PullResult, at: int) -> bool:
        """Whether a response has messages, or says that a filter rejects them."""
        is_rejected = reply.status is PullStatus.NO_MATCH and self._is_filtered
        return (reply.status is PullStatus.FOUND or is_rejected) and reply.next_offset > at

    async def _is_held(self, queue: Queue, stop: int) -> bool:
        """Whether the broker has all messages before an offset, shown to readers or not.

        It moves readers back only from beyond what it has.
        """
        return (await self._pull_with_retry(queue, stop, 1)).next_offset >= stop

    async def _pull_pipelined(self, block: Block, at: int) -> int:
        """Pull without a task per request as long as messages follow; returns the next offset."""
        queue, stop = block.range.queue, block.range.stop
        found = self._hub.routes.read_address(queue.broker_name, MASTER_ID)
        if found is None or self._options.read_from is ReadFrom.REPLICA:
            return at
        subscription = self._subscription(queue.topic)

        def post(waiter: Waiter, at: int) -> bool:
            fields = self._fields(queue, at, min(stop - at, PULL_COUNT_MAX), subscription)
            command = Command(code=RequestCode.PULL_MESSAGE, ext_fields=fields)
            return self._hub.post(found[0], command, waiter, timeout_ms, loop.time() + timeout_s)

        loop, timeout_ms = self._hub.loop, self._options.request_timeout
        timeout_s = timeout_ms / 1000
        run = PullPipeline(at, stop, post, loop.create_future(), filtered=self._is_filtered)
        reached = await run.ended()
        block.responses += run.responses
        return reached

    def _add_result(self, block: Block, reply: PullResult, at: int) -> int:
        """Add a result to the block, or report a loss; returns the next offset."""
        stop, following = block.range.stop, reply.next_offset

        def lost(before: int, why: str) -> None:
            missing = LostRange(block.range.queue, at, min(before, stop), why)
            report_loss([missing], fail=self._options.fail_on_data_loss)

        if reply.status is PullStatus.FOUND and following > at:
            # Damaged records are reported when the block is decoded.
            records = cut(reply.records, following, stop, reply.offset_delta, starts_of)
            block.responses.append((records, reply.offset_delta))
            return following
        if reply.status is PullStatus.NO_MATCH and following > at:
            if not self._is_filtered:
                lost(following, "were being deleted")
            return following
        if reply.status is PullStatus.OFFSET_ILLEGAL and following > at:
            lost(following, DELETED)
            return following
        lost(stop, BEYOND_END)
        return stop


def _next_count(block: Block, count: int) -> int:
    """The number of offsets per block that yields blocks of about the intended size."""
    average = max(block.size_bytes / block.range.count, 1.0)
    fitting = int(_BLOCK_BYTES / average)
    return min(max(fitting, 1), 4 * count, _BLOCK_COUNT_MAX)


async def gather_limited(items: Iterable[I], ask: Callable[[I], Awaitable[T]]) -> list[T]:
    """Await `ask` for all items with bounded concurrency; results in the order of the items."""
    slots = asyncio.Semaphore(_REQUESTS_MAX)

    async def one(item: I) -> T:
        async with slots:
            return await ask(item)

    return list(await asyncio.gather(*map(one, items)))


def _gather(items: Iterable[I], ask: Callable[[I], Awaitable[T]]) -> list[T]:
    return loop_thread.run(gather_limited(items, ask))


def wanted_queues(reader: ClusterReader, options: SourceOptions) -> list[Queue]:
    """The present queues that the options select. Raises ConfigError, RouteNotFound."""
    if options.subscribe_pattern:
        return reader.queues(reader.topics(options.subscribe_pattern), allow_missing=True)
    if not options.assign:
        return reader.queues(options.subscribe)
    existing = reader.queues(sorted({queue.topic for queue in options.assign}))
    missing = sorted(options.assign - set(existing))
    if missing:
        raise ConfigError(f"option assign: queue {missing[0]} does not exist")
    return [queue for queue in existing if queue in options.assign]
