"""Answers of brokers to detail pages, shared for a few seconds by all who look at the same thing.

`Questions` lets concurrent pages wait for one answer; this also reuses it for the pages that ask
again every few seconds, so that 50 open pages cost a broker as much as one.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from tianzhou.clock import Clock, steady_ms
from tianzhou.console.collect.questions import Answer, Questions

T = TypeVar("T")

REUSE_MS = 5_000
ANSWERS_MAX = 256


class Answers:
    """Questions of detail pages with their newest answers. Use it on one event loop."""

    def __init__(self, questions: Questions | None = None, steady: Clock = steady_ms) -> None:
        self._questions = questions or Questions()
        self._steady = steady
        self._newest: OrderedDict[tuple[Hashable, ...], tuple[int, Answer[Any]]] = OrderedDict()

    async def ask(
        self, key: tuple[Hashable, ...], person: str, action: Callable[[], Awaitable[T]]
    ) -> Answer[T]:
        """The answer to a question, not older than `REUSE_MS`; `key` begins with the cluster."""
        known = self._newest.get(key)
        if known is not None and self._steady() - known[0] < REUSE_MS:
            return known[1]
        answer = await self._questions.ask(key, person, action)
        if not answer.is_too_many:
            self._newest[key] = (self._steady(), answer)
            self._newest.move_to_end(key)
            while len(self._newest) > ANSWERS_MAX:
                self._newest.popitem(last=False)
        return answer

    def forget(self, cluster: str) -> None:
        """Drop the answers of a cluster, after a change."""
        for key in [key for key in self._newest if key[:1] == (cluster,)]:
            del self._newest[key]

    async def close(self) -> None:
        """Cancel the open questions."""
        await self._questions.close()
