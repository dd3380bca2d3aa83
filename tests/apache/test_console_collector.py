"""The console's collector on Apache's brokers, with the same requests as on ours.

What a broker of 4.9 does not answer is unknown in the snapshot; the cost of a round is measured,
since GET_TOPIC_STATS_INFO reads the last message of each queue there.
"""

import asyncio
import logging
import time

import pytest

from tests.support.apache.backends import Backend
from tianzhou.admin.admin_client import Admin
from tianzhou.admin.rates import progress_by_group
from tianzhou.client import Message, Producer, PushConsumer, ReceivedMessage
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.days import zone_of
from tianzhou.console.collect.snapshot import Snapshot
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig

pytestmark = pytest.mark.usefixtures("apache")

log = logging.getLogger(__name__)

TOPICS, QUEUES, MESSAGES = 200, 8, 20
REQUEST_MS_MAX = 20.0
"""Mean time of a request of a round, far above what is measured."""


async def test_a_collector_reads_every_broker(backend: Backend) -> None:
    topic, group = backend.name("console"), backend.name("console_group")
    passed_ms = 0
    async with Admin(backend.namesrv, timeout_ms=10_000) as admin:
        (at,) = await admin.clusters.brokers(masters=True)
        await admin.topics.put(
            at, TopicConfig(topic_name=topic, read_queue_count=2, write_queue_count=2)
        )
        await admin.groups.put(at, SubscriptionGroupConfig(group_name=group))
        collector = Collector(
            "c", admin, zone=zone_of("UTC"), wall=lambda: wall_ms() + passed_ms,
            steady=lambda: steady_ms() + passed_ms,
        )  # fmt: skip
        for queue_id in range(2):
            await admin.offsets.commit(at, group, topic, queue_id, 0)
        await until_answered(collector)
        async with Producer(backend.name("p"), namesrv=backend.namesrv) as producer:
            for number in range(MESSAGES):
                await producer.send(Message(topic, f"{number}"))
            passed_ms += 60_000
            found = await collector.round()
            broker = found.brokers[0]
            assert broker.answered, broker.problem
            assert broker.is_tianzhou is backend.is_ours
            assert broker.in_today is not None
            assert broker.in_today >= MESSAGES
            assert broker.disk_ratio is not None
            if backend.kind == "4.9.7":
                # It answers neither GET_BROKER_HA_STATUS nor GET_ALL_PRODUCER_INFO.
                assert broker.replication is None
            else:
                assert broker.replication is not None
            seen = found.topic(topic)
            assert seen is not None
            assert (seen.today, seen.stored, seen.missing) == (MESSAGES, MESSAGES, ())
            assert seen.in_per_s == pytest.approx(MESSAGES / 60, rel=0.2)
            assert seen.last_message_ms is not None
            progress = found.group(group)
            assert progress is not None
            assert (progress.lag, progress.members) == (MESSAGES, ())

            consumed: list[str] = []

            async def consume(message: ReceivedMessage) -> None:
                consumed.append(message.topic)

            consumer = PushConsumer(group, namesrv=backend.namesrv, start="first")
            consumer.subscribe(topic, consume)
            async with consumer:
                collector.watch(groups=[group])
                found = await until_consumed(collector, group)
                progress = found.group(group)
                assert progress is not None
                assert progress.members is not None
                (member,) = progress.members
                assert member.client_id
                assert progress.model == "clustering"
                assert progress.consume_type == "CONSUME_PASSIVELY"
        assert progress.resets_today == 0
        (part,) = [each for each in progress.topics if each.topic == topic]
        assert part.committed == MESSAGES


async def until_answered(collector: Collector) -> None:
    """Rounds until the broker answers: Apache's has no figures in its first second."""
    deadline_s = time.monotonic() + 60
    while (found := await collector.round()).unanswered:
        assert time.monotonic() < deadline_s, found.unanswered
        await asyncio.sleep(0.2)


async def until_consumed(collector: Collector, group: str) -> Snapshot:
    """Rounds until the group has consumed everything, its retry topic included."""
    deadline_s = time.monotonic() + 120
    while True:
        found = await collector.round()
        progress = found.group(group)
        if progress is not None and progress.lag == 0 and progress.members:
            return found
        assert time.monotonic() < deadline_s, progress
        await asyncio.sleep(0.2)


async def test_the_cost_of_a_round_is_known(backend: Backend) -> None:
    mark = backend.name("cost")
    names = [f"{mark}_{number}" for number in range(TOPICS)]
    async with Admin(backend.namesrv, timeout_ms=10_000) as admin:
        (at,) = await admin.clusters.brokers(masters=True)
        group = backend.name("cost_group")
        await admin.groups.put(at, SubscriptionGroupConfig(group_name=group))
        await admin.topics.put_all(
            at,
            [
                TopicConfig(topic_name=name, read_queue_count=QUEUES, write_queue_count=QUEUES)
                for name in names
            ],
        )
        for name in names:
            await admin.offsets.commit(at, group, name, 0, 0)
        async with Producer(backend.name("p"), namesrv=backend.namesrv) as producer:
            for name in names:
                await producer.send(Message(name, "x"))
            collector = Collector("c", admin, zone=zone_of("UTC"))
            costs: list[tuple[int, int, float]] = []
            found = await collector.round()
            for _ in range(3):
                # Something is stored, so that every consumed topic is read.
                await producer.send(Message(names[0], "x"))
                began_s = time.process_time()
                found = await collector.round()
                costs.append((found.round_ms, found.request_count, time.process_time() - began_s))
        assert found.unanswered == ()
        # `tianzhou cluster top` and `group list` read all groups with one request.
        together = await progress_by_group(admin.brokers, admin.groups, at)
        single = await admin.groups.progress_on(at, group)
        merged = {queue: each for stats in together[group] for queue, each in stats.offsets.items()}
        assert merged == single.offsets
        assert len(merged) == TOPICS * QUEUES
        for round_ms, request_count, cpu_s in costs:
            assert request_count >= TOPICS
            assert round_ms / request_count < REQUEST_MS_MAX
            log.info(
                "%s: %d requests, %d ms, CPU of the collector %.0f ms: %.2f ms a request",
                backend.kind, request_count, round_ms, cpu_s * 1000, round_ms / request_count,
            )  # fmt: skip
        for name in names:
            await admin.topics.delete(name, [at])
