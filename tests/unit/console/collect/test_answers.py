"""Answers to detail pages: shared, reused for a few seconds, bounded."""

import asyncio

from tianzhou.console.collect.answers import ANSWERS_MAX, REUSE_MS, Answers
from tianzhou.errors import RemotingError


class Broker:
    """Counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def answer(self) -> int:
        self.asked += 1
        await asyncio.sleep(0)
        return self.asked


async def test_fifty_pages_cost_one_question() -> None:
    now_ms = 0
    answers, broker = Answers(steady=lambda: now_ms), Broker()
    people = [f"person-{number}" for number in range(50)]
    found = await asyncio.gather(
        *(answers.ask(("main", "q"), person, broker.answer) for person in people)
    )
    assert {each.value for each in found} == {1}
    now_ms = REUSE_MS - 1
    assert (await answers.ask(("main", "q"), "ada", broker.answer)).value == 1
    assert (await answers.ask(("main", "other"), "ada", broker.answer)).value == 2
    now_ms = 2 * REUSE_MS
    assert (await answers.ask(("main", "q"), "ada", broker.answer)).value == 3
    await answers.close()


async def test_failures_are_shared_too() -> None:
    answers = Answers(steady=lambda: 0)
    asked: list[int] = []

    async def fail() -> int:
        asked.append(1)
        raise RemotingError("connection refused")

    for _ in range(3):
        assert (await answers.ask(("main", "q"), "ada", fail)).problem == "connection refused"
    assert len(asked) == 1


async def test_a_change_drops_the_answers_of_its_cluster() -> None:
    answers, broker = Answers(steady=lambda: 0), Broker()
    for cluster in ("main", "other"):
        await answers.ask((cluster, "q"), "ada", broker.answer)
    answers.forget("main")
    assert (await answers.ask(("main", "q"), "ada", broker.answer)).value == 3
    assert (await answers.ask(("other", "q"), "ada", broker.answer)).value == 2


async def test_old_answers_are_dropped() -> None:
    answers, broker = Answers(steady=lambda: 0), Broker()
    for number in range(ANSWERS_MAX + 1):
        await answers.ask(("main", number), "ada", broker.answer)
    await answers.ask(("main", 0), "ada", broker.answer)
    assert broker.asked == ANSWERS_MAX + 2
