"""Automatic failover with stock Java clients: nothing that they were told is stored gets lost,
and the topic keeps the attributes with which it was made.

The producer and the consumer look routes up every two seconds (`pollNameServerInterval`); the
default of 30 s makes a switch that much longer for clients of one broker group.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache.shell import Shell
from tests.support.brokers import eventually, peer_of
from tests.support.elected_group import ElectedGroup, ElectedReplica, elected_group
from tests.support.gate import NEWEST
from tests.support.replicated_load import messages_of
from tianzhou.admin.admin_client import Admin
from tianzhou.admin.replication import groups
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.topics import TopicConfigTable
from tianzhou.protocol.codes import RequestCode

pytestmark = pytest.mark.apache

log = logging.getLogger(__name__)

TOPIC, THREADS = "JavaOrders", 8
QUEUES_OF_SENDS = 4
"""`defaultTopicQueueNums` of stock producers; that of brokers is 8."""
GATE, FULL = 1_000, 50_000
POLL_MS, SEND_TIMEOUT_MS = 2_000, 3_000
PATIENCE_S = 180.0
GAP_MS_MAX = 9_000


@dataclass
class JavaLoad:
    """A stock producer with several threads, and a stock consumer."""

    shell: Shell
    group: ElectedGroup
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict[tuple[int, int], bytes])

    async def ask(self, verb: str, **arguments: Any) -> object:  # noqa: ANN401 - of the program
        return await asyncio.to_thread(self.shell.ask, verb, **arguments)

    async def reach(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        wanted = await self.count() + count

        async def are_there() -> bool:
            return await self.count() >= wanted

        await eventually(are_there, f"{count} more", PATIENCE_S)

    async def count(self) -> int:
        seen = await self.ask("load_count")
        assert isinstance(seen, int)
        return seen

    async def longest_ms(self) -> int:
        """The longest time between two acknowledgements, since the last call."""
        seen = await self.ask("load_longest_ms")
        assert isinstance(seen, int)
        return seen

    async def stop(self) -> None:
        """End the producer; what it was told is in `acknowledged`."""
        ended = await asyncio.to_thread(self.shell.ask, "stop_load")
        for body, queue_id, queue_offset in ended["acknowledged"]:
            assert (queue_id, queue_offset) not in self.acknowledged
            self.acknowledged[queue_id, queue_offset] = body.encode()


@asynccontextmanager
async def java_load(shell: Shell, group: ElectedGroup, name: str) -> AsyncGenerator[JavaLoad]:
    """The clients of a group, of a name that no other test has."""
    load = JavaLoad(shell, group)
    await load.ask(
        "start_producer", name=name, group="java-load", namesrv=group.namesrv,
        timeout_ms=SEND_TIMEOUT_MS, poll_ms=POLL_MS,
    )  # fmt: skip
    await load.ask("start_load", name=name, topic=TOPIC, threads=THREADS)
    await asyncio.to_thread(
        shell.start_consumer, name, group.namesrv, group="java-readers", topic=TOPIC
    )
    try:
        yield load
    finally:
        await load.ask("stop_load")
        await load.ask("stop_producer", name=name)
        await load.ask("stop_consumer", name=name)


async def switch(group: ElectedGroup, master: ElectedReplica) -> None:
    """Let the master hand over by command."""
    own = await group.id_of(master)
    target = next(each for each in sorted((await group.view()).replicas) if each != own)
    async with Admin(group.namesrv) as admin:
        await groups.ask(admin, master.address, "switch", replica_id=target)


async def kill(group: ElectedGroup, master: ElectedReplica) -> None:
    await master.kill()


@pytest.mark.parametrize("queues_of_admin", [None, 5])
@pytest.mark.parametrize("count", [GATE, pytest.param(FULL, marks=pytest.mark.full)])
async def test_stock_clients_lose_nothing_when_the_master_changes(
    shells: Callable[[str], Shell], tmp_path: Path, count: int, queues_of_admin: int | None
) -> None:
    """A planned switch, then the new master is killed.

    The first send makes the topic, or an administrator with another number of queues.
    """
    shell = shells(NEWEST)
    queues = queues_of_admin or QUEUES_OF_SENDS
    async with elected_group(tmp_path) as group:
        first = await group.accepting_master()
        await group.in_sync(group.replicas)
        if queues_of_admin is not None:
            await create_topic(first, queues)
        name = f"failover-{count}-{queues}"
        async with java_load(shell, group, name) as load:
            for fault in (switch, kill):
                await load.reach(count // 3)
                master = await group.master()
                await load.longest_ms()
                await fault(group, master)
                await group.master(other_than=master)
                await load.reach(20)
                assert await queue_count(await group.master(other_than=master)) == queues
                gap_ms = await load.longest_ms()
                log.info("%s: the longest wait was %d ms", fault.__name__, gap_ms)
                assert gap_ms < GAP_MS_MAX
                await group.start()
                await group.in_sync(group.replicas)
            await load.reach(count // 3)
            await load.stop()
            master = await group.master()
            await group.equal_logs(master)
            await assert_stored(master, load.acknowledged, queues)
            seen = set[tuple[int, int]]()

            def is_consumed() -> bool:
                seen.update((each["queueId"], each["queueOffset"]) for each in shell.consumed(name))
                return load.acknowledged.keys() <= seen

            await eventually(is_consumed, "everything consumed", PATIENCE_S)
        log.info("%d acknowledged, none lost", len(load.acknowledged))


async def create_topic(master: ElectedReplica, queues: int) -> None:
    """As an administrator."""
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(queues),
        "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }  # fmt: skip
    async with peer_of(master.address) as peer:
        await peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


async def queue_count(master: ElectedReplica) -> int:
    """Of the topic, as its configuration has it."""
    async with peer_of(master.address) as peer:
        response = await peer.expect(RequestCode.GET_ALL_TOPIC_CONFIG)
    topic = decode(TopicConfigTable, response.body).topics[TOPIC]
    assert topic.read_queue_count == topic.write_queue_count
    return topic.write_queue_count


async def assert_stored(
    master: ElectedReplica, acknowledged: dict[tuple[int, int], bytes], queues: int
) -> None:
    """Everything is at its place, and no queue offset is missing."""
    assert await queue_count(master) == queues
    stored: dict[tuple[int, int], bytes] = {}
    async with peer_of(master.address) as peer:
        for queue_id in range(queues):
            queue = await messages_of(peer, TOPIC, queue_id)
            end = await peer.expect(
                RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)}
            )
            assert sorted(queue) == list(range(int(end.fields["offset"])))
            stored |= {(queue_id, at): body for at, body in queue.items()}
    lost = {place for place, body in acknowledged.items() if stored.get(place) != body}
    assert not lost, f"{len(lost)} of {len(acknowledged)} lost: {sorted(lost)[:5]}"
