"""TLS over a non-blocking socket: splits at any byte, full sockets, ends, and hostile peers."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trustme

from tianzhou.remoting.tls.contexts import Tls
from tianzhou.remoting.tls.tls_socket import TlsSocket

NAME = "localhost"
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """Of a server, and of a client that checks it."""
    folder, authority = tmp_path_factory.mktemp("certificates"), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert(NAME).private_key_and_cert_chain_pem.write_to_path(str(folder / "s.pem"))
    server = Tls(certificate=folder / "s.pem").server_context()
    assert server is not None
    return server, Tls(trusted=folder / "ca.pem").client_context()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(False)
    yield pair
    for each in pair:
        each.close()


class Peer:
    """The client, whose records are in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=NAME)

    def records(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()


def shaken(
    ends: tuple[socket.socket, socket.socket], contexts: Contexts, piece: int = 1 << 16
) -> tuple[TlsSocket, Peer]:
    """After a handshake whose bytes came in pieces."""
    server, peer = TlsSocket(ends[0], contexts[0]), Peer(contexts[1])
    is_done = False
    while not is_done:
        with suppress(ssl.SSLWantReadError):
            peer.tls.do_handshake()
        data = peer.outgoing.read()
        for start in range(0, len(data), piece):
            ends[1].send(data[start : start + piece])
            is_done = server.shake()
            assert not is_done or start + piece >= len(data)
        with suppress(BlockingIOError):
            peer.incoming.write(ends[1].recv(1 << 16))
    return server, peer


def test_records_and_the_handshake_may_be_split_at_any_byte(
    ends: tuple[socket.socket, socket.socket], contexts: Contexts
) -> None:
    server, peer = shaken(ends, contexts, piece=1)
    ends[1].send(whole := peer.records(bytes(30)))
    assert server.recv(4096) == bytes(30)
    for split in range(1, len(whole)):
        record = peer.records(split.to_bytes(30, "big"))
        ends[1].send(record[:split])
        with pytest.raises(BlockingIOError):
            server.recv(4096)
        ends[1].send(record[split:])
        assert server.recv(4096) == split.to_bytes(30, "big")


def test_a_full_socket_gets_every_byte_once(
    ends: tuple[socket.socket, socket.socket], contexts: Contexts
) -> None:
    server, peer = shaken(ends, contexts)
    data = bytes(range(256)) * 8192
    left, received, refused_count = [memoryview(b"head"), memoryview(data)], b"", 0
    while len(received) < len(data) + 4:
        with suppress(BlockingIOError):
            while left:
                count = server.sendmsg(left)
                assert 0 < count <= 128 * 1024
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if left:
                    left[0] = left[0][count:]
        refused_count += bool(left)
        peer.incoming.write(ends[1].recv(10_000))
        with suppress(ssl.SSLWantReadError):
            while True:
                received += peer.tls.read(1 << 16)
    assert received == b"head" + data
    assert refused_count > 3, "the socket was full"


def test_what_does_not_fit_is_received_later(
    ends: tuple[socket.socket, socket.socket], contexts: Contexts
) -> None:
    server, peer = shaken(ends, contexts)
    ends[1].send(peer.records(b"abcdefghij"))
    view, received = memoryview(bytearray(4)), b""
    for _ in range(3):
        received += bytes(view[: server.recv_into(view)])
        assert server.has_more == (len(received) < 10)
    assert received == b"abcdefghij"
    with pytest.raises(BlockingIOError):
        server.recv_into(view)


@pytest.mark.parametrize("is_polite", [True, False])
def test_the_end_is_an_empty_read(
    ends: tuple[socket.socket, socket.socket], contexts: Contexts, is_polite: bool
) -> None:
    server, peer = shaken(ends, contexts)
    record = peer.records(b"last")
    if is_polite:
        with suppress(ssl.SSLWantReadError):
            peer.tls.unwrap()
        record += peer.outgoing.read()
    ends[1].send(record)
    ends[1].shutdown(socket.SHUT_WR)
    assert server.recv(4096) == b"last"
    assert server.recv(4096) == b""
    server.close()


def test_changed_records_and_garbage_are_errors(
    ends: tuple[socket.socket, socket.socket], contexts: Contexts
) -> None:
    server, peer = shaken(ends, contexts)
    record = bytearray(peer.records(b"x" * 50))
    record[-1] ^= 1
    ends[1].send(record)
    with pytest.raises(ssl.SSLError):
        server.recv(4096)


def test_a_handshake_of_garbage_fails(
    ends: tuple[socket.socket, socket.socket], contexts: Contexts
) -> None:
    server = TlsSocket(ends[0], contexts[0])
    ends[1].send(b"\x16" + b"garbage" * 20)
    with pytest.raises(ssl.SSLError):
        server.shake()
