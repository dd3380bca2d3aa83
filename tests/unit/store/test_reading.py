"""Records found at start-up are checked when they are read, many of them at once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tianzhou.protocol import kernel
from tianzhou.protocol.records.record import decode_record
from tianzhou.store import reading
from tianzhou.store.config import ENTRY_BYTES, StoreConfig
from tianzhou.store.message_store import Draft, MessageStore

HOST = ("127.0.0.1", 10911)
TOPIC, COUNT = "orders", 60
LOG_FILE_BYTES = 8 * 1024


def config(root: Path) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=LOG_FILE_BYTES,
        mapped_file_size_consume_queue=ENTRY_BYTES * 100,
        max_message_size=4096,
        max_transfer_count_on_message_in_memory=COUNT,
        max_transfer_bytes_on_message_in_memory=1024 * 1024,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cleanly closed store: two queues with records in several files."""
    with MessageStore.open(config(tmp_path)) as store:
        for number in range(COUNT):
            for queue_id in (0, 1):
                body = b"%d of %d " % (number, queue_id) * 30
                store.append(Draft(TOPIC, queue_id, body, "", 0, HOST, HOST))
    assert len(list((tmp_path / "commitlog").iterdir())) > 3
    return tmp_path


@pytest.fixture
def store(root: Path) -> Iterator[MessageStore]:
    with MessageStore.open(config(root)) as opened:
        assert opened.checked_from == opened.end_log_offset
        yield opened


def offsets_read(store: MessageStore) -> list[int]:
    found: list[int] = []
    at = 0
    while at < COUNT:
        read = store.read(TOPIC, 0, at, COUNT)
        for record in read.records:
            message = decode_record(record)
            assert (message.topic, message.queue_id) == (TOPIC, 0)
            found.append(message.queue_offset)
        assert read.next_offset > at
        at = read.next_offset
    return found


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def entry_of(root: Path, queue_offset: int) -> bytes:
    path = root / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    return path.read_bytes()[queue_offset * ENTRY_BYTES :][:ENTRY_BYTES]


def test_intact_records_are_not_checked_one_by_one(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    is_sound = reading.StoreReader._is_sound  # pyright: ignore[reportPrivateUsage] - counted, not changed

    def counted(self: reading.StoreReader, *position: object) -> bool:
        looked.append(1)
        return is_sound(self, *position)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - as it came

    monkeypatch.setattr(reading.StoreReader, "_is_sound", counted)
    assert offsets_read(store) == list(range(COUNT))
    assert len(looked) == (0 if kernel.WHY_PURE is None else COUNT)


@pytest.mark.parametrize("damaged", [0, 31, COUNT - 1])
def test_only_the_damaged_message_is_left_out(
    root: Path, damaged: int, caplog: pytest.LogCaptureFixture
) -> None:
    log_offset = int.from_bytes(entry_of(root, damaged)[:8], "big")
    file = root / "commitlog" / f"{log_offset // LOG_FILE_BYTES * LOG_FILE_BYTES:020d}"
    change(file, log_offset % LOG_FILE_BYTES + 100, b"\xff")
    with MessageStore.open(config(root)) as store:
        assert offsets_read(store) == [n for n in range(COUNT) if n != damaged]
    assert f"queue {TOPIC}/0: message {damaged} is damaged and left out" in caplog.text


def test_an_entry_of_another_record_is_left_out(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = root / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    change(path, 17 * ENTRY_BYTES, entry_of(root, 18))
    with MessageStore.open(config(root)) as store:
        assert offsets_read(store) == [n for n in range(COUNT) if n != 17]
    assert "message 17 is damaged and left out: its entry leads to another record" in caplog.text
