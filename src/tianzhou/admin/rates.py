"""Rates of brokers, groups and topics, from the run-time figures and statistics of brokers.

RocketMQ reports rates as text: "12.30 11.90 10.01" are the messages per second of the last 10 s,
60 s and 600 s. A figure that a broker does not report is None.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.brokers import Brokers
from tianzhou.admin.fanout import BrokerRef, gather, run_limited
from tianzhou.admin.group_detail import merge_progress, total_lag
from tianzhou.admin.groups import Groups
from tianzhou.errors import RequestError
from tianzhou.protocol.bodies.stats import ConsumeStats

AT_ONCE_MAX = 16
_PUT_STEPS = 13
_COUNT = re.compile(r"\]:\s*(\d+)")


@dataclass(frozen=True, slots=True)
class BrokerRates:
    """One broker at one moment."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    version: str
    in_tps: float | None
    out_tps: float | None
    in_today: int | None
    out_today: int | None
    put_p99_ms: float | None
    """5.x only."""
    put_max_ms: float | None
    """The maximum of the last period, as the broker reports it."""
    put_counts: tuple[int, ...] | None
    """Messages stored within 0, 10, 50 ... ms, see `store_latency`."""
    answer_ms: float
    """Response time of this request."""
    waiting_sends: int | None
    waiting_pulls: int | None
    page_cache_lock_ms: float | None
    disk_ratio: float | None
    active: bool | None
    boot_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """One group at one moment."""

    group: str
    lag: int
    consume_tps: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one moment."""

    brokers: list[BrokerRates]
    groups: list[GroupBacklog]
    """Largest backlog first."""
    warnings: list[str]


async def rates_of(admin: Admin, at: BrokerRef) -> BrokerRates:
    """The rates of one broker."""
    started_s = time.perf_counter()
    runtime = await admin.brokers.runtime(at)
    return read_rates(at, runtime, (time.perf_counter() - started_s) * 1000)


async def snapshot(admin: Admin, *, cluster: str | None = None, backlog: bool = True) -> Snapshot:
    """The rates of every broker, and the backlog of every group."""
    brokers = await admin.clusters.brokers(cluster=cluster)
    gathered = await gather(brokers, lambda at: rates_of(admin, at))
    lags: list[GroupBacklog] = []
    warnings = list(gathered.warnings)
    if backlog:
        masters = [at for at in gathered.responses if at.is_master]
        tables = await gather(
            masters, lambda at: progress_by_group(admin.brokers, admin.groups, at)
        )
        warnings += tables.warnings
        lags = backlogs(tables.responses.values())
    return Snapshot(list(gathered.responses.values()), lags, warnings)


async def progress_by_group(
    brokers: Brokers, groups: Groups, at: BrokerRef
) -> dict[str, list[ConsumeStats]]:
    """The progress of every group of a broker, in one request instead of one for each group.

    A broker that refuses, since the answer would be too large, is asked group by group.
    """
    names = await groups.all_configs(at)
    found: dict[str, list[ConsumeStats]] = {name: [] for name in names}
    try:
        answer = await brokers.consume_stats(at)
    except RequestError:
        single = await run_limited(names, lambda name: groups.progress_on(at, name), AT_ONCE_MAX)
        return {name: [stats] for name, stats in zip(names, single, strict=True)}
    for table in answer.stats:
        for name, stats in table.items():
            if name in found:
                found[name] += stats
    return found


def by_group(
    tables: Iterable[Mapping[str, list[ConsumeStats]]],
) -> dict[str, list[ConsumeStats]]:
    """The progress of every group over some brokers."""
    stats: dict[str, list[ConsumeStats]] = {}
    for table in tables:
        for name, here in table.items():
            stats.setdefault(name, []).extend(here)
    return stats


def backlogs(tables: Iterable[Mapping[str, list[ConsumeStats]]]) -> list[GroupBacklog]:
    """The backlog of every group over some brokers, the largest first."""
    found = [
        GroupBacklog(name, total_lag(each), sum(one.consume_tps for one in each))
        for name, each in by_group(tables).items()
    ]
    return sorted(found, key=lambda each: (-each.lag, -each.consume_tps, each.group))


def read_rates(at: BrokerRef, runtime: Mapping[str, str], answer_ms: float) -> BrokerRates:
    """Parse the run-time table of a broker."""
    return BrokerRates(
        cluster=at.cluster,
        broker=at.name,
        broker_id=at.broker_id,
        address=at.address,
        version=runtime.get("brokerVersionDesc", "unknown"),
        in_tps=first_number(runtime.get("putTps")),
        # 4.9 misspells it, 5.x has both.
        out_tps=first_number(runtime.get("getTransferredTps") or runtime.get("getTransferedTps")),
        in_today=_difference(runtime, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        out_today=_difference(runtime, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        put_p99_ms=first_number(runtime.get("putLatency99")),
        put_max_ms=first_number(runtime.get("putMessageEntireTimeMax")),
        put_counts=_put_counts(runtime.get("putMessageDistributeTime")),
        answer_ms=answer_ms,
        waiting_sends=_whole(runtime.get("sendThreadPoolQueueSize")),
        waiting_pulls=_whole(runtime.get("pullThreadPoolQueueSize")),
        page_cache_lock_ms=first_number(runtime.get("pageCacheLockTimeMills")),
        disk_ratio=disk_ratio(runtime),
        active=runtime.get("brokerActive") == "true" if "brokerActive" in runtime else None,
        boot_ms=_whole(runtime.get("bootTimestamp")),
    )


def disk_ratio(runtime: Mapping[str, str]) -> float | None:
    """How full the fullest disk of the log is, 0 to 1."""
    found = [
        ratio
        for name, text in runtime.items()
        if name.startswith("commitLogDiskRatio") and (ratio := first_number(text)) is not None
    ]
    return max(found) if found and max(found) >= 0 else None


def first_number(text: str | None) -> float | None:
    """The first number of a text such as "12.30 11.90 10.01"."""
    try:
        return float(text.split()[0]) if text else None
    except (ValueError, IndexError):
        return None


def _put_counts(text: str | None) -> tuple[int, ...] | None:
    counts = tuple(map(int, _COUNT.findall(text or "")))
    return counts if len(counts) == _PUT_STEPS else None


def _whole(text: str | None) -> int | None:
    number = first_number(text)
    return None if number is None else int(number)


def _difference(runtime: Mapping[str, str], now: str, before: str) -> int | None:
    end, start = _whole(runtime.get(now)), _whole(runtime.get(before))
    return None if end is None or start is None else end - start


# -- topics ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupRates:
    """What one group reads from a topic."""

    group: str
    out_tps: float
    out_day: int
    lag: int


@dataclass(frozen=True, slots=True)
class TopicRates:
    """Messages into a topic, and out of it by group."""

    topic: str
    in_tps: float
    in_day: int
    groups: list[GroupRates]

    @property
    def is_active(self) -> bool:
        """Whether a message was sent or consumed in the last day."""
        return self.in_day > 0 or any(group.out_day for group in self.groups)

    def only_active(self) -> "TopicRates":
        """Without idle groups, unless messages were sent: then an idle group is of interest."""
        return replace(self, groups=[each for each in self.groups if self.in_day or each.out_day])


async def topic_rates(admin: Admin, brokers: Sequence[BrokerRef], topic: str) -> TopicRates:
    """The rates of a topic, summed over brokers."""
    in_tps, in_day = await _sum_statistic(admin, brokers, "TOPIC_PUT_NUMS", topic)
    groups: list[GroupRates] = []
    for group in await admin.topics.groups(topic):
        key = f"{topic}@{group}"
        out_tps, out_day = await _sum_statistic(admin, brokers, "GROUP_GET_NUMS", key)
        groups.append(GroupRates(group, out_tps, out_day, await _lag(admin, brokers, group, topic)))
    return TopicRates(topic, in_tps, in_day, groups)


async def _lag(admin: Admin, brokers: Sequence[BrokerRef], group: str, topic: str) -> int:
    progress = await gather(brokers, lambda at: admin.groups.progress_on(at, group, topic))
    queues = merge_progress(progress.responses.values()).values()
    return max(sum(each.broker_offset - each.consumer_offset for each in queues), 0)


async def _sum_statistic(
    admin: Admin, brokers: Sequence[BrokerRef], name: str, key: str
) -> tuple[float, int]:
    """Messages per second over the last minute, and messages of the last day."""
    statistics = await gather(brokers, lambda at: admin.brokers.statistic(at, name, key))
    counted = [each for each in statistics.responses.values() if each is not None]
    rate = sum(each.minute.tps for each in counted if each.minute)
    return rate, sum(each.day.sum for each in counted if each.day)
