"""Pages of the console on Apache's brokers, and on a cluster of theirs and ours.

What a version does not answer is unknown on its page, with the reason, and never 0.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.apache.servers import apache_broker, apache_namesrv, tianzhou_broker
from tests.support.console.collected import CollectedConsole, collected
from tests.support.gate import NEWEST, gated
from tianzhou.admin import Admin
from tianzhou.client import sync
from tianzhou.protocol.bodies.topics import TopicConfig

pytestmark = pytest.mark.usefixtures("apache")

OLDEST, MIXED = "4.9.7", "mixed"
BROKERS = {
    NEWEST: {"broker-a": NEWEST},
    OLDEST: {"broker-a": OLDEST},
    MIXED: {"broker-a": NEWEST, "broker-b": OLDEST, "broker-c": "tianzhou"},
}
SENT = 30
TABS = {
    "/brokers/broker-a": ("overview", "settings", "clients"),
    "/nameservers": ("brokers", "kv", "settings"),
    "/topics/console": ("overview", "queues", "settings"),
    "/groups/readers": ("overview", "queues", "members", "settings", "history"),
}
PAGES = [
    "/", "/c/main", "/c/main/brokers", "/c/main/topics?kinds=all", "/c/main/groups?kinds=all",
    "/c/main/producers", "/c/main/statistics",
    *(f"/c/main{path}?tab={tab}" for path, tabs in TABS.items() for tab in tabs),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shown:
    """A running cluster with a topic, a producer and a member of a group."""

    namesrv: str
    versions: dict[str, str]
    """Of the brokers, by name."""


@pytest.fixture(scope="module", params=gated(BROKERS, {NEWEST}))
def cluster(request: pytest.FixtureRequest, apache: None) -> Generator[Shown]:
    versions = BROKERS[request.param]
    with ExitStack() as stack:
        namesrv = stack.enter_context(apache_namesrv(versions["broker-a"]))
        for name, version in versions.items():
            if version == "tianzhou":
                stack.enter_context(tianzhou_broker(namesrv, brokerName=name, graceful=False))
            else:
                stack.enter_context(
                    apache_broker(version, namesrv.address, brokerName=name, graceful=False)
                )
        asyncio.run(_create_topic(namesrv.address))
        producer = stack.enter_context(sync.Producer("senders", namesrv=namesrv.address))
        for number in range(SENT):
            producer.send("console", b"body", keys=f"k{number}")
        consumer = sync.PushConsumer("readers", namesrv=namesrv.address, start="first")

        @consumer.handler("console")
        def accept(_: object) -> None:
            pass

        stack.enter_context(consumer)
        yield Shown(namesrv.address, versions)


async def _create_topic(namesrv: str) -> None:
    async with Admin(namesrv, timeout_ms=10_000) as admin:
        brokers = await admin.clusters.brokers(masters=True)
        for at in brokers:
            await admin.topics.put(
                at, TopicConfig(topic_name="console", read_queue_count=4, write_queue_count=4)
            )
        assert not await admin.topics.await_route("console", brokers)


@pytest.fixture
async def console(cluster: Shown, tmp_path: Path) -> AsyncGenerator[CollectedConsole]:
    async with collected(tmp_path, main=cluster.namesrv) as made:
        yield made


async def get(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """The JSON of a page."""
    path, mark, query = path.partition("?")
    answer = await client.get(f"{path}.json{mark}{query}")
    assert answer.status_code == 200, answer.text[:2000]
    found: dict[str, Any] = answer.json()
    return found


async def test_every_page_shows_what_its_brokers_answer(
    cluster: Shown, console: CollectedConsole
) -> None:
    client = await console.browser("rita")
    deadline_s = time.monotonic() + 120
    while True:
        await console.round()
        overview = await get(client, "/c/main")
        group = (await get(client, "/c/main/groups?find=readers"))["groups"]["rows"]
        if (
            overview["state"]["answered"] == len(cluster.versions)
            and group
            and (group[0]["lag"], group[0]["members"]) == (0, 1)
        ):
            break
        assert time.monotonic() < deadline_s, (overview["state"], group)
        await asyncio.sleep(0.5)

    for path in PAGES:
        for language in ("en", "zh"):
            answer = await client.get(path, headers={"Accept-Language": language})
            assert answer.status_code == 200, (path, answer.text[:2000])

    assert {each["name"] for each in overview["brokers"]} == set(cluster.versions)
    for row in overview["brokers"]:
        version = cluster.versions[row["name"]]
        assert (version in row["version"]) or (version == "tianzhou"), row
        assert row["disk_ratio"] is not None
        if version == OLDEST:
            assert row["replication"]["level"] == "unknown"
        else:
            assert row["replication"]["level"] == "off"

    topic = await get(client, "/c/main/topics/console")
    assert (topic["topic"]["stored"], topic["topic"]["missing"]) == (SENT, [])
    queues = await get(client, "/c/main/topics/console?tab=queues")
    assert sum(row["stored"] for row in queues["queues"]["rows"]) == SENT
    assert queues["queues"]["total"] == 4 * len(cluster.versions)
    assert queues["queue_problems"] == []

    (member,) = (await get(client, "/c/main/groups/readers?tab=members"))["members"]
    assert member["subscriptions"] == [["console", "*"]]
    assert {each["broker"] for each in member["queues"]} == set(cluster.versions)
    progress = await get(client, "/c/main/groups/readers?tab=queues&find=console")
    assert {row["client_id"] for row in progress["queues"]["rows"]} >= {member["client_id"]}
    settings = await get(client, "/c/main/groups/readers?tab=settings")
    assert settings["problems"] == []
    assert "retryMaxTimes" in {row["key"] for row in settings["settings"]["rows"]}

    for name in cluster.versions:
        keys = await get(client, f"/c/main/brokers/{name}?tab=settings&find=brokerName")
        assert ("brokerName", name) in {
            (row["key"], row["value"]) for row in keys["settings"]["rows"]
        }

    producers = await get(client, "/c/main/producers")
    names = {row["name"]: row["client_count"] for row in producers["producers"]["rows"]}
    assert names["senders"] == 1

    statistics = await get(client, "/c/main/statistics")
    assert {row["topic"]: row["count"] for row in statistics["rows"]["rows"]}["console"] == SENT
