"""Damaged, empty and missing files: the store opens and logs what it did, or refuses with a reason.

No message is served that was not sent, and none with a wrong body.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import (
    ROOT,
    Ledger,
    Ticker,
    draft,
    open_store,
    queues_of,
    read_queue,
    small_config,
)
from tianzhou.errors import StoreCorrupt
from tianzhou.store.message_store import MessageStore

CONFIG = small_config(log_file_bytes=4096)
CLOCK = Ticker(step_ms=0)
TAIL_BYTES = 350
MESSAGES = 30


def made(*, clean: bool) -> tuple[SimulatedDisk, Ledger, int]:
    """A disk with a store, its messages, and the end of its log."""
    disk, ledger = SimulatedDisk(), Ledger()
    store = open_store(CONFIG, disk, CLOCK)
    for number in range(MESSAGES):
        if number == MESSAGES // 2:
            store.flush()
        one = draft("ab"[number % 2], number % 3, b"%d," % number * 75, key=f"k{number}", tags="t")
        ledger.gave(one, store.append(one))
    end = store.end_log_offset
    if clean:
        store.close()
        return disk, ledger, end
    after = disk.after_kill()
    store.abandon()
    return after, ledger, end


def served(store: MessageStore, ledger: Ledger) -> int:
    """The number of messages that the store serves; fails if one differs from what was sent."""
    count = 0
    for topic, queue_id in queues_of(store):
        for queue_offset, (body, _) in read_queue(store, topic, queue_id).items():
            # No checksum covers topic and number of a record, so damage may move a message.
            assert body in ledger.bodies
            assert ledger.given.get((topic, queue_id, queue_offset), body) == body
            count += 1
    for number in range(MESSAGES):
        assert len(store.query("ab"[number % 2], f"k{number}", 0, 2**62, 9)) <= 1
    return count


def open_again(disk: SimulatedDisk, ledger: Ledger) -> int:
    """Opens, reads, appends, closes, rebuilds; the number of messages served after the rebuild."""
    with open_store(CONFIG, disk, CLOCK) as store:
        first = served(store, ledger)
        for topic in "ab":
            one = draft(topic, 0, b"after the damage")
            done = store.append(one)
            ledger.gave(one, done)
            assert read_queue(store, topic, 0)[done.queue_offset][0] == one.body
        assert served(store, ledger) == first + 2
    with MessageStore.open(CONFIG, disk=disk, clock=CLOCK, background=False, rebuild=True) as store:
        again = served(store, ledger)
        assert again >= first + 2
    return again - 2


LAST_LOG = ROOT / "commitlog" / "00000000000000008192"


@pytest.mark.parametrize(("clean", "flip"), [(True, 0xFF), (False, 0x01)])
def test_flipped_byte_in_the_tail_loses_at_most_what_follows(clean: bool, flip: int) -> None:
    base, ledger, end = made(clean=clean)
    assert max(path for path in base.files() if "commitlog" in str(path)) == LAST_LOG
    counts: set[int] = set()
    for position in range(end - 8192 - TAIL_BYTES, end - 8192 + 16):
        disk, its = base.after_kill(), ledger.copy()
        content = bytearray(disk.file_bytes(LAST_LOG))
        content[position] ^= flip
        disk.damage(LAST_LOG, bytes(content))
        counts.add(open_again(disk, its))
    # A clean store loses the damaged message, an unclean one perhaps what follows.
    assert max(counts) == MESSAGES
    assert min(counts) >= MESSAGES - 3


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
def test_log_truncated_at_each_byte_of_the_tail_is_recovered(clean: bool) -> None:
    base, ledger, end = made(clean=clean)
    content = base.file_bytes(LAST_LOG)
    last_body = content.index(b"29,", end - 8192 - TAIL_BYTES)
    body_end = content.rindex(b"29,") + 3
    for position in range(end - 8192 - TAIL_BYTES, end - 8192 + 16):
        disk, its = base.after_kill(), ledger.copy()
        disk.damage(LAST_LOG, content[:position])
        # Properties have no checksum: a message that lost the last ones still counts.
        least = MESSAGES if position >= body_end + 2 else MESSAGES - 2
        most = MESSAGES if position > last_body else MESSAGES - 1
        assert least - 1 <= open_again(disk, its) <= most


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "removed": lambda content: None,
    "emptied": lambda content: b"",
    "halved": lambda content: content[: len(content) // 2],
    "zeroed": lambda content: bytes(len(content)),
    "grown": lambda content: content + b"\1" * 100,
    "noise": lambda content: bytes(i * 37 % 251 for i in range(len(content))),
    "first bytes flipped": lambda content: bytes(b ^ 0xFF for b in content[:16]) + content[16:],
}


def derived_files(disk: SimulatedDisk) -> list[Path]:
    return [path for path in disk.files() if path.parent.name != "commitlog"]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_damage_to_derived_files_loses_no_message(damage: str, clean: bool) -> None:
    base, ledger, _ = made(clean=clean)
    for path in derived_files(base):
        disk, its = base.after_kill(), ledger.copy()
        disk.damage(path, DAMAGES[damage](disk.file_bytes(path)))
        assert open_again(disk, its) == MESSAGES, path


@pytest.mark.parametrize("damage", ["removed", "emptied", "halved", "zeroed", "grown"])
def test_missing_queue_entries_are_detected_at_the_start(damage: str) -> None:
    """Lost queue entries must be detected at the start, or offsets would be assigned twice."""
    base, ledger, _ = made(clean=True)
    for path in derived_files(base):
        if "consumequeue" not in str(path):
            continue
        disk = base.after_kill()
        disk.damage(path, DAMAGES[damage](disk.file_bytes(path)))
        with open_store(CONFIG, disk, CLOCK) as store:
            assert served(store, ledger) == MESSAGES, path
            assert any("made again" in note for note in store.report.notes)


@pytest.mark.parametrize("kind", ["consumequeue", "index"])
def test_derived_directories_can_be_rebuilt(kind: str) -> None:
    for clean in (True, False):
        disk, ledger, _ = made(clean=clean)
        for path in disk.files():
            if kind in str(path):
                disk.damage(path, None)
        with open_store(CONFIG, disk, CLOCK) as store:
            assert served(store, ledger) == MESSAGES
            assert all(
                len(store.query("ab"[n % 2], f"k{n}", 0, 2**62, 9)) == 1 for n in range(MESSAGES)
            )
            assert any("made again" in note for note in store.report.notes)


def test_missing_log_file_is_refused_with_the_remedy() -> None:
    disk, _, _ = made(clean=True)
    disk.damage(ROOT / "commitlog" / "00000000000000004096", None)
    before = {path: disk.file_bytes(path) for path in disk.files()}
    with pytest.raises(StoreCorrupt, match=r"00000000000000004096 is missing.*restore it"):
        open_store(CONFIG, disk, CLOCK)
    assert {path: disk.file_bytes(path) for path in disk.files()} == before


@pytest.mark.parametrize("damage", ["emptied", "halved", "grown"])
def test_a_log_file_of_the_wrong_size_is_refused(damage: str) -> None:
    disk, _, _ = made(clean=True)
    path = ROOT / "commitlog" / "00000000000000000000"
    disk.damage(path, DAMAGES[damage](disk.file_bytes(path)))
    with pytest.raises(StoreCorrupt, match="restore it from a copy"):
        open_store(CONFIG, disk, CLOCK)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", ["removed", "emptied", "zeroed", "noise"])
def test_missing_last_log_file_loses_only_its_messages(damage: str, clean: bool) -> None:
    disk, ledger, _ = made(clean=clean)
    disk.damage(LAST_LOG, DAMAGES[damage](disk.file_bytes(LAST_LOG)))
    count = open_again(disk, ledger)
    assert MESSAGES * 2 // 3 - 2 <= count < MESSAGES


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", ["zeroed", "noise", "first bytes flipped"])
def test_damage_in_an_older_log_file_loses_only_the_damaged_messages(
    damage: str, clean: bool
) -> None:
    disk, ledger, _ = made(clean=clean)
    path = ROOT / "commitlog" / "00000000000000000000"
    content = disk.file_bytes(path)
    harm = DAMAGES[damage](content[1000:1400])
    assert harm is not None
    disk.damage(path, content[:1000] + harm + content[1400:])
    assert MESSAGES - 4 <= open_again(disk, ledger) < MESSAGES


def test_missing_first_log_file_is_accepted() -> None:
    disk, ledger, _ = made(clean=True)
    disk.damage(ROOT / "commitlog" / "00000000000000000000", None)
    with open_store(CONFIG, disk, CLOCK) as store:
        assert 0 < served(store, ledger) < MESSAGES
        assert store.min_offset("a", 0) > 0


def test_store_without_log_files_opens_empty() -> None:
    disk, _, _ = made(clean=True)
    for path in disk.files():
        if "commitlog" in str(path):
            disk.damage(path, None)
    with open_store(CONFIG, disk, CLOCK) as store:
        assert any("no log files" in note for note in store.report.notes)
        assert queues_of(store) == []
        assert store.append(draft("a", 0, b"x")).log_offset == 0


def test_truncated_records_do_not_reappear() -> None:
    """Intact records behind the cut would be read again after an append of the right size."""
    disk, _, end = made(clean=False)
    content = bytearray(disk.file_bytes(LAST_LOG))
    position = int.from_bytes(content[:4], "big")
    size = int.from_bytes(content[position : position + 4], "big")
    assert end > 8192 + position + 2 * size
    content[position + size // 2] ^= 0xFF
    disk.damage(LAST_LOG, bytes(content))
    store = open_store(CONFIG, disk, CLOCK)
    assert store.end_log_offset == 8192 + position
    bare_bytes = 91 + len("a")
    done = store.append(draft("a", 0, bytes(size - bare_bytes)))
    assert done.end_log_offset == 8192 + position + size
    after = disk.after_kill()
    store.abandon()
    with open_store(CONFIG, after, CLOCK) as store:
        assert store.end_log_offset == 8192 + position + size
