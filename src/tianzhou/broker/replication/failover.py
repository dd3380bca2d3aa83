"""Automatic failover of one broker: runs the role state machine of `ha/roles` on real things.

    authority (link), master (follower), slaves, disk, operators, time
        -> events, one at a time: `put`
        -> machine.step(role, event, now_ms)
        -> actions, executed in order by one task, each finished before the next one begins

Nothing is decided here: what happens next is an action of the machine, and what happened is an
event. Acknowledgements and the confirm offset bypass the machine, as they change with every batch
of messages (`elected_slaves`, `storing/serving.py`).
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from tianzhou.broker.replication.authority_link import AuthorityLink
from tianzhou.broker.replication.elected_slaves import ElectedSlaves
from tianzhou.broker.replication.execution import Execution
from tianzhou.broker.replication.group_info import Figures, group_info
from tianzhou.broker.replication.host import Host
from tianzhou.broker.storing.serving import Refusal, Serving
from tianzhou.clock import Clock, boot_ms, wall_ms
from tianzhou.errors import StoreError, StoreFull
from tianzhou.ha import elected_hello
from tianzhou.ha.authority.etcd_endpoints import EtcdAccess
from tianzhou.ha.authority.etcd_member import MemberHealth
from tianzhou.ha.authority.values import Alive, Authority, Replica
from tianzhou.ha.elected_follower import ElectedFollower, Target
from tianzhou.ha.epochs import EpochFile, within_log
from tianzhou.ha.hello import Broker, LogState, Membership, Offer
from tianzhou.ha.replica_facts import FactsFile, Start, of_start
from tianzhou.ha.roles import actions as do
from tianzhou.ha.roles import events, health, machine, service, trust
from tianzhou.ha.roles.counted_set import CountedSet
from tianzhou.ha.roles.events import Command, Event
from tianzhou.ha.roles.facts import LogFacts, Settings
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Role, Session
from tianzhou.protocol.bodies.ha_group import GroupInfo
from tianzhou.protocol.codes import ResponseCode
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
_READY_S: Final = 5.0
"""A stop waits for a planned switch; the machine gives up earlier."""
_FULL_DISK_MS: Final = 30_000
"""Between attempts of a master with a full disk to hand over: with all disks full, masters would
replace each other all the time."""
_BROKEN = Refusal(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "this broker has an internal error, which its log describes: restart it; use another broker",
)
_NOT_OPEN = Refusal(
    ResponseCode.SERVICE_NOT_AVAILABLE, "the broker waits for its role: the group elects a master"
)
_NOT_REGISTERED = Refusal(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "this broker serves no clients now: it has no connection to its group; use another broker",
)


class Failover:
    """Started when the store is open and the broker listens, stopped before its features."""

    def __init__(
        self,
        *,
        settings: Settings,
        broker: Broker,
        store: MessageStore,
        serving: Serving,
        epoch_file: EpochFile,
        facts_file: FactsFile,
        authority: Authority,
        replica: Replica,
        host: Host,
        fence_command: str = "",
        role_command: str = "",
        clock: Clock = boot_ms,
        wall: Clock = wall_ms,
    ) -> None:
        """`broker` and `replica` describe this broker; the id in `broker` is not used."""
        self._broker = broker
        self._store = store
        self.serving = serving
        self.epochs = epoch_file
        self._facts_file = facts_file
        self._host = host
        self._clock = clock
        self.role = Role(settings=settings)
        self.role.clock_offset_ms = wall() - clock()
        self.link = AuthorityLink(
            authority, self.put, replica=lambda: replica, alive=self._alive,
            may_renew=self.is_healthy, lease_ms=settings.lease_ms, clock=clock,
        )  # fmt: skip
        self.slaves = ElectedSlaves(self._counted, self.put, serving.confirm)
        self.execution = Execution(
            self, host=host, store=store, serving=serving, epoch_file=epoch_file,
            facts_file=facts_file, authority=authority, link=self.link, address=replica.addr,
            fence_command=fence_command, role_command=role_command,
        )  # fmt: skip
        self._events = deque[Event]()
        self._is_stepping = False
        self._is_broken = False
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_ms = 0
        self._session: Session | None = None
        self._in_force: frozenset[int] = frozenset()
        self._disk_failure: StoreError | None = None
        self._takeover: asyncio.Task[None] | None = None
        """Copies the tables of a master that hands over to this replica."""
        self._hand_over_ms = 0
        """When a master with a full disk tries the next time to hand over."""
        self._ticket = 0
        self._epoch = 0
        self.switch_count = 0
        """Changes of the master that this process saw."""
        self.probe_authority: Callable[[], Awaitable[tuple[MemberHealth, ...]]] = _no_members
        """Asks each member of the authority how it is, for operators."""
        self.use_access: Callable[[EtcdAccess], None] = lambda access: None
        """Reaches the authority in another way from now on; see `EtcdAuthority.use`."""

    # -- starting and stopping ---------------------------------------------------------------------

    def prepare(self, start: Start) -> None:
        """Before the first request is served: refuse clients, show what is confirmed for sure.

        Raises StoreError if the facts cannot be saved.
        """
        self.serving.refuse(writes=_NOT_OPEN, reads=_NOT_OPEN)
        facts = of_start(self._facts_file.facts, start)
        self._facts_file.save(facts)
        self.serving.show_confirmed(min(facts.confirm, self._store.flushed_log_offset))

    def start(self, start: Start) -> None:
        """Take part in the group, after `prepare` and when the features of a slave run."""
        facts = self._facts_file.facts
        self.serving.on_flushed = self.own_end_moved
        self.serving.on_confirmed = self._confirmed
        self.execution.start()
        self.put(events.Started(facts, start, self.log_facts(), secrets.token_hex(16)))
        self._tick()
        self.link.start(self._facts_file.known_id or None)

    async def resign(self) -> None:
        """Before the broker stops: a master hands over first, which takes seconds at most."""
        if self._timer is None or self._is_broken:
            return
        self.put(events.StopAsked())
        try:
            async with asyncio.timeout(_READY_S):
                await self.execution.is_ready.wait()
        except TimeoutError:
            log.warning("no other replica took over before this master stops")

    async def stop(self) -> None:
        """Take no part any more, and revoke the lease."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._cancel_takeover()
        await self.execution.stop()
        await self.link.stop()
        await self.execution.stop_commands()
        self.serving.on_flushed = self.serving.on_confirmed = lambda: None

    @property
    def follower(self) -> ElectedFollower:
        """The connection of a slave to its master."""
        return self.execution.follower

    # -- what others ask ---------------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        """Whether this broker leads a session now."""
        return self.role.session is not None

    def log_facts(self) -> LogFacts:
        """The log as it is now."""
        store = self._store
        end = store.end_log_offset
        return LogFacts(
            end=end, flushed=store.flushed_log_offset,
            epochs=within_log(self.epochs.epochs, end), first=store.first_log_offset,
        )  # fmt: skip

    def own(self) -> Broker:
        """This broker in hellos."""
        own = self._broker
        return Broker(cluster=own.cluster, name=own.name, id=self.role.id, store_id=own.store_id)

    def member(self) -> Membership:
        """This replica in hellos."""
        role = self.role
        return Membership(
            group=role.facts.group, incarnation=role.incarnation,
            followed_epoch=role.facts.followed_epoch,
        )  # fmt: skip

    def session(self) -> elected_hello.Session | None:
        """The mastership that slaves may follow; None: this broker is not the master."""
        session = self.role.session
        if session is None:
            return None
        return elected_hello.Session(self.role.facts.group, session.epoch)

    def known_incarnation(self, replica_id: int) -> int:
        """Of a replica, as far as this one knows; 0 if it does not."""
        return self.role.view.incarnation_of(replica_id) if self.role.view else 0

    def epoch_seen(self, epoch: int, source: str) -> None:
        """A broker of this group knows an epoch."""
        session = self.role.session
        if session is None or epoch > session.epoch:
            self.put(events.EpochSeen(epoch, source))

    def registration_ignored(self, namesrv: str, state_version: int | None) -> None:
        """A nameserver knows a master of a higher epoch (R8): the authority says who it is."""
        session = self.role.session
        if session is None:
            return
        seen = state_version or 0
        known = max(session.epoch, self.role.epoch_heard)
        if known < seen <= session.epoch + elected_hello.EPOCHS_AHEAD_MAX:
            self.put(events.EpochSeen(seen, f"nameserver {namesrv}"))
        else:
            # Anything may be registered there: an absurd epoch must not raise those of the group.
            self.link.read()

    def confirm_offset(self) -> int:
        """Up to where every later master has the log, as far as this replica knows."""
        return self.serving.confirm_log_offset

    def handover_asked(self, replica_id: int) -> None:
        """A slave asks to take over."""
        self.put(events.HandoverAsked(replica_id))

    def is_healthy(self) -> bool:
        """Whether the lease may be renewed and heartbeats be sent (R13)."""
        gap_ms = self._clock() - self._ticked_ms
        fsync_ms = max(self._store.fsync_pending_ms, self.execution.disk_pending_ms)
        return not self._is_broken and health.may_keep_alive(gap_ms, fsync_ms)

    def info(self, figures: Figures) -> GroupInfo:
        """What operators see of the group."""
        return group_info(self.role, figures, self._clock())

    @property
    def can_promise(self) -> bool:
        """Whether this master certainly is the master now: fresh lease, or all that count are
        connected and acknowledge.
        """
        session, now_ms = self.role.session, self._clock()
        if session is None:
            return False
        return service.is_lease_fresh(self.role, now_ms) or service.is_whole(session, now_ms)

    async def ask(self, command: Command, by: str) -> tuple[bool, Reason]:
        """Carry out the request of an operator; whether it was done, and why not."""
        if self._is_broken:
            return False, Reason(Code.FAILED, _BROKEN.text)
        self._ticket += 1
        ticket = self._ticket
        answer: asyncio.Future[tuple[bool, Reason]] = asyncio.get_running_loop().create_future()
        self.execution.tickets[ticket] = answer
        try:
            self.put(events.Asked(ticket, command, by))
            return await answer
        finally:
            self.execution.tickets.pop(ticket, None)

    async def loop_stood_still(self, gap_ms: int) -> None:
        """Returns when the consequences are in force; see `requests/loop_gap.py`."""
        self._ticked_ms = self._clock()
        await self.settled(events.Frozen(gap_ms))

    # -- events ------------------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Step the machine; an event that comes up meanwhile is next."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._is_stepping = False

    def _step(self, event: Event) -> None:
        if self._is_broken:
            return
        if not isinstance(event, events.Tick):
            log.debug("replica %d: %s", self.role.id, event)
        try:
            found = machine.step(self.role, event, self._clock())
        except Exception:
            # Nothing can be relied on any more: the lease ends, and another replica takes over.
            log.exception("replica %d: internal error at %s", self.role.id, event)
            self._break_off()
            return
        self._count_switches()
        self._session_stepped()
        if found:
            log.debug("replica %d: -> %s", self.role.id, found)
            self.execution.add(found)

    def _break_off(self) -> None:
        self._is_broken = True
        self.execution.break_off(_BROKEN)
        self.serving.refuse(writes=_BROKEN, reads=_BROKEN)
        self.role.session = self._session = None
        self.serving.end_session()

    def _count_switches(self) -> None:
        state = self.role.state
        if state is not None and state.epoch > self._epoch:
            self.switch_count += self._epoch != 0
            self._epoch = state.epoch

    async def settled(self, event: Event) -> None:
        """Step the machine, and wait until all actions up to now are executed."""
        self.put(event)
        await self.execution.done()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._ticked_ms = self._clock()
        self.own_end_moved()
        self._check_disk()
        self._check_space()
        self.put(events.Tick(self.log_facts()))

    def _check_space(self) -> None:
        """A master whose disk is full hands over, as another replica may have space."""
        problem = self._store.refusal
        now_ms = self._clock()
        if not isinstance(problem, StoreFull) or now_ms < self._hand_over_ms or not self.is_master:
            return
        self._hand_over_ms = now_ms + _FULL_DISK_MS
        self.put(events.DiskFailed(str(problem)))

    def _check_disk(self) -> None:
        failure = self._store.disk_failure
        if failure is None or failure is self._disk_failure:
            return
        self._disk_failure = failure
        self._facts_file.note_failed_fsync(str(failure))
        if not self.execution.is_saving:
            with suppress(StoreError):
                self._facts_file.save(self._facts_file.facts)
        self.put(events.DiskFailed(str(failure), is_fsync=True))
        self.execution.add([do.Save(self.role.facts)])

    # -- the session: what changes with the machine's state, at once -------------------------------

    def _counted(self) -> CountedSet | None:
        return self.role.session.counted if self.role.session else None

    def _session_stepped(self) -> None:
        session = self.role.session
        if session is not self._session:
            if self._session is not None:
                # Before anything else: nothing more is stored or acknowledged in that epoch.
                self.serving.refuse(writes=_NOT_OPEN, reads=self.serving.reads)
                self.serving.end_session()
            self._session = session
            if session is not None:
                self._in_force = session.counted.in_force
                counted = session.counted
                counted.own_end(self._store.end_log_offset, self._store.flushed_log_offset)
                self.serving.begin_session(_Counted(counted))
                self.link.refresh()
        if session is not None:
            counted = session.counted
            if counted.in_force != self._in_force:
                self._in_force = counted.in_force
                self.serving.set_changed()
            self.serving.confirm(counted.confirm)

    def own_log_grew(self) -> None:
        """Called when the end of the own log has moved, on a master."""
        self.own_end_moved()
        listener = self._host.listener
        if listener is not None:
            listener.log_grew()

    def _confirmed(self) -> None:
        listener = self._host.listener
        if listener is not None:
            listener.confirmed()

    def own_end_moved(self) -> None:
        """The own log has grown or was flushed: it may be confirmed so far."""
        counted = self._counted()
        if counted is not None:
            store = self._store
            if counted.own_end(store.end_log_offset, store.flushed_log_offset):
                self.serving.confirm(counted.confirm)

    def _alive(self) -> Alive | None:
        role = self.role
        if not role.incarnation or role.stopped is not None:
            return None
        facts = self.log_facts()
        seen = trust.newest_seen(role.view, role.facts)
        return Alive(
            incarnation=role.incarnation, epoch=facts.last_epoch, end=facts.end,
            confirm=self.serving.confirm_log_offset, seen_epoch=seen[0], seen_revision=seen[1],
        )  # fmt: skip

    # -- the follower observes the master ----------------------------------------------------------

    def offered(self, target: Target, offer: Offer, log_state: LogState) -> None:
        """See `elected_follower.Observer`."""
        log_ = LogFacts(
            end=log_state.end_offset, flushed=self._store.flushed_log_offset,
            epochs=log_state.epochs, first=log_state.first_offset,
        )  # fmt: skip
        self.put(
            events.MasterOffered(
                target.id, offer.epoch, offer.log.epochs, offer.log.end_offset, log_
            )
        )

    def connected(self) -> None:
        """See `elected_follower.Observer`."""
        self._host.connected()

    def received(self, confirm_offset: int) -> None:
        """See `elected_follower.Observer`."""
        self.serving.confirm(confirm_offset)

    def announced(self, lines: bytes) -> None:
        """See `elected_follower.Observer`."""
        self._host.announced(lines)

    def heard(self, confirm_offset: int) -> None:
        """See `elected_follower.Observer`."""
        store = self._store
        end, flushed = store.end_log_offset, store.flushed_log_offset
        self.put(events.MasterHeard(max(confirm_offset, 0), end, flushed))

    def agreed(self, epoch: int) -> None:
        """See `elected_follower.Observer`. The tables come first: they are final now."""
        self._cancel_takeover()
        self._takeover = asyncio.get_running_loop().create_task(self._take_over(epoch))

    async def _take_over(self, epoch: int) -> None:
        if await self._host.read_final_tables():
            self.put(events.HandoverOffered(epoch))

    def _cancel_takeover(self) -> None:
        if self._takeover is not None:
            self._takeover.cancel()

    def disconnected(self, why: str) -> None:
        """See `elected_follower.Observer`."""
        self._cancel_takeover()
        self.put(events.MasterDisconnected(why))

    def refused(self) -> None:
        """See `elected_follower.Observer`."""
        self.put(events.MasterRefuses())


async def _no_members() -> tuple[MemberHealth, ...]:
    return ()


class _Counted:
    """The counted set of a session, as waits of sends see it."""

    __slots__ = ("_counted",)

    def __init__(self, counted: CountedSet) -> None:
        self._counted = counted

    @property
    def confirm(self) -> int:
        return self._counted.confirm

    @property
    def in_force(self) -> int:
        return len(self._counted.in_force)
