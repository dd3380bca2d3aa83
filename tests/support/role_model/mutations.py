"""Single rules of the machine, switched off: each has a search that must find the fault.

The rows are those of the table of rules in docs/adr/0009-failover-on-etcd.md.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from tests.support.role_model.bounds import Bounds
from tests.support.role_model.group import Group
from tianzhou.ha import epochs
from tianzhou.ha.authority.values import (
    GroupState,
    Key,
    Outcome,
    Proposal,
    Result,
    Unchanged,
    Wish,
)
from tianzhou.ha.epochs import Epochs
from tianzhou.ha.roles import (
    election,
    events,
    following,
    machine,
    membership,
    operators,
    resync,
    unclean,
)
from tianzhou.ha.roles import role as role_module
from tianzhou.ha.roles.actions import Action, Lead, Rejoin
from tianzhou.ha.roles.counted_set import CountedSet
from tianzhou.ha.roles.facts import LogFacts
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Mode, Pending, Progress, Purpose, Role, Session, save

Patch = pytest.MonkeyPatch
SwitchOff = Callable[[Patch, Group], None]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One rule, what is done instead, and where that must show."""

    name: str
    off: SwitchOff
    bounds: Bounds
    finds: str
    """How the violation begins."""
    script: tuple[str, ...] = ()
    """Steps before the search, for faults that are too deep to be found from the beginning."""
    worlds: int = 60_000
    """How many are searched at most."""


# -- R1, R2: what counts ---------------------------------------------------------------------------


def read_settles(patch: Patch, group: Group) -> None:
    """R2: a read of the compared revision settles an unanswered proposal."""

    def is_settled(role: Role, pending: Pending, view: object) -> bool:
        return pending.progress is not Progress.SENT

    patch.setattr(membership, "is_settled", is_settled)


def refusal_settles(patch: Patch, group: Group) -> None:
    """R2: CHANGED settles a proposal of which a copy may have taken effect."""

    def answered(role: Role, outcome: object, out: list[Action]) -> None:
        original(role, outcome, out)  # type: ignore[arg-type]
        if role.pending is not None and role.pending.progress is Progress.REFUSED:
            membership.settle(role)

    original = membership.answered
    patch.setattr(membership, "answered", answered)


def proposed_not_counted(patch: Patch, group: Group) -> None:
    """R2: a proposed member counts after the answer only."""

    def set_proposed(self: CountedSet, members: object) -> bool:
        return False

    patch.setattr(CountedSet, "set_proposed", set_proposed)


def shrink_counts_at_once(patch: Patch, group: Group) -> None:
    """R2: a member that is proposed to leave no longer counts."""

    def propose(
        role: Role, purpose: Purpose, proposal: Proposal, out: list[Action], **more: object
    ) -> None:
        original(role, purpose, proposal, out, **more)  # type: ignore[arg-type]
        if purpose is Purpose.SHRINK and role.session is not None:
            role.session.counted.set_in_force(proposal.state.in_sync)

    original = role_module.propose
    patch.setattr(membership, "propose", propose)


def confirms_own_end(patch: Patch, group: Group) -> None:
    """R1: a new master takes the end of its log for the confirm offset."""

    def new_set(role: Role) -> CountedSet:
        found = original(role)
        found.confirm = role.log.end
        return found

    original = election.counted_set
    patch.setattr(election, "counted_set", new_set)


def keeps_acknowledgements(patch: Patch, group: Group) -> None:
    """R1: what a slave acknowledged on an earlier connection counts."""

    def connected(self: CountedSet, slave_id: int) -> None:
        self.acknowledged.setdefault(slave_id, 0)

    def disconnected(self: CountedSet, slave_id: int) -> None:
        pass

    patch.setattr(CountedSet, "connected", connected)
    patch.setattr(CountedSet, "disconnected", disconnected)


# -- R3: no list of further candidates -------------------------------------------------------------


def _eligible(patch: Patch) -> None:
    def problem(role: Role, now_ms: int) -> Reason | None:
        found = original(role, now_ms)
        state = role.state
        is_eligible = state is not None and role.id in state.lost
        return None if found and found.code is Code.NOT_IN_SYNC and is_eligible else found

    def may_shrink(role: Role, before: object, after: object) -> bool:
        return True

    original = election.problem_with
    patch.setattr(election, "problem_with", problem)
    patch.setattr(membership, "may_shrink", may_shrink)


def eligible_members(patch: Patch, group: Group) -> None:
    """R3: a member taken out below minInSync remains eligible."""

    def propose(
        role: Role, purpose: Purpose, proposal: Proposal, out: list[Action], **more: object
    ) -> None:
        state = proposal.state
        before = role.state.in_sync if role.state else ()
        lost = {*before, *state.lost}.difference(state.in_sync)
        proposal = replace(proposal, state=replace(state, lost=tuple(sorted(lost))))
        original(role, purpose, proposal, out, **more)  # type: ignore[arg-type]

    original = role_module.propose
    patch.setattr(membership, "propose", propose)
    _eligible(patch)


# -- R4: taking in ---------------------------------------------------------------------------------


def any_incarnation(patch: Patch, group: Group) -> None:
    """R4: a slave is taken in under whatever incarnation it has then."""

    def compares(slave_id: int, incarnation: int) -> tuple[Unchanged, ...]:
        return ()

    def is_same(role: Role, slave_id: int, incarnation: int) -> bool:
        return True

    patch.setattr(membership, "incarnation_compares", compares)
    patch.setattr(membership, "is_same_process", is_same)


def any_start(patch: Patch, group: Group) -> None:
    """R4: a slave is taken in below the start of the epoch."""

    def has_all(session: Session, slave_id: int) -> bool:
        return session.counted.acknowledged[slave_id] >= session.counted.confirm

    patch.setattr(membership, "has_all", has_all)


# -- R5: epochs ------------------------------------------------------------------------------------


def no_followed_epoch(patch: Patch, group: Group) -> None:
    """R5, R9: the followed epoch is not kept, and the state known before a restart suffices."""

    def accept(role: Role, event: object, cut: object, now_ms: int, out: list[Action]) -> None:
        facts = role.facts
        original(role, event, cut, now_ms, out)  # type: ignore[arg-type]
        role.facts = facts

    def answered(role: Role, outcome: Outcome, out: list[Action]) -> None:
        before = role.facts.followed_epoch
        original_answered(role, outcome, out)
        role.facts = replace(role.facts, followed_epoch=before)

    def least_epoch(role: Role) -> int:
        return role.log.last_epoch

    original, original_answered = following.accept, election.answered
    patch.setattr(following, "accept", accept)
    patch.setattr(election, "answered", answered)
    patch.setattr(following, "least_epoch", least_epoch)


def equal_start_is_dropped(patch: Patch, group: Group) -> None:
    """R5: of two entries with one start the first one stays."""

    def appended(known: Epochs, number: int, start: int) -> Epochs:
        return known if known and known[-1].start == start else original(known, number, start)

    original = epochs.appended
    patch.setattr(epochs, "appended", appended)


# -- R6: elections ---------------------------------------------------------------------------------


def late_ok_counts(patch: Patch, group: Group) -> None:
    """R6: an OK that comes after the candidate has followed another master makes it master."""

    def answered(role: Role, event: events.Answered, now_ms: int, out: list[Action]) -> None:
        is_late = event.number < 0 and event.outcome.result is Result.OK
        if is_late and role.mode is Mode.SLAVE and role.pending is None:
            proposal = group.interned.proposal(-1 - event.number)
            if proposal.state.master == role.id:
                out.append(Lead(proposal.state.epoch, role.facts))
                role.mode = Mode.PROMOTING
                return
        original(role, event, now_ms, out)

    def led(role: Role, event: events.Led, now_ms: int, out: list[Action]) -> None:
        view = role.view
        assert view is not None
        assert view.state is not None
        if event.epoch < view.state.epoch:
            role.view = replace(view, state=replace(view.state, epoch=event.epoch))
        original_led(role, event, now_ms, out)

    original, original_led = machine.HANDLERS[events.Answered], election.led
    patch.setitem(machine.HANDLERS, events.Answered, answered)
    patch.setattr(election, "led", led)


def wish_is_kept(patch: Patch, group: Group) -> None:
    """R6: a forced election does not delete its wish."""

    def deletes() -> tuple[Key, ...]:
        return ()

    patch.setattr(operators, "wish_deletes", deletes)


def wish_holds_for_ever(patch: Patch, group: Group) -> None:
    """R6: a wish holds in other epochs than it names."""

    def is_in_force(wish: Wish, state: GroupState) -> bool:
        return True

    patch.setattr(operators, "is_in_force", is_in_force)


def wish_stays(patch: Patch, group: Group) -> None:
    """R6: both; one of the two guards is enough."""
    wish_is_kept(patch, group)
    wish_holds_for_ever(patch, group)


# -- R9: following ---------------------------------------------------------------------------------


def no_implied_entry(patch: Patch, group: Group) -> None:
    """R9: logs without a common entry have no consistent point."""

    def cut_for(own: LogFacts, theirs: Epochs, end: int) -> following.Cut | None:
        if own.epochs and not set(own.epochs) & set(theirs):
            return following.Cut(-1, ())
        return original(own, theirs, end)

    original = following.cut_for
    patch.setattr(following, "cut_for", cut_for)


def entries_stay(patch: Patch, group: Group) -> None:
    """R9: the entries of epochs are not cut with the log."""

    def cut_for(own: LogFacts, theirs: Epochs, end: int) -> following.Cut | None:
        cut = original(own, theirs, end)
        return None if cut is None else following.Cut(cut.to, own.epochs)

    original = following.cut_for
    patch.setattr(following, "cut_for", cut_for)


# -- R10: unclean stores ---------------------------------------------------------------------------


def stays_in_sync(patch: Patch, group: Group) -> None:
    """R10: an unclean replica does not leave the set."""

    def review(role: Role, out: list[Action]) -> None:
        if role.facts.unclean and role.view is not None and not role.is_stale:
            unclean.become_learner(role, out)

    patch.setattr(unclean, "review", review)


def keeps_confirm(patch: Patch, group: Group) -> None:
    """R10: an unclean replica keeps a confirm offset beyond the end of its log."""

    def become_learner(role: Role, out: list[Action]) -> None:
        save(role, replace(role.facts, unclean=""), out)

    patch.setattr(unclean, "become_learner", become_learner)


def start_as_named(patch: Patch, group: Group) -> None:
    """Not a rule of ours: a replica that the state names leads without an election of its own."""

    def review(role: Role, now_ms: int, out: list[Action]) -> None:
        state = role.state
        is_named = state is not None and state.master == role.id and not role.is_stale
        named = state.epoch if state and is_named and not role.facts.unclean else 0
        if named > max(role.log.last_epoch, role.facts.followed_epoch):
            role.mode = Mode.PROMOTING
            out.append(Lead(named, role.facts))
        else:
            original(role, now_ms, out)

    original = election.review
    patch.setattr(election, "review", review)


def master_stays_named(patch: Patch, group: Group) -> None:
    """R10: the master that leaves is still named, and starts as it is named."""

    def without(state: GroupState, replica_id: int, cause: str) -> GroupState:
        left = original(state, replica_id, cause)
        return replace(left, master=state.master, master_incarnation=state.master_incarnation)

    original = unclean.without
    patch.setattr(unclean, "without", without)
    start_as_named(patch, group)


# -- R11: tables -----------------------------------------------------------------------------------


def tables_are_not_confirmed(patch: Patch, group: Group) -> None:
    """R11: tables are handed out when they are taken."""

    def may_keep(end: int, confirm: int, own_end: int) -> bool:
        return end <= own_end

    patch.setattr(following, "may_keep_table", may_keep)


PAIR = (1, 2)


def _elected(each: int) -> tuple[str, ...]:
    """A replica that has lost its master is elected."""
    return (
        f"{each} sees that the lease of the master has ended",
        f"the authority carries out the proposal of {each}",
        f"{each} gets its answer",
    )


def _taken_in(master: int, slave: int) -> tuple[str, ...]:
    return (
        f"{master} finds {slave} near",
        f"the authority carries out the proposal of {master}",
        f"{master} gets its answer",
    )


def _taken_out(master: int, slave: int) -> tuple[str, ...]:
    return (
        f"{master} notices that {slave} is gone",
        f"the authority carries out the proposal of {master}",
        f"{master} gets its answer",
    )


def _left(each: int) -> tuple[str, ...]:
    """A replica starts with an empty disk and leaves the set."""
    return (
        f"{each} restarts with an empty disk",
        f"{each} reads the state",
        f"the authority carries out the proposal of {each}",
        f"{each} gets its answer",
    )


def resync_keeps_incarnation(patch: Patch, group: Group) -> None:
    """R4: a replica removes its log under the incarnation that a proposal may still name."""

    def begin(
        role: Role, state: GroupState, ticket: int, by: str, out: list[Action]
    ) -> Reason | None:
        problem = original(role, state, ticket, by, out)
        out[:] = [each for each in out if not isinstance(each, Rejoin)]
        if role.resync is not None:
            role.resync = dataclasses.replace(role.resync, joined_after=-1)
        return problem

    original = resync.begin
    patch.setattr(resync, "begin", begin)


MUTATIONS = [
    Mutation(name="R2 read settles", off=read_settles, finds="I1",
             bounds=Bounds(lost=1, in_sync=PAIR, reads=False),
             script=("1 finds 3 near", "1 gets no answer", "1 reads the state", "1 stores",
                     "2 copies a record of 1", "1 receives the report 1 of 2")),
    Mutation(name="R2 refusal settles", off=refusal_settles, finds="I1",
             bounds=Bounds(lost=1, in_sync=PAIR, reads=False),
             script=("1 finds 3 near", "1 gets no answer", "1 reads the state",
                     "the authority carries out the late proposal of 1", "1 gets its answer")),
    Mutation(name="R2 proposed is counted", off=proposed_not_counted, finds="I1",
             bounds=Bounds(lost=1, in_sync=PAIR)),
    Mutation(name="R2 shrinking counts after ok", off=shrink_counts_at_once, finds="I1",
             bounds=Bounds()),
    Mutation(name="R3 no eligible: reads", off=eligible_members, finds="I3",
             bounds=Bounds(in_sync=PAIR), script=("1 stores",)),
    Mutation(name="R3 no eligible: sends", off=eligible_members, finds="I1",
             bounds=Bounds(in_sync=PAIR, reads=False),
             script=(*_taken_out(1, 2), *_taken_in(1, 3), "1 stores")),
    Mutation(name="R4 incarnation: log removed before the proposal takes effect",
             off=resync_keeps_incarnation, finds="I1",
             bounds=Bounds(in_sync=PAIR, resyncs=1, reads=False),
             script=("1 stores", "2 copies a record of 1", "3 copies a record of 1",
                     "1 receives the report 1 of 3", "1 finds 3 near",
                     "3 notices that 1 is gone", "3 is to start again")),
    Mutation(name="R4 incarnation: disk lost before the proposal takes effect",
             off=any_incarnation, finds="I1",
             bounds=Bounds(in_sync=PAIR, wipes=1, reads=False),
             script=("1 stores", "2 copies a record of 1", "3 copies a record of 1",
                     "1 receives the report 1 of 3", "1 finds 3 near",
                     "3 restarts with an empty disk", "3 reads the state")),
    Mutation(name="R4 incarnation: taken in by an old acknowledgement", off=any_incarnation,
             finds="I1", bounds=Bounds(in_sync=PAIR, wipes=1, reads=False),
             script=("1 stores", "2 copies a record of 1", "1 receives the report 1 of 2",
                     *_left(2), "1 reads the state")),
    Mutation(name="R4 start of the epoch", off=any_start, finds="I1",
             bounds=Bounds(in_sync=PAIR, epochs=3, restarts=1, reads=False),
             script=("1 stores", "2 copies a record of 1", "1 receives the report 1 of 2",
                     "1 restarts", "1 reads the state",
                     "the authority carries out the proposal of 1", "1 gets its answer",
                     "3 notices that 1 is gone", "3 reads the state", "3 connects to 1")),
    Mutation(name="R5 R9 followed epoch", off=no_followed_epoch, finds="I2",
             bounds=Bounds(epochs=3, offline_restarts=1, reads=False),
             script=("1 stores", "2 copies a record of 1", "3 notices that 1 is gone",
                     *_elected(3), "2 reads the state", "2 connects to 3",
                     "2 notices that 3 is gone", *_elected(2), "3 reads the state",
                     "3 connects to 2", "3 restarts without authority")),
    Mutation(name="R5 equal start replaces", off=equal_start_is_dropped, finds="I4",
             bounds=Bounds(epochs=3)),
    Mutation(name="R9 implied entry", off=no_implied_entry, finds="I6", bounds=Bounds()),
    Mutation(name="R10 confirm seen", off=keeps_confirm, finds="I6",
             bounds=Bounds(wipes=1, keeps_facts=True),
             script=("1 stores", "2 copies a record of 1", "3 copies a record of 1",
                     "1 receives the report 1 of 2", "1 receives the report 1 of 3",
                     "3 hears 1")),
    Mutation(name="R10 leaves", off=stays_in_sync, finds="I1",
             bounds=Bounds(wipes=1, reads=False)),
    Mutation(name="R10 master none", off=master_stays_named, finds="I2",
             bounds=Bounds(wipes=1)),
    Mutation(name="R6 late ok ignored", off=late_ok_counts, finds="I2",
             bounds=Bounds(epochs=3, late_answers=True, shrinks=False)),
    Mutation(name="R6 wish deleted", off=wish_stays, finds="I1",
             bounds=Bounds(epochs=4, forces=1, reads=False),
             script=("the operator forces 2", "2 reads the state",
                     "the authority carries out the proposal of 2", "2 gets its answer",
                     "3 reads the state", "3 connects to 2", *_taken_in(2, 3),
                     "1 reads the state", "1 connects to 2", *_taken_in(2, 1),
                     "3 reads the state", "3 notices that 2 is gone", *_elected(3),
                     "1 reads the state", "1 connects to 3", "3 stores",
                     "1 copies a record of 3", "3 receives the report 1 of 1")),
    Mutation(name="R11 confirm", off=tables_are_not_confirmed, finds="I7",
             bounds=Bounds(epochs=3, tables=True),
             script=("1 stores", "2 copies a record of 1", "2 takes a table of 1",
                     "3 notices that 1 is gone", *_elected(3))),
    Mutation(name="R1 start of confirm", off=confirms_own_end, finds="I3",
             bounds=Bounds(epochs=3)),
    Mutation(name="R1 connection", off=keeps_acknowledgements, finds="I1",
             bounds=Bounds(in_sync=PAIR, wipes=1, reads=False),
             script=("1 stores", "2 copies a record of 1", "1 receives the report 1 of 2",
                     *_left(2), "1 reads the state", "2 connects to 1")),
    Mutation(name="R9 epoch file cut", off=entries_stay, finds="I4",
             bounds=Bounds(epochs=3, records=2),
             script=("1 stores", "1 stores", "2 copies a record of 1", "3 copies a record of 1",
                     "3 copies a record of 1", "2 notices that 1 is gone", *_elected(2))),
]  # fmt: skip
