"""Metrics of replication: the slaves of a master, or the master of a slave."""

from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.metrics.families import Families
from tianzhou.broker.replication.status import FOLLOWING, MasterRow, ReplicationStatus, SlaveRow
from tianzhou.protocol.codes import ResponseCode


async def add_replication(deps: Deps, families: Families) -> None:
    """Add the metrics of the broker's role."""
    status = deps.replication_status()
    families.gauge("tianzhou_replication_role", "1 for the role of the broker", "role")(
        1, status.role.value
    )
    families.gauge("tianzhou_replication_epoch", "Raised by each promotion")(status.epoch)
    if deps.settings.config.is_slave:
        _add_master(status.master, families)
    else:
        _add_slaves(status, families)
    weaker = families.counter(
        "tianzhou_sends_less_durable", "Messages stored, but not as safely as asked for", "status"
    )
    for code in (
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ):
        weaker(deps.durability.less_durable.get(code, 0), code.name)


def _add_slaves(status: ReplicationStatus, families: Families) -> None:
    add = families.gauge
    add("tianzhou_slaves_connected", "Slaves that are connected")(status.connected_count)
    add("tianzhou_slaves_in_sync", "Slaves that count for SYNC_MASTER")(status.in_sync_count)
    behind = add("tianzhou_slave_behind_bytes", "Bytes of the log that a slave lacks", "slave")
    behind_ms = add("tianzhou_slave_behind_ms", "Age of the first of them in ms", "slave")
    in_sync = add("tianzhou_slave_in_sync", "1 for a slave that counts for SYNC_MASTER", "slave")
    rate = add("tianzhou_slave_bytes_per_second", "Bytes of the log sent per second", "slave")
    stopped = add("tianzhou_slave_stopped", "1 for a slave that cannot follow", "slave")
    for name, slave in slaves_by_name(status).items():
        behind(slave.behind_bytes, name)
        if slave.behind_ms is not None:
            behind_ms(slave.behind_ms, name)
        in_sync(int(slave.in_sync), name)
        rate(slave.bytes_per_second, name)
        stopped(int(slave.problem is not None), name)


def slaves_by_name(status: ReplicationStatus) -> dict[str, SlaveRow]:
    """One slave for each name, that which is farthest behind: slaves of Apache's on one host have
    the same name, and a page must not have two values for the same labels."""
    farthest_last = sorted(status.slaves, key=lambda slave: slave.behind_bytes)
    return {slave.name: slave for slave in farthest_last}


def _add_master(master: MasterRow | None, families: Families) -> None:
    add = families.gauge
    state = "no master is known" if master is None else master.state
    add("tianzhou_replication_state", "1 for the state of the slave", "state")(1, state)
    add("tianzhou_replication_following", "1 while the slave follows its master")(
        int(state == FOLLOWING)
    )
    if master is None:
        return
    add("tianzhou_replication_bytes_per_second", "Bytes of the log received per second")(
        master.bytes_per_second
    )
    if master.behind_bytes is not None:
        add("tianzhou_replication_behind_bytes", "Bytes of the master's log that are missing")(
            master.behind_bytes
        )
