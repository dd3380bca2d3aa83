"""The driver's side of the authority: joins, renews the lease, reads, watches and proposes.

Each of them is a task of its own, so that a slow authority never delays the role state machine.
Results are events. What fails is tried again, with a pause that grows, and is logged once.

The lease and the state have a problem each: with a key that cannot be read the lease is renewed
all the same, and must not hide that.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from enum import StrEnum
from typing import Any, Final, cast

from tianzhou.clock import Clock
from tianzhou.errors import AuthorityError, IdentityHeld
from tianzhou.ha.authority.values import Alive, Authority, Outcome, Proposal, Replica, Result, View
from tianzhou.ha.roles.events import (
    Answered,
    Event,
    IdentityInUse,
    Joined,
    LeaseRenewed,
    Viewed,
)

log = logging.getLogger(__name__)

_RETRY_MIN_S: Final = 0.1
_RETRY_MAX_S: Final = 2.0
_PROPOSE_S: Final = 5.0
"""Longer than the authority waits itself."""
_RENEWALS: Final = 3
"""In the time of a lease."""
_STEPS_S: Final = 0.1


class _Work(StrEnum):
    """What may fail while the rest goes on; of several problems the first one is shown."""

    INTERNAL = "internal error"
    """Stays until the process ends."""
    STATE = "state of the group"
    LEASE = "lease"


class AuthorityLink:
    """Started once; `put` gets the events."""

    def __init__(
        self,
        authority: Authority,
        put: Callable[[Event], None],
        *,
        replica: Callable[[], Replica],
        alive: Callable[[], Alive | None],
        may_renew: Callable[[], bool],
        lease_ms: int,
        clock: Clock,
    ) -> None:
        """`alive` is what `alive/ID` says; None: not yet. `clock` is that of the events."""
        self._authority = authority
        self._put = put
        self._replica = replica
        self._alive = alive
        self._may_renew = may_renew
        self._lease_ms = lease_ms
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted = asyncio.Event()
        """A read is wanted."""
        self._alive_wanted = asyncio.Event()
        self._problems: dict[_Work, str] = {}
        self.renewed_ms: int | None = None
        """When the last successful renewal of the lease was sent."""

    @property
    def problem(self) -> str | None:
        """Why the authority cannot be used; None while it can."""
        found = (self._problems[work] for work in _Work if work in self._problems)
        return next(found, None)

    # -- starting and stopping ---------------------------------------------------------------------

    def start(self, known_id: int | None) -> None:
        """Join, and go on with the rest."""
        self._run(self._begin(known_id))

    async def stop(self) -> None:
        """End all tasks, and revoke the lease."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with contextlib.suppress(AuthorityError):
            await self._authority.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _logged(self, work: Coroutine[Any, Any, None]) -> None:
        """An internal error ends the work; without it the lease ends, and others take over."""
        try:
            await work
        except Exception as error:
            log.exception("authority: internal error")
            self._problems[_Work.INTERNAL] = f"internal error: {error!r}; restart this broker"

    def rejoin(self, own_id: int) -> None:
        """Get a new incarnation; `Joined` and a read follow."""
        self._run(self._join(own_id))

    async def _begin(self, known_id: int | None) -> None:
        await self._join(known_id)
        self._run(self._read_when_wanted())
        self._run(self._watch())
        self._run(self._keep_alive())

    async def _join(self, known_id: int | None) -> None:
        retry_s = _RETRY_MIN_S
        while True:
            try:
                joined = await self._authority.join(self._replica(), known_id)
            except AuthorityError as error:
                self._failed(_Work.STATE, f"cannot join the group: {error}")
            else:
                break
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_MAX_S)
        log.info("replica %d: joined as incarnation %d", joined.id, joined.incarnation)
        self._put(Joined(joined.id, joined.incarnation))
        self.read()

    # -- reading -----------------------------------------------------------------------------------

    def read(self) -> None:
        """Read as a task; `Viewed` follows."""
        self._wanted.set()

    async def _read_when_wanted(self) -> None:
        retry_s = _RETRY_MIN_S
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                view = await self._authority.read()
            except AuthorityError as error:
                self._failed(_Work.STATE, str(error))
                self._wanted.set()
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_MAX_S)
            else:
                retry_s = _RETRY_MIN_S
                self._seen(view)

    async def _watch(self) -> None:
        retry_s = _RETRY_MIN_S
        while True:
            try:
                view = await self._authority.read()
                self._seen(view)
                watching = self._authority.watch(view.read_revision)
                # Closed at once when this task is cancelled, not by the garbage collector.
                async with contextlib.aclosing(cast("AsyncGenerator[View]", watching)) as views:
                    async for view in views:
                        retry_s = _RETRY_MIN_S
                        self._seen(view)
            except AuthorityError as error:
                self._failed(_Work.STATE, str(error))
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_MAX_S)

    def _seen(self, view: View) -> None:
        self._answered(_Work.STATE)
        self._put(Viewed(view))

    # -- the lease ---------------------------------------------------------------------------------

    def refresh(self) -> None:
        """What `alive` returns has changed in a way that matters to others."""
        self._alive_wanted.set()

    async def _keep_alive(self) -> None:
        period_s = self._lease_ms / _RENEWALS / 1000
        held_since_ms: int | None = None
        while True:
            self._alive_wanted.clear()
            alive = self._alive()
            if alive is not None and self._may_renew():
                try:
                    self.renewed_ms = await self._authority.keep_alive(alive)
                except AuthorityError as error:
                    self._failed(_Work.LEASE, str(error))
                    held_since_ms = self._note_held(error, held_since_ms)
                else:
                    held_since_ms = None
                    self._answered(_Work.LEASE)
                    self._put(LeaseRenewed(self.renewed_ms))
            elif alive is not None:
                log.warning("the lease is not renewed: this process hangs, or its disk does")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await self._alive_wanted.wait()
            await asyncio.sleep(_STEPS_S)

    def _note_held(self, error: AuthorityError, since_ms: int | None) -> int | None:
        """Since when another process holds the key; an event when its lease must have ended."""
        if not isinstance(error, IdentityHeld):
            return since_ms
        now_ms = self._clock()
        if since_ms is not None and now_ms - since_ms > 2 * self._lease_ms:
            self._put(IdentityInUse(str(error)))
        return now_ms if since_ms is None else since_ms

    # -- proposals ---------------------------------------------------------------------------------

    def propose(self, number: int, proposal: Proposal) -> None:
        """Send a transaction; `Answered` follows."""
        self._run(self._propose(number, proposal))

    async def _propose(self, number: int, proposal: Proposal) -> None:
        outcome = Outcome(Result.UNKNOWN)
        try:
            async with asyncio.timeout(_PROPOSE_S):
                outcome = await self._authority.propose(proposal)
        except (AuthorityError, TimeoutError) as error:
            # A read follows, which shows whether it is over.
            self._failed(_Work.STATE, str(error) or "no answer to a proposal")
        except Exception as error:
            # Without an answer nothing would be proposed any more.
            log.exception("authority: internal error")
            self._failed(_Work.STATE, f"internal error: {error!r}")
        if outcome.result is Result.UNKNOWN:
            await asyncio.sleep(_RETRY_MIN_S)  # what fails at once would be repeated at once
        self._put(Answered(number, outcome))

    # -- its health --------------------------------------------------------------------------------

    def _failed(self, work: _Work, problem: str) -> None:
        if work not in self._problems:
            log.warning("authority: %s: %s; it is tried again", work, problem)
        self._problems[work] = problem

    def _answered(self, work: _Work) -> None:
        if self._problems.pop(work, None) is not None:
            log.info("authority: %s: it answers again", work)
