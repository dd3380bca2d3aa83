"""Automatic failover with stock Java clients: nothing that they were told is stored gets lost,
and the topic keeps the attributes with which it was made.

The producer and the consumer look routes up every two seconds (`pollNameServerInterval`); the
default of 30 s makes a switch that much longer for clients of one broker group.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.apache.java_load import TOPIC, java_load
from tests.support.apache.shell import Shell
from tests.support.brokers import peer_of
from tests.support.elected_group import ElectedGroup, ElectedReplica, elected_group
from tests.support.gate import NEWEST
from tianzhou.admin.admin_client import Admin
from tianzhou.admin.replication import groups
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.topics import TopicConfigTable
from tianzhou.protocol.codes import RequestCode

pytestmark = pytest.mark.apache

log = logging.getLogger(__name__)

QUEUES_OF_SENDS = 4
"""`defaultTopicQueueNums` of stock producers; that of brokers is 8."""
COUNT = 300
"""Messages between two faults."""
GAP_S_MAX = 9.0


async def switch(group: ElectedGroup, master: ElectedReplica) -> None:
    """Let the master hand over by command."""
    own = await group.id_of(master)
    target = next(each for each in sorted((await group.view()).replicas) if each != own)
    async with Admin(group.namesrv) as admin:
        await groups.ask(admin, master.address, "switch", replica_id=target)


async def kill(group: ElectedGroup, master: ElectedReplica) -> None:
    await master.kill()


@pytest.mark.parametrize("queues_of_admin", [None, 5])
async def test_stock_clients_lose_nothing_when_the_master_changes(
    shells: Callable[[str], Shell], tmp_path: Path, queues_of_admin: int | None
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
        async with java_load(shell, group.namesrv, f"failover-{queues}") as java:
            for fault in (switch, kill):
                await java.more(COUNT)
                master = await group.master()
                await java.longest_s()
                await fault(group, master)
                await group.master(other_than=master)
                await java.more(20)
                assert await queue_count(await group.master(other_than=master)) == queues
                gap_s = await java.longest_s()
                log.info("%s: the longest wait was %.2f s", fault.__name__, gap_s)
                assert gap_s < GAP_S_MAX
                await group.start()
                await group.in_sync(group.replicas)
            await java.more(COUNT)
            await java.stop_sending()
            master = await group.master()
            await group.equal_logs(master)
            count = await java.finish(master.address, queues=queues)
            assert await queue_count(master) == queues
        log.info("%d acknowledged, none lost", count)


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
