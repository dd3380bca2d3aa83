"""RECALL_MESSAGE: a producer cancels a timed message that is not delivered yet.

The recall is itself a message of the timer topic, so it is as durable as the message it cancels.
The response says that it is stored; as in RocketMQ it does not say whether a message was cancelled.
"""

from collections.abc import Awaitable

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import find_topic
from tianzhou.broker.handlers.responses import success, when_stored
from tianzhou.broker.handlers.send import born_host
from tianzhou.broker.scheduled.timer_rules import recall_key
from tianzhou.errors import FieldError, RecordError, RequestError, StoreError
from tianzhou.names import PERM_WRITE
from tianzhou.protocol import properties
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.send import RecallMessageRequest, RecallMessageResponse
from tianzhou.protocol.records.recall import RecallHandle, decode_handle
from tianzhou.remoting.connection import Connection
from tianzhou.store.message_store import Draft

_TAG = "_RECALL_TAG_"
_BODY = b"0"


def recall_message(
    deps: Deps, connection: Connection, request: Command
) -> Command | Awaitable[Command]:
    """RECALL_MESSAGE."""
    header = decode(RecallMessageRequest, request.fields)
    config, now_ms = deps.settings.config, deps.clock()
    _check_allowed(config, now_ms)
    find_topic(deps, header.topic)
    try:
        handle = decode_handle(header.recall_handle)
    except FieldError:
        raise RequestError(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid") from None
    _check_handle(config, handle, header.topic, now_ms)
    draft = _draft(deps, connection, handle, header.producer_group or "", now_ms)
    try:
        appended = deps.writer.append(draft)
    except (RecordError, StoreError) as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"recall failed, {e}") from e
    recalled = RecallMessageResponse(msg_id=handle.unique_key, region_id=config.region_id)
    return when_stored(deps, success(recalled), appended.end_log_offset)


def _check_allowed(config: BrokerConfig, now_ms: int) -> None:
    if not config.recall_message_enable:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            "recall failed, operation is forbidden (recallMessageEnable is false)",
        )
    writable = config.broker_permission & PERM_WRITE
    if now_ms < config.start_accept_send_request_time_stamp or not (
        writable or config.allow_recall_when_broker_not_writeable
    ):
        raise RequestError(
            ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
        )


def _check_handle(config: BrokerConfig, handle: RecallHandle, topic: str, now_ms: int) -> None:
    problem = ""
    if handle.topic != topic:
        problem = f"topic not match: the handle is for {handle.topic[:80]}"
    elif handle.broker_name != config.broker_name:
        problem = f"broker service not available: the handle is for {handle.broker_name[:80]}"
    elif not now_ms < handle.deliver_ms < now_ms + config.timer_max_delay_sec * 1000:
        problem = f"timestamp invalid: {handle.deliver_ms}, and now it is {now_ms}"
    if problem:
        raise RequestError(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {problem}")


def _draft(
    deps: Deps, connection: Connection, handle: RecallHandle, group: str, now_ms: int
) -> Draft:
    props = {
        properties.TAGS: _TAG,
        properties.TIMER_DEL_UNIQKEY: recall_key(handle.topic, handle.unique_key),
        properties.UNIQUE_KEY: handle.unique_key,
        properties.TIMER_DELIVER_MS: str(handle.deliver_ms),
        properties.BORN_TIMESTAMP: str(now_ms),
        properties.PRODUCER_GROUP: group,
    }
    return Draft(
        topic=handle.topic,
        queue_id=0,
        body=_BODY,
        properties_text=properties.encode({name: value for name, value in props.items() if value}),
        born_time_ms=now_ms,
        born_host=born_host(connection.peer),
        store_host=deps.store_host,
    )
