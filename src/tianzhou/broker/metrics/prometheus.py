"""The Prometheus metrics of the broker, and its health page.

Names are those of RocketMQ 5.x (`rocketmq_messages_in_total`); those of the older exporter, which
dashboards use, are in `legacy_exporter`. The page is computed from the tables when it is requested.
They are collected in slices, so that the event loop runs other work in between, and encoded in a
thread: with thousands of topics both take long. Concurrent requests share one page.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tianzhou.broker.acl.guard import DenialReason
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.metrics.backlog import BacklogDeps, backlog_metrics
from tianzhou.broker.metrics.legacy_exporter import YIELD_EVERY, ExporterDeps, exporter_metrics
from tianzhou.broker.statistics.counters import Counts, Stats
from tianzhou.broker.tables.clients import ConsumerTable, ProducerTable
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.config.live import LiveSettings
from tianzhou.names import DLQ_TOPIC_PREFIX
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.http import Page, Pages
from tianzhou.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class MetricDeps:
    """What the metrics are read from."""

    settings: LiveSettings[BrokerConfig]
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    consumers: ConsumerTable[Connection]
    producers: ProducerTable[Connection]
    store: MessageStore
    stats: Stats
    parked_count: Callable[[], int]
    quota_refusals: Callable[[], Mapping[str, int]]
    """How many requests each kind of limit of the quota file rejected."""
    table_refusals: Mapping[str, int]
    """How many additions to full tables were rejected, by setting."""
    acl_refusals: Callable[[], Mapping[DenialReason, int]]
    """How many requests access control denied, by the missing permission."""
    waiting: BacklogDeps
    """What the metrics of halves, timed and popped messages are read from."""
    exporter: ExporterDeps
    """What the metrics under the older names are read from."""


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class MetricsPage:
    """/metrics; concurrent requests share one page."""

    def __init__(self, deps: MetricDeps) -> None:
        self._deps = deps
        self._task: asyncio.Task[Page] | None = None

    def __call__(self) -> Awaitable[Page]:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._make())
            # The requests may be gone, as when the broker stops; then nothing reads the result.
            self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return asyncio.shield(self._task)

    async def _make(self) -> Page:
        families: list[Metric] = []
        for family in _metrics(self._deps):
            if family is None:
                await asyncio.sleep(0)
            else:
                families.append(family)
        text = await asyncio.to_thread(_render, families)
        return Page(text, CONTENT_TYPE_LATEST)


def _render(families: list[Metric]) -> bytes:
    """The text of the page. Frees the metrics, too: in the event loop that takes over 50 ms."""
    text = generate_latest(_Collected(families))  # pyright: ignore[reportArgumentType] - it asks for `collect` only
    families.clear()
    return text


def _metrics(deps: MetricDeps) -> Iterator[Metric | None]:
    """All metrics, with None where the event loop should run other work."""
    for some in (_throughput(deps), _backlog(deps), _state(deps)):
        yield from some
        yield None
    node = _labels(deps.settings.config)
    yield from backlog_metrics(deps.waiting, _NODE, node, deps.exporter.clock())
    yield None
    yield from exporter_metrics(deps.exporter)


def pages(deps: MetricDeps) -> Pages:
    """The HTTP pages of the broker."""
    return {"/metrics": MetricsPage(deps), "/health": lambda: health_page(deps.store)}


def health_page(store: MessageStore) -> Page:
    """/health: 200 while messages are accepted, 503 with the reason while they are not."""
    refusal = store.refusal
    if refusal is None:
        return Page(b"ok\n")
    return Page(f"takes no messages: {refusal}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)


def _labels(config: BrokerConfig) -> list[str]:
    return [config.broker_cluster_name, "broker", config.broker_name]


_NODE = ["cluster", "node_type", "node_id"]


def _throughput(deps: MetricDeps) -> Iterator[Metric | None]:
    node = _labels(deps.settings.config)
    topic, group = [*_NODE, "topic"], [*_NODE, "topic", "consumer_group"]
    came: dict[str, Counts] = {}
    for number, ((name, _), counts) in enumerate(list(deps.stats.by_queue.items()), 1):
        if not number % YIELD_EVERY:
            yield None
        _add(came.setdefault(name, Counts()), counts)
    went: dict[tuple[str, str], Counts] = {}
    for number, ((name, _, reader), counts) in enumerate(list(deps.stats.by_group.items()), 1):
        if not number % YIELD_EVERY:
            yield None
        _add(went.setdefault((name, reader), Counts()), counts)
    messages_in = CounterMetricFamily("rocketmq_messages_in", "Messages stored", labels=topic)
    bytes_in = CounterMetricFamily("rocketmq_throughput_in", "Bytes stored", labels=topic)
    for number, (name, counts) in enumerate(came.items(), 1):
        if not number % YIELD_EVERY:
            yield None
        messages_in.add_metric([*node, name], counts.messages)
        bytes_in.add_metric([*node, name], counts.size_bytes)
    messages_out = CounterMetricFamily("rocketmq_messages_out", "Messages delivered", labels=group)
    bytes_out = CounterMetricFamily("rocketmq_throughput_out", "Bytes delivered", labels=group)
    for number, ((name, reader), counts) in enumerate(went.items(), 1):
        if not number % YIELD_EVERY:
            yield None
        messages_out.add_metric([*node, name, reader], counts.messages)
        bytes_out.add_metric([*node, name, reader], counts.size_bytes)
    dead = CounterMetricFamily("rocketmq_send_to_dlq_messages", "Dead letters", labels=group)
    for (name, reader), count in list(deps.stats.dead.items()):
        dead.add_metric([*node, name, reader], count)
    refused = CounterMetricFamily(
        "tianzhou_messages_refused", "Messages that could not be stored", labels=_NODE
    )
    refused.add_metric(node, deps.stats.put_failures)
    above = CounterMetricFamily(
        "tianzhou_quota_refusals", "Requests above a limit of quotaFile", labels=[*_NODE, "limit"]
    )
    for name, count in deps.quota_refusals().items():
        above.add_metric([*node, name], count)
    full = CounterMetricFamily(
        "tianzhou_table_refusals", "Additions to a full table", labels=[*_NODE, "limit"]
    )
    for name, count in deps.table_refusals.items():
        full.add_metric([*node, name], count)
    denied = CounterMetricFamily(
        "tianzhou_acl_refusals", "Requests that access control refused", labels=[*_NODE, "lack"]
    )
    for name, count in deps.acl_refusals().items():
        denied.add_metric([*node, name], count)
    yield from (messages_in, bytes_in, messages_out, bytes_out, dead, refused, above, full, denied)


def _add(total: Counts, counts: Counts) -> None:
    total.messages += counts.messages
    total.size_bytes += counts.size_bytes


def _backlog(deps: MetricDeps) -> Iterator[Metric | None]:
    """The backlog of consumers."""
    node = _labels(deps.settings.config)
    lag = GaugeMetricFamily(
        "rocketmq_consumer_lag_messages", "Messages not consumed yet",
        labels=[*_NODE, "topic", "consumer_group"],
    )  # fmt: skip
    for number, (topic, group, queues) in enumerate(list(deps.offsets.progress()), 1):
        if not number % YIELD_EVERY:
            yield None
        if topic.startswith(DLQ_TOPIC_PREFIX):
            continue  # reading dead letters does not remove them
        behind = sum(
            max(0, deps.store.max_offset(topic, queue_id) - queue_offset)
            for queue_id, queue_offset in queues.copy().items()
        )
        lag.add_metric([*node, topic, group], behind)
    yield lag


def _state(deps: MetricDeps) -> Iterator[Metric]:
    config, store = deps.settings.config, deps.store
    node = _labels(config)
    earliest = store.earliest_log_time()
    gauges = {
        "rocketmq_broker_permission": ("Permission bits", config.broker_permission),
        "rocketmq_topic_number": ("Topics", len(deps.topics.topics)),
        "rocketmq_consumer_group_number": ("Consumer groups", len(deps.groups.groups)),
        "rocketmq_producer_connections": (
            "Producers", sum(map(len, deps.producers.groups.values()))),
        "rocketmq_consumer_connections": (
            "Consumers", sum(len(each.members) for each in deps.consumers.groups.values())),
        "rocketmq_storage_size": (
            "Bytes in the log", store.end_log_offset - store.first_log_offset),
        "rocketmq_storage_flush_behind_bytes": (
            "Bytes not flushed yet", store.end_log_offset - store.flushed_log_offset),
        "rocketmq_storage_dispatch_behind_bytes": ("Bytes not in their queues yet", 0),
        "rocketmq_storage_message_reserve_time": (
            "Age of the first message, ms",
            None if earliest is None else max(deps.exporter.clock() - earliest, 0)),
        "tianzhou_earliest_message_timestamp_ms": ("Store time of the first message", earliest),
        "tianzhou_waiting_pulls": ("Pulls that wait for messages", deps.parked_count()),
        "tianzhou_takes_messages": ("1 while messages are taken", int(store.refusal is None)),
    }  # fmt: skip
    for name, (meaning, value) in gauges.items():
        if value is not None:
            family = GaugeMetricFamily(name, meaning, labels=_NODE)
            family.add_metric(node, value)
            yield family
