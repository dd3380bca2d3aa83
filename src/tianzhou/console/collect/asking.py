"""The requests of one round: a bounded number for each broker, and never one for each group.

    each nameserver      GET_BROKER_CLUSTER_INFO
    each broker          GET_BROKER_RUNTIME_INFO; if it does not answer, nothing more is asked
                         GET_BROKER_HA_STATUS and HA_GROUP, where it supports them
    each master          GET_ALL_TOPIC_CONFIG, GET_ALL_SUBSCRIPTIONGROUP_CONFIG: decoded if changed
                         GET_ALL_CONSUMER_OFFSET
                         GET_TOPIC_STATS_INFO of the topics that are due (`due_topics`)
    every fifth round    GET_ALL_PRODUCER_INFO of each master
    a fifth of the       GET_CONSUMER_CONNECTION_LIST at one master: clients are connected to all
    groups per round
    after midnight       SEARCH_OFFSET_BY_TIMESTAMP for each queue that has grown since

A request has a time-out, and a broker that fails to answer one is not asked further in the round. A
response over `limits.FRAME_BYTES_MAX` closes the connection, so a broker with
an endless answer is one that does not answer, and the others are not affected.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TypeVar
from zlib import crc32

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.clusters import choose
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.rates import read_rates
from tianzhou.clock import Clock
from tianzhou.console.collect.counting import Offsets, SeriesKey
from tianzhou.console.collect.days import Days, midnights
from tianzhou.console.collect.snapshot import Nameserver
from tianzhou.console.collect.state import (
    BrokerReading,
    BrokerState,
    ClusterState,
    Members,
    is_quiet_kind,
)
from tianzhou.errors import BodyError, RequestError, TargetError, TianzhouError
from tianzhou.limits import TOPIC_QUEUES_MAX
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.groups import SubscriptionGroupTable
from tianzhou.protocol.bodies.stats import TopicStatsTable
from tianzhou.protocol.bodies.topics import TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode

S = TypeVar("S")
T = TypeVar("T")

TIMEOUT_MS = 3_000
AT_ONCE_MAX = 32
"""Concurrent requests of a cluster."""
AT_ONCE_BROKER_MAX = 8
"""Of these, to one broker."""
SLOW_EVERY = 5
"""Rounds between two readings of what changes rarely."""
MIDNIGHT_REQUESTS_MAX = 20_000
"""Offsets at midnight that are read in one round; the other topics wait for the next rounds."""


@dataclass(slots=True)
class BrokerMemory:
    """What is remembered of one broker to ask less."""

    boot: str = ""
    """Its start and version: after a restart it may support more."""
    unsupported: set[RequestCode] = field(default_factory=set[RequestCode])
    """Requests that its version does not know."""
    settings: dict[RequestCode, int] = field(default_factory=dict[RequestCode, int])
    """Hashes of the responses with settings, which are decoded when they change."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read in every round because a page shows it or a rule needs it."""

    topics: Collection[str] = frozenset()
    groups: Collection[str] = frozenset()
    consumed: Collection[str] = frozenset()
    """Topics that a group consumes on any broker."""


class BrokerSilent(TianzhouError):
    """A broker did not answer a request, so it is not asked further in this round."""


class Asker:
    """Asks the brokers of one cluster. Use it on one event loop."""

    def __init__(self, admin: Admin, zone: tzinfo, wall: Clock, steady: Clock) -> None:
        """`admin` should have the time-out `TIMEOUT_MS`."""
        self._admin = admin
        self._zone = zone
        self._wall = wall
        self._steady = steady
        self._memory: dict[str, BrokerMemory] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._midnight_requests = 0
        self.request_count = 0
        """Requests of the round."""

    def begin_round(self) -> None:
        """Count from 0 again."""
        self.request_count = self._midnight_requests = 0

    async def _send(self, action: Callable[[], Awaitable[T]]) -> T:
        """One request. Raises RequestError and BodyError; BrokerSilent if there is no response."""
        async with self._at_once:
            self.request_count += 1
            try:
                return await action()
            except (RequestError, BodyError):
                raise
            except TianzhouError as e:
                raise BrokerSilent(str(e)) from e

    # -- nameservers -------------------------------------------------------------------------------

    async def nameservers(self) -> tuple[tuple[Nameserver, ...], list[BrokerRef]]:
        """Each nameserver of the list, and all brokers that any of them lists."""
        addresses = sorted(self._admin.requests.namesrvs)
        found = await asyncio.gather(*map(self._nameserver, addresses))
        brokers: dict[tuple[str, int], BrokerRef] = {}
        for _, refs in found:
            for at in refs:
                brokers.setdefault((at.name, at.broker_id), at)
        return tuple(each for each, _ in found), sorted(brokers.values())

    async def _nameserver(self, address: str) -> tuple[Nameserver, list[BrokerRef]]:
        started_s = time.perf_counter()
        try:
            info = await self._send(lambda: self._admin.clusters.info_of(address))
        except TianzhouError as e:
            return Nameserver(address=address, problem=str(e)), []
        answer_ms = round((time.perf_counter() - started_s) * 1000, 1)
        try:
            refs = choose(info)
        except TargetError:
            refs = []  # no broker is registered
        known = tuple(sorted({at.address for at in refs}))
        return Nameserver(address=address, answered=True, brokers=known, answer_ms=answer_ms), refs

    # -- brokers -----------------------------------------------------------------------------------

    async def broker(
        self, state: BrokerState, cluster: ClusterState, days: Days, wanted: Wanted
    ) -> BrokerReading:
        """Ask one broker everything that is due in this round."""
        at = state.at
        reading = BrokerReading(at, self._wall(), self._steady())
        memory = self._memory.setdefault(at.address, BrokerMemory())
        try:
            await self._figures(reading, memory)
            if at.is_master:
                await self._tables(reading, memory, cluster.round_number)
                # After the committed offsets, which are thus never ahead of the end offsets.
                await self._extents(reading, state, cluster.round_number, wanted)
                await self._cuts(reading, cluster, days)
        except TianzhouError as e:
            reading.problem = str(e) or type(e).__name__
        return reading

    async def _figures(self, reading: BrokerReading, memory: BrokerMemory) -> None:
        brokers, at = self._admin.brokers, reading.at
        started_s = time.perf_counter()
        runtime = await self._send(lambda: brokers.runtime(at))
        reading.runtime = runtime
        reading.rates = read_rates(at, runtime, (time.perf_counter() - started_s) * 1000)
        boot = f"{runtime.get('bootTimestamp')} {runtime.get('brokerVersionDesc')}"
        if memory.boot != boot:
            memory.boot = boot
            memory.unsupported.clear()
            memory.settings.clear()
        ha = RequestCode.GET_BROKER_HA_STATUS
        reading.ha = await self._optional(reading, memory, ha, lambda: brokers.ha_status(at))
        if "haMode" in runtime:
            reading.failover = await self._optional(
                reading, memory, RequestCode.HA_GROUP, lambda: brokers.group(at)
            )

    async def _optional(
        self,
        reading: BrokerReading,
        memory: BrokerMemory,
        code: RequestCode,
        action: Callable[[], Awaitable[T]],
    ) -> T | None:
        """The answer to a request that not every broker supports or allows."""
        if code in memory.unsupported:
            return None
        try:
            return await self._send(action)
        except RequestError as e:
            if e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                memory.unsupported.add(code)
            else:
                reading.warnings.append(f"{reading.at.label}: {code.name}: {e}")
            return None
        except BodyError as e:
            reading.warnings.append(f"{reading.at.label}: {code.name}: {e}")
            return None

    # -- tables of a master ------------------------------------------------------------------------

    async def _tables(self, reading: BrokerReading, memory: BrokerMemory, number: int) -> None:
        at = reading.at
        topics = await self._changed(
            reading, memory, RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable
        )
        groups = await self._changed(
            reading, memory, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupTable
        )
        reading.topics = topics.topics if topics is not None else None
        reading.groups = groups.groups if groups is not None else None
        reading.committed = await self._optional(
            reading,
            memory,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            lambda: self._admin.offsets.all_committed(at),
        )
        if number % SLOW_EVERY == 0:
            table = await self._optional(
                reading,
                memory,
                RequestCode.GET_ALL_PRODUCER_INFO,
                lambda: self._admin.groups.producers(at),
            )
            reading.producers = (table.data or {}) if table is not None else None

    async def _changed(
        self, reading: BrokerReading, memory: BrokerMemory, code: RequestCode, body_type: type[T]
    ) -> T | None:
        """The settings in a response, None if it is that of the last round."""
        response = await self._optional(
            reading, memory, code, lambda: self._admin.requests.request(reading.at, code)
        )
        if response is None or memory.settings.get(code) == hash(response.body):
            return None
        try:
            found = bodies.decode(body_type, response.body or b"{}")
        except BodyError as e:
            reading.warnings.append(f"{reading.at.label}: {code.name}: {e}")
            return None
        memory.settings[code] = hash(response.body)
        return found

    # -- offsets of topics -------------------------------------------------------------------------

    async def _extents(
        self, reading: BrokerReading, state: BrokerState, number: int, wanted: Wanted
    ) -> None:
        topics = reading.topics if reading.topics is not None else state.topics
        reading.is_log_unmoved = state.answered and (
            reading.runtime.get("commitLogMaxOffset", "") == state.end_of_log()
        )
        due = due_topics(topics, state, reading, number, wanted)

        async def read(topic: str) -> None:
            try:
                table = await self._send(lambda: self._admin.topics.stats_on(reading.at, topic))
            except (RequestError, BodyError) as e:
                reading.failed_topics[topic] = str(e)
            else:
                reading.extents[topic] = table

        await _each(due, read, AT_ONCE_BROKER_MAX)

    async def _cuts(self, reading: BrokerReading, cluster: ClusterState, days: Days) -> None:
        """Read the end offsets at the midnights since each topic was counted last."""
        at = reading.at
        wanted: list[tuple[str, list[tuple[str, int]], Offsets, Offsets]] = []
        for topic, table in list(reading.extents.items()):
            position = cluster.ledger.position(SeriesKey(topic), at.name)
            newest_ms = max(
                (each.last_update_timestamp for each in table.offsets.values()), default=0
            )
            if position is None:
                if newest_ms < days.yesterday_ms:
                    continue
                times = [("", days.yesterday_ms), (days.yesterday, days.today_ms)]
                before: Offsets = ()
            else:
                times = midnights(position.read_ms, reading.read_ms, self._zone)
                before = position.offsets
            ends = _ends_of(table)
            if not times or ends == before:
                continue
            cost = len(times) * sum(1 for q, end in enumerate(ends) if end > _at(before, q))
            if self._midnight_requests + cost > MIDNIGHT_REQUESTS_MAX:
                del reading.extents[topic]  # counted in one of the next rounds
                continue
            self._midnight_requests += cost
            wanted.append((topic, times, before, ends))

        async def read(item: tuple[str, list[tuple[str, int]], Offsets, Offsets]) -> None:
            topic, times, before, ends = item
            cuts: list[tuple[str, Offsets]] = []
            for day, time_ms in times:
                cut: list[int] = []
                for queue_id, end in enumerate(ends):
                    if end > _at(before, queue_id):
                        found = await self._at_time(at, topic, queue_id, time_ms)
                        cut.append(found)
                    else:
                        cut.append(end)
                cuts.append((day, tuple(cut)))
            reading.cuts[topic] = cuts

        await _each(wanted, read, AT_ONCE_BROKER_MAX)

    async def _at_time(self, at: BrokerRef, topic: str, queue_id: int, time_ms: int) -> int:
        return await self._send(lambda: self._admin.offsets.at_time(at, topic, queue_id, time_ms))

    # -- members -----------------------------------------------------------------------------------

    async def members(self, cluster: ClusterState, wanted: Wanted) -> dict[str, Members]:
        """The members of the groups that are due, each at one master."""
        number = cluster.round_number
        groups = sorted({name for each in cluster.masters() for name in each.groups})
        due = [
            group
            for group in groups
            if group in wanted.groups
            or group not in cluster.members
            or _has_come_back(group, cluster)
            or crc32(group.encode()) % SLOW_EVERY == number % SLOW_EVERY
        ]
        found: dict[str, Members] = {}
        silent: dict[BrokerRef, str] = {}

        async def read(group: str) -> None:
            at = _master_for(group, cluster, number)
            now_ms = self._wall()
            if at is None:
                found[group] = Members(now_ms, problem="no broker of the group answers")
                return
            if at in silent:
                found[group] = Members(now_ms, problem=f"{at.label}: {silent[at]}")
                return
            try:
                view = await self._send(lambda: self._admin.groups.connection(at, group))
            except TianzhouError as e:
                if isinstance(e, BrokerSilent):
                    silent[at] = str(e)
                found[group] = Members(now_ms, problem=f"{at.label}: {e}")
            else:
                found[group] = Members(now_ms, view)

        await _each(due, read, AT_ONCE_BROKER_MAX)
        return found


def _has_come_back(group: str, cluster: ClusterState) -> bool:
    """Whether a group without members, as far as known, consumes again."""
    known = cluster.members[group]
    return known.connection is None and any(
        progress.per_s
        for broker in cluster.masters()
        for progress in broker.progress.get(group, {}).values()
    )


def _master_for(group: str, cluster: ClusterState, number: int) -> BrokerRef | None:
    """The master to ask about a group: one on which it consumes, another one in each round."""
    having = [each for each in cluster.masters() if each.answered and group in each.groups]
    consuming = [
        each
        for each in having
        if any(not is_quiet_kind(topic) for topic in each.progress.get(group, ()))
    ]
    candidates = consuming or having
    return candidates[(crc32(group.encode()) + number) % len(candidates)].at if candidates else None


def due_topics(
    topics: Iterable[str],
    state: BrokerState,
    reading: BrokerReading,
    number: int,
    wanted: Wanted,
) -> list[str]:
    """The topics whose offsets are read from a master in this round.

    Those that a group consumes or that moved lately are read in each round; the others in every
    fifth. If the log of the broker has not grown, no topic has, and only the fifth part is read.
    """
    consumed = {name.partition("@")[0] for name in reading.committed or ()}
    due: list[str] = []
    for topic in topics:
        is_its_round = crc32(topic.encode()) % SLOW_EVERY == number % SLOW_EVERY
        if (
            topic not in state.extents
            or is_its_round
            or (
                not reading.is_log_unmoved
                and (
                    topic in wanted.topics
                    or number - state.last_moved.get(topic, -SLOW_EVERY) < SLOW_EVERY
                    or (
                        (topic in consumed or topic in wanted.consumed) and not is_quiet_kind(topic)
                    )
                )
            )
        ):
            due.append(topic)
    return due


def _ends_of(table: TopicStatsTable) -> Offsets:
    width = max((queue.queue_id for queue in table.offsets), default=-1) + 1
    ends = [0] * min(width, TOPIC_QUEUES_MAX)
    for queue, each in table.offsets.items():
        if 0 <= queue.queue_id < len(ends):
            ends[queue.queue_id] = each.max_offset
    return tuple(ends)


def _at(offsets: Offsets, queue_id: int) -> int:
    return max(offsets[queue_id], 0) if queue_id < len(offsets) else 0


async def _each(items: Iterable[S], action: Callable[[S], Awaitable[None]], at_once: int) -> None:
    """Run an action for each item, some at a time; after the first failure no further begins."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await action(item)

    workers = [asyncio.create_task(work()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
