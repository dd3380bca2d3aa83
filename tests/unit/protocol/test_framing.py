"""Splitting bytes into frames."""

import pytest
from tests.support import framing

from tianzhou.errors import FrameError
from tianzhou.limits import FRAME_BYTES_MAX

pytestmark = pytest.mark.usefixtures("codec")

ONE = b"\x00\x00\x00\x05hello"
TWO = b"\x00\x00\x00\x04twoo"


def test_no_bytes_have_no_frame() -> None:
    assert framing.split(b"") == ([], 0)
    assert framing.split(memoryview(b"")) == ([], 0)
    assert framing.split(bytearray()) == ([], 0)


def test_complete_frames_are_split_off_and_the_rest_remains() -> None:
    assert framing.split(ONE + TWO) == ([(0, 9), (9, 17)], 17)
    assert framing.split(ONE + TWO[:-1]) == ([(0, 9)], 9)
    assert framing.split(ONE + TWO[:3]) == ([(0, 9)], 9)


def test_the_limit_excludes_the_length_prefix() -> None:
    assert framing.split(ONE, 5) == ([(0, 9)], 9)
    with pytest.raises(FrameError, match="frame of 5 bytes announced, the limit is 4"):
        framing.split(ONE, 4)


@pytest.mark.parametrize("word", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x01", b"GET "])
def test_a_length_over_the_limit_is_rejected_at_its_fourth_byte(word: bytes) -> None:
    assert framing.split(word[:3]) == ([], 0)
    with pytest.raises(FrameError, match=f"frame of {int.from_bytes(word, 'big')} bytes"):
        framing.split(word)


@pytest.mark.parametrize("length", range(4))
def test_a_length_below_the_header_length_is_rejected(length: int) -> None:
    with pytest.raises(FrameError, match="the shortest possible has 4"):
        framing.split(bytes([0, 0, 0, length]))


def test_the_largest_frame_of_rocketmq_is_allowed_by_default() -> None:
    assert FRAME_BYTES_MAX == 16_777_216
    assert framing.split(b"\x01\x00\x00\x00") == ([], 0)
