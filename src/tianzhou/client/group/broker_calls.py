"""The requests of consumers to brokers: messages, offsets, members, locks, redelivery.

Names of topics and groups are those on the wire. Every method resolves the broker name of the
queue, refreshes the route if the name is unknown, and raises RemotingError, BrokerError or
RouteNotFound.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import msgspec

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.hub import Hub
from tianzhou.client.group.record_decoding import Damage, Reading, read_records, unwrapped
from tianzhou.client.group.subscriptions import Subscription
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.queues import Queue, from_wire
from tianzhou.client.settings import ClientSettings
from tianzhou.clock import wall_ms
from tianzhou.errors import BrokerError, ConnectError, RecordError, RouteNotFound
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
from tianzhou.protocol.headers.pull import (
    COMMIT_OFFSET,
    PullMessageRequest,
    PullMessageResponse,
    pull_request,
)
from tianzhou.protocol.headers.send import ConsumerSendMsgBackRequest, SendMessageRequestV2
from tianzhou.protocol.sysflag import COMPRESSED, COMPRESSION_MASK, MULTI_TAGS

log = logging.getLogger(__name__)

H = TypeVar("H", bound=headers.Header)

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


PULL_STATUSES = {int(status.value): status for status in PullStatus}
"""By response code."""


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

    async def _reading_address(self, queue: Queue, broker_id: int) -> tuple[str, bool]:
        """The address of a broker, and whether it is a slave, which replaces a missing master."""
        address = self.hub.routes.read_address(queue.broker_name, broker_id)
        if address is None:
            await self._await_route(queue.topic)
            address = self.hub.routes.read_address(queue.broker_name, broker_id)
        if address is None:
            raise RouteNotFound(f"queue {queue}: no address of broker {queue.broker_name} is known")
        return address

    async def _await_route(self, topic: str) -> None:
        """Fetch the route of a topic, retrying for two seconds while there is none.

        A broker that creates a topic responds to the sender before it registers the topic.
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
        saves the progress of the group, too. Raises RecordError if the response is damaged; a
        record that arrives with the same damage twice is left out if `leave_out_damaged`.
        """
        wanted = subscription or Subscription(queue.topic)
        header = pull_request(
            group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_count=limits.message_count,
            max_bytes=limits.size_bytes,
            suspend_ms=limits.suspend_ms,
            commit_offset=commit_offset,
            expression=wanted.expression if inline else None,
            expression_type=wanted.expression_type,
            sub_version=wanted.version,
            broker_name=queue.broker_name,
        )
        answer = await self._pull_from_any(queue, header, limits.timeout_ms)
        status = PULL_STATUSES.get(answer.code)
        if status is None:
            raise broker_error(answer, f"group {self.group}, queue {queue}: pull")
        response = headers.decode(PullMessageResponse, answer.fields)
        self._follow(queue, status, response.suggest_which_broker_id)
        stored: list[StoredMessage] = []
        next_offset = response.next_begin_offset
        namespace, limit = self._settings.namespace, self._settings.unpacked_bytes_max
        if status is PullStatus.FOUND:
            known = self._damages.pop(queue, None) if leave_out_damaged else None
            reading = read_records(
                answer.body, queue, queue_offset, next_offset,
                offset_delta=response.offset_delta or 0, known=known,
            )  # fmt: skip
            if reading.left_out or reading.damage is not None:
                next_offset = self._note_damage(queue, reading, next_offset, known)
            stored = unwrapped(reading.stored, limit)
            if wanted.tags:
                stored = [each for each in stored if wanted.passes(each)]
        return PullResult(
            status,
            [ReceivedMessage(each, queue.broker_name, namespace, limit) for each in stored],
            next_offset,
            response.min_offset,
            response.max_offset,
            response.suggest_which_broker_id,
        )

    def _follow(self, queue: Queue, status: PullStatus, broker_id: int) -> None:
        """The next pull goes to the suggested broker."""
        self._read_from[queue] = broker_id
        addresses = self.hub.routes.brokers.get(queue.broker_name, {})
        if status is PullStatus.NO_MATCH and broker_id not in addresses:
            # A slave that is connected to its master sends readers back to it.
            self.hub.routes.refresh_in_background(queue.topic)

    async def _pull_from_any(
        self, queue: Queue, header: PullMessageRequest, timeout_ms: int
    ) -> Command:
        """The response of the suggested broker; if it is gone, of another one with its name.

        Without a suggestion the master is asked first, so a reader comes back to it.
        """
        broker_id = self._read_from.get(queue, MASTER_ID)
        address, is_slave = await self._reading_address(queue, broker_id)
        try:
            return await self.hub.request(
                address, _pull_command(header, is_slave=is_slave), timeout_ms
            )
        except ConnectError as error:
            await self.hub.routes.renew(queue.topic)
            failure: ConnectError = error
        for other, is_slave in self.hub.routes.read_addresses(queue.broker_name, broker_id):
            if other != address:
                try:
                    return await self.hub.request(
                        other, _pull_command(header, is_slave=is_slave), timeout_ms
                    )
                except ConnectError as error:
                    failure = error
        raise failure

    def _note_damage(
        self, queue: Queue, reading: Reading, next_offset: int, known: Damage | None
    ) -> int:
        """Track a damaged record; returns where to continue. Raises RecordError."""
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
        """Have the broker deliver a message again, after a delay level (0: the broker chooses)."""
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
        delay_level: int,
        reconsume_count: int,
        max_reconsume_times: int,
    ) -> None:
        """Send a copy of a message to the group's retry topic, to any broker that has it.

        With no retries left the broker makes it a dead letter. It is used if the broker of the
        message does not accept it back, and always by ordered consumers.
        """
        stored = message.stored
        topic = RETRY_TOPIC_PREFIX + self.group
        route = await self.hub.routes.for_publishing(topic)
        # Brokers create retry topics with one queue, whatever the template has.
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
        await self._call(queue, command, _SEND_BACK_MS)

    # -- offsets -----------------------------------------------------------------------------------

    async def committed(self, queue: Queue, *, exact: bool = True) -> int | None:
        """The committed offset of the group in a queue, None if there is none.

        For an unknown group a broker returns 0 while nothing of the queue has been deleted, so that
        a new group does not miss what was sent during its set-up. With `exact`, 5.x and Tianzhou
        report that there is none; 4.9 has no such request.
        """
        header = _of_queue(
            offsets.QueryConsumerOffsetRequest,
            queue,
            consumer_group=self.group,
            set_zero_if_not_found=False if exact else None,
        )
        try:
            answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header, _OFFSETS_MS)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        at = headers.decode(offsets.OffsetResponse, answer.fields).queue_offset
        return at if at >= 0 else None

    async def commit(self, queue: Queue, queue_offset: int) -> None:
        """Commit the group's offset in a queue."""
        header = _of_queue(
            offsets.UpdateConsumerOffsetRequest,
            queue,
            consumer_group=self.group,
            commit_offset=queue_offset,
        )
        await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header, _OFFSETS_MS)

    async def min_offset(self, queue: Queue) -> int:
        """The lowest offset that has a message."""
        header = _of_queue(offsets.QueueRequest, queue)
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, header)

    async def max_offset(self, queue: Queue) -> int:
        """The offset that the next message will get."""
        header = _of_queue(offsets.GetMaxOffsetRequest, queue)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def search_offset(self, queue: Queue, time_ms: int) -> int:
        """The offset of the first message stored at that time or later."""
        header = _of_queue(offsets.SearchOffsetRequest, queue, timestamp=time_ms)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, queue: Queue, code: int, header: headers.Header) -> int:
        answer = await self._ask(queue, code, header)
        return headers.decode(offsets.OffsetResponse, answer.fields).queue_offset

    async def earliest_store_time_ms(self, queue: Queue) -> int:
        """When the lowest message of a queue was stored."""
        header = _of_queue(offsets.QueueRequest, queue)
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

    async def lock(self, queues: Sequence[Queue]) -> set[Queue]:
        """Lock queues of one broker for this client; returns those that are locked now."""
        answer = await self._lock_request(RequestCode.LOCK_BATCH_MQ, queues)
        locked = bodies.decode(LockBatchResponseBody, answer.body).locked
        return {from_wire(each) for each in locked}

    async def unlock(self, queues: Sequence[Queue]) -> None:
        """Unlock queues of one broker."""
        await self._lock_request(RequestCode.UNLOCK_BATCH_MQ, queues)

    async def _lock_request(self, code: RequestCode, queues: Sequence[Queue]) -> Command:
        wire = [each.to_wire() for each in queues]
        body = QueueLockBody(consumer_group=self.group, client_id=self.hub.client_id, queues=wire)
        return await self._call(queues[0], Command(code=code, body=bodies.encode(body)), _LOCK_MS)

    # -- inside ------------------------------------------------------------------------------------

    async def _ask(
        self, queue: Queue, code: int, header: headers.Header, timeout_ms: int | None = None
    ) -> Command:
        command = Command(code=code, ext_fields=headers.encode(header))
        return await self._call(queue, command, timeout_ms or self.hub.settings.api_timeout_ms)

    async def _call(self, queue: Queue, command: Command, timeout_ms: int) -> Command:
        """The response to a request that must succeed."""
        answer = await self._request(queue, command, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer, f"group {self.group}, queue {queue}: request {command.code}")
        return answer

    async def _request(self, queue: Queue, command: Command, timeout_ms: int) -> Command:
        """Send a request to the master, to a slave only if the route has no master.

        After a failed connection it is sent to the address of a refreshed route.
        """
        address, _ = await self._reading_address(queue, MASTER_ID)
        try:
            return await self.hub.request(address, command, timeout_ms)
        except ConnectError:
            await self.hub.routes.renew(queue.topic)
            refreshed = self.hub.routes.read_address(queue.broker_name, MASTER_ID)
            if refreshed is None or refreshed[0] == address:
                raise
            return await self.hub.request(refreshed[0], command, timeout_ms)

    def forget(self, queue: Queue) -> None:
        """Forget the suggested broker of a queue."""
        self._read_from.pop(queue, None)


def _pull_command(header: PullMessageRequest, *, is_slave: bool) -> Command:
    """The request; a slave gets no offset to commit."""
    if is_slave:
        header = msgspec.structs.replace(header, sys_flag=header.sys_flag & ~COMMIT_OFFSET)
    return Command(code=RequestCode.PULL_MESSAGE, ext_fields=headers.encode(header))


def _of_queue(kind: Callable[..., H], queue: Queue, **fields: object) -> H:
    """A header about one queue."""
    topic, target_broker, queue_id = queue
    return kind(topic=topic, queue_id=queue_id, target_broker=target_broker, **fields)
