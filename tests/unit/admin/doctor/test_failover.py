"""Findings about groups whose master is elected."""

from msgspec.structs import replace

from tianzhou.admin.doctor.failover import (
    check_fixed,
    check_group,
    check_namesrv,
    check_readers,
)
from tianzhou.admin.doctor.findings import Level
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.replication.groups import combine
from tianzhou.errors import RequestTimeout
from tianzhou.protocol.bodies.ha import HAConnectionInfo, HARuntimeInfo
from tianzhou.protocol.bodies.ha_group import GroupInfo, GroupReason, GroupReplica, GroupSelf


def answer(own: int, in_sync: tuple[int, ...] = (1, 2)) -> GroupInfo:
    replicas = [
        GroupReplica(id=each, address=f"h{each}:1", is_master=each == 1, is_in_sync=each in in_sync)
        for each in (1, 2)
    ]
    return GroupInfo(
        broker_name="g", revision=5, epoch=3, master=1, in_sync=list(in_sync), replicas=replicas,
        own=GroupSelf(id=own, mode="master" if own == 1 else "slave", end_offset=1000 // own),
    )  # fmt: skip


def test_a_sound_group_is_ok() -> None:
    (finding,) = check_group(combine({"h1:1": answer(1), "h2:1": answer(2)}))
    assert finding.level is Level.OK
    assert finding.what == "epoch 3, master 1, in sync 1, 2"


def test_alarms_get_a_level_and_advice() -> None:
    alarms = [
        GroupReason(code="paused", text="p"), GroupReason(code="untrusted", text="u"),
        GroupReason(code="of a later version", text="x"),
    ]  # fmt: skip
    first = replace(answer(1), alarms=alarms)
    found = check_group(combine({"h1:1": first, "h2:1": answer(2)}))
    assert [(each.level, each.what) for each in found] == [
        (Level.WARNING, "p"), (Level.ERROR, "u"), (Level.WARNING, "x"),
    ]  # fmt: skip
    assert found[0].advice == "tianzhou broker resume g"


def test_replicas_that_do_not_answer_or_are_behind_are_found() -> None:
    group = combine({"h1:1": answer(1, (1,))}, {"h2:1": RequestTimeout("late")})
    (finding,) = check_group(group)
    assert "does not answer: late" in finding.what
    assert "tianzhou broker retire g --id 2" in finding.advice
    (finding,) = check_group(combine({"h1:1": answer(1, (1,)), "h2:1": answer(2, (1,))}))
    assert finding.what == "is not in sync: 500 bytes behind"


def test_a_broker_with_a_fixed_role_beside_a_group_is_an_error() -> None:
    elected, fixed = BrokerRef("g", 1, "h1:1", "c"), BrokerRef("g", 2, "h2:1", "c")
    (finding,) = check_fixed("g", [elected], {elected: {}, fixed: {}})
    assert finding.subject == "g[2]"
    assert check_fixed("g", [elected], {elected: {}, BrokerRef("x", 0, "h:1", "c"): {}}) == []


def test_slaves_of_apaches_are_readers() -> None:
    connections = [HAConnectionInfo(slave_name="id:2"), HAConnectionInfo(slave_name="10.0.0.9")]
    (finding,) = check_readers("g", HARuntimeInfo(master=True, connections=connections))
    assert finding.subject == "g, slave 10.0.0.9"
    assert "never in sync" in finding.what


def test_nameservers_without_epochs_are_found() -> None:
    assert check_namesrv("n:9876", {"supportActingMaster": "false"}) == []
    (finding,) = check_namesrv("n:9876", {"orderMessageEnable": "false"})
    assert finding.level is Level.WARNING
    assert "does not compare epochs" in finding.what
