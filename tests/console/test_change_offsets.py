"""Changes of offsets: the preview of every queue, groups off line and on line, clone."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.brokers import eventually
from tests.support.console.live import LiveConsole, live_console
from tianzhou.client.consumer.push import PushConsumer
from tianzhou.client.message import ReceivedMessage
from tianzhou.console.changes.offsets import time_of
from tianzhou.console.web.refusals import Invalid
from tianzhou.message import Message
from tianzhou.testing import Cluster

MESSAGES = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, topics={"orders": 2, "other": 1}) as made:
        yield made


@pytest.fixture
async def live(cluster: Cluster, tmp_path: Path) -> AsyncIterator[LiveConsole]:
    async with live_console(cluster, tmp_path) as made:
        yield made


async def fill(live: LiveConsole, group: str) -> int:
    """A group that has consumed nothing; returns how many messages the topic has then."""
    await live.do("/new-group", "create", group=group)
    for _ in range(MESSAGES):
        await live.admin.messages.send(Message("orders", b"x"))
    for at in await live.admin.clusters.brokers(masters=True):
        for queue in (0, 1):
            await live.admin.offsets.commit(at, group, "orders", queue, 0)
    rows = (await live.json(f"/groups/{group}/offsets"))["queues"]["rows"]
    return sum(row["end"] for row in rows)


async def committed(live: LiveConsole, group: str) -> dict[tuple[str, int], int | None]:
    return {
        (at.name, queue): await live.admin.offsets.committed(at, group, "orders", queue)
        for at in await live.admin.clusters.brokers(masters=True)
        for queue in (0, 1)
    }


async def test_the_plan_shows_every_queue_before_and_after(live: LiveConsole) -> None:
    total = await fill(live, "g1")
    page = await live.json("/groups/g1/offsets", topic="orders")
    assert len(page["queues"]["rows"]) == 4
    assert page["members"] == 0
    program = await live.console.program("ada", "read", "change")
    fields = {"_do": "reset", "topic": "orders", "to": "latest"}
    plan = (await program.post("/c/main/groups/g1/offsets?dry=1", json=fields)).json()
    assert {row["subject"] for row in plan["rows"]} == {
        "broker-0 / 0",
        "broker-0 / 1",
        "broker-1 / 0",
        "broker-1 / 1",
    }
    assert {row["before"] for row in plan["rows"]} == {"0"}
    assert sum(int(row["after"]) for row in plan["rows"]) == total
    assert f"{total} messages are skipped." in plan["warnings"]
    assert "No member is on line: the next one that starts continues there." in plan["warnings"]
    assert set((await committed(live, "g1")).values()) == {0}
    done = await live.do("/groups/g1/offsets", "reset", topic="orders", to="latest")
    assert done.headers["location"] == "/c/main/groups/g1/offsets?topic=orders"
    after = await committed(live, "g1")
    assert sum(each or 0 for each in after.values()) == total
    row = await live.audit()
    assert {each["before"] for each in json.loads(row["before"])} == {0}
    moved = {(each["broker"], each["queue"]): each["after"] for each in json.loads(row["after"])}
    assert moved == after
    # Back to the beginning.
    await live.do("/groups/g1/offsets", "reset", topic="orders", to="earliest")
    assert set((await committed(live, "g1")).values()) == {0}


async def test_a_reset_to_a_time_and_only_backwards(live: LiveConsole) -> None:
    total = await fill(live, "g2")
    await live.do("/groups/g2/offsets", "skip", topic="orders")
    assert sum(each or 0 for each in (await committed(live, "g2")).values()) == total
    await live.do("/groups/g2/offsets", "reset", topic="orders", to="time", time="2020-01-01T00:00")
    assert set((await committed(live, "g2")).values()) == {0}
    await live.do("/groups/g2/offsets", "reset", topic="orders", to="latest", is_only_back="true")
    assert set((await committed(live, "g2")).values()) == {0}


async def test_one_queue_to_one_number(live: LiveConsole) -> None:
    await fill(live, "g3")
    fields = {"topic": "orders", "to": "offset", "broker": "broker-1", "queue": "1", "offset": "2"}
    planned = await live.plan("/groups/g3/offsets", "reset", **fields)
    assert planned.text.count("<ins>") == 1
    await live.confirm(planned, "/groups/g3/offsets", "reset", **fields)
    after = await committed(live, "g3")
    assert after.pop(("broker-1", 1)) == 2
    assert set(after.values()) == {0}


@pytest.mark.parametrize(
    "fields",
    [
        {"to": "offset", "offset": "1"},
        {"to": "offset", "broker": "broker-0", "offset": "1"},
        {"to": "offset", "broker": "broker-0", "queue": "0", "offset": "99999"},
        {"to": "offset", "broker": "broker-0", "queue": "9", "offset": "0"},
        {"to": "offset", "broker": "broker-0", "queue": "0", "offset": "-1"},
        {"to": "time", "time": "yesterday"},
        {"to": "time"},
        {"to": "nowhere"},
        {},
        {"to": "latest", "broker": "broker-9"},
        {"to": "latest", "queue": "-1"},
    ],
)
async def test_a_wrong_target_is_refused(live: LiveConsole, fields: dict[str, str]) -> None:
    if (await live.client.get("/c/main/groups/g4/change")).status_code == 404:
        await live.do("/new-group", "create", group="g4")
    answer = await live.plan("/groups/g4/offsets", "reset", topic="orders", **fields)
    assert answer.status_code == 422, answer.text[:3000]


async def test_unknown_topics_and_groups_are_not_moved(live: LiveConsole) -> None:
    await live.do("/new-group", "create", group="g5")
    for group, topic in (("g5", "nothing"), ("nobody", "orders")):
        answer = await live.plan(f"/groups/{group}/offsets", "skip", topic=topic)
        assert answer.status_code == 404


async def test_messages_that_arrive_meanwhile_do_not_spoil_the_plan(live: LiveConsole) -> None:
    await fill(live, "g6")
    planned = await live.plan("/groups/g6/offsets", "skip", topic="orders")
    await live.admin.messages.send(Message("orders", b"late"))
    done = await live.confirm(planned, "/groups/g6/offsets", "skip", topic="orders")
    assert done.status_code == 303
    rows = (await live.json("/groups/g6/offsets"))["queues"]["rows"]
    assert [row["lag"] for row in rows] == [0, 0, 0, 0]


async def test_a_group_on_line_goes_back_without_a_restart(live: LiveConsole) -> None:
    await live.do("/new-group", "create", group="g7")
    received: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        received.append(message.msg_id)

    consumer = PushConsumer("g7", namesrv=live.cluster.namesrv_address)
    consumer.subscribe("other", handle)
    async with consumer:
        for _ in range(3):
            await live.admin.messages.send(Message("other", b"x"))
        await eventually(lambda: len(received) >= 3, "the messages")
        planned = await live.plan("/groups/g7/offsets", "reset", topic="other", to="earliest")
        assert "1 member is on line and continues there." in planned.text
        refused = await live.plan("/groups/g7/offsets", "clone", topic="other", from_group="g1")
        assert refused.status_code in (409, 422)
        before = len(received)
        fields = {"topic": "other", "to": "earliest"}
        await live.confirm(planned, "/groups/g7/offsets", "reset", **fields)
        await eventually(lambda: len(received) >= before + 3, "the messages")
        delete = await live.plan("/groups/g7/change", "delete")
        assert "1 member is on line" in delete.text


async def test_the_offsets_of_another_group_are_copied(live: LiveConsole) -> None:
    await fill(live, "g8")
    await fill(live, "g9")
    await live.do("/groups/g8/offsets", "reset", topic="orders", to="latest")
    wanted = await committed(live, "g8")
    fields = {"topic": "orders", "from_group": "g8"}
    planned = await live.plan("/groups/g9/offsets", "clone", **fields)
    assert planned.text.count("<del>0</del>") == 4
    await live.confirm(planned, "/groups/g9/offsets", "clone", **fields)
    assert await committed(live, "g9") == wanted
    for source, status in (("g9", 422), ("never-there", 422), ("a b", 422)):
        answer = await live.plan("/groups/g9/offsets", "clone", topic="orders", from_group=source)
        assert answer.status_code == status
    assert "重置位点" in await live.page("/groups/g9/offsets", language="zh")


def test_times_are_those_of_the_person() -> None:
    assert time_of("2026-01-31T08:00", "Asia/Shanghai") == 1_769_817_600_000
    assert time_of("2026-01-31 08:00", "UTC") == 1_769_846_400_000
    assert time_of("2026-01-31T08:00+08:00", "UTC") == 1_769_817_600_000
    assert time_of("1769846400000", "UTC") == 1_769_846_400_000
    for text in ("", "soon", "1960-01-01", "99999999999999999999"):
        with pytest.raises(Invalid):
            time_of(text, "UTC")
