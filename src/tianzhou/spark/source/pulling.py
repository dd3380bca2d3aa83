"""Reading a cluster over sockets: what the driver asks to plan, and how executors pull.

Blocking on the outside; inside, requests run on the event loop of the process (`loop_thread`), so a
worker that Spark forks starts its own. Replies are kept as bytes: records are decoded as columns
later, many at once.

A range is read in blocks of offsets, a few of them at the same time, because brokers give 32
messages a request and a request takes a round trip. Blocks are handed out in their order.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.hub import Hub, acquire
from tianzhou.client.group.broker_calls import BrokerCalls, PullStatus
from tianzhou.client.group.subscriptions import Subscription, by_sql, by_tags
from tianzhou.client.loop_thread import loop_thread
from tianzhou.client.queues import Queue
from tianzhou.errors import ConfigError, DataLost, RemotingError, RouteNotFound, TianzhouError
from tianzhou.names import MASTER_ID
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.topics import TopicList
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.pull import PullMessageResponse, pull_request
from tianzhou.remoting.pending_requests import Waiter
from tianzhou.spark.columns.malformed import starts_of, store_time_ms
from tianzhou.spark.offsets import (
    AtTime,
    Bounds,
    LostRange,
    NamedOffset,
    OffsetSpec,
    OffsetSpecs,
    Positions,
    Range,
)
from tianzhou.spark.options import ReadFrom, SourceOptions
from tianzhou.spark.source.pull_pipeline import PullPipeline, cut

log = logging.getLogger(__name__)

T = TypeVar("T")

_TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group of RocketMQ's own tools, which every broker knows."""
_OFFSET_FIELD, _COUNT_FIELD = "queueOffset", "maxMsgNums"
_STATUSES = {int(status.value): status for status in PullStatus}

_REQUESTS_MAX = 32
_SAMPLES, _SAMPLE_COUNT = 4, 32
_PULL_COUNT_MAX = 4096
_PULL_BYTES_MAX = 1024 * 1024
_BLOCKS_MAX = 4
_BLOCK_BYTES = 1024 * 1024
_BLOCK_COUNT_FIRST = 64
_BLOCK_COUNT_MAX = 4096
_ATTEMPTS_MAX = 6
_RETRY_DELAY_S = 0.2


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a pull, records still as bytes."""

    status: PullStatus
    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int
    by_replica: bool


@dataclass(slots=True)
class Block:
    """What was read of some offsets in a row."""

    range: Range
    replies: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    """Records, and what to add to the queue offsets in them."""
    lost: list[LostRange] = field(default_factory=list[LostRange])

    @property
    def size_bytes(self) -> int:
        return sum(len(records) for records, _ in self.replies)


class ClusterReader:
    """Asks and reads a cluster as the options say, from `with` to its end."""

    def __init__(self, options: SourceOptions, *, tags: str = "") -> None:
        """`tags` is the expression that brokers filter by. Raises ConfigError."""
        self._options = options
        self._settings = options.client_settings()
        self._group = options.group or _TOOLS_GROUP
        self._tags = tags or options.tags
        self._subscriptions: dict[str, Subscription] = {}
        self._headers: dict[tuple[Queue, str, str], dict[str, str]] = {}
        self._hub_or_none: Hub | None = None

    def __enter__(self) -> Self:
        async def start() -> Hub:
            return acquire(self._settings)

        self._hub_or_none = loop_thread.run(start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        hub, self._hub_or_none = self._hub_or_none, None
        if hub is not None:
            loop_thread.run(hub.release())

    @property
    def _hub(self) -> Hub:
        if self._hub_or_none is None:
            raise TianzhouError("this reader is used outside of its with block")
        return self._hub_or_none

    @property
    def _calls(self) -> BrokerCalls:
        return BrokerCalls(self._hub, self._group, self._settings)

    # -- planning ----------------------------------------------------------------------------------

    def topics(self, pattern: str) -> list[str]:
        """The topics whose whole name fits a pattern. Raises RemotingError."""

        async def ask() -> list[str]:
            command = Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            answer = await self._hub.namesrvs.request(command)
            if answer.code != ResponseCode.SUCCESS:
                raise broker_error(answer, "the list of topics")
            return bodies.decode(TopicList, answer.body).topics

        wanted = re.compile(pattern)
        return sorted(topic for topic in loop_thread.run(ask()) if wanted.fullmatch(topic))

    def queues(self, topics: Iterable[str], *, allow_missing: bool = False) -> list[Queue]:
        """All queues of topics that can be read.

        Raises RouteNotFound for a topic that nobody knows, unless topics may be missing.
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
        """What queues hold now; those of brokers that are away may be left out."""

        async def ask(queue: Queue) -> tuple[Queue, Bounds] | None:
            try:
                return queue, await self._bounds(queue)
            except TianzhouError as error:
                if not allow_missing or not error.retriable:
                    raise
                log.warning("queue %s: its broker does not answer, it waits: %s", queue, error)
                return None

        return dict(found for found in _gather(queues, ask) if found is not None)

    async def _bounds(self, queue: Queue) -> Bounds:
        try:
            low = await self._calls.min_offset(queue)
            return Bounds(low, max(await self._calls.max_offset(queue), low))
        except TianzhouError as error:
            if not error.retriable:
                raise
        # The broker may be back at another address.
        await self._hub.refresh_routes([queue.topic])
        low = await self._calls.min_offset(queue)
        return Bounds(low, max(await self._calls.max_offset(queue), low))

    def resolve(self, specs: OffsetSpecs, bounds: dict[Queue, Bounds]) -> Positions:
        """The places that are wished for. Numbers are taken as they are."""

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

    def time_offsets(self, bounds: dict[Queue, Bounds], time_ms: int) -> Positions:
        """The first message of each queue stored at a time or later."""
        return self.resolve(OffsetSpecs(AtTime(time_ms), {}), bounds)

    async def _time_offset(self, queue: Queue, held: Bounds, time_ms: int) -> int:
        """The broker's answer if its neighbours confirm it; else a search of our own.

        Brokers disagree about times before the first and behind the last message, and 4.9 chooses
        a file by when it was changed.
        """
        if held.low == held.high:
            return held.high
        guess = min(max(await self._calls.search_offset(queue, time_ms), held.low), held.high)
        for place in (guess, guess + 1):
            if await self._is_first(queue, held, place, time_ms):
                return place
        low, high = held.low, held.high
        while low < high:
            middle = (low + high) // 2
            if await self._store_time_ms(queue, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    async def _is_first(self, queue: Queue, held: Bounds, place: int, time_ms: int) -> bool:
        if place > held.high:
            return False
        if place < held.high and await self._store_time_ms(queue, place) < time_ms:
            return False
        return place == held.low or await self._store_time_ms(queue, place - 1) < time_ms

    async def _store_time_ms(self, queue: Queue, queue_offset: int) -> int:
        """When a message was stored, or the next one behind it."""
        while True:
            reply = await self._pull(queue, queue_offset, 1, Subscription(queue.topic), MASTER_ID)
            found = reply.status is PullStatus.FOUND
            if found and (time_ms := store_time_ms(reply.records)) is not None:
                return time_ms
            if reply.next_offset <= queue_offset or reply.next_offset >= reply.max_offset:
                return 2**63 - 1
            queue_offset = reply.next_offset

    def sample_bytes(self, places: Positions) -> dict[Queue, float]:
        """About how many bytes a record has, by the next few messages of each queue."""

        async def ask(queue: Queue) -> tuple[Queue, float] | None:
            everything = Subscription(queue.topic)
            reply = await self._pull(queue, places[queue], 32, everything, MASTER_ID)
            count = reply.next_offset - places[queue]
            if reply.status is not PullStatus.FOUND or count < 1:
                return None
            return queue, max(len(reply.records) / count, 1.0)

        return dict(found for found in _gather(places, ask) if found is not None)

    def matching_share(self, ranges: Iterable[Range]) -> float:
        """How many of the messages the brokers let pass, about, by a few pulls of each range."""
        if not self._is_filtered:
            return 1.0

        async def ask(queue: Queue) -> tuple[int, int]:
            looked = found = 0
            try:
                for at in places[queue]:
                    subscription = self._subscription(queue.topic)
                    reply = await self._pull(
                        queue, at, _SAMPLE_COUNT, subscription, self._broker_ids[0]
                    )
                    if reply.next_offset > at:
                        looked += reply.next_offset - at
                        found += len(starts_of(reply.records))
            except TianzhouError as error:
                if not error.retriable:
                    raise  # such as an expression that the broker cannot read
            return looked, found

        places: dict[Queue, list[int]] = {}
        for each in ranges:
            step = -(-each.count // _SAMPLES)
            places.setdefault(each.queue, []).extend(range(each.first, each.stop, step))
        counts = _gather(places, ask)
        looked = sum(each[0] for each in counts)
        return min(sum(each[1] for each in counts) / looked, 1.0) if looked else 1.0

    def commit(self, places: Positions) -> None:
        """Save the group's progress. Raises RemotingError, BrokerError."""

        async def ask(queue: Queue) -> None:
            await self._calls.commit(queue, places[queue])

        _gather(places, ask)

    # -- pulling -----------------------------------------------------------------------------------

    def read(self, wanted: Range) -> Iterator[Block]:
        """The messages of a range, block after block.

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
                for lost in block.lost:
                    report_loss([lost], fail=self._options.fail_on_data_loss)
                count = _next_count(block, count)
                yield block
        finally:
            for future in pending:
                future.cancel()

    async def _block(self, wanted: Range) -> Block:
        block = Block(wanted)
        at = wanted.first
        while at < wanted.stop:
            at = await self._run(block, at)
            if at < wanted.stop:
                reply = await self._pull_with_retry(wanted.queue, at, wanted.stop - at)
                at = self._take(block, reply, at)
        return block

    async def _run(self, block: Block, at: int) -> int:
        """As many pulls as find messages, one after the other; answers where that ended."""
        queue, stop = block.range.queue, block.range.stop
        found = self._hub.read_address(queue.broker_name, MASTER_ID)
        if found is None or self._options.read_from is ReadFrom.REPLICA:
            return at
        subscription = self._subscription(queue.topic)

        def post(waiter: Waiter, at: int) -> bool:
            fields = self._fields(queue, at, min(stop - at, _PULL_COUNT_MAX), subscription)
            command = Command(code=RequestCode.PULL_MESSAGE, ext_fields=fields)
            return self._hub.post(found[0], command, waiter, timeout_ms, loop.time() + timeout_s)

        loop, timeout_ms = self._hub.loop, self._options.request_timeout
        timeout_s = timeout_ms / 1000
        run = PullPipeline(at, stop, post, loop.create_future(), filtered=self._is_filtered)
        reached = await run.ended()
        block.replies += run.replies
        return reached

    def _take(self, block: Block, reply: Reply, at: int) -> int:
        """Keep a reply; answers where to go on."""
        queue, stop = block.range.queue, block.range.stop
        following = reply.next_offset
        if reply.status is PullStatus.FOUND and following > at:
            # One that is damaged is told when the block is decoded.
            records = cut(reply.records, following, stop, reply.offset_delta, starts_of)
            block.replies.append((records, reply.offset_delta))
            return following
        if reply.status is PullStatus.NO_MATCH and following > at:
            if not self._is_filtered:
                block.lost.append(LostRange(queue, at, min(following, stop), "were being deleted"))
            return following
        if reply.status is PullStatus.OFFSET_ILLEGAL and following > at:
            block.lost.append(
                LostRange(queue, at, min(following, stop), "have been deleted by the broker")
            )
            return following
        block.lost.append(LostRange(queue, at, stop, "are not there, the queue ends before"))
        return stop

    @property
    def _broker_ids(self) -> list[int]:
        """Which broker of a group is asked, and which one next."""
        if self._options.read_from is ReadFrom.REPLICA:
            return [MASTER_ID + 1, MASTER_ID]
        return [MASTER_ID]

    @property
    def _is_filtered(self) -> bool:
        return bool(self._tags or self._options.sql)

    def _subscription(self, topic: str) -> Subscription:
        if topic not in self._subscriptions:
            self._subscriptions[topic] = (
                by_sql(topic, self._options.sql, 0)
                if self._options.sql
                else by_tags(topic, self._tags or "*", 0)
            )
        return self._subscriptions[topic]

    async def _pull_with_retry(self, queue: Queue, at: int, count: int) -> Reply:
        """A pull that bears with brokers that restart, and replicas that lag behind."""
        turns = self._broker_ids
        subscription = self._subscription(queue.topic)
        for number in range(_ATTEMPTS_MAX):
            broker_id = turns[number % len(turns)]
            try:
                reply = await self._pull(queue, at, count, subscription, broker_id)
                # A replica that lags behind, or may not serve readers (slaveReadEnable), says that
                # with the same codes as that there is nothing: only a master is believed that.
                if reply.status is PullStatus.FOUND or not reply.by_replica:
                    return reply
            except TianzhouError as error:
                if number + 1 >= _ATTEMPTS_MAX or not error.retriable:
                    raise
                log.warning("queue %s: pull at %d failed, once more: %s", queue, at, error)
            if broker_id == turns[-1]:
                await asyncio.sleep(_RETRY_DELAY_S * 2**number)
                await self._hub.refresh_routes([queue.topic])
        raise RemotingError(f"queue {queue}: only a replica answers, and has nothing from {at} on")

    async def _pull(
        self, queue: Queue, at: int, count: int, subscription: Subscription, broker_id: int
    ) -> Reply:
        address, by_replica = await self._address(queue, broker_id)
        fields = self._fields(queue, at, min(count, _PULL_COUNT_MAX), subscription)
        command = Command(code=RequestCode.PULL_MESSAGE, ext_fields=fields)
        answer = await self._hub.request(address, command, self._options.request_timeout)
        status = _STATUSES.get(answer.code)
        if status is None:
            raise broker_error(answer, f"queue {queue}: pull at {at}")
        told = headers.decode(PullMessageResponse, answer.fields)
        return Reply(
            status,
            bytes(answer.body),
            told.next_begin_offset,
            told.min_offset,
            told.max_offset,
            told.offset_delta or 0,
            by_replica,
        )

    def _fields(
        self, queue: Queue, at: int, count: int, subscription: Subscription
    ) -> dict[str, str]:
        """The header of a pull. Many of one queue differ in two fields only."""
        known = (queue, subscription.expression, subscription.expression_type)
        first = self._headers.get(known)
        if first is None:
            header = pull_request(
                group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=0,
                max_count=0,
                max_bytes=_PULL_BYTES_MAX,
                expression=subscription.expression,
                expression_type=subscription.expression_type,
                broker_name=queue.broker_name,
            )
            first = self._headers[known] = headers.encode(header)
        return first | {_OFFSET_FIELD: str(at), _COUNT_FIELD: str(count)}

    async def _address(self, queue: Queue, broker_id: int) -> tuple[str, bool]:
        """Where to read, and whether that is a replica; it stands in for a master that is away."""
        found = self._hub.read_address(queue.broker_name, broker_id)
        if found is None:
            await self._hub.route(queue.topic, refresh=True)
            found = self._hub.read_address(queue.broker_name, broker_id)
        if found is None:
            raise RouteNotFound(f"queue {queue}: no address of broker {queue.broker_name} is known")
        return found


def report_loss(lost: list[LostRange], *, fail: bool) -> None:
    """Raises DataLost, or logs what is lost."""
    if not lost:
        return
    text = "; ".join(map(str, lost))
    if fail:
        raise DataLost(f"{text}. The option failOnDataLoss=false goes on without them")
    log.warning("lost: %s", text)


def _next_count(block: Block, count: int) -> int:
    """Offsets of the next blocks, so that each has about the right size."""
    average = max(block.size_bytes / block.range.count, 1.0)
    fitting = int(_BLOCK_BYTES / average)
    return min(max(fitting, 1), 4 * count, _BLOCK_COUNT_MAX)


def _gather(items: Iterable[Queue] | Iterable[str], ask: Callable[..., Awaitable[T]]) -> list[T]:
    """The answers for all items, a few of them asked for at the same time."""
    turns = asyncio.Semaphore(_REQUESTS_MAX)

    async def one(item: Queue | str) -> T:
        async with turns:
            return await ask(item)

    async def all_of_them() -> list[T]:
        return list(await asyncio.gather(*(one(item) for item in items)))

    return loop_thread.run(all_of_them())


def wanted_queues(
    reader: ClusterReader, options: SourceOptions, assigned: frozenset[Queue]
) -> list[Queue]:
    """The queues that the options choose, as they are now. Raises ConfigError, RouteNotFound."""
    if options.subscribe_pattern:
        return reader.queues(reader.topics(options.subscribe_pattern), allow_missing=True)
    if not assigned:
        return reader.queues(options.subscribe)
    there = reader.queues(sorted({queue.topic for queue in assigned}))
    missing = sorted(assigned - set(there))
    if missing:
        raise ConfigError(f"option assign: there is no queue {missing[0]}")
    return [queue for queue in there if queue in assigned]
