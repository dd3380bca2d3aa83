"""Who may change a group whose master is elected, and other endpoints of etcd while it runs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.brokers import Peer, eventually, peer_of
from tests.support.elected_brokers import Group, failover, group_of, send_until
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.ports import free_port

from tianzhou.broker.server import Broker
from tianzhou.ha.roles.events import Command, Pause, Resume
from tianzhou.ha.roles.reasons import Code
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.codes import RequestCode, ResponseCode

ADMINISTRATOR = Credentials("brokers", "12345678")
CLERK = Credentials("clerk-1", "87654321")
ACCOUNTS = """
accounts:
  - {accessKey: brokers, secretKey: '12345678', admin: true}
  - {accessKey: clerk-1, secretKey: '87654321', topicPerms: [t=PUB|SUB], groupPerms: [g=SUB]}
"""
INNER = '{"accessKey":"brokers","secretKey":"12345678"}'


@asynccontextmanager
async def guarded(
    folder: Path, etcd: EtcdCluster, count: int, **settings: object
) -> AsyncGenerator[Group]:
    """A group with access control."""
    (folder / "conf").mkdir()
    (folder / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    async with group_of(
        folder, etcd, count, settings, aclEnable="true", rocketmqHome=folder, minInSyncReplicas=1,
        innerClientAuthenticationCredentials=INNER, haEtcdEndpoints=etcd.members[0].endpoint,
    ) as group:  # fmt: skip
        yield group


@pytest.mark.parametrize("by", [CLERK, None], ids=["no administrator", "no account"])
async def test_only_administrators_see_and_change_the_group(
    tmp_path: Path, by: Credentials | None
) -> None:
    with etcd_cluster(tmp_path / "etcd") as etcd:
        async with guarded(tmp_path, etcd, 2) as group:
            master = await group.master()
            await group.in_sync(master, 2)
            driver = failover(master)
            session, before = driver.role.session, driver.role.state
            (slave,) = (each for each in group.brokers if each is not master)
            slave_id = str(failover(slave).role.id)
            requests: list[tuple[int, dict[str, str]]] = [
                (RequestCode.HA_GROUP, {}),
                *(
                    (RequestCode.HA_GROUP_COMMAND, {"command": command, "replicaId": slave_id})
                    for command in ("switch", "pause", "resume", "retire", "init", "resync")
                ),
                (
                    RequestCode.HA_GROUP_COMMAND,
                    {"command": "elect", "replicaId": slave_id, "acceptLoss": "true"},
                ),
                (RequestCode.CHANGE_BROKER_ROLE, {"role": "SLAVE", "brokerId": "1"}),
                (
                    RequestCode.CONTROLLER_ELECT_MASTER,
                    {
                        "clusterName": "DefaultCluster", "brokerName": group.name,
                        "brokerId": slave_id, "designateElect": "true",
                    },
                ),
            ]  # fmt: skip
            for broker in group.brokers:
                async with peer_of(broker.address, credentials=by) as peer:
                    for code, fields in requests:
                        refused = await peer.ask(code, fields)
                        assert refused.code == ResponseCode.NO_PERMISSION, (code, fields, refused)
                        assert not refused.body
                    assert driver.role.session is session
                    assert driver.role.state == before
            async with peer_of(master.address, credentials=ADMINISTRATOR) as peer:
                assert (await peer.expect(RequestCode.HA_GROUP)).body
                await peer.expect(RequestCode.HA_GROUP_COMMAND, {"command": "pause"})
            assert driver.role.state != before


async def change(peer: Peer, pair: str) -> None:
    await peer.expect(RequestCode.UPDATE_BROKER_CONFIG, None, pair.encode())


def etcd_problem(broker: Broker) -> str | None:
    """As operators see it."""
    return failover(broker).link.problem


async def done(broker: Broker, command: Command) -> None:
    async def is_done() -> bool:
        return (await failover(broker).ask(command, "a test"))[0]

    await eventually(is_done, f"{command} to be carried out")


async def test_other_endpoints_of_etcd_while_the_broker_runs(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path / "etcd", 3) as etcd:
        async with guarded(tmp_path, etcd, 1) as group:
            master = await group.master()
            first, second, _ = etcd.members
            async with (
                peer_of(master.address, credentials=ADMINISTRATOR) as peer,
                peer_of(master.address, credentials=CLERK) as client,
            ):
                refused = await client.ask(
                    RequestCode.UPDATE_BROKER_CONFIG, None, b"haEtcdEndpoints=http://127.0.0.1:1"
                )
                assert refused.code == ResponseCode.NO_PERMISSION
                await change(peer, f"haEtcdEndpoints={second.endpoint}")
                first.kill()
                # It may have been etcd's leader: the first attempts may have no result.
                await done(master, Pause())

                await change(peer, f"haEtcdEndpoints=http://127.0.0.1:{free_port()}")
                await eventually(
                    lambda: "connection refused" in (etcd_problem(master) or ""),
                    "an error of etcd",
                )
                await send_until(client, ResponseCode.SLAVE_NOT_AVAILABLE)

                await change(peer, f"haEtcdEndpoints={second.endpoint}")
                await eventually(lambda: etcd_problem(master) is None, "an answer of etcd")
                await done(master, Resume())


async def test_another_etcd_without_the_group_disturbs_no_traffic(tmp_path: Path) -> None:
    """As after etcd was set up anew: it has more revisions than when the slave joined."""
    with etcd_cluster(tmp_path / "etcd") as etcd, etcd_cluster(tmp_path / "another") as another:
        for number in range(50):
            another.put("/elsewhere", b"%d" % number)
        async with guarded(tmp_path, etcd, 2, minInSyncReplicas=2) as group:
            master = await group.master()
            await group.in_sync(master, 2)
            (slave,) = (each for each in group.brokers if each is not master)
            connection = failover(slave).role.last_session, failover(slave).role.followed_session
            for broker in group.brokers:
                assert failover(broker).role.incarnation < 50
                async with peer_of(broker.address, credentials=ADMINISTRATOR) as peer:
                    await change(peer, f"haEtcdEndpoints={another.members[0].endpoint}")

            def have_looked() -> bool:
                doubts = [failover(each).role.untrusted for each in group.brokers]
                return all(doubt and doubt.code is Code.STATE_MISSING for doubt in doubts)

            await eventually(have_looked, "a look at the other etcd")
            async with peer_of(master.address, credentials=CLERK) as client:
                for _ in range(20):
                    assert (await client.send("t", b"x")).code == ResponseCode.SUCCESS
                    await asyncio.sleep(0.05)
            role = failover(slave).role
            assert (role.last_session, role.followed_session) == connection
            assert failover(master).role.session is not None


@pytest.mark.parametrize(
    ("pairs", "why"),
    [
        ("haEtcdEndpoints=", "neither switches automatic failover on nor off"),
        ("haEtcdEndpoints=nowhere", "haEtcdEndpoints"),
        ("haEtcdUser=u", "belong together"),
        ("haEtcdEndpoints=https://127.0.0.1:1\nhaEtcdCaFile=/nowhere/ca.pem", "/nowhere/ca.pem"),
    ],
)
async def test_endpoints_that_cannot_be_used_change_nothing(
    tmp_path: Path, pairs: str, why: str
) -> None:
    with etcd_cluster(tmp_path / "etcd") as etcd:
        async with guarded(tmp_path, etcd, 1) as group:
            master = await group.master()
            before = master.settings.config
            async with peer_of(master.address, credentials=ADMINISTRATOR) as peer:
                refused = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, pairs.encode())
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert why in (refused.remark or "")
            assert master.settings.config is before
            assert etcd_problem(master) is None
