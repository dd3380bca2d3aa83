"""The metric families of a page, and reading tables for them in slices."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from time import perf_counter
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tianzhou.broker.config import BrokerConfig

T = TypeVar("T")

RECORDS_READ_MAX = 2_000
"""Records that one metric of a page may read to find the age of backlogs."""
_SLICE_S = 0.002
"""How long a table is read before the event loop runs other work."""


def node_labels(config: BrokerConfig) -> dict[str, str]:
    """The labels of every metric of RocketMQ 5.x."""
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
    """The items of a table as it is now; the event loop runs other work in between.

    An iterator is read step by step, so it must not depend on a table that changes meanwhile.
    """
    ends_s = perf_counter() + _SLICE_S
    for item in list(items) if isinstance(items, Collection) else items:
        if perf_counter() > ends_s:
            await asyncio.sleep(0)
            ends_s = perf_counter() + _SLICE_S
        yield item
