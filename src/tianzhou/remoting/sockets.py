"""Opens sockets: listening, connecting, options."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import sys
from collections.abc import Sequence
from typing import Any

from tianzhou.errors import RemotingError
from tianzhou.remoting.address import format_address, is_every_interface, is_numeric
from tianzhou.remoting.limits import Limits

log = logging.getLogger(__name__)

_BIND_TRIES_MAX = 16

_Address = tuple[Any, ...]
_FamilyAndAddress = tuple[socket.AddressFamily, _Address]


async def resolve(host: str, port: int) -> list[_FamilyAndAddress]:
    """The socket addresses of a host. Only a name needs the resolver, which runs in a thread."""
    flags = socket.AI_NUMERICHOST if is_numeric(host) else 0
    if flags:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    else:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in infos))


# -- listening -------------------------------------------------------------------------------------


async def listening(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on every address of `host`, all on one port. Raises RemotingError.

    An IPv6 host may be in brackets; see `is_every_interface` for those that mean all interfaces.
    """
    try:
        if is_every_interface(host):
            return [_listening_everywhere(port, backlog)]
        return _bound(await resolve(host.strip("[]"), port), port, backlog)
    except OSError as error:
        where = format_address(host.strip("[]") or "*", port)
        raise RemotingError(f"cannot listen on {where}: {error.strerror or error}") from error


def _listening_everywhere(port: int, backlog: int) -> socket.socket:
    """One socket for IPv4 and IPv6; for IPv4 alone where the machine has no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return _listening_on(socket.AF_INET6, ("::", port), backlog, dual_stack=True)
        except OSError as error:
            # IPv6 may be compiled in and still be switched off.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return _listening_on(socket.AF_INET, ("0.0.0.0", port), backlog)  # noqa: S104 - asked for


def _bound(addresses: Sequence[_FamilyAndAddress], port: int, backlog: int) -> list[socket.socket]:
    """Bind all addresses to one port. With port 0 the one chosen for the first may be in use."""
    for tries_left in reversed(range(_BIND_TRIES_MAX)):
        sockets: list[socket.socket] = []
        try:
            for family, address in addresses:
                chosen = sockets[0].getsockname()[1] if sockets else port
                on_port = (address[0], chosen, *address[2:])
                sockets.append(_listening_on(family, on_port, backlog))
        except OSError as error:
            for each in sockets:
                each.close()
            if port or error.errno != errno.EADDRINUSE or not tries_left:
                raise
        else:
            return sockets
    raise AssertionError("the last try returns or raises")


def _listening_on(
    family: socket.AddressFamily, address: _Address, backlog: int, *, dual_stack: bool = False
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        sock.bind(address)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


# -- connecting ------------------------------------------------------------------------------------


async def connected(host: str, port: int, timeout_s: float, limits: Limits) -> socket.socket:
    """A connected socket. The addresses of a host are tried one after the other and share the time.

    Raises OSError (TimeoutError included) for the last address that was tried.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    async with asyncio.timeout_at(deadline_s):
        addresses = await resolve(host, port)
    for left_count, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        try:
            now_s = loop.time()
            async with asyncio.timeout_at(now_s + (deadline_s - now_s) / left_count):
                return await _connected_to(family, address, limits)
        except OSError:
            if left_count == 1:
                raise
    raise OSError(errno.EADDRNOTAVAIL, f"{host} has no address")


async def _connected_to(
    family: socket.AddressFamily, address: _Address, limits: Limits
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        set_options(sock, limits)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def cause_of(error: OSError) -> str:
    """Why a connection was not made or has ended: the system's text, which asyncio replaces."""
    if isinstance(error, (socket.gaierror, ssl.SSLError)):  # their numbers are not the system's
        return error.strerror or str(error)
    if error.errno:
        return os.strerror(error.errno)
    if isinstance(error, TimeoutError):
        return "no response in time"
    return str(error) or "the peer closed it"


# -- options ---------------------------------------------------------------------------------------


def set_options(sock: socket.socket, limits: Limits) -> None:
    """Send small frames at once, and detect peers that are gone by TCP keepalive."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        timeout_s = max(limits.vanished_ms // 1000, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, max(timeout_s // 2, 1)),
            (socket.TCP_KEEPINTVL, max(timeout_s // 8, 1)),
            (socket.TCP_KEEPCNT, 4),
            (socket.TCP_USER_TIMEOUT, limits.vanished_ms),
        ):
            # Without an option that the kernel refuses, the idle sweep closes such connections.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
