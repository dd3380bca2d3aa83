"""What the metrics of a page are read from, and the families that it consists of."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tianzhou.broker.acl.guard import DenialReason
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.pop.inflight import PopTable
from tianzhou.broker.scheduled.timer_stats import TimerStats
from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.statistics.history import History
from tianzhou.broker.tables.clients import ConsumerTable, ProducerTable
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.clock import Clock
from tianzhou.config.live import LiveSettings
from tianzhou.remoting.connection import Connection
from tianzhou.store.message_store import MessageStore

T = TypeVar("T")

RECORDS_READ_MAX = 2_000
"""Records that one metric of a page may read to find the age of backlogs."""
_YIELD_EVERY = 256
"""Entries of a table that are read before the event loop runs other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDeps:
    """What the metrics are read from."""

    settings: LiveSettings[BrokerConfig]
    clock: Clock
    address: str
    """The address for clients; the exporter calls it the broker's IP."""
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    consumers: ConsumerTable[Connection]
    producers: ProducerTable[Connection]
    store: MessageStore
    stats: Stats
    history: History
    pops: PopTable
    timer: Callable[[], TimerStats]
    open_halves: Callable[[], int]
    parked_count: Callable[[], int]
    quota_refusals: Callable[[], Mapping[str, int]]
    """How many requests each kind of limit of the quota file rejected."""
    table_refusals: Mapping[str, int]
    """How many additions to full tables were rejected, by setting."""
    acl_refusals: Callable[[], Mapping[DenialReason, int]]
    """How many requests access control denied, by the missing permission."""
    runtime: Callable[[], Mapping[str, str]]
    """The table of `brokerStatus`."""

    @property
    def node(self) -> dict[str, str]:
        """The labels of every metric of RocketMQ 5.x."""
        config = self.settings.config
        return {
            "cluster": config.broker_cluster_name,
            "node_type": "broker",
            "node_id": config.broker_name,
        }


class Families:
    """Metric families of a page that begin with the same labels."""

    def __init__(self, page: list[Metric], labels: Mapping[str, str]) -> None:
        self._page = page
        self._labels = labels

    def gauge(self, name: str, meaning: str, *labels: str) -> Callable[..., None]:
        """Begin a family; returns a function that adds a value with its further labels."""
        return self._begin(GaugeMetricFamily(name, meaning, labels=[*self._labels, *labels]))

    def counter(self, name: str, meaning: str, *labels: str) -> Callable[..., None]:
        """The same for a counter."""
        return self._begin(CounterMetricFamily(name, meaning, labels=[*self._labels, *labels]))

    def _begin(self, family: GaugeMetricFamily | CounterMetricFamily) -> Callable[..., None]:
        self._page.append(family)
        common = [*self._labels.values()]

        def add(value: float, *labels: str) -> None:
            family.add_metric([*common, *labels], value)

        return add


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """The items of a table as it is now; the event loop runs other work in between."""
    for number, item in enumerate(list(items), 1):
        if not number % _YIELD_EVERY:
            await asyncio.sleep(0)
        yield item
