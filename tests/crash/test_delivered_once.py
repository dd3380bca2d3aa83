"""Repeated `kill -9`: a delayed message is delivered once, and none is lost."""

from collections import Counter
from pathlib import Path

import pytest

from tests.integration.broker.test_crash import broker_process
from tests.support.brokers import (
    LOOPBACK,
    Peer,
    bodies_in,
    eventually,
    peer_of,
)
from tests.support.ports import free_port
from tianzhou.errors import RemotingError
from tianzhou.protocol.codes import ResponseCode

COUNT = 100
KILLS = 3


async def delivered(peer: Peer) -> Counter[bytes]:
    """The number of copies of each message of the topic."""
    bodies, offset = Counter[bytes](), 0
    while True:
        answer = await peer.pull("g", "t", 0, offset)
        if answer.code != ResponseCode.SUCCESS:
            return bodies
        bodies.update(bodies_in(answer))
        offset = int(answer.fields["nextBeginOffset"])


async def answering(peer: Peer) -> bool:
    try:
        await peer.pull("g", "t", 0, 0)
    except RemotingError:
        return False
    return True


@pytest.mark.parametrize(
    "wait", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}], ids=["level", "timer"]
)
async def test_repeated_kills_deliver_every_delayed_message_once(
    tmp_path: Path, wait: dict[str, str]
) -> None:
    port, store = free_port(), tmp_path / "store"
    bodies = {b"%d" % number for number in range(COUNT)}
    async with peer_of(f"{LOOPBACK}:{port}") as peer:
        # No save of the progress falls into the test.
        settings = {"flushDelayOffsetInterval": 600_000, "timerFlushIntervalMs": 600_000}
        async with broker_process(port, store, **settings):
            for body in bodies:
                answer = await peer.send("t", body, queue_count=1, props=wait)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            # Killed while the first of them are delivered.
            await eventually(lambda: delivered(peer), "the first deliveries")
        for _ in range(KILLS):
            async with broker_process(port, store, **settings):
                await eventually(lambda: answering(peer), "the broker")

                async def all_delivered() -> bool:
                    return set(await delivered(peer)) == bodies

                await eventually(all_delivered, "every message")
        async with broker_process(port, store, **settings):
            await eventually(lambda: answering(peer), "the broker")
            # A marker behind the messages that this start delivers.
            await peer.send("t", b"last", queue_count=1, props=wait)

            async def last_delivered() -> bool:
                return b"last" in await delivered(peer)

            await eventually(last_delivered, "the last message")
            assert await delivered(peer) == Counter(bodies | {b"last"})
