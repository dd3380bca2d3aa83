"""A consumer is killed while another of its group runs; for any broker."""

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.brokers import eventually
from tianzhou.client import (
    ClientSettings,
    Credentials,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)

ROOT = Path(__file__).parents[2]
Place = tuple[int, int]
"""Queue and offset."""


@dataclass(slots=True)
class Victim:
    """The process that is killed."""

    process: subprocess.Popen[str]
    output: Path

    def places(self, word: str) -> list[Place]:
        """The messages that it has begun, or done; an incomplete last line does not count."""
        lines = self.output.read_text().split("\n")[:-1]
        found = [line.split() for line in lines if line.startswith(word)]
        return [(int(queue_id), int(queue_offset)) for _, queue_id, queue_offset in found]

    def kill(self) -> None:
        """SIGKILL: it cannot unregister."""
        self.process.kill()
        self.process.wait()


def start_victim(folder: Path, namesrv: str, group: str, topic: str, *more: str) -> Victim:
    output = folder / f"victim-{group}.txt"
    with output.open("w") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed_program", namesrv, group, topic, *more],
            cwd=ROOT, stdout=stdout, text=True,
        )  # fmt: skip
    return Victim(process, output)


@dataclass(slots=True)
class Survivor:
    """The consumer that stays."""

    consumer: PushConsumer
    seen: list[Place] = field(default_factory=list[Place])

    def take(self, message: ReceivedMessage) -> None:
        self.seen.append((message.queue_id, message.queue_offset))

    def queue_ids(self, topic: str) -> set[int]:
        return {each.queue_id for each in self.consumer.assignment if each.topic == topic}


async def kill_one(
    folder: Path,
    namesrv: str,
    group: str,
    topic: str,
    queue_count: int,
    *,
    ordered: bool,
    account: Credentials | None = None,
) -> tuple[Victim, Survivor, set[Place]]:
    """Two consumers share a topic, one is killed at work; the other must receive everything.

    Returns both, and the positions of all messages that were sent. `topic` exists already.
    """
    signing = [f"account={account.access_key}/{account.secret_key}"] if account else []
    victim = start_victim(
        folder, namesrv, group, topic, *(["ordered"] if ordered else []), *signing
    )
    own = ClientSettings(namesrv=namesrv, credentials=account)
    survivor = Survivor(
        PushConsumer(
            group, settings=own, start="first", ordered=ordered, rebalance_ms=1_000, lock_ms=500
        )
    )
    survivor.consumer.subscribe(topic, survivor.take)
    sent: set[Place] = set()
    try:
        async with Producer(f"to-{group}", settings=own) as producer, survivor.consumer:
            own_count = queue_count // 2
            await eventually(
                lambda: victim.output.read_text() and len(survivor.queue_ids(topic)) == own_count,
                "shared queues",
            )
            sent |= await _send(producer, topic, 200)
            await eventually(lambda: len(victim.places("done")) > 20, "a victim at work")
            assert victim.process.poll() is None
            victim.kill()
            sent |= await _send(producer, topic, 100)
            everything = set(range(queue_count))
            await eventually(lambda: survivor.queue_ids(topic) == everything, "all queues")
            await eventually(
                lambda: sent <= {*survivor.seen, *victim.places("done")}, "every message"
            )
    finally:
        victim.kill()
    return victim, survivor, sent


async def _send(producer: Producer, topic: str, count: int) -> set[Place]:
    futures = [await producer.submit(Message(topic, b"x" * 100)) for _ in range(count)]
    results = await asyncio.gather(*futures)
    return {(result.queue.queue_id, result.queue_offset) for result in results}


def assert_in_order(victim: Victim, survivor: Survivor, sent: set[Place], queue_count: int) -> None:
    """Both received messages of each queue in order, and the survivor skipped none."""
    for queue_id in range(queue_count):
        offsets = sorted(queue_offset for at, queue_offset in sent if at == queue_id)
        seen = [queue_offset for at, queue_offset in survivor.seen if at == queue_id]
        done = [queue_offset for at, queue_offset in victim.places("done") if at == queue_id]
        # The survivor has the rest without a gap, and starts no later than where the victim ended.
        assert seen == offsets[offsets.index(seen[0]) :]
        assert done == offsets[: len(done)]
        assert seen[0] <= len(done)
