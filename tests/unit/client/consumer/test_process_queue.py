"""Process queues: progress, limits, order, rollback."""

from dataclasses import dataclass
from typing import cast

from tianzhou.client.consumer.process_queue import (
    LOCK_LIFE_MS,
    PULL_SILENCE_MS,
    ConcurrentQueue,
    FlowLimits,
    OrderedQueue,
    limits_per_queue,
)
from tianzhou.client.message import ReceivedMessage

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FakeMessage:
    queue_offset: int
    size_bytes: int = 10


def message(queue_offset: int, size_bytes: int = 10) -> ReceivedMessage:
    return cast("ReceivedMessage", FakeMessage(queue_offset, size_bytes))


def held(*offsets: int) -> list[ReceivedMessage]:
    return [message(each) for each in offsets]


def test_progress_is_the_lowest_unfinished_message() -> None:
    queue = ConcurrentQueue(5, 0)
    assert queue.progress == 5
    first, second, third = queue.put(held(5, 6, 7, 8, 9), 2)
    queue.next_offset = 10
    queue.finish(second, 1)
    assert (queue.progress, queue.message_count, queue.size_bytes) == (5, 3, 30)
    queue.finish(first, 2)
    assert queue.progress == 9
    queue.finish(third, 3)
    assert (queue.progress, queue.message_count, queue.size_bytes) == (10, 0, 0)
    queue.finish(third, 4)
    assert (queue.message_count, queue.last_consume_ms) == (0, 3)


def test_filtered_messages_count_as_done() -> None:
    queue = ConcurrentQueue(0, 0)
    (batch,) = queue.put(held(3), 32)
    queue.next_offset = 40
    assert queue.progress == 3
    queue.finish(batch, 1)
    assert queue.progress == 40


def test_rest_of_a_batch_blocks_the_progress() -> None:
    queue = ConcurrentQueue(0, 0)
    first, second = queue.put(held(0, 1, 2, 3), 3)
    queue.next_offset = 4
    queue.finish(second, 1)
    queue.retain(first, held(2), 2)
    assert (queue.progress, queue.message_count, queue.size_bytes) == (2, 1, 10)
    assert first.started_ms is None
    queue.retain(first, [], 3)
    assert (queue.progress, queue.message_count) == (4, 0)
    queue.retain(first, held(0), 4)
    assert queue.message_count == 0


def test_exceeded_limit_is_named() -> None:
    queue = ConcurrentQueue(0, 0)
    assert queue.full(FlowLimits()) is None
    batches = queue.put(held(0, 3000), 1)
    assert "span 3000" in (queue.full(FlowLimits()) or "")
    assert "2 messages" in (queue.full(FlowLimits(message_count=1, span=9999)) or "")
    queue.finish(batches[0], 1)
    assert queue.full(FlowLimits()) is None
    queue.put([message(3001, 102 * MIB)], 1)
    assert "102 MiB" in (queue.full(FlowLimits(span=9999)) or "")


def test_ordered_queue_has_no_span_limit() -> None:
    queue = OrderedQueue(0, 0)
    queue.put(held(0, 3000))
    assert queue.full(FlowLimits()) is None


def test_limits_of_a_topic_are_shared_by_its_queues() -> None:
    assert limits_per_queue(FlowLimits(), -1, -1, 8) == FlowLimits()
    assert limits_per_queue(FlowLimits(), 400, 20, 8) == FlowLimits(50, 2)
    assert limits_per_queue(FlowLimits(), 3, 3, 8) == FlowLimits(1, 1)
    assert limits_per_queue(FlowLimits(), 3, 3, 0) == FlowLimits(3, 3)


def test_only_the_lowest_overdue_batches_are_found() -> None:
    queue = ConcurrentQueue(0, 0)
    batches = queue.put(held(*range(5)), 1)
    for batch, started_ms in zip(batches, (0, 0, 50, 0, None), strict=True):
        batch.started_ms = started_ms
    assert queue.overdue(60, 20) == batches[:2]
    assert queue.overdue(60, 20, limit=1) == batches[:1]
    queue.finish(batches[1], 60)
    assert queue.overdue(60, 20) == batches[:1]
    assert queue.overdue(20, 20) == []


def test_order_is_kept_through_commit_and_rollback() -> None:
    queue = OrderedQueue(0, 0)
    queue.put(held(0, 1, 2, 3))
    queue.next_offset = 4
    assert queue.next_messages(2, 1) == held(0, 1)
    assert (queue.progress, queue.message_count) == (0, 4)
    queue.commit()
    assert (queue.progress, queue.message_count, queue.size_bytes) == (2, 2, 20)
    taken = queue.next_messages(1, 2)
    queue.give_back(1, [message(each.queue_offset, 10) for each in taken])
    assert queue.next_messages(9, 3) == held(2, 3)
    queue.roll_back()
    assert (len(queue.waiting), queue.uncommitted) == (2, [])
    assert queue.next_messages(1, 4) == held(2)
    assert queue.next_messages(1, 4) == held(3)
    queue.commit()
    assert (queue.progress, queue.message_count) == (4, 0)
    assert queue.next_messages(1, 5) == []


def test_give_back_affects_only_the_last_messages() -> None:
    queue = OrderedQueue(0, 0)
    queue.put(held(0, 1, 2))
    queue.next_messages(1, 0)
    queue.give_back(1, queue.next_messages(1, 0))
    assert (queue.uncommitted, queue.progress, len(queue.waiting)) == (held(0), 0, 2)


def test_give_back_of_some_messages_finishes_the_others() -> None:
    queue = OrderedQueue(0, 0)
    queue.put(held(0, 1, 2))
    queue.next_offset = 3
    queue.give_back(2, queue.next_messages(2, 0)[1:])
    assert (queue.progress, queue.message_count, queue.size_bytes) == (1, 2, 20)
    assert queue.next_messages(9, 0) == held(1, 2)


def test_pull_silence_and_lock_expiry() -> None:
    queue = OrderedQueue(0, 1000)
    assert not queue.silent(1000 + PULL_SILENCE_MS)
    assert queue.silent(1001 + PULL_SILENCE_MS)
    assert not queue.lock_holds(1000)
    queue.set_lock(True, 2000)
    assert queue.lock_holds(2000 + LOCK_LIFE_MS)
    assert not queue.lock_holds(2001 + LOCK_LIFE_MS)
    queue.set_lock(False, 2500)
    assert not queue.lock_holds(2500)
