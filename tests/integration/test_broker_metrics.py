"""/metrics and /health of a running broker, asked over HTTP."""

import asyncio
import http.client
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.brokers import LOOPBACK, Cluster, cluster, eventually, running_broker

from tianzhou.errors import RemotingError
from tianzhou.protocol.codes import RequestCode, ResponseCode

PROM: dict[str, object] = {
    "metricsExporterType": "PROM",
    "metricsPromExporterHost": LOOPBACK,
    "metricsPromExporterPort": 0,
}


async def get(it: Cluster, path: str, method: str = "GET") -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection(LOOPBACK, it.broker.web_port, timeout=10)
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


async def test_figures_tell_what_went_in_and_out_and_what_is_left(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        for _ in range(5):
            assert (await it.peer.send("t", b"x" * 100)).code == ResponseCode.SUCCESS
        await it.peer.heartbeat("c", "g", {"t": "*"}, producer="p")
        await it.peer.pull("g", "t", 0, 0, count=3)
        await it.peer.expect(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "3"},
        )
        found = await figures(it)
        assert found["rocketmq_messages_in_total", "t"] == 5
        assert found["rocketmq_throughput_in_total", "t"] > 500
        assert found["rocketmq_messages_out_total", "t"] == 3
        assert found["rocketmq_producer_offset", "t"] == 5
        assert found["rocketmq_consumer_lag_messages", "t"] == 2
        assert found["rocketmq_group_diff", "t"] == 2
        assert found["rocketmq_consumer_connections", ""] == 1
        assert found["rocketmq_producer_connections", ""] == 1
        assert found["rocketmq_storage_size", ""] > 500
        assert found["tianzhou_takes_messages", ""] == 1


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


async def test_health_says_ok_and_wrong_requests_are_told(tmp_path: Path) -> None:
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


async def test_a_stop_ends_connections_that_say_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        reader, writer = await asyncio.open_connection(LOOPBACK, it.broker.web_port)
    assert await reader.read() == b""
    writer.close()


async def test_without_the_setting_nothing_is_served(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        assert it.broker.web_port == 0


async def test_a_port_in_use_stops_the_start_in_words(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PROM) as it:
        await eventually(lambda: it.broker.web_port, "the port")
        taken = PROM | {"metricsPromExporterPort": it.broker.web_port}
        with pytest.raises(RemotingError, match="metricsPromExporterPort"):
            async with running_broker(tmp_path / "other", **taken):
                pass
