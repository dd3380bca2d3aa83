"""Changes of consumer groups: create, settings, pause, delete; what is refused."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.console.live import LiveConsole, live_console
from tianzhou.message import Message
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, topics={"orders": 2}) as made:
        yield made


@pytest.fixture
async def live(cluster: Cluster, tmp_path: Path) -> AsyncIterator[LiveConsole]:
    async with live_console(cluster, tmp_path) as made:
        yield made


async def configs(live: LiveConsole, group: str) -> list[SubscriptionGroupConfig]:
    brokers = await live.admin.clusters.brokers(masters=True)
    read = [await live.admin.groups.config(at, group) for at in brokers]
    return [each for each in read if each is not None]


async def test_a_group_is_created_changed_paused_and_resumed(live: LiveConsole) -> None:
    done = await live.do("/new-group", "create", group="billing", retries="3")
    assert done.headers["location"] == "/c/main/groups/billing/change"
    assert [each.retry_max_times for each in await configs(live, "billing")] == [3, 3]
    address = "/groups/billing/change"
    planned = await live.plan(address, "update", retries="5", is_broadcast_allowed="false")
    assert planned.text.count("<del>3</del>") == 2
    await live.confirm(planned, address, "update", retries="5", is_broadcast_allowed="false")
    assert {
        (each.retry_max_times, each.consume_broadcast_enable)
        for each in await configs(live, "billing")
    } == {(5, False)}
    row = await live.audit()
    assert json.loads(row["before"])["broker-0"]["retryMaxTimes"] == 3
    assert json.loads(row["after"])["broker-1"]["retryMaxTimes"] == 5
    await live.do(address, "pause")
    assert (await live.json(address))["is_paused"]
    assert {each.consume_enable for each in await configs(live, "billing")} == {False}
    # Pausing changes nothing else.
    assert {each.retry_max_times for each in await configs(live, "billing")} == {5}
    assert "该消费组已暂停" in await live.page(address, language="zh")
    await live.do(address, "resume")
    assert {each.consume_enable for each in await configs(live, "billing")} == {True}


async def test_one_broker_can_be_changed_alone_and_the_page_says_so(live: LiveConsole) -> None:
    await live.do("/new-group", "create", group="uneven")
    await live.do("/groups/uneven/change", "update", retries="2", on="broker-1")
    state = await live.json("/groups/uneven/change")
    assert [each["retries"] for each in state["brokers"]] == [16, 2]
    assert not state["is_same"]
    assert "The brokers have different settings" in await live.page("/groups/uneven/change")


@pytest.mark.parametrize(
    "fields",
    [
        {"group": "a b"},
        {"group": "DEFAULT_CONSUMER"},
        {"group": "CID_RMQ_SYS_X"},
        {},
        {"group": "g", "retries": "-2"},
        {"group": "g", "retries": "99999"},
        {"group": "g", "on": "nowhere"},
        {"group": "x" * 300},
    ],
)
async def test_a_wrong_group_is_refused(live: LiveConsole, fields: dict[str, str]) -> None:
    answer = await live.client.post("/c/main/new-group?dry=1", data={"_do": "create", **fields})
    assert answer.status_code == 422


async def test_internal_groups_are_neither_changed_nor_deleted(live: LiveConsole) -> None:
    at = (await live.admin.clusters.brokers(masters=True))[0]
    await live.admin.groups.put(at, SubscriptionGroupConfig(group_name="TOOLS_CONSUMER"))
    for verb in ("delete", "pause", "update"):
        answer = await live.plan("/groups/TOOLS_CONSUMER/change", verb)
        assert answer.status_code == 422
        assert "belongs to RocketMQ itself" in answer.text


async def test_a_group_is_deleted_with_its_name_typed(live: LiveConsole) -> None:
    await live.do("/new-group", "create", group="gone")
    brokers = await live.admin.clusters.brokers(masters=True)
    at = brokers[0]
    await live.admin.offsets.commit(at, "gone", "orders", 0, 0)
    await live.admin.topics.put(
        at, TopicConfig(topic_name="%DLQ%gone", read_queue_count=1, write_queue_count=1)
    )
    await live.admin.topics.await_route("%DLQ%gone", [at])
    await live.admin.messages.send(Message("%DLQ%gone", b"letter"))
    address = "/groups/gone/change"
    planned = await live.plan(address, "delete")
    assert "1 dead letter is lost" in planned.text
    refused = await live.confirm(planned, address, "delete")
    assert refused.status_code == 409
    assert len(await configs(live, "gone")) == 2
    done = await live.confirm(planned, address, "delete", _confirm="gone")
    assert (done.status_code, done.headers["location"]) == (303, "/c/main/groups")
    assert await configs(live, "gone") == []
    assert await live.admin.offsets.committed(at, "gone", "orders", 0) is None
    row = await live.audit()
    assert json.loads(row["before"])["dead_letters"] == 1
    assert (await live.client.get(f"/c/main{address}")).status_code == 404


async def test_the_offsets_of_a_deleted_group_can_stay(live: LiveConsole) -> None:
    await live.do("/new-group", "create", group="returns")
    at = (await live.admin.clusters.brokers(masters=True))[0]
    await live.admin.offsets.commit(at, "returns", "orders", 0, 7)
    fields = {"keeps_offsets": "true"}
    planned = await live.plan("/groups/returns/change", "delete", **fields)
    await live.confirm(planned, "/groups/returns/change", "delete", _confirm="returns", **fields)
    assert await live.admin.offsets.committed(at, "returns", "orders", 0) == 7


async def test_a_reader_is_refused(live: LiveConsole) -> None:
    await live.do("/new-group", "create", group="seen")
    page = await live.reader.get("/c/main/groups/seen/change")
    assert page.status_code == 200
    assert "Delete group" not in page.text
    for verb in ("delete", "pause", "update"):
        answer = await live.reader.post(
            "/c/main/groups/seen/change", data={"_do": verb, "_confirm": "seen"}
        )
        assert answer.status_code in (403, 404)
    answer = await live.reader.post(
        "/c/main/groups/seen/offsets", data={"_do": "skip", "topic": "orders"}
    )
    assert answer.status_code in (403, 404)
    assert {each.consume_enable for each in await configs(live, "seen")} == {True}
