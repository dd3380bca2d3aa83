"""Which master is followed, up to where logs agree, and what is cut (R9, R11)."""

import pytest
from tests.support.one_role import EPOCHS, OneRole, of, state

from tianzhou.ha.epochs import Epoch, Epochs
from tianzhou.ha.roles import events
from tianzhou.ha.roles.actions import (
    Follow,
    Note,
    OpenStream,
    Propose,
    Save,
    Stop,
    StopFollowing,
    Truncate,
)
from tianzhou.ha.roles.facts import LogFacts
from tianzhou.ha.roles.following import Cut, cut_for, may_keep_table
from tianzhou.ha.roles.reasons import Code
from tianzhou.ha.roles.role import Mode


def epochs(*pairs: tuple[int, int]) -> Epochs:
    return tuple(Epoch(*pair) for pair in pairs)


@pytest.mark.parametrize(
    ("own", "end", "theirs", "their_end", "cut"),
    [
        (epochs((1, 0)), 100, epochs((1, 0)), 150, None),
        (epochs((1, 0)), 100, epochs((1, 0)), 100, None),
        # the master lacks the end of an epoch
        (epochs((1, 0)), 100, epochs((1, 0), (2, 80)), 90, Cut(80, epochs((1, 0)))),
        # an own epoch that the master does not have
        (epochs((1, 0), (2, 60)), 100, epochs((1, 0), (3, 70)), 90, Cut(60, epochs((1, 0)))),
        # its entry goes, though nothing was written in it
        (epochs((1, 0), (2, 60)), 60, epochs((1, 0), (3, 60)), 90, Cut(60, epochs((1, 0)))),
        # no common entry but the implied one
        (epochs((1, 0)), 100, epochs((2, 0)), 50, Cut(0, ())),
        ((), 0, epochs((2, 0)), 50, None),
        # the same number with another start is another epoch
        (epochs((1, 0), (2, 50)), 90, epochs((1, 0), (2, 70)), 90, Cut(50, epochs((1, 0)))),
    ],
)
def test_the_cut_leaves_the_beginning_of_the_masters_log(
    own: Epochs, end: int, theirs: Epochs, their_end: int, cut: Cut | None
) -> None:
    assert cut_for(LogFacts(end, end, own), theirs, their_end) == cut


def test_an_empty_log_may_begin_at_any_file_of_the_master() -> None:
    assert cut_for(LogFacts(5000, 5000, (), 5000), epochs((1, 0)), 9000) is None


def test_it_saves_then_cuts_then_reports() -> None:
    one = OneRole()
    one.see(state(epoch=6))
    actions = one.step(events.MasterOffered(2, 6, epochs((4, 0), (6, 80)), 90, one.log))
    kinds = [type(each) for each in actions if not isinstance(each, Note)]
    assert kinds == [Save, Truncate, OpenStream]
    assert of(actions, Truncate) == [Truncate(80, EPOCHS)]
    facts = of(actions, Save)[0].facts
    assert (facts.followed_epoch, facts.master, facts.master_addr) == (6, 2, "h2:1")


def test_it_never_cuts_what_it_saw_confirmed() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.step(events.MasterHeard(95, 100, 100))
    one.see(state(epoch=6, master=3, master_incarnation=30))
    actions = one.step(events.MasterOffered(3, 6, epochs((4, 0), (6, 90)), 90, one.log))
    assert of(actions, Stop)[0].reason.code is Code.BELOW_CONFIRMED
    assert "resync" in of(actions, Stop)[0].reason.text
    assert not of(actions, Truncate)
    assert one.role.mode is Mode.STOPPED
    one.see(state(epoch=7, master=1), alive=())
    assert not one.all(Propose)


def test_the_confirm_offset_is_not_above_the_own_log() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.step(events.MasterHeard(300, 100, 90))
    assert one.role.confirm == 100


def test_the_confirm_offset_is_saved_now_and_then_as_far_as_it_is_on_disk() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    one.wait(10_100)
    actions = one.step(events.MasterHeard(300, 100, 90))
    assert of(actions, Save)[0].facts.confirm == 90
    assert not of(one.step(events.MasterHeard(300, 100, 95)), Save)


@pytest.mark.parametrize("epoch", [3, 6])
def test_a_master_of_a_smaller_epoch_is_not_followed(epoch: int) -> None:
    one = OneRole()
    one.see(state(epoch=7))
    actions = one.step(events.MasterOffered(2, epoch, EPOCHS, 100, one.log))
    assert of(actions, StopFollowing)
    assert not of(actions, OpenStream)
    assert not of(one.wait(900), Follow)
    assert of(one.wait(200), Follow)


def test_the_followed_epoch_and_the_own_entries_bind_too() -> None:
    one = OneRole(epochs=epochs((4, 0), (9, 100)))
    one.see(state(epoch=7))
    assert not of(one.step(events.MasterOffered(2, 8, EPOCHS, 100, one.log)), OpenStream)


def test_a_new_epoch_closes_the_connection_to_the_same_master() -> None:
    one = OneRole()
    one.see(state())
    one.follow()
    actions = one.see(state(epoch=5, master_incarnation=20))
    kinds = [type(each) for each in actions]
    assert kinds.index(StopFollowing) < kinds.index(Follow)


def test_a_new_address_of_the_master_is_used() -> None:
    one = OneRole()
    one.see(state())
    one.role.followed_addr = "before:1"
    assert of(one.see(state()), Follow) == [Follow(2, "h2:1")]


def test_nothing_is_cut_while_the_authority_is_not_trusted() -> None:
    one = OneRole()
    one.see(state())
    one.see(state(), cluster_id="restored")
    actions = one.step(events.MasterOffered(2, 4, epochs((4, 0)), 60, one.log))
    assert not of(actions, Truncate)
    assert not of(actions, OpenStream)


def test_an_offer_of_another_master_than_the_followed_one_is_ignored() -> None:
    one = OneRole()
    one.see(state())
    assert not one.step(events.MasterOffered(3, 9, EPOCHS, 100, one.log))


@pytest.mark.parametrize(
    ("end", "confirm", "own_end", "may"),
    [(50, 50, 50, True), (51, 50, 60, False), (50, 60, 49, False)],
)
def test_tables_are_kept_when_nothing_in_them_can_be_taken_back(
    end: int, confirm: int, own_end: int, may: bool
) -> None:
    assert may_keep_table(end, confirm, own_end) is may
