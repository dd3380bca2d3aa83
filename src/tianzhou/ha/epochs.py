"""Which master wrote which part of the log: epochs, and RocketMQ's file of them.

An epoch begins whenever a broker becomes master. Its entry is the number of the epoch and the log
offset at which it begins; it ends where the next one begins, the last one at the end of the log.
Every log has the implied entry (0, 0): what was written before there were epochs.

Two logs with an equal entry are equal up to the smaller end of that epoch (`consistent_point`), as
only one master wrote in it, and a slave has the entries of its master.

The file `epochFileCheckpoint` in storePathRootDir, lines that end with "\\n":

    2             number of entries
    1760363011    CRC-32 of the lines below with the top bit cleared; 0: not to be checked
    1-0           epoch and start of each entry, both ascending
    2-21950

The content before the last change is in `epochFileCheckpoint.bak`, which is read if the file is
missing, empty or damaged. Both are replaced as a whole and fsynced. No file has zero entries.
"""

import logging
import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tianzhou.config.files import replace_file
from tianzhou.errors import ReplicationError, StoreCorrupt
from tianzhou.store.files.disk import explained

log = logging.getLogger(__name__)

FILE_NAME = "epochFileCheckpoint"
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_ENTRY = re.compile(r"([0-9]{1,10})-([0-9]{1,19})", re.ASCII)
LISTED_MAX = 1000
"""Entries in a request or response, the newest; RocketMQ sends as many."""


class Epoch(NamedTuple):
    """One entry."""

    number: int
    start: int


Epochs = tuple[Epoch, ...]
"""Ascending by number and by start, without the implied entry."""

IMPLIED = Epoch(0, 0)
_STORES_MAX = 4096
"""Stores whose masters choose different numbers; by chance, as ids of stores are random."""


# -- comparing -------------------------------------------------------------------------------------


class Prefix(NamedTuple):
    """The beginning of a log that another one has, too."""

    end: int
    entry_count: int
    """How many of the own entries describe it."""


def consistent_point(own: Epochs, own_end: int, theirs: Epochs, their_end: int) -> int:
    """The log offset up to which two logs are equal; own bytes behind it are not the other's."""
    return common_prefix(own, own_end, theirs, their_end).end


def common_prefix(own: Epochs, own_end: int, theirs: Epochs, their_end: int) -> Prefix:
    """The same with the number of own entries: a later one may start at the same log offset."""
    own_all, their_all = (IMPLIED, *own), (IMPLIED, *theirs)
    positions = {entry: index for index, entry in enumerate(their_all)}
    for index in reversed(range(len(own_all))):
        position = positions.get(own_all[index])
        if position is not None:
            own_stop = _end_of(own_all, index, own_end)
            return Prefix(min(own_stop, _end_of(their_all, position, their_end)), index)
    raise AssertionError("every log has the implied entry")


def _end_of(epochs: Sequence[Epoch], index: int, log_end: int) -> int:
    return min(epochs[index + 1].start, log_end) if index + 1 < len(epochs) else log_end


def last_number(epochs: Epochs) -> int:
    """The number of the newest epoch; 0 if there is none but the implied one."""
    return epochs[-1].number if epochs else 0


def range_at(epochs: Epochs, log_offset: int) -> tuple[Epoch, int | None]:
    """The epoch of a log offset, and where it ends; None for the last one."""
    index = bisect_right(epochs, log_offset, key=_start_of)
    stop = epochs[index].start if index < len(epochs) else None
    return (epochs[index - 1] if index else IMPLIED), stop


def _start_of(entry: Epoch) -> int:
    return entry.start


# -- changing --------------------------------------------------------------------------------------


def appended(epochs: Epochs, number: int, start: int) -> Epochs:
    """With a new epoch, which replaces an entry with the same start: that one has no bytes.

    RocketMQ drops the new entry then, so that two histories carry one number. Raises
    ReplicationError for an entry that is not behind the last one.
    """
    if number <= last_number(epochs) or start < (epochs[-1].start if epochs else 0):
        raise ReplicationError(
            f"epoch {number} from log offset {start} cannot follow the epochs {text(epochs)!r}"
        )
    before = epochs[:-1] if epochs and epochs[-1].start == start else epochs
    return (*before, Epoch(number, start))


def of_new_master(epochs: Epochs, log_end: int, store_id: str, *, above: int = 0) -> Epochs:
    """With the epoch of a broker that becomes master: larger than all known, from its end on.

    Its number is one that the master of another store does not choose: two brokers that became
    masters without knowledge of each other have different histories, and so have a master before
    and after its disk was replaced. `above` is the largest number known from elsewhere.
    """
    known = max(last_number(epochs), above)
    number = known + 1 + _distance(known + 1, store_id)
    return appended(within_log(epochs, log_end), number, log_end)


def _distance(number: int, store_id: str) -> int:
    """How far the next number of a store's own epochs is above a number; 0: it is one."""
    return (int(store_id[:8], 16) - number) % _STORES_MAX


def of_started_master(epochs: Epochs, log_end: int, store_id: str, *, is_clean: bool) -> Epochs:
    """The entries of a broker that starts as a master, by its configuration.

    What it writes is of a new epoch, unless it was the master before and was stopped cleanly: after
    an unclean stop it may have lost bytes that a slave has, and a former slave may lack bytes that
    its master has, so that it will write others at the same log offsets.
    """
    is_own = bool(epochs) and not _distance(last_number(epochs), store_id)
    if is_clean and is_own and epochs == within_log(epochs, log_end):
        return epochs
    return of_new_master(epochs, log_end, store_id)


def within_log(epochs: Epochs, log_end: int) -> Epochs:
    """Without entries that begin behind the end of the log, whose bytes were lost in a crash."""
    return tuple(entry for entry in epochs if entry.start <= log_end)


def of_copy(own: Epochs, own_end: int, theirs: Epochs) -> Epochs:
    """The entries of a log that is the beginning of another one, whose entries are `theirs`.

    An own entry at the very end was given up: nothing was written in it. The older entries are the
    own ones, as the other side lists its newest only.
    """
    listed_from = theirs[0].start if theirs else own_end
    older = [entry for entry in own if entry.start < min(listed_from, own_end)]
    return (*older, *(entry for entry in theirs if entry.start < own_end))


# -- as text ---------------------------------------------------------------------------------------


def text(epochs: Epochs) -> str:
    """The newest entries for a request: "1-0,2-500"."""
    return ",".join(f"{entry.number}-{entry.start}" for entry in epochs[-LISTED_MAX:])


def parse(listed: str) -> Epochs:
    """The entries of such a text. Raises ReplicationError."""
    if listed.count(",") >= LISTED_MAX:
        raise ReplicationError(f"more than {LISTED_MAX} epochs are listed")
    return _ascending(listed.split(",")) if listed else ()


def _ascending(entries: Sequence[str]) -> Epochs:
    found: list[Epoch] = []
    before = Epoch(0, -1)
    for entry in entries:
        matched = _ENTRY.fullmatch(entry)
        if matched is None:
            raise ReplicationError(f"{entry[:80]!r} is no epoch; one looks like 3-21950")
        read = Epoch(int(matched[1]), int(matched[2]))
        if read == IMPLIED and not found:
            continue
        if read.number <= before.number or read.start <= before.start:
            raise ReplicationError(f"the epoch {entry!r} is not behind the one before it")
        if read.number > _INT32_MAX or read.start > _INT64_MAX:
            raise ReplicationError(f"the epoch {entry!r} is too large")
        found.append(read)
        before = read
    return tuple(found)


# -- the file --------------------------------------------------------------------------------------


def encode(epochs: Epochs) -> bytes:
    """The content of the file."""
    lines = "".join(f"{entry.number}-{entry.start}\n" for entry in epochs).encode()
    return b"%d\n%d\n%b" % (len(epochs), _checksum(lines), lines)


def decode(content: bytes) -> Epochs:
    """The entries of a file. Raises ReplicationError for a damaged one."""
    count_line, crc_line, lines = [*content.split(b"\n", 2), b"", b""][:3]
    if not (count_line.isdigit() and crc_line.isdigit()):
        raise ReplicationError("it does not begin with a count and a checksum")
    listed = lines.decode("ascii", "replace").splitlines()
    if len(listed) != int(count_line[:10]) or not listed:
        raise ReplicationError(f"it has {len(listed)} entries, its first line says {count_line!r}")
    if int(crc_line[:20]) not in (0, _checksum(lines)):
        raise ReplicationError("its checksum is wrong")
    return _ascending(listed)


def _checksum(lines: bytes) -> int:
    return zlib.crc32(lines) & 0x7FFFFFFF


def files_with(epochs: Epochs) -> dict[str, str | None]:
    """The files that have these entries and no others; None: the file does not exist."""
    content = encode(epochs).decode() if epochs else None
    return {FILE_NAME: content, f"{FILE_NAME}.bak": content}


class EpochFile:
    """The entries of a store, and their file."""

    def __init__(self, root: Path) -> None:
        """Reads the file of a store. Raises StoreCorrupt if it and its `.bak` are damaged."""
        self.path = root / FILE_NAME
        self._backup = root / f"{FILE_NAME}.bak"
        self.epochs: Epochs = self._read()

    def save(self, epochs: Epochs) -> None:
        """Replaces all entries, durably; nothing is written if they are the same.

        Raises StoreError; then the old entries are in force.
        """
        if epochs == self.epochs:
            return
        try:
            if not epochs:
                self._backup.unlink(missing_ok=True)
                self.path.unlink(missing_ok=True)
            else:
                if self.epochs:
                    # Not the content of the file, which may be the damaged one.
                    replace_file(self._backup, encode(self.epochs))
                replace_file(self.path, encode(epochs))
        except OSError as error:
            raise explained(error, "save the epochs of the log") from error
        self.epochs = epochs

    def reload(self) -> None:
        """Reads the file again, which a truncation has replaced. Raises StoreError."""
        self.epochs = self._read()

    def _read(self) -> Epochs:
        problems: list[str] = []
        for path in (self.path, self._backup):
            try:
                content = path.read_bytes()
                if content or path == self._backup:
                    epochs = decode(content)
                    if problems:
                        log.warning("%s; its entries before the last change are used", problems[0])
                    return epochs
            except FileNotFoundError:
                continue
            except ReplicationError as error:
                problems.append(f"{path} is damaged: {error}")
            except OSError as error:
                raise explained(error, f"read {path}") from error
            else:
                problems.append(f"{path} is empty")
        if problems:
            raise StoreCorrupt(
                f"{'; '.join(problems)}; remove both files only if this store has no other replica"
            )
        return ()
