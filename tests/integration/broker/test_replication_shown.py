"""What operators see of a running master and its slaves: metrics, doctor; and the rate limit."""

import asyncio
import http.client
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from tests.support.brokers import LOOPBACK, eventually, peer_of, running_broker
from tests.support.command_line import run_words
from tests.support.replication import SLAVE, Pair, log_bytes, peers, running_pair, sent_ok

from tianzhou.broker.server import Broker
from tianzhou.protocol.codes import RequestCode, ResponseCode

PROM: dict[str, object] = {
    "metricsExporterType": "PROM",
    "metricsPromExporterHost": LOOPBACK,
    "metricsPromExporterPort": 0,
}
SYNC: dict[str, object] = {"brokerRole": "SYNC_MASTER"}
LABELS = ("slave", "status", "topic", "role", "state")
FINDINGS = ("does not follow its master", "no send ends with SEND_OK")
RATE_BYTES = 1024 * 1024
BODY = b"x" * 50_000
LIMITED_COUNT = 80
"""Messages of almost four times what the rate limit allows in a second."""


async def figures(broker: Broker) -> dict[tuple[str, ...], float]:
    """The values on the page of a broker, by name and what tells those of one name apart."""

    def read() -> str:
        connection = http.client.HTTPConnection(LOOPBACK, broker.web_port, timeout=60)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    text = await asyncio.to_thread(read)
    return {
        (sample.name, *(sample.labels[each] for each in LABELS if each in sample.labels)): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_of_a_running_pair(tmp_path: Path) -> None:
    async with running_pair(tmp_path, **SYNC, **PROM) as pair, peers(pair) as (master, _):

        async def is_acknowledged() -> bool:
            return (await master.send("t", b"probe")).code == ResponseCode.SUCCESS

        await eventually(is_acknowledged, "SEND_OK")
        await pair.in_step()
        shown = await figures(pair.master)
        assert shown["tianzhou_slaves_connected",] == 1
        assert shown["tianzhou_slaves_in_sync",] == 1
        assert shown["tianzhou_slave_in_sync", "id:1"] == 1
        assert shown["tianzhou_slave_stopped", "id:1"] == 0
        assert shown["tianzhou_slave_behind_bytes", "id:1"] == 0
        assert shown["tianzhou_slave_behind_ms", "id:1"] == 0
        own = await figures(pair.slave)
        assert own["tianzhou_replication_following",] == 1
        assert own["tianzhou_replication_behind_bytes",] == 0
        await pair.stop_slave()
        sent = await master.send("t", b"alone")
        assert sent.code == ResponseCode.SLAVE_NOT_AVAILABLE
        shown = await figures(pair.master)
        assert shown["tianzhou_slaves_connected",] == 0
        assert shown["tianzhou_slaves_in_sync",] == 0
        assert shown["tianzhou_sends_less_durable_total", "SLAVE_NOT_AVAILABLE"] >= 1


async def test_a_slave_that_is_ahead_is_in_metrics_and_doctor_and_never_in_sync(
    tmp_path: Path,
) -> None:
    """The former master stored a message that the promoted slave never got."""
    async with running_pair(tmp_path, **PROM) as pair:
        async with peer_of(pair.master.address) as master:
            await sent_ok(master, "t", b"both")
            await pair.in_step()
            await pair.stop_slave()
            await sent_ok(master, "t", b"only the former master")
        await pair.stop_master()
        await pair.start_slave()
        async with peer_of(pair.slave.address) as promoted:
            fields = {"role": "SYNC_MASTER", "force": "true"}
            await promoted.expect(RequestCode.CHANGE_BROKER_ROLE, fields)
            own = SLAVE | {"namesrvAddr": pair.namesrv}
            async with running_broker(tmp_path / "master", **own) as former:
                await eventually(lambda: _is_refused(pair, former), "a refusal by the new master")
                shown = await figures(pair.slave)
                assert shown["tianzhou_slaves_in_sync",] == 0
                assert shown["tianzhou_slave_in_sync", "id:1"] == 0
                assert shown["tianzhou_slave_stopped", "id:1"] == 1
                assert shown["tianzhou_slave_behind_bytes", "id:1"] < 0
                sent = await promoted.send("t", b"alone")
                assert sent.code == ResponseCode.SLAVE_NOT_AVAILABLE

                async def is_reported() -> bool:
                    ran = await asyncio.to_thread(run_words, ["doctor", "-n", pair.namesrv])
                    return ran.code == 1 and all(each in ran.out for each in FINDINGS)

                await eventually(is_reported, "the findings of doctor")


def _is_refused(pair: Pair, former: Broker) -> bool:
    assert pair.slave.replication is not None
    rows = pair.slave.replication.status().slaves
    own = former.replication.status().master if former.replication else None
    return bool(rows and rows[0].problem and own and own.problem)


async def test_slaves_get_no_more_than_the_rate_limit(tmp_path: Path) -> None:
    limit: dict[str, object] = {
        "haFlowControlEnable": "true", "maxHaTransferByteInSecond": RATE_BYTES,
    }  # fmt: skip
    async with running_pair(tmp_path, **limit) as pair:
        await pair.stop_slave()
        async with peer_of(pair.master.address) as master:
            for _ in range(LIMITED_COUNT):
                await sent_ok(master, "t", BODY)
        await pair.start_slave()
        store = pair.slave.store
        await eventually(lambda: store.end_log_offset, "the first bytes")
        began_s, first_bytes = time.monotonic(), store.end_log_offset
        await pair.in_step()
        # What is sent at once is a tenth of a second's worth, and one frame.
        least_s = (store.end_log_offset - first_bytes) / RATE_BYTES - 1
        assert time.monotonic() - began_s >= least_s > 1
        assert log_bytes(pair.slave) == log_bytes(pair.master)
