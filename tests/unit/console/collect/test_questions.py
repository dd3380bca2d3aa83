"""Questions to brokers: asked once for all, bounded in time and number."""

import asyncio

import pytest

from tianzhou.console.collect import questions
from tianzhou.console.collect.questions import Answer, Questions
from tianzhou.errors import ConnectError


class Broker:
    """Answers when it is allowed to."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()

    async def answer(self) -> int:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        return number


async def settled() -> None:
    """Let all tasks go as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_the_same_question_is_asked_once() -> None:
    asked, broker = Questions(), Broker()
    tasks = [
        asyncio.create_task(asked.ask("key", f"person {number}", broker.answer))
        for number in range(50)
    ]
    await settled()
    assert (broker.asked, asked.open_count) == (1, 1)
    broker.may_answer.set()
    assert await asyncio.gather(*tasks) == [Answer(1)] * 50
    assert (await asked.ask("key", "person", broker.answer)).value == 2
    assert asked.open_count == 0


async def test_a_closed_page_does_not_cancel_the_question_of_another() -> None:
    asked, broker = Questions(), Broker()
    first = asyncio.create_task(asked.ask("key", "a", broker.answer))
    await settled()
    second = asyncio.create_task(asked.ask("key", "b", broker.answer))
    await settled()
    first.cancel()
    await settled()
    broker.may_answer.set()
    assert await second == Answer(1)


async def test_a_question_ends_after_its_time() -> None:
    asked = Questions(timeout_s=0.01)
    found = await asked.ask("key", "a", Broker().answer)
    assert found == Answer(problem="no answer within 0.01 s")
    assert asked.open_count == 0


async def test_an_error_is_the_reason() -> None:
    async def fail() -> int:
        raise ConnectError("no connection to b:10911")

    assert await Questions().ask("k", "a", fail) == Answer(problem="no connection to b:10911")


async def test_a_bug_is_not_an_answer() -> None:
    async def fail() -> int:
        raise ZeroDivisionError

    asked = Questions()
    with pytest.raises(ZeroDivisionError):
        await asked.ask("k", "a", fail)
    assert asked.open_count == 0


async def test_a_person_has_four_questions_at_a_time_and_others_wait() -> None:
    asked, broker = Questions(), Broker()
    tasks = [asyncio.create_task(asked.ask(number, "a", broker.answer)) for number in range(6)]
    await settled()
    assert broker.asked == questions.PER_PERSON_MAX
    other = asyncio.create_task(asked.ask("x", "b", broker.answer))
    await settled()
    assert broker.asked == questions.PER_PERSON_MAX + 1
    broker.may_answer.set()
    found = await asyncio.gather(*tasks, other)
    assert all(not each.problem for each in found)


async def test_too_many_questions_are_refused() -> None:
    asked, broker = Questions(), Broker()
    at_most = questions.PER_PERSON_MAX + questions.WAITING_MAX
    tasks = [
        asyncio.create_task(asked.ask(number, "a", broker.answer)) for number in range(at_most)
    ]
    await settled()
    refused = await asked.ask("more", "a", broker.answer)
    assert refused.is_too_many
    assert refused.value is None
    broker.may_answer.set()
    await asyncio.gather(*tasks)
    assert (await asked.ask("more", "a", broker.answer)).value is not None


async def test_an_instance_has_a_limit_over_all_people() -> None:
    asked, broker = Questions(), Broker()
    tasks = [
        asyncio.create_task(asked.ask(number, f"p{number}", broker.answer))
        for number in range(questions.QUESTIONS_MAX)
    ]
    await settled()
    assert (await asked.ask("more", "p", broker.answer)).is_too_many
    # A question that is being answered is not one more.
    same = asyncio.create_task(asked.ask(0, "p", broker.answer))
    await settled()
    broker.may_answer.set()
    assert (await same).value == 1
    await asyncio.gather(*tasks)


async def test_closing_cancels_what_is_open() -> None:
    asked, broker = Questions(), Broker()
    task = asyncio.create_task(asked.ask("k", "a", broker.answer))
    await settled()
    await asked.close()
    with pytest.raises(asyncio.CancelledError):
        await task
