"""Benchmark of event-loop stalls: how long other requests wait during an expensive one.

A broker and a nameserver with large tables run in separate processes, on the default event loop.
One connection sends the requests of `costly_requests.py` in sequence; another continuously queries
the offset of a queue (or a route). Its longest wait during each request is the figure.
`python -m bench.bench_stalls` prints the table.
"""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.brokers import Peer, peer_of, running_broker, running_namesrv

from bench import costly_requests
from bench.costly_requests import Costly
from tianzhou.limits import REGISTERED_TOPICS_MAX
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import encode
from tianzhou.remoting.event_loop import run, spare_collections

HEADS = ["request", "server", "code", "longest wait of another connection, ms"]
ROUNDS = 3
LISTED = 12
"""The longest waits that the table shows."""
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Stall:
    """The effect of one request on others."""

    server: str
    code: int
    what: str
    wait_ms: float


def measure(*, quick: bool) -> list[Stall]:
    """All requests to both servers, the longest wait first; of each the best of the rounds.

    Stalls of the server occur in each round, those of the machine only in some.
    """
    best: dict[tuple[str, int, str], Stall] = {}
    for _ in range(1 if quick else ROUNDS):
        for stall in (*_measure_one("broker"), *_measure_one("nameserver")):
            key = (stall.server, stall.code, stall.what)
            if key not in best or stall.wait_ms < best[key].wait_ms:
                best[key] = stall
    return sorted(best.values(), key=lambda stall: stall.wait_ms, reverse=True)


def _measure_one(server: str) -> list[Stall]:
    with tempfile.TemporaryDirectory() as folder:
        requests_file = Path(folder) / "requests"
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.bench_stalls", "serve", server, folder],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            deadline_s = time.monotonic() + 120
            while (
                not requests_file.exists()
                and time.monotonic() < deadline_s
                and process.poll() is None
            ):
                time.sleep(0.1)
            address, requests = pickle.loads(requests_file.read_bytes())  # noqa: S301 - our own process wrote it
            return asyncio.run(_stalls(server, address, requests))
        finally:
            process.terminate()
            process.wait()


async def _stalls(server: str, address: str, requests: list[Costly]) -> list[Stall]:
    found: list[Stall] = []
    async with peer_of(address) as small:
        for costly in requests:
            waits: list[float] = [0.0]
            # Encoded before, sent by a thread: megabytes must not delay the small requests here.
            frame = encode(costly.command())
            asking = asyncio.create_task(_ask_steadily(server, small, waits))
            await asyncio.to_thread(_send, address, frame)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            found.append(Stall(server, int(costly.code), costly.what, max(waits) * 1000))
    return found


def _send(address: str, frame: bytes) -> None:
    """Send a frame and read its response."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as peer:
        peer.sendall(frame)
        left = 4
        head = b""
        while len(head) < left:
            head += peer.recv(left - len(head))
        left = int.from_bytes(head, "big")
        buffer = bytearray(1 << 20)
        while left > 0:
            count = peer.recv_into(buffer, min(left, len(buffer)))
            if not count:
                raise ConnectionError("the server closed the connection")
            left -= count


async def _ask_steadily(server: str, peer: Peer, waits: list[float]) -> None:
    code = RequestCode.GET_MAX_OFFSET if server == "broker" else RequestCode.GET_ROUTEINFO_BY_TOPIC
    while True:
        began_s = time.perf_counter()
        await peer.ask(code, {"topic": "deep", "queueId": "0"})
        waits.append(time.perf_counter() - began_s)
        await asyncio.sleep(0.001)


# -- the servers -----------------------------------------------------------------------------------


@asynccontextmanager
async def _large_broker(folder: Path) -> AsyncGenerator[tuple[str, list[Costly]]]:
    async with running_broker(folder / "store", **costly_requests.SETTINGS) as broker:
        async with peer_of(broker.address) as peer:
            world = await costly_requests.fill(broker, peer)
        yield broker.address, costly_requests.broker_requests(world)


@asynccontextmanager
async def _namesrv(folder: Path) -> AsyncGenerator[tuple[str, list[Costly]]]:
    async with running_namesrv(folder) as address:
        yield address, costly_requests.namesrv_requests(REGISTERED_TOPICS_MAX)


async def _serve(server: str, folder: Path) -> None:
    make = _large_broker if server == "broker" else _namesrv
    async with make(folder) as (address, requests):
        spare_collections()
        written = folder / "requests.part"
        written.write_bytes(pickle.dumps((address, requests)))
        written.rename(folder / "requests")
        parent = os.getppid()
        while os.getppid() == parent:  # noqa: ASYNC110 - nothing signals its end
            await asyncio.sleep(1)


def rows(found: list[Stall]) -> list[list[str]]:
    """The longest waits, and how many there are in all."""
    shown = [
        [stall.what, stall.server, RequestCode(stall.code).name, f"{stall.wait_ms:.1f}"]
        for stall in found[:LISTED]
    ]
    rest = found[LISTED:]
    if rest:
        shown.append([f"{len(rest)} others", "", "", f"at most {rest[0].wait_ms:.1f}"])
    return shown


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        run(_serve(sys.argv[2], Path(sys.argv[3])))
        return
    for row in rows(measure(quick=True)):
        sys.stdout.write(" | ".join(row) + "\n")


if __name__ == "__main__":
    main()
