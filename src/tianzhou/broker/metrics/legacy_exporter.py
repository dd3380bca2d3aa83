"""Metrics under the names of the older rocketmq-exporter, for its dashboards.

That exporter is a separate program that queries brokers as `mqadmin` does and caches the responses;
the same values are computed here. Values of consumers (rocketmq_client_*) are not included. Names
and labels are the exporter's, with its inconsistent spellings.

Values are read when the page is requested. Rates are those of the last minute, as in the exporter;
a topic or group has them while it is active and for a day after that.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric

from tianzhou.broker.handlers.admin.broker import runtime_info
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.metrics.families import RECORDS_READ_MAX, Families, in_slices, node_labels
from tianzhou.broker.statistics.history import SEPARATOR
from tianzhou.broker.statistics.series import MINUTE
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

_GROUP = ("topic", "group")


async def add_exporter_metrics(deps: Deps, page: list[Metric]) -> None:
    """Add every metric that a broker knows."""
    config = deps.settings.config
    cluster, broker = config.broker_cluster_name, config.broker_name
    families = Families(page, {"cluster": cluster, "broker": broker})
    whole = Families(page, {"cluster": cluster, "brokerIP": deps.address, "broker": broker})
    for _ in deps.history.refresh_in_steps(deps.clock()):
        await asyncio.sleep(0)
    await _add_rates(deps, families, whole)
    await _add_ends(deps, families)
    await _add_online(deps, families, Families(page, {}))
    _add_slaves(deps, page)
    await _add_groups(deps, families, page)
    _add_runtime(deps, page)


# -- rates -----------------------------------------------------------------------------------------

_RATES: Mapping[str, tuple[str, str]] = {
    "rocketmq_producer_tps": ("TOPIC_PUT_NUMS", "Messages stored per second"),
    "rocketmq_producer_message_size": ("TOPIC_PUT_SIZE", "Bytes stored per second"),
    "rocketmq_consumer_tps": ("GROUP_GET_NUMS", "Messages delivered per second"),
    "rocketmq_consumer_message_size": ("GROUP_GET_SIZE", "Bytes delivered per second"),
    "rocketmq_group_consume_tps": ("GROUP_GET_NUMS", "Messages delivered per second"),
    "rocketmq_send_back_nums": ("SNDBCK_PUT_NUMS", "Messages sent back"),
    "rocketmq_group_get_latency": ("GROUP_GET_LATENCY", "Mean ms of reading"),
    "rocketmq_broker_tps": ("BROKER_PUT_NUMS", "Messages stored per second"),
    "rocketmq_broker_qps": ("BROKER_GET_NUMS", "Messages delivered per second"),
}
_FIELDS = {"rocketmq_send_back_nums": "sum", "rocketmq_group_get_latency": "per_call"}
"""Metrics that are the sum or the mean of the last minute; the others are the rate."""


async def _add_rates(deps: Deps, families: Families, whole: Families) -> None:
    now_ms = deps.clock()
    for name, (statistic, meaning) in _RATES.items():
        # The key is the cluster for the whole broker, else a topic, or topic and group.
        is_whole = statistic.startswith("BROKER")
        labels = () if is_whole else ("topic",) if statistic.startswith("TOPIC") else _GROUP
        add = (whole if is_whole else families).gauge(
            name, f"{meaning}, over the last minute", *labels
        )
        field = _FIELDS.get(name, "per_second")
        async for key, stats in in_slices(deps.history.over_window(statistic, MINUTE, now_ms)):
            add(getattr(stats, field), *(() if is_whole else key.split(SEPARATOR)))
        await asyncio.sleep(0)


def _add_slaves(deps: Deps, page: list[Metric]) -> None:
    """The lag of each slave. A master reports it, so that it is there once for each slave."""
    config = deps.settings.config
    labels = {"cluster": config.broker_cluster_name, "broker": config.broker_name}
    behind = Families(page, labels).gauge(
        "rocketmq_broker_commitlog_diff", "Bytes a slave is behind", "brokerIP"
    )
    if not config.is_slave:
        for slave in deps.replication_status().slaves:
            behind(slave.behind_bytes, slave.address)


# -- offsets and backlogs --------------------------------------------------------------------------


async def _add_ends(deps: Deps, families: Families) -> None:
    ends = families.gauge("rocketmq_producer_offset", "Messages ever stored", "topic")
    retries = families.gauge("rocketmq_topic_retry_offset", "Retries ever stored", "topic")
    dead = families.gauge("rocketmq_topic_dlq_offset", "Dead letters ever stored", "group")
    async for name, topic in in_slices(deps.topics.topics.items()):
        count = max(topic.read_queue_count, topic.write_queue_count)
        total = sum(deps.store.max_offset(name, queue_id) for queue_id in range(count))
        if name.startswith(DLQ_TOPIC_PREFIX):
            dead(total, name.removeprefix(DLQ_TOPIC_PREFIX))
        else:
            (retries if name.startswith(RETRY_TOPIC_PREFIX) else ends)(total, name)


async def _add_online(deps: Deps, families: Families, unlabelled: Families) -> None:
    """Connected clients."""
    members = unlabelled.gauge(
        "rocketmq_group_count", "Consumers that are connected", "caddr", "localaddr", "group"
    )
    async for name, online in in_slices(deps.consumers.groups.items()):
        addresses = ",".join(channel.peer for channel in online.members)
        members(len(online.members), addresses, ",".join(online.client_ids()), name)
    senders = families.gauge("rocketmq_producer_count", "Producers that are connected", "group")
    async for name, channels in in_slices(deps.producers.groups.items()):
        senders(len(channels), name)


async def _add_groups(deps: Deps, families: Families, page: list[Metric]) -> None:
    """The progress and backlog of groups in topics, under the names of 5.x, too."""
    now_ms = deps.clock()
    consumed = [
        families.gauge(f"rocketmq_{name}", "Messages consumed, by offsets", *_GROUP)
        for name in ("consumer_offset", "group_consume_total_offset")
    ]
    of_5x = Families(page, node_labels(deps.settings.config))
    not_consumed = "Messages not consumed yet"
    behind = [
        families.gauge("rocketmq_message_accumulation", not_consumed, *_GROUP),
        of_5x.gauge("rocketmq_consumer_lag_messages", not_consumed, "topic", "consumer_group"),
    ]
    of_oldest = "Age in ms of the oldest not consumed"
    age = [
        families.gauge("rocketmq_group_get_latency_by_storetime", of_oldest, *_GROUP),
        of_5x.gauge("rocketmq_consumer_lag_latency", of_oldest, "topic", "consumer_group"),
    ]
    diff, retry_diff, dlq_diff = (
        Families(page, {}).gauge(name, meaning, *_GROUP[::-1], "countOfOnlineConsumers", "msgModel")
        for name, meaning in (
            ("rocketmq_group_diff", not_consumed),
            ("rocketmq_group_retrydiff", "Messages to be tried again"),
            ("rocketmq_group_dlqdiff", "Dead letters"),
        )
    )

    def add_diff(add: Callable[..., None], group: str, topic: str, count: int) -> None:
        online = deps.consumers.get(group)
        model = "CLUSTERING" if online is None else online.message_model
        add(count, group, topic, str(0 if online is None else len(online.members)), model)

    reads_left = RECORDS_READ_MAX
    async for topic, group, live in in_slices(deps.offsets.progress()):
        queues = live.copy()
        if topic.startswith(DLQ_TOPIC_PREFIX):
            continue  # reading dead letters does not remove them
        lags = {
            queue_id: max(deps.store.max_offset(topic, queue_id) - queue_offset, 0)
            for queue_id, queue_offset in queues.items()
        }
        for add in consumed:
            add(sum(queues.values()), topic, group)
        lag = sum(lags.values())
        for add in behind:
            add(lag, topic, group)
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        add_diff(retry_diff if is_retry else diff, group, topic, lag)
        late = [(queue_id, queues[queue_id]) for queue_id, lag in lags.items() if lag]
        if len(late) <= reads_left:
            reads_left -= len(late)
            times = [deps.store.store_time(topic, *each) for each in late]
            oldest_ms = min((each for each in times if each is not None), default=now_ms)
            for add in age:
                add(max(now_ms - oldest_ms, 0), topic, group)
    async for topic in in_slices(deps.topics.topics):
        if topic.startswith(DLQ_TOPIC_PREFIX):
            count = deps.store.max_offset(topic, 0)
            add_diff(dlq_diff, topic.removeprefix(DLQ_TOPIC_PREFIX), topic, count)


# -- the table of brokerStatus ---------------------------------------------------------------------

_RUNTIME = (
    "msg_put_total_today_now", "msg_gettotal_today_now", "msg_puttotal_todaymorning",
    "msg_gettotal_todaymorning", "msg_puttotal_yesterdaymorning", "msg_gettotal_yesterdaymorning",
    "putmessage_times_total", "put_message_size_total", "put_message_average_size",
    "putmessage_entire_time_max", "getmessage_entire_time_max", "put_latency_99",
    "put_latency_999", "send_threadpool_queue_size", "send_threadpoolqueue_capacity",
    "send_threadpoolqueue_headwait_timemills", "pull_threadpoolqueue_size",
    "pull_threadpoolqueue_capacity", "pull_threadpoolqueue_headwait_timemills",
    "query_threadpoolqueue_size", "query_threadpool_queue_capacity",
    "query_threadpoolqueue_headwait_timemills", "pagecache_lock_time_mills",
    "dispatch_behind_bytes", "dispatch_maxbuffer", "remain_howmanydata_toflush",
    "remain_transientstore_buffer_numbs", "commitlog_minoffset", "commitlog_maxoffset",
    "commitlog_disk_ratio", "consumequeue_disk_ratio", "earliest_message_timestamp",
    "start_accept_sendrequest_time",
)  # fmt: skip
"""The exporter's names, without its rocketmq_brokeruntime_: nearly the keys of `brokerStatus`, in
lower case and with some underscores."""
_RUNTIME_RATES = ("put_tps", "getfound_tps", "getmiss_tps", "gettotal_tps", "gettransfered_tps")
_OTHER_KEYS = {"start_accept_sendrequest_time": "startacceptsendrequesttimestamp"}
_RATE_SPANS_S = (10, 60, 600)
_PUT_STEPS = (
    "0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s", "1to2s",
    "2to3s", "3to4s", "4to5s", "5to10s", "10stomore",
)  # fmt: skip
_CAPACITY = re.compile(r"Total : ([\d.]+) (\w)iB, Free : ([\d.]+) (\w)iB")
_BINARY_UNITS = "KMGTPE"
_NUMBER = re.compile(r"-?[\d.]+")
_COUNT = re.compile(r":(\d+)")


def _add_runtime(deps: Deps, page: list[Metric]) -> None:
    table = runtime_info(deps)
    run = {
        "cluster": deps.settings.config.broker_cluster_name,
        "brokerIP": deps.address,
        # The exporter has a label for the host name and leaves it empty.
        "brokerHost": "",
        "des": table.get("brokerVersionDesc", ""),
        "boottime": table.get("bootTimestamp", ""),
        "broker_version": table.get("brokerVersion", ""),
    }
    families = Families(page, run)
    for name, value in runtime_values(table):
        families.gauge(f"rocketmq_brokeruntime_{name}", "As brokerStatus shows it")(value)


def runtime_values(table: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """The values of the table of `brokerStatus` under the exporter's names."""
    by_key = {key.lower(): value for key, value in table.items()}

    def value_of(name: str) -> str:
        return by_key.get(_OTHER_KEYS.get(name, name.replace("_", "")), "")

    for name in _RUNTIME:
        if (match := _NUMBER.match(value_of(name))) is not None:
            yield name, float(match[0])
    for name in _RUNTIME_RATES:
        for span_s, rate in zip(_RATE_SPANS_S, value_of(name).split(), strict=False):
            yield f"{name}{span_s}", float(rate)
    counts = _COUNT.findall(table.get("putMessageDistributeTime", ""))
    for step, count in zip(_PUT_STEPS, counts, strict=False):
        yield f"pmdt_{step}", float(count)
    if (match := _CAPACITY.match(table.get("commitLogDirCapacity", ""))) is not None:
        yield "commitlogdir_capacity_total", _in_bytes(match[1], match[2])
        yield "commitlogdir_capacity_free", _in_bytes(match[3], match[4])


def _in_bytes(number: str, unit: str) -> float:
    return float(number) * float(1024 ** (_BINARY_UNITS.index(unit) + 1))
