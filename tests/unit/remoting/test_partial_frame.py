"""A frame in pieces: any split gives the same frame; a false length costs no memory."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.errors import FrameError
from tianzhou.remoting.partial_frame import PartialFrame

LIMIT = 1_000


def frame_of(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@given(
    st.binary(min_size=4, max_size=60),
    st.lists(st.integers(1, 9), max_size=70),
    st.binary(max_size=5),
)
def test_pieces_make_the_frame_and_no_further_byte_is_copied(
    payload: bytes, pieces: list[int], beyond: bytes
) -> None:
    frame = frame_of(payload)
    partial, view = PartialFrame(LIMIT), memoryview(frame + beyond)
    taken = 0
    for piece in [*pieces, len(view)]:
        if partial.complete:
            break
        taken += partial.add(view[taken : taken + piece])
        assert len(partial) == taken
    assert partial.complete
    assert taken == len(frame)
    assert bytes(partial.pop()) == frame
    assert len(partial) == 0
    assert not partial.complete


@pytest.mark.parametrize("length", [0, 3, LIMIT + 1, 2**31, 2**32 - 1])
def test_an_invalid_length_is_refused_with_its_last_byte(length: int) -> None:
    prefix = memoryview(struct.pack(">I", length))
    partial = PartialFrame(LIMIT)
    assert partial.add(prefix[:3]) == 3
    with pytest.raises(FrameError):
        partial.add(prefix[3:])


def test_memory_grows_with_received_bytes_not_with_the_length_prefix() -> None:
    partial = PartialFrame(16 * 1024 * 1024)
    promise = memoryview(struct.pack(">I", 16 * 1024 * 1024) + bytes(1000))
    piece = memoryview(bytes(100_000))
    tracemalloc.start()
    try:
        partial.add(promise)
        assert tracemalloc.get_traced_memory()[1] < 10_000
        for _ in range(10):
            partial.add(piece)
        assert tracemalloc.get_traced_memory()[0] < 1_500_000
    finally:
        tracemalloc.stop()
