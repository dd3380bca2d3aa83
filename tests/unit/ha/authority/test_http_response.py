"""HTTP responses, split at every byte, and what is refused."""

import pytest

from tianzhou.errors import ProtocolError
from tianzhou.ha.authority.http_response import HEAD_BYTES_MAX, ResponseDecoder

LIMIT = 1000

# As etcd 3.4.23 answered (dates and unrelated headers left out).
UNARY = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"a":"b"}'
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'7\r\n{"a":1}\r\nA;name=value\r\n\n{"b":"c"}\r\n0\r\n\r\n'
)
WITH_TRAILERS = (
    b"HTTP/1.1 412 Precondition Failed\r\nTrailer: Grpc-Trailer-Content-Type\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n"
    b"Grpc-Trailer-Content-Type: application/grpc\r\n\r\n"
)
TO_THE_END = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + UNARY
EMPTY = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
NO_REASON = b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"

RESPONSES = {
    UNARY: (200, b'{"a":"b"}', True),
    CHUNKED: (200, b'{"a":1}\n{"b":"c"}', True),
    WITH_TRAILERS: (412, b"{}\n", True),
    TO_THE_END: (400, b"Client sent an HTTP request to an HTTPS server.\n", False),
    INTERIM: (200, b'{"a":"b"}', True),
    EMPTY: (204, b"", False),
    NO_REASON: (200, b"", True),
}


def decoded(pieces: list[bytes], limit: int | None = LIMIT) -> ResponseDecoder:
    decoder = ResponseDecoder(limit)
    for piece in pieces:
        decoder.feed(piece)
    if not decoder.is_complete:
        decoder.feed_end()
    return decoder


@pytest.mark.parametrize("response", RESPONSES)
def test_a_response_split_at_every_byte_is_the_same(response: bytes) -> None:
    status, body, is_reusable = RESPONSES[response]
    splits = [[response[:at], response[at:]] for at in range(len(response) + 1)]
    splits.append([bytes([byte]) for byte in response])
    for pieces in splits:
        decoder = decoded(pieces)
        seen = (decoder.status, decoder.take_body(), decoder.is_reusable)
        assert seen == (status, body, is_reusable), pieces


@pytest.mark.parametrize("response", RESPONSES)
def test_a_response_that_ends_early_is_refused(response: bytes) -> None:
    whole = decoded([response]).take_body()
    for end in range(len(response)):
        try:
            decoder = decoded([response[:end]])
        except ProtocolError:
            continue
        # Only a body up to the end of the connection cannot be told from a shorter one.
        assert response == TO_THE_END
        assert whole.startswith(decoder.take_body())


def test_the_body_can_be_taken_as_it_comes() -> None:
    decoder = ResponseDecoder(None)
    decoder.feed(CHUNKED[:-20])
    first = decoder.take_body()
    assert first
    decoder.feed(CHUNKED[-20:])
    assert first + decoder.take_body() == b'{"a":1}\n{"b":"c"}'
    assert decoder.is_complete
    assert decoder.untaken_bytes == 0


def test_bytes_behind_a_response_spoil_the_connection() -> None:
    decoder = decoded([UNARY + b"H"])
    assert decoder.take_body() == b'{"a":"b"}'
    assert not decoder.is_reusable


@pytest.mark.parametrize(
    ("response", "part"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "no HTTP response"),
        (b"\x15\x03\x01\x00\x02\x02\x16", "no HTTP response"),
        (b"HTTP/2.0 200 OK\r\n\r\n", "no HTTP response"),
        (b"HTTP/1.1 99 X\r\n\r\n", "no status line"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "no header"),
        (b"HTTP/1.1 200 OK\r\na: b\r\n folded\r\n\r\n", "no header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n", "no header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n", "Content-Length '-3'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\n", "Content-Length '3, 3'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", "two headers"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "both Content-Length and Transfer-Encoding",
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "Transfer-Encoding 'gzip'"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "Content-Encoding 'gzip'"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "status 101"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, "status 100"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "no size of a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "no size of a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "behind a chunk"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\n", "CR LF"),
    ],
)
def test_what_is_no_response_is_refused(response: bytes, part: str) -> None:
    with pytest.raises(ProtocolError, match=part):
        decoded([response])


CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "more", "part"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"a: bcdefgh\r\n", "head of a response has over"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", b"", "a body of at least 1001"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 100, "a body of at least"),
        (CHUNKED_HEAD + b"FFFFFFFF\r\n", b"", "a body of at least 4294967295"),
        (CHUNKED_HEAD, b"64\r\n" + b"x" * 100 + b"\r\n", "a body of at least"),
        (CHUNKED_HEAD + b"1;", b"x" * 100, "a line of more than 256 bytes"),
        (CHUNKED_HEAD + b"0\r\n", b"a: bcdefgh\r\n", "trailers of a response have over"),
    ],
)
def test_a_response_without_end_is_refused_at_its_limit(
    head: bytes, more: bytes, part: str
) -> None:
    decoder = ResponseDecoder(LIMIT)
    fed_bytes = 0
    with pytest.raises(ProtocolError, match=part):  # noqa: PT012 - the piece is not known
        decoder.feed(head)
        while fed_bytes < 4 * HEAD_BYTES_MAX:
            decoder.feed(more)
            fed_bytes += len(more) or HEAD_BYTES_MAX
