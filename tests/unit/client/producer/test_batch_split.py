"""Splitting many messages into batches: grouping, order, results."""

import pytest

from tianzhou.client.message import Message
from tianzhou.client.producer.batch_split import (
    SplitRequest,
    merge_outcomes,
    request_sequences,
    split_into_requests,
)
from tianzhou.client.queues import Queue
from tianzhou.client.sending.send_request import SendResult, SendStatus
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.errors import RemotingError, SendManyError

FIRST, SECOND = Queue("t", "a", 0), Queue("t", "a", 1)


def cut_up(
    messages: list[Message], queues: list[Queue] | None, count: int = 2
) -> list[SplitRequest]:
    settings = ProducerSettings(batch_bytes=1 << 20, batch_count=count)
    return split_into_requests(messages, lambda topic: topic, settings, queues)


def result(number: int) -> SendResult:
    return SendResult(SendStatus.SEND_OK, f"id-{number}", "", FIRST, number)


def test_a_batch_is_for_one_queue_and_batches_of_a_queue_follow_each_other() -> None:
    messages = [Message("t", str(number)) for number in range(7)]
    queues = [FIRST, SECOND, FIRST, SECOND, FIRST, FIRST, FIRST]
    requests = cut_up(messages, queues)
    assert {(request.queue, tuple(request.indexes)) for request in requests} == {
        (FIRST, (0, 2)), (FIRST, (4, 5)), (FIRST, (6,)), (SECOND, (1, 3)),
    }  # fmt: skip
    ways = [
        [tuple(requests[number].indexes) for number in lane] for lane in request_sequences(requests)
    ]
    assert sorted(ways) == [[(0, 2), (4, 5), (6,)], [(1, 3)]]


def test_batches_without_a_chosen_queue_are_concurrent() -> None:
    messages = [Message("t", str(number)) for number in range(4)]
    assert request_sequences(cut_up(messages, None)) == [[0], [1]]


def test_unbatchable_messages_keep_the_order_of_their_queue() -> None:
    messages = [Message("t", b"1"), Message("t", b"2", delay_level=1), Message("t", b"3")]
    requests = cut_up(messages, [FIRST] * 3, count=1)
    assert [
        [tuple(requests[at].indexes) for at in lane] for lane in request_sequences(requests)
    ] == [[(0,), (1,), (2,)]]


def test_messages_of_a_batch_can_have_different_results() -> None:
    requests = [SplitRequest((0, 2)), SplitRequest((1,))]
    assert merge_outcomes("g", 3, requests, [[result(0), result(2)], [result(1)]]) == [
        result(0), result(1), result(2),
    ]  # fmt: skip
    lost = RemotingError("gone")
    with pytest.raises(SendManyError, match="1 of 3 messages are not stored") as some:
        merge_outcomes("g", 3, requests, [[result(0), lost], [result(1)]])
    assert some.value.outcomes == [result(0), result(1), lost]
    assert some.value.retriable
