"""The state of replication: `mqadmin haStatus`, and its keys in `brokerStatus`."""

from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.replication.status import MasterRow, ReplicationStatus, SlaveRow
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.ha import HAClientInfo, HAConnectionInfo, HARuntimeInfo
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection


def get_ha_status(deps: Deps, _: Connection, __: Command) -> Command:
    """GET_BROKER_HA_STATUS (5.x): the slaves of a master, or the master of a slave."""
    info = ha_runtime_info(deps.replication_status(), is_slave=deps.settings.config.is_slave)
    return Command(code=ResponseCode.SUCCESS, body=encode_body(info))


def reset_master_flush_offset(_: Deps, __: Connection, ___: Command) -> Command:
    """RESET_MASTER_FLUSH_OFFSET (5.x): accepted without effect; no decision here depends on it."""
    return Command(code=ResponseCode.SUCCESS)


def ha_runtime_info(status: ReplicationStatus, *, is_slave: bool) -> HARuntimeInfo:
    """The status as RocketMQ 5.x reports it, with fields that its tools ignore."""
    if is_slave:
        return HARuntimeInfo(
            client=_client_info(status), role=status.role.value, epoch=status.epoch
        )
    return HARuntimeInfo(
        master=True,
        master_max_offset=status.end_offset,
        in_sync_slave_count=status.in_sync_count,
        connections=[_connection_info(slave) for slave in status.slaves],
        role=status.role.value,
        epoch=status.epoch,
    )


def _connection_info(slave: SlaveRow) -> HAConnectionInfo:
    return HAConnectionInfo(
        addr=slave.address,
        slave_ack_offset=slave.acknowledged,
        diff=slave.behind_bytes,
        in_sync=slave.in_sync,
        transferred_bytes_per_second=slave.bytes_per_second,
        transfer_from_where=slave.position,
        slave_name=slave.name,
        behind_ms=slave.behind_ms,
        problem=slave.problem,
    )


def _client_info(status: ReplicationStatus) -> HAClientInfo:
    master = status.master or _NO_MASTER
    return HAClientInfo(
        master_addr=master.ha_address,
        transferred_bytes_per_second=master.bytes_per_second,
        max_offset=status.end_offset,
        last_read_timestamp=master.last_read_ms,
        last_write_timestamp=master.last_write_ms,
        broker_addr=master.address,
        state=master.state,
        is_tianzhou=master.is_ours,
        master_max_offset=master.master_end,
        behind_bytes=master.behind_bytes,
        problem=master.problem,
    )


_NO_MASTER = MasterRow(
    address=None, ha_address=None, state="no master is known", is_ours=False, bytes_per_second=0,
    master_end=None, behind_bytes=None, last_read_ms=0,
)  # fmt: skip


def runtime_keys(status: ReplicationStatus, *, is_slave: bool) -> dict[str, str]:
    """Keys of `brokerStatus` about replication. RocketMQ has none; these are Tianzhou's."""
    keys = {"haRole": status.role.value, "haEpoch": str(status.epoch)}
    if is_slave:
        master = status.master or _NO_MASTER
        return keys | {
            "haMaster": master.ha_address or "",
            "haState": master.state if master.problem is None else master.problem,
            "haBehindMasterBytes": _number(master.behind_bytes),
            "haTransferredByteInSecond": str(master.bytes_per_second),
        }
    slaves = status.slaves
    behind = {
        f"haSlaveBehindBytes_{slave.name}": str(slave.behind_bytes)
        for slave in sorted(slaves, key=lambda each: each.behind_bytes)
    }
    return keys | {
        "haSlaveNums": str(status.connected_count),
        "haInSyncSlaveNums": str(status.in_sync_count),
        "haSlaveMaxBehindBytes": str(max((slave.behind_bytes for slave in slaves), default=0)),
        "haTransferredByteInSecond": str(sum(slave.bytes_per_second for slave in slaves)),
        **behind,
    }


def _number(value: int | None) -> str:
    return "-1" if value is None else str(value)
