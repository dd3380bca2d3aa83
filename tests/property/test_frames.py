"""Framing and the command header, with the kernel and with the pure-Python code."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import framing, wire_strategies

from tianzhou.errors import FrameError
from tianzhou.protocol import command
from tianzhou.protocol.command import Command, HeaderEncoding

pytestmark = pytest.mark.usefixtures("codec")


@given(st.lists(wire_strategies.commands, max_size=5), st.data())
def test_any_split_of_a_stream_gives_the_same_frames(
    sent: list[dict[str, Any]], data: st.DataObject
) -> None:
    frames = [command.encode(Command(**values)) for values in sent]
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    received: list[bytes] = []
    waiting = bytearray()
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        waiting += stream[start:stop]
        ranges, consumed = framing.split(waiting)
        received += [bytes(waiting[first:last]) for first, last in ranges]
        del waiting[:consumed]
    assert received == frames
    assert not waiting


@given(st.lists(wire_strategies.commands, max_size=3), st.sampled_from([0, 3, 2**31]), st.data())
def test_frames_before_an_impossible_length_come_out_however_the_stream_is_split(
    sent: list[dict[str, Any]], length: int, data: st.DataObject
) -> None:
    frames = [command.encode(Command(**values)) for values in sent]
    stream = b"".join(frames) + length.to_bytes(4, "big") + b"rest"
    cut = data.draw(st.integers(0, len(stream)))
    received: list[bytes] = []
    waiting = bytearray()
    refused = False
    for piece in (stream[:cut], stream[cut:], b""):
        waiting += piece
        try:
            ranges, consumed = framing.split(waiting)
        except FrameError:
            refused = True
            break
        received += [bytes(waiting[first:last]) for first, last in ranges]
        del waiting[:consumed]
    assert refused
    assert received == frames


@given(wire_strategies.commands)
def test_an_incomplete_frame_consumes_nothing_and_a_complete_one_its_length(
    values: dict[str, Any],
) -> None:
    frame = command.encode(Command(**values))
    for length in range(len(frame)):
        assert framing.split(frame[:length]) == ([], 0)
    for beyond in (b"", b"\x00", b"\x00\x00\x00", frame[:-1]):
        assert framing.split(frame + beyond) == ([(0, len(frame))], len(frame))


@given(st.integers(0, 2**32 - 1), st.integers(4, 2**32), st.binary(max_size=7))
def test_an_impossible_length_is_refused_before_its_bytes_arrive(
    length: int, limit: int, behind: bytes
) -> None:
    stream = length.to_bytes(4, "big") + behind
    if 4 <= length <= limit:
        ranges, consumed = framing.split(stream, limit)
        assert consumed == (4 + length if len(behind) >= length else 0)
        assert len(ranges) == (1 if consumed else 0)
    else:
        with pytest.raises(FrameError, match=f"frame of {length} bytes"):
            framing.split(stream, limit)


@given(st.binary(max_size=64))
def test_random_bytes_split_without_gap_or_overlap(stream: bytes) -> None:
    try:
        ranges, consumed = framing.split(stream, 1000)
    except FrameError:
        return
    ends = [stop for _, stop in ranges]
    assert [start for start, _ in ranges] == [0, *ends][: len(ranges)]
    assert consumed == (ends[-1] if ends else 0)


@given(wire_strategies.commands)
def test_command_round_trips_in_both_encodings(values: dict[str, Any]) -> None:
    sent = Command(**values)
    got = command.decode(command.encode(sent))
    if sent.encoding is HeaderEncoding.ROCKETMQ:
        # The binary header cannot distinguish an empty remark, or empty ext fields, from none.
        assert (got.remark or "", got.fields) == (sent.remark or "", sent.fields)
        got.remark, got.ext_fields = sent.remark, sent.ext_fields
    assert got == sent


@given(wire_strategies.commands, st.sampled_from([bytearray, memoryview]))
def test_the_kind_of_buffer_does_not_matter(
    values: dict[str, Any], kind: type[bytearray] | type[memoryview]
) -> None:
    frame = command.encode(Command(**values))
    assert command.decode(kind(frame)) == command.decode(frame)
    assert framing.split(kind(frame)) == framing.split(frame)


@given(wire_strategies.commands, st.integers(2**15, 2**31 - 1))
def test_a_code_beyond_16_bits_travels_in_a_json_header(values: dict[str, Any], code: int) -> None:
    values["code"] = code
    got = command.decode(command.encode(Command(**values)))
    assert (got.code, got.encoding) == (code, HeaderEncoding.JSON)
