"""Pipelines of pulls against a simple model: their records and end, for any responses."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.records import encode_record

from tianzhou.errors import ConnectionClosed, RemotingError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.pending_requests import Waiter
from tianzhou.spark.source.pull_pipeline import PullPipeline

FIRST, STOP = 100, 140

Answer = Command | RemotingError | None
"""None: the pull could not be sent."""


def found(following: object, body: bytes = b"records", **more: str) -> Command:
    fields = {"nextBeginOffset": str(following), **more}
    return Command(code=ResponseCode.SUCCESS, ext_fields=fields, body=body)


def no_match(following: int) -> Command:
    fields = {"nextBeginOffset": str(following)}
    return Command(code=ResponseCode.PULL_RETRY_IMMEDIATELY, ext_fields=fields)


def record(queue_offset: int) -> bytes:
    return encode_record(
        topic="t", body=b"x", properties_text="", queue_id=0, queue_offset=queue_offset,
        born_time_ms=1, born_host=("10.0.0.1", 1), store_host=("10.0.0.2", 2),
    )  # fmt: skip


def run_of(
    answers: Sequence[Answer], *, filtered: bool = False
) -> tuple[int, list[tuple[bytes, int]], list[int]]:
    """The end, the records and the requests of a pipeline that gets these responses."""
    asked: list[int] = []

    async def walk() -> tuple[int, list[tuple[bytes, int]], list[int]]:
        loop = asyncio.get_running_loop()
        left = iter(answers)

        def give(waiter: Waiter, answer: Command | RemotingError) -> None:
            assert not waiter.done()
            if isinstance(answer, Command):
                waiter.set_result(answer)
            else:
                waiter.set_exception(answer)

        def post(waiter: Waiter, at: int) -> bool:
            asked.append(at)
            answer = next(left, None)
            if answer is not None:
                loop.call_soon(give, waiter, answer)
            return answer is not None

        run = PullPipeline(FIRST, STOP, post, loop.create_future(), filtered=filtered)
        return await run.ended(), run.responses, asked

    return asyncio.run(walk())


def test_pulls_continue_while_messages_are_found() -> None:
    ended, replies, asked = run_of([found(110, b"a"), found(125, b"b"), found(STOP, b"c")])
    assert (ended, asked) == (STOP, [FIRST, 110, 125])
    assert replies == [(b"a", 0), (b"b", 0), (b"c", 0)]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(None, id="no connection"),
        pytest.param(ConnectionClosed("gone"), id="lost"),
        pytest.param(found(110), id="no progress"),
        pytest.param(found(STOP + 1), id="further than asked, with what is no record"),
        pytest.param(no_match(120), id="messages that nobody filtered are gone"),
        pytest.param(found("many"), id="no number"),
        pytest.param(found("9" * 5000), id="a number of 5,000 digits"),
        pytest.param(found(120, offsetDelta="some"), id="no number to add"),
        pytest.param(Command(code=ResponseCode.SUCCESS), id="no fields"),
        pytest.param(
            Command(code=ResponseCode.PULL_NOT_FOUND, ext_fields={"nextBeginOffset": "120"}),
            id="nothing there",
        ),
    ],
)
def test_any_other_response_ends_the_pipeline_at_its_offset(end: Answer) -> None:
    ended, replies, asked = run_of([found(110, b"a", offsetDelta="-3"), end])
    assert (ended, asked, replies) == (110, [FIRST, 110], [(b"a", -3)])


def test_pulls_continue_if_a_filter_matches_nothing() -> None:
    answers = [no_match(110), found(120, b"a"), no_match(STOP + 700)]
    ended, replies, asked = run_of(answers, filtered=True)
    assert (ended, asked, replies) == (STOP + 700, [FIRST, 110, 120], [(b"a", 0)])
    assert run_of([no_match(FIRST)], filtered=True) == (FIRST, [], [FIRST])


@given(st.lists(st.integers(FIRST, STOP + 20), unique=True).map(sorted), st.integers(-3, 3))
def test_messages_beyond_the_end_are_cut_off(offsets: list[int], delta: int) -> None:
    body = b"".join(record(offset - delta) for offset in offsets)
    answer = found(STOP + 21, body, offsetDelta=str(delta))
    ended, replies, _ = run_of([answer], filtered=True)
    wanted = b"".join(record(offset - delta) for offset in offsets if offset < STOP)
    assert (ended, replies) == (STOP + 21, [(wanted, delta)])


@given(st.lists(st.integers(FIRST - 5, STOP + 5), max_size=8))
def test_every_offset_up_to_the_end_is_pulled_once(followings: list[int]) -> None:
    ended, replies, asked = run_of([found(each, b"%d" % each) for each in followings])
    at, kept = FIRST, list[tuple[bytes, int]]()
    for each in followings:
        if at == STOP or not at < each <= STOP:
            break
        at = each
        kept.append((b"%d" % each, 0))
    assert (ended, replies) == (at, kept)
    assert asked == sorted(set(asked))
