"""Changes of topics: plan, execution on every broker, audit, guided shrink, what is refused."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.console.absent import NOWHERE, absent_broker
from tests.support.console.clients import plan_of
from tests.support.console.live import LiveConsole, live_console
from tianzhou.admin.fanout import BrokerRef
from tianzhou.message import Message
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as made:
        yield made


@pytest.fixture
async def live(cluster: Cluster, tmp_path: Path) -> AsyncIterator[LiveConsole]:
    async with live_console(cluster, tmp_path) as made:
        yield made


async def configs(live: LiveConsole, topic: str) -> list[TopicConfig]:
    brokers = await live.admin.clusters.brokers(masters=True)
    read = [await live.admin.topics.config(at, topic) for at in brokers]
    return [each for each in read if each is not None]


async def test_a_topic_is_planned_created_and_recorded(live: LiveConsole) -> None:
    planned = await live.plan("/new-topic", "create", topic="orders", queues="4")
    assert planned.status_code == 200
    assert "4 / 4, RW" in planned.text
    assert await configs(live, "orders") == []
    done = await live.confirm(planned, "/new-topic", "create", topic="orders", queues="4")
    assert (done.status_code, done.headers["location"]) == (303, "/c/main/topics/orders/change")
    assert [each.read_queue_count for each in await configs(live, "orders")] == [4, 4]
    row = await live.audit()
    assert (row["subject"], row["result"], row["cluster"]) == ("orders", "ok", "main")
    assert json.loads(row["after"])["readQueueNums"] == 4
    page = await live.page("/topics/orders/change")
    assert "Delete topic" in page
    assert "删除主题" in await live.page("/topics/orders/change", language="zh")


@pytest.mark.parametrize(
    ("kind", "queues", "order", "attribute", "brokers"),
    [
        ("ordered", 3, True, "FIFO", 2),
        ("ordered-global", 1, True, "FIFO", 1),
        ("delayed", 3, False, "DELAY", 2),
        ("transactional", 3, False, "TRANSACTION", 2),
    ],
)
async def test_kinds_of_topics(
    live: LiveConsole, kind: str, queues: int, order: bool, attribute: str, brokers: int
) -> None:
    topic = f"kind-{kind}"
    await live.do("/new-topic", "create", topic=topic, queues="3", kind=kind)
    made = await configs(live, topic)
    assert len(made) == brokers
    assert {each.write_queue_count for each in made} == {queues}
    assert {each.order for each in made} == {order}
    assert {(each.attributes or {}).get("message.type") for each in made} == {attribute}


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"topic": "a b"}, 422),
        ({"topic": "<script>"}, 422),
        ({"topic": "x" * 200}, 422),
        ({"topic": "TBW102"}, 422),
        ({"topic": "%RETRY%g"}, 422),
        ({"topic": "broker-0"}, 422),
        ({"topic": "rmq_sys_x"}, 422),
        ({"topic": "ok", "queues": "0"}, 422),
        ({"topic": "ok", "queues": "9999"}, 422),
        ({"topic": "ok", "kind": "other"}, 422),
        ({"topic": "ok", "permission": "rwx"}, 422),
        ({"topic": "ok", "on": "nowhere"}, 422),
        ({"topic": "ok", "unknown": "1"}, 422),
        ({}, 422),
    ],
)
async def test_a_wrong_topic_is_refused(
    live: LiveConsole, fields: dict[str, str], status: int
) -> None:
    answer = await live.client.post("/c/main/new-topic?dry=1", data={"_do": "create", **fields})
    assert answer.status_code == status
    assert "<script>" not in answer.text.partition("<main")[2]


async def test_a_second_click_creates_nothing_and_says_so(live: LiveConsole) -> None:
    planned = await live.plan("/new-topic", "create", topic="twice")
    first, second = await asyncio.gather(
        live.confirm(planned, "/new-topic", "create", topic="twice"),
        live.confirm(planned, "/new-topic", "create", topic="twice"),
    )
    assert sorted((first.status_code, second.status_code)) == [303, 409]
    rows = (await live.client.get("/audit.json")).json()["entries"]["rows"]
    assert [each["result"] for each in rows if each["result"] == "ok"] == ["ok"]


async def test_two_people_change_a_topic_at_once(live: LiveConsole) -> None:
    await live.do("/new-topic", "create", topic="contested", queues="2")
    address = "/topics/contested/change"
    mine = await live.plan(address, "update", write_queues="4")
    theirs = await live.plan(address, "update", write_queues="8")
    assert (await live.confirm(mine, address, "update", write_queues="4")).status_code == 303
    late = await live.confirm(theirs, address, "update", write_queues="8")
    assert late.status_code == 409
    assert "Meanwhile something has changed" in late.text
    assert {each.write_queue_count for each in await configs(live, "contested")} == {4}
    # The page with the refusal shows the plan as it is now.
    again = await live.client.post(
        f"/c/main{address}", data={"_do": "update", "write_queues": "8", "_plan": plan_of(late)}
    )
    assert again.status_code == 303


async def test_queues_are_removed_in_two_steps(live: LiveConsole) -> None:
    await live.do("/new-topic", "create", topic="shrunk", queues="2")
    address = "/topics/shrunk/change"
    for _ in range(8):
        await live.admin.messages.send(Message("shrunk", b"x"))
    brokers = await live.admin.clusters.brokers(masters=True)
    for at in brokers:
        for queue in (0, 1):
            await live.admin.offsets.commit(at, "slow", "shrunk", queue, 0)
    early = await live.plan(address, "update", read_queues="1")
    assert early.status_code == 422
    assert "two steps" in early.text
    first = await live.plan(address, "update", write_queues="1")
    assert "step 1 of 2" in first.text
    await live.confirm(first, address, "update", write_queues="1")
    assert {
        (each.write_queue_count, each.read_queue_count) for each in await configs(live, "shrunk")
    } == {(1, 2)}
    state = (await live.json(address))["shrinking"]
    assert (state["queues"], state["left"], state["is_done"]) == (2, 4, False)
    assert {row["slowest"] for row in state["rows"]} == {"slow"}
    assert "step 2 of 2" in await live.page(address)
    # Not drained: the loss is said, and the name must be typed.
    dangerous = await live.plan(address, "update", read_queues="1")
    assert "4 messages would not be consumed" in dangerous.text
    refused = await live.confirm(dangerous, address, "update", read_queues="1")
    assert refused.status_code == 409
    for at in brokers:
        await live.admin.offsets.commit(at, "slow", "shrunk", 1, 2)
    assert (await live.json(address))["shrinking"]["is_done"]
    done = await live.do(address, "update", read_queues="1")
    assert done.status_code == 303
    assert {each.read_queue_count for each in await configs(live, "shrunk")} == {1}
    assert (await live.json(address))["shrinking"] is None


async def test_a_topic_is_deleted_only_with_its_name_typed(live: LiveConsole) -> None:
    await live.do("/new-topic", "create", topic="old", queues="2")
    address = "/topics/old/change"
    await live.admin.messages.send(Message("old", b"x"))
    at = (await live.admin.clusters.brokers(masters=True))[0]
    await live.admin.offsets.commit(at, "reader-group", "old", 0, 0)
    planned = await live.plan(address, "delete")
    assert "1 message is lost" in planned.text
    assert "Group reader-group consumes it: 0 members on line" in planned.text
    for typed in ("", "Old", "old "):
        refused = await live.confirm(planned, address, "delete", _confirm=typed)
        assert refused.status_code == 409
    assert len(await configs(live, "old")) == 2
    # Messages that arrive meanwhile do not make another plan of it.
    await live.admin.messages.send(Message("old", b"x"))
    done = await live.confirm(planned, address, "delete", _confirm="old")
    assert (done.status_code, done.headers["location"]) == (303, "/c/main/topics")
    assert await configs(live, "old") == []
    row = await live.audit()
    assert json.loads(row["before"])["groups"] == ["reader-group"]
    assert (await live.client.get(f"/c/main{address}")).status_code == 404


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "broker-0", "DefaultCluster"])
async def test_system_topics_are_neither_changed_nor_deleted(live: LiveConsole, topic: str) -> None:
    for verb, fields in (("delete", {}), ("update", {"write_queues": "1"})):
        answer = await live.plan(f"/topics/{topic}/change", verb, **fields)
        assert answer.status_code == 422
        assert "belongs to RocketMQ itself" in answer.text


async def test_a_reader_sees_no_forms_and_is_refused(live: LiveConsole) -> None:
    await live.do("/new-topic", "create", topic="seen", queues="1")
    assert (await live.reader.get("/c/main/new-topic")).status_code == 404
    page = await live.reader.get("/c/main/topics/seen/change")
    assert page.status_code == 200
    assert "Delete topic" not in page.text
    for verb in ("delete", "update"):
        answer = await live.reader.post(
            "/c/main/topics/seen/change", data={"_do": verb, "_confirm": "seen"}
        )
        assert answer.status_code in (403, 404)
    assert len(await configs(live, "seen")) == 2


async def test_a_program_changes_by_json(live: LiveConsole) -> None:
    program = await live.console.program("ada", "read", "change")
    fields = {"_do": "create", "topic": "by-program", "queues": 2}
    plan = await program.post("/c/main/new-topic?dry=1", json=fields)
    assert [row["after"] for row in plan.json()["rows"]] == ["2 / 2, RW", "2 / 2, RW"]
    done = await program.post("/c/main/new-topic", json=fields)
    assert done.json()["result"]["is_complete"]
    delete = {"_do": "delete"}
    refused = await program.post("/c/main/topics/by-program/change", json=delete)
    assert refused.status_code == 409
    only_read = await live.console.program("ada", "read")
    answer = await only_read.post(
        "/c/main/topics/by-program/change", json={**delete, "_confirm": "by-program"}
    )
    assert answer.status_code == 403


async def test_names_with_percent_and_bar_are_shown(live: LiveConsole) -> None:
    await live.do("/new-topic", "create", topic="a%b|c", queues="1")
    page = await live.page("/topics/a%25b%7Cc/change")
    assert "a%b|c" in page
    assert (await live.client.get("/c/main/topics/nothing/change")).status_code == 404


@pytest.fixture
async def absent(live: LiveConsole) -> AsyncIterator[str]:
    """A broker that is listed and does not answer."""
    async with absent_broker(live.cluster.namesrv_address) as name:
        yield name


async def test_a_broker_that_does_not_answer_is_named_in_page_plan_and_audit(
    live: LiveConsole, absent: str
) -> None:
    planned = await live.plan("/new-topic", "create", topic="partial", queues="2")
    assert f"{absent} does not answer and will not be changed" in planned.text
    await live.confirm(planned, "/new-topic", "create", topic="partial", queues="2")
    state = await live.json("/topics/partial/change")
    assert [each["broker"] for each in state["silent"]] == [absent]
    assert "Not every broker answered" in await live.page("/topics/partial/change")


async def test_a_broker_that_stops_in_the_middle_gives_a_partial_result(
    live: LiveConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two brokers stops after the plan was checked, before it is asked to create."""
    await live.do("/new-topic", "create", topic="halfway", queues="2")
    address = "/topics/halfway/change"
    planned = await live.plan(address, "update", write_queues="3")
    real = live.admin.topics.put

    async def put(broker: BrokerRef, config: TopicConfig) -> None:
        if broker.name == "broker-1":
            await real(BrokerRef("broker-1", 0, NOWHERE, broker.cluster), config)
        await real(broker, config)

    monkeypatch.setattr(live.admin.topics, "put", put)
    done = await live.confirm(planned, address, "update", write_queues="3")
    assert done.status_code == 200
    assert "Only a part of this was done" in done.text
    assert "broker-1" in done.text
    assert sorted(each.write_queue_count for each in await configs(live, "halfway")) == [2, 3]
    row = await live.audit()
    assert row["result"] == "partial"
    assert "Not done on broker-1" in row["reason"]
    assert list(json.loads(row["after"])["changed"]) == ["broker-0"]
    page = (await live.client.get("/audit")).text
    assert "in part" in page
    # Again: a program gets 207 and the result of each broker.
    program = await live.console.program("ada", "read", "change")
    fields = {"_do": "update", "write_queues": 4}
    answer = await program.post(f"/c/main{address}", json=fields)
    assert answer.status_code == 207
    results = {each["where"]: each["is_ok"] for each in answer.json()["result"]["results"]}
    assert results == {"broker-0": True, "broker-1": False}
    # With the broker back the same change completes.
    monkeypatch.undo()
    assert (await live.do(address, "update", write_queues="4")).status_code == 303
    assert {each.write_queue_count for each in await configs(live, "halfway")} == {4}


async def test_nothing_done_is_an_error_and_recorded_as_failed(
    live: LiveConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = await live.plan("/new-topic", "create", topic="never")
    real = live.admin.topics.put

    async def put(broker: BrokerRef, config: TopicConfig) -> None:
        await real(BrokerRef(broker.name, 0, NOWHERE, broker.cluster), config)

    monkeypatch.setattr(live.admin.topics, "put", put)
    done = await live.confirm(planned, "/new-topic", "create", topic="never")
    assert done.status_code == 502
    assert (await live.audit())["result"] == "failed"
    assert await configs(live, "never") == []
