"""The state of replication as tools and metrics show it."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.core import Metric

from tianzhou.broker.config import BrokerConfig, BrokerRole
from tianzhou.broker.handlers.admin.replication import ha_runtime_info, runtime_keys
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.metrics.families import Families
from tianzhou.broker.metrics.replication import add_replication
from tianzhou.broker.replication.status import (
    FOLLOWING,
    MasterRow,
    ReplicationStatus,
    SlaveRow,
)
from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.ha import HARuntimeInfo
from tianzhou.protocol.codes import ResponseCode


def slave(name: str, behind: int, *, problem: str | None = None) -> SlaveRow:
    return SlaveRow(
        name, f"10.0.0.2:{5000 + behind}", 1000 - behind, behind, behind * 2, problem is None, 77,
        1000 - behind // 2, problem,
    )  # fmt: skip


MASTER = ReplicationStatus(
    BrokerRole.SYNC_MASTER, 1000, [slave("id:1", 0), slave("10.0.0.2", 40, problem="is ahead")],
    epoch=3,
)  # fmt: skip
FOLLOWER = ReplicationStatus(
    BrokerRole.SLAVE,
    900,
    master=MasterRow("10.0.0.1:10911", "10.0.0.1:10912", FOLLOWING, True, 55, 1000, 100, 123),
)
LONELY = ReplicationStatus(BrokerRole.SLAVE, 900)


def test_a_master_reports_its_slaves_under_the_names_of_rocketmq() -> None:
    info = ha_runtime_info(MASTER, is_slave=False)
    text = encode(info, standard=True).decode()
    assert '"masterCommitLogMaxOffset":1000' in text
    assert '"inSyncSlaveNums":1' in text
    read = decode(HARuntimeInfo, text.encode())
    assert read.master
    first, second = read.connections
    assert (first.addr, first.slave_ack_offset, first.diff) == ("10.0.0.2:5000", 1000, 0)
    assert first.in_sync
    assert (second.slave_name, second.behind_ms, second.problem) == ("10.0.0.2", 80, "is ahead")
    assert not second.in_sync
    assert second.transfer_from_where == 980
    assert read.epoch == 3


def test_a_slave_reports_its_master() -> None:
    info = ha_runtime_info(FOLLOWER, is_slave=True)
    assert not info.master
    assert info.connections == []
    assert (info.client.master_addr, info.client.broker_addr) == (
        "10.0.0.1:10912", "10.0.0.1:10911",
    )  # fmt: skip
    assert (info.client.max_offset, info.client.behind_bytes) == (900, 100)
    assert info.client.transferred_bytes_per_second == 55
    assert info.client.state == FOLLOWING


def test_a_slave_without_a_master_says_so() -> None:
    assert ha_runtime_info(LONELY, is_slave=True).client.state == "no master is known"
    assert runtime_keys(LONELY, is_slave=True)["haState"] == "no master is known"
    assert runtime_keys(LONELY, is_slave=True)["haBehindMasterBytes"] == "-1"


def test_the_role_in_force_decides_not_a_row_of_another_role() -> None:
    # During a change of role the connections of the old one may still be there.
    assert ha_runtime_info(MASTER, is_slave=True).connections == []
    assert ha_runtime_info(FOLLOWER, is_slave=False).master


def test_broker_status_has_keys_of_its_own_for_the_lag() -> None:
    keys = runtime_keys(MASTER, is_slave=False)
    assert keys["haRole"] == "SYNC_MASTER"
    assert (keys["haSlaveNums"], keys["haInSyncSlaveNums"]) == ("2", "1")
    assert keys["haSlaveBehindBytes_id:1"] == "0"
    assert keys["haSlaveMaxBehindBytes"] == keys["haSlaveBehindBytes_10.0.0.2"] == "40"
    assert runtime_keys(FOLLOWER, is_slave=True)["haBehindMasterBytes"] == "100"


# -- metrics ---------------------------------------------------------------------------------------


def metrics(status: ReplicationStatus) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    config = BrokerConfig(broker_role=status.role)
    lost = {int(ResponseCode.SLAVE_NOT_AVAILABLE): 4}
    deps = cast(
        "Deps",
        SimpleNamespace(
            replication_status=lambda: status,
            settings=SimpleNamespace(config=config),
            durability=SimpleNamespace(less_durable=lost),
        ),
    )
    page: list[Metric] = []
    asyncio.run(add_replication(deps, Families(page, {})))
    samples = [sample for family in page for sample in family.samples]
    by_labels = {(each.name, *each.labels.values()): each.value for each in samples}
    assert len(by_labels) == len(samples), "Prometheus rejects a page with doubled labels"
    return by_labels


def test_metrics_of_a_master_have_the_lag_of_each_slave() -> None:
    shown = metrics(MASTER)
    assert shown["tianzhou_replication_role", "SYNC_MASTER"] == 1
    assert shown["tianzhou_slaves_connected",] == 2
    assert shown["tianzhou_slaves_in_sync",] == 1
    assert shown["tianzhou_slave_behind_bytes", "10.0.0.2"] == 40
    assert shown["tianzhou_slave_stopped", "10.0.0.2"] == 1
    assert shown["tianzhou_slave_bytes_per_second", "id:1"] == 77
    assert shown["tianzhou_sends_less_durable_total", "SLAVE_NOT_AVAILABLE"] == 4
    assert shown["tianzhou_sends_less_durable_total", "FLUSH_SLAVE_TIMEOUT"] == 0


@pytest.mark.parametrize("behind", [(0, 40), (40, 0)])
def test_slaves_of_one_name_are_one_value_the_farthest_behind(behind: tuple[int, int]) -> None:
    slaves = [slave("10.0.0.2", each) for each in behind]
    shown = metrics(ReplicationStatus(BrokerRole.ASYNC_MASTER, 1000, slaves))
    assert shown["tianzhou_slave_behind_bytes", "10.0.0.2"] == 40
    assert shown["tianzhou_slaves_connected",] == 2


def test_metrics_of_a_slave_have_its_state() -> None:
    shown = metrics(FOLLOWER)
    assert shown["tianzhou_replication_state", FOLLOWING] == 1
    assert shown["tianzhou_replication_following",] == 1
    assert shown["tianzhou_replication_behind_bytes",] == 100
    assert shown["tianzhou_replication_bytes_per_second",] == 55
    assert metrics(LONELY)["tianzhou_replication_following",] == 0
