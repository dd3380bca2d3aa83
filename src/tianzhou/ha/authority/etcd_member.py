"""One member of etcd: its address, its idle connections, and how its last requests ended."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.ha.authority.etcd_connection import EtcdConnection, connect
from tianzhou.ha.authority.etcd_endpoints import Endpoint
from tianzhou.remoting import sockets
from tianzhou.remoting.address import is_numeric

_IDLE_CONNECTIONS_MAX = 3
_IDLE_S_MAX = 20.0
"""Proxies close idle connections after 30 s or more; a request into a closed one has no answer."""
_RESOLVE_S = 0.2
"""Wait for name resolution, if addresses are known from before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHealth:
    """What operators see of a member."""

    endpoint: str
    is_answering: bool
    """Its last request was answered; False before the first."""
    problem: str
    """Why it was not, or, after a probe, its alarms; empty if it was, or if none was sent."""
    answered_ms_ago: int | None
    """None: never."""
    latency_ms: float
    """Of the last answer."""
    version: str = ""
    """Of etcd; empty without a probe."""
    is_leader: bool = False
    """Of etcd's members; False without a probe."""


class Member:
    """Connections to one endpoint."""

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        self.endpoint = endpoint
        self.problem = ""
        self.answered_s: float | None = None
        self.latency_s = 0.0
        self._tls = tls
        self._idle: list[EtcdConnection] = []
        self._addresses: list[str] = []
        self._resolving: asyncio.Task[list[str]] | None = None
        self._on_failure: set[Callable[[], None]] = set()
        self._is_closed = False

    # -- how requests end ------------------------------------------------------------------------

    def answered(self, latency_s: float) -> bool:
        """Returns whether this is news."""
        is_news = bool(self.problem)
        self.answered_s = asyncio.get_running_loop().time()
        self.latency_s = latency_s
        self.problem = ""
        return is_news

    def failed(self, problem: str) -> bool:
        """Connections that wait silently (watches) end, too. Returns whether this is news."""
        is_news = not self.problem
        self.problem = problem
        self.close_idle()
        for end in tuple(self._on_failure):
            end()
        return is_news

    def call_on_failure(self, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` when a request fails; returns what undoes this."""
        self._on_failure.add(end)
        return lambda: self._on_failure.discard(end)

    def health(self) -> MemberHealth:
        """For operators."""
        now_s = asyncio.get_running_loop().time()
        ago_s = None if self.answered_s is None else now_s - self.answered_s
        return MemberHealth(
            endpoint=str(self.endpoint),
            is_answering=self.answered_s is not None and not self.problem,
            problem=self.problem,
            answered_ms_ago=None if ago_s is None else int(ago_s * 1000),
            latency_ms=round(self.latency_s * 1000, 3),
        )

    # -- connections -----------------------------------------------------------------------------

    async def connection(self, timeout_s: float) -> EtcdConnection:
        """An idle or new connection. Raises OSError."""
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            idle = self._idle.pop()
            if idle.is_usable and now_s - idle.idle_since_s < _IDLE_S_MAX:
                idle.has_sent = False
                return idle
            idle.abort()
        async with asyncio.timeout(timeout_s):
            return await self._connect(now_s + timeout_s)

    def release(self, connection: EtcdConnection) -> None:
        """After a complete response."""
        has_space = len(self._idle) < _IDLE_CONNECTIONS_MAX and not self._is_closed
        if connection.is_usable and has_space:
            connection.idle_since_s = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()

    def close_idle(self) -> None:
        """A member that failed once gets new connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def close(self) -> None:
        """Close idle connections and those that are released later, and end watches."""
        self._is_closed = True
        self.close_idle()
        for end in tuple(self._on_failure):
            end()

    async def _connect(self, deadline_s: float) -> EtcdConnection:
        loop = asyncio.get_running_loop()
        addresses = await self._resolve()
        for left_count, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            timeout_s = max((deadline_s - loop.time()) / left_count, 0.01)
            try:
                async with asyncio.timeout(timeout_s):
                    return await connect(
                        address, self.endpoint.port, self._tls, self.endpoint.host, timeout_s
                    )
            except OSError:
                if left_count == 1:
                    raise
        raise OSError(f"{self.endpoint.host} has no address")

    async def _resolve(self) -> list[str]:
        """Fresh addresses; the last known ones if the resolver fails or is slow.

        One lookup at a time: a resolver that hangs holds a thread for each.
        """
        host = self.endpoint.host
        if is_numeric(host):
            return [host]
        if self._resolving is None:
            self._resolving = asyncio.create_task(_lookup(host, self.endpoint.port))
            self._resolving.add_done_callback(self._on_resolved)
        lookup = asyncio.shield(self._resolving)
        try:
            return await (asyncio.wait_for(lookup, _RESOLVE_S) if self._addresses else lookup)
        except OSError:
            if not self._addresses:
                raise
            return self._addresses

    def _on_resolved(self, task: asyncio.Task[list[str]]) -> None:
        self._resolving = None
        if not task.cancelled() and task.exception() is None:
            self._addresses = task.result()


async def _lookup(host: str, port: int) -> list[str]:
    try:
        return [str(address[0]) for _, address in await sockets.resolve(host, port)]
    except socket.gaierror as error:
        raise OSError(f"the name {host} cannot be resolved: {error.strerror}") from error
