"""Metrics of halves, timed and popped messages, under the names of RocketMQ 5.x.

Open halves and timed messages are not counted by topic, so each is one number. The in-flight
messages of a group are known only if it pops.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tianzhou.broker.metrics.legacy_exporter import YIELD_EVERY
from tianzhou.broker.pop.inflight import PopTable
from tianzhou.broker.scheduled.timer_stats import TimerStats
from tianzhou.broker.statistics.counters import Stats
from tianzhou.store.message_store import MessageStore

_RECORDS_READ_MAX = 2_000
"""Records that one page may read to find the age of the next message to pop."""


@dataclass(frozen=True, slots=True)
class BacklogDeps:
    """What these metrics are read from."""

    store: MessageStore
    stats: Stats
    open_halves: Callable[[], int]
    timer: Callable[[], TimerStats]
    pops: PopTable


@dataclass(slots=True)
class _PopGroup:
    """A topic of a group that pops."""

    in_flight_count: int = 0
    ready_count: int = 0
    oldest_ready_ms: int | None = None


def backlog_metrics(
    deps: BacklogDeps, labels: list[str], node: list[str], now_ms: int
) -> Iterator[Metric | None]:
    """All of them, for a node with these labels; None where other work may run."""
    yield from _transactions(deps, labels, node)
    yield from _timed(deps, labels, node)
    yield from _popped(deps, [*labels, "topic", "consumer_group"], node, now_ms)


def _transactions(deps: BacklogDeps, labels: list[str], node: list[str]) -> Iterator[Metric]:
    halves = GaugeMetricFamily("rocketmq_half_messages", "Halves that are open", labels=labels)
    halves.add_metric(node, deps.open_halves())
    yield halves
    for name, meaning, counted in (
        ("rocketmq_commit_messages", "Halves that were committed", deps.stats.committed),
        ("rocketmq_rollback_messages", "Halves that were rolled back", deps.stats.rolled_back),
    ):
        family = CounterMetricFamily(name, meaning, labels=[*labels, "topic"])
        for topic, count in counted.items():
            family.add_metric([*node, topic], count)
        yield family


def _timed(deps: BacklogDeps, labels: list[str], node: list[str]) -> Iterator[Metric]:
    timer = deps.timer()
    gauges = {
        "rocketmq_timing_messages": ("Timed messages that are pending", timer.waiting_count),
        "rocketmq_timer_enqueue_lag": ("Messages not indexed yet", timer.offset_behind),
        "rocketmq_timer_enqueue_latency": ("Age in ms of the first of them", timer.index_behind_ms),
        "rocketmq_timer_dequeue_lag": ("Messages due and not delivered", timer.due_count),
        "rocketmq_timer_dequeue_latency": ("Ms since the first was due", timer.read_behind_ms),
    }
    for name, (meaning, value) in gauges.items():
        gauge = GaugeMetricFamily(name, meaning, labels=labels)
        gauge.add_metric(node, value)
        yield gauge
    for name, meaning, value in (
        ("rocketmq_timer_enqueue", "Timed messages that were indexed", timer.enqueued_count),
        ("rocketmq_timer_dequeue", "Timed messages that were delivered", timer.dequeued_count),
    ):
        counter = CounterMetricFamily(name, meaning, labels=labels)
        counter.add_metric(node, value)
        yield counter


def _popped(
    deps: BacklogDeps, labels: list[str], node: list[str], now_ms: int
) -> Iterator[Metric | None]:
    in_flight, ready, queueing = (
        GaugeMetricFamily(
            f"rocketmq_consumer_{name}", f"{meaning}, of groups that pop", labels=labels
        )
        for name, meaning in (
            ("inflight_messages", "Messages popped and not acknowledged"),
            ("ready_messages", "Messages not popped yet"),
            ("queueing_latency", "Age in ms of the oldest message not popped yet"),
        )
    )
    by_group = yield from _pops(deps)
    for number, ((topic, group), state) in enumerate(by_group.items(), 1):
        if not number % YIELD_EVERY:
            yield None
        label_values = [*node, topic, group]
        in_flight.add_metric(label_values, state.in_flight_count)
        ready.add_metric(label_values, state.ready_count)
        oldest_ms = state.oldest_ready_ms
        queueing.add_metric(label_values, 0 if oldest_ms is None else max(now_ms - oldest_ms, 0))
    yield from (in_flight, ready, queueing)


def _pops(deps: BacklogDeps) -> Generator[None, None, dict[tuple[str, str], _PopGroup]]:
    table, store = deps.pops, deps.store
    groups: dict[tuple[str, str], _PopGroup] = {}
    for number, key in enumerate(table.keys()):
        if not number % YIELD_EVERY:
            yield None
        each = groups.setdefault((key.topic, key.group), _PopGroup())
        each.in_flight_count += table.count(key)
        next_offset = table.next_offset(key) or 0
        ready_count = max(store.max_offset(key.topic, key.queue_id) - next_offset, 0)
        each.ready_count += ready_count
        if ready_count and number < _RECORDS_READ_MAX:
            stored_ms = store.store_time(key.topic, key.queue_id, next_offset)
            if stored_ms is not None:
                each.oldest_ready_ms = min(each.oldest_ready_ms or stored_ms, stored_ms)
    return groups
