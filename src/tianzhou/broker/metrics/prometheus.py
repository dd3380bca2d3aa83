"""The Prometheus metrics of the broker, and its health page.

Names are those of RocketMQ 5.x (`rocketmq_messages_in_total`); those of the older exporter, which
dashboards use, are in `legacy_exporter`. The page is computed from the tables when it is requested.
They are collected in slices, so that the event loop runs other work in between, and encoded in a
thread: with thousands of topics both take long.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tianzhou.broker.acl.guard import DenialReason
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.metrics.failover import add_failover
from tianzhou.broker.metrics.families import RECORDS_READ_MAX, Families, in_slices, node_labels
from tianzhou.broker.metrics.legacy_exporter import add_exporter_metrics
from tianzhou.broker.metrics.replication import add_replication
from tianzhou.broker.statistics.counters import Counts
from tianzhou.remoting.http import Page, Pages
from tianzhou.store.message_store import MessageStore

Refusals = Callable[[], Mapping[str, Mapping[str, int] | Mapping[DenialReason, int]]]
"""Rejected requests by limit of the quota file ("quota"), additions to full tables by setting
("table"), and denied requests by the missing permission ("acl")."""


class _Collected(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def _metrics_page(deps: Deps, refusals: Refusals) -> Page:
    page: list[Metric] = []
    families = Families(page, node_labels(deps.settings.config))
    for add in (
        _add_throughput,
        _add_state,
        _add_waiting,
        _add_pops,
        add_replication,
        add_failover,
    ):
        await add(deps, families)
        await asyncio.sleep(0)
    _add_refusals(refusals, families)
    await add_exporter_metrics(deps, page)
    text = await asyncio.to_thread(_render, page)
    return Page(text, CONTENT_TYPE_LATEST)


def _render(families: list[Metric]) -> bytes:
    """The text of the page. Frees the metrics, too: in the event loop that takes over 50 ms."""
    text = generate_latest(_Collected(families))  # pyright: ignore[reportArgumentType] - it asks for `collect` only
    families.clear()
    return text


def pages(deps: Deps, refusals: Refusals) -> Pages:
    """The HTTP pages of the broker."""
    return {
        "/metrics": lambda: _metrics_page(deps, refusals),
        "/health": lambda: health_page(deps.store),
    }


def health_page(store: MessageStore) -> Page:
    """/health: 200 while messages are accepted, 503 with the reason while they are not."""
    refusal = store.refusal
    if refusal is None:
        return Page(b"ok\n")
    return Page(f"takes no messages: {refusal}\n".encode(), status=HTTPStatus.SERVICE_UNAVAILABLE)


async def _add_throughput(deps: Deps, families: Families) -> None:
    stats, of_group = deps.stats, ("topic", "consumer_group")
    put: dict[str, Counts] = {}
    async for (topic, _), counts in in_slices(stats.by_queue.items()):
        _add(put.setdefault(topic, Counts()), counts)
    got: dict[tuple[str, str], Counts] = {}
    async for (topic, _, group), counts in in_slices(stats.by_group.items()):
        _add(got.setdefault((topic, group), Counts()), counts)
    messages_in = families.counter("rocketmq_messages_in", "Messages stored", "topic")
    bytes_in = families.counter("rocketmq_throughput_in", "Bytes stored", "topic")
    async for topic, counts in in_slices(put.items()):
        messages_in(counts.messages, topic)
        bytes_in(counts.size_bytes, topic)
    messages_out = families.counter("rocketmq_messages_out", "Messages delivered", *of_group)
    bytes_out = families.counter("rocketmq_throughput_out", "Bytes delivered", *of_group)
    async for key, counts in in_slices(got.items()):
        messages_out(counts.messages, *key)
        bytes_out(counts.size_bytes, *key)
    dead = families.counter("rocketmq_send_to_dlq_messages", "Dead letters", *of_group)
    async for key, count in in_slices(stats.dead.items()):
        dead(count, *key)
    families.counter("tianzhou_messages_refused", "Messages that could not be stored")(
        stats.put_failures
    )


def _add_refusals(read: Refusals, families: Families) -> None:
    refusals = read()
    for name, meaning, label in (
        ("quota", "Requests above a limit of quotaFile", "limit"),
        ("table", "Additions to a full table", "limit"),
        ("acl", "Requests that access control refused", "lack"),
    ):
        refused = families.counter(f"tianzhou_{name}_refusals", meaning, label)
        for cause, count in refusals[name].items():
            refused(count, cause)


def _add(total: Counts, counts: Counts) -> None:
    total.messages += counts.messages
    total.size_bytes += counts.size_bytes


async def _add_state(deps: Deps, families: Families) -> None:
    config, store = deps.settings.config, deps.store
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
            None if earliest is None else max(deps.clock() - earliest, 0)),
        "tianzhou_earliest_message_timestamp_ms": ("Store time of the first message", earliest),
        "tianzhou_waiting_pulls": ("Pulls that wait for messages", len(deps.parked)),
        "tianzhou_takes_messages": ("1 while messages are accepted", int(store.refusal is None)),
    }  # fmt: skip
    for name, (meaning, value) in gauges.items():
        if value is not None:
            families.gauge(name, meaning)(value)


async def _add_waiting(deps: Deps, families: Families) -> None:
    """Open halves and timed messages; they are not counted by topic, so each is one number."""
    families.gauge("rocketmq_half_messages", "Halves that are open")(deps.halves.open_count())
    for name, meaning, counted in (
        ("rocketmq_commit_messages", "Halves that were committed", deps.stats.committed),
        ("rocketmq_rollback_messages", "Halves that were rolled back", deps.stats.rolled_back),
    ):
        ended = families.counter(name, meaning, "topic")
        for topic, count in counted.items():
            ended(count, topic)
    timer = deps.scheduled.timer_stats()
    for add, name, meaning, value in (
        (families.gauge, "timing_messages", "Timed messages that are pending", timer.waiting_count),
        (families.gauge, "timer_enqueue_lag", "Messages not indexed yet", timer.offset_behind),
        (families.gauge, "timer_enqueue_latency", "Age in ms of the first of them",
         timer.index_behind_ms),
        (families.gauge, "timer_dequeue_lag", "Messages due and not delivered", timer.due_count),
        (families.gauge, "timer_dequeue_latency", "Ms since the first was due",
         timer.read_behind_ms),
        (families.counter, "timer_enqueue", "Timed messages that were indexed",
         timer.enqueued_count),
        (families.counter, "timer_dequeue", "Timed messages that were delivered",
         timer.dequeued_count),
    ):  # fmt: skip
        add(f"rocketmq_{name}", meaning)(value)


@dataclass(slots=True)
class _PopGroup:
    """A topic of a group that pops."""

    in_flight_count: int = 0
    ready_count: int = 0
    oldest_ready_ms: int | None = None


async def _add_pops(deps: Deps, families: Families) -> None:
    """In-flight and waiting messages of groups that pop; of others they are not known."""
    table, store, now_ms = deps.pops.table, deps.store, deps.clock()
    groups: dict[tuple[str, str], _PopGroup] = {}
    reads_left = RECORDS_READ_MAX
    async for key in in_slices(table.keys()):
        state = groups.setdefault((key.topic, key.group), _PopGroup())
        state.in_flight_count += table.count(key)
        next_offset = table.next_offset(key) or 0
        ready_count = max(store.max_offset(key.topic, key.queue_id) - next_offset, 0)
        state.ready_count += ready_count
        if ready_count and reads_left:
            reads_left -= 1
            stored_ms = store.store_time(key.topic, key.queue_id, next_offset)
            if stored_ms is not None:
                state.oldest_ready_ms = min(state.oldest_ready_ms or stored_ms, stored_ms)
    in_flight, ready, queueing = (
        families.gauge(
            f"rocketmq_consumer_{name}", f"{meaning}, of groups that pop", "topic", "consumer_group"
        )
        for name, meaning in (
            ("inflight_messages", "Messages popped and not acknowledged"),
            ("ready_messages", "Messages not popped yet"),
            ("queueing_latency", "Age in ms of the oldest message not popped yet"),
        )
    )
    async for labels, state in in_slices(groups.items()):
        in_flight(state.in_flight_count, *labels)
        ready(state.ready_count, *labels)
        oldest_ms = state.oldest_ready_ms
        queueing(0 if oldest_ms is None else max(now_ms - oldest_ms, 0), *labels)
