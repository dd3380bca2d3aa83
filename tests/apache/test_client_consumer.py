"""Our consumers with our broker and with Apache's of both versions."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.apache.test_client_producer import create_topic
from tests.support.apache.backends import Backend
from tests.support.apache.consumer_scenarios import SCENARIOS, Scenario, Site
from tests.support.brokers import eventually, peer_of
from tianzhou.client import ClientSettings, Message, PushConsumer, ReceivedMessage
from tianzhou.client.connection import shared_hubs
from tianzhou.client.sending import send_request
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.clock import wall_ms
from tianzhou.protocol.command import Command
from tianzhou.protocol.sysflag import INNER_BATCH


async def broker_of(namesrv: str) -> tuple[str, str]:
    """Name and address of the only broker."""
    own = shared_hubs.acquire(ClientSettings(namesrv=namesrv))
    try:
        route = await own.routes.get("TBW102")
        return route.readable[0].broker_name, own.routes.topic_addresses("TBW102")[0]
    finally:
        await own.release()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_consumer(scenario: Scenario, backend: Backend, tmp_path: Path) -> None:
    name, address = await broker_of(backend.namesrv)
    async with peer_of(address) as peer:
        await scenario(
            Site(
                backend.namesrv,
                peer,
                tmp_path,
                name,
                tells_unknown_groups=backend.kind != "4.9.7",
            )
        )


@pytest.mark.parametrize("backend", ["5.5.0"], indirect=True)
async def test_batches_stored_as_one_record(backend: Backend) -> None:
    """Its records contain several messages each; the consumer gets single messages."""
    topic = backend.name("Batched")
    await create_topic(backend, topic, 1, attributes="+queue.type=BatchCQ")
    await send_as_one(backend.namesrv, topic, [f"{number}" for number in range(50)])
    record = (await backend.await_stored(topic, 1))[0]
    assert record.sys_flag & INNER_BATCH
    seen: list[tuple[str, int]] = []
    consumer = PushConsumer(backend.name("unbatching"), namesrv=backend.namesrv, start="first")

    @consumer.handler(topic)
    async def take(message: ReceivedMessage) -> None:
        seen.append((message.text, message.queue_offset))

    async with consumer:
        await eventually(lambda: len(seen) >= 50, "50 messages")
    assert sorted(seen, key=lambda each: each[1]) == [(f"{at}", at) for at in range(50)]


async def send_as_one(namesrv: str, topic: str, texts: list[str]) -> None:
    """As the Java client sends a batch: with its own id, so it may be stored as one record."""
    items = [
        send_request.batch_item(Message(topic, text), f"{at:032}") for at, text in enumerate(texts)
    ]
    out = send_request.outgoing_batch(topic, items, texts, ProducerSettings(), wait_stored=True)
    named = replace(out, properties_text=f"UNIQ_KEY\x01{'F' * 32}\x02{out.properties_text}")
    own = shared_hubs.acquire(ClientSettings(namesrv=namesrv))
    try:
        (queue,) = (await own.routes.get(topic)).writable
        template = send_request.header_template("batching", queue, "TBW102", 4, unit_mode=False)
        fields = send_request.fields_of(template, named, wall_ms())
        address = own.routes.master_address(queue.broker_name)
        assert address is not None
        await own.call(address, Command(code=named.code, ext_fields=fields, body=named.body))
    finally:
        await own.release()
