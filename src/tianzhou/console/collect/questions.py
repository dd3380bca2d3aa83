"""What detail pages ask brokers themselves: at most 2 s, once for all who ask the same, bounded.

A snapshot has no stacks, queue by queue progress or settings of brokers. A page asks for them by a
question with a key. While it is being answered, other pages with the same key wait for the same
answer; a person may wait for `PER_PERSON_MAX` questions at a time, an instance for `QUESTIONS_MAX`.
The answer to a page is the value, or why there is none: a page shows "?" with the reason.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tianzhou.errors import TianzhouError

T = TypeVar("T")

TIMEOUT_S = 2.0
PER_PERSON_MAX = 4
QUESTIONS_MAX = 64
"""Different questions at a time."""
WAITING_MAX = 16
"""Further questions of one person, which wait."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A value, or the reason why there is none."""

    value: T | None = None
    problem: str = ""
    """Empty: `value` is the answer."""
    is_too_many: bool = False
    """Refused because the person has too many questions open: HTTP 429."""


class Questions:
    """The open questions of one console instance. Use it on one event loop."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._open: dict[Hashable, asyncio.Task[Answer[Any]]] = {}
        self._limits: dict[str, asyncio.Semaphore] = {}
        self._pending: Counter[str] = Counter()

    @property
    def open_count(self) -> int:
        """Questions that brokers are answering."""
        return len(self._open)

    async def ask(
        self, key: Hashable, person: str, action: Callable[[], Awaitable[T]]
    ) -> Answer[T]:
        """The answer to a question; `key` says what is asked, cluster included."""
        if self._pending[person] >= PER_PERSON_MAX + WAITING_MAX:
            return Answer(
                problem=f"more than {PER_PERSON_MAX + WAITING_MAX} questions are open; wait for "
                "the pages that are loading",
                is_too_many=True,
            )
        self._pending[person] += 1
        limit = self._limits.setdefault(person, asyncio.Semaphore(PER_PERSON_MAX))
        try:
            async with limit:
                return await self._shared(key, action)
        finally:
            self._pending[person] -= 1
            if not self._pending[person]:
                del self._pending[person]
                del self._limits[person]

    async def _shared(self, key: Hashable, action: Callable[[], Awaitable[T]]) -> Answer[T]:
        task: asyncio.Task[Answer[T]] | None = self._open.get(key)
        if task is None:
            if len(self._open) >= QUESTIONS_MAX:
                return Answer(
                    problem=f"{QUESTIONS_MAX} questions to brokers are open; try again",
                    is_too_many=True,
                )
            task = asyncio.get_running_loop().create_task(self._answer(action))
            self._open[key] = task
            task.add_done_callback(lambda _: self._open.pop(key, None))
        # A page that is closed does not cancel the question of the others.
        return await asyncio.shield(task)

    async def _answer(self, action: Callable[[], Awaitable[T]]) -> Answer[T]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return Answer(await action())
        except TimeoutError:
            return Answer(problem=f"no answer within {self._timeout_s:g} s")
        except TianzhouError as e:
            return Answer(problem=str(e) or type(e).__name__)

    async def close(self) -> None:
        """Cancel the open questions."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
