"""Everything that can happen next to a group of three replicas, within bounds."""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from tests.support.role_model.change import Change, Shared
from tests.support.role_model.interned import CURRENT, NOW, view_of
from tests.support.role_model.world import APPLIED, IDS, SENT, Budget, Ghosts, Sent, Store, World
from tianzhou.ha.authority.values import GroupState, Known, Replica, Wish
from tianzhou.ha.epochs import Epoch
from tianzhou.ha.replica_facts import ReplicaFacts
from tianzhou.ha.roles import election, events, membership
from tianzhou.ha.roles.role import Mode, Role, Session

Step = tuple[str, World]


class Group(Shared):
    """The possible steps of worlds with the same bounds."""

    def steps(self, world: World) -> Iterator[Step]:
        """Every event that may come next, with the world after it."""
        if world.violation:
            return
        for label, made in self._events(world):
            after = made.frozen()
            if after != world:
                yield label, after

    def _events(self, world: World) -> Iterator[tuple[str, Change]]:
        for each in IDS:
            role = self.interned.role(world.roles[each - 1])
            if role.session is not None:
                yield from self._of_master(world, each, role)
            else:
                yield from self._of_slave(world, each, role)
            if world.leading[each - 1]:
                made = Change(self, world)
                made.begin_epoch(each)
                yield f"{each} begins its epoch", made
            yield from self._views(world, each, role)
            yield from self._faults(world, each, role)
        yield from self._authority(world)
        yield from self._operators(world)

    # -- masters -----------------------------------------------------------------------------------

    def _of_master(self, world: World, master: int, role: Role) -> Iterator[tuple[str, Change]]:
        session = role.session
        assert session is not None
        count = len(world.ghosts.epoch_of) - 1
        is_open = role.serve is not None and role.serve.refusal is None
        if is_open and count < self.bounds.records:
            made = Change(self, world)
            made.write(master, session.epoch)
            yield f"{master} stores", made
        for slave in IDS:
            if slave not in session.slaves:
                continue
            report = world.reports[master - 1][slave - 1]
            for end in range(session.counted.acknowledged[slave] + 1, report + 1):
                made = Change(self, world)
                made.receive_report(master, slave, end)
                yield f"{master} receives the report {end} of {slave}", made
            yield from self._membership(world, master, slave, role)
        if self.bounds.shrinks and any(
            each not in session.slaves for each in session.counted.counted
        ):
            made = Change(self, world)
            made.miss(master)
            yield f"{master} misses members", made
        if session.handover is not None:
            made = Change(self, world)
            made.resume(master)
            yield f"{master} resumes", made

    def _membership(
        self, world: World, master: int, slave: int, role: Role
    ) -> Iterator[tuple[str, Change]]:
        session = role.session
        assert session is not None
        if self.bounds.shrinks or slave not in session.counted.in_force:
            made = Change(self, world)
            made.step(master, ("gone", slave), lambda: events.SlaveDisconnected(slave))
            yield f"{master} notices that {slave} is gone", made
        if (
            slave not in session.counted.in_force
            and role.pending is None
            and membership.has_all(session, slave)
        ):
            made = Change(self, world)
            made.find_near(master, slave)
            yield f"{master} finds {slave} near", made

    # -- slaves ------------------------------------------------------------------------------------

    def _of_slave(self, world: World, slave: int, role: Role) -> Iterator[tuple[str, Change]]:
        master = role.followed
        if role.mode is not Mode.SLAVE or not master:
            return
        leader = self.interned.role(world.roles[master - 1])
        session = leader.session
        if not role.followed_session:
            if session is not None:
                made = Change(self, world)
                made.connect(slave, master)
                yield f"{slave} connects to {master}", made
                yield from self._ends_amid(world, slave, master)
            return
        made = Change(self, world)
        made.step(slave, "lost", events.MasterDisconnected)
        yield f"{slave} notices that {master} is gone", made
        if session is None or session.epoch != role.followed_session:
            return
        if slave not in session.slaves or world.reports[master - 1][slave - 1] < 0:
            return
        yield from self._stream(world, slave, master, session.counted.confirm)

    def _ends_amid(self, world: World, slave: int, master: int) -> Iterator[tuple[str, Change]]:
        """After the facts were saved and the log was cut, before the first report."""
        if world.budget.restarts and self.bounds.slow_leads:
            made = Change(self, world)
            made.budget = made.budget._replace(restarts=made.budget.restarts - 1)
            made.connect(slave, master, ends=True)
            yield f"{slave} restarts while it connects to {master}", made

    def _stream(
        self, world: World, slave: int, master: int, confirm: int
    ) -> Iterator[tuple[str, Change]]:
        theirs, own = world.stores[master - 1], world.stores[slave - 1]
        if len(own.log) < len(theirs.log):
            made = Change(self, world)
            made.copy_record(slave, master)
            yield f"{slave} copies a record of {master}", made
        made = Change(self, world)
        made.hear(slave, master)
        yield f"{slave} hears {master}", made
        if self.bounds.tables and theirs.log:
            made = Change(self, world)
            made.take_table(slave, master)
            yield f"{slave} takes a table of {master}", made
        if world.agreed[slave - 1]:
            epoch = world.agreed[slave - 1]
            made = Change(self, world)
            made.agreed[slave - 1] = 0
            made.step(slave, ("offered", epoch), lambda: events.HandoverOffered(epoch))
            yield f"{slave} may take over", made

    # -- the authority -----------------------------------------------------------------------------

    def _views(self, world: World, each: int, role: Role) -> Iterator[tuple[str, Change]]:
        if not role.incarnation:
            if role.mode is not Mode.STARTING:
                made = Change(self, world)
                made.join(each)
                yield f"{each} joins", made
            return
        view = role.view
        shown = None if view is None else (view.revision, view.wish, _revisions(view.replicas))
        if role.is_stale or shown != (CURRENT, world.wish, world.incarnations):
            made = Change(self, world)
            made.look(each, alive=True)
            yield f"{each} reads the state", made
        state = self.interned.state(world.state)
        may_stand = role.mode is Mode.SLAVE and each in (*state.in_sync, *state.lost)
        if may_stand and not role.followed_session and state.epoch < self.bounds.epochs:
            made = Change(self, world)
            made.look(each, alive=False)
            yield f"{each} sees that the lease of the master has ended", made

    def _authority(self, world: World) -> Iterator[tuple[str, Change]]:
        for index, sent in enumerate(world.sent):
            is_possible = self.is_possible(world, sent)
            if sent.status == SENT and is_possible:
                made = Change(self, world)
                made.carry_out(index)
                late = "" if sent.is_awaited else "late "
                yield f"the authority carries out the {late}proposal of {sent.by}", made
            if sent.status == APPLIED or (sent.is_awaited and not is_possible):
                made = Change(self, world)
                made.answer(index)
                yield f"{sent.by} gets its answer", made
            if sent.is_awaited and world.budget.lost:
                is_late = is_possible and sent.status != APPLIED
                if not is_late or all(other.is_awaited for other in world.sent):
                    made = Change(self, world)
                    made.budget = made.budget._replace(lost=made.budget.lost - 1)
                    made.time_out(index)
                    yield f"{sent.by} gets no answer", made

    def is_possible(self, world: World, sent: Sent) -> bool:
        """Whether the authority would carry out a proposal now; leases have always ended."""
        if sent.status != SENT or not sent.is_current:
            return False
        for (kind, which), revision in self.interned.proposal(sent.proposal).unchanged:
            if kind == "replicas" and world.incarnations[(which or 0) - 1] != revision:
                return False
            if kind == "wish" and (world.wish is None or world.wish.revision != revision):
                return False
        return True

    def _operators(self, world: World) -> Iterator[tuple[str, Change]]:
        epoch = self.interned.state(world.state).epoch
        if world.wish is not None or epoch >= self.bounds.epochs:
            return
        for each in IDS:
            if world.budget.forces:
                made = Change(self, world)
                made.budget = made.budget._replace(forces=made.budget.forces - 1)
                wish = Wish(epoch=epoch, force=each, accept_loss=True)
                made.wish = Known(wish, world.budget.forces)
                yield f"the operator forces {each}", made
            if world.budget.switches:
                made = Change(self, world)
                made.budget = made.budget._replace(switches=made.budget.switches - 1)
                made.wish = Known(Wish(epoch=epoch, switch_to=each), 10 - world.budget.switches)
                yield f"the operator switches to {each}", made

    # -- faults ------------------------------------------------------------------------------------

    def _faults(self, world: World, each: int, role: Role) -> Iterator[tuple[str, Change]]:
        budget, store = world.budget, world.stores[each - 1]
        if self.bounds.unsynced and store.flushed < len(store.log):
            made = Change(self, world)
            made.flush(each)
            yield f"{each} flushes", made
        if budget.restarts:
            made = Change(self, world)
            made.budget = budget._replace(restarts=budget.restarts - 1)
            made.start(each, role.facts)
            yield f"{each} restarts", made
        if budget.offline_restarts:
            made = Change(self, world)
            made.budget = budget._replace(offline_restarts=budget.offline_restarts - 1)
            made.start(each, role.facts, joins=False)
            yield f"{each} restarts without authority", made
        if budget.resyncs and role.session is None and not role.followed_session:
            made = Change(self, world)
            made.budget = budget._replace(resyncs=budget.resyncs - 1)
            made.step(each, "resync", lambda: events.Asked(1, events.Resync(), ""))
            if made.role(each).resync is not None or made.stores[each - 1] != store:
                yield f"{each} is to start again", made
        if budget.wipes and store.log:
            made = Change(self, world)
            made.budget = budget._replace(wipes=budget.wipes - 1)
            made.stores[each - 1] = Store()
            replaced = replace(role.facts, unclean="another store")
            made.start(each, replaced if self.bounds.keeps_facts else ReplicaFacts())
            yield f"{each} restarts with an empty disk", made
        if budget.power_cuts:
            for end in range(store.flushed, len(store.log)):
                made = Change(self, world)
                made.budget = budget._replace(power_cuts=budget.power_cuts - 1)
                made.cut_power(each, end, role.facts)
                yield f"{each} loses power and all from {end}", made


def _revisions(replicas: Mapping[int, Known[Replica]]) -> tuple[int, ...]:
    return tuple(known.revision for _, known in sorted(replicas.items()))


# -- the beginning ---------------------------------------------------------------------------------


def beginning(group: Group) -> World:
    """Replica 1 is master of epoch 1, the others follow it; the log is empty."""
    bounds, interned = group.bounds, group.interned
    state = GroupState(
        group="g", epoch=1, master=1, master_incarnation=1, in_sync=bounds.in_sync,
        min_in_sync=bounds.settings.min_in_sync,
    )  # fmt: skip
    number = interned.number_of_state(state)
    entries = (Epoch(1, 0),)
    budget = Budget(
        bounds.restarts, bounds.offline_restarts, bounds.power_cuts, bounds.wipes, bounds.forces,
        bounds.switches, bounds.lost, bounds.resyncs,
    )  # fmt: skip
    world = World(
        number, (0, 0, 0), None, (0, 0, 0), (Store(epochs=entries),) * 3, (),
        ((-1, -1, -1),) * 3, (0, 0, 0), (0, 0, 0), Ghosts(newest=1), budget,
    )  # fmt: skip
    made = Change(group, world)
    for each in IDS:
        facts = ReplicaFacts(
            group="g", id=each, store_id="s", boot_id="b", followed_epoch=1, highest_epoch=1,
            cluster_id="c", master=1, master_addr="h1",
        )  # fmt: skip
        made.start(each, facts)
    _make_master(made, number)
    for each in IDS:
        if each != 1:
            made.look(each, alive=True)
            made.connect(each, 1)
    return made.frozen()


def _make_master(made: Change, state: int) -> None:
    """As if replica 1 had been elected."""
    role = made.role(1).copy()
    view = view_of(made.interned.state(state), made.incarnations, None, alive=True)
    role.view, role.mode, role.is_stale = view, Mode.MASTER, False
    role.followed, role.followed_addr = 0, ""
    role.session = Session(1, 0, NOW, election.counted_set(role))
    made.roles[0] = made.interned.number_of_role(role)
    made.tick(1)
