"""Opening sockets."""

import asyncio
import errno
import socket
import ssl
import sys

import pytest

from tianzhou.errors import RemotingError
from tianzhou.remoting import sockets
from tianzhou.remoting.limits import Limits


def test_options_send_at_once_and_detect_a_vanished_peer() -> None:
    with socket.socket() as sock:
        sockets.set_options(sock, Limits(vanished_ms=40_000))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 5
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 40_000


async def test_numeric_hosts_resolve_without_a_resolver() -> None:
    assert await sockets.resolve("127.0.0.1", 80) == [(socket.AF_INET, ("127.0.0.1", 80))]
    ((family, address),) = await sockets.resolve("::1", 80)
    assert (family, address[:2]) == (socket.AF_INET6, ("::1", 80))


async def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(RemotingError, match=r"cannot listen on 192\.0\.2\.1:0"):
        await sockets.listening("192.0.2.1", 0, 10)
    with pytest.raises(RemotingError, match=r"cannot listen on host\.invalid:0"):
        await sockets.listening("host.invalid", 0, 10)


async def test_connecting_tries_every_address() -> None:
    # "localhost" may be ::1 first, without a listener.
    (listening,) = await sockets.listening("127.0.0.1", 0, 10)
    with listening:
        sock = await sockets.connected("localhost", listening.getsockname()[1], 5, Limits())
        with sock:
            assert sock.getpeername()[0] == "127.0.0.1"


async def test_a_failed_connect_closes_its_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OSError, match=r"Connect call failed|refused"):
        await sockets.connected("127.0.0.1", port, 5, Limits())
    with pytest.raises(TimeoutError):
        await sockets.connected("127.0.0.1", port, 0, Limits())
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed"), "Connection refused"),
        (OSError(errno.EHOSTUNREACH, "Connect call failed"), "No route to host"),
        (TimeoutError(errno.ETIMEDOUT, "Connect call failed"), "Connection timed out"),
        (TimeoutError(), "no response in time"),
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), "Name not known"),
        (ssl.SSLError(1, "[SSL] certificate verify failed"), "[SSL] certificate verify failed"),
        (ConnectionResetError(), "the peer closed it"),
    ],
)  # fmt: skip
def test_the_cause_of_a_lost_connection_is_never_empty(error: OSError, text: str) -> None:
    assert sockets.cause_of(error) == text
