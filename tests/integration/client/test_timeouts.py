"""The time-out of a send covers everything: lingering, the route lookup, all attempts.

All other time-outs are ten minutes here, so a send that ignores its own time-out
exceeds the deadline of the test.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.integration.client.test_hub import register_silent, silent_server
from tests.support.brokers import DEADLINE_S, peer_of, running_namesrv

from tianzhou.client import Message, Producer, Queue, at_random
from tianzhou.errors import ClientClosed, ReplyTimeout, SendTimeout

FOR_EVER_MS = 600_000
SHORT_MS = 100


@asynccontextmanager
async def before_silent_namesrv() -> AsyncGenerator[Producer]:
    """A producer whose nameserver never responds."""
    async with (
        silent_server() as (address, _),
        Producer(
            "g", namesrv=address, api_timeout_ms=FOR_EVER_MS, send_timeout_ms=FOR_EVER_MS
        ) as producer,
        asyncio.timeout(DEADLINE_S),
    ):
        yield producer


@asynccontextmanager
async def before_silent_broker(folder: Path, linger_ms: float) -> AsyncGenerator[Producer]:
    """A lingering producer whose broker never responds."""
    async with (
        silent_server() as (address, _),
        running_namesrv(folder) as namesrv,
        peer_of(namesrv) as registrar,
    ):
        await register_silent(registrar, address, "Silent")
        async with (
            Producer(
                "g", namesrv=namesrv, linger_ms=linger_ms, send_timeout_ms=FOR_EVER_MS,
                close_timeout_ms=1,
            ) as producer,
            asyncio.timeout(DEADLINE_S),
        ):  # fmt: skip
            yield producer


async def test_route_lookup_counts_in_the_timeout_of_a_selected_send() -> None:
    async with before_silent_namesrv() as producer:
        with pytest.raises(SendTimeout, match=f"route within {SHORT_MS} ms, nothing was sent"):
            await producer.send("T", b"x", select=at_random, timeout_ms=SHORT_MS)


async def test_route_lookup_counts_in_the_timeout_of_oneway() -> None:
    async with before_silent_namesrv() as producer:
        for select in (None, at_random):
            with pytest.raises(SendTimeout, match="nothing was sent"):
                await producer.oneway(Message("T", b"x"), select=select, timeout_ms=SHORT_MS)


async def test_address_lookup_counts_in_the_timeout_of_a_send_to_a_queue() -> None:
    async with before_silent_namesrv() as producer:
        queue = Queue("T", "unheard-of", 0)
        with pytest.raises(SendTimeout):
            await producer.send("T", b"x", queue=queue, timeout_ms=SHORT_MS)
        with pytest.raises(SendTimeout):
            await producer.oneway(Message("T", b"x"), queue=queue, timeout_ms=SHORT_MS)


async def test_route_lookup_counts_in_the_timeout_of_a_request() -> None:
    async with before_silent_namesrv() as producer:
        with pytest.raises(ReplyTimeout):
            await producer.request(Message("T", b"x"), select=at_random, timeout_ms=SHORT_MS)


async def test_each_message_of_a_linger_batch_has_its_own_deadline(tmp_path: Path) -> None:
    async with before_silent_broker(tmp_path, linger_ms=1) as producer:
        patient = await producer.submit(Message("Silent", b"patient"))
        hasty = [
            await producer.submit(Message("Silent", b"hasty"), timeout_ms=timeout_ms)
            for timeout_ms in (SHORT_MS, 2 * SHORT_MS)
        ]
        for future in hasty:
            with pytest.raises(SendTimeout, match="the batch of 3 messages has no response"):
                await future
        with pytest.raises(SendTimeout):
            await producer.send("Silent", b"hasty", timeout_ms=SHORT_MS)
        assert not patient.done()
    with pytest.raises(ClientClosed, match="may have been stored"):
        await patient


async def test_urgent_message_flushes_its_linger_batch(tmp_path: Path) -> None:
    async with before_silent_broker(tmp_path, linger_ms=FOR_EVER_MS) as producer:
        with pytest.raises(SendTimeout, match=r"perhaps stored, within .* in 1 tries"):
            await producer.send("Silent", b"hasty", timeout_ms=SHORT_MS)
