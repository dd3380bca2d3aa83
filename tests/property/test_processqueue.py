"""Process queues against plain models: a set of unfinished offsets, and a list with a mark."""

from dataclasses import dataclass
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tianzhou.client.consumer.process_queue import Batch, ConcurrentQueue, OrderedQueue
from tianzhou.client.message import ReceivedMessage


@dataclass(frozen=True, slots=True)
class FakeMessage:
    queue_offset: int
    size_bytes: int


SIZES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 100)), max_size=8)
"""Distance to the message before (a filter leaves gaps) and size, for each message of a pull."""


def pulled(next_offset: int, sizes: list[tuple[int, int]]) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    for distance, size_bytes in sizes:
        next_offset += distance
        messages.append(cast("ReceivedMessage", FakeMessage(next_offset - 1, size_bytes)))
    return messages


class ConcurrentModel(RuleBasedStateMachine):
    """The model is the set of unfinished offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ConcurrentQueue(0, 0)
        self.out: list[Batch] = []
        self.unfinished: dict[int, int] = {}

    @rule(sizes=SIZES, batch_size=st.integers(1, 5), skipped=st.integers(0, 3))
    def pull(self, sizes: list[tuple[int, int]], batch_size: int, skipped: int) -> None:
        messages = pulled(self.queue.next_offset, sizes)
        self.unfinished.update({each.queue_offset: each.size_bytes for each in messages})
        batches = self.queue.put(messages, batch_size)
        assert [each for batch in batches for each in batch.messages] == messages
        assert all(1 <= len(batch.messages) <= batch_size for batch in batches)
        if messages:
            self.queue.next_offset = messages[-1].queue_offset + 1
        self.queue.next_offset += skipped
        self.out += batches

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        batch = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        for each in batch.messages:
            del self.unfinished[each.queue_offset]
        self.queue.finish(batch, 1)
        self.queue.finish(batch, 2)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def finish_some(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(self.out))
        unfinished = data.draw(st.sets(st.sampled_from(batch.messages)))
        rest = [each for each in batch.messages if each in unfinished]
        for each in batch.messages:
            if each not in unfinished:
                del self.unfinished[each.queue_offset]
        self.queue.retain(batch, rest, 1)
        if not rest:
            self.out.remove(batch)

    @invariant()
    def agrees(self) -> None:
        queue = self.queue
        assert queue.message_count == len(self.unfinished)
        assert queue.size_bytes == sum(self.unfinished.values())
        lowest = min(self.unfinished, default=queue.next_offset)
        assert queue.progress == lowest
        assert queue.span == (queue.max_offset - lowest if self.unfinished else 0)


class OrderedModel(RuleBasedStateMachine):
    """The model is the list of all messages, how many are committed, and how many are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = OrderedQueue(0, 0)
        self.messages: list[ReceivedMessage] = []
        self.committed = 0
        self.taken = 0

    @rule(sizes=SIZES)
    def pull(self, sizes: list[tuple[int, int]]) -> None:
        messages = pulled(self.queue.next_offset, sizes)
        self.queue.put(messages)
        if messages:
            self.queue.next_offset = messages[-1].queue_offset + 1
        self.messages += messages

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        batch = self.queue.next_messages(count, 1)
        assert batch == self.messages[self.taken : self.taken + count]
        self.taken += len(batch)

    @rule()
    def commit(self) -> None:
        self.queue.commit()
        self.committed = self.taken

    @rule()
    def roll_back(self) -> None:
        self.queue.roll_back()
        self.taken = self.committed

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.taken - self.committed))
        self.queue.give_back(count, self.messages[self.taken - count : self.taken])
        self.taken -= count

    @invariant()
    def agrees(self) -> None:
        left = self.messages[self.committed :]
        assert self.queue.message_count == len(left)
        assert self.queue.size_bytes == sum(each.size_bytes for each in left)
        assert self.queue.uncommitted == self.messages[self.committed : self.taken]
        expected = left[0].queue_offset if left else self.queue.next_offset
        assert self.queue.progress == expected


TestConcurrentQueue = ConcurrentModel.TestCase
TestOrderedQueue = OrderedModel.TestCase
