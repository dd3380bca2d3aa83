"""Pop consumption: acknowledgements and changed invisible times, by receipt handle.

ACK_MESSAGE, BATCH_ACK_MESSAGE   messages are processed
CHANGE_MESSAGE_INVISIBLETIME     messages become visible at another time
"""

import base64
import binascii
from collections.abc import Iterator

from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.pop import check_invisible, find_poppable
from tianzhou.broker.handlers.responses import success
from tianzhou.broker.pop.inflight import Change, InFlight, Key
from tianzhou.clock import Moment
from tianzhou.errors import BodyError, RequestError
from tianzhou.limits import ACKED_BITS_MAX
from tianzhou.protocol.bodies import decode_request_steps
from tianzhou.protocol.bodies.queues import BatchAck, BatchAckMessageBody
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.pop import (
    AckMessageRequest,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
)
from tianzhou.protocol.records import receipts
from tianzhou.protocol.records.receipts import ORDERED_REVIVE_QUEUE
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps, sliced


def ack_message(deps: Deps, _: Connection, request: Command) -> Command:
    """ACK_MESSAGE. A handle that is no longer valid has no effect, as in RocketMQ."""
    header = decode(AckMessageRequest, request.fields)
    handle = receipts.parse_receipt(header.extra_info)
    _check_position(deps, header.topic, header.queue_id, header.queue_offset)
    key = Key(header.consumer_group, header.topic, header.queue_id)
    if handle.is_ordered:
        _ack_in_order(deps, key, header.queue_offset, handle.pop_time_ms)
    else:
        change = deps.pops.table.acked(
            key, header.queue_offset, handle.pop_time_ms, handle.invisible_time_ms
        )
        if change is not None:
            _note_acked(deps, [change])
    return Command(code=ResponseCode.SUCCESS)


def _note_acked(deps: Deps, changes: list[Change]) -> None:
    deps.pops.apply(changes)
    for key, *_ in changes:
        deps.stats.acked[key.topic, key.group] += 1
    if deps.settings.config.enable_pop_message_threshold:
        # Parked pops may find messages now that fewer are in flight.
        for topic in {receipts.origin_topic(key.group, key.topic) for key, *_ in changes}:
            deps.polls.visible(topic)


def _check_position(deps: Deps, topic_name: str, queue_id: int, queue_offset: int) -> None:
    topic = find_poppable(deps, topic_name)
    if not 0 <= queue_id < topic.read_queue_count:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"queueId[{queue_id}] is illegal: topic {topic_name} has {topic.read_queue_count} read "
            f"queues",
        )
    low = deps.store.min_offset(topic_name, queue_id)
    end = deps.store.with_unconfirmed.max_offset(topic_name, queue_id)
    if not low <= queue_offset < end:
        raise RequestError(
            ResponseCode.NO_MESSAGE,
            f"offset is illegal, key:{topic_name}@{queue_id}, commit:{queue_offset}, "
            f"store:{low}~{end}",
        )


def _ack_in_order(deps: Deps, key: Key, queue_offset: int, pop_time_ms: int) -> None:
    table = deps.pops.table
    batch = table.batch(key)
    if batch is not None and batch.pop_time_ms == pop_time_ms:
        is_known = queue_offset in batch.queue_offsets
        if not is_known and queue_offset >= batch.next_offset:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message {queue_offset} of topic {key.topic} queue {key.queue_id} is not in the "
                f"batch that group {key.group} has",
            )
    change = table.batch_acked(key, queue_offset, pop_time_ms)
    if change is None:
        return
    deps.pops.apply([change])
    deps.stats.acked[key.topic, key.group] += 1
    if not table.is_blocked(key, None, deps.steady()):
        deps.polls.visible(key.topic)


@sliced
def batch_ack_message(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """BATCH_ACK_MESSAGE: acknowledgements of several pops, each with a bit set of messages."""
    acks = None
    if request.body:
        acks = (yield from decode_request_steps(BatchAckMessageBody, request.body)).acks
    if not acks:
        return Command(code=ResponseCode.NO_MESSAGE, remark="there is nothing to acknowledge")
    _check_bits(acks)
    acked: list[tuple[BatchAck, Key, int]] = []
    for ack in acks:
        group, topic = ack.consumer_group or "", ack.topic or ""
        topic = receipts.real_topic(topic, group, ack.retry or receipts.NORMAL)
        key = Key(group, topic, ack.queue_id)
        acked += [(ack, key, queue_offset) for queue_offset in _acked_offsets(ack)]
        yield
    for at in range(0, len(acked), _NOTED_TOGETHER):
        _ack_some(deps, acked[at : at + _NOTED_TOGETHER])
        yield
    return Command(code=ResponseCode.SUCCESS)


_NOTED_TOGETHER = 64
"""Acknowledgements looked up and written in one step: nothing changes in between."""


def _ack_some(deps: Deps, acked: list[tuple[BatchAck, Key, int]]) -> None:
    changes: dict[tuple[Key, int], Change] = {}
    for ack, key, queue_offset in acked:
        if ack.revive_queue_id == ORDERED_REVIVE_QUEUE:
            _ack_in_order(deps, key, queue_offset, ack.pop_time_ms)
            continue
        change = deps.pops.table.acked(key, queue_offset, ack.pop_time_ms, ack.invisible_time_ms)
        if change is not None:
            changes[key, queue_offset] = change
    if changes:
        _note_acked(deps, list(changes.values()))


def _check_bits(acks: list[BatchAck]) -> None:
    """Raises RequestError before any of them takes effect."""
    count = sum(len(ack.bit_set or "") for ack in acks) * 6
    if count > ACKED_BITS_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the sets of {len(acks)} acknowledgements have {count} bits, at most {ACKED_BITS_MAX} "
            f"are read: send several requests",
        )


def _acked_offsets(ack: BatchAck) -> Iterator[int]:
    """The queue offsets whose bits are set. Raises BodyError."""
    try:
        bits = base64.b64decode(ack.bit_set or "", validate=True)
    except (binascii.Error, ValueError) as e:
        raise BodyError(f"the bit set of an acknowledgement cannot be read: {e}") from e
    for at in range(len(bits) * 8):
        if bits[at >> 3] >> (at & 7) & 1:
            yield ack.start_offset + at


def change_invisible_time(deps: Deps, _: Connection, request: Command) -> Command:
    """CHANGE_MESSAGE_INVISIBLETIME: change when a message becomes visible again."""
    header = decode(ChangeInvisibleTimeRequest, request.fields)
    handle = receipts.parse_receipt(header.extra_info)
    _check_position(deps, header.topic, header.queue_id, header.queue_offset)
    check_invisible(deps.settings.config, header.invisible_time_ms, 0)
    key = Key(header.consumer_group, header.topic, header.queue_id)
    at, table = Moment(deps.clock(), deps.steady()), deps.pops.table
    if handle.is_ordered:
        visible_ms = at.wall_ms + header.invisible_time_ms
        change = table.batch_prolonged(key, header.queue_offset, handle.pop_time_ms, visible_ms)
        pop_time_ms, invisible_time_ms = handle.pop_time_ms, visible_ms - handle.pop_time_ms
    else:
        old = InFlight(header.queue_offset, handle.pop_time_ms, handle.invisible_time_ms)
        change = table.prolonged(key, old, at, header.invisible_time_ms)
        pop_time_ms, invisible_time_ms = at.wall_ms, header.invisible_time_ms
    if change is None:
        raise RequestError(
            ResponseCode.NO_MESSAGE,
            f"message {header.queue_offset} of topic {header.topic} queue {header.queue_id} is not "
            f"in flight by this handle: it is acknowledged, or its time was up",
        )
    deps.pops.apply([change])
    # Counted as in RocketMQ: acknowledged, and popped again.
    deps.stats.acked[key.topic, key.group] += 1
    deps.stats.popped[key.topic, key.group] += 1
    response = ChangeInvisibleTimeResponse(
        pop_time_ms=pop_time_ms,
        invisible_time_ms=invisible_time_ms,
        revive_queue_id=handle.revive_queue_id,
    )
    return success(response)
