"""Metrics of automatic failover: the role, who is in sync, the lease, switches, refused sends."""

from tianzhou.broker.handlers.admin.ha_group import info_of
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.metrics.families import Families
from tianzhou.broker.replication.failover import Failover
from tianzhou.ha.roles.role import Mode
from tianzhou.protocol.bodies.ha_group import GroupInfo


async def add_failover(deps: Deps, families: Families) -> None:
    """Add them, on a broker whose master is elected; etcd is not asked for them."""
    failover = deps.failover
    if failover is None:
        return
    _add_group(info_of(deps, failover), families)
    _add_counters(failover, families)


def _add_group(info: GroupInfo, families: Families) -> None:
    own, gauge = info.own, families.gauge
    role = gauge("tianzhou_ha_role", "1 for what the replica is doing", "role")
    for mode in Mode:
        role(int(mode.value == own.mode), mode.value)
    gauge("tianzhou_ha_replica_id", "Its id in the group; 0 before it has joined")(own.id)
    gauge("tianzhou_ha_epoch", "Epoch of the group's master, as far as known here")(info.epoch)
    gauge("tianzhou_ha_in_sync", "Replicas in sync, the master included")(len(info.in_sync))
    gauge("tianzhou_ha_min_in_sync", "minInSyncReplicas")(info.min_in_sync)
    gauge("tianzhou_ha_member", "1 if this replica is in sync")(int(own.id in info.in_sync))
    lag = max(own.end_offset - own.confirm_offset, 0)
    gauge("tianzhou_ha_confirm_lag_bytes", "Bytes of the log that readers do not see yet")(lag)
    if own.lease_age_ms is not None:
        gauge("tianzhou_ha_lease_age_ms", "Since the lease was renewed")(own.lease_age_ms)
    gauge("tianzhou_ha_paused", "1 while elections are paused")(int(info.is_paused))
    stopped = own.stopped is not None or own.untrusted is not None
    gauge("tianzhou_ha_stopped", "1 if it takes no part until an operator acts")(int(stopped))
    reachable = int(info.etcd.problem is None)
    gauge("tianzhou_ha_etcd_reachable", "1 while etcd answers")(reachable)
    gauge("tianzhou_ha_alarms", "What `tianzhou broker group` asks attention for")(len(info.alarms))


def _add_counters(failover: Failover, families: Families) -> None:
    counter = families.counter
    counter("tianzhou_ha_switches", "Changes of the master that this process saw")(
        failover.switch_count
    )
    counter("tianzhou_ha_truncated_bytes", "Bytes cut off the own log after a switch")(
        failover.execution.truncated_bytes
    )
    refused = counter(
        "tianzhou_sends_refused", "Sends refused by automatic failover before storing", "reason"
    )
    for reason, count in sorted(failover.serving.refused.items()):
        refused(count, reason)
