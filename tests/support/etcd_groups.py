"""Groups on a real etcd for tests, and servers that stand between or in place of it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit

from tests.support.etcd import EtcdCluster
from tianzhou.clock import steady_ms
from tianzhou.ha.authority.etcd import EtcdAuthority
from tianzhou.ha.authority.etcd_client import EtcdClient
from tianzhou.ha.authority.etcd_endpoints import EtcdAccess, parse_endpoints
from tianzhou.ha.authority.etcd_keys import GroupKeys, group_keys
from tianzhou.ha.authority.values import Alive, GroupState, Replica
from tianzhou.remoting.tls.contexts import Tls

LEASE_S = 2
_NUMBERS = count(1)


def new_group() -> GroupKeys:
    """Keys that no other test uses."""
    return group_keys("tests", f"group-{next(_NUMBERS)}")


@asynccontextmanager
async def authority_on(
    endpoints: str | EtcdCluster,
    keys: GroupKeys,
    *,
    user: str = "",
    password: str = "",
    tls: Tls | None = None,
    lease_s: int = LEASE_S,
    clock: Callable[[], int] = steady_ms,
) -> AsyncGenerator[EtcdAuthority]:
    """An authority of one group, closed at the end."""
    text = endpoints if isinstance(endpoints, str) else endpoints.endpoints
    access = EtcdAccess(
        endpoints=parse_endpoints(text), user=user, password=password, tls=tls or Tls()
    )
    authority = EtcdAuthority(EtcdClient(access, clock), keys, lease_s, clock)
    try:
        yield authority
    finally:
        await authority.close()


def a_replica(number: int, *, addr: str = "", store: str = "") -> Replica:
    """The replica of a broker."""
    return Replica(
        addr=addr or f"h{number}:10911", ha=f"h{number}:10912", store_id=store or f"s{number}",
        boot_id="b", empty=False,
    )  # fmt: skip


def a_state(master: int = 1, epoch: int = 1, *in_sync: int) -> GroupState:
    """A valid state."""
    return GroupState(group="g", epoch=epoch, master=master, in_sync=in_sync or (master,))


def an_alive(incarnation: int, end: int = 0, epoch: int = 1) -> Alive:
    """What a replica says of its log."""
    return Alive(incarnation=incarnation, epoch=epoch, end=end, confirm=0)


# -- servers ---------------------------------------------------------------------------------------

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve, port: int = 0) -> AsyncGenerator[str]:
    """A server on loopback that is not etcd; yields its endpoint."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            tasks.discard(task)
            writer.transport.abort()

    listening = await asyncio.start_server(handle, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        open_tasks = tuple(tasks)
        for task in open_tasks:
            task.cancel()
        if open_tasks:
            await asyncio.wait(open_tasks)
        await listening.wait_closed()


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The path of a request, and all of its bytes."""
    head = await reader.readuntil(b"\r\n\r\n")
    path = head.split(b" ", 2)[1].decode()
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    )
    return path, head + await reader.readexactly(length)


@dataclass(slots=True)
class Proxy:
    """Before a member; one fault at a time, for requests with one path."""

    endpoint: str = ""
    path: str = "/v3/kv/txn"
    fault: str = ""
    """"" passes; `lose answer`: carried out, no answer; `lose request`: not carried out, no answer;
    `late`: carried out when `release` is set, no answer; `refuse`: a time-out of etcd as answer."""
    release: asyncio.Event = field(default_factory=asyncio.Event)
    late: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    faults_count: int = 0


@asynccontextmanager
async def gateway_proxy(target: str) -> AsyncGenerator[Proxy]:
    """A proxy before the endpoint of a member."""
    url = urlsplit(target)
    proxy = Proxy()

    async def forward(request: bytes, writer: asyncio.StreamWriter | None) -> None:
        reader_there, there = await asyncio.open_connection(url.hostname, url.port)
        try:
            there.write(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            while data := await reader_there.read(65536):
                if writer is not None:
                    writer.write(data)
        finally:
            there.transport.abort()

    async def forward_late(request: bytes) -> None:
        await proxy.release.wait()
        await forward(request, None)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path, request = await read_request(reader)
        if not proxy.fault or path != proxy.path:
            await forward(request, writer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            return
        proxy.faults_count += 1
        if proxy.fault == "lose answer":
            await forward(request, None)
        elif proxy.fault == "late":
            proxy.late.append(asyncio.create_task(forward_late(request)))
        elif proxy.fault == "refuse":
            body = b'{"error":"etcdserver: request timed out","code":14,"message":"etcdserver: '
            body += b'request timed out"}'
            head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()

    async with server(serve) as endpoint:
        proxy.endpoint = endpoint
        yield proxy
        for task in proxy.late:
            task.cancel()
        if proxy.late:
            await asyncio.wait(proxy.late)
