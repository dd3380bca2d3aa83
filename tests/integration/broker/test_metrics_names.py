"""Every metric of stock dashboards is served with its labels, or listed as missing."""

from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.broker.test_metrics import PROM, get
from tests.integration.broker.test_transactions import end, prepare
from tests.support.brokers import Cluster, cluster, eventually
from tests.support.pop import pop
from tests.support.stock_metrics import ABSENT, EXPORTER, OF_5X

from tianzhou.protocol import sysflag
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode

ADMIN_PAGE = Path(__file__).parents[3] / "docs" / "admin.md"
NEVER_FILLED = {"rocketmq_broker_commitlog_diff"}
"""Metrics of slaves; there are none."""


async def families(it: Cluster) -> dict[str, Metric]:
    status, text = await get(it, "/metrics")
    assert status == 200
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in text_string_to_metric_families(text)
    }


async def produce_all_metrics(it: Cluster) -> None:
    """Messages, retries, dead letters, producers, consumers: so that every metric has a value."""
    for topic in ("t", "%RETRY%g", "%DLQ%g"):
        it.broker.topics.put(TopicConfig(topic_name=topic))
        assert (await it.peer.send(topic, b"x" * 100)).code == ResponseCode.SUCCESS
    await it.peer.heartbeat("c@1", "g", {"t": "*"}, producer="p")
    pulled = await it.peer.pull("g", "t", 0, 0)
    assert pulled.code == ResponseCode.SUCCESS
    for topic in ("t", "%RETRY%g"):
        await it.peer.expect(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": topic, "queueId": "0", "commitOffset": "0"},
        )
    await it.peer.expect(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {"offset": "0", "group": "g", "delayLevel": "1", "originTopic": "t"},
    )


async def test_names_and_labels_of_the_stock_exporter_are_served(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        await produce_all_metrics(it)
        metrics = await families(it)
        missing = [name for name in EXPORTER if name not in metrics and name not in ABSENT]
        assert missing == []
        for name, labels in EXPORTER.items():
            samples = metrics[name].samples if name in metrics else []
            assert bool(samples) != (name in ABSENT or name in NEVER_FILLED), name
            for sample in samples:
                assert set(sample.labels) == set(labels), name
        (sent_back,) = metrics["rocketmq_send_back_nums"].samples
        assert sent_back.value == 1, "the number of the last minute, not a rate"
        (members,) = metrics["rocketmq_group_count"].samples
        assert members.labels["localaddr"] == "c@1"
        runtime = metrics["rocketmq_brokeruntime_put_tps10"].samples[0].labels
        assert runtime["brokerIP"] == it.broker.address
        assert runtime["boottime"].isdecimal()
        total = metrics["rocketmq_brokeruntime_commitlogdir_capacity_total"].samples[0].value
        assert total > metrics["rocketmq_brokeruntime_commitlogdir_capacity_free"].samples[0].value


async def test_names_of_5x_are_served_or_documented_as_missing(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        await produce_all_metrics(it)
        metrics = await families(it)
    assert sorted(OF_5X - set(metrics) - set(ABSENT)) == []
    assert sorted(set(ABSENT) & set(metrics)) == []
    assert sorted(set(ABSENT) - set(EXPORTER) - OF_5X) == [], "nobody asks for these"
    page = ADMIN_PAGE.read_text()
    assert [name for name in ABSENT if f"`{name}`" not in page] == []
    assert [why for why in set(ABSENT.values()) if why not in page] == []
    ours = {name for name in metrics if not name.startswith("rocketmq_brokeruntime_")}
    assert [name for name in sorted(ours) if f"`{name}`" not in page] == []


async def test_pending_messages_are_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        halves = [await prepare(it.peer, b"%d" % number) for number in range(4)]
        await end(it.peer, halves[0], sysflag.TRANSACTION_COMMIT)
        await end(it.peer, halves[1], sysflag.TRANSACTION_COMMIT)
        await end(it.peer, halves[2], sysflag.TRANSACTION_ROLLBACK)
        await it.peer.send("t", b"x", props={"TIMER_DELAY_SEC": "3600"})
        for _ in range(3):
            assert (await it.peer.send("p", b"x")).code == ResponseCode.SUCCESS
        await it.peer.expect(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "p", "queueId": "0", "commitOffset": "0"},
        )
        assert len(await pop(it.peer, topic="p", group="g", queue_id=0, count=1)) == 1

        async def timed() -> bool:
            return (await families(it))["rocketmq_timing_messages"].samples[0].value == 1

        await eventually(timed, "the message waits")
        metrics = await families(it)
        values = {
            name: sum(each.value for each in metrics[name].samples) for name in OF_5X & {*metrics}
        }
        assert values["rocketmq_half_messages"] == 1
        assert values["rocketmq_commit_messages_total"] == 2
        assert values["rocketmq_rollback_messages_total"] == 1
        assert values["rocketmq_timer_enqueue_total"] == 1
        assert values["rocketmq_timer_dequeue_total"] == 0
        assert values["rocketmq_timer_enqueue_lag"] == 0
        assert values["rocketmq_timer_dequeue_lag"] == 0
        assert values["rocketmq_consumer_inflight_messages"] == 1
        assert values["rocketmq_consumer_ready_messages"] == 2
        assert values["rocketmq_consumer_queueing_latency"] >= 0
