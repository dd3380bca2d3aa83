"""Brokers whose roles are decided by election, in this process, with a real etcd."""

import json
import logging
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import (
    LOOPBACK,
    eventually,
    peer_of,
    running_broker,
)
from tests.support.elected_brokers import failover, group_of, send_until
from tests.support.etcd import EtcdCluster, etcd_cluster

from tianzhou.errors import StoreBroken, StoreFull
from tianzhou.ha.epochs import EpochFile
from tianzhou.ha.replica_facts import FactsFile
from tianzhou.ha.roles import machine
from tianzhou.ha.roles.actions import Action
from tianzhou.ha.roles.events import Event, Switch
from tianzhou.ha.roles.reasons import Code
from tianzhou.ha.roles.role import Mode, Role
from tianzhou.protocol.codes import RequestCode, ResponseCode


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


# -- starting --------------------------------------------------------------------------------------


async def test_a_broker_that_waits_for_its_role_refuses_clients(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    etcd.members[0].stop()
    try:
        async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
            (broker,) = group.brokers
            async with peer_of(broker.address) as peer:
                for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE):
                    refused = await peer.ask(code, {})
                    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
                    assert "waits for its role" in (refused.remark or "")
                assert not broker.registered_with
                etcd.members[0].resume()
                await group.master()
                # One replica alone promises nothing.
                await send_until(peer, ResponseCode.SLAVE_NOT_AVAILABLE)
    finally:
        etcd.members[0].resume()


async def test_too_few_replicas_are_refused_before_storing(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    async with group_of(tmp_path, etcd, 1) as group:
        master = await group.master()
        async with peer_of(master.address) as peer:
            remark = await send_until(peer, ResponseCode.SYSTEM_ERROR)
            assert remark.startswith("in-sync replicas not enough")
            assert master.store.end_log_offset == 0
            await group.start()
            await send_until(peer, ResponseCode.SUCCESS)


async def test_a_restarted_group_elects_again_and_has_its_messages(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    async with group_of(tmp_path, etcd) as group:
        master = await group.master()
        async with peer_of(master.address) as peer:
            await send_until(peer, ResponseCode.SUCCESS)
        name, end = group.name, master.store.end_log_offset
        epoch = failover(master).log_facts().last_epoch
    async with group_of(tmp_path, etcd, 0, brokerName=name) as group:
        await group.start("store-0")
        await group.start("store-1")
        master = await group.master()
        assert master.store.end_log_offset == end
        assert failover(master).log_facts().last_epoch > epoch
        await group.in_sync(master, 2)


# -- roles -----------------------------------------------------------------------------------------


async def test_a_planned_switch_changes_ids_and_saves_no_role(
    tmp_path: Path, etcd: EtcdCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with group_of(tmp_path, etcd) as group:
        first = await group.master()
        await group.in_sync(first, 2)
        second = next(each for each in group.brokers if each is not first)
        target = failover(second).role.id
        with caplog.at_level(logging.INFO, "tianzhou.namesrv"):
            is_done, reason = await failover(first).ask(Switch(target), "a test")
            assert is_done, reason
            assert reason.code is Code.HANDED_OVER
            await group.master(other_than=first)
            await eventually(lambda: first.registered_with, "the slave's registration")
        assert f"broker {group.name} 0 at {second.address}: registered" in caplog.text
        assert failover(second).log_facts().last_epoch == 2
        assert second.topics.data_version.state_version == 2
        own_id = failover(first).role.id
        assert first.settings.config.broker_id == own_id != 0
        assert first.settings.config.is_slave
        for broker in group.brokers:
            assert not broker.settings.config.broker_config_path.exists()
        await group.in_sync(second, 2)


async def test_the_request_for_a_role_is_refused(tmp_path: Path, etcd: EtcdCluster) -> None:
    async with group_of(tmp_path, etcd, 1) as group:
        master = await group.master()
        async with peer_of(master.address) as peer:
            fields = {"role": "ASYNC_MASTER", "force": "true"}
            refused = await peer.ask(RequestCode.CHANGE_BROKER_ROLE, fields)
        assert refused.code != ResponseCode.SUCCESS
        assert "elected (haEtcdEndpoints)" in (refused.remark or "")
        assert failover(master).is_master


async def test_commands_of_the_operator_get_the_role(tmp_path: Path, etcd: EtcdCluster) -> None:
    text = (
        "import json, os, sys; file = open(sys.argv[1], 'a'); "
        "print(json.dumps({k: v for k, v in os.environ.items() if k[:9] == 'TIANZHOU_'}), "
        "file=file)"
    )
    roles, fences = tmp_path / "roles", tmp_path / "fences"
    commands: dict[str, object] = {
        "haRoleCommand": shlex.join([sys.executable, "-c", text, str(roles)]),
        "haFenceCommand": shlex.join([sys.executable, "-c", text, str(fences)]),
    }
    async with group_of(tmp_path, etcd, commands=commands) as group:
        first = await group.master()
        await group.in_sync(first, 2)
        await failover(first).ask(Switch(), "a test")
        second = await group.master(other_than=first)
        await eventually(lambda: epochs_of(roles) == ["2", "2"], "the commands of both brokers")
        assert lines_of(fences) == [], "the old master agreed"
        last = {line["TIANZHOU_ADDRESS"]: line for line in lines_of(roles)}
    assert last[first.address]["TIANZHOU_ROLE"] == "slave"
    assert last[second.address]["TIANZHOU_ROLE"] == "master"
    for each in last.values():
        assert each["TIANZHOU_MASTER"] == second.address
        assert each["TIANZHOU_BROKER"] == group.name


def epochs_of(path: Path) -> list[str]:
    """The epochs in the last lines of all brokers."""
    last = {line["TIANZHOU_ADDRESS"]: line for line in lines_of(path)}
    return [line["TIANZHOU_EPOCH"] for line in last.values()]


def lines_of(path: Path) -> list[dict[str, str]]:
    """What the commands have written."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


# -- who may follow --------------------------------------------------------------------------------


async def test_fixed_and_elected_roles_do_not_mix(tmp_path: Path, etcd: EtcdCluster) -> None:
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        master = await group.master()
        ha_port = int(master.address.split(":")[1]) + 1
        async with running_broker(
            tmp_path / "fixed", brokerName=group.name, brokerRole="SLAVE", brokerId=7,
            namesrvAddr=group.settings["namesrvAddr"], haMasterAddress=f"{LOOPBACK}:{ha_port}",
        ) as fixed:  # fmt: skip

            def problem() -> str:
                status = fixed.replication.status() if fixed.replication else None
                return (status.master.problem or "") if status and status.master else ""

            await eventually(lambda: "of group none, the master of group" in problem(), "refusal")
            assert fixed.store.end_log_offset == 0


async def test_a_store_of_another_group_is_never_cut(tmp_path: Path, etcd: EtcdCluster) -> None:
    async with group_of(tmp_path / "one", etcd, 1) as one:
        master = await one.master()
        foreign = await one.start()
        await one.in_sync(master, 2)
        async with peer_of(master.address) as peer:
            await send_until(peer, ResponseCode.SUCCESS)
        folder = foreign.settings.config.root_directory
        end = master.store.end_log_offset
    async with group_of(tmp_path / "two", etcd, 1, minInSyncReplicas=1) as two:
        await two.master()
        (folder / "brokerIdentity").write_text(f"DefaultCluster#{two.name}#2")
        other = await two.start(str(folder))
        await eventually(lambda: failover(other).role.untrusted, "a replica that stops")
        assert other.store.end_log_offset == end
        problem = failover(other).role.untrusted
        assert problem is not None
        assert problem.code is Code.OTHER_GROUP
        await eventually(lambda: not other.registered_with, "that it is not registered")


async def test_the_epoch_file_describes_the_log(tmp_path: Path, etcd: EtcdCluster) -> None:
    async with group_of(tmp_path, etcd) as group:
        master = await group.master()
        async with peer_of(master.address) as peer:
            await send_until(peer, ResponseCode.SUCCESS)
        await group.in_sync(master, 2)
        slave = next(each for each in group.brokers if each is not master)
        end = master.store.end_log_offset
        await eventually(lambda: slave.store.end_log_offset == end, "the slave at the end")
        read = [EpochFile(each.settings.config.root_directory).epochs for each in group.brokers]
        assert read[0] == read[1] == failover(master).log_facts().epochs


# -- access control --------------------------------------------------------------------------------


async def test_slaves_are_authenticated_where_access_control_is_on(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "accounts: [{accessKey: brokers, secretKey: '12345678', admin: true}]"
    )
    account = '{"accessKey":"brokers","secretKey":"%s"}'
    key = "innerClientAuthenticationCredentials"
    async with group_of(tmp_path, etcd, 0, aclEnable="true", rocketmqHome=tmp_path) as group:
        await group.start(**{key: account % "12345678"})
        master = await group.master()
        stranger = await group.start(**{key: account % "wrong-one"})

        def problem() -> str:
            return failover(stranger).follower.status().problem or ""

        await eventually(lambda: "refuses this slave" in problem(), "a refusal")
        session = failover(master).role.session
        assert session is not None
        assert not session.slaves
        await group.start(**{key: account % "12345678"})
        await group.in_sync(master, 2)


# -- stores that are gone, and etcd that is away ---------------------------------------------------


async def test_a_replica_with_an_empty_disk_copies_the_log_before_it_counts(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    async with group_of(tmp_path, etcd, 3) as group:
        master = await group.master()
        await group.in_sync(master, 3)
        async with peer_of(master.address) as peer:
            await send_until(peer, ResponseCode.SUCCESS)
        wiped = next(each for each in group.brokers if each is not master)
        folder = wiped.settings.config.root_directory
        await wiped.stop()
        group.brokers.remove(wiped)
        await group.in_sync(master, 2)
        shutil.rmtree(folder)
        port = int(wiped.address.split(":")[1])
        again = await group.start(str(folder), listenPort=port)
        await group.in_sync(master, 3)
        end = master.store.end_log_offset
        assert again.store.end_log_offset == end
        assert bytes(again.store.log_slice(0, end) or b"") == bytes(
            master.store.log_slice(0, end) or b""
        )


async def test_a_replica_follows_the_master_it_knew_while_etcd_is_away(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    async with group_of(tmp_path, etcd, 3) as group:
        master = await group.master()
        await group.in_sync(master, 3)
        slave = next(each for each in group.brokers if each is not master)
        folder = slave.settings.config.root_directory
        etcd.members[0].stop()
        try:
            await slave.stop()
            group.brokers.remove(slave)
            async with peer_of(master.address) as peer:
                await peer.send("t", b"while it was away")
            slave = await group.start(str(folder))
            end = master.store.end_log_offset
            await eventually(lambda: slave.store.end_log_offset == end, "the log of the master")
        finally:
            etcd.members[0].resume()
        await group.in_sync(master, 3)


# -- a broker that hangs ---------------------------------------------------------------------------


async def test_a_master_whose_disk_failed_leaves_and_remembers_it(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, etcd, 3) as group:
        first = await group.master()
        await group.in_sync(first, 3)
        failure = StoreBroken("the log could not be put on the disk (made up)")
        monkeypatch.setattr(type(first.store), "disk_failure", property(
            lambda store: failure if store is first.store else None
        ))  # fmt: skip
        await group.master(other_than=first)
        assert failover(first).role.mode is Mode.STOPPED
        config = first.settings.config
        facts = FactsFile(
            config.root_directory, config.broker_cluster_name, config.broker_name
        ).facts
        assert "an fsync failed" in facts.unclean


async def test_a_master_whose_disk_is_full_hands_over(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, etcd, 3) as group:
        first = await group.master()
        await group.in_sync(first, 3)
        problem = StoreFull("the disk is 100% full (made up)")
        monkeypatch.setattr(type(first.store), "refusal", property(
            lambda store: problem if store is first.store else None
        ))  # fmt: skip
        second = await group.master(other_than=first)
        # It is a slave, which stays in sync as long as it can still write.
        await eventually(lambda: failover(first).role.mode is Mode.SLAVE, "the former master")
        await group.in_sync(second, 3)


@pytest.mark.full
async def test_a_master_whose_disk_hangs_loses_its_role(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, etcd, 3) as group:
        first = await group.master()
        await group.in_sync(first, 3)
        monkeypatch.setattr(type(first.store), "fsync_pending_ms", property(
            lambda store: 6000 if store is first.store else 0
        ))  # fmt: skip
        await group.master(other_than=first)
        await eventually(lambda: failover(first).role.mode is Mode.SLAVE, "the former master")


@pytest.mark.full
async def test_a_master_with_an_internal_error_loses_its_role(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, etcd, 3) as group:
        first = await group.master()
        await group.in_sync(first, 3)
        broken, step = failover(first).role, machine.step

        def failing(role: Role, event: Event, now_ms: int) -> list[Action]:
            assert role is not broken
            return step(role, event, now_ms)

        monkeypatch.setattr(machine, "step", failing)
        async with peer_of(first.address) as peer:
            await send_until(peer, ResponseCode.SERVICE_NOT_AVAILABLE)
        await group.master(other_than=first)
