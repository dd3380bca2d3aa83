"""A cluster as JSON documents in the layout of RocketMQ's `mqadmin export*`.

    metadata   topics and groups, summed over all masters
    configs    settings of each broker that matter for a migration, and the number of servers
    metrics    rates, totals and clients of each broker, and the sums

Migration tools read these documents, so their names and layout are RocketMQ's.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.fanout import BrokerRef, gather
from tianzhou.admin.rates import first_number
from tianzhou.names import (
    DLQ_TOPIC_PREFIX,
    HALF_TOPIC,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    is_internal_group,
)
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.stats import BrokerStatsData
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.version import CURRENT_VERSION, version_name

Document = dict[str, Any]

SETTINGS = (
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime",
    "filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel",
    "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
)  # fmt: skip
"""The settings that `mqadmin exportConfigs` exports."""

_TPS = ("normalInTps", "normalOutTps", "transInTps", "scheduleInTps")
_ONE_DAY = ("normalOneDayInNum", "normalOneDayOutNum", "transOneDayInNum", "scheduleOneDayInNum")


@dataclass(frozen=True, slots=True)
class Exported:
    """A document, and a warning per broker that is missing in it."""

    document: Document
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Tables:
    """Topics and groups of one broker, without system ones."""

    topics: dict[str, TopicConfig]
    groups: dict[str, SubscriptionGroupConfig]


async def tables_of(admin: Admin, at: BrokerRef, system_topics: Iterable[str]) -> Tables:
    """Topics of one broker, retry and dead-letter topics included, and groups."""
    topics, groups = await asyncio.gather(
        admin.topics.all_configs(at), admin.groups.all_configs(at)
    )
    hidden = set(system_topics)
    return Tables(
        {name: topic for name, topic in sorted(topics.items()) if name not in hidden},
        {name: group for name, group in sorted(groups.items()) if not is_internal_group(name)},
    )


# -- metadata --------------------------------------------------------------------------------------


async def metadata(
    admin: Admin, brokers: Sequence[BrokerRef], *, special: bool, now_ms: int
) -> Exported:
    """Topics and groups of brokers; with `special` also retry and dead-letter topics."""
    hidden = await admin.topics.system_names()
    gathered = await gather(brokers, lambda at: tables_of(admin, at, hidden))
    return Exported(
        add_up(gathered.responses.values(), special=special, now_ms=now_ms), gathered.warnings
    )


def add_up(tables: Iterable[Tables], *, special: bool, now_ms: int) -> Document:
    """The document of several brokers; queues of the same topic are summed."""
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    for each in tables:
        for name, topic in each.topics.items():
            if not special and name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
                continue
            before = topics.get(name)
            topics[name] = topic if before is None else msgspec.structs.replace(
                topic,
                read_queue_count=topic.read_queue_count + before.read_queue_count,
                write_queue_count=topic.write_queue_count + before.write_queue_count,
            )  # fmt: skip
        for name, group in each.groups.items():
            known = groups.get(name)
            groups[name] = group if known is None else msgspec.structs.replace(
                group, retry_queue_count=group.retry_queue_count + known.retry_queue_count
            )  # fmt: skip
    return {
        "topicConfigTable": {name: _plain(each) for name, each in sorted(topics.items())},
        "subscriptionGroupTable": {name: _plain(each) for name, each in sorted(groups.items())},
        "exportTime": now_ms,
    }


def _plain(body: msgspec.Struct) -> Document:
    fields: Document = msgspec.to_builtins(body)
    return {name: value for name, value in fields.items() if value is not None}


# -- configs ---------------------------------------------------------------------------------------


async def configs(admin: Admin, brokers: Sequence[BrokerRef]) -> Exported:
    """Settings of the masters, and the number of servers."""
    masters = [at for at in brokers if at.is_master]
    gathered = await gather(masters, admin.brokers.settings)
    document = {
        "brokerConfigs": {
            at.name: exported_settings(each) for at, each in gathered.responses.items()
        },
        "clusterScale": {
            "namesrvSize": len(admin.namesrv.addresses),
            "masterBrokerSize": len(masters),
            "slaveBrokerSize": len(brokers) - len(masters),
        },
    }
    return Exported(document, gathered.warnings)


def exported_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The exported settings; those that a broker does not have are left out."""
    return {name: settings[name] for name in SETTINGS if name in settings}


# -- metrics ---------------------------------------------------------------------------------------


async def metrics(admin: Admin, brokers: Sequence[BrokerRef]) -> Exported:
    """Rates, totals and clients of the masters."""
    masters = [at for at in brokers if at.is_master]
    hidden = await admin.topics.system_names()
    gathered = await gather(masters, lambda at: _report(admin, at, hidden))
    return Exported(
        summed({at.name: each for at, each in gathered.responses.items()}), gathered.warnings
    )


def summed(reports: Mapping[str, Document]) -> Document:
    """The document: the reports of the brokers, and their sums."""
    quotas = [each["runtimeQuota"] for each in reports.values()]
    rates = {
        f"total{name[0].upper()}{name[1:]}": sum(quota["tps"][name] for quota in quotas)
        for name in _TPS
    }
    counts = {name: sum(quota["oneDayNum"][name] for quota in quotas) for name in _ONE_DAY}
    return {
        "evaluateReport": dict(reports),
        "totalData": {"totalTps": rates, "totalOneDayNum": counts},
    }


async def _report(admin: Admin, at: BrokerRef, hidden: Iterable[str]) -> Document:
    statistic = admin.brokers.statistic
    runtime, settings, tables, halves, delayed = await asyncio.gather(
        admin.brokers.runtime(at),
        admin.brokers.settings(at),
        tables_of(admin, at, hidden),
        statistic(at, "TOPIC_PUT_NUMS", HALF_TOPIC),
        statistic(at, "TOPIC_PUT_NUMS", SCHEDULE_TOPIC),
    )
    clients = await _clients(admin, at, tables.groups)
    special = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
    topic_count = sum(not name.startswith(special) for name in tables.topics)
    return {
        "runtimeEnv": {
            "cpuNum": settings.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": runtime.get("totalMemKBytes"),
        },
        "runtimeQuota": quota_of(runtime, halves, delayed)
        | {"topicSize": topic_count, "groupSize": len(tables.groups)},
        "runtimeVersion": {
            "rocketmqVersion": runtime.get("brokerVersionDesc", version_name(CURRENT_VERSION)),
            "clientInfo": clients,
        },
    }


async def _clients(admin: Admin, at: BrokerRef, groups: Iterable[str]) -> list[str]:
    """Language and version of every online consumer, as "JAVA%V4_9_7"."""
    found: set[str] = set()
    for group in groups:
        online = await admin.groups.connection(at, group)
        for each in online.connections if online is not None else ():
            found.add(f"{each.language}%{version_name(each.version)}")
    return sorted(found)


def quota_of(
    runtime: Mapping[str, str], halves: BrokerStatsData | None, delayed: BrokerStatsData | None
) -> Document:
    """Rates, counts and disk usage from the run-time figures of a broker."""
    transferred = runtime.get("getTransferedTps") or runtime.get("getTransferredTps")
    return {
        "diskRatio": {
            "commitLogDiskRatio": runtime.get("commitLogDiskRatio"),
            "consumeQueueDiskRatio": runtime.get("consumeQueueDiskRatio"),
        },
        "tps": {
            "normalInTps": first_number(runtime.get("putTps")) or 0.0,
            "normalOutTps": first_number(transferred) or 0.0,
            "transInTps": _minute(halves),
            "scheduleInTps": _minute(delayed),
        },
        "oneDayNum": {
            "normalOneDayInNum": _yesterday(runtime, "msgPutTotal"),
            "normalOneDayOutNum": _yesterday(runtime, "msgGetTotal"),
            "transOneDayInNum": _day(halves),
            "scheduleOneDayInNum": _day(delayed),
        },
        "messageAverageSize": runtime.get("putMessageAverageSize"),
    }


def _minute(stats: BrokerStatsData | None) -> float:
    return stats.minute.tps if stats is not None and stats.minute is not None else 0.0


def _day(stats: BrokerStatsData | None) -> int:
    """The sum of the longest period that has one: a new broker has no day yet."""
    spans = (stats.day, stats.hour, stats.minute) if stats is not None else ()
    return next((each.sum for each in spans if each is not None and each.sum), 0)


def _yesterday(runtime: Mapping[str, str], name: str) -> int:
    today = first_number(runtime.get(f"{name}TodayMorning")) or 0
    before = first_number(runtime.get(f"{name}YesterdayMorning")) or 0
    return int(today - before)
