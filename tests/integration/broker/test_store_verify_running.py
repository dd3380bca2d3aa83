"""`store verify` on the store of a running broker: it reports real damage and nothing else."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

from tests.integration.broker.test_crash import broker_process
from tests.support.brokers import LOOPBACK, Peer, eventually, peer_of
from tests.support.ports import free_port

from tianzhou.errors import RemotingError
from tianzhou.protocol.codes import RequestCode, ResponseCode

SETTINGS: dict[str, object] = {
    "flushIntervalConsumeQueue": 20,
    "flushConsumeQueueThoroughInterval": 60,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
}
LOOKS = 4


async def verify(store: Path) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tianzhou", "store", "verify", str(store), "--json",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    report = cast("dict[str, Any]", json.loads(output))
    assert process.returncode == (1 if report["findings"] else 0)
    return report


async def answering(peer: Peer) -> bool:
    try:
        return (await peer.send("t0", b"x")).code == ResponseCode.SUCCESS
    except RemotingError:
        return False


class Senders:
    """Sends continuously: old and new queues, keys, topics created and deleted."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.count = 0
        self.stopping = False

    async def send(self, sender: int) -> None:
        while not self.stopping:
            topic = f"t{self.count // 100 % 30}"
            props = {"KEYS": f"k{sender} j{self.count % 7}", "UNIQ_KEY": f"u{sender}-{self.count}"}
            answer = await self.peer.send(topic, b"y" * 300, queue_id=self.count % 4, props=props)
            # The topic may be deleted concurrently.
            assert answer.code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST), (
                answer.remark
            )
            self.count += 1

    async def delete(self) -> None:
        number = 0
        while not self.stopping:
            fields = {"topic": f"t{number % 30}"}
            await self.peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields)
            number += 1
            await asyncio.sleep(0.05)


async def test_concurrent_sends_are_not_reported_as_damage(tmp_path: Path) -> None:
    port, store = free_port(), tmp_path / "store"
    async with peer_of(f"{LOOPBACK}:{port}") as peer:
        async with broker_process(port, store, **SETTINGS):
            await eventually(lambda: answering(peer), "the broker")
            senders = Senders(peer)
            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    group.create_task(senders.send(number))
                group.create_task(senders.delete())
                await eventually(lambda: senders.count > 500, "messages")
                for _ in range(LOOKS):
                    report = await verify(store)
                    assert report["findings"] == []
                    assert report["running"] is True
                    assert report["messages"] > 0
                senders.stopping = True
        # After a kill the next start builds the missing entries.
        report = await verify(store)
        assert report["findings"] == []
        assert report["running"] is False


async def test_real_damage_is_found_while_a_broker_runs(tmp_path: Path) -> None:
    port, store = free_port(), tmp_path / "store"
    async with (
        peer_of(f"{LOOPBACK}:{port}") as peer,
        broker_process(port, store, **SETTINGS),
    ):
        await eventually(lambda: answering(peer), "the broker")
        for number in range(50):
            await peer.send("t1", b"body-%d" % number, queue_id=0, props={"KEYS": f"k{number}"})

        async def all_checked() -> bool:
            report = await verify(store)
            assert report["findings"] == []
            return cast("int", report["messages"]) >= 51

        await eventually(all_checked, "a checkpoint")
        log_file = store / "commitlog" / f"{0:020d}"
        at = log_file.read_bytes().index(b"body-7")
        with log_file.open("r+b") as file:
            file.seek(at)
            file.write(b"BODY")
        report = await verify(store)
        assert any("does not match its CRC" in text for text in report["findings"])
        queue_file = store / "consumequeue" / "t1" / "0" / f"{0:020d}"
        with queue_file.open("r+b") as file:
            file.seek(20 * 3)
            file.write((12345).to_bytes(8, "big"))
        report = await verify(store)
        assert any("queue t1/0: entry 3 leads to no message" in text for text in report["findings"])
