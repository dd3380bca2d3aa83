"""What operators see of a group, made from the state of the role state machine."""

import dataclasses

from tianzhou.broker.replication.group_info import Figures, alarms, group_info
from tianzhou.ha.authority.etcd_member import MemberHealth
from tianzhou.ha.authority.values import Alive, GroupState, Known, Replica, Switch, View
from tianzhou.ha.replica_facts import ReplicaFacts
from tianzhou.ha.roles.counted_set import CountedSet
from tianzhou.ha.roles.facts import LogFacts, Settings
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Mode, Role, Session, Slave

NOW_MS = 1_000_000
FIGURES = Figures(
    cluster="c", broker_name="g", end_offset=5000, flushed_offset=4000, first_offset=0,
    confirm_offset=4500, behind_ms={2: 7},
)  # fmt: skip
STATE = GroupState(group="f", epoch=3, master=1, master_incarnation=11, in_sync=(1, 2), lost=())


def a_view(state: GroupState | None, **priorities: int) -> View:
    ids = (1, 2, 3)
    return View(
        cluster_id="etcd", read_revision=20, revision=15 if state else 0, state=state,
        replicas={
            each: Known(
                Replica(
                    addr=f"h{each}:1", ha=f"h{each}:2", store_id=str(each), boot_id="", empty=False,
                    priority=priorities.get(f"p{each}", 1),
                ),
                10 + each,
            )
            for each in ids
        },
        alive={1: Known(Alive(incarnation=11, epoch=3, end=4000, confirm=0), 16),
               2: Known(Alive(incarnation=12, epoch=3, end=3000, confirm=0), 17),
               3: Known(Alive(incarnation=7, epoch=2, end=10, confirm=0), 18)},
    )  # fmt: skip


def a_role(own: int = 1, state: GroupState | None = STATE, **priorities: int) -> Role:
    role = Role(
        Settings(), mode=Mode.SLAVE, id=own, incarnation=10 + own, facts=ReplicaFacts(id=own),
        log=LogFacts(5000, 4000), view=a_view(state, **priorities), lease_ms=NOW_MS - 100,
    )  # fmt: skip
    if own == 1 and state is not None:
        counted = CountedSet(1, state.in_sync, confirm=0, copies=2, is_sync_flush=False)
        role.mode = Mode.MASTER
        role.session = Session(3, 0, NOW_MS, counted)
        role.session.slaves[2] = Slave(12, 4800, NOW_MS, NOW_MS)
        counted.connected(2)
        counted.acknowledge(2, 4800)
    return role


def codes(role: Role, figures: Figures = FIGURES) -> list[str]:
    return [code for code, _ in alarms(role, figures, NOW_MS)]


def test_a_master_shows_connections_and_lag() -> None:
    info = group_info(a_role(), FIGURES, NOW_MS)
    assert (info.epoch, info.master, info.master_address, info.in_sync) == (3, 1, "h1:1", [1, 2])
    own, second, third = info.replicas
    assert (own.end_offset, own.behind_bytes, own.is_connected) == (5000, 0, None)
    assert (second.end_offset, second.behind_bytes, second.behind_ms) == (4800, 200, 7)
    assert (second.is_connected, second.is_current, second.is_alive) == (True, True, True)
    # Its lease is that of an earlier process.
    assert (third.is_connected, third.is_alive, third.is_in_sync) == (False, False, False)
    assert (info.own.mode, info.own.lease_age_ms, info.own.is_lease_fresh) == ("master", 100, True)
    assert info.alarms == []


def test_a_slave_shows_what_it_knows() -> None:
    info = group_info(a_role(2), dataclasses.replace(FIGURES, end_offset=3500), NOW_MS)
    first, own, _ = info.replicas
    assert (first.end_offset, first.is_connected, first.is_current) == (4000, None, None)
    assert (own.end_offset, own.behind_bytes) == (3500, 500)


def test_a_replica_that_never_reached_etcd_answers() -> None:
    role = Role(Settings())
    figures = dataclasses.replace(FIGURES, authority_problem="refused")
    info = group_info(role, figures, NOW_MS)
    assert (info.group, info.master, info.replicas) == (None, None, [])
    assert info.own.lease_age_ms is None
    assert info.etcd.problem == "refused"
    assert [each.code for each in info.alarms] == ["etcd"]


def test_alarms_name_what_an_operator_should_look_at() -> None:
    assert codes(a_role()) == []
    stopped = a_role(2)
    stopped.stopped = Reason(Code.BELOW_CONFIRMED, "cut")
    stopped.untrusted = Reason(Code.EPOCH_WENT_BACK, "old")
    assert codes(stopped) == ["stopped", "untrusted"]
    paused = GroupState(group="f", epoch=3, master=1, in_sync=(1, 2), paused=True)
    assert codes(a_role(2, paused)) == ["paused"]
    alone = GroupState(group="f", epoch=3, master=1, in_sync=(1,))
    assert codes(a_role(2, alone)) == ["too few in sync", "one in sync"]
    left = GroupState(group="f", epoch=3, master=None, in_sync=(2, 3))
    assert codes(a_role(2, left)) == ["no master"]
    lost = GroupState(group="f", epoch=3, master=None, in_sync=(), lost=(1, 2))
    assert codes(a_role(2, lost)) == ["unclean"]
    assert codes(a_role(2, STATE, p1=0, p3=0)) == ["too few in sync", "priority"]
    down = MemberHealth(
        endpoint="e", is_answering=False, problem="refused", answered_ms_ago=None, latency_ms=0
    )
    assert codes(a_role(), dataclasses.replace(FIGURES, authority=(down,))) == ["etcd member"]


def test_many_elections_are_an_alarm() -> None:
    history = tuple(
        Switch(epoch=each, master=1, cause="lease ended", time_ms=NOW_MS) for each in range(4)
    )
    state = GroupState(group="f", epoch=3, master=1, in_sync=(1, 2), history=history)
    assert codes(a_role(2, state)) == ["elections"]
    state = GroupState(group="f", epoch=3, master=1, in_sync=(1, 2), history=history[:3])
    assert codes(a_role(2, state)) == []
