"""The timer: its properties, and failures of index, log and store."""

import base64
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.scheduled.test_delay_levels import Refusing

from tianzhou.broker.scheduled import timer_rules
from tianzhou.broker.scheduled.timer_checkpoint import (
    TimerCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from tianzhou.broker.scheduled.timer_index import TimerIndex
from tianzhou.broker.scheduled.timer_loop import Timer
from tianzhou.broker.scheduled.timer_rules import Recall, Waiting
from tianzhou.broker.scheduled.timer_stats import RateMeter, TimerStats
from tianzhou.errors import RecordError, RequestError, StoreError
from tianzhou.names import TIMER_TOPIC
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.records.recall import RecallHandle, decode_handle, handle_of
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import Draft

HOST = ("127.0.0.1", 10911)
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def draft(found: dict[str, str], sys_flag: int = 0) -> Draft:
    text = properties.encode(found)
    return Draft("t", 0, b"body", text, 77, HOST, HOST, sys_flag=sys_flag)


def redirected(found: dict[str, str], sys_flag: int = 0) -> Draft | None:
    one = draft(found, sys_flag)
    return timer_rules.timed(one, found, NOW_MS, enabled=True, max_delay_s=3600)


# -- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "out_ms"),
    [
        ({"TIMER_DELAY_SEC": "2"}, NOW_MS + 1999),
        ({"TIMER_DELAY_MS": "2"}, NOW_MS + 1),
        ({"TIMER_DELIVER_MS": str(NOW_MS + 5)}, NOW_MS + 4),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "7", "TIMER_DELAY_SEC": "1"}, NOW_MS + 999),
    ],
)
def test_a_timed_message_is_stored_in_the_timer_topic(found: dict[str, str], out_ms: int) -> None:
    instead = redirected(found)
    assert instead is not None
    assert (instead.topic, instead.queue_id) == (TIMER_TOPIC, 0)
    stored = properties.decode(instead.properties_text)
    assert stored["TIMER_OUT_MS"] == found["TIMER_OUT_MS"] == str(out_ms)
    assert (stored["REAL_TOPIC"], stored["REAL_QID"]) == ("t", "0")


@pytest.mark.parametrize(
    "found",
    [
        {}, {"TIMER_DELAY_MS": "0"}, {"TIMER_DELAY_SEC": "-1"},
        {"TIMER_DELIVER_MS": str(NOW_MS)},
        {"TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": "5"},
    ],
)  # fmt: skip
def test_a_message_without_a_delay_is_unchanged(found: dict[str, str]) -> None:
    before = dict(found)
    assert redirected(found) is None
    assert found == before


def test_a_half_message_is_not_timed() -> None:
    assert redirected({"TIMER_DELAY_SEC": "9"}, sysflag.TRANSACTION_PREPARED) is None


@pytest.mark.parametrize("text", ["soon", "1e3", str(2**63), "9" * 40])
def test_a_time_that_is_no_number_is_rejected(text: str) -> None:
    with pytest.raises(RequestError, match="not a number"):
        redirected({"TIMER_DELAY_MS": text})


def test_the_maximum_delay_is_accepted() -> None:
    assert redirected({"TIMER_DELAY_SEC": "3600"}) is not None
    with pytest.raises(RequestError, match="timerMaxDelaySec"):
        redirected({"TIMER_DELAY_MS": "3600001"})


def test_properties_leave_space_for_later_additions() -> None:
    fits = 32_767 - len("a\x01\x02")
    with pytest.raises(RequestError, match="properties"):
        redirected({"a": "x" * (fits - 120), "TIMER_DELAY_SEC": "9"})


def test_a_handle_contains_topic_broker_time_and_key() -> None:
    found = {"TIMER_DELAY_MS": "100", "UNIQ_KEY": "u"}
    assert redirected(found) is not None
    text = handle_of(found, "broker-a")
    assert text is not None
    assert decode_handle(text) == RecallHandle("t", "broker-a", NOW_MS + 100, "u")
    assert base64.urlsafe_b64decode(text) == b"v1 t broker-a 1700000000100 u"


@pytest.mark.parametrize("missing", ["TIMER_OUT_MS", "REAL_TOPIC", "UNIQ_KEY"])
def test_without_a_key_there_is_no_handle(missing: str) -> None:
    found = {"TIMER_OUT_MS": "5", "REAL_TOPIC": "t", "UNIQ_KEY": "u"}
    assert handle_of(found, "b")
    del found[missing]
    assert handle_of(found, "b") is None


def test_a_record_without_a_time_is_not_indexed() -> None:
    with pytest.raises(RecordError):
        timer_rules.due_ms({}, 5)


# -- trouble ---------------------------------------------------------------------------------------


class Bench:
    """A timer on a store, with its own clock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_ms = NOW_MS
        self.path = root / "timer" / "index.sqlite"
        self.store = self.open_store()
        self.timer = self.open()

    def open_store(self) -> Refusing:
        config = StoreConfig(
            store_path_root_dir=self.root / "store", mapped_file_size_commit_log=1 << 16,
            mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=500,
            disk_max_used_space_ratio=95, disk_space_clean_forcibly_ratio=99,
            disk_space_warning_level_ratio=100,
        )  # fmt: skip
        return Refusing.open(config, clock=lambda: self.now_ms, background=False)

    def open(self, check: tuple[TimerCheckpoint, bool] | None = None) -> Timer:
        return Timer(self.store, self.path, check, lambda: DAY_MS)

    def send(self, body: bytes, delay_ms: int) -> None:
        found = {"TIMER_DELAY_MS": str(delay_ms), "UNIQ_KEY": body.decode()}
        one = Draft("t", 0, body, properties.encode(found), 77, HOST, HOST)
        instead = timer_rules.timed(one, found, self.now_ms, enabled=True, max_delay_s=10**6)
        assert instead is not None
        self.store.append(instead)

    def rest(self) -> int | None:
        """Run slices until nothing is left to do; returns when the next is needed."""
        for _ in range(100):
            wanted = self.timer.run_slice(self.now_ms)
            if wanted is None or wanted > self.now_ms:
                return wanted
        raise AssertionError("no end")

    def bodies(self) -> list[bytes]:
        read = self.store.read("t", 0, 0, 32)
        return [decode_record(record).body for record in read.records]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    it = Bench(tmp_path)
    yield it
    it.timer.index.abandon()
    it.store.close()


def test_the_next_slice_is_needed_when_the_first_message_is_due(bench: Bench) -> None:
    bench.send(b"b", 500)
    bench.send(b"a", 300)
    assert bench.rest() == NOW_MS + 300
    bench.now_ms += 300
    assert bench.rest() == NOW_MS + 500
    assert bench.bodies() == [b"a"]


def test_when_the_store_refuses_one_those_before_it_are_not_delivered_again(bench: Bench) -> None:
    for body in (b"a", b"b"):
        bench.send(body, 10)
    bench.now_ms += 10
    refuse_from = 1
    append = Refusing.append

    def sometimes(store: Refusing, draft: Draft) -> object:
        if draft.topic == "t" and len(bench.bodies()) >= refuse_from:
            raise StoreError("no room")
        return append(store, draft)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Refusing, "append", sometimes)
        with pytest.raises(StoreError):
            bench.rest()
    bench.rest()
    assert bench.bodies() == [b"a", b"b"]


def test_when_the_index_cannot_be_written_nothing_is_delivered_again(bench: Bench) -> None:
    bench.send(b"a", 10)
    bench.rest()
    bench.now_ms += 10
    index = bench.timer.index

    def full() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "commit", full)
        for _ in range(3):
            with pytest.raises(StoreError, match="full"):
                bench.timer.run_slice(bench.now_ms)
    bench.rest()
    assert bench.bodies() == [b"a"]
    assert index.count() == index.waiting_count == 0


def test_a_damaged_index_is_rebuilt(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.send(b"a", 10)
    bench.rest()

    def damaged(_: int, __: int) -> list[Waiting]:
        raise sqlite3.DatabaseError("database disk image is malformed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.timer.index, "due", damaged)
        bench.timer.run_slice(bench.now_ms)
    bench.now_ms += 10
    bench.rest()
    assert bench.bodies() == [b"a"]
    assert "malformed" in caplog.text


def test_an_index_newer_than_the_log_is_rebuilt(bench: Bench) -> None:
    """A power cut truncated the log, and with it what had been delivered."""
    bench.send(b"a", 10)
    bench.rest()
    saved = encode_checkpoint(bench.timer.progress(bench.now_ms))
    bench.store.flush()
    end = bench.store.end_log_offset
    bench.now_ms += 10
    bench.rest()
    assert bench.timer.index.count() == 0
    bench.timer.close()
    bench.store.abandon()
    log_file = next((bench.root / "store" / "commitlog").glob("0*"))
    with log_file.open("r+b") as file:
        file.seek(end)
        file.write(bytes((1 << 16) - end))
    bench.store = bench.open_store()
    assert bench.bodies() == []
    bench.timer = bench.open(decode_checkpoint(saved))
    bench.rest()
    assert bench.bodies() == [b"a"]


def test_after_rocketmq_used_the_store_its_progress_counts(bench: Bench) -> None:
    for number, delay_ms in enumerate((10, 20, 90_000)):
        bench.send(b"%d" % number, delay_ms)
    bench.rest()
    bench.timer.close()
    # RocketMQ delivered the first two, and wrote that down.
    bench.now_ms += 60_000
    bench.timer = bench.open((TimerCheckpoint(NOW_MS + 30_000, 3, 3), False))
    bench.rest()
    assert bench.bodies() == []
    bench.now_ms += 60_000
    bench.rest()
    assert bench.bodies() == [b"2"]


def test_invalid_records_of_the_topic_are_left_out(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.store.append(Draft(TIMER_TOPIC, 0, b"?", "a\x01b\x02", 0, HOST, HOST))
    bench.send(b"a", 10)
    bench.now_ms += 10
    bench.rest()
    assert bench.bodies() == [b"a"]
    assert "message 0 cannot be delivered" in caplog.text


def test_only_messages_pending_for_long_are_rolled(bench: Bench) -> None:
    bench.send(b"old", 10 * DAY_MS)
    bench.now_ms += DAY_MS // 2
    bench.send(b"young", 10 * DAY_MS)
    bench.rest()
    bench.now_ms += DAY_MS // 2 + 60_000
    bench.rest()
    assert bench.store.max_offset(TIMER_TOPIC, 0) == 3
    assert [row.queue_offset for row in bench.timer.index.oldest(9)] == [1, 2]
    assert bench.timer.index.first_due_ms() == NOW_MS + 10 * DAY_MS


def test_a_recall_finds_its_message_among_many(tmp_path: Path) -> None:
    index = TimerIndex.open(tmp_path / "i.sqlite")
    index.add(Waiting(1000 + n % 5, n, n * 100, timer_rules.key_hash(f"t+{n}")) for n in range(50))
    assert index.recall(Recall(1003, timer_rules.key_hash("t+33"))) == 1
    assert index.recall(Recall(1003, timer_rules.key_hash("t+33"))) == 0
    assert index.recall(Recall(900_000, timer_rules.key_hash("t+34"))) == 0
    assert index.count() == index.waiting_count == 49
    index.roll_back()
    assert index.count() == index.waiting_count == 0
    index.close()


def test_an_index_of_another_version_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "i.sqlite"
    first = TimerIndex.open(path)
    first.add([Waiting(1, 2, 3, 4)])
    first.close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    again = TimerIndex.open(path)
    assert again.count() == 0
    again.close()


def test_an_index_that_cannot_be_created_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="timer index"):
        TimerIndex.open(tmp_path / "file" / "i.sqlite")


def test_a_short_timercheck_is_ignored() -> None:
    assert decode_checkpoint(b"short") is None
    assert len(encode_checkpoint(TimerCheckpoint())) == 4096


# -- figures ---------------------------------------------------------------------------------------


def test_statistics_of_the_timer(bench: Bench) -> None:
    for number in range(4):
        bench.send(b"%d" % number, 10_000)
    bench.send(b"later", DAY_MS)
    assert bench.timer.stats(bench.now_ms) == TimerStats(offset_behind=5)
    bench.rest()
    figures = bench.timer.stats(bench.now_ms)
    assert figures == TimerStats(waiting_count=5, enqueue_rate=5.0, enqueued_count=5)
    bench.now_ms += 12_000
    behind = bench.timer.stats(bench.now_ms)
    assert (behind.read_behind_ms, behind.waiting_count, behind.due_count) == (2000, 5, 4)
    bench.rest()
    rested = bench.timer.stats(bench.now_ms)
    assert (rested.due_count, rested.dequeued_count) == (0, 4)
    shown = rested.as_runtime_info()
    assert shown == {
        "timerReadBehind": "0", "timerOffsetBehind": "0", "timerCongestNum": "1",
        "timerEnqueueTps": str(round(5 / 12, 2)), "timerDequeueTps": str(round(4 / 12, 2)),
    }  # fmt: skip


def test_the_count_of_pending_messages_survives_a_restart(tmp_path: Path) -> None:
    index = TimerIndex.open(tmp_path / "i.sqlite")
    index.add([Waiting(1, 2, 3, 4), Waiting(1, 2, 3, 4), Waiting(5, 6, 7, 8)])
    assert index.waiting_count == 2
    index.close()
    again = TimerIndex.open(tmp_path / "i.sqlite")
    assert again.waiting_count == 2
    again.remove([Waiting(5, 6, 7, 8), Waiting(9, 9, 9, 9)])
    assert again.count() == again.waiting_count == 1
    again.clear(0)
    assert again.waiting_count == 0
    again.close()


def test_a_rate_covers_the_last_seconds() -> None:
    pace = RateMeter()
    assert pace.rate(0, 0) == 0.0
    for second in range(1, 31):
        pace.sample(second * 1000, second * 7)
    assert pace.rate(30_000, 210) == 7.0
    assert pace.rate(45_000, 210) == 0.0
    assert pace.rate(1000, 220) == 0.0, "the clock was set back"
