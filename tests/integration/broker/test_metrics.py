"""/metrics and /health of a running broker, over HTTP."""

import asyncio
import http.client
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.brokers import LOOPBACK, Cluster, cluster, eventually, running_broker

from tianzhou.errors import RemotingError
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.topics import KVTable, TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode

PROM: dict[str, object] = {
    "metricsExporterType": "PROM",
    "metricsPromExporterHost": LOOPBACK,
    "metricsPromExporterPort": 0,
}


async def get(it: Cluster, path: str, method: str = "GET") -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection(LOOPBACK, it.broker.web_port, timeout=60)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def figures(it: Cluster) -> dict[tuple[str, str], float]:
    """Values by name and by topic, or by name alone."""
    status, text = await get(it, "/metrics")
    assert status == 200
    return {
        (sample.name, sample.labels.get("topic", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_count_sent_and_pulled_messages_and_the_backlog(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        for _ in range(5):
            assert (await it.peer.send("t", b"x" * 100)).code == ResponseCode.SUCCESS
        await it.peer.heartbeat("c", "g", {"t": "*"}, producer="p")
        await it.peer.pull("g", "t", 0, 0, count=3)
        await it.peer.expect(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "3"},
        )
        metrics = await figures(it)
        assert metrics["rocketmq_messages_in_total", "t"] == 5
        assert metrics["rocketmq_throughput_in_total", "t"] > 500
        assert metrics["rocketmq_messages_out_total", "t"] == 3
        assert metrics["rocketmq_producer_offset", "t"] == 5
        assert metrics["rocketmq_consumer_lag_messages", "t"] == 2
        assert metrics["rocketmq_group_diff", "t"] == 2
        assert metrics["rocketmq_consumer_connections", ""] == 1
        assert metrics["rocketmq_producer_connections", ""] == 1
        assert metrics["rocketmq_storage_size", ""] > 500
        assert metrics["tianzhou_takes_messages", ""] == 1


async def test_names_of_the_older_exporter_are_served(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        await it.peer.heartbeat("c", "g", {"t": "*"})
        for _ in range(5):
            assert (await it.peer.send("t", b"x" * 100)).code == ResponseCode.SUCCESS
        await it.peer.pull("g", "t", 0, 0, count=3)
        await it.peer.expect(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "3"},
        )
        metrics = await figures(it)
        assert metrics["rocketmq_producer_tps", "t"] > 0
        assert (
            metrics["rocketmq_producer_message_size", "t"]
            > 100 * metrics["rocketmq_producer_tps", "t"]
        )
        assert metrics["rocketmq_consumer_tps", "t"] > 0
        assert metrics["rocketmq_consumer_message_size", "t"] > 0
        assert metrics["rocketmq_broker_tps", ""] >= metrics["rocketmq_producer_tps", "t"]
        assert metrics["rocketmq_broker_qps", ""] > 0
        assert metrics["rocketmq_consumer_offset", "t"] == 3
        assert metrics["rocketmq_message_accumulation", "t"] == 2
        assert metrics["rocketmq_group_get_latency", "t"] >= 0
        assert 0 <= metrics["rocketmq_group_get_latency_by_storetime", "t"] < 60_000
        assert metrics["rocketmq_group_count", ""] == 1
        assert metrics["rocketmq_topic_retry_offset", "%RETRY%g"] == 0
        assert metrics["rocketmq_brokeruntime_putmessage_times_total", ""] == 5
        assert metrics["rocketmq_brokeruntime_put_tps10", ""] > 0
        assert metrics["rocketmq_brokeruntime_commitlog_maxoffset", ""] > 500
        assert (
            sum(
                value
                for (name, _), value in metrics.items()
                if name.startswith("rocketmq_brokeruntime_pmdt")
            )
            == 5
        )
        _, text = await get(it, "/metrics")
        diff = next(each for each in text.splitlines() if each.startswith("rocketmq_group_diff{"))
        assert 'countOfOnlineConsumers="1"' in diff
        assert 'msgModel="CLUSTERING"' in diff


async def test_many_topics_and_concurrent_scrapes_do_not_block_the_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        for number in range(600):
            it.broker.topics.put(TopicConfig(topic_name=f"t-{number}", read_queue_count=8))
            it.broker.offsets.commit("g", f"t-{number}", 0, 0)
        asked = [asyncio.create_task(get(it, "/metrics")) for _ in range(5)]
        # Topics are created and groups commit while the pages are rendered.
        for number in range(600, 700):
            it.broker.topics.put(TopicConfig(topic_name=f"t-{number}"))
            it.broker.offsets.commit("g", f"t-{number}", number % 3, 0)
            await asyncio.sleep(0)
        answers = await asyncio.gather(*asked)
        assert {status for status, _ in answers} == {200}
        assert all('rocketmq_producer_offset{broker="broker-a"' in text for _, text in answers)
        assert all('topic="t-599"' in text for _, text in answers)


async def test_refusals_by_quotas_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "quota.yml"
    path.write_text("topics: [{topic: t, messagesPerSecond: 0.001}]")
    async with cluster(tmp_path, quotaFile=path, **PROM) as it:
        codes = [(await it.peer.send("t", b"x")).code for _ in range(4)]
        assert codes == [ResponseCode.SUCCESS] + [ResponseCode.SYSTEM_BUSY] * 3
        _, text = await get(it, "/metrics")
        (line,) = [each for each in text.splitlines() if each.startswith("tianzhou_quota_ref")]
        assert 'limit="messagesPerSecond"' in line
        assert line.endswith(" 3.0")


async def test_health_responds_ok_and_invalid_requests_get_an_error(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        assert await get(it, "/health") == (200, "ok\n")
        assert await get(it, "/health", "HEAD") == (200, "")
        status, text = await get(it, "/")
        assert status == 404
        assert "/metrics /health" in text
        assert (await get(it, "/metrics", "POST"))[0] == 405
        for garbage in (b"\x16\x03\x01 what\r\n\r\n", b"GET /" + b"x" * 20_000):
            reader, writer = await asyncio.open_connection(LOOPBACK, it.broker.web_port)
            writer.write(garbage)
            answer = await reader.read()
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
            writer.close()
        assert await get(it, "/health") == (200, "ok\n")


async def test_stop_closes_idle_connections(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        reader, writer = await asyncio.open_connection(LOOPBACK, it.broker.web_port)
    assert await reader.read() == b""
    writer.close()


async def test_without_the_setting_nothing_is_served(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        assert it.broker.web_port == 0


async def test_port_in_use_prevents_the_start_with_a_message(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        await eventually(lambda: it.broker.web_port, "the port")
        same_port = PROM | {"metricsPromExporterPort": it.broker.web_port}
        with pytest.raises(RemotingError, match="metricsPromExporterPort"):
            async with running_broker(tmp_path / "other", **same_port):
                pass


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_sends_that_no_slave_has_are_counted(tmp_path: Path, flush: str) -> None:
    async with cluster(tmp_path, brokerRole="SYNC_MASTER", flushDiskType=flush, **PROM) as it:
        for _ in range(3):
            assert (await it.peer.send("t", b"x")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        _, text = await get(it, "/metrics")
        counted = [line for line in text.splitlines() if "SLAVE_NOT_AVAILABLE" in line]
        assert [line.split()[-1] for line in counted] == ["3.0"]
        assert "tianzhou_replication_role{" in text
        assert 'role="SYNC_MASTER"} 1.0' in text
        runtime = await it.peer.expect(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = decode(KVTable, runtime.body).table
        assert (table["haRole"], table["haSlaveNums"]) == ("SYNC_MASTER", "0")
        assert table["brokerActive"] == "true"
