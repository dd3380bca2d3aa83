"""The requests of consumers to brokers: messages, offsets, members, locks, redelivery.

Names of topics and groups are those on the wire. Every method finds the broker by the name in the
queue, refreshes the route if the name is unknown, and raises RemotingError, BrokerError or
RouteNotFound.
"""

import asyncio
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.hub import Hub
from tianzhou.client.group.record_decoding import Damage, Reading, read_records, unwrapped
from tianzhou.client.group.subscriptions import Subscription
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.queues import Queue, from_wire
from tianzhou.client.settings import ClientSettings
from tianzhou.clock import wall_ms
from tianzhou.errors import ConnectError, RecordError, RouteNotFound
from tianzhou.message import StoredMessage
from tianzhou.names import AUTO_CREATE_TOPIC, MASTER_ID, RETRY_TOPIC_PREFIX
from tianzhou.protocol import bodies, headers, properties
from tianzhou.protocol.bodies.clients import CheckClientBody, ConsumerIdList
from tianzhou.protocol.bodies.queues import LockBatchResponseBody, QueueLockBody
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.filter.tags import TAG_TYPE
from tianzhou.protocol.headers import offsets
from tianzhou.protocol.headers.clients import ConsumerGroupRequest
from tianzhou.protocol.headers.pull import PullMessageResponse, pull_request
from tianzhou.protocol.headers.send import ConsumerSendMsgBackRequest, SendMessageRequestV2
from tianzhou.protocol.sysflag import COMPRESSED, COMPRESSION_MASK, MULTI_TAGS

log = logging.getLogger(__name__)

_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
_NOT_RESENT = (
    properties.TRANSACTION_PREPARED, properties.RECONSUME_TIME, properties.MAX_RECONSUME_TIMES,
    properties.DELAY_LEVEL, properties.MIN_OFFSET, properties.MAX_OFFSET, properties.CRC32,
)  # fmt: skip
_RESENT_FLAGS = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK

_SEND_BACK_MS = 5_000
_OFFSETS_MS = 5_000
_LOCK_MS = 1_000
_ROUTE_TRIES, _ROUTE_PAUSE_S = 20, 0.1


class PullStatus(Enum):
    """The outcome of a pull."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW = ResponseCode.PULL_NOT_FOUND
    NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY
    """There are messages, but none matches the filter; `next_offset` is after them."""
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED
    """The offset is out of range; `next_offset` is the nearest valid one."""


_STATUSES = {int(status.value): status for status in PullStatus}


@dataclass(frozen=True, slots=True)
class PullResult:
    """The messages of a pull, and where to continue (`next_offset`)."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int


@dataclass(frozen=True, slots=True)
class PullLimits:
    """The limits of a pull, and how long the broker may park it while there is no message."""

    message_count: int = 32
    size_bytes: int = 256 * 1024
    """Supported by 5.x; 4.9 has its own limits."""
    suspend_ms: int = 15_000
    timeout_ms: int = 30_000


class BrokerCalls:
    """Requests of one consumer group."""

    def __init__(self, hub: Hub, group: str, settings: ClientSettings) -> None:
        self.hub = hub
        self.group = group
        self._settings = settings
        self._read_from: dict[Queue, int] = {}
        """Broker ids that brokers suggested for the next pull."""
        self._damages: dict[Queue, Damage] = {}
        """The last damaged record, by queue."""

    # -- addresses ---------------------------------------------------------------------------------

    async def queues(self, topic: str, *, refresh: bool = False) -> list[Queue]:
        """All queues of a topic that can be read."""
        route = await self.hub.routes.get(topic, refresh=refresh)
        return list(route.readable)

    async def _master(self, queue: Queue) -> str:
        """The master; a slave where it is gone, which serves offsets too."""
        address, _ = await self._reading_address(queue, MASTER_ID)
        return address

    async def _reading_address(self, queue: Queue, broker_id: int) -> tuple[str, bool]:
        found = self.hub.routes.read_address(queue.broker_name, broker_id)
        if found is None:
            await self._await_route(queue.topic)
            found = self.hub.routes.read_address(queue.broker_name, broker_id)
        if found is None:
            raise RouteNotFound(f"queue {queue}: no address of broker {queue.broker_name} is known")
        return found

    async def _await_route(self, topic: str) -> None:
        """Ask for a topic's route; not only once, for a queue may be that of its first message.

        A broker that makes a topic answers the sender before nameservers have heard of it.
        """
        for tries_left in reversed(range(_ROUTE_TRIES)):
            try:
                await self.hub.routes.get(topic, refresh=True)
            except RouteNotFound:
                if not tries_left:
                    raise
                await asyncio.sleep(_ROUTE_PAUSE_S)
            else:
                return

    # -- messages ----------------------------------------------------------------------------------

    async def pull(
        self,
        queue: Queue,
        queue_offset: int,
        limits: PullLimits,
        *,
        subscription: Subscription | None = None,
        inline: bool = False,
        commit_offset: int | None = None,
        leave_out_damaged: bool = True,
    ) -> PullResult:
        """Messages of a queue from an offset on.

        The broker knows the subscription from heartbeats unless it is `inline`. `commit_offset`
        saves the group's progress on the way. Raises RecordError if the answer is damaged; a record
        that comes damaged a second time in the same way is left out, unless that is not wanted.
        """
        broker_id = self._read_from.get(queue, MASTER_ID)
        address, is_slave = await self._reading_address(queue, broker_id)
        wanted = subscription or Subscription(queue.topic)
        header = pull_request(
            group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_count=limits.message_count,
            max_bytes=limits.size_bytes,
            suspend_ms=limits.suspend_ms,
            commit_offset=None if is_slave else commit_offset,
            expression=wanted.expression if inline else None,
            expression_type=wanted.expression_type,
            sub_version=wanted.version,
            broker_name=queue.broker_name,
        )
        command = Command(code=RequestCode.PULL_MESSAGE, ext_fields=headers.encode(header))
        answer = await self._request(queue, broker_id, address, command, limits.timeout_ms)
        return self._pulled(queue, queue_offset, wanted, answer, leave_out_damaged)

    def _pulled(
        self,
        queue: Queue,
        queue_offset: int,
        subscription: Subscription,
        answer: Command,
        leave_out_damaged: bool,
    ) -> PullResult:
        status = _STATUSES.get(answer.code)
        if status is None:
            raise broker_error(answer, f"group {self.group}, queue {queue}: pull")
        header = headers.decode(PullMessageResponse, answer.fields)
        self._read_from[queue] = header.suggest_which_broker_id
        next_offset = header.next_begin_offset
        stored: list[StoredMessage] = []
        if status is PullStatus.FOUND:
            known = self._damages.get(queue) if leave_out_damaged else None
            reading = read_records(
                answer.body, queue, queue_offset, next_offset,
                offset_delta=header.offset_delta or 0, known=known,
            )  # fmt: skip
            stored = reading.stored
            if known is not None or reading.damage is not None:
                next_offset = self._note_damage(queue, reading, next_offset)
            stored = unwrapped(stored, self._settings.unpacked_bytes_max)
            if subscription.tags:
                stored = [each for each in stored if subscription.passes(each)]
        settings, name = self._settings, queue.broker_name
        namespace, limit = settings.namespace, settings.unpacked_bytes_max
        return PullResult(
            status,
            [ReceivedMessage(each, name, namespace, limit) for each in stored],
            next_offset,
            header.min_offset,
            header.max_offset,
            header.suggest_which_broker_id,
        )

    def _note_damage(self, queue: Queue, reading: Reading, next_offset: int) -> int:
        """Track a damaged record; returns where to continue. Raises RecordError."""
        known = self._damages.pop(queue, None)
        if reading.left_out:
            log.error(
                "group %s, queue %s: %s; it arrived damaged twice and is skipped",
                self.group, queue, known,
            )  # fmt: skip
        if reading.damage is None:
            return next_offset
        self._damages[queue] = reading.damage
        if not reading.stored and not reading.left_out:
            raise RecordError(f"group {self.group}, queue {queue}: {reading.damage}")
        return reading.damage.queue_offset

    async def send_back(
        self, message: ReceivedMessage, delay_level: int, max_reconsume_times: int
    ) -> None:
        """Have the broker deliver a message again, after the delay of a level (0: it chooses)."""
        queue = Queue(message.stored.topic, message.broker_name, message.queue_id)
        header = ConsumerSendMsgBackRequest(
            log_offset=message.stored.log_offset,
            group=self.group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.stored.topic,
            unit_mode=self._settings.unit_mode,
            max_reconsume_times=max_reconsume_times,
            target_broker=queue.broker_name,
        )
        await self._ask(queue, RequestCode.CONSUMER_SEND_MSG_BACK, header, _SEND_BACK_MS)

    async def resend(
        self,
        message: ReceivedMessage,
        *,
        delay_level: int,
        reconsume_count: int,
        max_reconsume_times: int,
    ) -> None:
        """Send a copy of a message to the group's retry topic, to any broker that has it.

        With no tries left the broker makes it a dead letter. This is the way out when the broker
        of the message does not take it back, and the only way for ordered consumers.
        """
        stored = message.stored
        topic = RETRY_TOPIC_PREFIX + self.group
        route = await self.hub.routes.for_publishing(topic)
        # Brokers make retry topics with one queue, whatever the template of other topics has.
        choice = [each for each in route.writable if not (route.is_template and each.queue_id)]
        queue = random.choice(choice)  # noqa: S311 - spreads load
        wire = dict(stored.properties)
        wire.setdefault(properties.RETRY_TOPIC, stored.topic)
        wire.setdefault(properties.ORIGIN_MESSAGE_ID, message.msg_id)
        for name in _NOT_RESENT:
            wire.pop(name, None)
        if delay_level > 0:
            wire[properties.DELAY_LEVEL] = str(delay_level)
        header = SendMessageRequestV2(
            producer_group=_INNER_PRODUCER,
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_count=4,
            queue_id=queue.queue_id,
            sys_flag=stored.sys_flag & _RESENT_FLAGS,
            born_timestamp=wall_ms(),
            flag=stored.flag,
            properties=properties.encode(wire),
            reconsume_times=reconsume_count,
            max_reconsume_times=max_reconsume_times,
            unit_mode=self._settings.unit_mode,
            batch=False,
            broker_name=queue.broker_name,
        )
        command = Command(
            code=RequestCode.SEND_MESSAGE_V2, ext_fields=headers.encode(header), body=stored.body
        )
        address = await self._master(queue)
        await self.hub.call(address, command, _SEND_BACK_MS, subject=f"topic {topic}: resending")

    # -- offsets -----------------------------------------------------------------------------------

    async def committed(self, queue: Queue, *, exact: bool = True) -> int | None:
        """The group's offset in a queue, None if the broker has none.

        Of a group that it does not know a broker says 0, as long as nothing of the queue has been
        deleted: a new group shall not miss what was sent while it was being set up. With `exact`
        5.x and Tianzhou tell the truth; 4.9 cannot be asked.
        """
        header = offsets.QueryConsumerOffsetRequest(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False if exact else None,
            target_broker=queue.broker_name,
        )
        command = Command(code=RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=headers.encode(header))
        address = await self._master(queue)
        answer = await self._request(queue, MASTER_ID, address, command, _OFFSETS_MS)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer, f"group {self.group}, queue {queue}: its offset")
        found = headers.decode(offsets.OffsetResponse, answer.fields).queue_offset
        return found if found >= 0 else None

    async def commit(self, queue: Queue, queue_offset: int) -> None:
        """Commit the group's offset in a queue."""
        header = offsets.UpdateConsumerOffsetRequest(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=queue_offset,
            target_broker=queue.broker_name,
        )
        await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, _OFFSETS_MS)

    async def min_offset(self, queue: Queue) -> int:
        """The lowest offset that has a message."""
        header = offsets.QueueRequest(
            topic=queue.topic, queue_id=queue.queue_id, target_broker=queue.broker_name
        )
        answer = await self._ask(queue, RequestCode.GET_MIN_OFFSET, header)
        return headers.decode(offsets.OffsetResponse, answer.fields).queue_offset

    async def max_offset(self, queue: Queue) -> int:
        """The offset that the next message will get."""
        header = offsets.GetMaxOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, target_broker=queue.broker_name
        )
        answer = await self._ask(queue, RequestCode.GET_MAX_OFFSET, header)
        return headers.decode(offsets.OffsetResponse, answer.fields).queue_offset

    async def search_offset(self, queue: Queue, time_ms: int) -> int:
        """The offset of the first message stored at that time or later."""
        header = offsets.SearchOffsetRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp=time_ms,
            target_broker=queue.broker_name,
        )
        answer = await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return headers.decode(offsets.OffsetResponse, answer.fields).queue_offset

    async def earliest_store_time_ms(self, queue: Queue) -> int:
        """When the lowest message of a queue was stored."""
        header = offsets.QueueRequest(
            topic=queue.topic, queue_id=queue.queue_id, target_broker=queue.broker_name
        )
        answer = await self._ask(queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        return headers.decode(offsets.GetEarliestMsgStoretimeResponse, answer.fields).timestamp

    # -- the group ---------------------------------------------------------------------------------

    async def members(self, topic: str) -> list[str]:
        """The client ids of the group, as a broker of the topic knows them."""
        addresses = self.hub.routes.topic_addresses(topic)
        if not addresses:
            await self.hub.routes.get(topic, refresh=True)
            addresses = self.hub.routes.topic_addresses(topic)
        if not addresses:
            raise RouteNotFound(f"topic {topic}: no address of a broker is known")
        header = ConsumerGroupRequest(consumer_group=self.group)
        command = Command(
            code=RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields=headers.encode(header)
        )
        address = random.choice(addresses)  # noqa: S311 - spreads load
        answer = await self.hub.call(address, command, subject=f"group {self.group}: its members")
        return bodies.decode(ConsumerIdList, answer.body).consumer_ids or []

    async def check_subscription(self, subscription: Subscription) -> None:
        """See that a broker of the topic understands a filter. Raises BrokerError if it does not.

        Tags need no check. A topic without a broker cannot be checked yet.
        """
        if subscription.expression_type == TAG_TYPE:
            return
        body = CheckClientBody(
            client_id=self.hub.client_id,
            group=self.group,
            subscription_data=subscription.to_wire(),
        )
        for address in self.hub.routes.topic_addresses(subscription.topic)[:1]:
            command = Command(code=RequestCode.CHECK_CLIENT_CONFIG, body=bodies.encode(body))
            subject = f"group {self.group}, topic {subscription.topic}: filter"
            await self.hub.call(address, command, subject=subject)

    async def lock(self, broker_name: str, queues: Iterable[Queue]) -> set[Queue]:
        """Lock queues of one broker for this client; gives those that are locked now."""
        wanted = list(queues)
        body = QueueLockBody(
            consumer_group=self.group,
            client_id=self.hub.client_id,
            queues=[each.to_wire() for each in wanted],
        )
        command = Command(code=RequestCode.LOCK_BATCH_MQ, body=bodies.encode(body))
        address = await self._master(wanted[0])
        subject = f"group {self.group}, broker {broker_name}: locks"
        answer = await self.hub.call(address, command, _LOCK_MS, subject=subject)
        locked = bodies.decode(LockBatchResponseBody, answer.body).locked
        return {from_wire(each) for each in locked}

    async def unlock(self, broker_name: str, queues: Iterable[Queue]) -> None:
        """Unlock queues of one broker."""
        wanted = list(queues)
        body = QueueLockBody(
            consumer_group=self.group,
            client_id=self.hub.client_id,
            queues=[each.to_wire() for each in wanted],
        )
        command = Command(code=RequestCode.UNLOCK_BATCH_MQ, body=bodies.encode(body))
        address = await self._master(wanted[0])
        subject = f"group {self.group}, broker {broker_name}: unlocking"
        await self.hub.call(address, command, _LOCK_MS, subject=subject)

    # -- inside ------------------------------------------------------------------------------------

    async def _ask(
        self, queue: Queue, code: int, header: headers.Header, timeout_ms: int | None = None
    ) -> Command:
        command = Command(code=code, ext_fields=headers.encode(header))
        timeout_ms = timeout_ms or self.hub.settings.api_timeout_ms
        address = await self._master(queue)
        answer = await self._request(queue, MASTER_ID, address, command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer, f"group {self.group}, queue {queue}: request {code}")
        return answer

    async def _request(
        self, queue: Queue, broker_id: int, address: str, command: Command, timeout_ms: int
    ) -> Command:
        """Send a request; after a failed connection, to the address of a refreshed route."""
        try:
            return await self.hub.request(address, command, timeout_ms)
        except ConnectError:
            await self.hub.routes.refresh((queue.topic,))
            found = self.hub.routes.read_address(queue.broker_name, broker_id)
            if found is None or found[0] == address:
                raise
            return await self.hub.request(found[0], command, timeout_ms)

    def forget(self, queue: Queue) -> None:
        """Forget the suggested broker of a queue."""
        self._read_from.pop(queue, None)
