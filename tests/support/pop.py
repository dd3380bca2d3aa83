"""The requests of pop consumption, as a client sends them."""

import base64
import time
from dataclasses import dataclass
from typing import Protocol, TypedDict, Unpack

from tianzhou.message import StoredMessage
from tianzhou.protocol import properties
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.queues import BatchAck, BatchAckMessageBody
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.pop import PopMessageResponse
from tianzhou.protocol.records import receipts
from tianzhou.protocol.records.receipts import Receipt
from tianzhou.protocol.records.record import decode_records

GROUP, TOPIC = "g", "t"
LONG_MS = 600_000


class Asks(Protocol):
    """Anything that sends requests to a broker."""

    async def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 10_000,
    ) -> Command: ...


class PopOptions(TypedDict, total=False):
    """The parameters of `pop_fields`."""

    group: str
    topic: str
    queue_id: int
    count: int
    invisible_ms: int
    poll_ms: int
    init_mode: int
    order: bool
    attempt: str
    tags: str


@dataclass(frozen=True, slots=True)
class Popped:
    """A message and the handle that a client builds for it."""

    message: StoredMessage
    handle: Receipt
    count: int = 0
    """The number of earlier deliveries, in the response to an ordered pop."""

    @property
    def body(self) -> bytes:
        return self.message.body


def pop_fields(
    *,
    group: str = GROUP,
    topic: str = TOPIC,
    queue_id: int = -1,
    count: int = 32,
    invisible_ms: int = LONG_MS,
    poll_ms: int = 0,
    init_mode: int = 0,
    order: bool = False,
    attempt: str = "",
    tags: str = "",
) -> dict[str, str]:
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id),
        "maxMsgNums": str(count), "invisibleTime": str(invisible_ms), "pollTime": str(poll_ms),
        "bornTime": str(int(time.time() * 1000)), "initMode": str(init_mode),
    }  # fmt: skip
    if order:
        fields["order"] = "true"
    if attempt:
        fields["attemptId"] = attempt
    if tags:
        fields |= {"exp": tags, "expType": "TAG"}
    return fields


def popped_in(answer: Command, broker_name: str = "broker-a") -> list[Popped]:
    """The messages of a response, with handles built as stock clients do."""
    popped = decode(PopMessageResponse, answer.fields)
    starts = {
        tuple(each.split(" ")[:2]): int(each.split(" ")[2])
        for each in (popped.start_offset_info or "").split(";")
        if each
    }
    counts = {
        tuple(each.split(" ")[:2]): int(each.split(" ")[2])
        for each in (popped.order_count_info or "").split(";")
        if each
    }
    found: list[Popped] = []
    for message in decode_records(answer.body, check_crc=True):
        text = message.properties.get(properties.POP_CK)
        if text is not None:
            found.append(Popped(message, receipts.parse_receipt(text)))
            continue
        mark, queue = receipts.mark_of(message.topic), str(message.queue_id)
        handle = Receipt(
            starts[mark, queue], popped.pop_time_ms, popped.invisible_time_ms,
            popped.revive_queue_id, mark, broker_name, message.queue_id, message.queue_offset,
        )  # fmt: skip
        count = counts.get(
            (mark, f"qo{queue}%{message.queue_offset}"), counts.get((mark, queue), 0)
        )
        found.append(Popped(message, handle, count))
    return found


async def pop(peer: Asks, **options: Unpack[PopOptions]) -> list[Popped]:
    """The messages of a pop, possibly none."""
    fields = pop_fields(**options)
    answer = await peer.ask(RequestCode.POP_MESSAGE, fields, timeout_ms=40_000)
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    return popped_in(answer)


def handle_fields(one: Popped, group: str = GROUP, topic: str = TOPIC) -> dict[str, str]:
    return {
        "consumerGroup": group,
        "topic": receipts.real_topic(topic, group, one.handle.topic_mark),
        "queueId": str(one.handle.queue_id),
        "extraInfo": str(one.handle),
        "offset": str(one.handle.queue_offset),
    }


async def ack(peer: Asks, one: Popped, group: str = GROUP, topic: str = TOPIC) -> Command:
    return await peer.ask(RequestCode.ACK_MESSAGE, handle_fields(one, group, topic))


async def change(peer: Asks, one: Popped, invisible_ms: int) -> Command:
    fields = handle_fields(one) | {"invisibleTime": str(invisible_ms)}
    return await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


async def batch_ack(peer: Asks, *ones: Popped, group: str = GROUP, topic: str = TOPIC) -> Command:
    acks: list[BatchAck] = []
    for one in ones:
        handle = one.handle
        assert handle.queue_offset is not None
        bits = (1 << handle.queue_offset - handle.start_offset).to_bytes(64, "little")
        acks.append(
            BatchAck(
                consumer_group=group, topic=topic, retry=handle.topic_mark,
                start_offset=handle.start_offset, queue_id=handle.queue_id,
                revive_queue_id=handle.revive_queue_id, pop_time_ms=handle.pop_time_ms,
                invisible_time_ms=handle.invisible_time_ms,
                bit_set=base64.b64encode(bits.rstrip(b"\0")).decode(),
            )
        )  # fmt: skip
    body = encode_body(BatchAckMessageBody(broker_name="broker-a", acks=acks))
    return await peer.ask(RequestCode.BATCH_ACK_MESSAGE, None, body)
