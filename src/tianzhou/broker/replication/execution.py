"""Executes the actions of the role state machine, in order, each before the next one begins.

One task does it, so that nothing of two actions is interleaved. Proposals, reads and hellos are
only begun by it. If an action fails because of the disk, those behind it are dropped, and the
machine decides anew.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from tianzhou.broker.replication import role_commands
from tianzhou.broker.replication.authority_link import AuthorityLink
from tianzhou.broker.replication.host import Host
from tianzhou.broker.replication.role_commands import CommandQueue
from tianzhou.broker.storing.serving import Refusal, Serving
from tianzhou.errors import AddressError, AuthorityError, TianzhouError
from tianzhou.ha import epochs
from tianzhou.ha.authority.values import Authority, Outcome, Proposal, Result
from tianzhou.ha.elected_follower import ElectedFollower, Target
from tianzhou.ha.epochs import EpochFile, within_log
from tianzhou.ha.hello import Broker, Membership
from tianzhou.ha.replica_facts import FactsFile
from tianzhou.ha.roles import actions as do
from tianzhou.ha.roles import events
from tianzhou.ha.roles.actions import Action
from tianzhou.ha.roles.events import Event
from tianzhou.ha.roles.facts import LogFacts
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Role
from tianzhou.protocol.codes import ResponseCode
from tianzhou.remoting.address import parse_address
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_NOT_REGISTERED: Final = Refusal(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "this broker waits for its role, or for the connection to its group: use another broker",
)

_UNAFFECTED: Final = (
    asyncio.Future, do.Read, do.PutWish, do.Reply, do.Note,
    do.StepDown, do.StopFollowing, do.Disconnect, do.ResumeWriters, do.Stop, do.Ready,
)  # fmt: skip
"""Actions that are executed though one before them failed: they end something."""


class Driver(Protocol):
    """What actions need of the driver; `failover.Failover`."""

    @property
    def role(self) -> Role: ...

    def put(self, event: Event) -> None: ...

    def log_facts(self) -> LogFacts: ...

    def own(self) -> Broker: ...

    def member(self) -> Membership: ...

    def own_end_moved(self) -> None: ...


class Execution:
    """The queue of actions, and what executes them."""

    def __init__(
        self,
        driver: Driver,
        *,
        host: Host,
        store: MessageStore,
        serving: Serving,
        epoch_file: EpochFile,
        facts_file: FactsFile,
        authority: Authority,
        link: AuthorityLink,
        address: str,
        fence_command: str,
        role_command: str,
    ) -> None:
        """`address` is where this broker listens."""
        self._driver = driver
        self._host = host
        self._store = store
        self._serving = serving
        self._epochs = epoch_file
        self._facts_file = facts_file
        self._authority = authority
        self._link = link
        self._address = address
        self._fence_command, self._role_command = fence_command, role_command
        self.follower: ElectedFollower
        """Set before `start`."""
        self._queue: deque[Action | asyncio.Future[None]] = deque()
        """A future among the actions is done when those before it are executed."""
        self._has_more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._serve: do.Serve | None = None
        """As executed last."""
        self._decided: do.Serve | None = None
        """The newest one, which may wait behind other actions."""
        self._closed = _NOT_REGISTERED
        """What clients are answered while this broker is not registered."""
        self._is_master_built = False
        """What a master runs may run, so a slave's features have to be built before it follows."""
        self._is_stopping_writers = False
        self._old_master = ""
        """The address of the master that the last own election replaced against its will."""
        self.is_ready = asyncio.Event()
        """Nothing keeps the process from ending."""
        self.tickets: dict[int, asyncio.Future[tuple[bool, Reason]]] = {}
        """Requests of operators that wait for their answer."""
        self._disk_since_s: float | None = None
        self._role_commands = CommandQueue("haRoleCommand")
        self._wishes: set[asyncio.Task[None]] = set()
        self.truncated_bytes = 0
        """What was cut off the own log, because the master did not have it."""

        self._execute: Mapping[type[Action], Callable[[Any], Coroutine[Any, Any, None] | None]] = {
            do.Propose: self._propose,
            do.Read: self._read,
            do.PutWish: self._put_wish,
            do.Save: self._save,
            do.Truncate: self._truncate,
            do.StartEmpty: self._start_empty,
            do.Rejoin: self._rejoin,
            do.Follow: self._follow,
            do.OpenStream: self._open_stream,
            do.StopFollowing: self._stop_following,
            do.AskHandover: self._ask_handover,
            do.Lead: self._lead,
            do.Serve: self._serve_clients,
            do.StepDown: self._step_down,
            do.StopWriters: self._stop_writers,
            do.ResumeWriters: self._resume_writers,
            do.Agree: self._agree,
            do.Disconnect: self._disconnect,
            do.Reply: self._reply,
            do.Note: self._note,
            do.Stop: self._stop,
            do.Ready: self._ready,
        }

    # -- the queue ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Execute actions from now on."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Execute nothing any more; the connection to the master is closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        await self.follower.stop()
        for wish in tuple(self._wishes):
            wish.cancel()
        for waiting in (*self._queue, *self.tickets.values()):
            if isinstance(waiting, asyncio.Future):
                waiting.cancel()
        self._queue.clear()

    async def stop_commands(self) -> None:
        """Wait until the commands of the operator have ended."""
        await self._role_commands.stop()

    def add(self, found: Iterable[Action]) -> None:
        """Execute these actions behind those that wait; what they refuse is refused at once."""
        for action in found:
            self._queue.append(action)
            if isinstance(action, do.Serve):
                self._decided = action
                self._apply_refusals()
        self._has_more.set()

    def break_off(self, why: Refusal) -> None:
        """Drop what waits, and leave the group: the machine cannot be relied on any more."""
        self._closed = why
        self._queue = deque(each for each in self._queue if isinstance(each, asyncio.Future))
        last: list[Action] = [do.StopFollowing()]
        if self._is_master_built:
            last.append(do.StepDown(Reason(Code.STOPPED, "internal error")))
        self.add([*last, do.Serve(is_master=False, epoch=0, is_registered=False, refusal=None)])

    async def done(self) -> None:
        """Wait until all actions up to now are executed."""
        if self._task is None:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(done)
        self._has_more.set()
        await done

    async def _run(self) -> None:
        while True:
            await self._has_more.wait()
            if not self._queue:
                self._has_more.clear()
                continue
            action = self._queue.popleft()
            if isinstance(action, asyncio.Future):
                if not action.done():
                    action.set_result(None)
                continue
            try:
                if (work := self._execute[type(action)](action)) is not None:
                    await work
            except (TianzhouError, OSError) as error:
                self._cannot_execute(action, error)
            except Exception as error:
                log.exception("failover: %s failed", type(action).__name__)
                self._cannot_execute(action, error)

    def _cannot_execute(self, action: Action, error: Exception) -> None:
        log.error("failover: %s could not be executed: %s", type(action).__name__, error)
        dropped = [each for each in self._queue if not isinstance(each, _UNAFFECTED)]
        kept = [each for each in self._queue if isinstance(each, _UNAFFECTED)]
        self._queue.clear()
        self._queue.extend(kept)
        self._driver.put(events.DiskFailed(str(error)))
        for each in dropped:
            if isinstance(each, do.Propose):
                unknown = Outcome(Result.UNKNOWN)
                self._driver.put(events.Answered(each.number, unknown))

    # -- actions: the authority --------------------------------------------------------------------

    def _propose(self, action: do.Propose) -> None:
        if action.proposal.state.master == self._driver.role.id:
            self._old_master = self._replaced(action.proposal)
        self._link.propose(action.number, action.proposal)

    def _replaced(self, proposal: Proposal) -> str:
        """The address of the master that an election replaces without its agreement; or empty."""
        view, state = self._driver.role.view, proposal.state
        old = view.state.master if view and view.state else None
        if view is None or old is None:
            return ""
        if old == state.master:  # a change of the in-sync set, or the own election once more
            return self._old_master
        known = view.replicas.get(old)
        return known.value.addr if known and old not in state.in_sync else ""

    def _read(self, _: do.Read) -> None:
        self._link.read()

    def _rejoin(self, _: do.Rejoin) -> None:
        self._link.rejoin(self._driver.role.id)

    def _put_wish(self, action: do.PutWish) -> None:
        task = asyncio.get_running_loop().create_task(self._wish(action))
        self._wishes.add(task)
        task.add_done_callback(self._wishes.discard)

    async def _wish(self, action: do.PutWish) -> None:
        try:
            await self._authority.wish(action.wish)
        except AuthorityError as error:
            self._reply(do.Reply(action.ticket, False, Reason(Code.FAILED, str(error))))
        else:
            text = "the request is known to the group, which carries it out within seconds"
            self._reply(do.Reply(action.ticket, True, Reason(Code.DONE, text)))

    # -- actions: the disk -------------------------------------------------------------------------

    async def _save(self, action: do.Save) -> None:
        if action.facts.id != self._facts_file.facts.id:
            await self._host.joined(action.facts.id)
        await self._on_disk(partial(self._facts_file.save, action.facts))

    async def _on_disk(self, save: Callable[[], None]) -> None:
        """Write with fsync, in a thread; while that hangs this broker is not healthy."""
        self._disk_since_s = asyncio.get_running_loop().time()
        try:
            await asyncio.to_thread(save)
        finally:
            self._disk_since_s = None

    @property
    def is_saving(self) -> bool:
        """Whether a thread is saving facts or epochs."""
        return self._disk_since_s is not None

    @property
    def disk_pending_ms(self) -> int:
        """How long a write of the facts or of the epochs has been running; 0 if none is."""
        since_s = self._disk_since_s
        return 0 if since_s is None else int((asyncio.get_running_loop().time() - since_s) * 1000)

    async def _truncate(self, action: do.Truncate) -> None:
        end = self._store.end_log_offset
        await self._host.truncate(action.to, action.epochs, self._driver.role.facts.confirm)
        self.truncated_bytes += end - action.to
        self._serving.show_confirmed(min(self._serving.confirm_log_offset, action.to))

    async def _start_empty(self, action: do.StartEmpty) -> None:
        path = await self._host.start_empty(action.saved_from)
        self._serving.show_confirmed(0)
        self._driver.put(events.Emptied(self._driver.log_facts(), str(path) if path else ""))

    # -- actions: as a slave -----------------------------------------------------------------------

    async def _follow(self, action: do.Follow) -> None:
        await self.follower.stop()
        if self._is_master_built:  # the end of the own session failed
            await self._become_slave()
        known = (
            self._driver.role.view.replicas.get(action.master) if self._driver.role.view else None
        )
        try:
            ha_host = parse_address(known.value.ha if known else action.addr)[0]
        except AddressError:
            ha_host = parse_address(action.addr)[0]
        target = Target(action.master, action.addr, ha_host)
        self.follower.follow(target, self._driver.own(), self._driver.member)

    def _open_stream(self, action: do.OpenStream) -> None:
        self.follower.open_stream(action.epoch)

    async def _stop_following(self, _: do.StopFollowing) -> None:
        await self.follower.stop()

    def _ask_handover(self, _: do.AskHandover) -> None:
        self.follower.ask_handover()

    # -- actions: as a master ----------------------------------------------------------------------

    async def _lead(self, action: do.Lead) -> None:
        await self.follower.stop()
        end = self._store.end_log_offset
        entries = epochs.appended(within_log(self._epochs.epochs, end), action.epoch, end)
        await self._on_disk(partial(self._epochs.save, entries))
        await self._on_disk(partial(self._facts_file.save, action.facts))
        await self._fence(action.epoch)
        self._serving.expect_session()
        self._is_master_built = True
        await self._host.become_master(action.epoch)
        self._driver.put(events.Led(action.epoch, self._driver.log_facts()))

    async def _fence(self, epoch: int) -> None:
        """Run the command that stops the old master, unless that one hands over."""
        if not (self._fence_command and self._old_master):
            return
        variables = self._variables("master", epoch)
        if not await role_commands.run("haFenceCommand", self._fence_command, variables):
            log.error(
                "failover: the old master at %s may still run; this broker becomes the master "
                "nevertheless, as the rules of the group do not depend on the command",
                self._old_master,
            )

    def _serve_clients(self, action: do.Serve) -> None:
        before, self._serve = self._serve, action
        self._apply_refusals()
        is_change = before is None or before.is_master != action.is_master
        if is_change or before is None or before.is_registered != action.is_registered:
            self._host.register(is_registered=action.is_registered)
        if is_change and self._role_command:
            name = "master" if action.is_master else "slave"
            self._role_commands.put(self._role_command, self._variables(name, action.epoch))

    def _apply_refusals(self) -> None:
        """What was decided last is refused, too: an older Serve must not open what it closes."""
        if self._serve is None or self._decided is None:
            return
        if not (self._serve.is_registered and self._decided.is_registered):
            self._serving.refuse(writes=self._closed, reads=self._closed)
            return
        writes = _refusal(self._decided.refusal) or _refusal(self._serve.refusal)
        if self._is_stopping_writers and writes is None:
            writes = _refusal(Reason(Code.SWITCHING, "the broker hands over to another replica"))
        self._serving.refuse(writes=writes, reads=None)

    async def _step_down(self, action: do.StepDown) -> None:
        log.warning(
            "replica %d: is not the master any more: %s", self._driver.role.id, action.reason.text
        )
        self._is_stopping_writers = False
        await self._become_slave()

    async def _become_slave(self) -> None:
        await self._host.become_slave()
        self._is_master_built = False

    def _stop_writers(self, _: do.StopWriters) -> None:
        self._is_stopping_writers = True
        self._apply_refusals()
        self._driver.own_end_moved()
        self._driver.put(events.WritersStopped(self._driver.log_facts()))

    def _resume_writers(self, _: do.ResumeWriters) -> None:
        self._is_stopping_writers = False
        self._apply_refusals()

    def _agree(self, action: do.Agree) -> None:
        listener = self._host.listener
        if listener is not None:
            listener.agree(action.to, action.epoch)

    def _disconnect(self, action: do.Disconnect) -> None:
        listener = self._host.listener
        if listener is not None:
            listener.disconnect(action.id, action.reason.text)

    # -- actions: operators ------------------------------------------------------------------------

    def _reply(self, action: do.Reply) -> None:
        waiting = self.tickets.get(action.ticket)
        if waiting is not None and not waiting.done():
            waiting.set_result((action.is_ok, action.reason))

    def _note(self, action: do.Note) -> None:
        level = logging.WARNING if action.is_alarm else logging.INFO
        log.log(level, "replica %d: %s", self._driver.role.id, action.reason.text)

    def _stop(self, action: do.Stop) -> None:
        if action.reason.code is Code.DONE:
            return
        log.error(
            "replica %d: takes no part any more: %s", self._driver.role.id, action.reason.text
        )

    def _ready(self, _: do.Ready) -> None:
        self.is_ready.set()

    def _variables(self, role: str, epoch: int) -> dict[str, str]:
        """The environment of a command."""
        own, view = self._driver.own(), self._driver.role.view
        state = view.state if view else None
        known = view.replicas.get(state.master or 0) if view and state else None
        is_master = role == "master"
        return {
            "TIANZHOU_ROLE": role,
            "TIANZHOU_EPOCH": str(epoch),
            "TIANZHOU_CLUSTER": own.cluster,
            "TIANZHOU_BROKER": own.name,
            "TIANZHOU_ID": str(own.id),
            "TIANZHOU_ADDRESS": self._address,
            "TIANZHOU_MASTER": self._address if is_master or known is None else known.value.addr,
            "TIANZHOU_OLD_MASTER": self._old_master if is_master else "",
        }


def _refusal(reason: Reason | None) -> Refusal | None:
    if reason is None:
        return None
    is_few = reason.code is Code.NOT_ENOUGH_IN_SYNC
    code = ResponseCode.SYSTEM_ERROR if is_few else ResponseCode.SERVICE_NOT_AVAILABLE
    return Refusal(code, reason.text, reason.code.value)
