"""A stock Java producer with several threads, and a stock consumer, for scenarios of failover.

    async with java_load(shell, namesrv, "name", goal=3_000) as java:
        await java.more(100)                # acknowledged with SEND_OK
        ...faults...
        await java.finish(master)           # everything is at its place, and was consumed

Producer and consumer query routes every two seconds or less (`pollNameServerInterval`). The name
must be new for each use of a shell.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.apache.shell import Shell
from tests.support.brokers import eventually, peer_of
from tests.support.replicated_load import messages_of
from tianzhou.protocol.codes import RequestCode

TOPIC, THREADS = "JavaOrders", 4
POLL_MS, SEND_TIMEOUT_MS = 2_000, 3_000
PATIENCE_S = 180.0

Place = tuple[int, int]
"""Queue and queue offset."""


class JavaLoad:
    """Clients that run in the JVM of a shell."""

    def __init__(self, shell: Shell, name: str, goal: int = 0, *, is_ordered: bool = False) -> None:
        self.shell = shell
        self.name = name
        self.goal = goal
        """Messages to be acknowledged in all; see `reach_share`."""
        self.is_ordered = is_ordered
        """Whether the consumer receives each queue in order."""
        self._acknowledged: dict[Place, str] | None = None
        """None: it still sends."""

    async def ask(self, verb: str, **arguments: Any) -> Any:  # noqa: ANN401 - of the program
        """A request to the program."""
        return await asyncio.to_thread(self.shell.ask, verb, **arguments)

    async def count(self) -> int:
        """Messages acknowledged up to now."""
        return int(await self.ask("load_count"))

    async def more(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        await self.reach(await self.count() + count)

    async def reach(self, count: float) -> None:
        """Wait until so many messages are acknowledged in all."""

        async def are_there() -> bool:
            return await self.count() >= count

        await eventually(are_there, f"{count} of the Java client", PATIENCE_S)

    async def reach_share(self, share: float) -> None:
        """Wait until so much of the goal is acknowledged."""
        await self.reach(share * self.goal)

    async def longest_s(self) -> float:
        """The longest time between two acknowledgements since the last call."""
        return float(await self.ask("load_longest_ms")) / 1000

    async def stop_sending(self) -> None:
        """End the producer's threads; each queue got what a thread sent in order."""
        if self._acknowledged is not None:
            return
        ended = await self.ask("stop_load")
        acknowledged: dict[Place, str] = {}
        for body, queue_id, queue_offset in ended["acknowledged"]:
            assert (queue_id, queue_offset) not in acknowledged
            acknowledged[queue_id, queue_offset] = body
        _assert_sent_in_order(acknowledged)
        self._acknowledged = acknowledged

    async def finish(self, master: str, *, queues: int | None = None) -> int:
        """Stop the producer; the master has what was acknowledged, and the consumer got it.

        All queues are compared that got a message; if `queues` is given, so many.
        """
        await self.stop_sending()
        acknowledged = self._acknowledged
        assert acknowledged is not None
        if queues is None:
            queues = 1 + max(queue_id for queue_id, _ in acknowledged)
        await _assert_stored(master, acknowledged, queues)
        received: dict[Place, str] = {}
        """By the first delivery."""

        def is_consumed() -> bool:
            for each in self.shell.consumed(self.name):
                received.setdefault((each["queueId"], each["queueOffset"]), each["body"])
            return acknowledged.keys() <= received.keys()

        await eventually(is_consumed, "everything consumed by Java", PATIENCE_S)
        wrong = [place for place, body in acknowledged.items() if received[place] != body]
        assert not wrong, f"{len(wrong)} were read with another body: {wrong[:5]}"
        if self.is_ordered:
            _assert_received_in_order(received)
        return len(acknowledged)


def _assert_sent_in_order(acknowledged: dict[Place, str]) -> None:
    """A thread sends the next message after the answer to the last one."""
    last: dict[tuple[int, str], int] = {}
    for (queue_id, _), body in sorted(acknowledged.items()):
        thread, number = body.split()
        before = last.get((queue_id, thread), -1)
        assert int(number) > before, f"queue {queue_id}: {body} is behind number {before}"
        last[queue_id, thread] = int(number)


def _assert_received_in_order(received: Iterable[Place]) -> None:
    """Of first deliveries."""
    last: dict[int, int] = {}
    for queue_id, queue_offset in received:
        before = last.get(queue_id, -1)
        assert queue_offset > before, f"queue {queue_id}: {queue_offset} came after {before}"
        last[queue_id] = queue_offset


async def _assert_stored(master: str, acknowledged: dict[Place, str], queues: int) -> None:
    """Everything is at its place, and no queue offset is missing."""
    stored: dict[Place, bytes] = {}
    async with peer_of(master) as peer:
        for queue_id in range(queues):
            queue = await messages_of(peer, TOPIC, queue_id)
            fields = {"topic": TOPIC, "queueId": str(queue_id)}
            end = await peer.expect(RequestCode.GET_MAX_OFFSET, fields)
            assert sorted(queue) == list(range(int(end.fields["offset"])))
            stored |= {(queue_id, at): body for at, body in queue.items()}
    lost = {place for place, body in acknowledged.items() if stored.get(place) != body.encode()}
    assert not lost, f"{len(lost)} of {len(acknowledged)} lost: {sorted(lost)[:5]}"


@asynccontextmanager
async def java_load(
    shell: Shell, namesrv: str, name: str, goal: int = 0, *, is_ordered: bool = False
) -> AsyncGenerator[JavaLoad]:
    """Clients that send and receive until the end of the block."""
    load = JavaLoad(shell, name, goal, is_ordered=is_ordered)
    await load.ask(
        "start_producer", name=name, group=f"p-{name}", namesrv=namesrv,
        timeout_ms=SEND_TIMEOUT_MS, poll_ms=POLL_MS,
    )  # fmt: skip
    try:
        await load.ask("start_load", name=name, topic=TOPIC, threads=THREADS)
        try:
            await load.ask(
                "start_consumer", name=name, namesrv=namesrv, group=f"c-{name}", topic=TOPIC,
                tags="*", ordered=is_ordered,
            )  # fmt: skip
            try:
                yield load
            finally:
                await load.ask("stop_consumer", name=name)
                shell.forget(name)
        finally:
            await load.ask("stop_load")
    finally:
        await load.ask("stop_producer", name=name)
