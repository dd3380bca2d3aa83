"""The end of a log as a checksum: whether the log of a slave ends with what its master has there.

Epochs say which master wrote what, but only if every change of the master was noticed. They cannot
show that a master has lost the end of its log in a power cut if an offline tool has opened its
store since, or that a store directory was copied. So the slave's hello has a checksum of the last
bytes of its log, and the master compares it with its own. Records have the time and the address
of the broker that stored them, so different logs do not end with the same bytes.

The part lies in one log file. Behind a filler, at the beginning of a file, there is nothing to
compare: its bytes need not survive a power cut.
"""

import zlib
from typing import Final, NamedTuple, Protocol

TAIL_BYTES_MAX: Final = 1024 * 1024
"""Takes less than a millisecond."""


class SlicedLog(Protocol):
    """What is needed of a store."""

    @property
    def first_log_offset(self) -> int: ...

    @property
    def end_log_offset(self) -> int: ...

    def log_slice(self, log_offset: int, max_bytes: int) -> memoryview | None: ...


class Tail(NamedTuple):
    """The last bytes of a log."""

    size_bytes: int = 0
    crc: int = 0


EMPTY_TAIL: Final = Tail()


def tail_of(log: SlicedLog, file_bytes: int) -> Tail:
    """The tail of a slave's log; empty if there is nothing to compare."""
    size_bytes = min(log.end_log_offset % file_bytes, TAIL_BYTES_MAX)
    crc = crc_of(log, log.end_log_offset - size_bytes, size_bytes)
    return EMPTY_TAIL if crc is None else Tail(size_bytes, crc)


def crc_of(log: SlicedLog, log_offset: int, size_bytes: int) -> int | None:
    """CRC-32 of a part of a log; None if the log does not have all of it in one file."""
    if not 0 < size_bytes <= TAIL_BYTES_MAX or log_offset < log.first_log_offset:
        return None
    part = log.log_slice(log_offset, size_bytes)
    return None if part is None or len(part) != size_bytes else zlib.crc32(part)
