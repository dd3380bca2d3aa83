"""Planned switches, the end of a process, and what operators ask for (R6)."""

import pytest
from tests.support.one_role import OneRole, of, state

from tianzhou.ha.authority.values import Result, Unchanged, Wish
from tianzhou.ha.roles import events
from tianzhou.ha.roles.actions import (
    Action,
    Agree,
    Follow,
    Lead,
    Note,
    OpenStream,
    Propose,
    PutWish,
    Ready,
    Reply,
    ResumeWriters,
    Save,
    Serve,
    StepDown,
    Stop,
    StopFollowing,
    StopWriters,
)
from tianzhou.ha.roles.facts import LogFacts
from tianzhou.ha.roles.reasons import Code
from tianzhou.ha.roles.role import Mode


def master(**changes: object) -> OneRole:
    """Epoch 5, in sync with 2 and 3, both connected."""
    one = OneRole()
    one.lead(state(master=1, **changes))
    for each in (2, 3):
        if each in one.session.counted.in_force:
            one.connect(each)
    return one


def ask(one: OneRole, command: events.Command) -> list[Action]:
    return one.step(events.Asked(7, command, by="ops"))


def refused(one: OneRole) -> str:
    reply = one.last(Reply)
    assert not reply.is_ok
    assert reply.ticket == 7
    return reply.reason.text


# -- planned switches ------------------------------------------------------------------------------


def agreed() -> OneRole:
    one = master()
    one.store(200)
    one.acknowledge(2, 200)
    assert of(ask(one, events.Switch(2)), StopWriters)
    assert one.last(Serve).refusal is not None
    one.log = LogFacts(250, 250, one.log.epochs)
    one.step(events.WritersStopped(one.log))
    assert not one.all(Agree)
    one.acknowledge(2, 250)
    assert one.last(Agree) == Agree(2, 5)
    return one


def test_a_switch_agrees_when_the_target_has_all_and_ends_with_the_higher_epoch() -> None:
    one = agreed()
    one.see(state(epoch=6, master=2, master_incarnation=20))
    assert one.last(Reply).is_ok
    assert one.all(StepDown)
    assert not one.last(Serve).is_master


def test_without_a_new_epoch_within_two_seconds_the_master_resumes() -> None:
    one = agreed()
    assert not of(one.wait(1900), ResumeWriters)
    assert of(one.wait(200), ResumeWriters)
    assert "did not take over" in refused(one)
    assert one.last(Serve).refusal is None


def test_a_target_that_does_not_catch_up_within_two_seconds_gets_nothing() -> None:
    one = master()
    ask(one, events.Switch(2))
    one.log = LogFacts(300, 300, one.log.epochs)
    one.step(events.WritersStopped(one.log))
    assert not of(one.wait(1900), ResumeWriters)
    assert of(one.wait(200), ResumeWriters)
    assert not one.all(Agree)


def test_the_set_does_not_change_during_a_switch() -> None:
    one = agreed()
    before = len(one.all(Propose))
    one.step(events.SlaveDisconnected(3))
    one.wait(500)
    assert len(one.all(Propose)) == before


@pytest.mark.parametrize(
    ("to", "why"), [(1, "is the master already"), (9, "is not in sync"), (3, "is not connected")]
)
def test_a_target_that_cannot_take_over_is_refused(to: int, why: str) -> None:
    one = master(in_sync=(1, 3))
    one.step(events.SlaveDisconnected(3))
    ask(one, events.Switch(to))
    assert why in refused(one)
    assert not one.all(StopWriters)


def test_without_a_name_the_longest_log_is_chosen() -> None:
    one = master()
    one.store(200)
    one.acknowledge(3, 200)
    ask(one, events.Switch(None))
    assert one.session.handover is not None
    assert one.session.handover.to == 3


def test_the_target_keeps_the_old_master_in_sync_and_waits_for_nothing() -> None:
    one = OneRole()
    wish = Wish(epoch=4, switch_to=1)
    one.see(state(), wish=wish, revision=90)
    one.follow()
    one.step(events.HandoverOffered(4))
    proposal = one.last(Propose).proposal
    assert proposal.state.in_sync == (1, 2, 3)
    assert proposal.unchanged == (Unchanged(("wish", None), 77),)
    assert proposal.deletes == (("wish", None),)
    assert proposal.state.history[-1].cause == Code.PLANNED


def test_the_target_tries_again_if_the_state_had_changed() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.step(events.HandoverOffered(4))
    one.answer(Result.CHANGED)
    one.see(state())
    assert len(one.all(Propose)) == 2


def test_an_offer_of_another_epoch_is_ignored() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.step(events.HandoverOffered(3))
    assert not one.all(Propose)


def test_a_wish_is_taken_up_once_by_the_master_of_its_epoch() -> None:
    one = master()
    shown = state(epoch=5, master=1, master_incarnation=10)
    one.see(shown, wish=Wish(epoch=4, switch_to=2))
    assert not one.all(StopWriters)
    one.see(shown, wish=Wish(epoch=5, switch_to=2))
    assert one.all(StopWriters)
    one.wait(4000)
    one.see(shown, wish=Wish(epoch=5, switch_to=2))
    assert len(one.all(StopWriters)) == 1


def test_a_slave_that_cannot_see_the_lease_gets_its_handover_only_without_a_fresh_lease() -> None:
    one = master()
    one.step(events.HandoverAsked(2))
    assert not one.all(StopWriters)
    one.wait(2500, renews=False)
    one.step(events.HandoverAsked(2))
    assert one.all(StopWriters)


# -- the end of the process ------------------------------------------------------------------------


def test_a_master_hands_over_before_it_ends() -> None:
    one = master()
    actions = one.step(events.StopAsked())
    assert of(actions, StopWriters)
    assert not of(actions, Ready)
    one.step(events.WritersStopped(one.log))
    one.wait(200)
    actions = one.see(state(epoch=6, master=2, master_incarnation=20))
    assert of(actions, Ready)
    assert not one.wait(5000)


def test_it_ends_if_no_other_takes_over() -> None:
    one = master()
    one.step(events.StopAsked())
    assert of(one.wait(2200), Ready)
    assert one.all(StepDown)


@pytest.mark.parametrize("paused", [True, False])
def test_it_ends_at_once_if_there_is_no_other_or_elections_are_paused(paused: bool) -> None:
    one = master(paused=True) if paused else master(in_sync=(1, 2))
    if not paused:
        one.step(events.SlaveDisconnected(2))
    assert of(one.step(events.StopAsked()), Ready)


def test_an_intended_end_is_no_alarm() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    assert not [each for each in of(one.step(events.StopAsked()), Note) if each.is_alarm]


def test_a_slave_ends_at_once_and_saves_its_confirm_offset() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.step(events.MasterHeard(80, 100, 100))
    actions = one.step(events.StopAsked())
    assert of(actions, Save)[-1].facts.confirm == 80
    assert of(actions, Ready)


def test_a_disk_that_cannot_be_written_makes_the_master_hand_over() -> None:
    one = master()
    assert of(one.step(events.DiskFailed("ENOSPC")), StopWriters)


def test_a_replica_that_cannot_lead_stops_so_that_another_one_is_elected() -> None:
    one = OneRole()
    one.see(state(), alive=(1,))
    one.answer(Result.OK)
    actions = one.step(events.DiskFailed("ENOSPC"))
    kinds = [type(each) for each in actions]
    assert kinds.index(StepDown) < kinds.index(Stop)
    one.step(events.Led(5, one.log))
    assert one.role.session is None


def test_a_slave_whose_disk_failed_follows_anew_and_saves_again_before_it_reports() -> None:
    one = OneRole()
    one.see(state(epoch=6))
    offer = events.MasterOffered(2, 6, one.log.epochs, 100, one.log)
    facts = of(one.step(offer), Save)[0].facts
    actions = one.step(events.DiskFailed("ENOSPC"))
    assert of(actions, StopFollowing)
    assert of(one.wait(1100), Follow)
    actions = one.step(offer)
    assert of(actions, Save)[0].facts == facts
    assert isinstance(actions[-1], OpenStream)


def test_or_it_goes_on_with_reads_if_there_is_no_other() -> None:
    one = master(in_sync=(1, 2))
    one.step(events.SlaveDisconnected(2))
    one.step(events.DiskFailed("ENOSPC"))
    assert one.role.mode is Mode.MASTER
    assert any(each.is_alarm for each in one.all(Note))


# -- pause, resume, retire -------------------------------------------------------------------------


def test_pause_and_resume_change_the_state_of_the_group() -> None:
    one = OneRole()
    one.see(state(), revision=90)
    ask(one, events.Pause())
    proposal = one.last(Propose).proposal
    assert (proposal.revision, proposal.state.paused, proposal.state.epoch) == (90, True, 4)
    one.answer(Result.OK)
    assert one.last(Reply).is_ok
    ask(one, events.Resume())
    assert not one.last(Propose).proposal.state.paused


@pytest.mark.parametrize(
    ("result", "why"), [(Result.CHANGED, "changed meanwhile"), (Result.UNKNOWN, "did not answer")]
)
def test_the_operator_learns_that_a_change_failed(result: Result, why: str) -> None:
    one = OneRole()
    one.see(state())
    ask(one, events.Pause())
    one.answer(result)
    assert why in refused(one)


@pytest.mark.parametrize(("is_own", "is_ok"), [(True, True), (False, False)])
def test_the_operator_gets_an_answer_if_the_view_arrives_before_the_result(
    *, is_own: bool, is_ok: bool
) -> None:
    """The watch and the transaction use different connections to the authority."""
    one = master()
    ask(one, events.Pause())
    proposed = one.last(Propose).proposal.state
    one.see(proposed if is_own else state(epoch=5, master=1, master_incarnation=10, cause="other"))
    one.answer(Result.OK if is_own else Result.CHANGED)
    (reply,) = one.all(Reply)
    assert (reply.ticket, reply.is_ok) == (7, is_ok)


def test_a_pause_survives_an_election_that_the_operator_asks_for() -> None:
    one = OneRole()
    one.see(state(paused=True))
    one.follow()
    one.step(events.HandoverOffered(4))
    assert one.last(Propose).proposal.state.paused


def test_an_agreement_that_has_ended_does_not_overrule_a_pause() -> None:
    one = OneRole()
    one.see(state(paused=True))
    one.follow()
    one.step(events.HandoverOffered(4))
    one.answer(Result.CHANGED)
    one.now_ms += 1100
    one.renew()
    one.see(state(paused=True), alive=(1,))
    assert not of(one.wait(5000), Propose)


def test_retire_removes_a_replica_from_the_set_and_its_key() -> None:
    one = master()
    ask(one, events.Retire(3))
    proposal = one.last(Propose).proposal
    assert proposal.state.in_sync == (1, 2)
    assert proposal.deletes == (("replicas", 3),)
    one.store(200)
    one.acknowledge(2, 200)
    assert one.session.counted.confirm == 100
    one.answer(Result.OK)
    assert one.session.counted.confirm == 200


@pytest.mark.parametrize(
    ("shown", "retired", "why"),
    [
        (state(), 2, "is the master"),
        (state(in_sync=(2, 3)), 3, "less than minInSync"),
        (state(), 9, "no replica 9"),
    ],
)
def test_retire_is_refused(shown: object, retired: int, why: str) -> None:
    one = OneRole()
    one.see(shown)  # type: ignore[arg-type]
    ask(one, events.Retire(retired))
    assert why in refused(one)
    assert not one.all(Propose)


def test_one_change_at_a_time() -> None:
    one = OneRole()
    one.see(state())
    ask(one, events.Pause())
    ask(one, events.Resume())
    assert "another change" in refused(one)


def test_nothing_is_asked_of_a_replica_without_authority() -> None:
    one = OneRole()
    ask(one, events.Pause())
    assert "not reached" in refused(one)


# -- forced elections ------------------------------------------------------------------------------


def test_an_election_is_forced_by_a_wish_for_this_epoch() -> None:
    one = OneRole()
    one.see(state())
    ask(one, events.Elect(3, accept_loss=True))
    assert one.last(PutWish).wish == Wish(epoch=4, by="ops", force=3, accept_loss=True)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (events.Elect(3, accept_loss=False), "--accept-loss"),
        (events.Elect(9, accept_loss=True), "no replica 9"),
        (events.Switch(None), "name a replica"),
    ],
)
def test_elections_are_refused(command: events.Command, why: str) -> None:
    one = OneRole()
    one.see(state())
    ask(one, command)
    assert why in refused(one)


def test_a_switch_that_a_slave_is_asked_for_becomes_a_wish() -> None:
    one = OneRole()
    one.see(state())
    ask(one, events.Switch(3))
    assert one.last(PutWish).wish == Wish(epoch=4, by="ops", switch_to=3)


def test_the_named_replica_carries_it_out_alone_and_deletes_the_wish() -> None:
    one = OneRole()
    one.see(state(in_sync=(2, 3)), wish=Wish(epoch=4, force=1, accept_loss=True), revision=90)
    proposal = one.last(Propose).proposal
    assert (proposal.state.in_sync, proposal.state.epoch) == ((1,), 5)
    assert proposal.unchanged == (Unchanged(("wish", None), 77),)
    assert proposal.deletes == (("wish", None),)
    one.answer(Result.OK)
    assert one.last(Lead).epoch == 5


@pytest.mark.parametrize(
    "wish",
    [
        Wish(epoch=3, force=1, accept_loss=True),
        Wish(epoch=4, force=1, accept_loss=False),
        Wish(epoch=4, force=3, accept_loss=True),
    ],
)
def test_other_wishes_are_void(wish: Wish) -> None:
    one = OneRole()
    one.see(state(in_sync=(2, 3)), wish=wish)
    assert not one.all(Propose)


def test_a_replica_that_stopped_below_confirmed_can_be_forced() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.step(events.MasterHeard(95, 100, 100))
    one.see(state(epoch=6, master=3, master_incarnation=30))
    one.step(events.MasterOffered(3, 6, (), 0, one.log))
    assert one.all(Stop)
    one.see(
        state(epoch=6, master=3, master_incarnation=30),
        wish=Wish(epoch=6, force=1, accept_loss=True),
    )
    assert one.last(Propose).proposal.state.epoch == 7
    one.answer(Result.OK)
    assert one.all(Lead)


def test_a_store_of_another_group_cannot_be_forced() -> None:
    one = OneRole()
    one.see(state(group="another"), wish=Wish(epoch=4, force=1, accept_loss=True))
    assert not one.all(Propose)
