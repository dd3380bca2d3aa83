"""Replies of request-reply: sent to the producer that waits, and stored in the reply topic.

A request has its sender's client id in REPLY_TO_CLIENT. Its consumer sends the reply with that
property, to the broker that the sender is connected to and to the reply topic of its cluster.
"""

import logging

from tianzhou.broker import validation
from tianzhou.broker.cluster.call_client import call_client
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers import send
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.send import SendHeader
from tianzhou.errors import RequestError
from tianzhou.names import reply_topic
from tianzhou.protocol import properties
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode, encode
from tianzhou.protocol.headers.send import (
    PushReplyMessageRequest,
    SendMessageRequest,
    SendMessageRequestV2,
)
from tianzhou.remoting.address import format_address
from tianzhou.remoting.connection import Connection, Deferral

log = logging.getLogger(__name__)


async def send_reply(deps: Deps, connection: Connection, request: Command) -> Command:
    """SEND_REPLY_MESSAGE."""
    header = decode(SendMessageRequest, request.fields)
    return await _send_reply(deps, connection, request, header)


async def send_reply_v2(deps: Deps, connection: Connection, request: Command) -> Command:
    """SEND_REPLY_MESSAGE_V2."""
    header = decode(SendMessageRequestV2, request.fields)
    return await _send_reply(deps, connection, request, header)


async def _send_reply(
    deps: Deps, connection: Connection, request: Command, header: SendHeader
) -> Command:
    config = deps.settings.config
    _check_topic(config, header.topic)
    validation.check_body_size(len(request.body), config.max_message_size)
    validation.check_properties(header.properties or "")
    failure: RequestError | None = None
    try:
        await _push(deps, connection, request, header)
    except RequestError as e:
        failure = e
    # It is stored even if its receiver is disconnected, as in RocketMQ.
    stored = await _store(deps, connection, request, header)
    if failure is not None:
        raise failure
    if stored is not None:
        return stored
    return Command(
        code=ResponseCode.SUCCESS,
        ext_fields={
            "msgId": "0",
            "queueId": str(max(header.queue_id, 0)),
            "queueOffset": "0",
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
        },
    )


def _check_topic(config: BrokerConfig, topic: str) -> None:
    wanted = reply_topic(config.broker_cluster_name)
    if topic != wanted:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a reply goes to topic {wanted}, not to {validation.shorten(topic)}",
        )


async def _push(deps: Deps, connection: Connection, request: Command, header: SendHeader) -> None:
    """Send the reply to its receiver. Raises RequestError, with RocketMQ's remark if it has one."""
    props = properties.decode(header.properties or "")
    client_id = props.get(properties.REPLY_TO_CLIENT)
    if not client_id:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"reply message properties[{properties.REPLY_TO_CLIENT}] is null",
        )
    receiver = deps.producers.find(client_id)
    who = validation.shorten(client_id)
    if receiver is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{who}> not found."
        )
    props[properties.PUSH_REPLY_TIME] = str(deps.clock())
    pushed = PushReplyMessageRequest(
        producer_group=header.producer_group,
        topic=header.topic,
        default_topic=header.default_topic,
        default_topic_queue_count=header.default_topic_queue_count,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        flag=header.flag,
        properties=properties.encode(props),
        reconsume_times=header.reconsume_times,
        unit_mode=bool(header.unit_mode),
        born_host=connection.peer,
        store_host=format_address(*deps.store_host),
        store_timestamp=deps.clock(),
    )
    command = Command(
        code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        ext_fields=encode(pushed),
        body=request.body,
    )
    answer = await call_client(receiver, command, f"the producer {who}")
    if answer.code != ResponseCode.SUCCESS:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"push reply message to {who} fail: {validation.shorten(answer.remark or '')}",
        )


async def _store(
    deps: Deps, connection: Connection, request: Command, header: SendHeader
) -> Command | None:
    """Store the reply; it is for inspection only, so a failure is only logged."""
    if not deps.settings.config.store_reply_message_enable:
        return None
    try:
        answer = send.store_message(deps, connection, request, header)
        response = answer if isinstance(answer, Command | Deferral) else await answer
        return response if isinstance(response, Command) else None
    except RequestError as e:
        log.warning("reply to topic %s: not stored: %s", validation.shorten(header.topic), e.remark)
        return None
