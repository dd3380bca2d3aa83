"""`tianzhou broker group` and the commands of operators, with three brokers and a real etcd."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from tests.support.brokers import cluster, eventually, peer_of, running_namesrv
from tests.support.command_line import Cli
from tests.support.elected_here import NAME, ElectedHere, elected_here

from tianzhou.broker.server import Broker
from tianzhou.cli.shared import command as cli_session
from tianzhou.ha.authority.values import GroupState
from tianzhou.ha.roles.reasons import Code
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.ha import BrokerReplicasInfo, EpochEntryCache
from tianzhou.protocol.bodies.route import BrokerMemberGroup
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers.ha import (
    ElectMasterResponse,
    GetMetadataResponse,
    GroupCommandRequest,
)

ELECT = {"clusterName": "DefaultCluster", "brokerName": NAME, "designateElect": "true",
         "invokeTime": "0"}  # fmt: skip


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")


async def send(group: ElectedHere, count: int) -> None:
    master = await group.has_master()
    async with peer_of(master.address) as peer:
        for _ in range(count):
            assert (await peer.send("t", b"x" * 100)).code == ResponseCode.SUCCESS


def slave_of(state: GroupState) -> int:
    return next(each for each in state.in_sync if each != state.master)


async def test_a_group_is_shown_switched_paused_and_loses_a_member(tmp_path: Path) -> None:
    async with elected_here(tmp_path) as group:
        state = await group.in_sync(3)
        first = state.master
        assert first is not None
        await send(group, 5)
        shown = (await group.cli.run("broker", "group", NAME, "--json")).json
        assert (shown["epoch"], shown["master"], shown["inSync"]) == (1, first, [1, 2, 3])
        assert [each["own"]["mode"] for each in shown["replicas"]].count("slave") == 2
        assert {each["endOffset"] for each in shown["replicas"]} == {shown["replicas"][0]["own"]
                                                                     ["endOffset"]}  # fmt: skip
        assert shown["etcd"]["members"][0]["leader"] is True
        assert shown["etcd"]["members"][0]["version"].startswith("3.")
        assert [each["cause"] for each in shown["history"]] == ["first master"]
        assert shown["alarms"] == []

        await switch(group, state)
        await pause(group)
        await retire(group)


async def switch(group: ElectedHere, state: GroupState) -> None:
    to = slave_of(state)
    ran = await group.cli.run("broker", "switch", NAME, "--to", str(to), "--dry-run")
    assert "nothing was changed" in ran.out
    assert await group.cli.run("broker", "switch", NAME, code=2), "without a terminal"
    ran = await group.cli.run("broker", "switch", NAME, "--to", str(to), "--yes")
    assert f"replica {to} (" in ran.out
    assert "is the master of epoch 2" in ran.out
    assert group.id_of(await group.has_master(other_than=state.master or 0)) == to
    await group.in_sync(3)
    ran = await group.cli.run("broker", "switch", NAME, "--to", str(to), "--yes", code=1)
    assert "is the master already" in ran.err
    at = ("--broker", group.broker_of(to).address)
    ran = await group.cli.run("broker", "switch", NAME, "--to", "9", "--yes", *at, code=1)
    assert "has no replica 9; there are: 1, 2, 3" in ran.err
    for words in (("group", "other"), ("retire", "other", "--id", "2", "--yes")):
        ran = await group.cli.run("broker", *words, *at, code=1)
        assert f"is of {NAME}, not of other" in ran.err
    ran = await group.cli.run("broker", "group", NAME)
    assert "planned switch" in ran.out


async def pause(group: ElectedHere) -> None:
    at = ("--broker", group.running[0].address)
    ran = await group.cli.run("broker", "pause", NAME, "--dry-run", *at)
    assert "nothing was changed" in ran.out
    ran = await group.cli.run("broker", "pause", NAME, "--yes")
    assert f"tianzhou broker resume {NAME}" in ran.out
    ran = await group.cli.run("broker", "group", NAME)
    assert "attention: elections are paused" in ran.out
    # A master that was lost is not replaced.
    state = await group.in_sync(3)
    await group.stop(group.number_of(state.master or 0))
    await eventually(lambda: any(
        (standing := group.failover(each).role.standing) is not None
        and standing.code is Code.PAUSED for each in group.running
    ), "no election because of the pause")  # fmt: skip
    assert group.master is None
    ran = await group.cli.run("broker", "resume", NAME)
    assert "automatic again" in ran.out
    await group.has_master(other_than=state.master or 0)
    ran = await group.cli.run("broker", "resume", NAME, "--broker", group.running[0].address)
    assert "are not paused" in ran.out


async def retire(group: ElectedHere) -> None:
    state = await group.in_sync(2)
    gone = next(each for each in (1, 2, 3) if each not in state.in_sync)
    ran = await group.cli.run("broker", "group", NAME)
    assert "no answer" in ran.out
    ran = await group.cli.run("broker", "retire", NAME, "--id", str(state.master), "--yes", code=1)
    assert "is the master" in ran.err
    other = slave_of(state)
    ran = await group.cli.run("broker", "retire", NAME, "--id", str(other), "--yes", code=1)
    assert "less than minInSync=2" in ran.err
    words = ("retire", NAME, "--id", str(gone))
    ran = await group.cli.run("broker", *words, "--dry-run", "--broker", group.running[0].address)
    assert f"would remove replica {gone} from {NAME}; nothing was changed" in ran.out
    ran = await group.cli.run("broker", *words, "--yes")
    assert f"replica {gone} is no member" in ran.out
    shown = (await group.cli.run("broker", "group", NAME, "--json")).json
    assert [each["id"] for each in shown["replicas"]] == list(state.in_sync)
    # One that was down comes back when it is started; one that runs stops for ever.
    await group.start(gone - 1)
    await group.in_sync(3)
    await group.cli.run("broker", "retire", NAME, "--id", str(gone), "--yes")
    retired = group.failover(group.broker_of(gone))
    await eventually(lambda: retired.role.stopped is not None, "the retired one has stopped")
    assert retired.role.stopped is not None
    assert retired.role.stopped.code is Code.RETIRED
    await group.in_sync(2)


# -- requests of Apache's tools --------------------------------------------------------------------


async def test_requests_for_the_controller_are_answered(tmp_path: Path) -> None:
    async with elected_here(tmp_path) as group:
        state = await group.in_sync(3)
        to = slave_of(state)
        slave = group.broker_of(to)
        async with peer_of(slave.address) as peer:
            answer = await peer.expect(RequestCode.CONTROLLER_GET_METADATA_INFO)
            metadata = headers.decode(GetMetadataResponse, answer.fields)
            assert metadata.controller_leader_address == (await group.has_master()).address
            assert not metadata.is_leader
            answer = await peer.expect(
                RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, {}, b'["other","broker-a"]'
            )
            found = bodies.decode(BrokerReplicasInfo, answer.body).replicas
            assert list(found) == [NAME]
            assert found[NAME].master_broker_id == state.master
            assert [each.broker_id for each in found[NAME].in_sync or ()] == [1, 2, 3]
            assert not found[NAME].not_in_sync
            answer = await peer.expect(RequestCode.GET_BROKER_EPOCH_CACHE)
            cache = bodies.decode(EpochEntryCache, answer.body)
            assert [each.epoch for each in cache.epochs] == [1]
            assert cache.broker_id == to
        async with peer_of((await group.has_master()).address) as peer:
            answer = await peer.ask(RequestCode.CONTROLLER_ELECT_MASTER, ELECT | {"brokerId": "-1"})
            assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
            fields = ELECT | {"brokerName": "other", "brokerId": str(to)}
            answer = await peer.ask(RequestCode.CONTROLLER_ELECT_MASTER, fields)
            assert answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            fields = ELECT | {"brokerId": str(state.master)}
            answer = await peer.ask(RequestCode.CONTROLLER_ELECT_MASTER, fields)
            assert answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            answer = await peer.expect(
                RequestCode.CONTROLLER_ELECT_MASTER, ELECT | {"brokerId": str(to)}
            )
            header = headers.decode(ElectMasterResponse, answer.fields)
            assert (header.master_broker_id, header.master_epoch) == (to, 2)
            assert header.master_address == slave.address
            body = bodies.decode(BrokerMemberGroup, answer.body)
            assert body.addresses[0] == slave.address
            assert len(body.addresses) == 3


# -- bad requests ----------------------------------------------------------------------------------


async def test_commands_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    async with elected_here(tmp_path, 1, minInSyncReplicas=1) as group:
        await group.in_sync(1)
        async with peer_of(group.running[0].address) as peer:
            for fields, text in (
                ({"command": "explode"}, "it must be of: switch, pause"),
                ({"command": "retire"}, "needs the id of a replica"),
                ({"command": "retire", "replicaId": "65"}, "1 to 64"),
                ({"command": "elect", "replicaId": "1"}, "--accept-loss"),
                ({"command": "init"}, "the group exists"),
                ({"command": "switch"}, "no in-sync replica is connected"),
                ({}, "command"),
            ):
                answer = await peer.ask(RequestCode.HA_GROUP_COMMAND, fields)
                assert answer.code != ResponseCode.SUCCESS
                assert text in (answer.remark or ""), answer.remark
            header = GroupCommandRequest(command="pause", by="a\nb" + "c" * 200)
            await peer.expect(RequestCode.HA_GROUP_COMMAND, headers.encode(header))
            state = group.state
            assert state is not None
            assert state.cause.startswith("paused by a?bccc")
            assert len(state.cause) < 120
        async with peer_of(group.running[0].address) as peer:
            fields = {"role": "SYNC_MASTER", "force": "true"}
            answer = await peer.ask(RequestCode.CHANGE_BROKER_ROLE, fields)
            assert "tianzhou broker switch" in (answer.remark or "")


# -- metrics, health, doctor -----------------------------------------------------------------------


async def page(broker: Broker, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.web_port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def test_metrics_health_and_doctor_follow_the_roles(tmp_path: Path) -> None:
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
    async with elected_here(tmp_path, 2, **settings) as group:
        state = await group.in_sync(2)
        await send(group, 3)
        master, slave = await group.has_master(), group.broker_of(slave_of(state))
        assert [await status(master, each) for each in PATHS] == [200, 503, 200, 200, 200]
        await eventually(lambda: slave.serving.reads is None, "a slave that serves readers")
        assert [await status(slave, each) for each in PATHS] == [503, 200, 200, 200, 200]
        code, body = await page(slave, "/slave?lag=0")
        assert code == 200, body
        assert json.loads(body)["role"] == "slave"
        for query in ("lag=x", "lag=-1", "lag=1&lag=2", "other=1", "lag=", "lag=" + "9" * 30):
            assert await status(slave, f"/slave?{query}") == 400, query
        await metrics(master, slave)
        ran = await group.cli.run("broker", "promote", NAME, "--yes", "--force", code=1)
        assert f"`tianzhou broker switch {NAME}`" in ran.err
        async with peer_of(slave.address) as peer:
            assert (await peer.send("t", b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "tianzhou_sends_refused_total{" in (await page(slave, "/metrics"))[1]
        keys = (await group.cli.run("broker", "runtime", master.address, "ha*", "--json")).json
        (found,) = keys.values()
        assert (found["haMode"], found["haInSyncReplicas"]) == ("master", "1 2")
        assert found["haEtcdReachable"] == "true"
        findings = (await group.cli.run("doctor", "--wait", "0", "--json")).json
        assert [each["what"] for each in findings if each["check"] == "failover"] == [
            f"epoch 1, master {state.master}, in sync 1, 2"
        ]
        await one_is_lost(group, state)


PATHS = ("/master", "/slave", "/in-sync", "/readiness", "/liveness")


async def status(broker: Broker, path: str) -> int:
    return (await page(broker, path))[0]


async def metrics(master: Broker, slave: Broker) -> None:
    _, text = await page(master, "/metrics")
    for line in ('role="master"} 1.0', 'role="slave"} 0.0'):
        assert line in text
    for name in ("tianzhou_ha_in_sync", "tianzhou_ha_etcd_reachable", "tianzhou_ha_member"):
        (value,) = re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE)
        assert value == ("2.0" if name == "tianzhou_ha_in_sync" else "1.0"), name
    _, text = await page(slave, "/metrics")
    assert 'role="slave"} 1.0' in text
    assert "tianzhou_ha_switches_total" in text


async def one_is_lost(group: ElectedHere, state: GroupState) -> None:
    """Of two with minInSyncReplicas=2: sends are refused, which everything says."""
    await group.stop(group.number_of(slave_of(state)))
    (master,) = group.running
    await eventually(lambda: master.serving.writes is not None, "sends are refused")
    code, body = await page(master, "/master")
    assert code == 503
    assert "in-sync replicas not enough" in json.loads(body)["reason"]
    ran = await group.cli.run("broker", "group", NAME)
    assert "sends are refused: in-sync replicas not enough: 1" in ran.out
    assert "yes, not connected" in ran.out
    findings = (await group.cli.run("doctor", "--wait", "0", "--json", code=1)).json
    assert any("does not answer" in each["what"] for each in findings)
    # Without etcd nothing is known for sure but the own connections.
    group.etcd.members[0].kill()
    await eventually(
        lambda: group.failover(master).link.problem is not None, "etcd out of reach is noticed"
    )
    assert await status(master, "/in-sync") == 503
    ran = await group.cli.run("broker", "group", NAME)
    assert "attention: no switch is possible" in ran.out
    group.etcd.members[0].start()


# -- forced elections, and what follows ------------------------------------------------------------


async def test_a_forced_election_states_its_price_and_a_resync_follows(tmp_path: Path) -> None:
    async with elected_here(tmp_path, flushDiskType="SYNC_FLUSH") as group:
        state = await group.in_sync(3)
        last = next(each for each in (3, 2) if each != state.master)
        behind = group.number_of(last)
        await send(group, 10)
        await group.stop(behind)
        state = await group.in_sync(2)
        await send(group, 10)
        await all_is_known_as_confirmed(group)
        others = [group.number_of(each) for each in state.in_sync]
        slaves_first = sorted(others, key=lambda each: group.brokers[each] is group.master)
        for number in slaves_first:
            await group.stop(number)
        candidate = await group.start(behind)
        await eventually(lambda: group.id_of(candidate) == last, "the replica has joined")
        await refused_without_consent(group, last)
        ran = await group.cli.run(
            "broker", "elect", NAME, "--force", "--accept-loss", "--yes", "--timeout", "2"
        )
        assert f"replica {last} is the master of epoch" in ran.out
        await eventually(lambda: group.failover(candidate).is_master, "it leads")
        # It lacks what was confirmed without it: another one stops, until an operator acts.
        stopped = await group.start(slaves_first[-1])
        failover = group.failover(stopped)
        await eventually(lambda: failover.role.stopped is not None, "it stops")
        ran = await group.cli.run("broker", "group", NAME)
        assert "tianzhou broker resync" in ran.out
        ran = await group.cli.run("broker", "resync", NAME, "--id", str(last), "--yes", code=1)
        assert "is not a slave" in ran.err
        own = group.id_of(stopped)
        words = ("broker", "resync", NAME, "--id", str(own), "--broker", candidate.address)
        ran = await group.cli.run(*words, "--dry-run")
        assert "nothing was changed" in ran.out
        ran = await group.cli.run(*words, "--yes")
        assert "cut-tail-" in ran.out
        await group.in_sync(2)
        ends = {each.store.end_log_offset for each in group.running}
        assert len(ends) == 1
        (tail,) = (tmp_path / f"store-{slaves_first[-1]}").glob("cut-tail-*")
        assert tail.stat().st_size > 1000, "ten messages that only it had"


async def all_is_known_as_confirmed(group: ElectedHere) -> None:
    """The master would remember it after a stop."""
    master = await group.has_master()
    end, role = master.store.end_log_offset, group.failover(master).role

    def is_known() -> bool:
        confirm = role.session.counted.confirm if role.session else 0
        return confirm == role.log.flushed == end

    await eventually(is_known, "everything is confirmed and on the disk")


async def refused_without_consent(group: ElectedHere, candidate: int) -> None:
    role = group.failover(group.broker_of(candidate)).role
    await eventually(
        lambda: role.standing is not None and role.standing.code is Code.NOT_IN_SYNC,
        "it knows that it is no candidate",
    )
    ran = await group.cli.run("broker", "group", NAME)
    assert "in sync are" in ran.out, "why it is no candidate"
    ran = await group.cli.run("broker", "elect", NAME, "--yes", code=2)
    assert "--force and --accept-loss" in ran.err
    assert f"replica {candidate} (" in ran.out
    assert "does not answer: its log went up to" in ran.out
    ran = await group.cli.run("broker", "elect", NAME, "--force", "--accept-loss", "--dry-run")
    assert "lose what it lacks; nothing was changed" in ran.out
    assert not group.failover(group.broker_of(candidate)).is_master
    other = 1 if candidate != 1 else 2
    at = ("--broker", group.broker_of(candidate).address, "--id", str(other))
    ran = await group.cli.run(
        "broker", "elect", NAME, *at, "--force", "--accept-loss", "--yes", code=1
    )
    assert "does not answer, so it cannot be elected" in ran.err


# -- an etcd that was wiped ------------------------------------------------------------------------


async def test_a_group_is_founded_anew_in_an_empty_etcd(tmp_path: Path) -> None:
    async with elected_here(tmp_path, 2) as group:
        state = await group.in_sync(2)
        assert state.master is not None
        await send(group, 5)
        for number in (0, 1):
            await group.stop(number)
        (member,) = group.etcd.members
        member.wipe()
        group.etcd.start()
        first, second = await group.start(0), await group.start(1)
        for each in (first, second):
            role = group.failover(each).role
            await eventually(lambda role=role: role.untrusted is not None, "no state is noticed")  # type: ignore[misc]
        ran = await group.cli.run("broker", "group", NAME, "--broker", second.address)
        assert "the group does not exist yet" in ran.out
        assert "was wiped, or the group was never set up" in ran.out
        own = str(group.id_of(second))
        words = ("broker", "init", NAME, "--id", own, "--broker", first.address)
        ran = await group.cli.run(*words, "--dry-run")
        assert f"would found {NAME} with the log of replica {own}" in ran.out
        ran = await group.cli.run(*words, "--yes")
        assert f"replica {own} is the master of epoch" in ran.out
        await group.in_sync(2)
        ran = await group.cli.run(*words, "--yes", code=1)
        assert "nothing to found" in ran.err
        assert first.store.end_log_offset == second.store.end_log_offset > 1000


# -- the command line alone ------------------------------------------------------------------------


async def test_a_group_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_session, "pause", pause)
    async with elected_here(tmp_path, 1, minInSyncReplicas=1) as group:
        await group.in_sync(1)
        ran = await group.cli.run("broker", "group", NAME, "--watch", "--every", "0.5")
        assert pauses == [0.5, 0.5]
        assert ran.out.count("attention: only replica 1 is in sync") == 2
        ran = await group.cli.run("broker", "group", "elsewhere", code=1)
        assert "if no replica of elsewhere is registered, name one: --broker" in ran.err


async def test_brokers_with_fixed_roles_are_no_group(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, running_namesrv(tmp_path / "n") as namesrv:
        cli = Cli(namesrv)
        at = ("--broker", it.broker.address)
        ran = await cli.run("broker", "group", NAME, *at, code=1)
        assert f"{NAME} has fixed roles, no automatic failover" in ran.err
        ran = await cli.run("broker", "group", NAME, "--broker", namesrv, code=1)
        assert f"{namesrv} knows no groups with automatic failover: it is a nameserver" in ran.err
        ran = await cli.run("broker", "group", NAME, "--broker", "127.0.0.1:1", code=1)
        assert f"no replica of {NAME} answers" in ran.err
        for code in (RequestCode.CONTROLLER_GET_METADATA_INFO, RequestCode.HA_GROUP):
            answer = await it.peer.ask(code)
            assert "this broker has a fixed role" in (answer.remark or "")
        answer = await it.peer.expect(RequestCode.GET_BROKER_EPOCH_CACHE)
        assert bodies.decode(EpochEntryCache, answer.body).broker_name == NAME


async def test_a_slave_passes_a_switch_on_to_the_master(tmp_path: Path) -> None:
    async with elected_here(tmp_path) as group:
        state = await group.in_sync(3)
        to = slave_of(state)
        other = next(each for each in state.in_sync if each not in (to, state.master))
        header = GroupCommandRequest(command="switch", replica_id=to, by="me")
        async with peer_of(group.broker_of(other).address) as peer:
            fields = headers.encode(header)
            answer = await peer.expect(RequestCode.HA_GROUP_COMMAND, fields)
            assert "known to the group" in (answer.remark or "")
            await eventually(
                lambda: group.master is not None and group.id_of(group.master) == to,
                "the master has carried it out",
            )
            header = GroupCommandRequest(command="switch")
            answer = await peer.ask(RequestCode.HA_GROUP_COMMAND, headers.encode(header))
            assert "name a replica that is in sync" in (answer.remark or "")
