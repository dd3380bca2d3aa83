"""Transactions: END_TRANSACTION, and checks resumed for halves that were given up."""

import asyncio
import logging
from collections.abc import Awaitable

from tianzhou.broker import validation
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.responses import when_stored
from tianzhou.broker.storing.durability import not_stored
from tianzhou.broker.transactions import rules
from tianzhou.errors import FieldError, RecordError, RequestError, StoreError
from tianzhou.message import StoredMessage
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import FLAG_ONEWAY, Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.send import EndTransactionRequest, ResumeCheckHalfMessageRequest
from tianzhou.protocol.records.message_id import decode_offset_id
from tianzhou.remoting.connection import Connection

log = logging.getLogger(__name__)

_NOT_FOUND = "Find prepared transaction message failed"


def end_transaction(
    deps: Deps, connection: Connection, request: Command
) -> Command | Awaitable[Command]:
    """END_TRANSACTION: commit a half, roll it back, or leave it open (unknown)."""
    header = decode(EndTransactionRequest, request.fields)
    state = header.commit_or_rollback
    if state == sysflag.TRANSACTION_NONE:
        log.debug("transaction %s: unknown to %s", header.msg_id, connection.peer)
        return Command(code=ResponseCode.SUCCESS)
    if state not in (sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"commitOrRollback is {state}: 8 commits, 12 rolls back, 0 is not known yet",
        )
    half = _half_of(deps, header)
    restored_topic = state == sysflag.TRANSACTION_COMMIT and _restored_topic(deps, half)
    if restored_topic or not deps.halves.ends_known.is_set():
        return _end_later(deps, request, half, state, restored_topic=restored_topic)
    return _end(deps, request, half, state)


def _restored_topic(deps: Deps, half: StoredMessage) -> bool:
    """Ensure that the topic of a half exists; whether it was created again."""
    queue = rules.real_queue(half)
    return queue is not None and deps.topics.restore(*queue, deps.settings.config)


async def _end_later(
    deps: Deps, request: Command, half: StoredMessage, state: int, *, restored_topic: bool
) -> Command:
    if restored_topic:
        # Without its topic the message could not be read after a crash, although the half is ended.
        await deps.saved()
    await deps.halves.ends_known.wait()
    answer = _end(deps, request, half, state)
    return answer if isinstance(answer, Command) else await answer


def _end(
    deps: Deps, request: Command, half: StoredMessage, state: int
) -> Command | Awaitable[Command]:
    try:
        if state == sysflag.TRANSACTION_COMMIT:
            _commit(deps, half)
        else:
            _roll_back(deps, half)
    except RecordError as e:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(e)) from e
    except StoreError as e:
        raise not_stored(e) from e
    if request.flag & FLAG_ONEWAY:
        # Ends of one loop iteration share a record.
        asyncio.get_running_loop().call_soon(deps.halves.write_ends)
        return Command(code=ResponseCode.SUCCESS)
    deps.halves.write_ends()
    return _done(deps)


def _done(deps: Deps) -> Command | Awaitable[Command]:
    """The response after everything is stored."""
    return when_stored(deps, Command(code=ResponseCode.SUCCESS), deps.store.end_log_offset)


def _half_of(deps: Deps, header: EndTransactionRequest) -> StoredMessage:
    """The half of a request. Raises RequestError, with the remarks of RocketMQ."""
    half = deps.halves.find(header.log_offset)
    if half is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
    if not header.from_transaction_check and _is_too_late(deps, half):
        raise RequestError(
            ResponseCode.ILLEGAL_OPERATION,
            "the immunity time of the half is over: its producer will be asked by a check",
        )
    if half.properties.get(properties.PRODUCER_GROUP) != header.producer_group:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if half.queue_offset != header.queue_offset:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    return half


def _is_too_late(deps: Deps, half: StoredMessage) -> bool:
    """Whether only a check may end a half with an immunity time of its own (5.x)."""
    own_ms = rules.immunity_ms(half)
    if own_ms is None:
        return False
    own_ms = max(own_ms, deps.settings.config.transaction_time_out)
    return deps.halves.ages.age_ms(half.born_time_ms) > own_ms


def _commit(deps: Deps, half: StoredMessage) -> None:
    began_ms = deps.steady()
    appended = deps.halves.commit(half)
    queue = rules.real_queue(half)
    if appended is not None and queue is not None:
        took_ms = deps.steady() - began_ms
        deps.stats.stored(queue[0], 1, appended.size_bytes, took_ms, queue[1])
        deps.stats.committed[queue[0]] += 1


def _roll_back(deps: Deps, half: StoredMessage) -> None:
    queue = rules.real_queue(half)
    if deps.halves.roll_back(half) and queue is not None:
        deps.stats.rolled_back[queue[0]] += 1


def resume_check(deps: Deps, _: Connection, request: Command) -> Command | Awaitable[Command]:
    """RESUME_CHECK_HALF_MESSAGE: checks start again for a half that was given up."""
    header = decode(ResumeCheckHalfMessageRequest, request.fields)
    name = validation.shorten(header.msg_id or "")
    try:
        log_offset = decode_offset_id(header.msg_id or "")[1]
        half = deps.halves.resume(log_offset)
    except FieldError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{name} is no message id: {e}") from e
    except (StoreError, RecordError) as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(e)) from e
    if half is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"no half message that was given up has the id {name}",
        )
    log.info("transaction %s: checked again", half.properties.get(properties.UNIQUE_KEY))
    return _done(deps)
