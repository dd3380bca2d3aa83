"""The store against a plain model: writing, reading, rolling, crashing, deleting in any order."""

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    Ticker,
    append_batch,
    delete_topic,
    draft,
    open_store,
    queues_of,
    read_queue,
    small_config,
)

from tianzhou.protocol.records.record import decode_record
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import Appended, Draft, MessageStore
from tianzhou.store.reading import Boundary, ReadStatus

TOPICS = st.sampled_from(["a", "%RETRY%b", "c" * 130])
QUEUES = st.integers(0, 2)


def repeated(piece: bytes, times: int) -> bytes:
    return piece * times


BODIES = st.builds(repeated, st.binary(max_size=8), st.integers(0, 300))
TAGS = st.sampled_from(["", "red", "green"])


class Message:
    """A message in the model."""

    def __init__(self, one: Draft, key: str, done: Appended, log_offset: int) -> None:
        self.body = bytes(one.body)
        self.key = key
        self.log_offset = log_offset
        self.time_ms = done.store_time_ms
        self.durable = False


class StoreMachine(RuleBasedStateMachine):
    """The model: for each queue, the messages it must show, by queue offset."""

    store: MessageStore
    disk: SimulatedDisk

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[tuple[str, int], dict[int, Message]] = {}
        self.next_offsets: dict[tuple[str, int], int] = {}
        self.clock = Ticker(step_ms=700)
        self.config = small_config(log_file_bytes=4096, flush=FlushDiskType.SYNC_FLUSH)
        self.number = 0

    @initialize()
    def begin(self) -> None:
        self.disk = SimulatedDisk()
        self.open()

    def open(self) -> None:
        self.disk.now_ms = self.clock.now_ms
        self.store = open_store(self.config, self.disk, self.clock)

    def remember(self, one: Draft, key: str, done: Appended, number: int = 0) -> None:
        queue = (one.topic, one.queue_id)
        expected = self.next_offsets.get(queue, 0)
        assert done.queue_offset + number == expected
        message = Message(one, key, done, done.log_offsets[number])
        self.queues.setdefault(queue, {})[expected] = message
        self.next_offsets[queue] = expected + 1

    # -- rules ----------------------------------------------------------------------------------

    @rule(topic=TOPICS, queue_id=QUEUES, body=BODIES, tags=TAGS, keyed=st.booleans())
    def append(self, topic: str, queue_id: int, body: bytes, tags: str, keyed: bool) -> None:
        self.number += 1
        key = f"key{self.number}" if keyed else ""
        one = draft(topic, queue_id, body, key=key, tags=tags)
        self.remember(one, key, self.store.append(one))

    @rule(topic=TOPICS, queue_id=QUEUES, bodies=st.lists(BODIES, min_size=1, max_size=4))
    def append_batch(self, topic: str, queue_id: int, bodies: list[bytes]) -> None:
        drafts = [draft(topic, queue_id, body[:600]) for body in bodies]
        done = append_batch(self.store, drafts)
        for number, one in enumerate(drafts):
            self.remember(one, "", done, number)

    @rule()
    def acknowledge(self) -> None:
        self.store.flushed(self.store.end_log_offset).result(timeout=0)
        self.all_durable()

    @rule()
    def flush(self) -> None:
        self.store.flush()
        self.all_durable()

    def all_durable(self) -> None:
        for messages in self.queues.values():
            for message in messages.values():
                message.durable = True

    @rule(dice=st.randoms(use_true_random=False))
    def write_back(self, dice: random.Random) -> None:
        self.disk.write_back(dice)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.all_durable()
        self.open()
        assert self.store.report.clean
        assert self.store.report.notes == []

    @rule()
    def kill(self) -> None:
        after = self.disk.after_kill()
        self.store.abandon()
        self.disk = after
        self.open()
        # The start has read and flushed what a killed process had written.
        self.all_durable()

    @rule(dice=st.randoms(use_true_random=False))
    def power_cut(self, dice: random.Random) -> None:
        after = self.disk.after_power_cut(dice)
        self.store.abandon()
        self.disk = after
        self.open()
        self.forget_what_was_lost()
        self.all_durable()

    def forget_what_was_lost(self) -> None:
        """Unacknowledged messages may be lost, but only at the end of the log."""
        end = self.store.end_log_offset
        for queue, messages in list(self.queues.items()):
            for queue_offset, message in sorted(messages.items()):
                if message.log_offset >= end:
                    assert not message.durable, (queue, queue_offset)
                    del messages[queue_offset]
                    self.next_offsets[queue] = min(self.next_offsets[queue], queue_offset)
            if not self.next_offsets[queue]:
                del self.queues[queue], self.next_offsets[queue]

    @rule(topic=TOPICS)
    def delete_topic(self, topic: str) -> None:
        if delete_topic(self.store, topic):
            self.all_durable()
        for queue in [queue for queue in self.queues if queue[0] == topic]:
            del self.queues[queue], self.next_offsets[queue]

    @rule()
    def expire(self) -> None:
        self.clock.now_ms += (self.config.file_reserved_time + 1) * 3_600_000
        if self.store.expire(now=True):
            self.all_durable()
        first = self.store.first_log_offset
        for messages in self.queues.values():
            for queue_offset, message in list(messages.items()):
                if message.log_offset < first:
                    del messages[queue_offset]

    @rule(data=st.data(), ahead=st.integers(-3, 3))
    def search_by_time(self, data: st.DataObject, ahead: int) -> None:
        if not self.queues:
            return
        topic, queue_id = data.draw(st.sampled_from(sorted(self.queues)))
        messages = self.queues[topic, queue_id]
        times = [message.time_ms for message in messages.values()]
        wanted = (times[len(times) // 2] if times else 0) + ahead * 100
        after = [offset for offset, message in messages.items() if message.time_ms >= wanted]
        expected = min(after, default=self.next_offsets[topic, queue_id])
        assert self.store.offset_by_time(topic, queue_id, wanted) == expected
        before = [offset for offset, message in messages.items() if message.time_ms <= wanted]
        upper = self.store.offset_by_time(topic, queue_id, wanted, Boundary.UPPER)
        assert upper == max(before, default=self.store.min_offset(topic, queue_id))

    @precondition(lambda self: bool(self.queues))
    @rule(data=st.data())
    def read_outside(self, data: st.DataObject) -> None:
        topic, queue_id = data.draw(st.sampled_from(sorted(self.queues)))
        high = self.next_offsets[topic, queue_id]
        assert self.store.read(topic, queue_id, high, 1).status is ReadStatus.OFFSET_OVERFLOW_ONE
        badly = self.store.read(topic, queue_id, high + 1, 1)
        assert (badly.status, badly.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, high)
        low = self.store.min_offset(topic, queue_id)
        small = self.store.read(topic, queue_id, low - 1, 1)
        assert (small.status, small.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, low)

    # -- laws -----------------------------------------------------------------------------------

    @invariant()
    def every_queue_shows_its_messages(self) -> None:
        shown = {queue for queue in queues_of(self.store) if self.store.max_offset(*queue)}
        assert shown == set(self.queues)
        for queue, messages in self.queues.items():
            found = read_queue(self.store, *queue)
            assert found == {
                offset: (message.body, message.log_offset) for offset, message in messages.items()
            }
            assert self.store.max_offset(*queue) == self.next_offsets[queue]
            low = min(messages, default=self.next_offsets[queue])
            assert self.store.min_offset(*queue) == low

    @invariant()
    def every_message_is_found_by_key_and_offset(self) -> None:
        for (topic, _), messages in self.queues.items():
            for message in messages.values():
                record = self.store.record_at(message.log_offset)
                assert record is not None
                assert decode_record(record).body == message.body
                if message.key:
                    (hit,) = self.store.query(topic, message.key, 0, 2**62, 5)
                    assert bytes(hit) == bytes(record)
                    assert not self.store.query(topic, message.key, 0, message.time_ms - 1, 5)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
