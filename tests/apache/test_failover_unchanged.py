"""What a stock Java producer sees of a switch with its defaults: it looks routes up every 30 s."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.apache.java_load import THREADS, TOPIC, JavaLoad
from tests.support.apache.shell import Shell
from tests.support.brokers import peer_of, running_broker
from tests.support.elected_group import elected_group
from tests.support.gate import NEWEST
from tianzhou.protocol.codes import RequestCode

pytestmark = pytest.mark.apache

log = logging.getLogger(__name__)

POLL_MS, SEND_TIMEOUT_MS = 30_000, 3_000
"""The defaults of stock producers."""
GAP_S_MAX = 45.0


@asynccontextmanager
async def unchanged(shell: Shell, namesrv: str, name: str) -> AsyncGenerator[JavaLoad]:
    """A producer that sends until the end of the block."""
    load = JavaLoad(shell, name)
    await load.ask(
        "start_producer", name=name, group=f"p-{name}", namesrv=namesrv,
        timeout_ms=SEND_TIMEOUT_MS, poll_ms=POLL_MS,
    )  # fmt: skip
    try:
        await load.ask("start_load", name=name, topic=TOPIC, threads=THREADS)
        yield load
    finally:
        await load.ask("stop_load")
        await load.ask("stop_producer", name=name)


async def create_topic(*addresses: str) -> None:
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    for address in addresses:
        async with peer_of(address) as peer:
            await peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


async def test_with_brokers_of_two_names_no_send_fails(
    shells: Callable[[str], Shell], tmp_path: Path
) -> None:
    shell = await asyncio.to_thread(shells, NEWEST)
    async with elected_group(tmp_path) as group:
        first = await group.accepting_master()
        await group.in_sync(group.replicas)
        async with running_broker(
            tmp_path / "other", brokerName="broker-b", namesrvAddr=group.namesrv
        ) as other:
            await create_topic(first.address, other.address)
            async with unchanged(shell, group.namesrv, "two-names") as java:
                await java.more(200)
                await java.longest_s()
                await first.kill()
                await group.master(other_than=first)
                await java.more(500)
                gap_s = await java.longest_s()
                ended = await java.ask("stop_load")
        log.info("%d acknowledged, longest gap %.2f s", len(ended["acknowledged"]), gap_s)
        assert ended["failed"] == 0


@pytest.mark.full
async def test_with_one_name_sends_fail_until_the_next_poll(
    shells: Callable[[str], Shell], tmp_path: Path
) -> None:
    shell = await asyncio.to_thread(shells, NEWEST)
    async with elected_group(tmp_path) as group:
        first = await group.accepting_master()
        await group.in_sync(group.replicas)
        await create_topic(first.address)
        async with unchanged(shell, group.namesrv, "one-name") as java:
            await java.more(200)
            await java.longest_s()
            await first.kill()
            await group.master(other_than=first)
            await java.more(200)
            gap_s = await java.longest_s()
            ended = await java.ask("stop_load")
    log.info("%d failed, longest gap %.2f s", ended["failed"], gap_s)
    assert ended["failed"]
    assert gap_s < GAP_S_MAX
