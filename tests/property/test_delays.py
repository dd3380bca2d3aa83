"""Delay levels and the timer against models, with clocks that are set forward and back.

No message is early, none lost, none delivered twice unless the broker was killed in between.
"""

import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tianzhou.broker.background.sqlite_file import remove
from tianzhou.broker.scheduled import timer_rules
from tianzhou.broker.scheduled.delay_levels import DelayLevels
from tianzhou.broker.scheduled.timer_checkpoint import (
    TimerCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from tianzhou.broker.scheduled.timer_loop import Timer
from tianzhou.broker.storing.redirects import MessageWriter
from tianzhou.errors import FieldError
from tianzhou.names import TIMER_TOPIC
from tianzhou.protocol import properties
from tianzhou.protocol.records.recall import RecallHandle, decode_handle, encode_handle
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import Draft, MessageStore

HOST = ("127.0.0.1", 10911)
LEVELS = "1s 2s 5s 1m"
LEVELS_MS = (1000, 2000, 5000, 60_000)
START_MS = 1_700_000_000_000
SLICES_MAX = 500


class World:
    """A store with a manual clock, which can be reopened."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_ms = START_MS
        self.store = self.open()

    def open(self) -> MessageStore:
        config = StoreConfig(
            store_path_root_dir=self.root, mapped_file_size_commit_log=1 << 16,
            mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=500,
            message_delay_level=LEVELS, disk_max_used_space_ratio=95,
            disk_space_clean_forcibly_ratio=99, disk_space_warning_level_ratio=100,
        )  # fmt: skip
        return MessageStore.open(config, clock=lambda: self.now_ms, background=False)

    def die(self) -> None:
        self.store.abandon()
        self.store = self.open()

    def send(self, writer: MessageWriter, body: bytes, props: dict[str, str]) -> None:
        text = properties.encode(props)
        writer.append(Draft("t", 0, body, text, self.now_ms, HOST, HOST))

    def delivered(self) -> list[tuple[bytes, int]]:
        """Bodies and the times at which they became visible."""
        delivered: list[tuple[bytes, int]] = []
        offset = 0
        while (read := self.store.read("t", 0, offset, 32)).records:
            offset = read.next_offset
            for record in read.records:
                message = decode_record(record)
                delivered.append((message.body, message.store_time_ms))
        return delivered


@contextmanager
def world() -> Generator[World]:
    with tempfile.TemporaryDirectory(prefix="waits-") as folder:
        it = World(Path(folder))
        try:
            yield it
        finally:
            it.store.close()


def check(seen: list[tuple[bytes, int]], due_ms: dict[bytes, int], deaths: int) -> None:
    """Nothing is early, nothing lost, and nothing twice without a kill."""
    for body, at_ms in seen:
        assert at_ms >= due_ms[body], f"{body!r} came {due_ms[body] - at_ms} ms early"
    counts = Counter(body for body, _ in seen)
    assert counts.keys() == due_ms.keys(), f"lost: {due_ms.keys() - counts.keys()}"
    assert max(counts.values(), default=1) <= 1 + deaths


def next_edge(due_ms: dict[bytes, int], now_ms: int, before_ms: int) -> int:
    """The next moment at which something is due, or the one before it."""
    return min((at for at in due_ms.values() if at > now_ms), default=now_ms + 1) + before_ms


class LevelModel:
    """A model of delay levels: each level is a queue, and only its first message is checked."""

    def __init__(self) -> None:
        self.lines: dict[int, list[tuple[bytes, int]]] = {level: [] for level in range(1, 5)}
        """By level: bodies, and the due time of each by the clock at the send."""
        self.places = self.saved = dict.fromkeys(self.lines, 0)
        self.delivered: list[tuple[bytes, int]] = []

    def send(self, body: bytes, level: int, now_ms: int) -> None:
        level = min(level, 4)
        self.lines[level].append((body, now_ms + LEVELS_MS[level - 1]))

    def due_ms(self, level: int, now_ms: int) -> int | None:
        """When the first of a level is due; None if none waits."""
        line, place = self.lines[level], self.places[level]
        if place == len(line):
            return None
        due_ms = line[place][1]
        # Longer than the level allows: the clock was set back, and it is due at once.
        return now_ms if due_ms > now_ms + LEVELS_MS[level - 1] else due_ms

    def turn(self, now_ms: int) -> int | None:
        """Deliver due messages; returns when the next one is due."""
        for level, line in self.lines.items():
            while (due_ms := self.due_ms(level, now_ms)) is not None and due_ms <= now_ms:
                self.delivered.append((line[self.places[level]][0], now_ms))
                self.places = self.places | {level: self.places[level] + 1}
        left = [self.due_ms(level, now_ms) for level in self.lines]
        return min((each for each in left if each is not None), default=None)

    def next_edge(self, now_ms: int, before_ms: int) -> int:
        """The next moment at which something is due, or the one before it."""
        left = [self.due_ms(level, now_ms) for level in self.lines]
        return (
            min((at for at in left if at is not None and at > now_ms), default=now_ms) + before_ms
        )


send_level = st.tuples(st.just("send"), st.integers(1, 5))
advance = st.tuples(st.just("advance"), st.sampled_from((1, 999, 1000, 3000, 20_000)))
turn = st.tuples(st.just("turn"), st.just(0))
save = st.tuples(st.just("save"), st.just(0))
die = st.tuples(st.just("die"), st.just(0))
jump = st.tuples(
    st.just("advance"), st.sampled_from((-1, -500, -1500, -4000, -90_000, 90_000, 10_000_000))
)
"""The clock is set."""
edge = st.tuples(st.just("edge"), st.sampled_from((-1, 0)))
"""To the moment at which the next is due, or to the last before it."""


any_of_levels = st.one_of(send_level, send_level, advance, jump, edge, turn, save, die)


def run_slices(delays: DelayLevels, now_ms: int) -> int | None:
    """Run slices until nothing is due; a slice is limited by time, so one may not be enough."""
    for _ in range(SLICES_MAX):
        next_ms = delays.run_slice(now_ms)
        if next_ms is None or next_ms > now_ms:
            return next_ms
    raise AssertionError("the levels never came to rest")


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.one_of(send_level, send_level, advance, jump, edge, turn, save, die), max_size=40)
)
def test_delay_levels_equal_the_model(plan: list[tuple[str, int]]) -> None:
    with world() as it:
        delays = DelayLevels(it.store, LEVELS_MS)
        writer = MessageWriter(it.store)
        writer.add_redirect(delays.redirect)
        saved, model = delays.as_file(), LevelModel()
        for number, (what, value) in enumerate(plan):
            if what == "send":
                body = b"%d" % number
                it.send(writer, body, {"DELAY": str(value)})
                model.send(body, value, it.now_ms)
            elif what == "advance":
                it.now_ms += value
            elif what in ("edge", "turn"):
                if what == "edge":
                    it.now_ms = model.next_edge(it.now_ms, value)
                # It sleeps at most until the first pending message is due.
                assert run_slices(delays, it.now_ms) == model.turn(it.now_ms)
                assert sorted(it.delivered()) == sorted(model.delivered)
            elif what == "save":
                delays.flushed(dict(delays.offsets), it.now_ms)
                saved, model.saved = delays.as_file(), model.places
            else:
                it.die()
                model.places = model.saved
                delays = DelayLevels(it.store, LEVELS_MS)
                delays.load({"offsetTable": saved["offsetTable"]})
                writer = MessageWriter(it.store)
                writer.add_redirect(delays.redirect)
        it.now_ms = max([it.now_ms, *(at for line in model.lines.values() for _, at in line)])
        assert run_slices(delays, it.now_ms) is model.turn(it.now_ms) is None
        assert sorted(it.delivered()) == sorted(model.delivered)


send_timed = st.tuples(st.just("send"), st.sampled_from((1, 50, 1000, 1500, 30_000, 700_000)))
recall = st.tuples(st.just("recall"), st.integers(0, 20))
far = st.tuples(st.just("advance"), st.just(200_000))
lose = st.tuples(st.just("lose index"), st.just(0))
one = st.one_of(send_timed, send_timed, advance, jump, edge, far, turn, save, die, recall, lose)
not_indexed = [("send", 1), ("advance", 1000), ("save", 0), ("lose index", 0)]
"""The saved progress is after the due time of this message, which was not indexed."""
not_fired = [("send", 1), ("send", 50), ("turn", 0), ("advance", 30), ("save", 0), ("die", 0)]


class TimedWorld:
    """A timer with its writer and its file."""

    def __init__(self, it: World) -> None:
        self.it = it
        self.path = it.root / "timer" / "index.sqlite"
        self.saved: bytes | None = None
        self.begin()

    def begin(self) -> None:
        found = decode_checkpoint(self.saved) if self.saved is not None else None
        # Rolling comes after a minute, so that it happens often here.
        self.timer = Timer(self.it.store, self.path, found, lambda: 60_000)
        self.writer = MessageWriter(self.it.store)
        self.writer.add_redirect(
            lambda draft, found: timer_rules.timed(
                draft, found, self.it.now_ms, enabled=True, max_delay_s=10**6
            )
        )

    def save(self) -> None:
        self.saved = encode_checkpoint(self.timer.progress(self.it.now_ms))

    def die(self) -> None:
        self.timer.index.abandon()
        self.it.die()
        self.begin()

    def lose_index(self) -> None:
        self.timer.index.abandon()
        remove(self.path)
        self.begin()

    def run_until_idle(self) -> None:
        for _ in range(SLICES_MAX):
            next_ms = self.timer.run_slice(self.it.now_ms)
            if next_ms is None or next_ms > self.it.now_ms:
                return
        raise AssertionError("the timer never came to rest")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(one.map(lambda step: [step]), st.just(not_indexed), st.just(not_fired)),
                max_size=30))  # fmt: skip
def test_timer_equals_the_model(pieces: list[list[tuple[str, int]]]) -> None:
    plan = [step for piece in pieces for step in piece]
    with world() as it:
        timed = TimedWorld(it)
        due_ms: dict[bytes, int] = {}
        recalled: set[bytes] = set()
        deaths = 0
        for what, number in plan:
            if what == "send":
                body = b"%d" % len(due_ms)
                key = f"key-{body.decode()}"
                it.send(timed.writer, body, {"TIMER_DELAY_MS": str(number), "UNIQ_KEY": key})
                due_ms[body] = it.now_ms + number
            elif what == "advance":
                it.now_ms += number
            elif what in ("edge", "turn"):
                if what == "edge":
                    it.now_ms = next_edge(due_ms, it.now_ms, number)
                timed.run_until_idle()
                # After any clock change each was delivered at its wall-clock time.
                left = due_ms.keys() - recalled - dict(it.delivered()).keys()
                assert all(due_ms[body] > it.now_ms for body in left)
            elif what == "save":
                timed.save()
            elif what == "recall":
                body = b"%d" % number
                # After the clock is set back, a delivered message seems to be pending.
                if due_ms.get(body, 0) > it.now_ms and body not in dict(it.delivered()):
                    props = {
                        "TIMER_DELIVER_MS": str(due_ms[body]),
                        "TIMER_DEL_UNIQKEY": timer_rules.recall_key("t", f"key-{number}"),
                    }
                    it.send(timed.writer, b"0", props)
                    recalled.add(body)
            elif what == "lose index":
                deaths += 1
                timed.lose_index()
            else:
                deaths += 1
                timed.die()
        it.now_ms = max([it.now_ms, *due_ms.values()]) + 10**7
        timed.run_until_idle()
        seen = it.delivered()
        assert not recalled & {body for body, _ in seen}
        check(seen, {b: at for b, at in due_ms.items() if b not in recalled}, deaths)
        assert timed.timer.index.count() == 0
        timed.timer.close()


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 2**62))
def test_timercheck_round_trip(read_ms: int, queue: int, first: int, changed_ms: int) -> None:
    value = TimerCheckpoint(read_ms, queue, first, changed_ms)
    data = encode_checkpoint(value)
    assert decode_checkpoint(data) == (value, True)
    foreign = bytearray(data)
    foreign[7] ^= 1
    decoded = decode_checkpoint(bytes(foreign))
    assert decoded is not None
    assert decoded[1] is False


def rounded_by_rocketmq(deliver_ms: int, precision_ms: int) -> int:
    """TIMER_OUT_MS as RocketMQ computes it."""
    return (deliver_ms - 1) // precision_ms * precision_ms


@given(
    st.integers(START_MS, START_MS + 10**9),
    st.sampled_from((1, 100, 200, 500, 1000)),
    st.sampled_from(("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC")),
    st.integers(0, 20),
)
def test_timed_messages_of_rocketmq_are_never_early_and_at_most_a_second_late(
    wanted_ms: int, precision_ms: int, asked: str, store_lag_ms: int
) -> None:
    sent_ms = START_MS - 5_000
    if asked == "TIMER_DELAY_SEC":
        wanted_ms = sent_ms + (wanted_ms - sent_ms) // 1000 * 1000
    asks = {
        "TIMER_DELIVER_MS": wanted_ms,
        "TIMER_DELAY_MS": wanted_ms - sent_ms,
        "TIMER_DELAY_SEC": (wanted_ms - sent_ms) // 1000,
    }
    found = {
        asked: str(asks[asked]),
        "TIMER_OUT_MS": str(rounded_by_rocketmq(wanted_ms, precision_ms)),
    }
    due_ms = timer_rules.due_ms(found, sent_ms + store_lag_ms)
    if asked == "TIMER_DELIVER_MS":
        assert due_ms == wanted_ms
    else:
        assert wanted_ms <= due_ms <= wanted_ms + 1000
    rolled = timer_rules.due_ms(found | {"TIMER_ROLL_TIMES": "1"}, sent_ms + 10**8)
    assert wanted_ms <= rolled <= wanted_ms + 1000


@given(st.text(max_size=30), st.binary(max_size=30))
def test_any_recall_handle_is_decoded_or_refused(text: str, raw: bytes) -> None:
    for candidate in (text, raw.decode("latin-1")):
        try:
            decode_handle(candidate)
        except FieldError:
            continue  # Any other exception is the failure.
    handle = RecallHandle("t", "broker-a", 5, "key")
    assert decode_handle(encode_handle(handle)) == handle
    assert TIMER_TOPIC == "rmq_sys_wheel_timer"
