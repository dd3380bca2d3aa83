"""Delivering messages again: resending one, pushing one to a consumer, resending dead letters.

Dead letters are stored in the topic %DLQ%group. They are resent to the retry topic of the group, so
that no other group receives them twice; consumers see the original topic.
"""

from collections.abc import AsyncGenerator, Awaitable, Collection
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.fanout import BrokerRef, gather, run_limited
from tianzhou.admin.group_detail import merge_progress
from tianzhou.admin.messages import PRODUCER_GROUP, QueueRef, Sent, body_of
from tianzhou.errors import TargetError
from tianzhou.message import Message, StoredMessage
from tianzhou.names import DLQ_TOPIC_PREFIX
from tianzhou.protocol import properties
from tianzhou.protocol.records.message_id import id_of, offset_id_of
from tianzhou.remoting.address import format_address

if TYPE_CHECKING:
    from tianzhou.client import ClientSettings

_NOT_RESENT = {
    properties.WAIT_STORED, properties.DELAY_LEVEL, properties.REAL_TOPIC,
    properties.REAL_QUEUE_ID, properties.MIN_OFFSET, properties.MAX_OFFSET, properties.KEYS,
    properties.TAGS, properties.UNIQUE_KEY, properties.MSG_REGION, properties.CLUSTER,
    properties.RECONSUME_TIME, properties.MAX_RECONSUME_TIMES, properties.CONSUME_START_TIME,
    properties.TRACE_SWITCH, properties.CRC32, properties.POP_CK,
}  # fmt: skip
"""Properties of one delivery, which a resent message gets anew."""
CONSUMED = ("CR_SUCCESS", "CR_COMMIT")
"""Results by which a consumer reports success."""
NOT_CONSUMED = "not yet consumed"


# -- sending ---------------------------------------------------------------------------------------


class Send(Protocol):
    """Sends a message to a queue."""

    def __call__(self, message: Message, *, queue: QueueRef) -> Awaitable[Sent]: ...


@asynccontextmanager
async def traced_sender(settings: "ClientSettings") -> AsyncGenerator[Send]:
    """A `Send` that also writes message traces; on exit all traces are written."""
    from tianzhou.client import Message as ClientMessage  # Most commands need no client.
    from tianzhou.client import Producer
    from tianzhou.client.queues import Queue

    async with Producer(PRODUCER_GROUP, settings=settings, trace=True) as producer:

        async def send(message: Message, *, queue: QueueRef) -> Sent:
            outgoing = ClientMessage(
                message.topic,
                message.body,
                tags=message.tags,
                keys=message.keys,
                delay_level=message.delay_level,
                properties=message.properties,
            )
            target = Queue(queue.topic, queue.broker.name, queue.queue_id)
            stored = await producer.send(outgoing, queue=target)
            return Sent(
                message_id=stored.msg_id,
                offset_id=stored.offset_msg_id,
                broker_name=stored.queue.broker_name,
                queue_id=stored.queue.queue_id,
                queue_offset=stored.queue_offset,
                status=stored.status.name,
            )

        yield send


async def resend(admin: Admin, message: StoredMessage) -> Sent:
    """Send a stored message to its topic again, with the same body, properties and id."""
    return await admin.messages.send(
        _copy(message, message.topic, message.properties), message_id=id_of(message)
    )


def _copy(message: StoredMessage, topic: str, all_properties: dict[str, str]) -> Message:
    own_fields = (properties.TAGS, properties.KEYS)
    return Message(
        topic,
        body_of(message),
        tags=message.tags,
        keys=tuple(message.keys),
        flag=message.flag,
        properties={k: v for k, v in all_properties.items() if k not in own_fields},
    )


# -- pushing to one consumer -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result that a consumer reported for a pushed message."""

    id: str
    result: str | None
    took_ms: int
    ordered: bool
    remark: str | None


async def push_message(
    admin: Admin, group: str, client_id: str, message: StoredMessage, through: str | None = None
) -> PushResult:
    """Have one consumer process a message now; offsets do not move. Raises TargetError."""
    at = await _broker_of(admin, message, through)
    info = await admin.groups.running_info(at, group, client_id)
    if info.properties.get("PROP_CONSUME_TYPE") != "CONSUME_PASSIVELY":
        raise TargetError(f"{client_id} is not a push consumer; only push consumers accept this")
    result = await admin.groups.consume_directly(at, group, client_id, offset_id_of(message))
    return PushResult(
        id_of(message), result.consume_result, result.spent_time_ms, result.order, result.remark
    )


async def _broker_of(admin: Admin, message: StoredMessage, through: str | None) -> BrokerRef:
    """The broker that stores a message. Raises TargetError."""
    address = format_address(*message.store_host)
    for at in await admin.topics.brokers(message.topic, through):
        if at.address == address:
            return at
    raise TargetError(f"{address}, which stored the message, is not among its topic's brokers")


# -- consumption state -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupConsumption:
    """Whether a group has consumed a message."""

    group: str
    state: str
    committed: int | None


async def consumption(
    admin: Admin,
    message: StoredMessage,
    through: str | None = None,
    *,
    groups_max: int | None = None,
) -> list[GroupConsumption]:
    """The groups of the topic, by committed offset; a filter may have skipped the message."""
    address = format_address(*message.store_host)
    topic_brokers = await admin.topics.brokers(message.topic, through)
    brokers = [at for at in topic_brokers if at.address == address]

    async def states_of(group: str) -> list[GroupConsumption]:
        ask = partial(admin.groups.progress_on, group=group, topic=message.topic)
        progress = await gather(brokers, ask)
        return [
            GroupConsumption(
                group,
                "consumed" if offsets.consumer_offset > message.queue_offset else NOT_CONSUMED,
                offsets.consumer_offset,
            )
            for queue, offsets in merge_progress(progress.responses.values()).items()
            if queue.queue_id == message.queue_id
        ]

    groups = await admin.topics.groups(message.topic, through)
    states = await run_limited(groups[:groups_max], states_of)
    return [each for found in states for each in found]


# -- dead letters ----------------------------------------------------------------------------------


async def dead_letters(
    admin: Admin,
    group: str,
    *,
    begin_ms: int = 0,
    ids: Collection[str] = (),
    limit: int | None = None,
) -> AsyncGenerator[tuple[QueueRef, StoredMessage]]:
    """The dead letters of a group, or those with some ids. Raises TargetError if it has none."""
    topic = DLQ_TOPIC_PREFIX + group
    try:
        queues = await admin.messages.read_queues(topic)
    except TargetError as e:
        raise TargetError(f"group {group!r} has no dead letters") from e
    wanted = set(ids)
    count = 0
    for at in queues:
        begin = await admin.offsets.begin(at.broker, topic, at.queue_id)
        end = await admin.offsets.end(at.broker, topic, at.queue_id)
        async with aclosing(admin.messages.walk(at, begin, end)) as messages:
            async for message in messages:
                is_wanted = not wanted or wanted & {id_of(message), offset_id_of(message)}
                if is_wanted and message.store_time_ms >= begin_ms:
                    yield at, message
                    count += 1
                    if limit is not None and count >= limit:
                        return


def resendable_dead_letter(message: StoredMessage, topic: str, *, to_group: bool) -> Message:
    """A dead letter as a new message; for its own group it names the original topic."""
    resent = {name: value for name, value in message.properties.items() if name not in _NOT_RESENT}
    origin = (
        resent.pop(properties.RETRY_TOPIC, None)
        or message.properties.get(properties.DLQ_ORIGIN_TOPIC)
        or message.topic
    )
    if to_group:
        resent[properties.RETRY_TOPIC] = origin
    resent.setdefault(properties.ORIGIN_MESSAGE_ID, id_of(message))
    return _copy(message, topic, resent)
