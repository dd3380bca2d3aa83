"""Sending: single messages and batches, with the long and the short form of the header.

    header -> may the broker store now -> topic and queue -> properties -> store -> response

The writer redirects messages that are delivered later (delayed, timed, transactional). A client
that sends a message to %RETRY%group itself, because sending it back failed, gets what
`send_back.py` would do: a delay, or the dead-letter queue.
"""

import asyncio
import random
import re
from collections.abc import Awaitable
from functools import lru_cache

import msgspec

from tianzhou.broker import validation
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers import Answer, queue_locks
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import broker_forbids, find_group, topic_forbids
from tianzhou.broker.scheduled import timer_rules
from tianzhou.broker.scheduled.delay_levels import level_of
from tianzhou.broker.storing.durability import Outcome, code_of, not_stored
from tianzhou.broker.storing.redirects import SPECIAL_PROPERTIES
from tianzhou.broker.storing.retry_dlq import DLQ_QUEUE_COUNT
from tianzhou.errors import RecordError, RequestError, StoreError
from tianzhou.limits import BATCH_MESSAGES_MAX
from tianzhou.message import Host
from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    HALF_TOPIC,
    PERM_WRITE,
    RETRY_TOPIC_PREFIX,
    UNSENDABLE_TOPICS,
)
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import MULTI_TAG, TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.send import SendMessageRequest, SendMessageRequestV2
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.batch import PreparedBatch
from tianzhou.protocol.records.recall import handle_of
from tianzhou.remoting.address import parse_address
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps, handle_in_order
from tianzhou.store.message_store import Appended, Draft

SendHeader = SendMessageRequest | SendMessageRequestV2

_UNIT = 1
_UNIT_SUBSCRIPTION = 2


def send_message(deps: Deps, connection: Connection, request: Command) -> Answer:
    """SEND_MESSAGE."""
    return store_message(deps, connection, request, decode(SendMessageRequest, request.fields))


def send_message_v2(deps: Deps, connection: Connection, request: Command) -> Answer:
    """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
    header = decode(SendMessageRequestV2, request.ext_fields or {})
    return store_message(deps, connection, request, header)


def store_message(
    deps: Deps, connection: Connection, request: Command, header: SendHeader
) -> Answer:
    """Store the message or batch of a request in any form. Raises RequestError."""
    config, began_ms = deps.settings.config, deps.steady()
    deps.gate.check(config, began_ms, deps.durability.waiting_count)
    if deps.clock() < config.start_accept_send_request_time_stamp:
        raise _too_early(config, deps.clock())
    name = header.topic
    known = deps.topics.get(name)
    is_batch = _is_batch(request, header)
    group: SubscriptionGroupConfig | None = None
    if name.startswith(RETRY_TOPIC_PREFIX):
        group = _group_of_retry(deps, name, is_batch=is_batch)
    topic = known or _create_topic(deps, config, header)
    queue_id = _choose_queue(config, topic, header)
    validation.check_properties(header.properties or "")
    props = properties.decode(header.properties or "")
    if not SPECIAL_PROPERTIES.isdisjoint(props):
        is_of_group = name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
        properties.strip_broker_only(props, to_retry=is_of_group)
    draft = _draft(deps, config, connection, request, header, topic, queue_id, props)
    is_new = known is None
    if group is not None:
        if _is_dead(deps, header, group):
            is_new = _create_dead_letters(deps, group) or is_new
            draft = _dead_letter(deps, group, draft, props)
            queue_id = draft.queue_id
        deps.crash_point("retry: before the message is stored")
    if is_batch:
        return handle_in_order(connection, _send_batch(deps, draft, props, is_new=is_new))
    is_special = not SPECIAL_PROPERTIES.isdisjoint(props)
    try:
        if is_special:
            draft, appended = deps.writer.put(draft, props)
        else:
            # The writer would not redirect it: it has none of the special properties.
            appended = deps.store.append(draft, props)
    except RecordError as e:
        deps.stats.put_failures += 1
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(e)) from e
    except StoreError as e:
        deps.stats.put_failures += 1
        raise not_stored(e) from e
    if group is not None:
        deps.crash_point("retry: the message is stored")
    extra_fields: dict[str, str] | None = None
    if is_special:
        if draft.topic == HALF_TOPIC and (unique := props.get(properties.UNIQUE_KEY)):
            extra_fields = {"transactionId": unique}
        if properties.TIMER_OUT_MS in props:
            handle = handle_of(props, config.broker_name)
            if handle is not None:
                extra_fields = {**(extra_fields or {}), "recallHandle": handle}
    # It counts for its own topic when it is committed or due, as in RocketMQ.
    counted = (draft.topic, draft.queue_id) if is_special else (name, queue_id)
    return _stored(deps, counted, props, appended, began_ms, queue_id, extra_fields, is_new=is_new)


def _stored(
    deps: Deps,
    counted: tuple[str, int],
    props: dict[str, str],
    appended: Appended,
    began_ms: int,
    queue_id: int,
    extra_fields: dict[str, str] | None = None,
    *,
    is_new: bool,
) -> Command | Awaitable[Command]:
    """Count what was stored for a topic and queue, and answer: at once, or when it is durable."""
    config, ended_ms = deps.settings.config, deps.steady()
    took_ms = ended_ms - began_ms
    if took_ms >= config.os_page_cache_busy_time_out_mills:
        deps.gate.note_append(config, began_ms, ended_ms)
    deps.stats.stored(counted[0], appended.count, appended.size_bytes, took_ms, counted[1])
    wait = props.get(properties.WAIT_STORED)
    wait_stored = wait is None or wait.lower() == "true"
    if deps.durability.must_wait(wait_stored=wait_stored):
        outcome = deps.durability.wait_for(appended.end_log_offset)
        return _answer_later(deps, config, appended, queue_id, is_new, outcome, extra_fields)
    code = deps.durability.code_at_once(wait_stored=wait_stored)
    if is_new:
        return _answer_later(deps, config, appended, queue_id, is_new, code, extra_fields)
    return _answer(deps, config, code, appended, queue_id, extra_fields)


# -- checks ----------------------------------------------------------------------------------------


def _too_early(config: BrokerConfig, now_ms: int) -> RequestError:
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"this broker accepts no messages until {config.start_accept_send_request_time_stamp} ms "
        f"since 1970 (startAcceptSendRequestTimeStamp), now it is {now_ms}",
    )


def _create_topic(deps: Deps, config: BrokerConfig, header: SendHeader) -> TopicConfig:
    """Create a topic from its template. Raises RequestError."""
    name = header.topic
    validation.check_topic_name(name)
    validation.check_sendable(name)
    is_retry = name.startswith(RETRY_TOPIC_PREFIX)
    sys_flag = (_UNIT_SUBSCRIPTION if is_retry else _UNIT) if header.unit_mode else 0
    topic = deps.topics.create_from_template(
        name,
        header.default_topic,
        header.default_topic_queue_count,
        auto_create=config.auto_create_topic_enable,
        sys_flag=sys_flag,
    )
    if topic is None and is_retry:
        topic = deps.topics.create_for_group(name, 1)
    if topic is None:
        raise RequestError(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {name} does not exist on broker {config.broker_name}: create it, "
            f"or switch on autoCreateTopicEnable",
        )
    return topic


def _choose_queue(config: BrokerConfig, topic: TopicConfig, header: SendHeader) -> int:
    name = header.topic
    if name in UNSENDABLE_TOPICS:
        validation.check_sendable(name)
    if not config.broker_permission & PERM_WRITE:
        raise broker_forbids(config, "accepts")
    if not topic.perm & PERM_WRITE:
        raise topic_forbids(topic, "accepts")
    queue_id = header.queue_id
    # While a topic shrinks, producers with an old route still use queues that are only readable.
    if queue_id >= topic.write_queue_count and queue_id >= topic.read_queue_count:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"queue id {queue_id} is out of range: topic {name} has {topic.write_queue_count} "
            f"write queues and {topic.read_queue_count} read queues",
        )
    if queue_id < 0:
        if topic.write_queue_count < 1:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {name} has no queue to write to")
        return random.randrange(topic.write_queue_count)  # noqa: S311 - spreads load only
    return queue_id


# -- storing ---------------------------------------------------------------------------------------


def _draft(
    deps: Deps,
    config: BrokerConfig,
    connection: Connection,
    request: Command,
    header: SendHeader,
    topic: TopicConfig,
    queue_id: int,
    props: dict[str, str],
) -> Draft:
    body, sys_flag = request.body, header.sys_flag
    if len(body) > config.max_message_size:
        validation.check_body_size(len(body), config.max_message_size)
    if sys_flag & ~sysflag.PLAIN:
        _check_flags(sys_flag, props)
    if topic.filter_type == MULTI_TAG:
        sys_flag |= sysflag.MULTI_TAGS
    text = properties.encode_stored(header.properties or "", props, _stamps(config))
    validation.check_properties(text)
    return Draft(
        header.topic, queue_id, body, text, header.born_timestamp, born_host(connection.peer),
        deps.store_host, header.flag, sys_flag, header.reconsume_times or 0,
    )  # fmt: skip


def _stamps(config: BrokerConfig) -> dict[str, str]:
    return properties.stamps(config.broker_cluster_name, config.region_id, trace_on=config.trace_on)


def _check_flags(sys_flag: int, props: dict[str, str]) -> None:
    """Refuse flags that only the broker sets: a producer may only prepare a transaction.

    Not called for a message that has only plain flags.
    """
    if sys_flag & (sysflag.INNER_BATCH | sysflag.NEED_UNWRAP):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"sysFlag {sys_flag} makes the message an inner batch, which is not supported: a batch "
            f"is sent as such and stored message by message",
        )
    state = sysflag.transaction_state(sys_flag)
    if sys_flag & ~(sysflag.PLAIN | sysflag.TRANSACTION_MASK):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"sysFlag {sys_flag} has a flag or a kind of compression that RocketMQ does not have",
        )
    if state == sysflag.TRANSACTION_NONE:
        return
    is_prepared = props.get(properties.TRANSACTION_PREPARED, "").lower() == "true"
    if not (state == sysflag.TRANSACTION_PREPARED and is_prepared):
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"sysFlag {sys_flag} makes the message transactional: that needs the flag 4 (prepared) "
            f"and the property {properties.TRANSACTION_PREPARED}=true",
        )


def _refuse_in_batch(props: dict[str, str]) -> None:
    if props.get(properties.TRANSACTION_PREPARED, "").lower() == "true":
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a batch holds no transactional messages")
    if level_of(props) > 0:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a batch holds no delayed messages")
    if timer_rules.is_timed(props):
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a batch holds no timed messages")


# -- messages that clients send back by sending them to the retry topic ----------------------------


def _group_of_retry(deps: Deps, topic: str, *, is_batch: bool) -> SubscriptionGroupConfig:
    """The group whose retry topic this is. Raises RequestError."""
    if is_batch:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"batch request does not support retry group {validation.shorten(topic)}",
        )
    return find_group(deps, topic.removeprefix(RETRY_TOPIC_PREFIX))


def _is_dead(deps: Deps, header: SendHeader, group: SubscriptionGroupConfig) -> bool:
    times_max = header.max_reconsume_times
    if times_max is None:
        times_max = group.retry_max_times
    assert group.group_name is not None, "a group in the table has a name"
    # An orderly consumer retries locally, and sends a message back only after its last attempt.
    return (header.reconsume_times or 0) > times_max or queue_locks.is_locked(
        deps, group.group_name
    )


def _create_dead_letters(deps: Deps, group: SubscriptionGroupConfig) -> bool:
    """Ensure that the dead-letter topic exists; whether it was created now."""
    name = f"{DLQ_TOPIC_PREFIX}{group.group_name}"
    if deps.topics.get(name) is not None:
        return False
    deps.topics.create_for_group(name, DLQ_QUEUE_COUNT)
    return True


def _dead_letter(
    deps: Deps, group: SubscriptionGroupConfig, draft: Draft, props: dict[str, str]
) -> Draft:
    """The same message as a dead letter, which is not delayed."""
    assert group.group_name is not None, "a group in the table has a name"
    deps.stats.dead[props.get(properties.RETRY_TOPIC, draft.topic), group.group_name] += 1
    stored = properties.decode(draft.properties_text)
    for name in (properties.DELAY_LEVEL, *properties.TIMER_REQUESTS):
        props.pop(name, None)
        stored.pop(name, None)
    return msgspec.structs.replace(
        draft,
        topic=f"{DLQ_TOPIC_PREFIX}{group.group_name}",
        queue_id=0,
        properties_text=properties.encode(stored),
    )


# -- batches ---------------------------------------------------------------------------------------


_DRAFTED_TOGETHER = 64
_NAMED_IN_BATCH = re.compile(
    "|".join(re.escape(name + "\x01") for name in sorted(SPECIAL_PROPERTIES | properties.STAMPED))
)


def _text_in_batch(text: str, stamps: dict[str, str]) -> str:
    """The properties to store for a message of a batch. Raises RequestError, FieldError."""
    props = properties.decode(text)
    _refuse_in_batch(props)
    stored = dict(props)
    properties.strip_broker_only(stored, to_retry=False)
    stored.update((name, stamps[name]) for name in properties.STAMPED.intersection(stored))
    return text if stored == props else properties.encode(stored)


def _is_batch(request: Command, header: SendHeader) -> bool:
    return request.code == RequestCode.SEND_BATCH_MESSAGE or bool(header.batch)


def _send_batch(deps: Deps, draft: Draft, props: dict[str, str], *, is_new: bool) -> Steps[Answer]:
    """Store a batch, all of it or nothing, and answer.

    Its messages are encoded in slices, and appended in one. Raises RequestError.
    """
    try:
        prepared = yield from _prepare_batch(deps, draft)
        if deps.topics.get(draft.topic) is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic {draft.topic} was deleted meanwhile"
            )
        began_ms = deps.steady()
        appended = deps.store.append_batch(prepared)
    except RecordError as e:
        deps.stats.put_failures += 1
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(e)) from e
    except StoreError as e:
        deps.stats.put_failures += 1
        raise not_stored(e) from e
    queue = (draft.topic, draft.queue_id)
    return _stored(deps, queue, props, appended, began_ms, draft.queue_id, is_new=is_new)


def _check_items(items: list[batch.BatchItem]) -> None:
    """Raises RequestError."""
    if not items:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the batch holds no message")
    if len(items) > BATCH_MESSAGES_MAX:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the batch holds {len(items)} messages, at most {BATCH_MESSAGES_MAX} are accepted",
        )


def _prepare_batch(deps: Deps, outer: Draft) -> Steps[PreparedBatch]:
    """Each message of a batch with its own body, flag and properties."""
    stamps = _stamps(deps.settings.config)
    _refuse_in_batch(properties.decode(outer.properties_text))
    items = batch.decode(outer.body)
    _check_items(items)
    drafts: list[Draft] = []
    for number, item in enumerate(items, 1):
        text = item.properties_text
        # Nearly none has a property that batches must not have, so nearly none has to be decoded.
        if _NAMED_IN_BATCH.search(text) is not None:
            text = _text_in_batch(text, stamps)
        drafts.append(
            Draft(
                topic=outer.topic,
                queue_id=outer.queue_id,
                body=item.body,
                properties_text=text,
                born_time_ms=outer.born_time_ms,
                born_host=outer.born_host,
                store_host=outer.store_host,
                flag=item.flag,
                sys_flag=outer.sys_flag,
                reconsume_count=outer.reconsume_count,
            )
        )
        if not number % _DRAFTED_TOGETHER:
            yield
    return (yield from deps.store.prepare_batch(drafts))


@lru_cache(maxsize=65_536)
def born_host(peer: str) -> Host:
    """The address of a connection as records store it."""
    return parse_address(peer)


# -- responses -------------------------------------------------------------------------------------


async def _answer_later(
    deps: Deps,
    config: BrokerConfig,
    appended: Appended,
    queue_id: int,
    is_new_topic: bool,
    outcome: asyncio.Future[Outcome] | int,
    extra_fields: dict[str, str] | None,
) -> Command:
    if is_new_topic:
        # A response that the message is stored promises that its topic is saved, too.
        await deps.saved()
    code = outcome if isinstance(outcome, int) else code_of(await outcome)
    return _answer(deps, config, code, appended, queue_id, extra_fields)


def _answer(
    deps: Deps,
    config: BrokerConfig,
    code: int,
    appended: Appended,
    queue_id: int,
    extra_fields: dict[str, str] | None,
) -> Command:
    """The response: where the message is stored, and the `extra_fields` of some kinds."""
    if code != ResponseCode.SUCCESS:
        counts = deps.durability.less_durable
        counts[code] = counts.get(code, 0) + appended.count
    prefix = deps.id_prefix
    if appended.count == 1:
        message_ids = f"{prefix}{appended.log_offset:016X}"
    else:
        message_ids = ",".join(
            [f"{prefix}{log_offset:016X}" for log_offset in appended.log_offsets]
        )
    fields = {
        "msgId": message_ids,
        "queueId": str(queue_id),
        "queueOffset": str(appended.queue_offset),
        "MSG_REGION": config.region_id,
        "TRACE_ON": "true" if config.trace_on else "false",
    }
    if extra_fields:
        fields.update(extra_fields)
    return Command(code=code, ext_fields=fields)
