"""A slave's side of a connection, without sockets: joined bodies, refused frames, reports."""

import random

import pytest
from tests.support.memory_log import FILE_BYTES, MemoryLog, frames_of

from tianzhou.errors import ReplicationError
from tianzhou.ha import frames
from tianzhou.ha.epochs import Epoch, Epochs
from tianzhou.ha.frames import HEAD, Head, encode_default_head, encode_head, encode_report
from tianzhou.ha.slave_side import BUFFER_BYTES, RECEIVE_BYTES_MAX, SlaveSide

ONE = (Epoch(1, 0),)


def ours(log_offset: int, body: bytes = b"", epoch: int = 1, start: int = 0) -> bytes:
    return encode_head(Head(log_offset, len(body), epoch, start, log_offset)) + body


def receive(side: SlaveSide, data: bytes) -> None:
    while data:
        space = side.space()
        count = min(len(data), len(space))
        space[:count] = data[:count]
        side.received(count)
        data = data[count:]


def side_at(end: int | None, *, is_ours: bool = True, epochs: Epochs = ONE) -> SlaveSide:
    return SlaveSide(end, FILE_BYTES, is_ours=is_ours, epochs=epochs)


def test_bodies_of_frames_become_one_piece_of_the_log() -> None:
    side = side_at(100)
    receive(side, ours(100, b"abc") + ours(103, b"defgh") + ours(108) + ours(108, b"i"))
    log_offset, data = side.contents()
    assert (log_offset, bytes(data)) == (100, b"abcdefghi")
    assert (side.frame_count, side.master_end, side.confirm_offset) == (4, 109, 108)


def test_what_was_not_appended_is_offered_again_with_what_follows() -> None:
    side = side_at(100)
    receive(side, ours(100, b"abcde"))
    side.appended(3)
    log_offset, data = side.contents()
    assert (log_offset, bytes(data)) == (103, b"de")
    receive(side, ours(105, b"f" * 200)[:50])
    log_offset, data = side.contents()
    assert (log_offset, bytes(data)) == (103, b"de" + b"f" * 14)


def test_a_record_larger_than_the_buffer_is_received() -> None:
    dice = random.Random(1)
    file_bytes = 4 * BUFFER_BYTES
    record = dice.randbytes(2 * BUFFER_BYTES)
    side = SlaveSide(0, file_bytes, is_ours=False)
    for position in range(0, len(record), 32768):
        piece = record[position : position + 32768]
        receive(side, encode_default_head(position, len(piece)) + piece)
        side.appended(0)
    assert side.contents()[1] == record
    side.appended(len(record))
    assert len(side.space()) == RECEIVE_BYTES_MAX


def test_a_record_without_an_end_is_refused_at_the_limit() -> None:
    side = SlaveSide(0, 1 << 30, is_ours=False, record_bytes_max=100_000)
    receive(side, encode_default_head(0, 99_000) + bytes(99_000))
    side.appended(0)
    receive(side, encode_default_head(99_000, 2000) + bytes(2000))
    with pytest.raises(ReplicationError, match="log offset 0 has more than 100000 bytes"):
        side.appended(0)


# -- frames that are refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        pytest.param(ours(101, b"x"), "sent log offset 101, 100 comes next", id="gap"),
        pytest.param(ours(99, b"x"), "sent log offset 99, 100 comes next", id="repeated"),
        pytest.param(ours(101), "100 comes next", id="heartbeat elsewhere"),
        pytest.param(HEAD.pack(2, -1, 100, 1, 0, 0), "a body of -1 bytes", id="negative"),
        pytest.param(HEAD.pack(2, 4194305, 100, 1, 0, 0), "at most 4194304", id="too long"),
        pytest.param(HEAD.pack(2, 4000, 100, 1, 0, 0), "cross the end of a file", id="two files"),
        pytest.param(HEAD.pack(1, 0, 100, 1, 0, 0), "state 1", id="handshake"),
        pytest.param(HEAD.pack(4, 0, 100, 1, 0, 0), "state 4", id="shutdown"),
        pytest.param(ours(100, b"x", 0), "epoch 0 from 0", id="an older epoch"),
        pytest.param(ours(100, b"x", 1, 50), "epoch 1 from 50", id="another start"),
        pytest.param(ours(100, b"x", 2, 50), "epoch 2 from 50", id="an epoch that began before"),
        pytest.param(ours(100, b"x", 2, 101), "epoch 2 from 101", id="an epoch that begins later"),
    ],
)
def test_a_frame_that_cannot_be_right_is_refused(frame: bytes, words: str) -> None:
    side = side_at(100)
    with pytest.raises(ReplicationError, match=words):
        receive(side, frame)
    assert len(side.contents()[1]) == 0


def test_a_default_frame_is_checked_in_the_same_way() -> None:
    with pytest.raises(ReplicationError, match="100 comes next"):
        receive(side_at(100, is_ours=False), encode_default_head(0, 5))
    with pytest.raises(ReplicationError, match="mappedFileSizeCommitLog"):
        receive(side_at(100, is_ours=False), encode_default_head(100, 4000))
    with pytest.raises(ReplicationError, match="-7 bytes"):
        receive(side_at(100, is_ours=False), encode_default_head(100, -7))


# -- an empty log ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ours", [False, True])
def test_an_empty_log_begins_where_the_master_begins(is_ours: bool) -> None:
    side = side_at(None, is_ours=is_ours, epochs=())
    assert side.first_report(0)[-8:] == bytes(8)
    at = 3 * FILE_BYTES
    frame = ours(at, b"ab") if is_ours else encode_default_head(at, 2) + b"ab"
    receive(side, (ours(at) if is_ours else encode_default_head(at, 0)) + frame)
    log_offset, data = side.contents()
    assert (log_offset, bytes(data), side.next_log_offset) == (at, b"ab", at + 2)


def test_a_heartbeat_does_not_bind_an_empty_log() -> None:
    side = side_at(None, is_ours=False)
    receive(side, encode_default_head(0, 0))
    assert side.next_log_offset is None
    receive(side, encode_default_head(FILE_BYTES, 1) + b"x")
    assert side.next_log_offset == FILE_BYTES + 1


def test_an_empty_log_refuses_to_begin_within_a_file() -> None:
    with pytest.raises(ReplicationError, match="where no file begins"):
        receive(side_at(None, is_ours=False), encode_default_head(2048, 0))


# -- epochs ----------------------------------------------------------------------------------------


def test_a_new_epoch_is_recorded_with_the_frame_that_brings_it() -> None:
    side = side_at(100)
    receive(side, ours(100, b"ab"))
    assert not side.epochs_changed
    receive(side, ours(102, epoch=3, start=102))
    assert (side.epochs, side.epochs_changed) == ((*ONE, Epoch(3, 102)), True)
    receive(side, ours(102, b"x", epoch=4, start=102))
    assert side.epochs == (*ONE, Epoch(4, 102)), "nothing was written in epoch 3"
    with pytest.raises(ReplicationError, match="epoch 3"):
        receive(side, ours(103, epoch=3, start=102))


def test_an_empty_log_begins_within_an_epoch() -> None:
    side = side_at(None, epochs=())
    receive(side, ours(FILE_BYTES, b"x", epoch=5, start=77))
    assert side.epochs == (Epoch(5, 77),)


def test_a_log_without_epochs_does_not_begin_within_one() -> None:
    with pytest.raises(ReplicationError, match="epoch 1"):
        receive(side_at(100, epochs=()), ours(100, b"x", epoch=1, start=0))


def test_the_implied_epoch_needs_no_entry() -> None:
    side = side_at(100, epochs=())
    receive(side, ours(100, b"x", epoch=0, start=0))
    assert (side.epochs, side.epochs_changed) == ((), False)


# -- reports ---------------------------------------------------------------------------------------


def test_a_report_leaves_after_growth_and_after_the_interval() -> None:
    side = SlaveSide(100, FILE_BYTES, is_ours=True, report_interval_ms=5000)
    assert side.first_report(1000) == encode_report(100)
    assert side.report(100, 5999) is None
    assert side.report(101, 5999) == encode_report(101)
    assert side.report(101, 10_998) is None
    assert side.report(101, 10_999) == encode_report(101)


def test_reports_never_go_back() -> None:
    side = side_at(100)
    side.first_report(0)
    assert side.report(99, 1) is None
    assert side.report(99, 9000) == encode_report(100)


def test_a_sync_flush_slave_reports_twice_at_first() -> None:
    # Our master takes only the second one of such a slave as an acknowledgement.
    side = SlaveSide(100, FILE_BYTES, is_ours=True, is_flushed=True)
    assert side.first_report(0) == encode_report(100) * 2
    side = SlaveSide(100, FILE_BYTES, is_ours=False, is_flushed=True)
    assert side.first_report(0) == (100).to_bytes(8, "big")


def test_a_whole_log_passes_through_a_small_socket() -> None:
    dice = random.Random(2)
    master, slave = MemoryLog(), MemoryLog()
    master.fill(100_000, dice)
    stream = frames_of(master, encode_default_head, [700])
    side = side_at(0, is_ours=False)
    while stream:
        count = dice.randrange(1, 900)
        receive(side, stream[:count])
        stream = stream[count:]
        _, data = side.contents()
        side.appended(slave.append_copied(data))
    assert slave.content == master.content


def test_the_agreement_of_the_master_to_a_switch() -> None:
    side = side_at(100)
    agreement = encode_head(Head(103, 0, 7, 0, 102), frames.HANDOVER_STATE)
    receive(side, ours(100, b"abc") + agreement)
    assert (side.agreed_epoch, side.confirm_offset) == (7, 102)
    assert side.epochs == ONE
    assert not side.epochs_changed


def test_the_agreement_to_a_switch_of_empty_logs() -> None:
    side = side_at(None)
    receive(side, encode_head(Head(0, 0, 7, 0, 0), frames.HANDOVER_STATE))
    assert side.agreed_epoch == 7
    with pytest.raises(ReplicationError, match="this log is received up to 0"):
        receive(side_at(None), encode_head(Head(5, 0, 7, 0, 0), frames.HANDOVER_STATE))


def test_an_agreement_for_another_end_of_the_log_is_refused() -> None:
    with pytest.raises(ReplicationError, match="agreed to a switch at log offset 104"):
        receive(side_at(103), encode_head(Head(104, 0, 7, 0, 102), frames.HANDOVER_STATE))


def test_the_request_for_a_switch_repeats_the_last_report() -> None:
    side = side_at(100)
    side.first_report(0)
    side.report(103, 0)
    assert side.handover_request() == encode_report(103, frames.HANDOVER_STATE)


def test_announced_changes_are_no_part_of_the_log() -> None:
    side = side_at(100)
    changes = encode_head(Head(103, 5, 1, 0, 102), frames.CHANGES_STATE) + b"lines"
    receive(side, ours(100, b"abc") + changes[:-1])
    assert side.changes == []
    receive(side, changes[-1:] + ours(103, b"d"))
    assert side.changes == [b"lines"]
    log_offset, data = side.contents()
    assert (log_offset, bytes(data)) == (100, b"abcd")


@pytest.mark.parametrize("size", [-1, frames.CHANGES_BYTES_MAX + 1])
def test_announced_changes_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(ReplicationError, match=f"announced changes of {size} bytes"):
        receive(side_at(100), encode_head(Head(100, size, 1, 0, 100), frames.CHANGES_STATE))
