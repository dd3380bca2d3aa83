"""The log of slow requests: one line for each that took longer than `slowRequestThresholdMills`.

A request is timed from the start of its handler to its response: waiting for the disk or a slave
counts, waiting in the socket does not. Parked pulls are not timed, nor are requests of the fast
path, which wait for nothing but memory. The number of lines per second is limited.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from tianzhou.broker.handlers import Answer
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import PARKED, Deferral
from tianzhou.remoting.log_rate_limit import LogRateLimit

log = logging.getLogger(__name__)

_TOPIC_IN_B = (
    RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
)  # fmt: skip


class _Timed:
    """An awaitable of a response that calls a function when it is done or has failed."""

    __slots__ = ("_then", "_work")

    def __init__(self, work: Awaitable[Command | Deferral], then: Callable[[], None]) -> None:
        self._work = work
        self._then = then

    def __await__(self) -> Generator[Any, Any, Command | Deferral]:
        try:
            return (yield from self._work.__await__())
        finally:
            self._then()

    def close(self) -> None:
        """Cancel the work: this will not be awaited."""
        if isinstance(self._work, asyncio.Future):
            self._work.cancel()
        elif asyncio.iscoroutine(self._work):
            self._work.close()


class SlowLog:
    """Times requests and logs the slow ones."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines = LogRateLimit()

    def watch(self, peer: str, request: Command, answer: Answer, started_s: float,
              threshold_ms: int) -> Answer:  # fmt: skip
        """Log a request that was answered at once; time one that is answered later."""
        if answer is PARKED or isinstance(answer, Command):
            # Few requests are slow, so the fields of the line are computed only for those.
            if (time.perf_counter() - started_s) * 1000 >= threshold_ms:
                self.note(peer, request.code, topic_of(request), started_s, threshold_ms)
            return answer
        fields = (peer, request.code, topic_of(request), started_s, threshold_ms)
        return _Timed(answer, lambda: self.note(*fields))

    def note(self, peer: str, code: int, topic: str, started_s: float, threshold_ms: int) -> None:
        """Log the request if it took longer than the threshold."""
        took_ms = (time.perf_counter() - started_s) * 1000
        if took_ms < threshold_ms or (ending := self._lines.ending()) is None:
            return
        log.warning(
            "slow request: %s from %s, topic %s, took %.0f ms%s",
            name_of(code), peer, topic or "-", took_ms, ending,
            extra={"code": code, "peer": peer, "topic": topic, "took_ms": round(took_ms, 1)},
        )  # fmt: skip


def name_of(code: int) -> str:
    """The name of a request, or its number."""
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)


def topic_of(request: Command) -> str:
    """The topic that a request names, shortened; empty if it names none."""
    topic = request.fields.get("b" if request.code in _TOPIC_IN_B else "topic") or ""
    return topic[:127]
