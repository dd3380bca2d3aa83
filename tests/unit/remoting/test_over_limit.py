"""The head of the first frame of a refused connection, whatever body it announces."""

import pytest

from tianzhou.errors import ProtocolError
from tianzhou.protocol.command import Command, HeaderEncoding, encode
from tianzhou.remoting.over_limit import HEAD_MAX_BYTES, read_head


@pytest.mark.parametrize("encoding", list(HeaderEncoding))
def test_a_head_is_read_when_it_is_complete(encoding: HeaderEncoding) -> None:
    body = b"x" * 1000
    request = Command(code=310, opaque=7, ext_fields={"a": "b"}, body=body, encoding=encoding)
    frame = encode(request)
    head_bytes = len(frame) - len(body)
    for size_bytes in range(head_bytes):
        assert read_head(frame[:size_bytes]) is None
    for received in (frame[:head_bytes], frame, frame + frame):
        found = read_head(received)
        assert found is not None
        assert (found.code, found.opaque, found.encoding, found.body) == (310, 7, encoding, b"")


@pytest.mark.parametrize(
    "received",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x10" + (HEAD_MAX_BYTES + 1).to_bytes(4, "big"),
        b"\0\0\0\x04\0\0\0\x08",
        b"\0\0\0\x08\0\0\0\x04abcd",
        b"\0" * 8,
    ],
)
def test_an_invalid_frame_is_refused_before_it_is_complete(received: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_head(received)
