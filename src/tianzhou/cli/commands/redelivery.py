"""Sending a message with its trace, sending one again, and having one consumed again."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tianzhou.admin.fanout import BrokerAt
from tianzhou.admin.messages import PRODUCER_GROUP, QueueAt, Sent, body_of
from tianzhou.cli.shared.command import Session
from tianzhou.errors import TargetError
from tianzhou.message import Message, StoredMessage
from tianzhou.protocol import properties
from tianzhou.protocol.records.message_id import id_of, offset_id_of
from tianzhou.remoting.address import format_address

if TYPE_CHECKING:
    from tianzhou.client import ClientSettings


class Put(Protocol):
    """Stores a message in a queue."""

    def __call__(self, message: Message, *, queue: QueueAt) -> Awaitable[Sent]: ...


@asynccontextmanager
async def tracing(settings: "ClientSettings") -> AsyncGenerator[Put]:
    """A way to store messages that also writes traces; at the end all of them are written."""
    from tianzhou.client import Message as Sendable  # Few commands need a client.
    from tianzhou.client import Producer
    from tianzhou.client.queues import Queue

    async with Producer(PRODUCER_GROUP, settings=settings, trace=True) as producer:

        async def put(message: Message, *, queue: QueueAt) -> Sent:
            fresh = Sendable(
                message.topic,
                message.body,
                tags=message.tags,
                keys=message.keys,
                delay_level=message.delay_level,
                properties=message.properties,
            )
            at = Queue(queue.topic, queue.broker.name, queue.queue_id)
            stored = await producer.send(fresh, queue=at)
            return Sent(
                message_id=stored.msg_id,
                offset_id=stored.offset_msg_id,
                broker_name=stored.queue.broker_name,
                queue_id=stored.queue.queue_id,
                queue_offset=stored.queue_offset,
                status=stored.status.name,
            )

        yield put


def resendable(message: StoredMessage) -> Message:
    """A stored message as one to send: the same body, with the properties that the log has."""
    kept = {
        name: value
        for name, value in message.properties.items()
        if name not in (properties.TAGS, properties.KEYS)
    }
    return Message(
        message.topic,
        body_of(message),
        tags=message.tags,
        keys=tuple(message.keys),
        flag=message.flag,
        properties=kept,
    )


CONSUMED = ("CR_SUCCESS", "CR_COMMIT")


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a group."""

    group: str
    client_id: str


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a member made of a message that was pushed to it."""

    id: str
    result: str | None
    took_ms: int
    ordered: bool
    remark: str | None


async def push_one(
    session: Session,
    to: Member,
    message_id: str,
    topic: str | None,
    through: str | None,
    broker: str | None = None,
) -> Pushed:
    """Let a member consume a message. Raises TargetError."""
    messages = session.admin.messages
    message = await messages.by_any_id(message_id, topic, through=through, broker=broker)
    at = await _broker_of(session, message, through)
    groups = session.admin.groups
    info = await groups.running_info(at, to.group, to.client_id)
    if info.properties.get("PROP_CONSUME_TYPE") != "CONSUME_PASSIVELY":
        raise TargetError(f"{to.client_id} is no push consumer, nothing can be pushed to it")
    told = await groups.consume_directly(at, to.group, to.client_id, offset_id_of(message))
    return Pushed(id_of(message), told.consume_result, told.spent_time_ms, told.order, told.remark)


async def _broker_of(session: Session, message: StoredMessage, through: str | None) -> BrokerAt:
    """The broker that has a message. Raises TargetError."""
    address = format_address(*message.store_host)
    for at in await session.admin.topics.brokers(message.topic, through):
        if at.address == address:
            return at
    raise TargetError(f"{address}, which stored the message, is not among its topic's brokers")
