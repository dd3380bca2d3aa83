"""Handlers of messages, and the meaning of what they return.

A handler gets one message, or a list of them (a batch handler). It is a function, run in a thread,
or a coroutine function, run on the event loop. What it returns decides:

    None, True               done
    False, an exception      failed: the message is delivered again
    Later(...)               the same, with a delay level, or for the rest of a batch
    Decision.COMMIT          ordered without auto_commit: all since the last commit are done
    Decision.ROLLBACK        ordered without auto_commit: all since the last commit are repeated
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from typing import cast

from tianzhou.client.message import ReceivedMessage
from tianzhou.client.observe.telemetry import Telemetry
from tianzhou.client.observe.trace import ConsumeReturn, Tracer
from tianzhou.errors import ConfigError
from tianzhou.remoting.repeated_failures import RepeatedFailures

log = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], object]
BatchHandler = Callable[[list[ReceivedMessage]], object]


@dataclass(frozen=True, slots=True)
class Later:
    """RECONSUME_LATER: deliver the message, or the rest of a batch, again."""

    delay_level: int = 0
    """0: the broker chooses, longer each time; 1 to 18: a level; -1: dead letter immediately."""
    done_count: int = 0
    """The number of messages at the start of a batch that are done."""
    suspend_ms: int | None = None
    """Ordered: pause of the queue, 10 ms to 30 s; None: the setting `suspend_ms`."""


class Decision(Enum):
    """Returned by an ordered handler without auto_commit."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call."""

    later: Later | None = None
    """None: done."""
    decision: Decision | None = None
    error: BaseException | None = None


DONE = Outcome()


@dataclass(frozen=True, slots=True)
class BoundHandler:
    """A handler and its subscription."""

    topic: str
    call: Callable[..., object]
    takes_list: bool
    batch_size: int
    is_async: bool

    async def run(self, messages: list[ReceivedMessage], executor: Executor) -> object:
        """Call it, in a thread unless it is a coroutine function."""
        argument = messages if self.takes_list else messages[0]
        if self.is_async:
            return await cast("Awaitable[object]", self.call(argument))
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(executor, self.call, argument)
        return await result if inspect.isawaitable(result) else result


def bind(topic: str, call: Callable[..., object], batch_size: int | None = None) -> BoundHandler:
    """Bind a handler of single messages, or of batches. Raises ConfigError for a wrong one."""
    if not callable(call):
        raise ConfigError(f"topic {topic}: the handler {call!r} cannot be called")
    is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004 - an object may have an async __call__
    )
    return BoundHandler(topic, call, batch_size is not None, batch_size or 1, is_async)


class Caller:
    """Calls the handlers of a group and logs their failures, rate limited by kind."""

    def __init__(self, group: str, executor: Executor, telemetry: Telemetry | None) -> None:
        self._group = group
        self._executor = executor
        self._telemetry = telemetry
        self._repeats = RepeatedFailures()
        self.tracer: Tracer | None = None
        """Set if calls are traced."""

    async def call(self, handler: BoundHandler, messages: list[ReceivedMessage]) -> Outcome:
        """Call a handler; never raises, unless it is cancelled."""
        handling = self.tracer.begin(messages) if self.tracer is not None else None
        try:
            if self._telemetry is None:
                returned = await handler.run(messages, self._executor)
            else:
                with self._telemetry.processing(handler.topic, messages):
                    returned = await handler.run(messages, self._executor)
        except Exception as error:  # noqa: BLE001 - any error means redelivery
            self._log_failure(handler, messages, error)
            outcome = Outcome(Later(), error=error)
        else:
            outcome = outcome_of(returned)
        if handling is not None:
            handling.end(_traced_return(outcome))
        return outcome

    def _log_failure(
        self, handler: BoundHandler, messages: list[ReceivedMessage], error: Exception
    ) -> None:
        now_s = asyncio.get_running_loop().time()
        ending = self._repeats.ending((handler.topic, type(error)), now_s)
        if ending is None:
            return
        log.warning(
            "group %s, topic %s: the handler failed with message %s%s",
            self._group, handler.topic, messages[0].msg_id, ending, exc_info=error,
        )  # fmt: skip


def _traced_return(outcome: Outcome) -> ConsumeReturn:
    if outcome.error is not None:
        return ConsumeReturn.EXCEPTION
    return ConsumeReturn.SUCCESS if outcome.later is None else ConsumeReturn.FAILED


def outcome_of(returned: object) -> Outcome:
    """The outcome of a returned value; any other value means done."""
    if returned is None or returned is True:
        return DONE
    if returned is False:
        return Outcome(Later())
    if isinstance(returned, Later):
        return Outcome(returned)
    if isinstance(returned, Decision):
        return Outcome(decision=returned)
    return DONE
