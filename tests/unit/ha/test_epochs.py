"""Epochs: equal parts of two logs, new entries, the text form, and RocketMQ's file."""

from pathlib import Path

import pytest

from tianzhou.errors import ReplicationError, StoreCorrupt, StoreFull
from tianzhou.ha import epochs
from tianzhou.ha.epochs import (
    Epoch,
    EpochFile,
    Epochs,
    Prefix,
    appended,
    common_prefix,
    consistent_point,
    files_with,
    of_copy,
    of_new_master,
    of_started_master,
    range_at,
    within_log,
)

ONE = (Epoch(1, 0),)
TWO = (Epoch(1, 0), Epoch(2, 500))
STORE, OTHER = f"{1:08x}" + "0" * 24, f"{2:08x}" + "0" * 24


@pytest.mark.parametrize(
    ("own", "own_end", "theirs", "their_end", "point"),
    [
        pytest.param((), 0, ONE, 900, 0, id="a new slave"),
        pytest.param(ONE, 300, ONE, 900, 300, id="behind"),
        pytest.param(ONE, 900, ONE, 300, 300, id="ahead"),
        pytest.param(ONE, 500, TWO, 900, 500, id="up to the start of the new epoch"),
        pytest.param(ONE, 700, TWO, 900, 500, id="an old master with messages of its own"),
        pytest.param(TWO, 700, TWO, 900, 700, id="in the new epoch"),
        pytest.param(TWO, 700, ONE, 900, 500, id="the master missed an epoch"),
        pytest.param(TWO, 500, ONE, 900, 500, id="nothing was written in the missed epoch"),
        pytest.param(TWO, 300, TWO, 900, 300, id="its tail was lost"),
        pytest.param(
            (*ONE, Epoch(2, 600)), 900, (*ONE, Epoch(2, 500)), 900, 500, id="one number, two starts"
        ),
        pytest.param((Epoch(2, 0),), 50, ONE, 900, 0, id="only the implied entry in common"),
        pytest.param((), 700, (Epoch(1, 700),), 900, 700, id="both without epochs before"),
        pytest.param((), 700, ONE, 900, 0, id="one without epochs"),
    ],
)
def test_consistent_point(
    own: Epochs, own_end: int, theirs: Epochs, their_end: int, point: int
) -> None:
    assert consistent_point(own, own_end, theirs, their_end) == point
    assert consistent_point(theirs, their_end, own, own_end) == point


@pytest.mark.parametrize(
    ("own", "own_end", "theirs", "their_end", "prefix"),
    [
        pytest.param((), 0, ONE, 900, Prefix(0, 0), id="a new slave"),
        pytest.param(ONE, 700, TWO, 900, Prefix(500, 1), id="cut at the start of their epoch"),
        pytest.param(TWO, 700, ONE, 900, Prefix(500, 1), id="an own epoch that they lack"),
        pytest.param(TWO, 700, TWO, 600, Prefix(600, 2), id="in the common epoch"),
        pytest.param(
            (Epoch(2, 0),), 900, (Epoch(3, 0),), 900, Prefix(0, 0), id="only the implied entry"
        ),
    ],
)
def test_which_entries_the_common_prefix_has(
    own: Epochs, own_end: int, theirs: Epochs, their_end: int, prefix: Prefix
) -> None:
    """An entry at the cut itself may be one that the other log lacks: the number decides."""
    assert common_prefix(own, own_end, theirs, their_end) == prefix


@pytest.mark.parametrize("epochs", [(), ONE, TWO])
def test_files_with_other_entries_are_read_again(tmp_path: Path, epochs: Epochs) -> None:
    file = EpochFile(tmp_path)
    file.save((Epoch(7, 0),))
    file.save((Epoch(8, 0), Epoch(9, 400)))
    for name, content in files_with(epochs).items():
        if content is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_text(content)
    file.reload()
    assert file.epochs == EpochFile(tmp_path).epochs == epochs
    # Nothing of the old entries is left, in the backup neither.
    if epochs:
        (tmp_path / "epochFileCheckpoint").unlink()
    assert EpochFile(tmp_path).epochs == epochs


def test_a_new_epoch_replaces_one_without_bytes() -> None:
    # RocketMQ drops the new entry, and two histories carry one number.
    assert appended(TWO, 3, 500) == (Epoch(1, 0), Epoch(3, 500))
    assert appended(TWO, 3, 800) == (*TWO, Epoch(3, 800))
    assert appended((), 4, 0) == (Epoch(4, 0),)


@pytest.mark.parametrize(("number", "start"), [(2, 900), (1, 900), (3, 499), (0, 900)])
def test_an_epoch_that_is_not_behind_the_last_one_is_refused(number: int, start: int) -> None:
    with pytest.raises(ReplicationError, match="cannot follow"):
        appended(TWO, number, start)


def test_a_new_master_has_a_number_above_all_that_are_known() -> None:
    assert of_new_master((), 700, STORE) == (Epoch(1, 700),)
    assert of_new_master(ONE, 800, OTHER) == (*ONE, Epoch(2, 800))
    assert of_new_master(ONE, 800, STORE) == (*ONE, Epoch(4097, 800))
    assert of_new_master(ONE, 800, OTHER, above=2) == (*ONE, Epoch(4098, 800))
    assert of_new_master(ONE, 800, OTHER, above=4097) == (*ONE, Epoch(4098, 800))
    assert of_new_master(TWO, 400, OTHER) == (*ONE, Epoch(4098, 400)), "2 is not used again"


def test_masters_of_two_stores_never_choose_one_number() -> None:
    first, second = of_new_master(ONE, 800, STORE), of_new_master(ONE, 800, OTHER)
    assert consistent_point(first, 900, second, 900) == 800
    # A master whose disk was replaced, and its slave.
    assert consistent_point(ONE, 900, of_new_master((), 0, OTHER), 5000) == 0


def test_a_master_that_lost_its_tail_begins_an_epoch() -> None:
    """Else a slave would be taken for a copy as soon as the master's log is longer again."""
    assert of_started_master(ONE, 800, STORE, is_clean=True) == ONE
    again = of_started_master(ONE, 800, OTHER, is_clean=False)
    assert again == (*ONE, Epoch(2, 800))
    assert consistent_point(ONE, 1000, again, 1200) == 800
    assert of_started_master((), 0, STORE, is_clean=True) == ONE
    assert of_started_master(TWO, 400, STORE, is_clean=True) == (*ONE, Epoch(4097, 400))


def test_a_former_slave_that_is_started_as_the_master_begins_an_epoch() -> None:
    """Else it would write in the epoch of its master, which may have other bytes there."""
    assert of_started_master(ONE, 800, OTHER, is_clean=True) == (*ONE, Epoch(2, 800))
    own = of_new_master(ONE, 800, OTHER)
    assert of_started_master(own, 900, OTHER, is_clean=True) == own


def test_entries_behind_the_end_are_dropped() -> None:
    assert within_log(TWO, 499) == ONE
    assert within_log(TWO, 500) == TWO


def test_a_copy_has_the_entries_of_its_master() -> None:
    theirs = (*TWO, Epoch(4, 800))
    assert of_copy(ONE, 400, theirs) == ONE
    assert of_copy(ONE, 700, theirs) == TWO
    assert of_copy(TWO, 500, (Epoch(1, 0), Epoch(3, 500))) == ONE, "nothing was written in epoch 2"
    assert of_copy(TWO, 900, theirs[1:]) == theirs, "the master lists its newest entries only"
    assert of_copy((), 400, ()) == ()


def test_the_epoch_of_a_log_offset() -> None:
    assert range_at(TWO, 499) == (Epoch(1, 0), 500)
    assert range_at(TWO, 500) == (Epoch(2, 500), None)
    assert range_at((Epoch(1, 700),), 5) == (Epoch(0, 0), 700)
    assert range_at((), 5) == (Epoch(0, 0), None)


def test_text_lists_the_newest_entries() -> None:
    assert (epochs.text(TWO), epochs.parse("1-0,2-500")) == ("1-0,2-500", TWO)
    assert (epochs.text(()), epochs.parse("")) == ("", ())
    many = tuple(Epoch(number, number * 10) for number in range(1, 1500))
    assert epochs.parse(epochs.text(many)) == many[-1000:]


@pytest.mark.parametrize(
    "listed",
    ["1", "1-", "a-0", "1-0,", "1-0,1-5", "2-0,1-5", "1-0,2-0", "1-5,2-4", "-1-0", "1-0;2-5",
     "0-5", "2147483648-0", "1-9223372036854775808", "\uff11-0"],
)  # fmt: skip
def test_text_that_is_no_list_of_epochs_is_refused(listed: str) -> None:
    with pytest.raises(ReplicationError):
        epochs.parse(listed)


# -- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "entries"),
    [
        (b"1\n1725254278\n1-0\n", ONE),
        (b"2\n1760363011\n1-0\n2-21950\n", (Epoch(1, 0), Epoch(2, 21950))),
    ],
)
def test_the_file_has_apaches_format(tmp_path: Path, content: bytes, entries: Epochs) -> None:
    """The contents are those of files of RocketMQ 5.5.0."""
    (tmp_path / "epochFileCheckpoint").write_bytes(content)
    assert EpochFile(tmp_path).epochs == entries
    assert epochs.encode(entries) == content


def test_a_checksum_of_zero_is_not_checked() -> None:
    assert epochs.decode(b"1\n0\n7-12\n") == (Epoch(7, 12),)


def test_the_entry_before_a_change_is_in_the_backup(tmp_path: Path) -> None:
    file = EpochFile(tmp_path)
    assert file.epochs == ()
    file.save(ONE)
    file.save(TWO)
    assert (tmp_path / "epochFileCheckpoint").read_bytes() == epochs.encode(TWO)
    assert (tmp_path / "epochFileCheckpoint.bak").read_bytes() == epochs.encode(ONE)
    assert EpochFile(tmp_path).epochs == TWO


@pytest.mark.parametrize("damage", [None, b"", b"2\n1\n1-0\n2-500\n", b"\xff\xfe", b"0\n0\n"])
def test_the_backup_is_read_if_the_file_is_missing_empty_or_damaged(
    tmp_path: Path, damage: bytes | None
) -> None:
    file = EpochFile(tmp_path)
    file.save(ONE)
    file.save(TWO)
    if damage is None:
        file.path.unlink()
    else:
        file.path.write_bytes(damage)
    again = EpochFile(tmp_path)
    assert again.epochs == ONE
    again.save(TWO)
    backup = (tmp_path / "epochFileCheckpoint.bak").read_bytes()
    assert backup == epochs.encode(ONE), "the damaged file is no backup"


def test_a_store_whose_epochs_are_all_damaged_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "epochFileCheckpoint").write_bytes(b"1\n17\n1-0\n")
    with pytest.raises(StoreCorrupt, match="checksum"):
        EpochFile(tmp_path)
    (tmp_path / "epochFileCheckpoint.bak").write_bytes(b"")
    with pytest.raises(StoreCorrupt, match="checksum"):
        EpochFile(tmp_path)


def test_no_file_has_zero_entries(tmp_path: Path) -> None:
    file = EpochFile(tmp_path)
    file.save(ONE)
    file.save(TWO)
    file.save(())
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_entries_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = EpochFile(tmp_path)
    file.save(ONE)

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(epochs, "replace_file", full)
    with pytest.raises(StoreFull):
        file.save(TWO)
    assert file.epochs == ONE == EpochFile(tmp_path).epochs
