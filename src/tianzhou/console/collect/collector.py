"""Collects one cluster: a round every minute, a snapshot after each.

    leader      holds the lease of the cluster (`leases`): asks the brokers, publishes the snapshot
                in memory and in the database, writes history and daily counts (`recording`)
    follower    another console instance on the same database: reads the leader's snapshot

    round       nameservers, then all brokers at once (`asking`), then members of groups; the
                answers change the state (`state`), from which the snapshot is made (`computing`)

Pages call `snapshot`, and never a broker. A round that takes more than half its interval doubles
the interval (`cadence`). Without a database there is no history, and every instance collects.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import ParamSpec, TypeVar

from msgspec.structs import replace
from sqlalchemy.exc import SQLAlchemyError

from tianzhou.admin.admin_client import Admin
from tianzhou.clock import Clock, steady_ms, wall_ms
from tianzhou.console.collect.asking import Asker, Wanted
from tianzhou.console.collect.cadence import INTERVAL_MS, Cadence, next_round_ms
from tianzhou.console.collect.computing import RoundFacts, compute
from tianzhou.console.collect.days import Days, days_at
from tianzhou.console.collect.history import Sampler
from tianzhou.console.collect.leases import RENEW_S
from tianzhou.console.collect.recording import Recorder
from tianzhou.console.collect.snapshot import Nameserver, Snapshot
from tianzhou.console.collect.state import BrokerReading, ClusterState, Members
from tianzhou.errors import BodyError, TianzhouError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

WATCH_MS = 120_000
"""How long a topic or group is read in every round after a page has shown it."""
WATCHED_MAX = 500
FOLLOW_S = 2.0
"""Distance of two looks of a follower at the database."""


@dataclass(slots=True)
class _Watch:
    """Names with the steady time until which they are read in every round."""

    until_ms: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, names: Collection[str], until_ms: int) -> None:
        for name in names:
            if name in self.until_ms or len(self.until_ms) < WATCHED_MAX:
                self.until_ms[name] = until_ms

    def current(self, now_ms: int) -> frozenset[str]:
        for name in [name for name, until_ms in self.until_ms.items() if until_ms <= now_ms]:
            del self.until_ms[name]
        return frozenset(self.until_ms)


class Collector:
    """The collector of one cluster in one console instance. Use it on one event loop."""

    def __init__(
        self,
        cluster: str,
        admin: Admin,
        *,
        zone: tzinfo,
        zone_name: str = "UTC",
        recorder: Recorder | None = None,
        instance: str = "",
        interval_ms: int = INTERVAL_MS,
        renew_s: float = RENEW_S,
        follow_s: float = FOLLOW_S,
        wall: Clock = wall_ms,
        steady: Clock = steady_ms,
    ) -> None:
        """`admin` should have the time-out `asking.TIMEOUT_MS`; it is closed by its owner."""
        self.cluster = cluster
        self._zone = zone
        self._zone_name = zone_name
        self._recorder = recorder
        self._instance = instance
        self._renew_s = renew_s
        self._follow_s = follow_s
        self._wall = wall
        self._steady = steady
        self._asker = Asker(admin, zone, wall, steady)
        self._state = ClusterState()
        self._sampler = Sampler()
        self._cadence = Cadence(interval_ms, interval_ms)
        self._snapshot: Snapshot | None = None
        self._published_steady_ms = 0
        self._round_began_ms = 0
        self._published = asyncio.Condition()
        self._topics, self._groups = _Watch(), _Watch()
        self._rules: Wanted = Wanted()
        self._wake = asyncio.Event()
        self._database_problem = ""
        self.is_leader = recorder is None
        """Whether this instance asks the brokers."""

    # -- for pages ---------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None before the first round."""
        return self._snapshot

    @property
    def is_fresh(self) -> bool:
        """Whether the snapshot is younger than three intervals, whatever the wall clock says."""
        if self._snapshot is None:
            return False
        age_ms = self._steady() - self._published_steady_ms
        return age_ms <= 3 * self._snapshot.interval_ms

    async def newer_than(self, version: int, timeout_s: float) -> Snapshot | None:
        """Wait for a newer snapshot; None after the time."""
        try:
            async with asyncio.timeout(timeout_s), self._published:
                await self._published.wait_for(
                    lambda: self._snapshot is not None and self._snapshot.version > version
                )
        except TimeoutError:
            return None
        return self._snapshot

    def watch(self, *, topics: Collection[str] = (), groups: Collection[str] = ()) -> None:
        """A page shows these: read them in every round for two minutes."""
        until_ms = self._steady() + WATCH_MS
        self._topics.add(topics, until_ms)
        self._groups.add(groups, until_ms)

    def set_rules(self, topics: Collection[str]) -> None:
        """Topics that rules of alarms need in every round."""
        self._rules = Wanted(frozenset(topics))

    def refresh(self) -> None:
        """Begin the next round now, after a change that a page made."""
        self._wake.set()

    # -- running -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Collect or follow until cancelled."""
        try:
            while True:
                if not self.is_leader:
                    await self._follow()
                await self._lead()
        finally:
            if self._recorder is not None and self.is_leader:
                # A collector that runs again begins as a follower.
                self.is_leader = False
                await _released(self._recorder)

    async def _follow(self) -> None:
        """Serve the snapshots of the leader until this instance gets the lease."""
        assert self._recorder is not None
        recorder = self._recorder
        while True:
            try:
                newer = await in_thread(
                    recorder.newer_than, self._snapshot.version if self._snapshot else 0
                )
                if newer is not None:
                    # The first one may be what an instance left that ended days ago.
                    is_first = self._snapshot is None
                    age_ms = max(self._wall() - newer.as_of_ms, 0) if is_first else 0
                    await self._publish(newer, age_ms)
                if await in_thread(recorder.acquire):
                    self._state = await in_thread(self._loaded)
                    self.is_leader = True
                    log.info("cluster %s: collected by this instance", self.cluster)
                    return
                self._note_database("")
            except (SQLAlchemyError, BodyError) as e:
                self._note_database(str(e).partition("\n")[0])
            await asyncio.sleep(self._follow_s)

    def _loaded(self) -> ClusterState:
        """A new state with the counts that the last leader wrote."""
        assert self._recorder is not None
        self._sampler = Sampler()
        days = days_at(self._wall() - 7 * 24 * 3_600_000, self._zone)
        return ClusterState(ledger=self._recorder.load(days.today))

    async def _lead(self) -> None:
        renewing = asyncio.create_task(self._renew())
        try:
            while self.is_leader:
                await self.round()
                if self.is_leader:
                    await self._pause(renewing)
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _pause(self, renewing: "asyncio.Task[None]") -> None:
        now_ms = self._wall()
        midnight_ms = days_at(now_ms, self._zone).tomorrow_ms
        pause_ms = next_round_ms(now_ms, self._cadence.interval_ms, midnight_ms)
        if pause_ms == self._cadence.interval_ms:
            # From begin to begin, so that every minute has a round.
            pause_ms = max(pause_ms - (self._steady() - self._round_began_ms), 0)
        waking = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait(
                (waking, renewing), timeout=pause_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waking.cancel()
            self._wake.clear()

    async def _renew(self) -> None:
        """Renew the lease until it is lost."""
        if self._recorder is None:
            await asyncio.Event().wait()
            return
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                if not await in_thread(self._recorder.acquire):
                    self._lose("another instance holds the lease")
                    return
            except SQLAlchemyError as e:
                # Without the database no other instance can get the lease either.
                self._note_database(str(e).partition("\n")[0])

    def _lose(self, why: str) -> None:
        log.warning("cluster %s: not collected by this instance any more: %s", self.cluster, why)
        self.is_leader = False

    def _note_database(self, problem: str) -> None:
        if problem and not self._database_problem:
            log.warning("cluster %s: database: %s", self.cluster, problem)
        elif self._database_problem and not problem:
            log.warning("cluster %s: the database answers again", self.cluster)
        self._database_problem = problem

    # -- a round -----------------------------------------------------------------------------------

    async def round(self) -> Snapshot:
        """Ask everything that is due, and publish the snapshot."""
        started_s = time.perf_counter()
        as_of_ms, at_steady_ms = self._wall(), self._steady()
        self._round_began_ms = at_steady_ms
        days = days_at(as_of_ms, self._zone)
        wanted = Wanted(
            self._topics.current(at_steady_ms) | frozenset(self._rules.topics),
            self._groups.current(at_steady_ms),
            self._state.consumed_topics(),
        )
        self._asker.begin_round()
        nameservers, problem = await self._nameservers()
        readings = await asyncio.gather(
            *(
                self._asker.broker(each, self._state, days, wanted)
                for each in list(self._state.brokers.values())
            )
        )
        await in_thread(self._apply, readings, days)
        members = await self._asker.members(self._state, wanted)
        warnings = [line for each in readings for line in each.warnings]
        if self._database_problem:
            warnings.append(f"database: {self._database_problem}; history is written later")
        facts = RoundFacts(
            cluster=self.cluster,
            version=self._next_version(),
            as_of_ms=as_of_ms,
            steady_ms=at_steady_ms,
            days=days,
            zone=self._zone_name,
            interval_ms=self._cadence.interval_ms,
            interval_wanted_ms=self._cadence.wanted_ms,
            interval_reason=self._cadence.reason,
            collector=self._instance,
            problem=problem,
            request_count=self._asker.request_count,
            nameservers=nameservers,
            warnings=tuple(warnings),
        )
        snapshot = await in_thread(self._compute, facts, members)
        round_ms = round((time.perf_counter() - started_s) * 1000)
        self._cadence = self._cadence.after(round_ms, self._asker.request_count)
        snapshot = replace(
            snapshot,
            round_ms=round_ms,
            interval_ms=self._cadence.interval_ms,
            interval_reason=self._cadence.reason,
        )
        await self._publish(snapshot)
        if self._recorder is not None:
            await in_thread(self._record, self._recorder, snapshot, days, at_steady_ms)
        self._state.round_number += 1
        return snapshot

    async def _nameservers(self) -> tuple[tuple[Nameserver, ...], str]:
        """The nameservers, and why none of them answered."""
        found, brokers = await self._asker.nameservers()
        if any(each.answered for each in found):
            self._state.set_registered(brokers, self._wall())
            return found, ""
        reasons = "; ".join(f"{each.address}: {each.problem}" for each in found)
        return found, f"no nameserver responds: {reasons}"

    def _apply(self, readings: Collection[BrokerReading], days: Days) -> None:
        for reading in readings:
            self._state.apply(reading, days)
        self._state.forget_gone()

    def _compute(self, facts: RoundFacts, members: dict[str, Members]) -> Snapshot:
        self._state.members.update(members)
        return compute(self._state, facts)

    def _record(
        self, recorder: Recorder, snapshot: Snapshot, days: Days, at_steady_ms: int
    ) -> None:
        samples = self._sampler.samples(snapshot, self._state.ledger, at_steady_ms)
        recorder.add_samples(snapshot.as_of_ms, samples)
        result = recorder.write(snapshot, self._state.ledger, days)
        if result.is_lease_lost:
            self._lose(result.problem)
        else:
            self._note_database(result.problem)

    def _next_version(self) -> int:
        return self._snapshot.version + 1 if self._snapshot is not None else 1

    async def _publish(self, snapshot: Snapshot, age_ms: int = 0) -> None:
        async with self._published:
            self._snapshot = snapshot
            self._published_steady_ms = self._steady() - age_ms
            self._published.notify_all()


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a thread. A cancelled caller waits for its end.

    Otherwise the thread would go on with the state, or with a connection of a closed database.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


async def _released(recorder: Recorder) -> None:
    try:
        await in_thread(recorder.release)
    except (SQLAlchemyError, TianzhouError) as e:
        log.warning("the lease is not given up, it ends by itself: %s", e)
