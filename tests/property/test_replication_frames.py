"""Frames of a master: the slave's log is the same however they are cut, and epochs are compared
as the logs themselves would be; the epoch file survives every damage of one of its two copies."""

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.memory_log import MemoryLog, frames_of

from tianzhou.errors import ReplicationError, StoreCorrupt
from tianzhou.ha.epochs import (
    Epoch,
    EpochFile,
    Epochs,
    appended,
    consistent_point,
    decode,
    encode,
    of_copy,
    of_new_master,
    parse,
    range_at,
    text,
)
from tianzhou.ha.frames import CHANGES_STATE, HEAD, Head, encode_default_head, encode_head
from tianzhou.ha.slave_side import SlaveSide

FILE_BYTES = 1024


def encode_our_head(log_offset: int, body_bytes: int) -> bytes:
    epochs = (Epoch(1, 0), Epoch(4, 2500))
    (number, start), _ = range_at(epochs, log_offset)
    return encode_head(Head(log_offset, body_bytes, number, start))


def receive(side: SlaveSide, slave: MemoryLog, data: bytes) -> None:
    """What a connection does with received bytes."""
    while data:
        space = side.space()
        count = min(len(data), len(space))
        space[:count] = data[:count]
        side.received(count)
        log_offset, piece = side.contents()
        if piece:
            assert log_offset == slave.end_log_offset
            side.appended(slave.append_copied(piece))
        data = data[count:]


def filled(seed: int, byte_count: int = 5000) -> MemoryLog:
    log = MemoryLog(FILE_BYTES)
    log.fill(byte_count, random.Random(seed))
    return log


@pytest.mark.parametrize("is_ours", [False, True])
def test_frames_are_received_the_same_split_at_every_byte(is_ours: bool) -> None:
    master = filled(1, 3000)
    announced: list[bytes] = []
    if is_ours:
        frames = _within_epochs(master, [70, 500])
        announced = [f"change {number}\n".encode() * number for number in range(len(frames))]
        changes = [_changes(frame, lines) for frame, lines in zip(frames, announced, strict=True)]
        stream = b"".join(map(bytes.__add__, changes, frames))
    else:
        stream = frames_of(master, encode_default_head, [70, 500])
    for split in range(1, len(stream)):
        slave = MemoryLog(FILE_BYTES)
        side = SlaveSide(0, FILE_BYTES, is_ours=is_ours, epochs=(Epoch(1, 0),) if is_ours else ())
        receive(side, slave, stream[:split])
        receive(side, slave, stream[split:])
        assert slave.content == master.content
        assert side.changes == announced


def _changes(before: bytes, lines: bytes) -> bytes:
    """Announced changes, before a frame with a part of the log."""
    _, _, log_offset, *rest = HEAD.unpack(before[: HEAD.size])
    return encode_head(Head(log_offset, len(lines), *rest), CHANGES_STATE) + lines


def _within_epochs(master: MemoryLog, sizes: list[int]) -> list[bytes]:
    """The second epoch begins at the first record at or after 2500, where a frame ends."""
    frames: list[bytes] = []
    log_offset, number = 0, 0
    while log_offset < master.end_log_offset:
        size = sizes[number % len(sizes)]
        if log_offset < 2500:
            size = min(size, 2500 - log_offset)
        body = master.body(log_offset, size)
        frames.append(encode_our_head(log_offset, len(body)) + body)
        log_offset, number = log_offset + len(body), number + 1
    return frames


@given(
    seed=st.integers(0, 1000),
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=20),
)
def test_frames_of_any_size_are_received_in_pieces_of_any_size(
    seed: int, sizes: list[int], cuts: list[int]
) -> None:
    master, slave = filled(seed), MemoryLog(FILE_BYTES)
    stream = frames_of(master, encode_default_head, sizes)
    side = SlaveSide(0, FILE_BYTES, is_ours=False)
    number = 0
    while stream:
        cut = cuts[number % len(cuts)]
        receive(side, slave, stream[:cut])
        assert master.content.startswith(slave.content)
        stream, number = stream[cut:], number + 1
    assert slave.content == master.content


@given(data=st.data(), seed=st.integers(0, 1000))
def test_a_changed_byte_of_a_head_is_refused_or_stops_the_stream(
    data: st.DataObject, seed: int
) -> None:
    master, slave = filled(seed, 3000), MemoryLog(FILE_BYTES)
    heads: list[int] = []

    def encode_head_here(log_offset: int, body_bytes: int) -> bytes:
        heads.append(log_offset + 12 * len(heads))
        return encode_default_head(log_offset, body_bytes)

    stream = bytearray(frames_of(master, encode_head_here, [300]))
    at = data.draw(st.sampled_from(heads))
    field = data.draw(st.integers(0, 11))
    stream[at + field] ^= data.draw(st.integers(1, 255))
    side = SlaveSide(0, FILE_BYTES, is_ours=False)
    refused = False
    try:
        receive(side, slave, bytes(stream))
    except (ReplicationError, StoreCorrupt):
        refused = True
    assert refused or (field >= 8 and side.frame_count <= len(heads))
    before = at - 12 * heads.index(at)
    assert slave.content[:before] == master.content[: min(before, len(slave.content))]


# -- epochs ----------------------------------------------------------------------------------------


class Replica:
    """The plain model: who wrote each byte, beside the entries."""

    def __init__(self) -> None:
        self.content: list[tuple[int, int]] = []
        self.epochs: Epochs = ()

    def agreed(self, other: "Replica") -> int:
        """The length of the common beginning."""
        pairs = zip(self.content, other.content, strict=False)
        return next(
            (at for at, (a, b) in enumerate(pairs) if a != b),
            min(len(self.content), len(other.content)),
        )

    def describes_its_log(self) -> bool:
        return all(
            range_at(self.epochs, at)[0].number == epoch
            for at, (epoch, _) in enumerate(self.content)
        )


STEPS = st.lists(
    st.tuples(st.sampled_from(["lead", "write", "follow"]), st.integers(0, 2), st.integers(0, 9)),
    max_size=40,
)


@given(steps=STEPS)
def test_the_consistent_point_is_where_the_logs_differ(
    steps: list[tuple[str, int, int]],
) -> None:
    replicas = [Replica() for _ in range(3)]
    master, epoch, number = 0, 0, 0
    for step, who, count in steps:
        one = replicas[who]
        if step == "lead":
            store_id = f"{who:08x}"
            one.epochs = of_new_master(one.epochs, len(one.content), store_id)
            master, epoch = who, one.epochs[-1].number
        elif step == "write" and epoch:
            lead = replicas[master]
            for _ in range(count):
                number += 1
                lead.content.append((epoch, number))
        elif step == "follow" and who != master:
            lead = replicas[master]
            point = consistent_point(one.epochs, len(one.content), lead.epochs, len(lead.content))
            del one.content[point:]
            one.epochs = of_copy(one.epochs, point, lead.epochs)
            assert one.describes_its_log()
            for at in range(point, min(point + count, len(lead.content))):
                entry, _ = range_at(lead.epochs, at)
                if entry != (one.epochs[-1] if one.epochs else (0, 0)):
                    one.epochs = appended(one.epochs, *entry)
                one.content.append(lead.content[at])
        for a in replicas:
            assert a.describes_its_log()
            for b in replicas:
                point = consistent_point(a.epochs, len(a.content), b.epochs, len(b.content))
                assert point == a.agreed(b)


ENTRIES = st.lists(
    st.tuples(st.integers(1, 2**20), st.integers(1, 2**40)), min_size=1, max_size=30
).map(
    lambda steps: tuple(
        Epoch(sum(each[0] for each in steps[: n + 1]), sum(each[1] for each in steps[: n + 1]))
        for n in range(len(steps))
    )
)


@given(entries=ENTRIES)
def test_entries_survive_the_file_and_the_text(entries: Epochs) -> None:
    assert decode(encode(entries)) == entries
    assert parse(text(entries)) == entries


@given(entries=ENTRIES, data=st.data())
def test_a_damaged_file_is_noticed(entries: Epochs, data: st.DataObject) -> None:
    content = bytearray(encode(entries))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        read = decode(bytes(content))
    except ReplicationError:
        return
    # A checksum of 0, or more leading zeros, say the same.
    assert read == entries


@settings(max_examples=50)
@given(entries=ENTRIES, older=ENTRIES, data=st.data())
def test_one_damaged_copy_of_the_file_is_survived(
    entries: Epochs, older: Epochs, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        file = EpochFile(root)
        file.save(older)
        file.save(entries)
        if entries == older:
            return
        damaged = data.draw(st.sampled_from([file.path, root / "epochFileCheckpoint.bak"]))
        content = bytearray(damaged.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 0x40
        damaged.write_bytes(content)
        assert EpochFile(root).epochs == (older if damaged == file.path else entries)
