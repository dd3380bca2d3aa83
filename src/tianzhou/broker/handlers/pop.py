"""Pop consumption: consumers share the messages of a queue, and the broker stores the offsets.

    POP_MESSAGE   sometimes the retry topics first, then the queues, then the retry topics
                  -> messages are recorded as in flight -> response, or park until one comes
    PEEK_MESSAGE, NOTIFICATION, POLLING_INFO   read only, park only, count parked requests

A message is recorded before it is sent: every message that a consumer has is in the index, or is
popped again. Acknowledgements are served by `pop_ack.py`.

Over 500 lines: pops, peeks and notifications share the checks and the order of queues.
"""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from tianzhou.broker import validation
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers import Answer, refusals
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.responses import respond_parked, success
from tianzhou.broker.longpoll.parked_pops import PopParked, WaitingPop
from tianzhou.broker.longpoll.parked_pulls import WaitingRequest
from tianzhou.broker.pop.inflight import Change, InFlight, Key
from tianzhou.broker.storing import disk_prefetch
from tianzhou.broker.tables.clients import Subscription, make_subscription
from tianzhou.errors import RequestError
from tianzhou.names import (
    PERM_READ,
    RETRY_TOPIC_PREFIX,
    UNSENDABLE_TOPICS,
)
from tianzhou.protocol import properties
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode, encode
from tianzhou.protocol.headers.pop import (
    NotificationRequest,
    NotificationResponse,
    PeekMessageRequest,
    PollingInfoRequest,
    PollingInfoResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from tianzhou.protocol.records import receipts
from tianzhou.protocol.records.receipts import ORDERED_REVIVE_QUEUE, Receipt
from tianzhou.protocol.records.record import decode_record, encode_stored
from tianzhou.remoting.connection import PARKED, Connection
from tianzhou.store.message_store import MessageStore
from tianzhou.store.reading import Read, ReadStatus

_ROTATIONS_MAX = 65_536
_ATTEMPT_ID_MAX = 256
_MESSAGES_MAX = 32
_READS_MAX = 4
"""Reads of one queue in a row while a filter rejects everything."""
_FROM_FIRST = 0
_PERCENT = 100
_QUEUE_OFFSET = struct.Struct(">q")
_QUEUE_OFFSET_AT = 20
"""Position of the queue offset in a record."""

_WRONG_OFFSET = (
    ReadStatus.OFFSET_TOO_SMALL,
    ReadStatus.OFFSET_OVERFLOW_BADLY,
    ReadStatus.OFFSET_FOUND_NULL,
)


# -- popping ---------------------------------------------------------------------------------------


def pop_message(deps: Deps, connection: Connection, request: Command) -> Answer:
    """POP_MESSAGE."""
    header = decode(PopMessageRequest, request.fields)
    config = deps.settings.config
    _check_allowed(deps, config, header.consumer_group, header.topic, header.queue_id)
    _check_sizes(config, header)
    check_retry_topic(config, header.consumer_group, header.topic)
    subscription = _subscription(config, header.topic, header.expression, header.expression_type)
    answer, is_more = _pop(deps, config, header, subscription)
    if answer.code == ResponseCode.SUCCESS:
        return answer
    code = _park(deps, config, connection, request, header, subscription)
    if code is None:
        if is_more:
            deps.polls.visible(header.topic)
        return PARKED
    return msgspec.structs.replace(answer, code=code)


def _check_sizes(config: BrokerConfig, header: PopMessageRequest) -> None:
    if not 1 <= header.max_msg_count <= _MESSAGES_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"maxMsgNums is {header.max_msg_count}, 1 to {_MESSAGES_MAX} are possible",
        )
    check_invisible(config, header.invisible_time_ms, 1)
    if len(header.attempt_id or "") > _ATTEMPT_ID_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"attemptId has {len(header.attempt_id or '')} characters, {_ATTEMPT_ID_MAX} are "
            f"possible",
        )


def check_retry_topic(config: BrokerConfig, group: str, topic: str) -> None:
    """Ensure that the retry topic of the group has a valid name. Raises RequestError."""
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        name = receipts.retry_topic(group, topic, v2=config.enable_retry_topic_v2)
        validation.check_derived_topic(name)


def check_invisible(config: BrokerConfig, invisible_time_ms: int, least_ms: int) -> None:
    most_ms = config.timer_max_delay_sec * 1000
    if not least_ms <= invisible_time_ms <= most_ms:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime is {invisible_time_ms} ms, {least_ms} to {most_ms} (timerMaxDelaySec) "
            f"are possible",
        )


@dataclass(slots=True)
class _Gathered:
    """The messages that a pop has collected."""

    records: list[memoryview | bytes] = field(default_factory=list[memoryview | bytes])
    changes: list[Change] = field(default_factory=list[Change])
    starts: list[str] = field(default_factory=list[str])
    message_offsets: list[str] = field(default_factory=list[str])
    counts: list[str] = field(default_factory=list[str])
    rest: int = 0
    """Messages left in the queues that were read."""
    is_more: bool = False
    """Whether a filter rejected so many messages that the read stopped early."""


def _pop(
    deps: Deps, config: BrokerConfig, header: PopMessageRequest, subscription: Subscription
) -> tuple[Command, bool]:
    """The response, not SUCCESS without messages, and whether to retry at once."""
    now_ms, began_ms = deps.clock(), deps.steady()
    got = _Gathered()
    for topic, queue_id in _queues(deps, config, header):
        key = Key(header.consumer_group, topic, queue_id)
        _pop_queue(deps, config, header, subscription, key, now_ms, got)
    if got.changes:
        _check_capacity(deps, config, got.changes)
        deps.pops.apply(got.changes)
    body = b"".join(got.records)
    if got.records:
        deps.stats.delivered(
            header.topic, header.consumer_group, len(got.records), len(body),
            max(header.queue_id, 0), deps.steady() - began_ms,
        )  # fmt: skip
        deps.stats.popped[header.topic, header.consumer_group] += len(got.message_offsets)
    else:
        deps.stats.pulls_missed += 1
    response = PopMessageResponse(
        pop_time_ms=now_ms,
        invisible_time_ms=header.invisible_time_ms,
        revive_queue_id=ORDERED_REVIVE_QUEUE if header.order else 0,
        rest_count=got.rest,
        start_offset_info=";".join(got.starts),
        msg_offset_info=";".join(got.message_offsets),
        order_count_info=";".join(got.counts) if header.order else None,
    )
    answer = Command(
        code=ResponseCode.SUCCESS if got.records else ResponseCode.POLLING_TIMEOUT,
        remark="FOUND" if got.records else "NO_MESSAGE_IN_QUEUE",
        ext_fields=encode(response),
        body=body,
    )
    return answer, got.is_more


def _check_capacity(deps: Deps, config: BrokerConfig, changes: list[Change]) -> None:
    """Raises RequestError if the table of popped queues is full."""
    table = deps.pops.table
    new = [change.key for change in changes if table.next_offset(change.key) is None]
    if new:
        group, topic, queue_id = new[0]
        deps.limits.check(
            "maxPoppedQueues", config.max_popped_queues, len(table) + len(new) - 1,
            f"group {group} cannot pop topic {topic} queue {queue_id}",
        )  # fmt: skip


def _queues(
    deps: Deps, config: BrokerConfig, header: PopMessageRequest
) -> Iterator[tuple[str, int]]:
    """The queues to read, in this order."""
    counted = (header.consumer_group, header.topic)
    rotation = deps.rotations.get(counted, 0)
    if len(deps.rotations) >= _ROTATIONS_MAX:
        deps.rotations.clear()
    deps.rotations[counted] = rotation + 1
    share = config.pop_from_retry_probability
    retry_first = rotation * share % _PERCENT < share
    retry_queues = () if header.order else _retry_queues(deps, config, *counted)
    if retry_first:
        yield from retry_queues
    yield from _own_queues(deps.topics.get(header.topic), header.topic, header.queue_id, rotation)
    if not retry_first:
        yield from retry_queues


def _own_queues(
    topic: TopicConfig | None, name: str, queue_id: int, rotation: int
) -> Iterator[tuple[str, int]]:
    if queue_id >= 0:
        yield name, queue_id
    elif topic is not None:
        for at in range(topic.read_queue_count):
            yield name, (rotation + at) % topic.read_queue_count


def _retry_queues(
    deps: Deps, config: BrokerConfig, group: str, topic: str
) -> Iterator[tuple[str, int]]:
    if config.enable_retry_topic_v2:
        second = receipts.retry_topic(group, topic, v2=True)
        yield from _own_queues(deps.topics.get(second), second, -1, 0)
    if not config.enable_retry_topic_v2 or config.retrieve_message_from_pop_retry_topic_v1:
        first = receipts.retry_topic(group, topic, v2=False)
        yield from _own_queues(deps.topics.get(first), first, -1, 0)


def _pop_queue(
    deps: Deps,
    config: BrokerConfig,
    header: PopMessageRequest,
    subscription: Subscription,
    key: Key,
    now_ms: int,
    got: _Gathered,
) -> None:
    table = deps.pops.table
    next_offset = deps.pops.next_offset(key)
    if header.order and table.is_blocked(key, header.attempt_id, deps.steady()):
        return
    start = (
        _first_offset(deps, config, key, header.init_mode) if next_offset is None else next_offset
    )
    wanted = header.max_msg_count - len(got.records)
    # An ordered queue has one batch, whose size is bounded.
    is_full = (deps.pops.is_full and not header.order) or (
        config.enable_pop_message_threshold
        and table.count(key) > config.pop_inflight_message_threshold
    )
    if wanted <= 0 or is_full:
        got.rest += max(deps.store.max_offset(key.topic, key.queue_id) - start, 0)
        return
    start, read, went_back = _read(deps, subscription, key, start, wanted)
    if not read.records:
        if went_back or start != next_offset:
            got.changes.append(Change(key, start, clear=went_back))
        got.rest += max(read.max_offset - start, 0)
        got.is_more |= read.status is ReadStatus.NO_MATCHED_MESSAGE
        return
    offsets = [_QUEUE_OFFSET.unpack_from(each, _QUEUE_OFFSET_AT)[0] for each in read.records]
    if header.order:
        batch = table.next_batch(
            key, offsets, header.attempt_id, now_ms, header.invisible_time_ms
        )  # fmt: skip
        got.changes.append(Change(key, offsets[0], batch=batch, clear=went_back))
        got.counts += receipts.order_count_info(key.topic, key.queue_id, offsets, batch.counts)
    else:
        rows = tuple(InFlight(each, now_ms, header.invisible_time_ms) for each in offsets)
        got.changes.append(Change(key, read.next_offset, put=rows, clear=went_back))
    got.starts.append(receipts.start_offset_info(key.topic, key.queue_id, start))
    got.message_offsets.append(receipts.message_offset_info(key.topic, key.queue_id, offsets))
    got.rest += max(read.max_offset - read.next_offset, 0)
    is_retry = key.topic != header.topic
    if is_retry and not config.pop_response_return_actual_retry_topic:
        handle = Receipt(
            start, now_ms, header.invisible_time_ms, 0, receipts.mark_of(key.topic),
            config.broker_name, key.queue_id,
        )  # fmt: skip
        got.records += [_as_sent(each, header.topic, handle) for each in read.records]
    else:
        got.records += map(_without_handle, read.records)


_HANDLE = re.compile(re.escape(f"{properties.POP_CK}{properties.NAME_VALUE_SEPARATOR}".encode()))


def _without_handle(record: memoryview) -> memoryview | bytes:
    """A record without the receipt handle of another pop.

    Sends drop that property; logs of an older version or of RocketMQ 4.9 may have it, and clients
    would acknowledge with it.
    """
    if _HANDLE.search(record) is None:
        return record
    message = decode_record(record, check_crc=False)
    if properties.POP_CK not in message.properties:
        return record
    remaining = {
        name: value for name, value in message.properties.items() if name != properties.POP_CK
    }
    return encode_stored(msgspec.structs.replace(message, properties=remaining))


def _as_sent(record: memoryview, topic: str, handle: Receipt) -> bytes:
    """A record of a retry topic under its original topic, with the receipt handle."""
    message = decode_record(record, check_crc=False)
    handle = Receipt(
        handle.start_offset, handle.pop_time_ms, handle.invisible_time_ms, handle.revive_queue_id,
        handle.topic_mark, handle.broker_name, handle.queue_id, message.queue_offset,
    )  # fmt: skip
    props = message.properties | {properties.POP_CK: str(handle)}
    return encode_stored(msgspec.structs.replace(message, topic=topic, properties=props))


def _first_offset(deps: Deps, config: BrokerConfig, key: Key, init_mode: int) -> int:
    """The first queue offset of a group that is new to a queue, as in RocketMQ."""
    store = deps.store
    low = store.min_offset(key.topic, key.queue_id)
    if init_mode == _FROM_FIRST or key.topic.startswith(RETRY_TOPIC_PREFIX):
        return low
    if config.init_pop_offset_by_check_msg_in_mem and low <= 0 and _is_recent(store, key):
        return 0
    return max(store.max_offset(key.topic, key.queue_id) - 1, 0)


def _is_recent(store: MessageStore, key: Key) -> bool:
    """Whether the first message of a queue is still in memory."""
    first = store.read(key.topic, key.queue_id, 0, 1)
    return first.status is ReadStatus.FOUND and first.behind_bytes <= store.memory_bytes


def _read(
    deps: Deps, subscription: Subscription, key: Key, start: int, count: int
) -> tuple[int, Read, bool]:
    """The messages, their first queue offset, and whether that is below the offset asked for.

    Without messages it is the next offset; messages that a filter rejects are skipped.
    """
    sql, accept_tags = subscription.sql, subscription.accept_tags
    read_from: Callable[[int], Read] = lambda queue_offset: deps.store.read(  # noqa: E731 - used twice
        key.topic, key.queue_id, queue_offset, count,
        accept_tags=accept_tags,
        accept_record=None if sql is None else sql.accepts,
        from_disk=disk_prefetch.needs_disk(
            deps.store, key.topic, key.queue_id, queue_offset, count, accept_tags
        ),
    )  # fmt: skip
    went_back = False
    read = read_from(start)
    for _ in range(_READS_MAX):
        if read.records or read.next_offset == start or read.status not in (
            *_WRONG_OFFSET, ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING,
        ):  # fmt: skip
            break
        went_back = went_back or read.next_offset < start
        start = read.next_offset
        read = read_from(start)
    return start, read, went_back


# -- checks ----------------------------------------------------------------------------------------


def _check_allowed(
    deps: Deps, config: BrokerConfig, group_name: str, topic_name: str, queue_id: int
) -> TopicConfig:
    """The topic, if the group may read this queue of it. Raises RequestError."""
    if not config.broker_permission & PERM_READ:
        raise refusals.broker_forbids(config, "serves")
    topic = find_poppable(deps, topic_name)
    if not topic.perm & PERM_READ:
        raise refusals.topic_forbids(topic, "serves")
    if queue_id >= topic.read_queue_count:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal: topic {topic_name} has {topic.read_queue_count} read "
            f"queues",
        )
    refusals.check_may_consume(deps, refusals.find_group(deps, group_name), topic_name)
    return topic


def find_poppable(deps: Deps, name: str) -> TopicConfig:
    """Raises RequestError for a topic that does not exist or has no consumers."""
    if name in UNSENDABLE_TOPICS:
        raise refusals.no_topic(deps.settings.config, name)
    return refusals.find_topic(deps, name)


def _subscription(
    config: BrokerConfig, topic: str, expression: str | None, kind: str | None
) -> Subscription:
    """The filter of a pop; all messages by default. Raises RequestError."""
    subscription = make_subscription(topic, expression or "*", kind if expression else None, 0)
    if subscription.problem is not None:
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, subscription.problem)
    refusals.check_filter(config, subscription)
    return subscription


# -- parking ---------------------------------------------------------------------------------------


def _park(
    deps: Deps,
    config: BrokerConfig,
    connection: Connection,
    request: Command,
    header: PopMessageRequest | NotificationRequest,
    subscription: Subscription,
) -> int | None:
    """Park the request; returns None, or the response code if it cannot be parked."""
    polls, account = deps.polls, connection.account
    if header.poll_time_ms <= 0 or request.is_oneway:
        return ResponseCode.POLLING_TIMEOUT
    waiting = WaitingRequest(header, subscription, request.opaque, request.encoding, account)
    if not polls.has_capacity(connection, waiting, config.max_pop_polling_size):
        return ResponseCode.POLLING_FULL
    same_count = polls.count(header.topic, header.consumer_group, max(header.queue_id, -1))
    if same_count > config.pop_polling_size:
        return ResponseCode.POLLING_FULL
    if not polls.park(connection, header.poll_time_ms, waiting):
        return ResponseCode.POLLING_TIMEOUT
    return None


def serve_waiting(deps: Deps, parked: PopParked, is_due: bool) -> bool:
    """Respond to a parked request if there is a message or an error, or if it has timed out."""
    waiting, connection = parked.request, parked.owner
    if connection.closed:
        deps.polls.remove(parked)
        return True
    is_more = False
    try:
        answer, is_more = _answer_to(deps, connection, waiting)
    except RequestError as e:
        answer = Command(code=e.code, remark=e.remark)
    if answer is None or answer.code == ResponseCode.POLLING_TIMEOUT:
        if not is_due:
            if is_more:
                deps.polls.visible(waiting.header.topic)
            return False
        answer = answer or _notice(has_msg=False)
    deps.polls.remove(parked)
    respond_parked(connection, waiting, answer)
    return True


def _answer_to(
    deps: Deps, connection: Connection, waiting: WaitingPop
) -> tuple[Command | None, bool]:
    header, config = waiting.header, deps.settings.config
    if config.is_slave:  # since it was parked
        raise refusals.is_slave_now(config)
    if not deps.may_consume(connection, waiting.account, header.topic, header.consumer_group):
        raise refusals.permission_lost(header.topic, header.consumer_group)
    _check_allowed(deps, config, header.consumer_group, header.topic, header.queue_id)
    if isinstance(header, PopMessageRequest):
        return _pop(deps, config, header, waiting.subscription)
    has_msg = _has_message(deps, config, header, waiting.subscription)
    return (_notice(has_msg=True) if has_msg else None), False


# -- reading ---------------------------------------------------------------------------------------


def notification(deps: Deps, connection: Connection, request: Command) -> Answer:
    """NOTIFICATION: responds when there is a message to pop."""
    header = decode(NotificationRequest, request.fields)
    config = deps.settings.config
    _check_allowed(deps, config, header.consumer_group, header.topic, header.queue_id)
    subscription = _subscription(config, header.topic, header.expression, header.expression_type)
    if _has_message(deps, config, header, subscription):
        return _notice(has_msg=True)
    code = _park(deps, config, connection, request, header, subscription)
    if code is None:
        return PARKED
    return _notice(has_msg=False, polling_full=code == ResponseCode.POLLING_FULL)


def _notice(*, has_msg: bool, polling_full: bool = False) -> Command:
    response = NotificationResponse(has_msg=has_msg, polling_full=polling_full)
    return success(response)


def _has_message(
    deps: Deps, config: BrokerConfig, header: NotificationRequest, subscription: Subscription
) -> bool:
    topic = deps.topics.get(header.topic)
    queues = list(_own_queues(topic, header.topic, header.queue_id, 0))
    if not header.order:
        queues += _retry_queues(deps, config, header.consumer_group, header.topic)
    now_ms = deps.steady()
    for name, queue_id in queues:
        key = Key(header.consumer_group, name, queue_id)
        next_offset = deps.pops.next_offset(key)
        if header.order and deps.pops.table.is_blocked(key, header.attempt_id, now_ms):
            continue
        start = deps.store.min_offset(name, queue_id) if next_offset is None else next_offset
        if _read(deps, subscription, key, start, 1)[1].records:
            return True
    return False


def peek_message(deps: Deps, _: Connection, request: Command) -> Command:
    """PEEK_MESSAGE: what the next pop would return; nothing becomes in flight."""
    header = decode(PeekMessageRequest, request.fields)
    config = deps.settings.config
    topic = _check_allowed(deps, config, header.consumer_group, header.topic, header.queue_id)
    if not 1 <= header.max_msg_count <= config.pull_batch_max_message_count:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"maxMsgNums is {header.max_msg_count}, 1 to {config.pull_batch_max_message_count} "
            f"are possible",
        )
    everything = make_subscription(header.topic, "*", None, 0)
    records: list[memoryview] = []
    rest = 0
    queues = _own_queues(topic, header.topic, header.queue_id, 0)
    retry_queues = _retry_queues(deps, config, header.consumer_group, header.topic)
    for name, queue_id in (*queues, *retry_queues):
        key = Key(header.consumer_group, name, queue_id)
        next_offset = deps.pops.next_offset(key)
        start = deps.store.min_offset(name, queue_id) if next_offset is None else next_offset
        rest += max(deps.store.max_offset(name, queue_id) - start, 0)
        wanted = header.max_msg_count - len(records)
        if wanted > 0:
            records += _read(deps, everything, key, start, wanted)[1].records
    response = PopMessageResponse(
        pop_time_ms=0, invisible_time_ms=0, revive_queue_id=0, rest_count=rest
    )
    return Command(
        code=ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND,
        remark="FOUND" if records else "NO_MESSAGE_IN_QUEUE",
        ext_fields=encode(response),
        body=b"".join(records),
    )


def polling_info(deps: Deps, _: Connection, request: Command) -> Command:
    """POLLING_INFO: how many requests of a group are parked for a queue."""
    header = decode(PollingInfoRequest, request.fields)
    config = deps.settings.config
    _check_allowed(deps, config, header.consumer_group, header.topic, header.queue_id)
    count = deps.polls.count(header.topic, header.consumer_group, max(header.queue_id, -1))
    return success(PollingInfoResponse(polling_count=count))
