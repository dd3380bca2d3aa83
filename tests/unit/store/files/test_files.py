"""Single parts of the store: hashes, index, queue, checkpoint, retention, the real disk."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.simulated_disk import SimulatedDisk
from tests.support.store import ROOT, Ticker, small_config

from tianzhou.errors import ConfigError
from tianzhou.protocol.derived import key_hash
from tianzhou.protocol.properties import java_hash
from tianzhou.store import retention
from tianzhou.store.config import StoreConfig, parse_delay_levels
from tianzhou.store.consume_queue import BLANK_SIZE, ENTRY, ConsumeQueue
from tianzhou.store.files.checkpoint import Checkpoint, Derived, read_checkpoint, write_checkpoint
from tianzhou.store.files.mapped_file import MappedFile, parse_name
from tianzhou.store.files.mapping_limit import MappingLimit
from tianzhou.store.files.real_disk import RealDisk
from tianzhou.store.index import Index

# -- index ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["k", "order-1", "", "x" * 300, "schlüssel", "键", "\U0001f600", "7F0000010A1B18B4AAC2"]
)
@pytest.mark.parametrize("topic", ["T", "TopicTest", "%RETRY%group", "日志"])
def test_the_hash_of_a_key_is_javas_made_positive(topic: str, key: str) -> None:
    number = java_hash(f"{topic}#{key}")
    assert key_hash(topic, key) == (0 if number == -(2**31) else abs(number))


def test_the_smallest_hash_of_java_becomes_zero() -> None:
    # "polygenelubricants" is a known string whose hash is the smallest int; `#` must be in ours.
    found = [text for text in ("polygenelubricants",) if java_hash(text) == -(2**31)]
    assert found
    # Solve topic "" and "#" + key for the same value: h = 35 * 31^n + h(key) mod 2^32.
    wanted = (2**31 - 35 * pow(31, 8, 2**32)) % 2**32
    units: list[int] = []
    rest = wanted + 2**32 * 31
    for exponent in range(7, -1, -1):
        unit = min(rest // 31**exponent, 0xD7FF)
        units.append(unit)
        rest -= unit * 31**exponent
    assert rest == 0
    key = "".join(map(chr, units))
    assert java_hash("#" + key) == -(2**31)
    assert key_hash("", key) == 0


def index(disk: SimulatedDisk) -> Index:
    disk.make_directory(ROOT)
    return Index(disk, small_config(), Ticker())


def put(files: Index, keys: list[str], log_offset: int, time_ms: int) -> None:
    files.ensure_space(len(keys))
    files.put("t", keys, log_offset, time_ms)


def test_an_index_finds_by_hash_and_time_over_several_files() -> None:
    files = index(SimulatedDisk())
    for number in range(50):
        put(files, [f"k{number}", "all"], number * 100, 10_000 * number)
    assert len(files.files) > 2
    assert files.item_count == 100
    for number in range(50):
        assert number * 100 in files.find("t", f"k{number}", 0, 10**9, 50)
    everything = files.find("t", "all", 0, 10**9, 500)
    assert everything == sorted(everything, reverse=True)
    assert set(everything) >= {number * 100 for number in range(50)}
    assert 2000 in files.find("t", "k20", 200_000, 200_000, 50)
    assert 2000 not in files.find("t", "k20", 220_000, 10**9, 50)


def test_a_truncated_index_finds_its_remaining_entries() -> None:
    for cut in range(0, 3100, 100):
        files = index(SimulatedDisk())
        for number in range(30):
            put(files, [f"k{number}"], number * 100, 1000 * number)
        assert files.cut(cut) == cut
        assert files.item_count == cut // 100
        for number in range(30):
            assert (number * 100 in files.find("t", f"k{number}", 0, 10**9, 50)) == (
                number < cut // 100
            )
        for number in range(cut // 100, 30):
            put(files, [f"k{number}"], number * 100, 1000 * number)
        assert all(n * 100 in files.find("t", f"k{n}", 0, 10**9, 50) for n in range(30))


# -- queue ---------------------------------------------------------------------------------------


def queue(disk: SimulatedDisk, limit: int = 16) -> ConsumeQueue:
    return ConsumeQueue(disk, ROOT, "t", 0, 140, MappingLimit(limit))


def fill(one: ConsumeQueue, count: int) -> None:
    for number in range(count):
        one.ensure_space(1)
        one.put(one.next_offset * 10, 10, number)


def flush(one: ConsumeQueue) -> None:
    target = one.save()
    one.sync(target)
    one.flushed(target, one.new_names())


def test_a_queue_with_a_later_first_offset_is_padded_with_blank_entries() -> None:
    disk = SimulatedDisk()
    one = queue(disk)
    one.skip_to(17)
    one.put(500, 10, 3)
    assert (one.min_offset(0), one.next_offset) == (17, 18)
    assert one.entry(16) == (0, BLANK_SIZE, 0)
    assert one.entry(13) is None
    flush(one)
    again = queue(disk)
    again.load([280], 10**9)
    assert (again.min_offset(0), again.next_offset, again.entry(17)) == (17, 18, (500, 10, 3))


def test_the_minimum_offset_follows_the_log_and_skips_gaps() -> None:
    one = queue(SimulatedDisk())
    fill(one, 10)
    one.skip_to(15)
    fill(one, 10)
    for first_log_offset in range(0, 260, 10):
        expected = next(
            (n for n in range(25) if n * 10 >= first_log_offset and not 10 <= n < 15), 25
        )
        assert one.min_offset(first_log_offset) in (expected, 10 if expected == 15 else expected)


def test_the_end_of_a_queue_of_any_length_is_detected() -> None:
    for count in range(30):
        disk = SimulatedDisk()
        one = queue(disk)
        fill(one, count)
        flush(one)
        files = [file.first for file in one.segments.files]
        again = queue(disk)
        again.load(files, 10**9)
        assert again.next_offset == count
        half = queue(disk)
        half.load(files, count * 5)
        assert half.next_offset == (count * 5 + 9) // 10


def test_many_queues_share_few_mappings() -> None:
    disk = SimulatedDisk()
    limit = MappingLimit(16)
    queues = [ConsumeQueue(disk, ROOT, f"t{n}", 0, 140, limit) for n in range(60)]
    for _ in range(3):
        for one in queues:
            fill(one, 5)
            flush(one)
            one.entry(0)
    mapped = sum(file.mapped and not file.staged for one in queues for file in one.segments.files)
    assert mapped <= 17
    for one in queues:
        assert [entry[0] for n in range(15) if (entry := one.entry(n))] == [
            n * 10 for n in range(15)
        ]


def big_queue(disk: SimulatedDisk, limit: MappingLimit | None = None) -> ConsumeQueue:
    return ConsumeQueue(disk, ROOT, "t", 0, 20 * 100_000, limit or MappingLimit(16))


def logged(one: ConsumeQueue) -> list[int]:
    return [entry[0] for n in range(one.next_offset) if (entry := one.entry(n))]


def test_a_new_queue_does_no_disk_access() -> None:
    disk = SimulatedDisk()
    one = big_queue(disk)
    fill(one, 500)
    assert not disk.calls
    assert logged(one) == [n * 10 for n in range(500)]
    flush(one)
    assert (disk.calls["create"], disk.calls["sync"]) == (4, 1)  # Three directories and the file.
    again = big_queue(disk)
    again.load([0], 10**9)
    assert logged(again) == logged(one)


@pytest.mark.parametrize("flushed", [0, 1, 31, 32, 33, 200])
def test_a_queue_moves_from_memory_to_its_file(flushed: int) -> None:
    disk = SimulatedDisk()
    one = big_queue(disk)
    fill(one, flushed)
    if flushed:
        flush(one)
    fill(one, 5000)
    assert logged(one) == [n * 10 for n in range(5000 + flushed)]
    assert not one.segments.files[0].staged
    flush(one)
    again = big_queue(disk)
    again.load([0], 10**9)
    assert logged(again) == logged(one)


def test_bulk_writes_equal_single_writes() -> None:
    for piece in (1, 6, 7, 8, 20):
        bulk, single = queue(SimulatedDisk()), queue(SimulatedDisk())
        for start in range(0, 60, piece):
            count = min(piece, 60 - start)
            bulk.put_many(b"".join(ENTRY.pack((start + n) * 10, 10, n) for n in range(count)))
        fill(single, 60)
        assert logged(bulk) == logged(single)
        assert (bulk.next_offset, bulk.end_log_offset) == (60, single.end_log_offset)


def test_a_concurrent_flush_does_not_restore_a_removed_queue() -> None:
    disk = SimulatedDisk()
    one = big_queue(disk)
    fill(one, 3)
    (file,) = one.segments.files
    one.remove()
    with pytest.raises(FileNotFoundError):
        file.save(0, 60)
    assert not disk.files()


# -- checkpoint ----------------------------------------------------------------------------------


def test_a_checkpoint_round_trips_and_preserves_foreign_bytes(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / "checkpoint"
    path.write_bytes(bytes(24) + b"\0\0\0\0\0\0\0\7" * 2 + bytes(4056))
    written = Checkpoint(5000, 4000, 3000, Derived(11, 22, 33, 44))
    write_checkpoint(disk, path, written)
    assert read_checkpoint(disk, path) == written
    assert written.safe_time_ms == 1000
    assert path.read_bytes()[24:40] == b"\0\0\0\0\0\0\0\7" * 2
    assert len(path.read_bytes()) == 4096


@pytest.mark.parametrize("position", [0, 7, 15, 23, 64, 70, 80, 90, 99, 103])
def test_a_damaged_own_part_of_a_checkpoint_is_ignored_entirely(
    tmp_path: Path, position: int
) -> None:
    disk, path = RealDisk(), tmp_path / "checkpoint"
    write_checkpoint(disk, path, Checkpoint(5000, 4000, 3000, Derived(11, 22, 33, 44)))
    page = bytearray(path.read_bytes())
    page[position] ^= 1
    path.write_bytes(page)
    assert read_checkpoint(disk, path).derived is None


def test_a_missing_or_short_checkpoint_reads_as_empty(tmp_path: Path) -> None:
    disk, path = RealDisk(), tmp_path / "checkpoint"
    assert read_checkpoint(disk, path) == Checkpoint()
    path.write_bytes(b"\1" * 20)
    assert read_checkpoint(disk, path) == Checkpoint()


# -- retention -----------------------------------------------------------------------------------

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("used", "hour", "manual", "expected"),
    [
        (0.5, 3, False, 0),  # neither the hour nor a reason
        (0.5, 4, False, 2),  # the hour: what is old enough
        (0.5, 3, True, 2),
        (0.76, 3, False, 2),
        (0.86, 3, False, 2),  # younger ones are deleted one by one, by the caller
        (0.95, 3, False, 2),
    ],
)
def test_expiry_by_age_hour_and_disk_usage(
    used: float, hour: int, manual: bool, expected: int
) -> None:
    config = StoreConfig()
    now_ms = 1000 * HOUR_MS
    ages = [now_ms - hours * HOUR_MS for hours in (100, 73, 71, 10, 0)]
    verdict = retention.judge(config, used, hour, manual=manual)
    assert retention.expired_count(ages, now_ms, config, verdict) == expected
    assert verdict.refuse_writes == (used > 0.9)
    assert verdict.delete_young == (used > 0.85)


def test_the_newest_file_never_expires_and_ten_at_most_at_once() -> None:
    assert [retention.removable_count(count) for count in (0, 1, 2, 11, 12, 500)] == [
        0,
        0,
        1,
        10,
        10,
        10,
    ]


def test_hours_and_delays_are_parsed_in_rocketmqs_format() -> None:
    assert retention.delete_hours("04;16") == {4, 16}
    assert retention.delete_hours("") == set()
    assert parse_delay_levels("1s 5m 2h 1d") == (1000, 300_000, 7_200_000, 86_400_000)
    with pytest.raises(ConfigError, match="not a list of delays"):
        parse_delay_levels("1s 5x")


# -- disk ----------------------------------------------------------------------------------------


def test_a_file_has_its_full_size_when_it_appears(tmp_path: Path) -> None:
    file = MappedFile(RealDisk(), tmp_path, 4096, 8192)
    file.create()
    assert (tmp_path / f"{4096:020d}").stat().st_size == 8192
    assert not file.has_data(0)
    file.view()[100:103] = b"abc"
    assert file.has_data(0)
    assert file.has_data(102)
    assert not file.has_data(103)
    file.cut(101)
    assert bytes(file.view()[99:105]) == b"\0a\0\0\0\0"
    assert parse_name(file.path.name) == 4096
    assert parse_name("4096") is None


def test_a_failed_file_creation_leaves_no_file(disk_that_fails: SimulatedDisk) -> None:
    file = MappedFile(disk_that_fails, ROOT, 0, 8192)
    with pytest.raises(OSError, match="No space"):
        file.create()
    assert disk_that_fails.files() == []
    file.create()
    assert disk_that_fails.files() == [file.path]


@pytest.fixture
def disk_that_fails() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory(ROOT)
    disk.fail("sync", errno.ENOSPC)
    return disk


def test_the_real_disk_implements_the_interface(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.make_directory(tmp_path / "a" / "b")
    assert disk.is_directory(tmp_path / "a" / "b")
    handle = disk.open(tmp_path / "a" / "x", create=True)
    handle.write(10, b"hello")
    assert handle.size_bytes() == 15
    assert handle.read(8, 100) == b"\0\0hello"
    handle.resize(12)
    assert handle.read(0, 100)[10:] == b"he"
    handle.sync()
    handle.close()
    handle.close()
    assert disk.names(tmp_path / "a") == ["b", "x"]
    assert disk.names(tmp_path / "nowhere") == []
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "y")
    disk.sync_directory(tmp_path / "a")
    assert disk.size_bytes(tmp_path / "a" / "y") == 12
    assert disk.modified_ms(tmp_path / "a" / "y") > 0
    assert 0 < disk.used_ratio(tmp_path) < 1
    disk.remove(tmp_path / "a" / "y")
    disk.remove_directory(tmp_path / "a" / "b")
    assert not disk.exists(tmp_path / "a" / "y")
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "a" / "y")


def test_prefaulting_does_not_change_the_content(tmp_path: Path) -> None:
    file = MappedFile(RealDisk(), tmp_path, 0, 1 << 20)
    file.create()
    file.view()[5000:5003] = b"abc"
    RealDisk().prefault(file.view(), 100, 1 << 20)
    RealDisk().prefault(file.view(), 1 << 20, 1 << 21)
    content = (tmp_path / f"{0:020d}").read_bytes()
    assert content[5000:5003] == b"abc"
    assert content.count(0) == (1 << 20) - 3


def test_a_lock_excludes_other_processes_and_this_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = RealDisk().lock(path)
    assert mine is not None
    assert RealDisk().lock(path) is None
    asking = (
        "import sys, pathlib; from tianzhou.store.files.real_disk import RealDisk; "
        "sys.exit(RealDisk().lock(pathlib.Path(sys.argv[1])) is not None)"
    )
    command = [sys.executable, "-c", asking, str(path)]
    # The second attempt in this process must not have released the lock.
    assert subprocess.run(command, check=False).returncode == 0
    mine.close()
    assert subprocess.run(command, check=False).returncode == 1
    again = RealDisk().lock(path)
    assert again is not None
    again.close()


def test_nothing_is_read_ahead_where_the_log_is_about_to_be_written(tmp_path: Path) -> None:
    """What a reader of the last record reads ahead there is zeros, megabytes of them."""
    file_bytes, reserved = 1 << 20, 1 << 18
    file = MappedFile(RealDisk(), tmp_path, 0, file_bytes)
    file.create()
    file.ensure_space(0, 100, more=reserved - 4096)
    view = file.view()
    view[:100] = b"x" * 100
    assert random_ranges(file.path) == []
    file.expect_writes(100)
    assert random_ranges(file.path) == [(4096, reserved)]
    file.unmap()
    del view
    kept = file.view()
    assert random_ranges(file.path) == [(4096, reserved)], "also if it is mapped again"
    file.expect_writes(reserved // 2)
    assert random_ranges(file.path) == [(reserved // 2, reserved)]
    file.set_read_ahead(enabled=False)
    assert random_ranges(file.path) == [(0, file_bytes)]
    file.set_read_ahead(enabled=True)
    assert random_ranges(file.path) == [(reserved // 2, reserved)]
    file.expect_writes(file_bytes)
    assert random_ranges(file.path) == []
    assert kept[0] == ord("x")


def random_ranges(path: Path) -> list[tuple[int, int]]:
    """The ranges of a mapped file with the advice for random reads ("rr")."""
    found = list[tuple[int, int]]()
    start = stop = 0
    is_file = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split(" ", 1)[0]
        if "-" in name:
            low, high = (int(each, 16) for each in name.split("-"))
            start = int(line.split()[2], 16)
            stop, is_file = start + high - low, line.endswith(str(path))
        elif is_file and name == "VmFlags:" and "rr" in line.split():
            found.append((start, stop))
    return found
