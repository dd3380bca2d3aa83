"""`kill -9` under load: acknowledged messages are delivered, consumers resume at their offsets."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.brokers import (
    DEADLINE_S,
    LOOPBACK,
    SMALL,
    Peer,
    bodies_in,
    eventually,
    peer_of,
    send_fields,
)
from tests.support.ports import free_port

from tianzhou.errors import RemotingError
from tianzhou.protocol.codes import RequestCode, ResponseCode

QUEUE_COUNT = 4
SENDER_COUNT = 8
ACKNOWLEDGED_PER_ROUND = 300


@asynccontextmanager
async def broker_process(
    port: int, store: Path, **settings: object
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A broker in its own process, killed at the end."""
    pairs = (
        SMALL
        | settings
        | {"listenPort": port, "storePathRootDir": store, "vipListenEnable": "false"}
    )
    flags = [part for key, value in pairs.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tianzhou.cli.serve.broker", "--log-level", "warning", *flags,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
        assert b"boot success" in line, line
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


class Load:
    """Producers that send until stopped, and retry unacknowledged messages."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.acknowledged: set[bytes] = set()
        self.tries = Counter[bytes]()
        self.stopping = False

    async def reach(self, goal: int) -> None:
        await eventually(lambda: len(self.acknowledged) >= goal, f"{goal} acknowledged")

    async def send(self, sender: int) -> None:
        number = 0
        while not self.stopping:
            body = b"%d-%d" % (sender, number)
            await self.send_until_acknowledged(body, number % QUEUE_COUNT)
            number += 1

    async def send_until_acknowledged(self, body: bytes, queue_id: int) -> None:
        while True:
            self.tries[body] += 1
            try:
                answer = await self.peer.ask(
                    RequestCode.SEND_MESSAGE_V2, send_fields("t", queue_id=queue_id), body, 2000
                )
            except RemotingError:
                await asyncio.sleep(0.02)
            else:
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                self.acknowledged.add(body)
                return


class Reader:
    """A consumer that commits its offsets and restarts from them."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.seen = Counter[bytes]()

    async def read_rest(self) -> None:
        """Read from the committed offsets to the ends of all queues."""
        for queue_id in range(QUEUE_COUNT):
            queue = {"consumerGroup": "g", "topic": "t", "queueId": str(queue_id)}
            committed = await self.peer.expect(RequestCode.QUERY_CONSUMER_OFFSET, queue)
            offset = int(committed.fields["offset"])
            while True:
                answer = await self.peer.pull("g", "t", queue_id, offset)
                if answer.code != ResponseCode.SUCCESS:
                    assert answer.code == ResponseCode.PULL_NOT_FOUND, answer.remark
                    break
                self.seen.update(bodies_in(answer))
                offset = int(answer.fields["nextBeginOffset"])
            await self.peer.expect(
                RequestCode.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": str(offset)}
            )


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_kill_9_under_load_loses_nothing_acknowledged(tmp_path: Path, flush: str) -> None:
    port, store = free_port(), tmp_path / "store"
    async with peer_of(f"{LOOPBACK}:{port}") as peer:
        load, reader = Load(peer), Reader(peer)
        senders: list[asyncio.Task[None]] = []
        for round_number in range(3):
            async with broker_process(
                port, store, flushDiskType=flush, flushConsumerOffsetInterval=100
            ):
                if not senders:
                    await peer.send("t", b"first")
                    senders = [
                        asyncio.create_task(load.send(number)) for number in range(SENDER_COUNT)
                    ]
                await load.reach((round_number + 1) * ACKNOWLEDGED_PER_ROUND)
                await reader.read_rest()
        load.stopping = True
        async with broker_process(port, store, flushDiskType=flush):
            await asyncio.wait_for(asyncio.gather(*senders), DEADLINE_S)
            await reader.read_rest()
            everything = Counter[bytes]()
            for queue_id in range(QUEUE_COUNT):
                offset = 0
                while True:
                    answer = await peer.pull("all", "t", queue_id, offset)
                    if answer.code != ResponseCode.SUCCESS:
                        break
                    everything.update(bodies_in(answer))
                    offset = int(answer.fields["nextBeginOffset"])
        missing = load.acknowledged - everything.keys()
        assert not missing, f"{len(missing)} of {len(load.acknowledged)} acknowledged are lost"
        assert not load.acknowledged - reader.seen.keys(), "the consumer missed messages"
        # A message is stored twice only if it was sent twice: its response was lost by the kill.
        twice = {body: count for body, count in everything.items() if count > load.tries[body] > 0}
        assert not twice
        repeated = sum(everything.values()) - len(everything)
        tried_again = sum(load.tries.values()) - len(load.tries)
        assert repeated <= tried_again
