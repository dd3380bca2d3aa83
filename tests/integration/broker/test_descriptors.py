"""A broker that runs out of file descriptors: it refuses connections and continues to write."""

import asyncio
import contextlib
import resource
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.brokers import DEADLINE_S, LOOPBACK, SMALL, Peer, eventually, peer_of
from tests.support.ports import free_port

from tianzhou.errors import RemotingError
from tianzhou.protocol.codes import ResponseCode

LIMIT = 512
SETTINGS = {
    "maxHashSlotNum": 50_000,
    "maxIndexNum": 200_000,
    "flushIntervalConsumeQueue": 50,
    "flushConsumeQueueThoroughInterval": 100,
    "vipListenEnable": "false",
}


@asynccontextmanager
async def broker_with_few_descriptors(
    port: int, store: Path
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A broker process with a low limit of open files."""
    pairs = SMALL | SETTINGS | {"listenPort": port, "storePathRootDir": store}
    flags = [part for key, value in pairs.items() for part in ("--set", f"{key}={value}")]
    with store.with_suffix(".log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tianzhou.cli.serve.broker", "--log-level", "warning", *flags,
            stdout=asyncio.subprocess.PIPE, stderr=errors,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT)),
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
        assert b"boot success" in line, line
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), DEADLINE_S)


def log_of(store: Path) -> bytes:
    return store.with_suffix(".log").read_bytes()


async def send_keyed(peer: Peer, number: int) -> int:
    """Send to a new queue each time, so that each needs files."""
    props = {"KEYS": f"k{number}"}
    with contextlib.suppress(RemotingError):
        answer = await peer.send(f"t{number % 40}", b"x" * 100, queue_count=1, props=props)
        return answer.code
    return -1


@pytest.mark.parametrize("connections", [LIMIT * 2])
async def test_idle_connections_do_not_stop_writes(tmp_path: Path, connections: int) -> None:
    port, store = free_port(), tmp_path / "store"
    async with (
        broker_with_few_descriptors(port, store) as process,
        peer_of(f"{LOOPBACK}:{port}") as peer,
    ):
        await eventually(lambda: _sends(peer, 0), "the first send")
        idle: list[socket.socket] = []
        try:
            for _ in range(connections):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex((LOOPBACK, port))
                idle.append(one)
            descriptors = Path(f"/proc/{process.pid}/fd")

            def taken() -> int:
                return len(list(descriptors.iterdir()))

            await eventually(lambda: taken() > LIMIT // 2, "idle connections")
            # Connected clients can still send, also to queues that need new files.
            for number in range(200):
                assert await send_keyed(peer, number) == ResponseCode.SUCCESS
            assert taken() < LIMIT
        finally:
            for one in idle:
                one.close()
        async with peer_of(f"{LOOPBACK}:{port}") as other:
            await eventually(lambda: _sends(other, 1), "a send of a new connection")
        names = [path.name for path in (store / "index").iterdir()]
        assert len(names) == 1, names
    assert not (store / "abort").exists(), "it did not stop in good order"
    assert process.returncode == 0


async def test_writes_resume_when_files_can_be_opened_again(tmp_path: Path) -> None:
    port, store = free_port(), tmp_path / "store"
    async with (
        broker_with_few_descriptors(port, store) as process,
        peer_of(f"{LOOPBACK}:{port}") as peer,
    ):
        await eventually(lambda: _answers(peer), "the broker")
        # No descriptor is left: no file can be opened, mapped or created.
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (4, LIMIT))
        codes = [await send_keyed(peer, number) for number in range(20)]
        assert ResponseCode.SUCCESS not in codes
        assert not list((store / "commitlog").iterdir())
        assert not (store / "index").exists() or not list((store / "index").iterdir())
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        for number in range(20):
            assert await send_keyed(peer, number) == ResponseCode.SUCCESS
        # Flushes get no descriptor and stay pending.
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (4, LIMIT))
        stopped_at = (store / "checkpoint").read_bytes()
        codes = [await send_keyed(peer, number) for number in range(20, 60)]
        refused = [code for code in codes if code != ResponseCode.SUCCESS]
        await eventually(
            lambda: b"housekeeping failed and will be retried" in log_of(store), "a round in vain"
        )
        assert (store / "checkpoint").read_bytes() == stopped_at
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        for number in range(20, 60):
            assert await send_keyed(peer, number) == ResponseCode.SUCCESS, refused
        await eventually(
            lambda: (store / "checkpoint").read_bytes() != stopped_at, "a checkpoint again"
        )
        assert len(list((store / "index").iterdir())) == 1
    assert not (store / "abort").exists(), "it did not stop in good order"
    assert process.returncode == 0


async def _answers(peer: Peer) -> bool:
    with contextlib.suppress(RemotingError):
        await peer.pull("g", "t", 0, 0)
        return True
    return False


async def _sends(peer: Peer, number: int) -> bool:
    return await send_keyed(peer, number) == ResponseCode.SUCCESS
