"""Delay levels: redirects, due times, deliveries and the file."""

import json
from pathlib import Path

import pytest

from tianzhou.broker.scheduled import delay_levels
from tianzhou.broker.scheduled.delay_levels import DelayLevels, delayed, due_time_ms, level_of
from tianzhou.broker.tables.saver import encode_table, load_table
from tianzhou.errors import BodyError, RecordError, RequestError, StoreError
from tianzhou.names import SCHEDULE_TOPIC
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.records.record import decode_record
from tianzhou.store.config import StoreConfig
from tianzhou.store.message_store import Appended, Draft, MessageStore

HOST = ("127.0.0.1", 10911)
LEVELS_MS = (1000, 5000)


def draft(found: dict[str, str], sys_flag: int = 0) -> Draft:
    return Draft(
        "t", 3, b"body", properties.encode(found), 77, HOST, HOST, flag=5, sys_flag=sys_flag,
        reconsume_count=2,
    )  # fmt: skip


def redirected(found: dict[str, str], sys_flag: int = 0) -> Draft | None:
    return delayed(draft(found, sys_flag), found, len(LEVELS_MS))


def test_a_delayed_message_is_stored_in_the_queue_of_its_level() -> None:
    instead = redirected({"DELAY": "2", "TAGS": "a", "TIMER_DELAY_SEC": "9"})
    assert instead is not None
    assert (instead.topic, instead.queue_id) == (SCHEDULE_TOPIC, 1)
    assert properties.decode(instead.properties_text) == {
        "DELAY": "2", "TAGS": "a", "REAL_TOPIC": "t", "REAL_QID": "3",
    }  # fmt: skip
    assert (instead.body, instead.flag, instead.born_time_ms) == (b"body", 5, 77)


@pytest.mark.parametrize("state", [sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK])
def test_undeliverable_messages_are_not_delayed(state: int) -> None:
    assert redirected({"DELAY": "1"}, sys_flag=state) is None


def test_a_committed_message_is_delayed() -> None:
    assert redirected({"DELAY": "1"}, sys_flag=sysflag.TRANSACTION_COMMIT) is not None


@pytest.mark.parametrize("found", [{}, {"DELAY": "0"}, {"DELAY": "-3"}])
def test_without_a_level_nothing_changes(found: dict[str, str]) -> None:
    assert redirected(found) is None


@pytest.mark.parametrize("text", ["", "soon", "1.5", "٣", "9" * 30, "--1"])
def test_a_level_that_is_no_number_is_rejected(text: str) -> None:
    with pytest.raises(RequestError, match="not a number"):
        level_of({"DELAY": text})


def test_without_levels_delays_are_rejected() -> None:
    with pytest.raises(RequestError, match="messageDelayLevel"):
        delayed(draft({"DELAY": "1"}), {"DELAY": "1"}, 0)


def test_messages_are_due_after_a_clock_was_set_back() -> None:
    assert due_time_ms(6000, now_ms=5500, delay_ms=1000) == 6000
    assert due_time_ms(6500, now_ms=5500, delay_ms=1000) == 6500
    assert due_time_ms(6501, now_ms=5500, delay_ms=1000) == 5500


@pytest.mark.parametrize(
    "found",
    [
        {}, {"REAL_TOPIC": "t"}, {"REAL_TOPIC": "t", "REAL_QID": "x"},
        {"REAL_TOPIC": "t", "REAL_QID": "-1"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
    ],
)  # fmt: skip
def test_a_message_without_a_real_queue_is_invalid(found: dict[str, str]) -> None:
    with pytest.raises(RecordError):
        delay_levels.real_queue(found)


class Refusing(MessageStore):
    """A store that can refuse appends to a topic."""

    refused_topic = ""

    def append(self, draft: Draft, found: dict[str, str] | None = None) -> Appended:
        if draft.topic == self.refused_topic:
            raise StoreError("no room")
        return super().append(draft, found)


@pytest.fixture
def store(tmp_path: Path) -> Refusing:
    config = StoreConfig(
        store_path_root_dir=tmp_path / "store", mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=2000, max_hash_slot_num=50, max_index_num=500,
        message_delay_level="1s 5s", disk_max_used_space_ratio=95,
        disk_space_clean_forcibly_ratio=99, disk_space_warning_level_ratio=100,
    )  # fmt: skip
    return Refusing.open(config, clock=lambda: 10_000, background=False)


def rest(delays: DelayLevels) -> None:
    """Run slices until nothing is left to do."""
    for _ in range(100):
        if delays.run_slice(11_000) is None:
            return
    raise AssertionError("no end")


def bodies(store: MessageStore, topic: str = "t", queue_id: int = 3) -> list[bytes]:
    read = store.read(topic, queue_id, 0, 32)
    return [decode_record(record).body for record in read.records]


def test_a_refused_delivery_is_retried_and_no_message_is_lost(store: Refusing) -> None:
    delays = DelayLevels(store, LEVELS_MS)
    for _ in range(3):
        instead = redirected({"DELAY": "1"})
        assert instead is not None
        store.append(instead)
    store.refused_topic = "t"
    with pytest.raises(StoreError):
        delays.run_slice(11_000)
    assert delays.offsets.get(1, 0) == 0
    store.refused_topic = ""
    rest(delays)
    assert bodies(store) == [b"body"] * 3
    store.close()


def test_a_record_that_cannot_be_delivered_does_not_stop_the_level(
    store: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    delays = DelayLevels(store, LEVELS_MS)
    store.append(
        Draft(SCHEDULE_TOPIC, 0, b"lost its place", "DELAY\x011\x02", 0, HOST, HOST)
    )  # fmt: skip
    instead = redirected({"DELAY": "1"})
    assert instead is not None
    store.append(instead)
    rest(delays)
    assert bodies(store) == [b"body"]
    assert "message 0 cannot be delivered" in caplog.text
    store.close()


def test_a_slice_ends_in_time_and_levels_alternate(store: Refusing) -> None:
    delays = DelayLevels(store, LEVELS_MS)
    for level in ("1", "1", "2", "2"):
        instead = redirected({"DELAY": level})
        assert instead is not None
        store.append(instead)
    assert delays.run_slice(15_000, -1.0) == 15_000
    assert sum(delays.offsets.values()) == 1, "one message is more than the time allows"
    delays.run_slice(15_000, -1.0)
    assert delays.offsets == {1: 1, 2: 1}
    store.close()


def test_messages_of_a_removed_level_are_delivered(store: Refusing) -> None:
    instead = redirected({"DELAY": "2"})
    assert instead is not None
    store.append(instead)
    delays = DelayLevels(store, LEVELS_MS[:1])
    assert delays.run_slice(14_999) == 15_000
    for _ in range(9):
        delays.run_slice(15_000)
    assert bodies(store) == [b"body"]
    store.close()


@pytest.mark.parametrize("at", [-5, 99])
def test_an_offset_outside_its_queue_is_corrected(
    store: Refusing, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    delays = DelayLevels(store, LEVELS_MS)
    instead = redirected({"DELAY": "1"})
    assert instead is not None
    store.append(instead)
    delays.load({"offsetTable": {1: at}})
    rest(delays)
    assert delays.offsets[1] == 1
    assert "continuing within it" in caplog.text
    store.close()


def test_files_of_both_versions_are_read_and_unknown_keys_are_preserved(
    store: Refusing, tmp_path: Path
) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_text('{"offsetTable":{1:5,2:7}}')
    delays = DelayLevels(store, LEVELS_MS)
    load_table(path, delays.load)
    assert delays.offsets == {1: 5, 2: 7}
    path.write_text(
        '{"dataVersion":{"counter":3,"stateVersion":1,"timestamp":9},"offsetTable":{"4":8},"x":1}'
    )
    load_table(path, delays.load)
    delays.offsets[4] = 9
    assert delays.unsaved
    unflushed = json.loads(encode_table(delays.as_file()))
    assert unflushed["offsetTable"] == {"4": 8}, "only what the disk has counts"
    delays.flushed({4: 9}, 1234)
    saved = json.loads(encode_table(delays.as_file()))
    assert saved == {
        "dataVersion": {"counter": 4, "stateVersion": 1, "timestamp": 1234},
        "offsetTable": {"4": 9},
        "x": 1,
    }
    store.close()


def test_a_file_with_other_content_is_rejected(store: Refusing) -> None:
    with pytest.raises(BodyError):
        DelayLevels(store, LEVELS_MS).load({"offsetTable": {"one": "two"}})
    store.close()
