"""Requests of operators to a push consumer: consume one message directly, dump the stacks."""

import asyncio
import sys
import traceback

from tianzhou.client.consumer.callbacks import Decision, Outcome
from tianzhou.client.group.membership import success
from tianzhou.client.group.settings import PushSettings
from tianzhou.client.message import ReceivedMessage
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.clients import ConsumeMessageDirectlyResult
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.clients import ConsumeMessageDirectlyRequest
from tianzhou.protocol.records.record import decode_record


def direct_message(request: Command, settings: PushSettings) -> ReceivedMessage:
    """The message that a CONSUME_MESSAGE_DIRECTLY request carries."""
    header = headers.decode(ConsumeMessageDirectlyRequest, request.fields)
    return ReceivedMessage(
        decode_record(request.body),
        broker_name=header.broker_name or "",
        namespace=settings.namespace,
        unpacked_bytes_max=settings.unpacked_bytes_max,
    )


def direct_response(
    message: ReceivedMessage, outcome: Outcome | None, took_ms: int, settings: PushSettings
) -> Command:
    """The response to CONSUME_MESSAGE_DIRECTLY; without an outcome there is no handler."""
    remark = None
    if outcome is None:
        result, remark = "CR_RETURN_NULL", f"no handler for topic {message.topic}"
    elif outcome.error is not None:
        result, remark = "CR_THROW_EXCEPTION", f"{type(outcome.error).__name__}: {outcome.error}"
    elif outcome.decision is not None:
        result = "CR_COMMIT" if outcome.decision is Decision.COMMIT else "CR_ROLLBACK"
    else:
        result = "CR_SUCCESS" if outcome.later is None else "CR_LATER"
    body = ConsumeMessageDirectlyResult(
        order=settings.ordered,
        auto_commit=settings.auto_commit,
        consume_result=result,
        remark=remark,
        spent_time_ms=took_ms,
    )
    return success(bodies.encode(body))


def stack_dump() -> str:
    """The stacks of all threads and the tasks of this process."""
    parts = [
        f"thread {identity}\n{''.join(traceback.format_stack(frame))}"
        for identity, frame in sys._current_frames().items()  # pyright: ignore[reportPrivateUsage]  # documented, in spite of its name
    ]
    parts += [f"task {task.get_name()}: {task.get_coro()}\n" for task in asyncio.all_tasks()]
    return "\n".join(parts)
