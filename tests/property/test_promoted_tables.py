"""Tables claim nothing beyond a log that was cut anywhere (invariant I7), and nothing is lost."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.brokers import SMALL
from tests.support.gate import some_of

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.replication import adaptation
from tianzhou.broker.scheduled.delay_levels import DelayLevels
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.scheduled.timer_loop import Timer
from tianzhou.broker.state import BrokerState
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.ha.epochs import EpochFile
from tianzhou.message import StoredMessage
from tianzhou.names import SCHEDULE_TOPIC, TIMER_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.records.record import decode_record
from tianzhou.remoting.scheduler import Steps, one_step
from tianzhou.store.message_store import Draft, MessageStore

HOST = ("127.0.0.1", 10911)
NOON_MS = 1_700_000_000_000
WAITING = (SCHEDULE_TOPIC, TIMER_TOPIC)


class Clock:
    now_ms = NOON_MS

    def __call__(self) -> int:
        return self.now_ms


class Replica:
    """The store, the tables and the scheduled messages of a broker, without threads or ports."""

    def __init__(self, root: Path, clock: Clock) -> None:
        pairs = SMALL | {
            "storePathRootDir": root, "messageDelayLevel": "1s 5s",
            "mappedFileSizeCommitLog": 8192, "autoCreateTopicEnable": "false",
        }  # fmt: skip
        given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
        self.settings = LiveSettings[BrokerConfig](load_broker_config(environ={}, flags=given))
        self.clock = clock
        self.store = MessageStore.open(self.settings.config, clock=clock, background=False)
        self.state = BrokerState(self.settings, clock, clock)
        self.state.log_end = lambda: self.store.end_log_offset
        self.state.load()
        self.scheduled = ScheduledMessages(
            self.settings, self.store, Durability(self.store, self.settings), self.state.topics,
            clock,
        )  # fmt: skip
        self.state.add_files(self.scheduled.encoders())
        self.epochs = EpochFile(self.settings.config.root_directory)
        self.boundaries = [self.store.end_log_offset]
        self.has_timer = self.scheduled.timer is not None

    def send(self, topic: str, queue_id: int, body: bytes, **props: str) -> None:
        if self.state.topics.get(topic) is None:
            self.state.topics.put(TopicConfig(topic_name=topic))
        text = properties.encode(props)
        draft = Draft(topic, queue_id, body, text, self.clock.now_ms, HOST, HOST)
        done = self.store.append(self.scheduled.redirect(draft, props) or draft)
        self.boundaries.append(done.end_log_offset)

    def deliver(self, slices: int = 1) -> None:
        for _ in range(slices):
            self.scheduled.delays.run_slice(self.clock())
            if self.scheduled.timer is not None:
                self.scheduled.timer.run_slice(self.clock())
        self.boundaries.append(self.store.end_log_offset)

    async def save(self) -> None:
        """As the loops of the scheduled messages, when all is on the disk."""
        delays, timer = self.scheduled.delays, self.scheduled.timer
        delays.flushed(dict(delays.offsets), self.clock(), self.store.end_log_offset)
        if timer is not None:
            timer.check = timer.progress(self.clock())
        assert await self.state.save(*self.scheduled.encoders())

    def messages(self) -> list[StoredMessage]:
        """All that the log has, in order."""
        found: list[StoredMessage] = []
        at = self.store.first_log_offset
        while at < self.store.end_log_offset:
            record = self.store.log.record(at)
            if record is None:  # a filler
                at = (at // 8192 + 1) * 8192
                continue
            found.append(decode_record(record))
            at += len(record)
        return found

    async def close(self) -> None:
        await self.scheduled.stop()
        await self.state.close()
        self.store.close()


async def lived(replica: Replica, dice: random.Random) -> None:
    """A while as the master."""
    clock = replica.clock
    for number in range(60):
        body = b"%d" % number
        topic, queue_id = dice.choice(("orders", "bills", f"rare-{number}")), dice.randrange(3)
        kind = dice.random()
        if kind < 0.3:
            replica.send(topic, queue_id, body, DELAY=dice.choice("12"))
        elif kind < 0.6:
            replica.send(topic, queue_id, body, TIMER_DELAY_MS=str(dice.choice((300, 2000, 6000))))
        else:
            replica.send(topic, queue_id, body)
        clock.now_ms += dice.choice((1, 100, 1500))
        if dice.random() < 0.3:
            replica.deliver()
        if dice.random() < 0.2:
            await replica.save()
        for queue in replica.store.queues.all():
            if dice.random() < 0.2 and queue.next_offset:
                at = dice.randint(0, queue.next_offset)
                replica.state.offsets.commit("g", queue.topic, queue.queue_id, at)
    if dice.random() < 0.5:
        replica.deliver(5)
        await replica.save()


def claims_beyond_log(replica: Replica) -> list[str]:
    """What the tables claim that the log lacks."""
    store, found = replica.store, list[str]()
    for topic, group, queues in replica.state.offsets.progress():
        for queue_id, at in queues.items():
            if at > store.max_offset(topic, queue_id):
                found.append(f"{group} is at {at} of {topic}/{queue_id}")
    for level, at in replica.scheduled.delays.safe_offsets.items():
        if at > store.max_offset(SCHEDULE_TOPIC, level - 1):
            found.append(f"delay level {level} is at {at}")
    timer = replica.scheduled.timer
    if timer is not None and timer.check.queue_offset > store.max_offset(TIMER_TOPIC, 0):
        found.append(f"the timer is at {timer.check.queue_offset}")
    if replica.state.topics.log_end > store.end_log_offset:
        found.append("topics")
    return found


def queue_gaps(replica: Replica) -> list[str]:
    """Queues whose offsets in the log are not 0, 1, 2 and so on up to the next one."""
    counts: Counter[tuple[str, int]] = Counter()
    found: list[str] = []
    for message in replica.messages():
        key = (message.topic, message.queue_id)
        if message.queue_offset != counts[key]:
            found.append(f"{key} has {message.queue_offset} where {counts[key]} is next")
        counts[key] += 1
    for topic, queue_id in counts:
        if replica.store.max_offset(topic, queue_id) != counts[topic, queue_id]:
            found.append(f"{topic}/{queue_id} continues at another offset")
    return found


def undelivered(replica: Replica) -> dict[bytes, int]:
    """Scheduled messages with their number of deliveries, where it is not 1."""
    delivered: Counter[bytes] = Counter()
    waiting: set[bytes] = set()
    for message in replica.messages():
        if message.topic in WAITING:
            waiting.add(message.body)
        else:
            delivered[message.body] += 1
    return {body: delivered[body] for body in waiting if delivered[body] != 1}


async def promoted_at_a_cut(root: Path, seed: int) -> list[str]:
    """What is wrong with a broker that lived, was cut anywhere, and became the master again."""
    dice, clock = random.Random(seed), Clock()
    replica = Replica(root, clock)
    await lived(replica, dice)
    to = dice.choice(replica.boundaries)
    await adaptation.truncate(
        replica.store, replica.epochs, replica.state, replica.scheduled, to, (), confirm=0
    )
    problems = claims_beyond_log(replica)
    # What it copies from another master has other messages at the same queue offsets.
    grows = dice.random() < 0.7
    if grows:
        for number in range(8):
            replica.send(dice.choice(("orders", "bills")), 0, b"new %d" % number, DELAY="1")
    await replica.close()
    replica = Replica(root, clock)
    await adaptation.prepare_master(
        replica.store, replica.state, replica.scheduled, replica.settings.config
    )
    problems += claims_beyond_log(replica)
    clock.now_ms += 60_000
    replica.deliver(60)
    problems += [f"{body!r} is delivered {n} times" for body, n in undelivered(replica).items()]
    problems += queue_gaps(replica)
    missing = {m.topic for m in replica.messages()} - replica.state.topics.topics.keys()
    problems += [f"topic {topic} is missing" for topic in missing]
    await replica.close()
    return problems


@pytest.mark.parametrize("seed", some_of(range(300), 20))
async def test_a_slave_that_was_cut_anywhere_loses_nothing_as_the_master(
    tmp_path: Path, seed: int
) -> None:
    assert await promoted_at_a_cut(tmp_path, seed) == []


def _no_offsets(_: OffsetTable, __: Callable[[str, int], int | None]) -> Steps[int]:
    return one_step(lambda: 0)


def _nothing(_: object, __: object = None) -> None:
    """The rule is switched off."""


def _only_limit(progress: DelayLevels | Timer, _: int) -> None:
    progress.limit()


@pytest.mark.parametrize(
    ("owner", "name", "instead", "problem"),
    [
        (OffsetTable, "limit", _no_offsets, "g is at"),
        (DelayLevels, "log_truncated", _nothing, "delay level"),
        (DelayLevels, "log_truncated", _only_limit, "is delivered 0 times"),
        (Timer, "log_truncated", _nothing, "the timer is at"),
        (Timer, "log_truncated", _only_limit, "is delivered 0 times"),
    ],
)
async def test_without_a_rule_something_is_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    instead: Callable[..., object],
    problem: str,
) -> None:
    monkeypatch.setattr(owner, name, instead)
    for seed in range(60):
        found = await promoted_at_a_cut(tmp_path / str(seed), seed)
        if any(problem in one for one in found):
            return
    pytest.fail(f"no run has shown {problem!r}")
