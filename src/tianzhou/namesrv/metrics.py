"""/metrics of a nameserver for Prometheus: table sizes, and counters of refused requests."""

from collections.abc import Iterable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tianzhou.namesrv.registry import Sizes
from tianzhou.remoting.http import Page

_NODE_LABELS = ["node_type"]
_NODE = ["nameserver"]


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def metrics_page(
    sizes: Sizes,
    table_refusals: Mapping[str, int],
    quota_refusals: Mapping[str, int],
    access_refusal_count: int,
) -> Page:
    """The page, from the current state; refusals are counted by the name of the limit."""
    families: list[Metric] = []
    for name, meaning, value in (
        ("brokers", "Registered brokers", sizes.brokers),
        ("topics", "Topics", sizes.topics),
        ("routes", "Topics of all broker names together", sizes.routes),
    ):
        gauge = GaugeMetricFamily(f"tianzhou_namesrv_{name}", meaning, labels=_NODE_LABELS)
        gauge.add_metric(_NODE, value)
        families.append(gauge)
    for name, meaning, refusals in (
        ("tianzhou_table_refusals", "Additions to a full table", table_refusals),
        ("tianzhou_quota_refusals", "Requests above a limit of quotaFile", quota_refusals),
    ):
        counter = CounterMetricFamily(name, meaning, labels=[*_NODE_LABELS, "limit"])
        for limit, count in refusals.items():
            counter.add_metric([*_NODE, limit], count)
        families.append(counter)
    denied = CounterMetricFamily(
        "tianzhou_access_refusals", "Requests that accessFile refused", labels=_NODE_LABELS
    )
    denied.add_metric(_NODE, access_refusal_count)
    families.append(denied)
    text = generate_latest(_Collected(families))  # pyright: ignore[reportArgumentType] - it calls `collect` only
    return Page(text, CONTENT_TYPE_LATEST)
