"""What operators see of a group whose master is elected: response to HA_GROUP, metrics, health.

Pure: made from the state of the role state machine and a few figures, so that every replica
answers, also one without etcd, and what is not known is said to be so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from tianzhou.ha.authority.etcd_member import MemberHealth
from tianzhou.ha.authority.values import GroupState, Known, Replica, View
from tianzhou.ha.roles import damping, status
from tianzhou.ha.roles.membership import counted_for_min
from tianzhou.ha.roles.reasons import Reason
from tianzhou.ha.roles.role import NEVER, Role
from tianzhou.ha.roles.status import SlaveStatus, Status
from tianzhou.protocol.bodies.ha_group import (
    EtcdMember,
    GroupAuthority,
    GroupInfo,
    GroupReason,
    GroupReplica,
    GroupSelf,
    GroupSwitch,
)

ELECTIONS_FREE: int = damping.FREE_COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the state machine does not know."""

    cluster: str
    broker_name: str
    end_offset: int
    flushed_offset: int
    first_offset: int
    confirm_offset: int
    message_count: int = 0
    authority_problem: str | None = None
    authority: Sequence[MemberHealth] = ()
    behind_ms: Mapping[int, int | None] = field(default_factory=dict[int, "int | None"])
    """By the id of a slave, on the master."""


def group_info(role: Role, figures: Figures, now_ms: int) -> GroupInfo:
    """The group as this replica sees it."""
    view, shown = role.view, status.explain(role, now_ms)
    state = view.state if view else None
    base = GroupInfo(
        cluster=figures.cluster,
        broker_name=figures.broker_name,
        replicas=_replicas(role, view, shown, figures),
        own=_own(role, shown, figures),
        etcd=_authority(view, figures),
        min_in_sync=role.settings.min_in_sync,
        alarms=[GroupReason(code=code, text=text) for code, text in alarms(role, figures, now_ms)],
    )
    return base if view is None or state is None else _with_state(base, view, state)


def _with_state(base: GroupInfo, view: View, state: GroupState) -> GroupInfo:
    master = view.replicas.get(state.master) if state.master is not None else None
    return replace(
        base,
        group=state.group,
        revision=view.revision,
        epoch=state.epoch,
        master=state.master,
        master_address=master.value.addr if master else None,
        in_sync=list(state.in_sync),
        lost=list(state.lost),
        is_paused=state.paused,
        cause=state.cause,
        changed_ms=state.time_ms,
        history=[
            GroupSwitch(
                epoch=each.epoch, master=each.master, cause=each.cause, time_ms=each.time_ms,
                duration_ms=each.duration_ms,
            )
            for each in state.history
        ],
    )  # fmt: skip


# -- replicas --------------------------------------------------------------------------------------


def _replicas(role: Role, view: View | None, shown: Status, figures: Figures) -> list[GroupReplica]:
    if view is None:
        return []
    slaves = {each.id: each for each in shown.slaves}
    end = _end_of_master(role, view, figures)
    return [
        _replica(role, view, each, known, slaves.get(each), end, figures)
        for each, known in sorted(view.replicas.items())
    ]


def _replica(
    role: Role,
    view: View,
    replica_id: int,
    known: Known[Replica],
    slave: SlaveStatus | None,
    master_end: int | None,
    figures: Figures,
) -> GroupReplica:
    state, alive = view.state, view.alive.get(replica_id)
    is_own, leads = replica_id == role.id, role.session is not None
    end = epoch = None
    if is_own:
        end, epoch = figures.end_offset, role.log.last_epoch
    elif slave is not None and slave.is_connected:
        end, epoch = slave.acknowledged, alive.value.epoch if alive else None
    elif alive is not None:
        end, epoch = alive.value.end, alive.value.epoch
    is_slave_here = leads and not is_own
    return GroupReplica(
        id=replica_id,
        address=known.value.addr,
        ha_address=known.value.ha,
        version=known.value.version,
        priority=known.value.priority,
        incarnation=known.revision,
        is_alive=alive is not None and alive.value.incarnation == known.revision,
        is_master=state is not None and state.master == replica_id,
        is_in_sync=state is not None and replica_id in state.in_sync,
        is_lost=state is not None and replica_id in state.lost,
        is_connected=(slave is not None and slave.is_connected) if is_slave_here else None,
        is_current=(slave is not None and slave.is_current) if is_slave_here else None,
        epoch=epoch,
        end_offset=end,
        behind_bytes=None if end is None or master_end is None else max(master_end - end, 0),
        behind_ms=figures.behind_ms.get(replica_id),
    )


def _end_of_master(role: Role, view: View, figures: Figures) -> int | None:
    """Where the log of the master ends; of another broker as far as it said so."""
    master = view.state.master if view.state else None
    if master is None:
        return None
    if master == role.id:
        return figures.end_offset
    alive = view.alive.get(master)
    return None if alive is None else max(alive.value.end, figures.end_offset)


def _own(role: Role, shown: Status, figures: Figures) -> GroupSelf:
    has_had_lease = role.lease_ms != NEVER
    return GroupSelf(
        id=shown.id,
        mode=shown.mode.value,
        epoch=shown.epoch,
        log_epoch=role.log.last_epoch,
        end_offset=figures.end_offset,
        flushed_offset=figures.flushed_offset,
        confirm_offset=figures.confirm_offset,
        message_count=figures.message_count,
        first_offset=figures.first_offset,
        lease_age_ms=shown.lease_age_ms if has_had_lease else None,
        has_lease=shown.has_lease,
        is_lease_fresh=shown.is_lease_fresh,
        candidate=_reason(shown.standing),
        refusal=_reason(shown.refusal),
        untrusted=_reason(shown.untrusted),
        stopped=_reason(shown.stopped),
        unclean=shown.unclean,
        reasons=[GroupReason(code=each.code.value, text=each.text) for each in shown.reasons],
    )


def _reason(reason: Reason | None) -> GroupReason | None:
    return None if reason is None else GroupReason(code=reason.code.value, text=reason.text)


def _authority(view: View | None, figures: Figures) -> GroupAuthority:
    return GroupAuthority(
        cluster_id=view.cluster_id if view else "",
        problem=figures.authority_problem,
        members=[
            EtcdMember(
                endpoint=each.endpoint, is_answering=each.is_answering, is_leader=each.is_leader,
                version=each.version, latency_ms=each.latency_ms, problem=each.problem,
            )
            for each in figures.authority
        ],
    )  # fmt: skip


# -- alarms ----------------------------------------------------------------------------------------


def alarms(role: Role, figures: Figures, now_ms: int) -> list[tuple[str, str]]:
    """What an operator should look at: a stable name and a text each."""
    found: list[tuple[str, str]] = []
    if role.stopped is not None:
        found.append(("stopped", f"replica {role.id} takes no part: {role.stopped.text}"))
    if role.untrusted is not None:
        text = f"replica {role.id} does not follow the state in etcd: {role.untrusted.text}"
        found.append(("untrusted", text))
    if figures.authority_problem is not None:
        text = f"no switch is possible: {figures.authority_problem}"
        found.append(("etcd", text))
    elif any(not each.is_answering and each.problem for each in figures.authority):
        silent = [each for each in figures.authority if not each.is_answering and each.problem]
        named = "; ".join(f"{each.endpoint}: {each.problem}" for each in silent)
        found.append(("etcd member", named))
    if role.view is not None and role.view.state is not None:
        found += _alarms_of_state(role, role.view, role.view.state, now_ms)
    return found


def _alarms_of_state(
    role: Role, view: View, state: GroupState, now_ms: int
) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if state.paused:
        found.append(("paused", "elections are paused: a lost master is not replaced"))
    if not state.in_sync:
        lost = ", ".join(map(str, state.lost))
        text = f"no replica is in sync: replicas {lost} may have lost messages"
        found.append(("unclean", text))
    elif state.master is None:
        found.append(("no master", "the master has left, and no other one is elected yet"))
    needed = role.settings.min_in_sync
    counted = counted_for_min(view, state.in_sync)
    if state.in_sync and counted < needed:
        text = f"{counted} of the {needed} in-sync replicas that sends need (minInSyncReplicas)"
        found.append(("too few in sync", text))
    if len(state.in_sync) == 1:
        text = f"only replica {state.in_sync[0]} is in sync: no other one can be elected"
        found.append(("one in sync", text))
    eligible = [each for each, known in view.replicas.items() if known.value.priority > 0]
    if len(view.replicas) > 1 and len(eligible) < max(needed, 2):
        text = (
            f"{len(eligible)} of {len(view.replicas)} replicas may be elected "
            "(brokerElectionPriority is not 0)"
        )
        found.append(("priority", text))
    count = damping.recent_count(state, now_ms + role.clock_offset_ms)
    if count > damping.FREE_COUNT:
        text = f"{count} elections in the last ten minutes: the next ones are delayed"
        found.append(("elections", text))
    return found
