"""Messages: sending, pulling by offset, querying by id and key, recalling.

Reads use the consumer group that RocketMQ reserves for tools, with the filter in the request: no
subscription is registered, no offset committed, no consumer disturbed. Tags are filtered by the
broker; SQL92 is evaluated here, since brokers do so only with enablePropertyFilter.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count

import msgspec

from tianzhou.admin.clusters import Clusters, brokers_of
from tianzhou.admin.fanout import BrokerRef, Gathered, gather
from tianzhou.admin.requests import RequestClient
from tianzhou.admin.topics import Topics
from tianzhou.client.identity import unique_ids
from tianzhou.clock import wall_ms
from tianzhou.errors import FieldError, RequestError, TargetError
from tianzhou.message import Message, StoredMessage
from tianzhou.names import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE, TIMER_TOPIC
from tianzhou.protocol import headers, properties
from tianzhou.protocol.bodies.queues import QueryConsumeQueueBody
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.filter import SUBSCRIBE_ALL, parse_tags
from tianzhou.protocol.headers.pull import (
    PullMessageResponse,
    QueryConsumeQueueRequest,
    QueryMessageRequest,
    ViewMessageRequest,
    pull_request,
)
from tianzhou.protocol.headers.send import (
    RecallMessageRequest,
    SendMessageRequestV2,
    SendMessageResponse,
)
from tianzhou.protocol.records.compression import plain_body
from tianzhou.protocol.records.message_id import decode_offset_id, id_of
from tianzhou.protocol.records.recall import decode_handle, handle_of
from tianzhou.protocol.records.record import decode_records

TOOLS_GROUP = "TOOLS_CONSUMER"
PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
PULL_COUNT = 32
INDEX_OF_TAGS = "T"
QUERY_COUNT = 64
"""Maximum number of messages of one index query, unless maxMsgsNumBatch changes it."""
BODY_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of an uncompressed body."""

FOREVER_MS = 2**63 - 1
_PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_STORED = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
Matches = Callable[[StoredMessage], bool]


@dataclass(frozen=True, slots=True, order=True)
class QueueRef:
    """One queue of a topic, and its broker."""

    broker: BrokerRef
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull."""

    messages: list[StoredMessage]
    next_offset: int
    begin_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a send."""

    message_id: str
    offset_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    status: str
    """SEND_OK, or weaker durability: FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE, ..."""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The messages of a query, and warnings about brokers that failed."""

    messages: list[StoredMessage]
    warnings: list[str] = field(default_factory=list[str])


def body_of(message: StoredMessage) -> bytes:
    """The uncompressed body. Raises BodyError."""
    return plain_body(message.body, message.sys_flag, BODY_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A timed message that is not delivered yet."""

    broker: BrokerRef
    handle: str
    is_cancelled: bool = False
    """Whether it was recalled."""

    @property
    def deliver_ms(self) -> int:
        return decode_handle(self.handle).deliver_ms


class Messages:
    """Requests about messages."""

    def __init__(self, wire: RequestClient, clusters: Clusters, topics: Topics) -> None:
        self._requests = wire
        self._clusters = clusters
        self._topics = topics
        self._next_queue = count()

    # -- queues ------------------------------------------------------------------------------------

    async def read_queues(self, topic: str, through: str | None = None) -> list[QueueRef]:
        """The read queues of a topic, by broker and id.

        With `through`, the queues of another topic, or queue 0 on each broker of a cluster, with
        the name of this topic: see `Topics.brokers`.
        """
        if through is None:
            return await self._queues(topic, PERM_READ)
        if through in (await self._clusters.info()).clusters:
            brokers = await self._topics.brokers(topic, through)
            return [QueueRef(at, topic, 0) for at in sorted(brokers)]
        return [replace(at, topic=topic) for at in await self._queues(through, PERM_READ)]

    async def write_queues(self, topic: str) -> list[QueueRef]:
        """The write queues of a topic, on masters. Raises TargetError if there are none."""
        queues = [at for at in await self._queues(topic, PERM_WRITE) if at.broker.is_master]
        if not queues:
            raise TargetError(
                f"no broker accepts messages for topic {topic!r}: no nameserver shows a master "
                "that has the topic with write permission; see `tianzhou broker list`"
            )
        return queues

    async def _queues(self, topic: str, perm: int) -> list[QueueRef]:
        route = await self._topics.route(topic)
        brokers = {data.broker_name: brokers_of(data)[:1] for data in route.brokers}
        return sorted(
            QueueRef(at, topic, queue_id)
            for data in route.queues
            # A dead-letter topic may lack read permission; tools read it nevertheless.
            if data.perm & perm or perm == PERM_READ
            for at in brokers.get(data.broker_name, ())
            for queue_id in range(
                data.write_queue_count if perm == PERM_WRITE else data.read_queue_count
            )
        )

    # -- sending -----------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: QueueRef | None = None, message_id: str | None = None
    ) -> Sent:
        """SEND_MESSAGE_V2 to a queue, or to the write queues of the topic, round robin.

        Raises TargetError without a write queue, and RequestError if the broker rejects it.
        """
        if queue is None:
            queues = await self.write_queues(message.topic)
            queue = queues[next(self._next_queue) % len(queues)]
        all_properties = properties.of_message(message)
        message_id = message_id or unique_ids.next()
        all_properties.setdefault(properties.UNIQUE_KEY, message_id)
        header = SendMessageRequestV2(
            producer_group=PRODUCER_GROUP,
            topic=message.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_count=4,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=wall_ms(),
            flag=message.flag,
            properties=properties.encode(all_properties),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=queue.broker.name,
        )
        response = await self._requests.request(
            queue.broker.address, RequestCode.SEND_MESSAGE_V2, header, message.body, accept=_STORED
        )
        stored = headers.decode(SendMessageResponse, response.fields)
        code = ResponseCode(response.code)
        return Sent(
            message_id=all_properties[properties.UNIQUE_KEY],
            offset_id=stored.msg_id,
            broker_name=queue.broker.name,
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            status="SEND_OK" if code == ResponseCode.SUCCESS else code.name,
        )

    # -- by offset --------------------------------------------------------------------------------

    async def pull(
        self,
        queue: QueueRef,
        queue_offset: int,
        *,
        max_count: int = PULL_COUNT,
        tags: str = SUBSCRIBE_ALL,
        hold_ms: int = 0,
        group: str = TOOLS_GROUP,
    ) -> Pulled:
        """PULL_MESSAGE from an offset; the broker waits up to `hold_ms` for a first message."""
        header = pull_request(
            group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_count=max_count,
            suspend_ms=hold_ms,
            expression=tags,
        )
        response = await self._requests.request(
            queue.broker.address,
            RequestCode.PULL_MESSAGE,
            header,
            accept=_PULLED,
            timeout_ms=self._requests.timeout_ms + hold_ms,
        )
        fields = headers.decode(PullMessageResponse, response.fields)
        found = decode_records(response.body) if response.code == ResponseCode.SUCCESS else []
        return Pulled(found, fields.next_begin_offset, fields.min_offset, fields.max_offset)

    async def at(self, queue: QueueRef, queue_offset: int) -> StoredMessage:
        """The message at an offset of a queue. Raises TargetError."""
        pulled = await self.pull(queue, queue_offset, max_count=1)
        for message in pulled.messages:
            if message.queue_offset == queue_offset:
                return message
        raise TargetError(
            f"{queue.topic} queue {queue.queue_id} on {queue.broker.name} holds "
            f"{pulled.begin_offset} to {pulled.end_offset}, no message at {queue_offset}"
        )

    async def entries(
        self, queue: QueueRef, queue_offset: int, max_count: int, group: str | None = None
    ) -> QueryConsumeQueueBody:
        """QUERY_CONSUME_QUEUE: the consume queue entries of a queue."""
        header = QueryConsumeQueueRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            index=queue_offset,
            count=max_count,
            consumer_group=group,
        )
        code = RequestCode.QUERY_CONSUME_QUEUE
        return await self._requests.read(queue.broker.address, QueryConsumeQueueBody, code, header)

    # -- by id and key -----------------------------------------------------------------------------

    async def by_offset_id(self, offset_id: str, *, broker: str | None = None) -> StoredMessage:
        """VIEW_MESSAGE_BY_ID at the broker whose address is in the id.

        The address is untrusted: only registered brokers are contacted. `broker`, a name or an
        address, overrides it. Raises TargetError, FieldError.
        """
        host, log_offset = decode_offset_id(offset_id)
        if broker is None:
            at = await self._clusters.broker_at(host)
        else:
            at = (await self._clusters.brokers(broker=broker, masters=True))[0]
        address = at.address
        header = ViewMessageRequest(log_offset=log_offset)
        try:
            response = await self._requests.request(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except RequestError as e:
            raise TargetError(f"{address} has no message {offset_id}: {e.remark}") from e
        for message in decode_records(response.body):
            return message
        raise TargetError(f"{address} has no message {offset_id}")

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        max_count: int = 64,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        unique: bool = False,
        broker: str | None = None,
        by_tag: bool = False,
        last_key: str | None = None,
        through: str | None = None,
        matches: Matches | None = None,
    ) -> QueryResult:
        """The newest messages with a key, on all brokers of the topic or on one; newest last.

        The index compares hashes; hash collisions are removed here. Only RocketMQ 5.5 with its
        index in RocksDB finds by tag, or continues after a last key.
        """
        header = QueryMessageRequest(
            topic=topic,
            key=key,
            max_count=QUERY_COUNT if matches else min(max_count, QUERY_COUNT),
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            index_type=INDEX_OF_TAGS if by_tag else None,
            last_key=last_key,
            unique_key=True if unique else None,
        )

        def is_wanted(message: StoredMessage) -> bool:
            if by_tag:
                has_key = message.tags == key
            else:
                has_key = id_of(message) == key if unique else key in message.keys
            return has_key and (matches is None or matches(message))

        incomplete: list[str] = []

        async def ask(at: BrokerRef) -> list[StoredMessage]:
            found: list[StoredMessage] = []
            async with aclosing(self._by_index(at, header, incomplete)) as pages:
                async for page in pages:
                    found += filter(is_wanted, page)
                    if unique or last_key is not None or len(found) >= max_count:
                        break
            return found

        all_brokers = await self._topics.brokers(topic, through)
        asked = [at for at in all_brokers if broker in (None, at.name)]
        if not asked:
            raise TargetError(f"topic {topic} is not on broker {broker!r}")
        gathered: Gathered[list[StoredMessage]] = await gather(asked, ask)
        wanted = [message for messages in gathered.responses.values() for message in messages]
        wanted.sort(key=lambda message: (message.store_time_ms, message.log_offset))
        return QueryResult(wanted[-max_count:], gathered.warnings + incomplete)

    async def _by_index(
        self, at: BrokerRef, header: QueryMessageRequest, incomplete: list[str]
    ) -> AsyncGenerator[list[StoredMessage]]:
        """QUERY_MESSAGE in pages, newest first: a broker returns the newest of a time range."""
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        seen: set[int] = set()
        while True:
            code = RequestCode.QUERY_MESSAGE
            response = await self._requests.request(at, code, header, accept=accept)
            page = decode_records(response.body) if response.code == ResponseCode.SUCCESS else []
            yield [message for message in page if message.log_offset not in seen]
            if len(page) < header.max_count:
                return
            # Its oldest millisecond is queried again: it may have held more than one page.
            oldest_ms = min(message.store_time_ms for message in page)
            if seen.issuperset(message.log_offset for message in page):
                incomplete.append(
                    f"broker {at.name} returns at most {len(page)} messages, and more than those "
                    f"have this key within one second: for older ones set --to before {oldest_ms}"
                )
                return
            seen.update(message.log_offset for message in page)
            header = msgspec.structs.replace(header, end_timestamp=oldest_ms)

    async def by_any_id(
        self,
        text: str,
        topic: str | None = None,
        *,
        through: str | None = None,
        broker: str | None = None,
    ) -> StoredMessage:
        """By the message id of the producer or the offset id of the broker. Raises TargetError.

        Both have the same form. With a topic the index is queried first, then the id is used as an
        offset id; `broker` as in `by_offset_id`.
        """
        if topic is not None:
            found = await self.by_key(topic, text, unique=True, through=through)
            if found.messages:
                return found.messages[-1]
        try:
            return await self.by_offset_id(text, broker=broker)
        except FieldError as e:
            raise TargetError(f"{e}; this is not a message id") from e
        except (TargetError, RequestError) as e:
            hint = "" if topic else "; for the id of a producer also pass --topic TOPIC"
            raise TargetError(f"there is no message {text}{hint} ({e})") from e

    # -- timed messages ----------------------------------------------------------------------------

    async def find_scheduled(self, topic: str, message_id: str) -> ScheduledMessage:
        """A timed message that is not delivered yet, by its id. Raises TargetError."""
        for at in await self._topics.brokers(topic):
            # Brokers of 5.x store these messages and their index in a system topic without a route.
            found = await self.by_key(
                TIMER_TOPIC, message_id, unique=True, broker=at.name, through=topic
            )
            # A recall is stored under the id of its message.
            is_cancelled = any(properties.TIMER_DEL_UNIQKEY in m.properties for m in found.messages)
            for message in reversed(found.messages):
                handle = handle_of(message.properties, at.name)
                if handle is not None and decode_handle(handle).topic == topic:
                    return ScheduledMessage(at, handle, is_cancelled)
        raise TargetError(
            f"no timed message {message_id} of {topic} is pending; delivered messages and delay "
            f"levels cannot be recalled"
        )

    async def recall(self, topic: str, waiting: ScheduledMessage) -> None:
        """RECALL_MESSAGE: the message is not delivered. Raises RequestError."""
        header = RecallMessageRequest(
            producer_group=PRODUCER_GROUP,
            topic=topic,
            recall_handle=waiting.handle,
            target_broker=waiting.broker.name,
        )
        await self._requests.request(waiting.broker.address, RequestCode.RECALL_MESSAGE, header)

    # -- ranges of a queue -------------------------------------------------------------------------

    async def walk(
        self,
        queue: QueueRef,
        begin_offset: int,
        end_offset: int,
        *,
        tags: str = SUBSCRIBE_ALL,
        matches: Matches | None = None,
        group: str = TOOLS_GROUP,
    ) -> AsyncGenerator[StoredMessage]:
        """The messages of a queue in [begin_offset, end_offset), in order."""
        wanted = matching(tags, matches)
        while begin_offset < end_offset:
            pulled = await self.pull(queue, begin_offset, tags=tags, group=group)
            for message in pulled.messages:
                if message.queue_offset < end_offset and wanted(message):
                    yield message
            if pulled.next_offset <= begin_offset:
                return
            begin_offset = pulled.next_offset


def matching(tags: str, matches: Matches | None) -> Matches:
    """A filter of messages: brokers compare hashes of tags, so the tags are compared here."""
    wanted = parse_tags(tags)

    def test(message: StoredMessage) -> bool:
        if not wanted.selects_all and message.tags not in wanted.tags:
            return False
        return matches is None or matches(message)

    return test
