"""A world that is being changed by one event: the real machine steps, its actions have effects."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Final

from msgspec.structs import replace

from tests.support.role_model import invariants
from tests.support.role_model.bounds import Bounds
from tests.support.role_model.interned import BETWEEN, CURRENT, NOW, Interned, view_of
from tests.support.role_model.world import APPLIED, IDS, SENT, Sent, Store, World
from tianzhou.errors import ReplicationError
from tianzhou.ha import elected_hello, epochs
from tianzhou.ha.authority.values import Outcome, Result
from tianzhou.ha.elected_hello import Verdict, judge
from tianzhou.ha.epochs import Epoch, Epochs
from tianzhou.ha.hello import Broker, LogState
from tianzhou.ha.replica_facts import FlushMode, ReplicaFacts, Start
from tianzhou.ha.roles import events, following, machine
from tianzhou.ha.roles.actions import (
    Action,
    Agree,
    Lead,
    OpenStream,
    Propose,
    Rejoin,
    StartEmpty,
    Stop,
    StopWriters,
    Truncate,
)
from tianzhou.ha.roles.facts import LogFacts
from tianzhou.ha.roles.role import NEVER, Role
from tianzhou.protocol.headers.ha import HelloRequest

START: Final = Start(was_clean=True, boot_id="b", store_id="s", flush=FlushMode.ASYNC)


class Shared:
    """What all worlds of one search share."""

    def __init__(self, bounds: Bounds) -> None:
        """Nothing is known yet."""
        self.bounds = bounds
        self.interned = Interned(has_offline_restarts=bounds.offline_restarts > 0)
        self._verdicts: dict[Hashable, Verdict] = {}
        self._problems: dict[tuple[tuple[Store, ...], tuple[int, ...]], str] = {}

    def problem_of_logs(self, stores: tuple[Store, ...], epoch_of: tuple[int, ...]) -> str:
        """See `invariants.of_logs`."""
        found = self._problems.get((stores, epoch_of))
        if found is None:
            found = self._problems[stores, epoch_of] = invariants.of_logs(stores, epoch_of)
        return found

    def verdict(
        self, slave: int, role: Role, own: LogFacts, master: int, leader: Role, theirs: LogFacts
    ) -> Verdict:
        """What a master says to the hello of a slave."""
        session = leader.session
        assert session is not None
        known = leader.view.incarnation_of(slave) if leader.view else 0
        member = (role.facts.group, role.incarnation, role.facts.followed_epoch)
        key = (slave, member, own, master, session.epoch, theirs, known)
        found = self._verdicts.get(key)
        if found is None:
            found = self._verdicts[key] = judge(
                HelloRequest(
                    cluster="c", broker_name="b", broker_id=slave, store_id="s",
                    end_offset=own.end, epochs=epochs.text(own.epochs) if own.end else "",
                    log_file_bytes=1, group=member[0], incarnation=member[1],
                    followed_epoch=member[2],
                ),
                Broker(cluster="c", name="b", id=master, store_id="s"),
                elected_hello.Session(leader.facts.group, session.epoch),
                LogState(
                    first_offset=0, end_offset=theirs.end, file_bytes=1, epochs=theirs.epochs
                ),
                known,
                lambda log_offset, size_bytes: None,
            )  # fmt: skip
        return found


class Change:
    """A world that is being changed by one event."""

    def __init__(self, shared: "Shared", world: World) -> None:
        """Begins as a world is."""
        self.shared = shared
        self.bounds = shared.bounds
        self.interned = shared.interned
        self.state = world.state
        self.incarnations = world.incarnations
        self.wish = world.wish
        self.roles = list(world.roles)
        self.stores = list(world.stores)
        self.sent = list(world.sent)
        self.reports = [list(each) for each in world.reports]
        self.agreed = list(world.agreed)
        self.leading = list(world.leading)
        self.ghosts = world.ghosts
        self.budget = world.budget
        self.violation = world.violation
        self.opens_streams = True

    def frozen(self) -> World:
        """The world after the event."""
        reads = self.bounds.reads
        for each in IDS:
            role, log = self.role(each), self.stores[each - 1].log
            self._judged(invariants.of_replica(self.ghosts, role, log, reads=reads))
        stores = tuple(self.stores)
        self.fail(self.shared.problem_of_logs(stores, self.ghosts.epoch_of))
        return World(
            self.state, self.incarnations, self.wish, tuple(self.roles), stores,
            tuple(sorted(self.sent)), tuple(tuple(each) for each in self.reports),
            tuple(self.agreed), tuple(self.leading), self.ghosts, self.budget, self.violation,
        )  # fmt: skip

    def _judged(self, judged: invariants.Judged) -> None:
        self.ghosts, violation = judged
        self.fail(violation)

    def role(self, each: int) -> Role:
        """Not to be changed."""
        return self.interned.role(self.roles[each - 1])

    def fail(self, violation: str) -> None:
        """The first violation counts."""
        self.violation = self.violation or violation

    # -- steps of the machine ----------------------------------------------------------------------

    def step(
        self,
        each: int,
        key: Hashable,
        event: Callable[[], events.Event],
        prepare: Callable[[Role], object] | None = None,
    ) -> None:
        """One step of a replica, with everything that it does at once."""
        had_session = self.role(each).session is not None
        facts = self.stores[each - 1].facts
        number, actions = self.interned.step(self.roles[each - 1], facts, key, event, prepare)
        self.roles[each - 1] = number
        for action in actions:
            self._execute(each, action)
        if had_session and self.role(each).session is None:
            self.reports[each - 1] = [-1, -1, -1]
        if self.role(each).pending is None:
            self.sent = [
                other._replace(is_awaited=False) if other.by == each else other
                for other in self.sent
            ]
        self._drop_dead()

    def _drop_dead(self) -> None:
        late_answers = self.bounds.late_answers
        self.sent = [
            each
            for each in self.sent
            if each.is_awaited or (each.is_current and each.status == SENT)
            or (late_answers and each.status == APPLIED)
        ]  # fmt: skip

    def _execute(self, each: int, action: Action) -> None:
        match action:
            case Propose(_, proposal):
                number = self.interned.number_of_proposal(replace(proposal, revision=CURRENT))
                pending = self.role(each).pending
                forced = pending is not None and pending.is_forced
                self.sent = [
                    other._replace(is_awaited=False) if other.by == each else other
                    for other in self.sent
                ]
                is_current = proposal.revision == CURRENT
                self.sent.append(Sent(each, number, is_current, SENT, True, forced))
            case Truncate(to, kept):
                self._truncate(each, to, kept)
            case Lead(epoch, _):
                self.leading[each - 1] = epoch
                if not self.bounds.slow_leads:
                    self.begin_epoch(each)
            case Rejoin():
                self.join(each)
            case StartEmpty(_):
                self._start_empty(each)
            case OpenStream(_):
                if self.opens_streams:
                    self._open_stream(each)
            case Agree(to, epoch):
                self.agreed[to - 1] = epoch
            case StopWriters():
                facts = self.stores[each - 1].facts
                self.step(each, "stopped", lambda: events.WritersStopped(facts))
            case Stop(_):
                if not self.ghosts.forced:
                    self.fail("I6: a replica stops without a forced election")
            case _:
                pass

    def tick(
        self, each: int, key: Hashable = "tick", prepare: Callable[[Role], object] | None = None
    ) -> None:
        """Time passes."""
        facts = self.stores[each - 1].facts
        self.step(each, key, lambda: events.Tick(facts), prepare)

    # -- masters -----------------------------------------------------------------------------------

    def write(self, master: int, epoch: int) -> None:
        """The master stores one more record."""
        number = len(self.ghosts.epoch_of)
        self.ghosts = self.ghosts._replace(epoch_of=(*self.ghosts.epoch_of, epoch))
        self._append(master, number)
        self.tick(master)

    def _append(self, each: int, record: int) -> None:
        store = self.stores[each - 1]
        log = (*store.log, record)
        flushed = store.flushed if self.bounds.unsynced else len(log)
        self.stores[each - 1] = store._replace(log=log, flushed=flushed)

    def receive_report(self, master: int, slave: int, end: int) -> None:
        """The master learns how far a slave has acknowledged."""

        def prepare(role: Role) -> None:
            assert role.session is not None
            role.session.counted.acknowledge(slave, end)

        self.tick(master, ("report", slave, end), prepare)

    def miss(self, master: int) -> None:
        """Members did not connect in time."""

        def prepare(role: Role) -> None:
            assert role.session is not None
            role.session.began_ms = NEVER

        self.tick(master, "miss", prepare)

    def find_near(self, master: int, slave: int) -> None:
        """A slave was near for long enough."""

        def prepare(role: Role) -> None:
            assert role.session is not None
            role.session.slaves[slave].near_ms = NEVER

        self.tick(master, ("near", slave), prepare)

    def resume(self, master: int) -> None:
        """The planned switch took too long."""

        def prepare(role: Role) -> None:
            session = role.session
            assert session is not None
            assert session.handover is not None
            session.handover = dataclasses.replace(session.handover, due_ms=NEVER)

        self.tick(master, "resume", prepare)

    def begin_epoch(self, each: int) -> None:
        """Lead is finished: the entry of the epoch is on disk."""
        epoch, store = self.leading[each - 1], self.stores[each - 1]
        self.leading[each - 1] = 0
        entries = _with(store.epochs, Epoch(epoch, len(store.log)))
        self.stores[each - 1] = store._replace(epochs=entries)
        facts = self.stores[each - 1].facts
        self.reports[each - 1] = [-1, -1, -1]
        self.step(each, ("led", epoch), lambda: events.Led(epoch, facts))
        if self.role(each).session is not None:
            self._judged(invariants.begun(self.ghosts, self.stores[each - 1], epoch))

    # -- slaves ------------------------------------------------------------------------------------

    def connect(self, slave: int, master: int, *, ends: bool = False) -> None:
        """A hello, its answer, the truncation, and the first report, or the end of the process."""
        role, leader = self.role(slave), self.role(master)
        session = leader.session
        assert session is not None
        verdict = self.shared.verdict(
            slave, role, self.stores[slave - 1].facts, master, leader, self.stores[master - 1].facts
        )
        newer = verdict.newer_epoch
        if newer:
            self.step(master, ("epoch", newer), lambda: events.EpochSeen(newer, "hello"))
        if verdict.refusal is not None:
            return
        theirs, own = self.stores[master - 1].facts, self.stores[slave - 1].facts
        offer = events.MasterOffered(master, session.epoch, theirs.epochs, theirs.end, own)
        self.opens_streams = not ends
        self.step(slave, ("offer", offer), lambda: offer)
        self.opens_streams = True
        if ends:
            self.start(slave, self.role(slave).facts)

    def _open_stream(self, slave: int) -> None:
        role = self.role(slave)
        master, incarnation = role.followed, role.incarnation
        self.step(
            master,
            ("connected", slave, incarnation),
            lambda: events.SlaveConnected(slave, incarnation),
        )
        self.agreed[slave - 1] = 0
        self._report(slave, master)

    def _report(self, slave: int, master: int) -> None:
        store = self.stores[slave - 1]
        is_sync = self.bounds.settings.is_sync_flush
        self.reports[master - 1][slave - 1] = store.flushed if is_sync else len(store.log)

    def _truncate(self, slave: int, to: int, kept: Epochs) -> None:
        store, bounds = self.stores[slave - 1], self.bounds
        if not (bounds.wipes or bounds.power_cuts or self.ghosts.forced):
            self.fail(invariants.of_truncation(self.ghosts, self.stores, slave, to))
        self.stores[slave - 1] = store._replace(
            log=store.log[:to], flushed=min(store.flushed, to), epochs=kept
        )

    def _start_empty(self, slave: int) -> None:
        if not (self.bounds.wipes or self.bounds.power_cuts or self.ghosts.forced):
            self.fail(invariants.of_truncation(self.ghosts, self.stores, slave, 0))
        self.stores[slave - 1] = Store()
        self.step(slave, "emptied", lambda: events.Emptied(LogFacts()))

    def copy_record(self, slave: int, master: int) -> None:
        """The next record, and the epoch that its header names."""
        theirs = self.stores[master - 1]
        position = len(self.stores[slave - 1].log)
        self._take_entry(slave, invariants.entry_at(theirs.epochs, position))
        self._append(slave, theirs.log[position])
        self._report(slave, master)
        self.hear(slave, master)

    def hear(self, slave: int, master: int) -> None:
        """A heartbeat: the epoch that begins at the end of the own log, and the confirm offset."""
        theirs, own = self.stores[master - 1], self.stores[slave - 1]
        if theirs.epochs and len(own.log) >= theirs.epochs[-1].start:
            self._take_entry(slave, theirs.epochs[-1])
        session = self.role(master).session
        assert session is not None
        confirm, end = session.counted.confirm, self.stores[slave - 1].facts

        def prepare(role: Role) -> None:
            if self.bounds.keeps_facts:
                role.saved_ms = -following.CONFIRM_SAVED_MS

        self.step(
            slave,
            ("heard", confirm),
            lambda: events.MasterHeard(confirm, end.end, end.flushed),
            prepare,
        )

    def _take_entry(self, slave: int, entry: Epoch) -> None:
        store = self.stores[slave - 1]
        last = store.epochs[-1].number if store.epochs else 0
        if entry.number > last:
            self.stores[slave - 1] = store._replace(epochs=_with(store.epochs, entry))

    def take_table(self, slave: int, master: int) -> None:
        """A table that the master took at the end of its log; both may keep it when it is final."""
        log = self.stores[master - 1].log
        for each in (master, slave):
            role, store = self.role(each), self.stores[each - 1]
            confirm = role.session.counted.confirm if role.session else role.confirm
            for end in range(1, len(log) + 1):
                if following.may_keep_table(end, confirm, len(store.log)):
                    self.stores[each - 1] = store._replace(table=(end, store.log[end - 1]))

    # -- the authority -----------------------------------------------------------------------------

    def look(self, each: int, *, alive: bool) -> None:
        """A replica reads the state, or a watch shows it."""
        state, incarnations, wish = self.state, self.incarnations, self.wish

        def event() -> events.Viewed:
            return events.Viewed(
                view_of(self.interned.state(state), incarnations, wish, alive=alive)
            )

        self.step(each, ("view", state, incarnations, wish, alive), event)

    def carry_out(self, index: int) -> None:
        """A proposal takes effect."""
        sent = self.sent[index]
        proposal = self.interned.proposal(sent.proposal)
        self.state = self.interned.number_of_state(proposal.state)
        if ("wish", None) in proposal.deletes:
            self.wish = None
        self.roles = [self.interned.outdated(each) for each in self.roles]
        self.sent = [each._replace(is_current=False) for each in self.sent]
        self.sent[index] = sent._replace(status=APPLIED, is_current=True)
        if sent.is_forced and not self.ghosts.forced:
            log = self.stores[sent.by - 1].log
            self.ghosts = invariants.forced(self.ghosts, log, proposal.state.epoch)
        self._drop_dead()

    def answer(self, index: int) -> None:
        """The answer to a proposal arrives."""
        sent = self.sent.pop(index)
        revision = CURRENT if sent.is_current or sent.status == SENT else BETWEEN
        result = Result.OK if sent.status == APPLIED else Result.CHANGED
        pending = self.role(sent.by).pending
        is_present = sent.is_awaited and pending is not None
        number = 1 if is_present else -1 - sent.proposal
        self._answered(sent.by, number, Outcome(result, revision))

    def time_out(self, index: int) -> None:
        """The sender of a proposal gives up waiting."""
        sent = self.sent[index]
        self.sent[index] = sent._replace(is_awaited=False)
        self._drop_dead()
        self._answered(sent.by, 1, Outcome(Result.UNKNOWN))

    def _answered(self, each: int, number: int, outcome: Outcome) -> None:
        self.step(each, ("answer", number, outcome), lambda: events.Answered(number, outcome))

    # -- faults ------------------------------------------------------------------------------------

    def start(self, each: int, facts: ReplicaFacts, *, joins: bool = True) -> None:
        """A new process of a replica."""
        self.sent = [
            other._replace(is_awaited=False) if other.by == each else other for other in self.sent
        ]
        self._drop_dead()
        self.reports[each - 1] = [-1, -1, -1]
        self.agreed[each - 1] = self.leading[each - 1] = 0
        role = machine.new_role(self.bounds.settings)
        role.lease_ms = NOW
        started = events.Started(facts, START, self.stores[each - 1].facts, "g")
        machine.step(role, started, NOW)
        self.roles[each - 1] = self.interned.number_of_role(role)
        if joins:
            self.join(each)

    def join(self, each: int) -> None:
        """The process gets an incarnation."""
        numbers = list(self.incarnations)
        numbers[each - 1] += 1
        self.incarnations = tuple(numbers)
        number = numbers[each - 1]
        self.step(each, ("join", each, number), lambda: events.Joined(each, number))

    def flush(self, each: int) -> None:
        """All records reach the disk."""
        store = self.stores[each - 1]
        self.stores[each - 1] = store._replace(flushed=len(store.log))
        role = self.role(each)
        if role.session is not None:
            self.tick(each)
        elif role.followed_session and self.reports[role.followed - 1][each - 1] >= 0:
            self._report(each, role.followed)

    def cut_power(self, each: int, end: int, facts: ReplicaFacts) -> None:
        """What was not flushed is lost; with asynchronous flushes the replica is unclean then."""
        store = self.stores[each - 1]
        self.stores[each - 1] = store._replace(
            log=store.log[:end],
            epochs=tuple(entry for entry in store.epochs if entry.start <= end),
        )
        if not self.bounds.settings.is_sync_flush:
            facts = replace(facts, unclean="power was lost")
        self.start(each, facts)


def _with(known: Epochs, entry: Epoch) -> Epochs:
    """With a new entry, also if it cannot follow the last one: that fault must show."""
    try:
        return epochs.appended(known, entry.number, entry.start)
    except ReplicationError:
        return (*known, entry)
