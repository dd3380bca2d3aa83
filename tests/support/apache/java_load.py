"""A stock Java producer with several threads, and a stock consumer, for scenarios of failover.

    async with java_load(shell, namesrv, "name") as java:
        await java.more(100)                # acknowledged with SEND_OK
        ...faults...
        await java.finish(master)           # everything is at its place, and was consumed

Producer and consumer query routes every two seconds or less (`pollNameServerInterval`). The name
must be new for each use of a shell.
"""

import asyncio
from collections.abc import AsyncGenerator
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

    def __init__(self, shell: Shell, name: str) -> None:
        self.shell = shell
        self.name = name

    async def ask(self, verb: str, **arguments: Any) -> Any:  # noqa: ANN401 - of the program
        """A request to the program."""
        return await asyncio.to_thread(self.shell.ask, verb, **arguments)

    async def count(self) -> int:
        """Messages acknowledged up to now."""
        return int(await self.ask("load_count"))

    async def more(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        await self.reach(await self.count() + count)

    async def reach(self, count: int) -> None:
        """Wait until so many messages are acknowledged in all."""

        async def are_there() -> bool:
            return await self.count() >= count

        await eventually(are_there, f"{count} of the Java client", PATIENCE_S)

    async def longest_s(self) -> float:
        """The longest time between two acknowledgements since the last call."""
        return float(await self.ask("load_longest_ms")) / 1000

    async def finish(self, master: str) -> int:
        """Stop the producer; the master has what was acknowledged, and the consumer got it."""
        ended = await self.ask("stop_load")
        acknowledged: dict[Place, bytes] = {}
        for body, queue_id, queue_offset in ended["acknowledged"]:
            assert (queue_id, queue_offset) not in acknowledged
            acknowledged[queue_id, queue_offset] = body.encode()
        await _assert_stored(master, acknowledged)
        seen = set[Place]()

        def is_consumed() -> bool:
            received = self.shell.consumed(self.name)
            seen.update((each["queueId"], each["queueOffset"]) for each in received)
            return acknowledged.keys() <= seen

        await eventually(is_consumed, "everything consumed by Java", PATIENCE_S)
        return len(acknowledged)


async def _assert_stored(master: str, acknowledged: dict[Place, bytes]) -> None:
    """Everything is at its place, and no queue offset is missing."""
    stored: dict[Place, bytes] = {}
    async with peer_of(master) as peer:
        for queue_id in sorted({queue_id for queue_id, _ in acknowledged}):
            queue = await messages_of(peer, TOPIC, queue_id)
            fields = {"topic": TOPIC, "queueId": str(queue_id)}
            end = await peer.expect(RequestCode.GET_MAX_OFFSET, fields)
            assert sorted(queue) == list(range(int(end.fields["offset"])))
            stored |= {(queue_id, at): body for at, body in queue.items()}
    lost = {place for place, body in acknowledged.items() if stored.get(place) != body}
    assert not lost, f"{len(lost)} of {len(acknowledged)} lost: {sorted(lost)[:5]}"


@asynccontextmanager
async def java_load(shell: Shell, namesrv: str, name: str) -> AsyncGenerator[JavaLoad]:
    """Clients that send and receive until the end of the block."""
    load = JavaLoad(shell, name)
    await load.ask(
        "start_producer", name=name, group=f"p-{name}", namesrv=namesrv,
        timeout_ms=SEND_TIMEOUT_MS, poll_ms=POLL_MS,
    )  # fmt: skip
    try:
        await load.ask("start_load", name=name, topic=TOPIC, threads=THREADS)
        try:
            await asyncio.to_thread(
                shell.start_consumer, name, namesrv, group=f"c-{name}", topic=TOPIC
            )
            try:
                yield load
            finally:
                await load.ask("stop_consumer", name=name)
        finally:
            await load.ask("stop_load")
    finally:
        await load.ask("stop_producer", name=name)
