"""The requests of consumers that pop: messages, notifications, acknowledgements.

A pop never waits; NOTIFICATION does, which returns no messages: a parked pop cannot be cancelled,
and messages that it pops after its program has ended would be invisible for the invisible time.
Names of topics and groups are those on the wire.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.hub import Hub
from tianzhou.client.group.broker_calls import BrokerCalls
from tianzhou.client.group.record_decoding import unwrapped
from tianzhou.client.group.subscriptions import Subscription
from tianzhou.client.pop.messages import PoppedMessage, receipt_of, sound_records
from tianzhou.client.queues import Queue
from tianzhou.client.settings import ClientSettings
from tianzhou.errors import HandleExpired, TianzhouError
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.queues import BatchAck, BatchAckMessageBody
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.pop import (
    AckMessageRequest,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
    NotificationRequest,
    NotificationResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from tianzhou.protocol.records import receipts

log = logging.getLogger(__name__)

ANY_QUEUE = -1
POP_COUNT_MAX = 32
"""Brokers refuse a higher number."""

_FROM_FIRST, _FROM_LAST = 0, 1
_ACKS_IN_A_REQUEST = 1_024
_BITS_MAX = 8 * 1_024
_BROKERS_MAX = 1_024
_NOW = 0
"""A creation time that brokers replace by their own: they reject requests that are old by their
clock, and the clocks of two machines differ."""
_EMPTY = frozenset((
    ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND,
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class PopLimits:
    """The number of messages of a pop, and their invisible time."""

    message_count: int
    invisible_ms: int


class PopCalls(BrokerCalls):
    """Requests in the name of one consumer group; a target is a topic on a broker, all its queues.

    Every method raises RemotingError, BrokerError or RouteNotFound when it cannot be done.
    """

    def __init__(self, hub: Hub, group: str, settings: ClientSettings, *, from_first: bool) -> None:
        super().__init__(hub, group, settings)
        self._init_mode = _FROM_FIRST if from_first else _FROM_LAST
        self._one_by_one: set[str] = set()
        """Names of brokers that do not know BATCH_ACK_MESSAGE."""

    # -- messages ----------------------------------------------------------------------------------

    async def pop(
        self, target: Queue, subscription: Subscription, limits: PopLimits
    ) -> list[PoppedMessage]:
        """Messages for the group, redelivered ones included.

        A damaged message is skipped; it is delivered again. Raises RecordError.
        """
        header = PopMessageRequest(
            consumer_group=self.group,
            topic=target.topic,
            queue_id=ANY_QUEUE,
            max_msg_count=limits.message_count,
            invisible_time_ms=limits.invisible_ms,
            poll_time_ms=0,
            born_time_ms=_NOW,
            init_mode=self._init_mode,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
            order=False,
        )
        answer = await self._send(target, _command(RequestCode.POP_MESSAGE, header))
        if answer.code in _EMPTY:
            return []
        self._check(answer, target, "pop")
        return self._popped(target, answer)

    def _popped(self, target: Queue, answer: Command) -> list[PoppedMessage]:
        response = headers.decode(PopMessageResponse, answer.fields)
        starts = receipts.parse_start_offsets(response.start_offset_info or "")
        sound, damaged = sound_records(answer.body)
        for each in damaged:
            log.error(
                "group %s, queue %s@%s:%d: the message at offset %d is damaged and skipped; it "
                "will be delivered again", self.group, each.topic, target.broker_name,
                each.queue_id, each.queue_offset,
            )  # fmt: skip
        namespace, limit = self._settings.namespace, self._settings.unpacked_bytes_max
        return [
            PoppedMessage(
                each, receipt_of(each, response, starts, target.broker_name), target.topic,
                target.broker_name, namespace, limit,
            )
            for each in unwrapped(sound, limit)
        ]  # fmt: skip

    async def listen(self, target: Queue, subscription: Subscription, wait_ms: int) -> bool:
        """Wait for a message to pop; False after the time-out, or if too many are parked."""
        header = NotificationRequest(
            consumer_group=self.group,
            topic=target.topic,
            queue_id=ANY_QUEUE,
            poll_time_ms=wait_ms,
            born_time_ms=_NOW,
            expression_type=subscription.expression_type,
            expression=subscription.expression,
        )
        command = _command(RequestCode.NOTIFICATION, header)
        answer = await self._send(target, command, wait_ms)
        self._check(answer, target, "waiting")
        return headers.decode(NotificationResponse, answer.fields).has_msg

    # -- acknowledgement ---------------------------------------------------------------------------

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message. Raises HandleExpired."""
        await self._send_handle(message, RequestCode.ACK_MESSAGE, AckMessageRequest)

    async def change_invisible(self, message: PoppedMessage, invisible_ms: int) -> None:
        """Set the invisible time of a message, from now on; its handle changes.

        Raises HandleExpired.
        """
        answer = await self._send_handle(
            message,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            ChangeInvisibleTimeRequest,
            invisible_time_ms=invisible_ms,
        )
        message.renew(headers.decode(ChangeInvisibleTimeResponse, answer.fields))

    async def _send_handle(
        self,
        message: PoppedMessage,
        code: RequestCode,
        kind: Callable[..., headers.Header],
        **fields: object,
    ) -> Command:
        if message.is_expired:
            raise _expired(message)
        target, receipt = _target_of(message), message.receipt
        header = kind(
            consumer_group=self.group,
            topic=receipts.real_topic(target.topic, self.group, receipt.topic_mark),
            queue_id=receipt.queue_id,
            extra_info=message.handle,
            queue_offset=message.handle_offset,
            **fields,
        )
        answer = await self._send_with_retry(target, _command(code, header))
        if answer.code == ResponseCode.NO_MESSAGE:
            raise _expired(message)
        self._check(answer, target, code.name)
        return answer

    async def ack_many(self, messages: Sequence[PoppedMessage]) -> list[TianzhouError | None]:
        """Acknowledge messages; returns an error or None for each."""
        errors: dict[PoppedMessage, TianzhouError | None] = {}
        by_broker: dict[str, list[PoppedMessage]] = {}
        for message in messages:
            if message.is_expired:
                errors[message] = _expired(message)
            else:
                by_broker.setdefault(message.broker_name, []).append(message)
        chunks = [
            group[start : start + _ACKS_IN_A_REQUEST]
            for group in by_broker.values()
            for start in range(0, len(group), _ACKS_IN_A_REQUEST)
        ]
        for failures in await asyncio.gather(*map(self._ack_broker, chunks)):
            errors |= failures
        return [errors.get(each) for each in messages]

    async def _ack_broker(
        self, messages: list[PoppedMessage]
    ) -> dict[PoppedMessage, TianzhouError | None]:
        """Acknowledge messages of one broker, in one request if it supports that."""
        broker_name = messages[0].broker_name
        may_share = broker_name not in self._one_by_one and all(map(_fits_bits, messages))
        if len(messages) > 1 and may_share:
            try:
                if await self._ack_together(messages):
                    return {}
            except TianzhouError as error:
                return dict.fromkeys(messages, error)
            if len(self._one_by_one) >= _BROKERS_MAX:
                self._one_by_one.clear()
            self._one_by_one.add(broker_name)
        errors = await asyncio.gather(*map(self._ack_error, messages))
        return dict(zip(messages, errors, strict=True))

    async def _ack_together(self, messages: list[PoppedMessage]) -> bool:
        """False if the broker does not support batch acknowledgement."""
        target = _target_of(messages[0])
        body = BatchAckMessageBody(
            broker_name=target.broker_name, acks=batch_acks(self.group, messages)
        )
        command = Command(code=RequestCode.BATCH_ACK_MESSAGE, body=bodies.encode(body))
        answer = await self._send_with_retry(target, command)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return False
        self._check(answer, target, "acknowledgements")
        return True

    async def _ack_error(self, message: PoppedMessage) -> TianzhouError | None:
        try:
            await self.ack(message)
        except TianzhouError as error:
            return error
        return None

    # -- inside ------------------------------------------------------------------------------------

    async def _send_with_retry(self, target: Queue, command: Command) -> Command:
        """Retry while the broker restarts; the time-out covers all attempts."""
        deadline_s = self.hub.loop.time() + self.hub.settings.api_timeout_ms / 1000
        return await self.hub.retry_unsent(
            lambda: self._send(target, command), target.topic, deadline_s
        )

    async def _send(self, target: Queue, command: Command, wait_ms: int = 0) -> Command:
        return await self._request(target, command, wait_ms + self.hub.settings.api_timeout_ms)

    def _check(self, answer: Command, target: Queue, what: str) -> None:
        """Raises BrokerError for an error response."""
        if answer.code == ResponseCode.SUCCESS:
            return
        subject = f"group {self.group}, topic {target.topic}, broker {target.broker_name}: {what}"
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            subject += ": it does not support pop; RocketMQ 5.0 and newer do, and Tianzhou"
        raise broker_error(answer, subject)


def _command(code: RequestCode, header: headers.Header) -> Command:
    return Command(code=code, ext_fields=headers.encode(header))


def batch_acks(group: str, messages: Iterable[PoppedMessage]) -> list[BatchAck]:
    """Combined acknowledgements: one for each pop and queue, with a bit for each message."""
    bits: dict[tuple[str, receipts.Receipt], int] = {}
    for message in messages:
        pop = receipts.without_message(message.receipt)
        key = (message.wire_topic, pop)
        bits[key] = bits.get(key, 0) | 1 << message.handle_offset - pop.start_offset
    return [
        BatchAck(
            consumer_group=group,
            topic=topic,
            retry=pop.topic_mark,
            start_offset=pop.start_offset,
            queue_id=pop.queue_id,
            revive_queue_id=pop.revive_queue_id,
            pop_time_ms=pop.pop_time_ms,
            invisible_time_ms=pop.invisible_time_ms,
            bit_set=base64.b64encode(
                found.to_bytes((found.bit_length() + 7) // 8, "little")
            ).decode(),
        )
        for (topic, pop), found in bits.items()
    ]


def _fits_bits(message: PoppedMessage) -> bool:
    """Whether the bit set of the pop reaches this message; a filter may have skipped many."""
    return 0 <= message.handle_offset - message.receipt.start_offset < _BITS_MAX


def _target_of(message: PoppedMessage) -> Queue:
    """The target of its acknowledgement. The topic is the subscribed one, which has a route."""
    return Queue(message.wire_topic, message.broker_name, ANY_QUEUE)


def _expired(message: PoppedMessage) -> HandleExpired:
    return HandleExpired(
        f"message {message.msg_id} of topic {message.topic}: its handle is invalid; it was "
        "acknowledged, or its invisible time ended and it is delivered again "
        f"({message.visible_at:%H:%M:%S} by the broker's clock)"
    )
