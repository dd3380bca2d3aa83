"""The tail of a log: what a hello compares besides the epochs."""

import random
import zlib
from dataclasses import replace
from functools import partial

from tests.support.memory_log import FILE_BYTES, MemoryLog

from tianzhou.ha.epochs import Epoch
from tianzhou.ha.hello import Broker, LogState, make_request, read_request, refusal_of
from tianzhou.ha.log_tail import TAIL_BYTES_MAX, Tail, crc_of, tail_of

MASTER = Broker(cluster="c", name="broker-a", id=0, store_id="0" * 32)
SLAVE = Broker(cluster="c", name="broker-a", id=1, store_id="1" * 32)


def log_of(seed: int, payloads: int = 60) -> MemoryLog:
    log, dice = MemoryLog(), random.Random(seed)
    for _ in range(payloads):
        log.append(dice.randbytes(200))
    return log


def state_of(log: MemoryLog) -> LogState:
    return LogState(
        first_offset=log.first_log_offset, end_offset=log.end_log_offset, file_bytes=FILE_BYTES,
        epochs=(Epoch(1, 0),), tail=tail_of(log, FILE_BYTES),
    )  # fmt: skip


def refused(slave: LogState, master: MemoryLog) -> str | None:
    request = read_request(make_request(SLAVE, slave, ""))
    return refusal_of(request, MASTER, state_of(master), partial(crc_of, master))


def test_the_tail_is_the_end_of_the_log_in_its_last_file() -> None:
    log = log_of(1)
    in_file = log.end_log_offset % FILE_BYTES
    assert tail_of(log, FILE_BYTES) == Tail(in_file, zlib.crc32(log.content[-in_file:]))
    assert tail_of(MemoryLog(), FILE_BYTES) == Tail()


def test_behind_a_filler_there_is_nothing_to_compare() -> None:
    log = log_of(1)
    del log.content[-(log.end_log_offset % FILE_BYTES) :]
    assert tail_of(log, FILE_BYTES) == Tail()


def test_a_log_that_ends_with_other_bytes_is_refused_although_the_epochs_are_equal() -> None:
    short, same, other = log_of(1), log_of(1, 90), log_of(2, 90)
    assert short.end_log_offset == log_of(2).end_log_offset
    assert refused(state_of(short), same) is None
    text = refused(state_of(short), other)
    assert text is not None
    assert "move the slave's store away" in text


def test_what_the_master_has_deleted_is_not_compared() -> None:
    short, other = log_of(1, 19), log_of(2, 90)
    other.expire_files(1)
    other.first_log_offset = short.end_log_offset
    assert refused(state_of(short), other) is None


def test_a_tail_that_lies_is_not_read() -> None:
    log = log_of(1)
    for tail in (Tail(-1, 1), Tail(TAIL_BYTES_MAX + 1, 1), Tail(log.end_log_offset + 1, 1)):
        assert refused(replace(state_of(log), tail=tail), log) is None
