"""The checks of masters and slaves, with plain values."""

import pytest

from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.doctor.replication import Replica, check_group
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.replication.links import BEHIND_BYTES_MAX, Links
from tianzhou.ha import hello
from tianzhou.protocol.bodies.ha import (
    FOLLOWING,
    HAClientInfo,
    HAConnectionInfo,
    HARuntimeInfo,
)

NOW_MS = 1_700_000_000_000
MASTER_AT = BrokerRef("broker-a", 0, "10.0.0.1:10911", "c")
SLAVE_AT = BrokerRef("broker-a", 1, "10.0.0.2:10911", "c")
SETTINGS = {"mappedFileSizeCommitLog": "1073741824", "slaveReadEnable": "true"}


def master(
    *slaves: HAConnectionInfo,
    ours: bool = True,
    is_reported: bool = True,
    role: str = "ASYNC_MASTER",
    **settings: str,
) -> Replica:
    info = HARuntimeInfo(
        master=True, master_max_offset=5000, connections=list(slaves),
        in_sync_slave_count=sum(each.in_sync for each in slaves), role=role if ours else None,
    )  # fmt: skip
    links = Links(info, is_reported=is_reported)
    return Replica(MASTER_AT, {"brokerRole": role, **SETTINGS, **settings}, links)


def connection(
    diff: int = 0, name: str | None = "id:1", problem: str | None = None, behind_ms: int = 0
) -> HAConnectionInfo:
    return HAConnectionInfo(
        addr="10.0.0.2:4711", slave_ack_offset=5000 - diff, diff=diff, slave_name=name,
        in_sync=problem is None, problem=problem, behind_ms=behind_ms,
    )  # fmt: skip


def our_slave(state: str = FOLLOWING, problem: str | None = None, **settings: str) -> Replica:
    client = HAClientInfo(
        master_addr="10.0.0.1:10912", max_offset=5000, state=state, problem=problem
    )
    links = Links(HARuntimeInfo(client=client, role="SLAVE"))
    return Replica(SLAVE_AT, {"brokerRole": "SLAVE", **SETTINGS, **settings}, links)


def apache_slave(
    end: int = 5000, *, silent_ms: int = 0, first: int = 0, is_reported: bool = True
) -> Replica:
    client = HAClientInfo(
        master_addr="10.0.0.1:10912", max_offset=end, master_max_offset=5000,
        behind_bytes=5000 - end, last_read_timestamp=NOW_MS - silent_ms if is_reported else 0,
    )  # fmt: skip
    links = Links(HARuntimeInfo(client=client), is_reported, master_first_offset=first)
    return Replica(SLAVE_AT, {"brokerRole": "SLAVE", **SETTINGS}, links)


def found(*replicas: Replica) -> list[Finding]:
    return check_group([MASTER_AT, SLAVE_AT], replicas, NOW_MS)


def test_a_pair_in_order_is_one_line() -> None:
    for pair in (
        (master(connection()), our_slave()),
        (master(connection(), role="SYNC_MASTER"), our_slave()),
        (master(connection(name=None), ours=False), apache_slave()),
        (master(connection(), ours=False, is_reported=False), apache_slave(is_reported=False)),
    ):
        (each,) = found(*pair)
        assert (each.level, each.subject) == (Level.OK, "broker-a[1]")


def test_a_slave_of_ours_that_does_not_follow_is_one_error_with_its_reason() -> None:
    why = "its log ends 40 bytes behind this one"
    (each,) = found(master(connection(-40, problem=why)), our_slave("refused", f"refused: {why}"))
    assert each.level is Level.ERROR
    assert each.what == f"does not follow its master: refused: {why}"


def test_a_slave_that_does_not_respond_is_reported_by_its_master() -> None:
    (each,) = found(master(connection(problem="older than the oldest file")))
    assert each.level is Level.ERROR
    assert "slave id:1" in each.subject
    assert each.what == "older than the oldest file"
    assert "empty one" in each.advice


@pytest.mark.parametrize(
    "why",
    [
        hello.id_is_taken(1, "10.0.0.3:4711"),
        hello.sizes_differ(master=4096, slave=1024),
        "this is broker a of cluster c, the slave is broker b of cluster c",
    ],
)
def test_an_empty_store_is_no_advice_for_wrong_settings(why: str) -> None:
    (each,) = found(master(connection(problem=why)))
    assert each.level is Level.ERROR
    assert each.what == why
    assert "empty one" not in each.advice


@pytest.mark.parametrize("why", [hello.gap(10, 20), hello.ahead(40, 20)])
def test_an_empty_store_is_the_advice_for_a_log_that_cannot_go_on(why: str) -> None:
    (each,) = found(master(connection(problem=why)))
    assert "empty one" in each.advice


@pytest.mark.parametrize(
    ("slave", "expected"),
    [
        (apache_slave(5040), "has 40 bytes that its master lacks"),
        (apache_slave(100, first=1000), "before the oldest file of its master (1,000)"),
        (apache_slave(silent_ms=60_000), "gets nothing from its master: silent for 60 s"),
    ],
)
def test_a_slave_of_apaches_is_compared_with_its_master(slave: Replica, expected: str) -> None:
    (each,) = found(master(connection(name=None), ours=False), slave)
    assert each.level is Level.ERROR
    assert expected in each.what


def test_a_slave_without_a_connection_is_found_by_its_master() -> None:
    (each,) = found(master(), apache_slave(is_reported=False))
    assert "its master has no connection from it" in each.what
    elsewhere = HAConnectionInfo(addr="192.168.0.9:4711", slave_name="192.168.0.9")
    (each,) = found(master(elsewhere), apache_slave(is_reported=False))
    assert each.level is Level.OK, "a host may have two addresses"


@pytest.mark.parametrize(
    ("diff", "behind_ms", "level"),
    [
        (1000, 10, Level.OK),
        (65 * 1024 * 1024, 10, Level.WARNING),
        (1000, 31_000, Level.WARNING),
        (BEHIND_BYTES_MAX, 0, Level.WARNING),
    ],
)
def test_a_slave_far_behind_is_a_warning(diff: int, behind_ms: int, level: Level) -> None:
    (each,) = found(master(connection(diff, behind_ms=behind_ms)), our_slave())
    assert each.level is level
    assert ("haSlaveFallbehindMax" in each.what) == (diff >= BEHIND_BYTES_MAX)


def test_a_sync_master_without_enough_slaves_in_reach_is_an_error() -> None:
    far = connection(problem="older than the oldest file")
    (first, _) = found(master(far, role="SYNC_MASTER"))
    assert first.level is Level.ERROR
    assert "waits for 1 of its slaves; 0 in reach, 1 registered" in first.what
    (each,) = found(master(connection(), role="SYNC_MASTER", inSyncReplicas="3"), our_slave())
    assert "waits for 2 of its slaves; 1 in reach" in each.what
    (each,) = check_group([MASTER_AT], [master(role="SYNC_MASTER")], NOW_MS)
    assert "0 registered" in each.what
    assert check_group([MASTER_AT], [master()], NOW_MS) == []


def test_a_sync_master_of_5x_that_waits_for_nobody_is_a_warning() -> None:
    lax = master(connection(name=None), ours=False, role="SYNC_MASTER", inSyncReplicas="1")
    (each,) = found(lax, apache_slave())
    assert each.level is Level.WARNING
    assert "waits for no slave" in each.what


def test_settings_that_must_agree() -> None:
    (each,) = found(master(connection()), our_slave(slaveReadEnable="false"))
    assert each.level is Level.WARNING
    assert "has slaveReadEnable=false, its master has true" in each.what
    (each,) = found(master(connection()), our_slave(mappedFileSizeCommitLog="4096"))
    assert each.level is Level.ERROR
    assert "has mappedFileSizeCommitLog=4096, its master has 1073741824" in each.what


def test_a_slave_of_apaches_on_a_broker_with_access_control_is_a_warning() -> None:
    guarded = master(connection(name="10.0.0.2"), aclEnable="true")
    (each,) = found(guarded, apache_slave())
    assert each.level is Level.WARNING
    assert "without an account" in each.what
    (each,) = found(master(connection(), aclEnable="true"), our_slave())
    assert each.level is Level.OK


def test_without_a_registered_master_its_slaves_are_not_blamed() -> None:
    assert check_group([SLAVE_AT], [our_slave("no master is known")], NOW_MS) == [
        Finding(Level.OK, "replication", "broker-a[1]", "follows its master, a short way behind")
    ]
