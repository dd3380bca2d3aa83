"""What a snapshot says about one broker: figures, replication, failover. Pure functions."""

from collections.abc import Mapping

from msgspec.structs import replace

from tianzhou.admin.store_latency import put_times
from tianzhou.console.collect.snapshot import (
    Broker,
    Failover,
    FailoverReplica,
    Replication,
    Slave,
)
from tianzhou.console.collect.state import BrokerState
from tianzhou.protocol.bodies.ha import HARuntimeInfo
from tianzhou.protocol.bodies.ha_group import GroupInfo


def broker_of(state: BrokerState) -> Broker:
    """The figures of a broker; None, each, if it did not answer."""
    at = state.at
    known = Broker(
        name=at.name,
        broker_id=at.broker_id,
        address=at.address,
        cluster=at.cluster,
        answered=state.answered,
        problem=state.problem,
        problem_since_ms=state.problem_since_ms,
        is_registered=state.is_registered,
        seen_ms=state.seen_ms,
        version=state.runtime.get("brokerVersionDesc", ""),
        is_tianzhou="haRole" in state.runtime if state.runtime else None,
    )
    rates, runtime = state.rates, state.runtime
    if not state.answered or rates is None:
        return known
    times = put_times(state.put_counts) if state.put_counts is not None else None
    return replace(
        known,
        answer_ms=round(rates.answer_ms, 1),
        is_active=rates.active,
        boot_ms=rates.boot_ms,
        in_per_s=rates.in_tps,
        out_per_s=rates.out_tps,
        in_today=rates.in_today,
        out_today=rates.out_today,
        in_yesterday=_difference(runtime, "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning"),
        out_yesterday=_difference(
            runtime, "msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning"
        ),
        put_p99_ms=times.p99_ms if times is not None else None,
        put_max_ms=times.max_ms if times is not None else None,
        put_counts=rates.put_counts,
        disk_ratio=rates.disk_ratio,
        log_begin_offset=_whole(runtime, "commitLogMinOffset"),
        log_end_offset=_whole(runtime, "commitLogMaxOffset"),
        oldest_message_ms=_time(runtime, "earliestMessageTimeStamp"),
        waiting_sends=rates.waiting_sends,
        waiting_pulls=rates.waiting_pulls,
        page_cache_lock_ms=rates.page_cache_lock_ms,
        topic_count=len(state.topics) if at.is_master and state.is_known else None,
        group_count=len(state.groups) if at.is_master and state.is_known else None,
        replication=_replication(state.ha) if state.ha is not None else None,
        failover=_failover(state.failover) if state.failover is not None else None,
    )


def _whole(runtime: Mapping[str, str], name: str) -> int | None:
    try:
        return int(runtime[name])
    except (KeyError, ValueError):
        return None


def _time(runtime: Mapping[str, str], name: str) -> int | None:
    found = _whole(runtime, name)
    return found if found is not None and found > 0 else None


def _difference(runtime: Mapping[str, str], now: str, before: str) -> int | None:
    end, start = _whole(runtime, now), _whole(runtime, before)
    return None if end is None or start is None else end - start


def _replication(ha: HARuntimeInfo) -> Replication:
    slaves = tuple(
        Slave(
            name=each.slave_name or each.addr or "",
            address=each.addr or "",
            is_in_sync=each.in_sync,
            behind_bytes=each.diff,
            behind_ms=each.behind_ms,
            problem=each.problem or "",
        )
        for each in ha.connections
    )
    client = ha.client
    return Replication(
        role=ha.role or "",
        epoch=ha.epoch,
        end_offset=ha.master_max_offset if ha.master else client.max_offset,
        in_sync_count=ha.in_sync_slave_count if ha.master else None,
        slaves=slaves,
        master="" if ha.master else client.broker_addr or client.master_addr or "",
        behind_bytes=None if ha.master else client.behind_bytes,
        state="" if ha.master else client.problem or client.state or "",
    )


def _failover(info: GroupInfo) -> Failover:
    return Failover(
        mode=info.own.mode,
        epoch=info.epoch,
        master_id=info.master,
        in_sync=tuple(info.in_sync),
        min_in_sync=info.min_in_sync,
        is_paused=info.is_paused,
        refusal=info.own.refusal.text if info.own.refusal is not None else "",
        authority_problem=info.etcd.problem or "",
        alarms=tuple(each.text for each in info.alarms),
        replicas=tuple(
            FailoverReplica(
                replica_id=each.id,
                address=each.address,
                is_alive=each.is_alive,
                is_master=each.is_master,
                is_in_sync=each.is_in_sync,
                priority=each.priority,
                behind_bytes=each.behind_bytes,
                behind_ms=each.behind_ms,
            )
            for each in info.replicas
        ),
        switched_ms=info.history[-1].time_ms if info.history else None,
    )
