"""The durable record of a truncation, in the file `truncation` of the root directory.

    2774410034                                       CRC-32 of the rest
    {"to":21950,"files":{"epochFileCheckpoint":…}}   JSON; no `to`: nothing stays

A record that is not whole was being written when the process ended: nothing had changed then.
"""

import logging
import zlib
from contextlib import closing
from pathlib import Path

import msgspec

from tianzhou.store.files.disk import Disk

log = logging.getLogger(__name__)

FILE_NAME = "truncation"
_CONTENT_BYTES_MAX = 1 << 24


class Truncation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be done, as the record has it."""

    to: int | None = None
    """The log offset at which the log ends afterwards; None: the store is empty afterwards."""
    files: dict[str, str | None] = {}
    """New content of files of the root directory; None: the file is removed."""


def write_record(disk: Disk, root: Path, truncation: Truncation) -> None:
    """Makes the record durable. Raises OSError; then there may be a record that is not whole."""
    line = msgspec.json.encode(truncation)
    content = b"%d\n%b\n" % (zlib.crc32(line), line)
    assert len(content) <= _CONTENT_BYTES_MAX, "the record is too large"
    write_file(disk, root / FILE_NAME, content)
    disk.sync_directory(root)


def read_record(disk: Disk, root: Path) -> Truncation | None:
    """The record of a truncation that has begun; None if there is none. Raises OSError."""
    path = root / FILE_NAME
    if not disk.exists(path):
        return None
    with closing(disk.open(path, writable=False)) as handle:
        content = handle.read(0, _CONTENT_BYTES_MAX)
    crc, _, line = content.removesuffix(b"\n").partition(b"\n")
    if crc.isdigit() and int(crc[:10]) == zlib.crc32(line):
        return msgspec.json.decode(line, type=Truncation)
    log.warning("%s is not whole, so the truncation had not begun; it is removed", path)
    remove_record(disk, root)
    return None


def remove_record(disk: Disk, root: Path) -> None:
    """Ends a truncation, durably. Raises OSError."""
    disk.remove(root / FILE_NAME)
    disk.sync_directory(root)


def write_file(disk: Disk, path: Path, content: bytes) -> None:
    """Replaces the content of a file, durably but for its name; it may be half done at a crash."""
    with closing(disk.open(path, create=True)) as handle:
        handle.resize(0)
        handle.write(0, content)
        handle.sync()


def describe(truncation: Truncation) -> str:
    """For logs and errors."""
    if truncation.to is None:
        return "the removal of all messages"
    return f"the truncation of the log to {truncation.to}"
