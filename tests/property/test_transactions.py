"""Transactions against a model: sends, ends, checks, clocks that jump, crashes in any order.

The model is a list of halves, open or not, and the expected result of a round of checks for each.
The broker's code runs on a simulated disk with a manual clock.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest
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
from tests.support.store import BORN, HERE, NOON_MS, ROOT

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.broker.transactions import check_loop, rules
from tianzhou.broker.transactions.check_loop import CheckLoop
from tianzhou.broker.transactions.halves import Halves
from tianzhou.broker.transactions.rules import EndedHalves
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.message import StoredMessage
from tianzhou.names import CHECK_MAX_TOPIC, HALF_OP_TOPIC, HALF_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.message_store import Appended, Draft, MessageStore

TOPIC = "Orders"
TIMEOUT_MS = 6_000
CHECK_MAX = 3
RESERVED_HOURS = 1
HOUR_MS = 3_600_000


@pytest.fixture(scope="module", autouse=True)
def clock_reads_take_time() -> Iterator[None]:
    """A slice of a round ends by the clock; here each read of it takes the same time.

    What is stored must depend on nothing but the choices of a run, or it could not be repeated.
    """
    reads = count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_loop, "perf_counter", lambda: next(reads) / 4096)
        yield


def make_settings() -> LiveSettings[BrokerConfig]:
    pairs = {
        "storePathRootDir": ROOT,
        "mappedFileSizeCommitLog": 16_384,
        "mappedFileSizeConsumeQueue": 20 * 7,
        "maxHashSlotNum": 5,
        "maxIndexNum": 12,
        "deleteWhen": "25",
        "transactionTimeOut": TIMEOUT_MS,
        "transactionCheckMax": CHECK_MAX,
        "fileReservedTime": RESERVED_HOURS,
    }
    given = [Given(key, str(value), "test") for key, value in pairs.items()]
    return LiveSettings(load_broker_config(environ={}, flags=given))


class Killed(Exception):
    """The process is killed here."""


class MortalStore(MessageStore):
    """A store whose process may be killed right after one of its appends."""

    appends_left: int | None = None

    def append(self, draft: Draft, found: dict[str, str] | None = None) -> Appended:
        appended = super().append(draft, found)
        if self.appends_left is not None:
            self.appends_left -= 1
            if self.appends_left == 0:
                raise Killed
        return appended


@dataclass(frozen=True)
class Half:
    """A half in the model."""

    name: str
    born_ms: int
    immunity_s: int | None
    check_count: int = 0


class TransactionMachine(RuleBasedStateMachine):
    """The model: open halves by queue offset, and what consumers and producers must have seen."""

    store: MortalStore
    halves: Halves
    checks: CheckLoop

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOON_MS
        self.settings = make_settings()
        self.disk = SimulatedDisk()
        self.saved: dict[str, object] = {}
        self.number = 0
        self.half_count = 0
        self.open: dict[int, Half] = {}
        self.renewed: dict[int, int] = {}
        """New offset of a checked half by its old one; lost at a restart."""
        self.delivered: list[str] = []
        self.given_up: list[str] = []
        self.asked: list[StoredMessage] = []

    @initialize()
    def begin(self) -> None:
        self.start()

    def start(self) -> None:
        self.renewed.clear()
        self.disk.now_ms = self.now_ms
        self.store = MortalStore.open(
            self.settings.config, disk=self.disk, clock=lambda: self.now_ms, background=False
        )
        self.offsets = OffsetTable()
        self.offsets.load(self.saved)
        topics = TopicTable([], lambda: self.now_ms)
        writer = MessageWriter(self.store)
        self.halves = Halves(
            self.settings, self.store, Durability(self.store, self.settings), writer, self.offsets,
            lambda: self.now_ms, lambda: self.now_ms, HERE,
        )  # fmt: skip
        self.checks = CheckLoop(self.halves, topics, self.ask)
        writer.add_redirect(self.halves.redirect)
        self.writer = writer

    def ask(self, half: StoredMessage) -> bool:
        self.asked.append(half)
        return True

    def messages(self, topic: str) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        at = self.store.min_offset(topic, 0)
        while at < self.store.max_offset(topic, 0):
            read = self.store.read(topic, 0, at, 32)
            found += [decode_record(record) for record in read.records]
            at = read.next_offset
        return found

    # -- producers ------------------------------------------------------------------------------

    @rule(
        skew_ms=st.sampled_from([0, 0, 0, -20_000, 5_000, -2 * HOUR_MS]),
        immunity_s=st.sampled_from([None, None, 0, 30, 600]),
    )
    def send(self, skew_ms: int, immunity_s: int | None) -> None:
        self.number += 1
        name = str(self.number)
        named = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": name}
        if immunity_s is not None:
            named[properties.CHECK_IMMUNITY_SECONDS] = str(immunity_s)
        born_ms = self.now_ms + skew_ms
        text = properties.encode(named)
        draft = Draft(TOPIC, 0, name.encode(), text, born_ms, BORN, HERE)
        appended = self.writer.append(draft, named)
        assert appended.queue_offset == self.half_count
        self.add_open(Half(name, born_ms, immunity_s))

    def add_open(self, half: Half) -> None:
        self.open[self.half_count] = half
        self.half_count += 1

    def some_open(self, data: st.DataObject) -> tuple[int, StoredMessage]:
        return self.half_at(data.draw(st.sampled_from(sorted(self.open))))

    def half_at(self, queue_offset: int) -> tuple[int, StoredMessage]:
        half = self.messages(HALF_TOPIC)[queue_offset]
        assert half.queue_offset == queue_offset
        found = self.halves.find(half.log_offset)
        assert found == half
        return queue_offset, half

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.commit_half(*self.some_open(data))

    def commit_half(self, queue_offset: int, half: StoredMessage) -> None:
        assert self.halves.commit(half) is not None
        self.halves.write_ends()
        self.delivered.append(self.open.pop(queue_offset).name)
        assert self.halves.commit(half) is None, "a repeat changes nothing"
        assert not self.halves.roll_back(half)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit_and_be_killed(self, data: st.DataObject) -> None:
        queue_offset, half = self.some_open(data)
        self.store.appends_left = 1
        try:
            self.halves.commit(half)
        except Killed:
            # Delivered without a recorded end: it is committed again.
            self.delivered.append(self.open[queue_offset].name)
        self.kill()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        queue_offset, half = self.some_open(data)
        assert self.halves.roll_back(half)
        self.halves.write_ends()
        del self.open[queue_offset]
        assert self.halves.commit(half) is None, "the first word counts"

    @precondition(lambda self: len(self.open) < self.half_count)
    @rule(data=st.data(), is_commit=st.booleans())
    def end_again(self, data: st.DataObject, is_commit: bool) -> None:
        """A producer sends an offset without an open half: ended, discarded, or checked since."""
        closed = [each for each in range(self.half_count) if each not in self.open]
        queue_offset, half = self.half_at(data.draw(st.sampled_from(closed)))
        newest = queue_offset
        while newest in self.renewed:
            newest = self.renewed[newest]
        ended = self.halves.commit(half) is not None if is_commit else self.halves.roll_back(half)
        self.halves.write_ends()
        assert ended == (newest in self.open)
        if ended:
            name = self.open.pop(newest).name
            self.delivered += [name] if is_commit else []

    # -- time and checks ------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 1_000, 7_000, 40_000, HOUR_MS // 2, -30_000]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule(count_max=st.integers(1, 9))
    def check(self, count_max: int) -> None:
        self.asked.clear()
        self.checks.begin_round()
        while self.checks.step(count_max):
            pass
        names = [
            half.name
            for queue_offset, half in sorted(self.open.items())
            if self.check_result(queue_offset, half, ended=True) == "check"
        ]
        assert [half.body.decode() for half in self.asked] == names
        for half in self.asked:
            again = self.open[half.queue_offset]
            assert (half.body.decode(), rules.check_count(half)) == (
                again.name, again.check_count,
            )  # fmt: skip

    @precondition(lambda self: self.open)
    @rule(appends=st.integers(1, 9))
    def check_and_be_killed(self, appends: int) -> None:
        """One half per slice: each needs an append of its own and one of its end."""
        self.checks.begin_round()
        self.store.appends_left = appends
        left = appends
        try:
            while self.checks.step(1):
                pass
        except Killed:
            pass
        for queue_offset, half in sorted(self.open.items()):
            if left > 0 and self.check_result(queue_offset, half, ended=left > 1) != "wait":
                left -= 2
        self.kill()

    def check_result(self, queue_offset: int, half: Half, *, ended: bool) -> str:
        """The result of a check of an open half; without its end it stays open as well."""
        age_ms = self.now_ms - half.born_ms
        if half.immunity_s is None:
            waits = 0 <= age_ms <= TIMEOUT_MS
        else:
            waits = age_ms <= half.immunity_s * 1000
        if half.check_count >= CHECK_MAX or age_ms > RESERVED_HOURS * HOUR_MS:
            self.given_up.append(half.name)
            verdict = "give up"
        elif waits:
            return "wait"
        else:
            count = half.check_count + 1
            self.renewed[queue_offset] = self.half_count
            self.add_open(Half(half.name, half.born_ms, half.immunity_s, count))
            verdict = "check"
        if ended:
            del self.open[queue_offset]
        return verdict

    # -- disks and crashes ----------------------------------------------------------------------

    @rule(is_flushed=st.booleans())
    def save_progress(self, is_flushed: bool) -> None:
        """The periodic save of the progress; the saved table survives every crash."""
        if is_flushed:
            self.store.flush()
        self.halves.note_progress()
        self.halves.note_progress()
        self.saved = {"offsetTable": {k: dict(v) for k, v in self.offsets.by_key.items()}}

    @rule()
    def kill(self) -> None:
        after = self.disk.after_kill()
        self.store.abandon()
        self.disk = after
        self.start()
        self.read_ends()

    @rule(dice=st.randoms(use_true_random=False))
    def power_cut(self, dice: random.Random) -> None:
        """Unflushed data is lost, so the model is reduced to the rest."""
        after = self.disk.after_power_cut(dice)
        self.store.abandon()
        self.disk = after
        self.start()
        self.read_ends()
        halves = self.messages(HALF_TOPIC)
        self.half_count = len(halves)
        ended = {each for end in self.messages(HALF_OP_TOPIC) for each in rules.ended_by(end)}
        self.open = {
            half.queue_offset: Half(
                half.body.decode(),
                half.born_time_ms,
                _seconds(half),
                rules.check_count(half),
            )
            for half in halves
            if half.queue_offset not in ended
        }
        self.delivered = [message.body.decode() for message in self.messages(TOPIC)]
        self.given_up = [message.body.decode() for message in self.messages(CHECK_MAX_TOPIC)]

    def read_ends(self) -> None:
        self.checks.begin_round()
        self.checks.step(0)

    # -- laws -----------------------------------------------------------------------------------

    @invariant()
    def consumers_see_what_was_committed_and_nothing_else(self) -> None:
        assert [message.body.decode() for message in self.messages(TOPIC)] == self.delivered
        for message in self.messages(TOPIC):
            assert properties.REAL_TOPIC not in message.properties

    @invariant()
    def discarded_halves_are_in_their_topic(self) -> None:
        kept = [message.body.decode() for message in self.messages(CHECK_MAX_TOPIC)]
        assert kept == self.given_up

    @invariant()
    def exactly_the_open_halves_are_open(self) -> None:
        assert self.store.max_offset(HALF_TOPIC, 0) == self.half_count
        ended = self.halves.ended
        assert [each for each in range(self.half_count) if each not in ended] == sorted(self.open)
        assert ended.next_open(0, self.half_count) == min(self.open, default=self.half_count)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def _seconds(half: StoredMessage) -> int | None:
    text = half.properties.get(properties.CHECK_IMMUNITY_SECONDS)
    return None if text is None else int(text)


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def check_laws(machine: TransactionMachine) -> None:
    machine.consumers_see_what_was_committed_and_nothing_else()
    machine.exactly_the_open_halves_are_open()


def test_progress_is_saved_only_after_its_messages_are_on_disk() -> None:
    machine = TransactionMachine()
    machine.start()
    machine.send(0, None)
    machine.save_progress(True)
    machine.commit_half(*machine.half_at(0))
    machine.check(5)
    machine.save_progress(False)
    # Nothing that was not flushed survives this cut.
    for seed in range(5):
        machine.power_cut(random.Random(seed))
        check_laws(machine)
    machine.store.close()


def test_ends_of_halves_behind_an_open_one_are_read_again_after_a_crash() -> None:
    machine = TransactionMachine()
    machine.start()
    for _ in range(40):
        machine.send(0, 600)
    for queue_offset in (*range(10), *range(11, 40, 2)):
        machine.commit_half(*machine.half_at(queue_offset))
    machine.check(5)
    machine.save_progress(True)
    assert machine.offsets.find(rules.GROUP, HALF_TOPIC, 0) == 10
    assert machine.offsets.find(rules.GROUP, HALF_OP_TOPIC, 0) == 10
    machine.kill()
    check_laws(machine)
    machine.store.close()


class SettledMachine(RuleBasedStateMachine):
    """The bits against a set."""

    def __init__(self) -> None:
        super().__init__()
        self.bits = EndedHalves(17)
        self.model = set(range(17))

    @rule(start=st.integers(0, 60_000), count=st.sampled_from([1, 7, 8, 9, 4096, 40_000]))
    def add(self, start: int, count: int) -> None:
        for each in range(start, start + count):
            assert self.bits.add(each) == (each not in self.model)
            self.model.add(each)

    @rule(stop=st.integers(0, 120_000))
    def advance(self, stop: int) -> None:
        first = self.bits.first
        expected = max(self.next_open(first, stop), first)
        assert self.bits.advance(stop) == expected

    @rule(first=st.integers(0, 60_000))
    def drop_before(self, first: int) -> None:
        self.bits.drop_before(first)
        self.model.update(range(first))

    def next_open(self, start: int, stop: int) -> int:
        return next((each for each in range(start, stop) if each not in self.model), stop)

    @invariant()
    def bits_and_set_agree(self) -> None:
        for each in (0, 16, 17, 18, 4_111, 4_112, 60_000, 99_999):
            assert (each in self.bits) == (each in self.model)
        for start in (0, 20, 5_000):
            assert self.bits.next_open(start, 100_000) == self.next_open(start, 100_000)


TestSettled = SettledMachine.TestCase
TestSettled.settings = settings(max_examples=20, stateful_step_count=12, deadline=None)
