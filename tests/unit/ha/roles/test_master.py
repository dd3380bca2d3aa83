"""A master: its in-sync set (R2, R3, R4), what clients may do (R3, R7, R13), its end (R8)."""

import pytest
from tests.support.one_role import OneRole, of, state

from tianzhou.ha.authority.values import GroupState, Outcome, Result, Unchanged
from tianzhou.ha.roles import events, health
from tianzhou.ha.roles.actions import Disconnect, Follow, Propose, Read, Serve, StepDown, Stop
from tianzhou.ha.roles.facts import Settings
from tianzhou.ha.roles.reasons import Code
from tianzhou.ha.roles.role import Mode
from tianzhou.ha.roles.status import explain


def master(settings: Settings | None = None, **changes: object) -> OneRole:
    """Epoch 5 with all connected, unless `in_sync` is smaller."""
    one = OneRole(settings)
    one.lead(state(master=1, **changes))
    for each in (2, 3):
        if each in one.session.counted.in_force:
            one.connect(each)
    return one


def refusal(one: OneRole) -> Code | None:
    found = one.last(Serve).refusal
    return found.code if found else None


# -- the set ---------------------------------------------------------------------------------------


def test_a_member_leaves_when_its_connection_ends_and_counts_until_that_is_confirmed() -> None:
    one = master()
    one.store(200)
    one.acknowledge(2, 200)
    one.step(events.SlaveDisconnected(3))
    assert one.last(Propose).proposal.state.in_sync == (1, 2)
    assert one.session.counted.confirm == 100
    one.answer(Result.OK)
    assert one.session.counted.confirm == 200


def test_a_member_that_does_not_connect_leaves_after_two_seconds() -> None:
    one = OneRole()
    one.lead()
    one.connect(2)
    assert not of(one.wait(1900), Propose)
    assert of(one.wait(200), Propose)
    assert one.last(Propose).proposal.state.in_sync == (1, 2)


def test_a_member_that_acknowledges_nothing_for_two_seconds_leaves() -> None:
    one = master()
    one.wait(5000)
    one.store(200)
    one.acknowledge(2, 200)
    assert not of(one.wait(1900), Propose)
    assert of(one.wait(300), Propose)
    assert one.last(Propose).proposal.state.in_sync == (1, 2)


def test_a_member_that_follows_a_growing_log_stays() -> None:
    one = master()
    for end in range(200, 6000, 100):
        one.store(end)
        one.acknowledge(2, end - 100)
        one.acknowledge(3, end)
        one.wait(100)
    assert len(one.all(Propose)) == 1


def test_the_set_is_never_smaller_than_the_minimum_and_sends_are_refused() -> None:
    one = master(in_sync=(1, 2))
    assert refusal(one) is None
    one.step(events.SlaveDisconnected(2))
    one.wait(5000)
    assert len(one.all(Propose)) == 1
    assert refusal(one) is Code.NOT_ENOUGH_IN_SYNC
    one.connect(2)
    assert refusal(one) is None


def test_a_new_master_lets_senders_wait_while_its_replicas_connect() -> None:
    one = OneRole()
    one.lead()
    assert refusal(one) is Code.CONNECTING
    one.wait(1900)
    assert refusal(one) is Code.CONNECTING
    one.wait(100)
    assert refusal(one) is Code.NOT_ENOUGH_IN_SYNC
    one.connect(2)
    assert refusal(one) is None


def test_a_new_master_without_enough_members_refuses_at_once() -> None:
    one = OneRole()
    one.lead(state(master=1, in_sync=(1,)))
    assert refusal(one) is Code.NOT_ENOUGH_IN_SYNC


def test_with_a_minimum_of_1_it_goes_on_alone_without_promise() -> None:
    one = master(Settings(min_in_sync=1), in_sync=(1, 2))
    one.step(events.SlaveDisconnected(2))
    assert refusal(one) is None
    one.answer(Result.OK)
    one.store(200)
    assert one.session.counted.confirm == 200
    assert not one.session.counted.is_promised(200)
    assert refusal(one) is None


def test_priority_0_is_not_counted_for_the_minimum() -> None:
    one = OneRole()
    one.lead(state(master=1), priorities={3: 0})
    one.connect(2)
    one.connect(3)
    one.step(events.SlaveDisconnected(2))
    one.wait(5000)
    assert len(one.all(Propose)) == 1
    assert refusal(one) is Code.NOT_ENOUGH_IN_SYNC


def test_a_member_with_priority_0_may_always_leave() -> None:
    one = OneRole()
    one.lead(state(master=1, in_sync=(1, 3)), priorities={3: 0})
    one.wait(3000)
    assert one.last(Propose).proposal.state.in_sync == (1,)


def test_a_slave_that_is_near_for_a_second_is_counted_and_then_taken_in() -> None:
    one = master(in_sync=(1, 2))
    one.connect(3, end=50)
    one.store(200)
    one.acknowledge(2, 200)
    assert one.session.counted.confirm == 200
    for end in range(210, 330, 10):
        one.store(end)
        one.acknowledge(2, end)
        one.acknowledge(3, end - 10)
        one.wait(100)
    assert one.session.counted.local == {3}
    assert one.session.counted.confirm == 310
    one.store(400)
    one.acknowledge(2, 400)
    assert one.session.counted.confirm == 310
    one.acknowledge(3, 400)
    proposal = one.last(Propose).proposal
    assert proposal.state.in_sync == (1, 2, 3)
    assert proposal.unchanged == (Unchanged(("replicas", 3), 30),)
    assert one.session.counted.proposed == {1, 2, 3}
    assert one.session.counted.confirm == 400


def test_a_slave_that_falls_back_before_the_proposal_is_no_longer_counted() -> None:
    one = master(in_sync=(1, 2))
    one.connect(3, end=50)
    one.wait(1100)
    one.acknowledge(3, 100 - 1)
    one.store(200)
    one.wait(1200)
    one.acknowledge(2, 200)
    assert 3 not in one.session.counted.local
    assert one.session.counted.confirm == 200


def test_a_slave_below_the_start_of_the_epoch_is_not_taken_in() -> None:
    one = OneRole()
    one.lead(state(master=1, in_sync=(1, 2)))
    one.connect(2, end=20)
    one.connect(3, end=99)
    one.wait(5000)
    assert one.session.counted.confirm == 0 + 20
    assert len(one.all(Propose)) == 1


@pytest.mark.parametrize("incarnation", [0, 29])
def test_a_slave_of_another_incarnation_is_not_taken_in(incarnation: int) -> None:
    one = master(in_sync=(1, 2))
    one.step(events.SlaveConnected(3, incarnation))
    one.acknowledge(3, 100)
    one.wait(5000)
    assert len(one.all(Propose)) == 1


def test_a_lost_replica_that_is_taken_in_is_no_longer_lost() -> None:
    one = OneRole()
    one.lead(state(master=1, in_sync=(1, 2)))
    one.connect(2)
    one.see(state(epoch=5, master=1, master_incarnation=10, in_sync=(1, 2), lost=(3,)))
    one.connect(3)
    one.wait(1200)
    new = one.last(Propose).proposal.state
    assert (new.in_sync, new.lost) == ((1, 2, 3), ())


# -- results of proposals (R2) ---------------------------------------------------------------------


def proposing() -> OneRole:
    """Replica 3 is proposed as a member."""
    one = master(in_sync=(1, 2))
    one.connect(3)
    one.wait(1200)
    one.store(200)
    one.acknowledge(2, 200)
    one.step(events.SlaveDisconnected(3))
    assert one.session.counted.proposed == {1, 2, 3}
    assert one.session.counted.confirm == 100
    return one


def own_state(**changes: object) -> object:
    return state(epoch=5, master=1, master_incarnation=10, **changes)


def test_an_unknown_result_counts_both_sets_until_another_revision_is_seen() -> None:
    one = proposing()
    compared = one.last(Propose).proposal.revision
    first = one.last(Propose)
    assert of(one.answer(Result.UNKNOWN), Read)
    one.see(own_state(in_sync=(1, 2)), revision=compared)  # type: ignore[arg-type]
    again = one.last(Propose)
    assert again.number > first.number
    assert again.proposal == first.proposal
    assert one.session.counted.confirm == 100
    one.see(own_state(in_sync=(1, 2)), revision=compared + 50)  # type: ignore[arg-type]
    assert one.session.counted.confirm == 200


def test_a_refusal_is_settled_by_a_view_that_is_not_older() -> None:
    one = proposing()
    compared = one.last(Propose).proposal.revision
    number = one.last(Propose).number
    one.revision += 10
    refused_at = one.revision + 5
    one.step(events.Answered(number, Outcome(Result.CHANGED, refused_at)))
    one.see(own_state(in_sync=(1, 2)), revision=compared)  # type: ignore[arg-type]
    assert one.session.counted.confirm == 100
    one.revision = refused_at
    one.see(own_state(in_sync=(1, 2)), revision=compared)  # type: ignore[arg-type]
    assert one.session.counted.confirm == 200


def test_a_member_that_left_by_itself_counts_no_more() -> None:
    one = master()
    one.store(200)
    one.acknowledge(2, 200)
    one.see(own_state(in_sync=(1, 2), lost=(3,)))  # type: ignore[arg-type]
    assert one.session.counted.confirm == 200


# -- the lease (R7) --------------------------------------------------------------------------------


def test_without_lease_it_goes_on_while_all_that_count_acknowledge() -> None:
    one = master()
    one.wait(20_000, renews=False)
    assert refusal(one) is None


def test_without_lease_and_with_a_member_missing_it_is_suspended_and_leaves_the_routes() -> None:
    one = master()
    one.wait(2100, renews=False)
    one.step(events.SlaveDisconnected(3))
    assert refusal(one) is Code.SUSPENDED
    one.wait(2900, renews=False)
    assert one.last(Serve).is_registered
    one.wait(200, renews=False)
    assert not one.last(Serve).is_registered
    one.renew()
    assert refusal(one) is None
    assert one.last(Serve).is_registered


# -- freezes and hanging disks (R13) ---------------------------------------------------------------


def test_after_a_freeze_nothing_is_served_before_the_lease_was_renewed() -> None:
    one = master()
    one.now_ms += 1500
    actions = one.step(events.Frozen(1500))
    assert of(actions, Serve)[-1].refusal is not None
    assert refusal(one) is Code.SUSPENDED
    one.step(events.LeaseRenewed(one.now_ms - 1400))
    assert refusal(one) is Code.SUSPENDED
    one.renew()
    assert refusal(one) is None


def test_without_the_authority_a_freeze_ends_when_all_connections_have_lasted_a_second() -> None:
    one = master()
    one.wait(5000, renews=False)
    one.step(events.Frozen(1500))
    one.wait(900, renews=False)
    assert refusal(one) is Code.SUSPENDED
    one.wait(200, renews=False)
    assert refusal(one) is None


@pytest.mark.parametrize(
    ("loop_ms", "fsync_ms", "may"),
    [(0, 0, True), (1000, 5000, True), (1001, 0, False), (0, 5001, False)],
)
def test_the_lease_is_renewed_only_while_loop_and_disk_work(
    loop_ms: int, fsync_ms: int, may: bool
) -> None:
    assert health.may_keep_alive(loop_ms, fsync_ms) is may


def test_a_freeze_is_longer_than_a_third_of_the_lease() -> None:
    assert not health.is_freeze(1000, 3000)
    assert health.is_freeze(1001, 3000)


# -- the end of a session (R8) ---------------------------------------------------------------------


def test_a_higher_epoch_in_the_state_ends_the_session() -> None:
    one = master()
    actions = one.see(state(epoch=6, master=2, master_incarnation=20))
    assert of(actions, StepDown)[0].reason.code is Code.HIGHER_EPOCH
    assert one.last(Follow).master == 2
    assert one.role.session is None
    assert not one.last(Serve).is_master


def test_a_higher_epoch_in_a_hello_ends_the_session_only_if_the_authority_has_it() -> None:
    """Without access control a hello may be false."""
    one = master()
    session = one.role.session
    actions = one.step(events.EpochSeen(9, "hello of replica 2"))
    assert of(actions, Read)
    assert not of(actions, StepDown)
    one.see(own_state())  # type: ignore[arg-type]
    assert one.role.session is session
    assert one.role.serve is not None
    assert one.role.serve.refusal is None
    one.see(state(epoch=9, master=2, master_incarnation=20))
    assert one.role.session is None


def test_an_epoch_that_is_not_higher_changes_nothing() -> None:
    one = master()
    assert not of(one.step(events.EpochSeen(5, "hello of replica 2")), StepDown)


def test_the_answer_to_a_proposal_of_an_earlier_session_is_void() -> None:
    one = proposing()
    number = one.last(Propose).number
    one.see(state(epoch=6, master=2, master_incarnation=20))
    one.step(events.Answered(number, Outcome(Result.OK, one.revision + 1)))
    assert one.role.state is not None
    assert one.role.state.epoch == 6
    assert one.role.mode is Mode.SLAVE


def test_another_process_of_the_own_identity_is_not_this_master() -> None:
    one = master()
    assert of(one.see(state(epoch=5, master=1, master_incarnation=11)), StepDown)


# -- retired slaves --------------------------------------------------------------------------------


def test_the_connection_of_a_retired_slave_is_closed() -> None:
    one = master()
    one.see(own_state(in_sync=(1, 2)), absent=(3,))  # type: ignore[arg-type]
    assert [each.id for each in one.all(Disconnect)] == [3]
    assert 3 not in one.session.slaves
    one.wait(2000)
    assert len(one.all(Disconnect)) == 1


@pytest.mark.parametrize("shown", [None, state(epoch=1, master=1)])
def test_slaves_are_kept_when_the_authority_was_wiped_or_restored(shown: GroupState | None) -> None:
    one = master()
    one.see(shown, absent=(1, 2, 3), alive=(), cluster_id="restored")
    one.store(200)
    for each in (2, 3):
        one.acknowledge(each, 200)
    one.wait(5000, renews=False)
    assert not one.all(Disconnect)
    assert one.session.counted.confirm == 200
    assert refusal(one) is None


def test_a_slave_that_joined_after_the_last_view_is_kept() -> None:
    one = master()
    one.see(own_state(), absent=(3,), revision=None)  # type: ignore[arg-type]
    one.step(events.SlaveConnected(3, one.revision + 1))
    one.wait(500)
    assert 3 in one.session.slaves


# -- disks -----------------------------------------------------------------------------------------


def test_after_a_failed_fsync_it_stops_and_is_unclean() -> None:
    one = master()
    actions = one.step(events.DiskFailed("EIO", is_fsync=True))
    kinds = [type(each) for each in actions]
    assert kinds.index(StepDown) < kinds.index(Stop)
    assert "fsync" in one.role.facts.unclean
    assert not one.last(Serve).is_registered


def test_operators_see_why() -> None:
    one = master(in_sync=(1, 2))
    one.connect(3, end=10)
    one.step(events.SlaveDisconnected(2))
    status = explain(one.role, one.now_ms)
    assert (status.mode, status.epoch, status.has_lease) == (Mode.MASTER, 5, True)
    assert status.refusal is not None
    assert status.refusal.code is Code.NOT_ENOUGH_IN_SYNC
    two, three = status.slaves
    assert (two.id, two.is_connected, two.is_in_sync) == (2, False, True)
    assert (three.id, three.is_connected, three.is_in_sync, three.acknowledged) == (
        3, True, False, 10
    )  # fmt: skip
    assert status.reasons
    assert len(status.reasons) <= 20
