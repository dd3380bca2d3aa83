"""A replica that starts again from the master's log: when it may, and in which order."""

import pytest

from tianzhou.ha.authority.values import Alive, GroupState, Known, Replica, View
from tianzhou.ha.epochs import Epoch
from tianzhou.ha.replica_facts import FlushMode, ReplicaFacts, Start
from tianzhou.ha.roles import machine
from tianzhou.ha.roles.actions import Action, Follow, Rejoin, Reply, Save, StartEmpty, StopFollowing
from tianzhou.ha.roles.events import (
    Asked,
    DiskFailed,
    Emptied,
    Joined,
    MasterOffered,
    Resync,
    Started,
    Viewed,
)
from tianzhou.ha.roles.facts import LogFacts, Settings
from tianzhou.ha.roles.reasons import Code
from tianzhou.ha.roles.role import Mode, Role

OLD, NEW = 20, 50
LOG = LogFacts(900, 900, (Epoch(1, 0), Epoch(2, 500)))
EMPTY = LogFacts()


def a_view(*, revision: int, incarnation: int = OLD, in_sync: tuple[int, ...] = (1,),
           master: int | None = 1, master_alive: int = 11) -> View:  # fmt: skip
    state = GroupState(
        group="g", epoch=3, master=master, master_incarnation=11, in_sync=in_sync, min_in_sync=2
    )
    replica = Replica(addr="h:1", ha="h:2", store_id="s", boot_id="b", empty=False)
    return View(
        cluster_id="e", read_revision=revision, revision=15, state=state,
        replicas={1: Known(replica, 11), 2: Known(replica, incarnation)},
        alive={1: Known(Alive(incarnation=master_alive, epoch=3, end=0, confirm=0), 16)},
    )  # fmt: skip


def a_role(view: View | None = None) -> Role:
    """Replica 2, which has seen more confirmed than the master of epoch 3 has."""
    role = machine.new_role(Settings())
    facts = ReplicaFacts(group="g", id=2, store_id="s", boot_id="b", confirm=800, cluster_id="e")
    start = Start(was_clean=True, boot_id="b", store_id="s", flush=FlushMode.SYNC)
    machine.step(role, Started(facts, start, LOG, "new"), 0)
    machine.step(role, Joined(2, OLD), 0)
    machine.step(role, Viewed(view or a_view(revision=30)), 0)
    return role


def stopped_role() -> Role:
    role = a_role()
    offer = MasterOffered(1, 3, (Epoch(1, 0), Epoch(3, 600)), 700, LOG)
    machine.step(role, offer, 1)
    assert role.stopped is not None
    assert role.stopped.code is Code.BELOW_CONFIRMED
    return role


def ask(role: Role) -> list[Action]:
    return machine.step(role, Asked(7, Resync(), "me"), 2)


def kinds(found: list[Action], *wanted: type[Action]) -> list[type[Action]]:
    return [type(each) for each in found if type(each) in wanted]


def reply_of(found: list[Action]) -> Reply:
    (reply,) = [each for each in found if isinstance(each, Reply)]
    return reply


def test_the_log_is_removed_after_a_new_incarnation_and_a_look_at_the_set() -> None:
    role = stopped_role()
    assert kinds(ask(role), Rejoin, StartEmpty, Reply) == [Rejoin]
    # A view from before the new incarnation does not say whether it was taken in under the old one.
    assert not kinds(machine.step(role, Viewed(a_view(revision=40)), 3), StartEmpty)
    assert not kinds(machine.step(role, Joined(2, NEW), 4), StartEmpty)
    late = Viewed(a_view(revision=NEW - 1))
    assert not kinds(machine.step(role, late, 5), StartEmpty)
    found = machine.step(role, Viewed(a_view(revision=60, incarnation=NEW)), 6)
    assert [each for each in found if isinstance(each, StartEmpty)] == [StartEmpty(500)]
    # Only once, and what was seen confirmed is forgotten after the log is gone.
    again = machine.step(role, Viewed(a_view(revision=61, incarnation=NEW)), 7)
    assert not kinds(again, StartEmpty, Save)
    assert role.facts.confirm == 800
    found = machine.step(role, Emptied(EMPTY, "/store/cut-tail-2-500"), 8)
    assert kinds(found, Save, Reply, Follow) == [Save, Reply, Follow]
    assert "/store/cut-tail-2-500" in reply_of(found).reason.text
    assert (role.mode, role.stopped, role.facts.confirm) == (Mode.SLAVE, None, 0)


def test_a_member_that_was_taken_in_meanwhile_keeps_its_log() -> None:
    role = stopped_role()
    ask(role)
    machine.step(role, Joined(2, NEW), 4)
    found = machine.step(role, Viewed(a_view(revision=60, in_sync=(1, 2), incarnation=NEW)), 6)
    assert not kinds(found, StartEmpty)
    assert not reply_of(found).is_ok
    assert "is in sync" in reply_of(found).reason.text
    assert role.resync is None


@pytest.mark.parametrize("is_removing", [True, False])
def test_a_failed_disk_ends_it_with_the_reason(*, is_removing: bool) -> None:
    role = stopped_role()
    ask(role)
    machine.step(role, Joined(2, NEW), 4)
    if is_removing:
        machine.step(role, Viewed(a_view(revision=60, incarnation=NEW)), 6)
    found = machine.step(role, DiskFailed("no space for the tail"), 7)
    assert "no space for the tail" in reply_of(found).reason.text
    assert role.mode is Mode.STOPPED
    assert not kinds(
        machine.step(role, Viewed(a_view(revision=61, incarnation=NEW)), 8), StartEmpty
    )
    # And it can be asked for again.
    assert kinds(ask(role), Rejoin) == [Rejoin]


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (a_view(revision=30, in_sync=(1, 2)), "is in sync"),
        (a_view(revision=30, master_alive=12), "no living master"),
        (a_view(revision=30, master=None), "no living master"),
    ],
)
def test_a_log_that_may_be_needed_is_not_removed(view: View, why: str) -> None:
    role = a_role(view)
    found = ask(role)
    assert not kinds(found, Rejoin, StartEmpty)
    assert why in reply_of(found).reason.text


def test_a_slave_that_follows_has_nothing_to_repair() -> None:
    role = a_role()
    machine.step(role, MasterOffered(1, 3, (*LOG.epochs, Epoch(3, 900)), 900, LOG), 1)
    assert role.followed_session == 3
    assert "nothing to repair" in reply_of(ask(role)).reason.text


def test_a_slave_whose_master_refuses_it_may_start_again() -> None:
    role = a_role()
    found = ask(role)
    # It looked for its master; nothing of an earlier hello may go on.
    assert kinds(found, StopFollowing, Rejoin) == [StopFollowing, Rejoin]
    machine.step(role, Joined(2, NEW), 4)
    found = machine.step(role, Viewed(a_view(revision=60, incarnation=NEW)), 6)
    # Where the logs differ is not known: all that was not confirmed is saved.
    assert [each for each in found if isinstance(each, StartEmpty)] == [StartEmpty(800)]
