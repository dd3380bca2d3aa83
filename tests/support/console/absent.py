"""A broker that nameservers list and that does not answer, as after a power cut."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.support.namesrv import Broker, asking
from tianzhou.names import AUTO_CREATE_TOPIC
from tianzhou.protocol.codes import RequestCode

NOWHERE = "127.0.0.1:1"
"""A port that refuses connections."""


@asynccontextmanager
async def absent_broker(namesrv: str, name: str = "broker-absent") -> AsyncGenerator[str]:
    """Listed while the block runs: a nameserver drops a broker whose connection has ended."""
    broker = Broker(name=name, addr=NOWHERE, topics=dict.fromkeys((AUTO_CREATE_TOPIC, name), 6))
    async with asking(namesrv) as asker:
        await broker.register(asker)
        yield name
        await asker.ask(RequestCode.UNREGISTER_BROKER, broker.identity())
