"""When a replica stands for election, and what becomes of it (R5, R6, R15)."""

import pytest
from tests.support.one_role import FACTS, OneRole, of, state

from tianzhou.ha.authority.values import Result, Switch, Unchanged
from tianzhou.ha.epochs import Epoch
from tianzhou.ha.roles import events
from tianzhou.ha.roles.actions import (
    AskHandover,
    Follow,
    Lead,
    Note,
    OpenStream,
    Propose,
    Read,
    Save,
    Serve,
    StepDown,
    StopFollowing,
)
from tianzhou.ha.roles.facts import Settings
from tianzhou.ha.roles.reasons import Code
from tianzhou.ha.roles.role import Mode


def code_of(one: OneRole) -> Code:
    assert one.role.standing is not None
    assert one.role.standing.text
    return one.role.standing.code


def test_a_member_whose_master_has_no_lease_stands_with_all_compares() -> None:
    one = OneRole()
    one.see(state(), revision=90)
    one.follow()
    one.step(events.MasterDisconnected())
    actions = one.see(state(), alive=(1,), revision=90)
    assert [type(each) for each in actions if not isinstance(each, Note)] == [
        StopFollowing, Propose
    ]  # fmt: skip
    proposal = one.last(Propose).proposal
    assert (proposal.revision, proposal.unchanged) == (90, (Unchanged(("alive", 2), 0),))
    new = proposal.state
    assert (new.epoch, new.master, new.master_incarnation) == (5, 1, 10)
    assert new.in_sync == (1, 3)
    assert new.history[-1].cause == Code.MASTER_LEASE_ENDED


def test_ok_leads_with_saved_facts_and_then_opens() -> None:
    one = OneRole()
    one.lead()
    lead = one.last(Lead)
    assert (lead.epoch, lead.facts.followed_epoch) == (5, 5)
    assert one.last(Serve).is_master
    assert one.session.start == 100


@pytest.mark.parametrize("result", [Result.CHANGED, Result.UNKNOWN])
def test_without_ok_it_is_a_slave_that_reads_again_and_may_follow_the_old_master(
    result: Result,
) -> None:
    one = OneRole()
    one.see(state(), alive=(1,))
    actions = one.answer(result)
    assert of(actions, Read)
    assert of(actions, Follow)
    assert one.role.mode is Mode.SLAVE
    assert not of(one.wait(5000), Propose)
    assert one.follow()


def test_an_ok_after_a_higher_epoch_was_seen_is_void() -> None:
    one = OneRole()
    one.see(state(), alive=(1,))
    one.see(state(epoch=6, master=3, master_incarnation=30))
    assert not of(one.answer(Result.OK), Lead)
    assert one.role.mode is Mode.SLAVE


def test_the_own_election_in_a_view_does_not_make_a_master_without_the_answer() -> None:
    one = OneRole()
    one.see(state(), alive=(1,))
    elected = one.last(Propose).proposal.state
    assert not of(one.see(elected), Lead)
    assert of(one.answer(Result.OK), Lead)


def test_a_master_that_was_replaced_while_it_was_promoted_never_serves() -> None:
    one = OneRole()
    one.see(state(), alive=(1,))
    one.answer(Result.OK)
    one.see(state(epoch=6, master=3, master_incarnation=30))
    one.step(events.Led(5, one.log))
    assert not any(each.is_master for each in one.all(Serve))
    assert one.last(StepDown).reason.code is Code.HIGHER_EPOCH


def test_a_replica_that_is_named_without_an_own_election_takes_a_new_epoch() -> None:
    one = OneRole()
    one.see(state(master=1, master_incarnation=3), alive=())
    assert code_of(one) is Code.NAMED_MASTER
    new = one.last(Propose).proposal.state
    assert (new.epoch, new.in_sync) == (5, (1, 2, 3))


def test_the_epoch_is_above_all_that_are_known() -> None:
    one = OneRole(facts=FACTS, epochs=(Epoch(4, 0),))
    one.step(events.EpochSeen(11, "hello of replica 3"))
    one.see(state(), alive=(1,))
    assert one.last(Propose).proposal.state.epoch == 12


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (state(in_sync=(2, 3)), Code.NOT_IN_SYNC),
        (state(paused=True), Code.PAUSED),
    ],
)
def test_it_does_not_stand(shown: object, why: Code) -> None:
    one = OneRole()
    one.see(shown, alive=())  # type: ignore[arg-type]
    assert not of(one.wait(20_000), Propose)
    assert code_of(one) is why


def test_a_pause_does_not_keep_the_named_master_from_leading_again() -> None:
    one = OneRole()
    one.see(state(master=1, master_incarnation=3, paused=True), alive=())
    assert code_of(one) is Code.NAMED_MASTER


def test_priority_0_never_stands() -> None:
    one = OneRole(Settings(priority=0))
    one.see(state(), alive=())
    assert not of(one.wait(20_000), Propose)
    assert code_of(one) is Code.PRIORITY_ZERO


def test_a_replica_without_lease_does_not_stand() -> None:
    one = OneRole()
    one.wait(3000, renews=False)
    one.see(state(), alive=())
    assert code_of(one) is Code.NO_LEASE
    one.renew()
    assert of(one.done, Propose)


def test_it_does_not_stand_while_its_master_is_alive() -> None:
    one = OneRole()
    one.see(state())
    assert not of(one.wait(20_000), Propose)
    assert code_of(one) is Code.MASTER_ALIVE


def test_a_restarted_master_is_gone_also_if_it_has_a_lease() -> None:
    one = OneRole()
    one.see(state(master_incarnation=19), revision=90)
    assert code_of(one) is Code.MASTER_RESTARTED
    assert one.last(Propose).proposal.unchanged == (Unchanged(("alive", 2), 52),)


# -- the fast path (R15) ---------------------------------------------------------------------------


def test_refused_connections_after_the_end_of_the_ha_connection_are_enough() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.step(events.MasterDisconnected())
    one.step(events.MasterRefuses())
    assert code_of(one) is Code.MASTER_REFUSES
    assert one.last(Propose).proposal.unchanged == ()


def test_refused_connections_without_an_earlier_connection_mean_nothing() -> None:
    one = OneRole()
    one.see(state())
    one.step(events.MasterRefuses())
    assert not one.all(Propose)


def test_refused_connections_mean_nothing_while_the_connection_lasts() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.step(events.MasterRefuses())
    assert not one.all(Propose)
    assert code_of(one) is Code.MASTER_ALIVE


def test_a_slave_that_hears_its_master_asks_it_to_hand_over_after_ten_seconds() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.see(state(), alive=(1,))
    asked: list[AskHandover] = []
    for second in range(1, 11):
        one.step(events.MasterHeard(0, 100, 100))
        asked += of(one.wait(500), AskHandover)
        one.step(events.MasterHeard(0, 100, 100))
        asked += of(one.wait(500), AskHandover)
        assert len(asked) == (1 if second == 10 else 0), second
    assert code_of(one) is Code.MASTER_CONNECTED
    assert not one.all(Propose)


def test_a_silent_connection_does_not_keep_a_slave_from_standing() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.see(state(), alive=(1,))
    assert of(one.wait(2500), Propose)


# -- turns and damping -----------------------------------------------------------------------------


def waited_ms(one: OneRole) -> int:
    begin_ms = one.now_ms
    while not one.all(Propose):
        one.wait(10 if one.now_ms - begin_ms < 0 else 100)
        assert one.now_ms - begin_ms < 100_000
    return one.now_ms - begin_ms


@pytest.mark.parametrize(
    ("ends", "priorities", "turns"),
    [
        ({3: 90}, {}, 0),
        ({3: 110}, {}, 1),
        ({3: 100}, {}, 0),
        ({3: 100}, {1: 2, 3: 1}, 1),
        ({3: 110}, {3: 0}, 0),
    ],
)
def test_candidates_stand_in_the_order_of_their_logs(
    ends: dict[int, int], priorities: dict[int, int], turns: int
) -> None:
    one = OneRole(Settings(priority=priorities.get(1, 1)))
    one.see(state(), alive=(1, 3), ends=ends, priorities=priorities)
    assert bool(one.all(Propose)) == (turns == 0)
    if turns:
        assert code_of(one) is Code.WAITS_ITS_TURN
    assert waited_ms(one) in range(150 * turns, 150 * turns + 101)


def elections(count: int, *, age_ms: int, cause: Code = Code.MASTER_REFUSES) -> tuple[Switch, ...]:
    at_ms = 1_000_000 - age_ms
    return tuple(
        Switch(epoch=each, master=2, cause=cause.value, time_ms=at_ms) for each in range(count)
    )


@pytest.mark.parametrize(
    ("count", "wait_ms"), [(3, 0), (4, 2000), (5, 4000), (6, 8000), (9, 60_000), (40, 60_000)]
)
def test_more_than_three_elections_in_ten_minutes_are_slowed_down(count: int, wait_ms: int) -> None:
    one = OneRole()
    one.see(state(history=elections(count, age_ms=5000)), alive=(1,))
    alarms = [each for each in one.all(Note) if each.is_alarm]
    assert len(alarms) == (1 if wait_ms else 0)
    assert waited_ms(one) in range(wait_ms, wait_ms + 101)


def test_old_and_intended_elections_do_not_slow_down() -> None:
    one = OneRole()
    history = (
        *elections(20, age_ms=600_000),
        *elections(20, age_ms=1000, cause=Code.PLANNED),
    )
    one.see(state(history=history), alive=(1,))
    assert one.all(Propose)


def test_the_duration_of_a_switch_begins_with_the_last_sign_of_the_old_master() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.step(events.MasterHeard(0, 100, 100))
    one.wait(3400)
    one.see(state(), alive=(1,))
    assert one.last(Propose).proposal.state.history[-1].duration_ms == 3400


def test_the_history_has_fifty_switches_at_most() -> None:
    one = OneRole()
    one.see(state(history=elections(50, age_ms=700_000)), alive=(1,))
    history = one.last(Propose).proposal.state.history
    assert len(history) == 50
    assert history[-1].epoch == 5


# -- following -------------------------------------------------------------------------------------


def test_facts_are_saved_before_the_stream_is_opened() -> None:
    one = OneRole()
    one.see(state(epoch=7, master_incarnation=20))
    actions = one.step(events.MasterOffered(2, 7, (Epoch(4, 0), Epoch(7, 100)), 100, one.log))
    kinds = [type(each) for each in actions]
    assert kinds.index(Save) < kinds.index(OpenStream)
    assert of(actions, Save)[-1].facts.followed_epoch == 7
