"""Metrics under the names of the older rocketmq-exporter, for its dashboards.

That exporter is a separate program that queries brokers as `mqadmin` does and caches the responses;
the same values are computed here. Values of consumers (rocketmq_client_*) are not included. Names
and labels are the exporter's, with its inconsistent spellings.

Values are read when the page is requested. Rates are those of the last minute, as in the exporter;
a topic or group has them while it is active and for a day after that.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.statistics.history import SEPARATOR, History
from tianzhou.broker.statistics.series import MINUTE, WindowStats
from tianzhou.broker.tables.clients import ConsumerTable, ProducerTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.remoting.connection import Connection
from tianzhou.store.message_store import MessageStore

_RECORDS_READ_MAX = 2_000
"""Records that one page may read to find the age of backlogs; the rest have no such metric."""

YIELD_EVERY = 256
"""Topics, or groups in topics, that are read before the event loop runs other work."""

_BROKER = ["cluster", "broker"]
_AT_BROKER = ["cluster", "brokerIP", "broker"]
_OF_RUN = ["cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version"]
_TOPIC = [*_BROKER, "topic"]
_GROUP = [*_BROKER, "topic", "group"]


@dataclass(frozen=True, slots=True)
class ExporterDeps:
    """What these metrics are read from."""

    settings: LiveSettings[BrokerConfig]
    address: str
    """The address for clients; the exporter calls it the broker's IP."""
    topics: TopicTable
    offsets: OffsetTable
    consumers: ConsumerTable[Connection]
    producers: ProducerTable[Connection]
    store: MessageStore
    history: History
    runtime: Callable[[], Mapping[str, str]]
    """The table of `brokerStatus`."""
    clock: Clock


def exporter_metrics(deps: ExporterDeps) -> Iterator[Metric | None]:
    """Every metric that a broker knows; None where the event loop should run other work."""
    yield from deps.history.refresh_in_steps(deps.clock())
    for some in (_rates(deps), _ends(deps), _online(deps), _groups(deps), _runtime(deps)):
        yield from some
        yield None


def _gauge(name: str, meaning: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels)


def _node(deps: ExporterDeps) -> list[str]:
    config = deps.settings.config
    return [config.broker_cluster_name, config.broker_name]


def _at_node(deps: ExporterDeps) -> list[str]:
    cluster, broker = _node(deps)
    return [cluster, deps.address, broker]


# -- rates -----------------------------------------------------------------------------------------

_RATES: Mapping[str, tuple[str, str]] = {
    "rocketmq_producer_tps": ("TOPIC_PUT_NUMS", "Messages stored per second"),
    "rocketmq_producer_message_size": ("TOPIC_PUT_SIZE", "Bytes stored per second"),
    "rocketmq_consumer_tps": ("GROUP_GET_NUMS", "Messages delivered per second"),
    "rocketmq_consumer_message_size": ("GROUP_GET_SIZE", "Bytes delivered per second"),
    "rocketmq_group_consume_tps": ("GROUP_GET_NUMS", "Messages delivered per second"),
    "rocketmq_send_back_nums": ("SNDBCK_PUT_NUMS", "Messages sent back"),
    "rocketmq_broker_tps": ("BROKER_PUT_NUMS", "Messages stored per second"),
    "rocketmq_broker_qps": ("BROKER_GET_NUMS", "Messages delivered per second"),
}
_SUMS = ("rocketmq_send_back_nums",)
"""Metrics that are the sum of the last minute; the others are the rate."""


def _rates(deps: ExporterDeps) -> Iterator[Metric | None]:
    node, now_ms = _node(deps), deps.clock()

    def of(statistic: str) -> Iterable[tuple[str, WindowStats]]:
        return deps.history.over_window(statistic, MINUTE, now_ms)

    for name, (statistic, meaning) in _RATES.items():
        # The key is the cluster for the whole broker, else a topic, or topic and group.
        is_whole = statistic.startswith("BROKER")
        labels = _AT_BROKER if is_whole else _TOPIC if statistic.startswith("TOPIC") else _GROUP
        family = _gauge(name, f"{meaning}, over the last minute", labels)
        for number, (key, stats) in enumerate(of(statistic), 1):
            if not number % YIELD_EVERY:
                yield None
            label_values = _at_node(deps) if is_whole else [*node, *key.split(SEPARATOR)]
            family.add_metric(label_values, stats.sum if name in _SUMS else stats.per_second)
        yield family
        yield None
    latency = _gauge(
        "rocketmq_group_get_latency", "Mean ms of reading, over the last minute", _GROUP
    )
    for number, (key, stats) in enumerate(of("GROUP_GET_LATENCY"), 1):
        if not number % YIELD_EVERY:
            yield None
        latency.add_metric([*node, *key.split(SEPARATOR)], stats.per_call)
    yield latency


# -- offsets and backlogs --------------------------------------------------------------------------


def _ends(deps: ExporterDeps) -> Iterator[Metric | None]:
    node = _node(deps)
    ends = _gauge("rocketmq_producer_offset", "Messages ever stored", _TOPIC)
    retries = _gauge("rocketmq_topic_retry_offset", "Retries ever stored", _TOPIC)
    dead = _gauge("rocketmq_topic_dlq_offset", "Dead letters ever stored", [*_BROKER, "group"])
    for number, (name, topic) in enumerate(list(deps.topics.topics.items()), 1):
        if not number % YIELD_EVERY:
            yield None
        count = max(topic.read_queue_count, topic.write_queue_count)
        total = sum(deps.store.max_offset(name, queue_id) for queue_id in range(count))
        if name.startswith(RETRY_TOPIC_PREFIX):
            retries.add_metric([*node, name], total)
        elif name.startswith(DLQ_TOPIC_PREFIX):
            dead.add_metric([*node, name.removeprefix(DLQ_TOPIC_PREFIX)], total)
        else:
            ends.add_metric([*node, name], total)
    yield from (ends, retries, dead)


def _online(deps: ExporterDeps) -> Iterator[Metric | None]:
    """Connected clients, and the lag of slaves, which is empty: there is no replication."""
    node = _node(deps)
    members = _gauge(
        "rocketmq_group_count", "Consumers that are connected", ["caddr", "localaddr", "group"]
    )
    for number, (name, online) in enumerate(list(deps.consumers.groups.items()), 1):
        if not number % YIELD_EVERY:
            yield None
        addresses = ",".join(channel.peer for channel in online.members)
        clients = ",".join(client.client_id for client in online.members.values())
        members.add_metric([addresses, clients, name], len(online.members))
    senders = _gauge("rocketmq_producer_count", "Producers that are connected", [*_BROKER, "group"])
    for number, (name, channels) in enumerate(list(deps.producers.groups.items()), 1):
        if not number % YIELD_EVERY:
            yield None
        senders.add_metric([*node, name], len(channels))
    behind = _gauge("rocketmq_broker_commitlog_diff", "Bytes a slave is behind", _AT_BROKER)
    yield from (members, senders, behind)


def _groups(deps: ExporterDeps) -> Iterator[Metric | None]:
    node, now_ms = _node(deps), deps.clock()
    offsets = _gauge("rocketmq_consumer_offset", "Messages consumed, by offsets", _GROUP)
    totals = _gauge("rocketmq_group_consume_total_offset", "The same", _GROUP)
    behind = _gauge("rocketmq_message_accumulation", "Messages not consumed yet", _GROUP)
    age = _gauge(
        "rocketmq_group_get_latency_by_storetime", "Age in ms of the oldest not consumed", _GROUP
    )
    age_5x = _gauge(
        "rocketmq_consumer_lag_latency", "Age in ms of the oldest not consumed",
        ["cluster", "node_type", "node_id", "topic", "consumer_group"],
    )  # fmt: skip
    diffs = {
        prefix: _gauge(name, meaning, ["group", "topic", "countOfOnlineConsumers", "msgModel"])
        for prefix, name, meaning in (
            ("", "rocketmq_group_diff", "Messages not consumed yet"),
            (RETRY_TOPIC_PREFIX, "rocketmq_group_retrydiff", "Messages to be tried again"),
            (DLQ_TOPIC_PREFIX, "rocketmq_group_dlqdiff", "Dead letters"),
        )
    }

    def add_diff(prefix: str, group: str, topic: str, count: int) -> None:
        online = deps.consumers.get(group)
        model = "CLUSTERING" if online is None else online.message_model
        labels = [group, topic, str(0 if online is None else len(online.members)), model]
        diffs[prefix].add_metric(labels, count)

    reads_left = _RECORDS_READ_MAX
    for number, (topic, group, live) in enumerate(list(deps.offsets.progress()), 1):
        if not number % YIELD_EVERY:
            yield None
        queues = live.copy()
        if topic.startswith(DLQ_TOPIC_PREFIX):
            continue  # reading dead letters does not remove them
        labels = [*node, topic, group]
        lags = {
            queue_id: max(deps.store.max_offset(topic, queue_id) - queue_offset, 0)
            for queue_id, queue_offset in queues.items()
        }
        offsets.add_metric(labels, sum(queues.values()))
        totals.add_metric(labels, sum(queues.values()))
        behind.add_metric(labels, sum(lags.values()))
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        add_diff(RETRY_TOPIC_PREFIX if is_retry else "", group, topic, sum(lags.values()))
        late = [(queue_id, queues[queue_id]) for queue_id, lag in lags.items() if lag]
        if len(late) <= reads_left:
            reads_left -= len(late)
            times = [deps.store.store_time(topic, *each) for each in late]
            oldest_ms = min((each for each in times if each is not None), default=now_ms)
            age.add_metric(labels, max(now_ms - oldest_ms, 0))
            age_5x.add_metric(
                [node[0], "broker", node[1], topic, group], max(now_ms - oldest_ms, 0)
            )
    for number, topic in enumerate(list(deps.topics.topics), 1):
        if not number % YIELD_EVERY:
            yield None
        if topic.startswith(DLQ_TOPIC_PREFIX):
            count = deps.store.max_offset(topic, 0)
            add_diff(DLQ_TOPIC_PREFIX, topic.removeprefix(DLQ_TOPIC_PREFIX), topic, count)
    yield from (offsets, totals, behind, age, age_5x, *diffs.values())


# -- the table of brokerStatus ---------------------------------------------------------------------

_RUNTIME: Mapping[str, str] = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "putmessage_times_total": "putMessageTimesTotal",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "put_latency_99": "putLatency99",
    "put_latency_999": "putLatency999",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "remain_howmanydata_toflush": "remainHowManyDataToFlush",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "commitlog_minoffset": "commitLogMinOffset",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
}
"""By the exporter's name, without its rocketmq_brokeruntime_."""
_RUNTIME_RATES: Mapping[str, str] = {
    "put_tps": "putTps",
    "getfound_tps": "getFoundTps",
    "getmiss_tps": "getMissTps",
    "gettotal_tps": "getTotalTps",
    "gettransfered_tps": "getTransferedTps",
}
_RATE_SPANS_S = (10, 60, 600)
_PUT_STEPS = (
    "0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s", "1to2s",
    "2to3s", "3to4s", "4to5s", "5to10s", "10stomore",
)  # fmt: skip
_CAPACITY = re.compile(r"Total : ([\d.]+) (\w)iB, Free : ([\d.]+) (\w)iB")
_BINARY_UNITS = "KMGTPE"
_NUMBER = re.compile(r"-?[\d.]+")
_COUNT = re.compile(r":(\d+)")


def _runtime(deps: ExporterDeps) -> Iterator[Metric]:
    table = deps.runtime()
    # The exporter has a label for the host name and leaves it empty.
    run = [
        _node(deps)[0], deps.address, "",
        *(table.get(key, "") for key in ("brokerVersionDesc", "bootTimestamp", "brokerVersion")),
    ]  # fmt: skip
    for name, value in runtime_values(table):
        family = _gauge(f"rocketmq_brokeruntime_{name}", "As brokerStatus shows it", _OF_RUN)
        family.add_metric(run, value)
        yield family


def runtime_values(table: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """The values of the table of `brokerStatus` under the exporter's names."""
    for name, key in _RUNTIME.items():
        if (match := _NUMBER.match(table.get(key, ""))) is not None:
            yield name, float(match[0])
    for name, key in _RUNTIME_RATES.items():
        for span_s, rate in zip(_RATE_SPANS_S, table.get(key, "").split(), strict=False):
            yield f"{name}{span_s}", float(rate)
    counts = _COUNT.findall(table.get("putMessageDistributeTime", ""))
    for step, count in zip(_PUT_STEPS, counts, strict=False):
        yield f"pmdt_{step}", float(count)
    if (match := _CAPACITY.match(table.get("commitLogDirCapacity", ""))) is not None:
        yield "commitlogdir_capacity_total", _in_bytes(match[1], match[2])
        yield "commitlogdir_capacity_free", _in_bytes(match[3], match[4])


def _in_bytes(number: str, unit: str) -> float:
    return float(number) * float(1024 ** (_BINARY_UNITS.index(unit) + 1))
