"""The start of a replica: joining, the first master (R0), a restored authority (R14), unclean
stores (R10).
"""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.one_role import EPOCHS, FACTS, START, OneRole, of, state

from tianzhou.ha.authority.values import Result, Unchanged, Wish
from tianzhou.ha.replica_facts import ReplicaFacts
from tianzhou.ha.roles import events, trust
from tianzhou.ha.roles.actions import Follow, Lead, Note, Propose, Read, Reply, Save, Serve, Stop
from tianzhou.ha.roles.facts import LogFacts, Settings, UncleanRecovery
from tianzhou.ha.roles.reasons import Code
from tianzhou.ha.roles.role import Mode

FRESH = ReplicaFacts()


def fresh(settings: Settings | None = None) -> OneRole:
    return OneRole(settings, facts=FRESH, end=0, epochs=())


# -- the first master ------------------------------------------------------------------------------


def test_an_empty_replica_founds_the_group_and_saves_its_id_before() -> None:
    one = fresh()
    actions = one.see(None, alive=(), empty=True)
    kinds = [type(each) for each in actions]
    assert kinds.index(Save) < kinds.index(Propose)
    assert of(actions, Save)[-1].facts.group == "new"
    proposal = one.last(Propose).proposal
    assert proposal.revision == 0
    assert (proposal.state.epoch, proposal.state.in_sync) == (1, (1,))
    one.answer(Result.OK)
    assert one.last(Lead).epoch == 1


def test_nothing_is_founded_while_a_replica_has_messages() -> None:
    one = fresh()
    one.see(None, alive=(), empty=False)
    assert not one.all(Propose)
    assert one.role.standing is not None
    assert one.role.standing.code is Code.STATE_MISSING


def test_a_founder_that_was_too_late_joins_the_other_group() -> None:
    one = fresh()
    one.see(None, alive=(), empty=True)
    one.answer(Result.CHANGED)
    one.see(state(group="theirs", in_sync=(2,)))
    assert one.last(Save).facts.group == "theirs"
    assert one.last(Follow).master == 2
    assert not one.role.facts.unclean


def test_a_founder_that_stopped_before_it_had_an_answer_is_still_clean() -> None:
    facts = replace(FRESH, id=1, group="g", cluster_id="etcd", store_id="store", boot_id="boot")
    one = OneRole(facts=facts, end=0, epochs=())
    one.see(state(epoch=1, master=1, master_incarnation=9, in_sync=(1,)))
    assert one.last(Propose).proposal.state.epoch == 2


def test_priority_0_founds_nothing() -> None:
    one = fresh(Settings(priority=0))
    one.see(None, alive=(), empty=True)
    assert not one.all(Propose)


def test_init_makes_a_store_with_messages_the_first_master() -> None:
    one = OneRole(facts=replace(FACTS, highest_epoch=7, cluster_id="old"))
    one.see(None, alive=())
    assert not one.all(Propose)
    one.step(events.Asked(5, events.Init("random"), by="ops"))
    proposal = one.last(Propose).proposal
    assert (proposal.revision, proposal.state.group, proposal.state.epoch) == (0, "g", 8)
    one.answer(Result.OK)
    assert one.last(Reply).is_ok
    assert one.last(Lead).epoch == 8


def test_init_is_refused_while_the_group_exists() -> None:
    one = OneRole()
    one.see(state())
    one.step(events.Asked(5, events.Init("random")))
    assert not one.last(Reply).is_ok
    assert "exists" in one.last(Reply).reason.text


# -- without the authority -------------------------------------------------------------------------


def test_without_the_authority_it_follows_the_master_that_it_followed_last() -> None:
    one = OneRole(starts=False)
    facts = replace(FACTS, master=3, master_addr="h3:1")
    actions = one.step(events.Started(facts, START, one.log, "new"))
    assert of(actions, Follow) == [Follow(3, "h3:1")]
    assert not of(one.wait(20_000), Propose)
    assert one.step(events.MasterOffered(3, 4, EPOCHS, 100, one.log))
    assert one.role.followed_session == 4


def test_without_the_authority_an_unclean_store_follows_nothing() -> None:
    one = OneRole(starts=False)
    facts = replace(FACTS, master=3, master_addr="h3:1", unclean="power")
    assert not of(one.step(events.Started(facts, START, one.log, "new")), Follow)


def test_when_the_authority_is_back_it_says_hello_again_with_its_incarnation() -> None:
    one = OneRole(starts=False)
    facts = replace(FACTS, master=2, master_addr="h2:1")
    one.step(events.Started(facts, START, one.log, "new"))
    one.follow()
    one.step(events.Joined(1, 10))
    actions = one.see(state())
    assert one.all(Read)
    assert of(one.done[-len(actions) - 3 :], Follow)
    assert one.role.incarnation == 10


# -- a restored or wiped authority (R14) -----------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "cluster_id", "code"),
    [
        (None, "etcd", Code.STATE_MISSING),
        (state(epoch=3, master=1), "etcd", Code.EPOCH_WENT_BACK),
        (state(master=1), "restored", Code.OTHER_CLUSTER),
        (state(master=1, group="another"), "etcd", Code.OTHER_GROUP),
    ],
)
def test_nothing_is_elected_followed_or_cut_by_a_state_of_another_authority(
    shown: object, cluster_id: str, code: Code
) -> None:
    one = OneRole()
    one.see(shown, cluster_id=cluster_id, alive=())  # type: ignore[arg-type]
    one.wait(20_000)
    assert not one.all(Propose)
    assert not one.all(Follow)
    assert one.role.untrusted is not None
    assert one.role.untrusted.code is code
    alarms = [each.reason.code for each in one.all(Note) if each.is_alarm]
    assert alarms == [code]


def test_a_store_without_group_is_refused() -> None:
    one = OneRole(facts=replace(FRESH, id=1))
    one.see(state(in_sync=(2, 3)))
    assert one.role.untrusted is not None
    assert one.role.untrusted.code is Code.NO_GROUP
    assert not one.all(Follow)


def test_a_master_goes_on_beside_a_restored_authority_and_changes_nothing() -> None:
    one = OneRole()
    one.lead()
    one.connect(2)
    one.connect(3)
    one.see(state(epoch=1, master=1), cluster_id="restored")
    one.step(events.SlaveDisconnected(3))
    one.wait(5000)
    assert one.role.mode is Mode.MASTER
    assert len(one.all(Propose)) == 1
    assert one.last(Serve).refusal is None


def test_an_operator_ends_it_by_a_forced_election() -> None:
    one = OneRole(facts=replace(FACTS, highest_epoch=9))
    wish = Wish(epoch=4, force=1, accept_loss=True)
    one.see(state(), wish=wish, cluster_id="restored")
    assert one.last(Propose).proposal.state.epoch == 10
    one.answer(Result.OK)
    assert one.last(Lead).facts.cluster_id == "restored"
    assert one.role.untrusted is None


def test_others_trust_another_authority_when_its_epoch_is_higher_than_any_before() -> None:
    one = OneRole()
    one.see(state(epoch=5), cluster_id="restored")
    assert one.role.untrusted is None
    assert one.last(Save).facts.cluster_id == "restored"
    assert one.last(Follow).master == 2


def test_the_highest_epoch_and_the_revision_of_the_state_in_it_are_saved() -> None:
    one = OneRole()
    one.see(state(epoch=8), revision=70)
    assert (one.last(Save).facts.highest_epoch, one.last(Save).facts.state_revision) == (8, 70)
    one.see(state(epoch=8, in_sync=(1, 2)), revision=75)
    assert one.last(Save).facts.state_revision == 75
    one.see(state(epoch=9), revision=80)
    assert (one.last(Save).facts.highest_epoch, one.last(Save).facts.state_revision) == (9, 80)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_backup_of_the_present_epoch_is_not_trusted(restarts: bool) -> None:
    """It names a member that has left since, here this replica."""
    one = OneRole()
    one.see(state(), revision=70)
    one.see(state(in_sync=(2, 3)), revision=75)
    if restarts:
        one = OneRole(facts=one.role.facts)
    one.see(state(), revision=70, alive=(1,))
    one.wait(20_000)
    assert not one.all(Propose)
    assert one.role.untrusted is not None
    assert one.role.untrusted.code is Code.REVISION_WENT_BACK


@pytest.mark.parametrize("source", ["seen", "seen_now"])
@pytest.mark.parametrize("seen", [(4, 75), (6, 10)])
def test_what_another_replica_has_seen_counts_too(seen: tuple[int, int], source: str) -> None:
    """This one was down when the set changed, and the master is down now."""
    one = OneRole()
    said: dict[str, Any] = {source: seen}
    one.see(state(), revision=70, alive=(1, 3), **said)
    one.wait(20_000)
    assert not one.all(Propose)
    assert one.role.untrusted is not None
    went_back = Code.REVISION_WENT_BACK if seen[0] == 4 else Code.EPOCH_WENT_BACK
    assert one.role.untrusted.code is went_back
    saved = one.last(Save).facts
    assert (saved.highest_epoch, saved.state_revision) == seen
    # Also when the other one is down.
    one.see(state(), revision=70, alive=(1,))
    one.wait(20_000)
    assert not one.all(Propose)
    # An operator ends it by an epoch above all of them.
    wish = Wish(epoch=4, force=1, accept_loss=True)
    one.see(state(), revision=70, alive=(1, 3), wish=wish, **said)
    assert one.last(Propose).proposal.state.epoch == seen[0] + 1
    one.answer(Result.OK)
    one.see(one.last(Propose).proposal.state, revision=one.revision, alive=(1, 3), **said)
    assert one.role.untrusted is None


def test_what_others_have_seen_is_no_doubt_if_the_state_is_newer() -> None:
    one = OneRole()
    one.see(state(), revision=70, alive=(1, 3), seen=(4, 70), seen_now=(4, 70))
    assert one.role.untrusted is None
    assert one.all(Propose)


def test_what_replicas_of_another_group_have_seen_is_no_doubt() -> None:
    one = OneRole()
    one.see(state(group="h"), revision=70, alive=(1, 3), seen=(9, 70))
    assert one.role.facts.highest_epoch == 4


def test_only_a_state_of_the_own_group_was_seen() -> None:
    one = OneRole(facts=replace(FACTS, state_revision=500))
    one.see(state(), revision=70)
    assert trust.newest_seen(one.role.view, one.role.facts) == (4, 500)
    one.see(state(group="another"), revision=71)
    assert trust.newest_seen(one.role.view, one.role.facts) == (0, 0)
    assert trust.newest_seen(None, one.role.facts) == (4, 500), "before the first view"


def test_a_new_epoch_may_begin_at_any_revision() -> None:
    """That of a restored etcd is smaller; a forced election ended the doubt."""
    one = OneRole(facts=replace(FACTS, state_revision=500))
    wish = Wish(epoch=4, force=1, accept_loss=True)
    one.see(state(), revision=70, wish=wish)
    one.answer(Result.OK)
    leading = one.last(Lead)
    assert leading.facts.state_revision == one.revision < 500
    one.see(one.last(Propose).proposal.state, revision=one.revision)
    assert one.role.untrusted is None


def test_the_revision_of_the_own_election_is_known() -> None:
    one = OneRole()
    one.lead()
    assert one.last(Lead).facts.state_revision > 100


# -- unclean stores (R10) --------------------------------------------------------------------------

UNCLEAN = replace(FACTS, unclean="power was lost", confirm=150, boot_id="before")


def test_an_unclean_member_leaves_before_it_does_anything_else() -> None:
    one = OneRole(facts=UNCLEAN)
    one.see(state(), alive=(1,), revision=90)
    proposal = one.last(Propose).proposal
    assert (proposal.revision, proposal.unchanged) == (90, ())
    new = proposal.state
    assert (new.in_sync, new.lost, new.master, new.epoch) == ((2, 3), (1,), 2, 4)
    assert not one.all(Follow)
    assert one.role.facts.boot_id == "before"
    one.answer(Result.OK)
    facts = one.last(Save).facts
    assert (facts.unclean, facts.confirm, facts.boot_id) == ("", 100, "boot")
    assert one.last(Follow).master == 2


def test_it_repeats_until_it_is_no_member() -> None:
    one = OneRole(facts=UNCLEAN)
    one.see(state())
    for result in (Result.UNKNOWN, Result.CHANGED, Result.UNKNOWN):
        one.answer(result)
        one.see(state())
        assert one.role.facts.unclean
        assert not one.all(Follow)
    assert len(one.all(Propose)) == 4
    one.answer(Result.UNKNOWN)
    one.see(state(in_sync=(2, 3), lost=(1,)))
    assert not one.role.facts.unclean
    assert one.all(Follow)


def test_an_unclean_master_is_no_longer_named() -> None:
    one = OneRole(facts=UNCLEAN)
    one.see(state(master=1, master_incarnation=9))
    new = one.last(Propose).proposal.state
    assert (new.master, new.master_incarnation, new.in_sync) == (None, 0, (2, 3))


def test_the_last_member_leaves_too() -> None:
    one = OneRole(facts=UNCLEAN)
    one.see(state(master=1, in_sync=(1,), lost=(3,)))
    new = one.last(Propose).proposal.state
    assert (new.in_sync, new.lost) == ((), (3, 1))


def test_a_member_with_a_new_store_leaves() -> None:
    one = OneRole(facts=replace(FRESH, id=1), end=0, epochs=())
    one.see(state())
    assert one.last(Propose).proposal.state.in_sync == (2, 3)
    assert "store is new" in one.role.facts.unclean


def test_a_log_that_ends_before_what_was_confirmed_is_unclean() -> None:
    one = OneRole(facts=replace(FACTS, confirm=101))
    one.see(state(), alive=(1,))
    new = one.last(Propose).proposal.state
    assert (new.in_sync, new.lost) == ((2, 3), (1,))


def lost_all(settings: Settings, *, alive: tuple[int, ...], ends: dict[int, int]) -> OneRole:
    one = OneRole(settings)
    one.see(state(in_sync=(), lost=(2, 1), master=None), alive=alive, ends=ends)
    one.wait(5000)
    return one


def test_when_all_have_left_they_wait_for_the_operator() -> None:
    one = lost_all(Settings(), alive=(1, 2, 3), ends={2: 50})
    assert not one.all(Propose)
    assert one.role.standing is not None
    assert "force an election" in one.role.standing.text


AUTO = Settings(unclean_recovery=UncleanRecovery.AUTO)


@pytest.mark.parametrize(
    ("alive", "ends", "code"),
    [
        ((1, 3), {}, Code.UNCLEAN),
        ((1, 2, 3), {2: 101}, Code.WAITS_ITS_TURN),
        ((1, 2, 3), {2: 99, 3: 500}, None),
    ],
)
def test_or_elect_the_longest_log_of_all_that_left(
    alive: tuple[int, ...], ends: dict[int, int], code: Code | None
) -> None:
    one = lost_all(AUTO, alive=alive, ends=ends)
    if code is not None:
        assert not one.all(Propose)
        assert one.role.standing is not None
        assert one.role.standing.code is code
        return
    proposal = one.last(Propose).proposal
    assert proposal.unchanged == (Unchanged(("alive", 2), 52),)
    assert (proposal.state.in_sync, proposal.state.lost) == ((1,), ())


# -- what ends a replica ---------------------------------------------------------------------------


def test_a_retired_replica_stops_and_does_not_come_back() -> None:
    one = OneRole()
    one.see(state(in_sync=(2, 3)))
    one.see(state(in_sync=(2, 3)), absent=(1,))
    assert one.last(Stop).reason.code is Code.RETIRED
    assert one.last(Save).facts.retired
    again = OneRole(facts=one.last(Save).facts)
    assert again.last(Stop).reason.code is Code.RETIRED
    again.see(state(in_sync=(2, 3)))
    assert not again.all(Follow)


def test_a_copied_disk_stops() -> None:
    one = OneRole()
    one.see(state())
    one.step(events.IdentityInUse("incarnation 12"))
    assert one.last(Stop).reason.code is Code.IDENTITY_IN_USE
    assert not one.last(Serve).is_registered


def test_a_replica_is_not_registered_before_its_first_view() -> None:
    """Its store may be of another group than the one in the authority."""
    one = OneRole()
    assert not any(each.is_registered for each in one.all(Serve))
    one.see(state())
    assert one.last(Serve).is_registered


def test_a_store_of_another_group_is_never_registered() -> None:
    one = OneRole()
    one.see(state(group="another"))
    one.wait(1000)
    assert not any(each.is_registered for each in one.all(Serve))


def test_an_older_view_is_ignored() -> None:
    one = OneRole()
    one.see(state())
    one.revision = 50
    one.see(state(epoch=9, master=3))
    assert one.last(Follow).master == 2


def test_the_log_of_an_empty_store_may_begin_anywhere() -> None:
    assert LogFacts(5000, 5000, (), 5000).is_empty
    assert not LogFacts(5001, 5001, (), 5000).is_empty
