"""Topics and groups survive a change of the master that comes right after their creation.

A topic whose first send was acknowledged has its attributes on every replica that may become the
master. Otherwise the new master makes it again from its messages, with the attributes of its own
settings, and with other queues than the producers know.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.brokers import eventually, peer_of
from tests.support.elected_group import ElectedGroup, ElectedReplica, elected_group
from tests.support.replica_processes import replica_pair

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.replication import groups
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from tianzhou.protocol.bodies.topics import TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode

log = logging.getLogger(__name__)

QUEUES = 3
"""Neither the default of brokers nor that of producers."""
ROUNDS = 3
PATIENCE_S = 60.0

Fault = Callable[[ElectedGroup, ElectedReplica], Awaitable[None]]


async def switch(group: ElectedGroup, master: ElectedReplica) -> None:
    """Let the master hand over by command."""
    own = await group.id_of(master)
    target = next(each for each in sorted((await group.view()).replicas) if each != own)
    async with Admin(group.namesrv) as admin:
        await groups.ask(admin, master.address, "switch", replica_id=target)


async def stop(group: ElectedGroup, master: ElectedReplica) -> None:
    await master.end(signal.SIGTERM)


async def kill(group: ElectedGroup, master: ElectedReplica) -> None:
    await master.kill()


@pytest.mark.parametrize("fault", [switch, stop, kill])
async def test_attributes_survive_a_change_right_after_the_first_acknowledged_send(
    tmp_path: Path, fault: Fault
) -> None:
    """One topic and one group made by an administrator, one topic by its first send."""
    async with elected_group(tmp_path) as group:
        for number in range(ROUNDS):
            await group.accepting_master()
            await group.in_sync(group.replicas)
            master = await group.master()
            made, sent, consumers = f"made-{number}", f"sent-{number}", f"consumers-{number}"
            await create_topic(master.address, made)
            await create_group(master.address, consumers)
            await acknowledged(master.address, made)
            await acknowledged(master.address, sent)
            await fault(group, master)
            after = await group.master(other_than=master)
            known, groups_known = await tables_of(after.address)
            log.info("%s: %s", fault.__name__, known)
            assert attributes(known.get(made)) == (QUEUES, QUEUES, True)
            assert attributes(known.get(sent)) == (QUEUES, QUEUES, False)
            assert consumers in groups_known
            assert groups_known[consumers].retry_max_times == 5
            await group.start()


@pytest.mark.parametrize("role", ["SYNC_MASTER"])
async def test_a_promoted_slave_has_the_attributes_of_a_killed_master(
    tmp_path: Path, role: str
) -> None:
    """With fixed roles: no election, the same promise."""
    async with replica_pair(tmp_path, role) as pair:
        for number in range(ROUNDS):
            await pair.in_step()
            address, topic = pair.master.address, f"made-{number}"
            await create_topic(address, topic)
            await acknowledged(address, topic)
            await pair.master.kill()
            await pair.promote()
            known, _ = await tables_of(pair.master.address)
            assert attributes(known.get(topic)) == (QUEUES, QUEUES, True)
            await pair.start_fresh_slave()


# -- requests --------------------------------------------------------------------------------------


async def create_topic(address: str, topic: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
        "order": "true",
    }  # fmt: skip
    async with peer_of(address) as peer:
        await peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


async def create_group(address: str, group: str) -> None:
    config = SubscriptionGroupConfig(group_name=group, retry_max_times=5)
    async with peer_of(address) as peer:
        await peer.expect(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=bodies.encode(config)
        )


async def acknowledged(address: str, topic: str) -> None:
    """Send until it is SEND_OK."""

    async def is_ok() -> bool:
        async with peer_of(address) as peer:
            response = await peer.send(topic, b"x", queue_count=QUEUES)
            return response.code == ResponseCode.SUCCESS

    await eventually(is_ok, f"a message of {topic}", PATIENCE_S)


async def tables_of(
    address: str,
) -> tuple[dict[str, TopicConfig], dict[str, SubscriptionGroupConfig]]:
    """The topics and groups of a broker."""
    async with asyncio.timeout(PATIENCE_S), peer_of(address) as peer:
        topics = await peer.expect(RequestCode.GET_ALL_TOPIC_CONFIG)
        known = await peer.expect(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return (
        bodies.decode(TopicConfigTable, topics.body).topics,
        bodies.decode(SubscriptionGroupTable, known.body).groups,
    )


def attributes(topic: TopicConfig | None) -> tuple[int, int, bool] | None:
    if topic is None:
        return None
    return topic.read_queue_count, topic.write_queue_count, topic.order
