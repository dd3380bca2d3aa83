"""Requests of administrators that consumers answer, through the broker: their state, one message
consumed directly, reset offsets. Consumers that do not respond in time are named in the remark.
"""

import asyncio
import logging
from collections.abc import Mapping

from tianzhou.broker import validation
from tianzhou.broker.cluster.call_client import call_client, forwarded
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import find_topic, no_group
from tianzhou.broker.handlers.responses import success_with
from tianzhou.broker.tables.clients import Client
from tianzhou.broker.tables.offsets import NOT_FOUND
from tianzhou.errors import BodyError, FieldError, RemotingError, RequestError
from tianzhou.protocol.bodies import decode as decode_body
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.offsets import (
    ConsumerStatusBody,
    QueueOffset,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, Language
from tianzhou.protocol.headers import decode, encode
from tianzhou.protocol.headers.clients import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
)
from tianzhou.protocol.headers.offsets import GetConsumerStatusRequest, ResetOffsetRequest
from tianzhou.protocol.records.message_id import decode_offset_id
from tianzhou.protocol.version import V3_1_8_SNAPSHOT, version_name
from tianzhou.remoting import scheduler
from tianzhou.remoting.connection import Connection

log = logging.getLogger(__name__)

_STATUS_TIMEOUT_MS = 5_000
_TO_THE_END = -1
_TO_THE_BEGINNING = -2


# -- one client ------------------------------------------------------------------------------------


async def get_consumer_running_info(deps: Deps, _: Connection, request: Command) -> Command:
    """GET_CONSUMER_RUNNING_INFO, answered by the consumer."""
    header = decode(GetConsumerRunningInfoRequest, request.fields)
    connection, who = _consumer(deps, header.consumer_group, header.client_id)
    command = Command(
        code=RequestCode.GET_CONSUMER_RUNNING_INFO,
        ext_fields=dict(request.fields),
        body=request.body,
    )
    return forwarded(await call_client(connection, command, who))


async def consume_message_directly(deps: Deps, _: Connection, request: Command) -> Command:
    """CONSUME_MESSAGE_DIRECTLY: a consumer processes one message now and returns the result."""
    header = decode(ConsumeMessageDirectlyRequest, request.fields)
    connection, who = _consumer(deps, header.consumer_group, header.client_id or "")
    name = validation.shorten(header.msg_id or "")
    try:
        log_offset = decode_offset_id(header.msg_id or "")[1]
    except FieldError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{name} is no message id: {e}") from e
    record = deps.store.record_at(log_offset)
    if record is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"no message of this broker has id {name}")
    fields = dict(request.fields) | {"brokerName": deps.settings.config.broker_name}
    topic = deps.topics.get(header.topic or "")
    if topic is not None:
        fields["topicSysFlag"] = str(topic.topic_sys_flag)
    group = deps.groups.get(header.consumer_group)
    if group is not None:
        fields["groupSysFlag"] = str(group.group_sys_flag or 0)
    command = Command(
        code=RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=fields, body=bytes(record)
    )
    return forwarded(await call_client(connection, command, who))


def _consumer(deps: Deps, group_name: str, client_id: str) -> tuple[Connection, str]:
    """A connected consumer and how to call it. Raises RequestError."""
    who = f"The Consumer <{validation.shorten(group_name)}> <{validation.shorten(client_id)}>"
    group = deps.consumers.get(group_name)
    for connection, client in group.members.items() if group else ():
        if client.client_id == client_id:
            _check_version(client, who)
            return connection, who
    raise RequestError(ResponseCode.SYSTEM_ERROR, f"{who} not online")


def _check_version(client: Client, who: str) -> None:
    if 0 <= client.version < V3_1_8_SNAPSHOT:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"{who} Version <{version_name(client.version)}> too low to finish, please upgrade it "
            f"to V3_1_8_SNAPSHOT",
        )


# -- a group's state -------------------------------------------------------------------------------


async def get_consumer_status(deps: Deps, _: Connection, request: Command) -> Command:
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets of each consumer of a group in a topic.

    All are called at the same time; those that do not respond are left out of the table, and named
    in the remark.
    """
    header = decode(GetConsumerStatusRequest, request.fields)
    group = deps.consumers.get(header.group)
    wanted = header.client_addr or ""
    members = [
        (connection, client)
        for connection, client in (group.members.items() if group else ())
        if wanted in ("", client.client_id)
    ]
    if not members:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"No Any Consumer online in the consumer group: [{validation.shorten(header.group)}]",
        )
    fields = encode(GetConsumerStatusRequest(topic=header.topic, group=header.group))
    answers = await asyncio.gather(*(_status_of(*member, fields) for member in members))
    silent = [
        client.client_id
        for (_, client), answer in zip(members, answers, strict=True)
        if answer is None
    ]
    body = ConsumerStatusBody(
        offsets_by_client={
            client.client_id: answer
            for (_, client), answer in zip(members, answers, strict=True)
            if answer is not None
        }
    )
    remark = f"no answer from {', '.join(silent[:10])}" if silent else None
    return Command(code=ResponseCode.SUCCESS, remark=remark, body=encode_body(body))


async def _status_of(
    connection: Connection, client: Client, fields: Mapping[str, str]
) -> dict[MessageQueue, int] | None:
    command = Command(code=RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext_fields=dict(fields))
    try:
        answer = await call_client(connection, command, client.client_id, _STATUS_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return dict(decode_body(ConsumerStatusBody, answer.body).offsets)
    except (RequestError, BodyError) as e:
        log.info("consumer %s: did not return its status: %s", client.client_id, e)
        return None


# -- resetting offsets -----------------------------------------------------------------------------


async def reset_offset(deps: Deps, connection: Connection, request: Command) -> Command:
    """INVOKE_BROKER_TO_RESET_OFFSET: reset the offsets of a group, by time or by offset.

    Either the broker's own table is set, and consumers get the new offset with their next pull
    (5.x), whatever they commit until then. Or connected consumers are called to drop their messages
    and to continue there, as in 4.9 and for broadcasting, where each has its own offsets. The
    response lists the new offsets.
    """
    header = decode(ResetOffsetRequest, request.fields)
    topic = _resettable(deps, header)
    offsets = await asyncio.to_thread(_new_offsets, deps, header, topic)
    online = deps.consumers.get(header.group)
    by_pull = deps.settings.config.use_server_side_reset_offset and not (
        online is not None and online.is_broadcasting
    )
    move = deps.offsets.reset if by_pull else deps.offsets.commit
    for queue_id, queue_offset in offsets.items():
        move(header.group, header.topic, queue_id, queue_offset)
    broker_name = deps.settings.config.broker_name
    table = {
        MessageQueue(topic=header.topic, broker_name=broker_name, queue_id=queue_id): queue_offset
        for queue_id, queue_offset in offsets.items()
    }
    if by_pull:
        deps.on_reset(header.topic, offsets)
        how = "consumers learn it with their next pull"
    else:
        how = f"{_notify_consumers(deps, header, table)} consumers are notified"
    log.info(
        "group %s: %s resets topic %s to %s, %s",
        header.group, connection.peer, header.topic, offsets, how,
    )  # fmt: skip
    return await scheduler.finish(success_with(ResetOffsetBody(offsets=table)))


def _resettable(deps: Deps, header: ResetOffsetRequest) -> TopicConfig:
    topic = find_topic(deps, header.topic)
    if deps.groups.get(header.group) is None:
        raise no_group(header.group)
    if header.queue_id >= topic.read_queue_count:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"queue id {header.queue_id} is out of range: topic {header.topic} has "
            f"{topic.read_queue_count} read queues",
        )
    return topic


def _new_offsets(deps: Deps, header: ResetOffsetRequest, topic: TopicConfig) -> dict[int, int]:
    """The new offset of each queue; reads old messages, so it runs in a thread."""
    if header.queue_id >= 0:
        queue_ids: range | tuple[int, ...] = (header.queue_id,)
    else:
        queue_ids = range(topic.read_queue_count)
    return {queue_id: _new_offset(deps, header, queue_id) for queue_id in queue_ids}


def _new_offset(deps: Deps, header: ResetOffsetRequest, queue_id: int) -> int:
    store, name = deps.store, header.topic
    low, high = store.min_offset(name, queue_id), store.max_offset(name, queue_id)
    wanted = header.queue_offset
    if header.queue_id >= 0 and wanted is not None and wanted != _TO_THE_END:
        if not low <= wanted <= high:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {wanted} not in consume queue range [{low}-{high}]",
            )
        return wanted
    if header.timestamp == _TO_THE_BEGINNING:
        target = low
    elif header.timestamp < 0:
        target = high
    else:
        target = store.offset_by_time(name, queue_id, header.timestamp)
    present = deps.offsets.find(header.group, name, queue_id)
    # Without force offsets only decrease: unconsumed messages must not be skipped.
    return target if header.is_force or present == NOT_FOUND else min(target, present)


def _notify_consumers(
    deps: Deps, header: ResetOffsetRequest, table: dict[MessageQueue, int]
) -> int:
    group = deps.consumers.get(header.group)
    reset = ResetOffsetRequest(
        topic=header.topic, group=header.group, timestamp=header.timestamp,
        is_force=header.is_force,
    )  # fmt: skip
    fields = encode(reset)
    body = encode_body(ResetOffsetBody(offsets=table))
    body_for_c = encode_body(
        ResetOffsetBodyForC(
            offsets=[
                QueueOffset(
                    topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id,
                    queue_offset=queue_offset,
                )
                for queue, queue_offset in table.items()
            ]
        )
    )  # fmt: skip
    count = 0
    for connection, client in group.members.items() if group else ():
        command = Command(
            code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ext_fields=dict(fields),
            body=body_for_c if client.language == Language.CPP else body,
        )
        try:
            connection.oneway(command)
        except RemotingError as e:
            log.warning("group %s: %s is not notified: %s", header.group, client.client_id, e)
        else:
            count += 1
    return count
