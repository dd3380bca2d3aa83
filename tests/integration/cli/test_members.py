"""Groups with online consumers, unreachable brokers, and the findings of the doctor."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.brokers import eventually
from tests.support.command_line import Cli
from tests.support.namesrv import Broker as RegisteredBroker
from tests.support.namesrv import asking

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.doctor.checks import examine
from tianzhou.client.consumer.push import PushConsumer
from tianzhou.client.message import ReceivedMessage
from tianzhou.protocol.codes import ResponseCode
from tianzhou.testing import Cluster


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")


@asynccontextmanager
async def consumers(
    cluster: Cluster, group: str, *tags: str
) -> AsyncGenerator[list[list[ReceivedMessage]]]:
    """Members of a group, each with filters of its own; gives what each has received."""
    received: list[list[ReceivedMessage]] = [[] for _ in tags]
    async with AsyncExitStack() as stack:
        for number, each in enumerate(tags):
            consumer = PushConsumer(
                group, namesrv=cluster.namesrv_address, instance_name=f"member-{number}"
            )
            got = received[number]

            async def take(message: ReceivedMessage, got: list[ReceivedMessage] = got) -> None:
                got.append(message)

            consumer.subscribe("orders", take, tags=each)
            await consumer.start()
            stack.push_async_callback(consumer.close)
        yield received


async def test_group_show_lists_members_lag_and_holders() -> None:
    async with Cluster(topics={"orders": 4}) as cluster:
        cli = Cli(cluster.namesrv_address)
        async with consumers(cluster, "billing", "*", "*") as received:
            await cli.run("message", "send", "orders", "x", "--count", "8")
            await eventually(lambda: sum(map(len, received)) == 8, "all messages")

            async def all_held() -> bool:
                told = (await cli.run("group", "show", "billing", "--json")).json
                mine = [each for each in told["queues"] if each["topic"] == "orders"]
                return len(mine) == 4 and all(each["client_id"] for each in mine)

            await eventually(all_held, "every queue is held")
            told = (await cli.run("group", "show", "billing", "--json")).json
            assert [each["client_id"].split("@")[1] for each in told["members"]] == [
                "member-0", "member-1",
            ]  # fmt: skip
            assert told["subscriptions"] == {"orders": "*"}
            assert told["contradictions"] == []
            assert told["model"] == "clustering"
            shown = (await cli.run("group", "show", "billing")).out
            assert "Group billing" in shown
            members = (await cli.run("group", "members", "billing", "--json")).json
            assert len(members) == 2
            await cli.run("group", "members", "billing", "--stacks")
            held = [each for one in members for each in one["queues"]]
            assert len([each for each in held if each["topic"] == "orders"]) == 4
            rows = (await cli.run("group", "list", "--json")).json
            assert [(row["group"], row["members"]) for row in rows] == [("billing", 2)]


async def test_different_subscriptions_name_all_members() -> None:
    async with Cluster(topics={"orders": 4}) as cluster:
        cli = Cli(cluster.namesrv_address)
        async with consumers(cluster, "billing", "paid", "sent || paid"):
            ran = await cli.run("group", "show", "billing", "--json")
            (found,) = ran.json["contradictions"]
            assert found["topic"] == "orders"
            sides = {what: who[0].split("@")[1] for what, who in found["sides"].items()}
            assert sides == {"paid": "member-0", "paid || sent": "member-1"}
            assert "members have different subscriptions to orders" in ran.err
            assert "member-0" in ran.err
            assert "member-1" in ran.err
            examined = await cli.run("doctor", "--wait", "0", "--json", code=1)
            (finding,) = [each for each in examined.json if each["check"] == "subscriptions"]
            assert finding["level"] == "error"


async def test_offsets_are_reset_with_consumers_online() -> None:
    async with Cluster(topics={"orders": 2}) as cluster:
        cli = Cli(cluster.namesrv_address)
        async with consumers(cluster, "billing", "*") as (received,):
            await cli.run("message", "send", "orders", "x", "--count", "6")
            await eventually(lambda: len(received) >= 6, "all messages")
            moved = await cli.run("offset", "reset", "billing", "orders", "--to", "earliest", "-y")
            assert "online" in moved.out
            await eventually(lambda: len(received) >= 12, "all messages once more")
            again = [message.queue_id for message in received[6:]]
            del received[:]
            one = ("--to-offset", "1", "--queue", "0", "--broker", "broker-0", "--yes")
            await cli.run("offset", "reset", "billing", "orders", *one)
            await eventually(lambda: len(received) >= again.count(0) - 1, "one queue once more")
            assert {(message.queue_id, message.queue_offset) for message in received} == {
                (0, place) for place in range(1, again.count(0))
            }


@asynccontextmanager
async def ghost(namesrv: str) -> AsyncGenerator[None]:
    """A broker that is registered with an address on which nothing listens."""
    async with asking(namesrv) as asker:
        answer = await RegisteredBroker(name="ghost", addr="127.0.0.1:1").register(asker)
        assert answer.code == ResponseCode.SUCCESS, answer
        yield


async def test_unreachable_broker_is_a_warning() -> None:
    async with Cluster(topics={"orders": 2}) as cluster:
        cli = Cli(cluster.namesrv_address)
        await cli.run("group", "create", "billing")
        await cli.run("offset", "reset", "billing", "orders", "--to", "earliest", "--yes")
        async with ghost(cluster.namesrv_address):
            for words in (
                ("topic", "list"), ("topic", "show", "orders"), ("group", "show", "billing"),
                ("cluster", "top", "--once"), ("broker", "list"), ("offset", "show", "billing"),
            ):  # fmt: skip
                ran = await cli.run(*words)
                assert ran.out, words
                assert "warning: ghost (127.0.0.1:1): no connection" in ran.err, words
            rows = (await cli.run("broker", "list", "--json")).json
            assert [(row["broker"], row["answers"]) for row in rows] == [
                ("broker-0", True), ("ghost", False),
            ]  # fmt: skip
            examined = await cli.run("doctor", "--wait", "0", code=1)
            assert "ghost 127.0.0.1:1: no connection" in examined.out
            assert "brokerIP1" in examined.out
            alone = await cli.run("broker", "show", "ghost", code=1)
            assert alone.err.count("\n") == 1


async def test_doctor_reports_no_fault_for_healthy_cluster() -> None:
    settings: dict[str, Any] = {
        "autoCreateTopicEnable": "false",
        "autoCreateSubscriptionGroup": "false",
    }
    async with Cluster(topics={"orders": 2}, **settings) as cluster:
        cli = Cli(cluster.namesrv_address)
        ran = await cli.run("doctor", "--wait", "0")
        assert "0 errors, 0 warnings" in ran.out
        levels = {each["level"] for each in (await cli.run("doctor", "--json")).json}
        assert levels == {"ok"}


async def test_doctor_reports_backlogs_and_unsafe_settings() -> None:
    async with Cluster(topics={"orders": 2}) as cluster:
        cli = Cli(cluster.namesrv_address)
        await cli.run("message", "send", "orders", "x", "--count", "3")
        await cli.run("group", "create", "billing")
        await cli.run("offset", "reset", "billing", "orders", "--to", "earliest", "--yes")
        ran = await cli.run("doctor", "--wait", "0.1")
        assert "backlog of 3 messages of orders, and no member is online" in ran.out
        assert "--set autoCreateTopicEnable=false" in ran.out
        nowhere = await asyncio.to_thread(Cli(f"127.0.0.1:1;{cli.namesrv}"), "doctor", code=1)
        assert "127.0.0.1:1" in nowhere.out


@asynccontextmanager
async def gated_consumer(cluster: Cluster) -> AsyncGenerator[tuple[asyncio.Semaphore, list[int]]]:
    """Consumes as many messages as it is let, and commits nothing meanwhile; gives what it did."""
    gate, done = asyncio.Semaphore(0), list[int]()

    async def take(message: ReceivedMessage) -> None:
        await gate.acquire()
        done.append(message.queue_offset)

    consumer = PushConsumer(
        "billing", namesrv=cluster.namesrv_address, persist_offsets_ms=3_600_000
    )
    consumer.subscribe("orders", take)
    async with consumer:
        try:
            yield gate, done
        finally:
            for _ in range(100):
                gate.release()


async def test_doctor_distinguishes_busy_from_stuck_consumers() -> None:
    async with Cluster(topics={"orders": 1}) as cluster:
        cli = Cli(cluster.namesrv_address)
        await cli.run("group", "create", "billing")
        await cli.run("offset", "reset", "billing", "orders", "--to", "earliest", "--yes")
        await cli.run("message", "send", "orders", "x", "--count", "9")
        async with (
            gated_consumer(cluster) as (gate, done),
            Admin(cluster.namesrv_address) as admin,
        ):

            async def fetched() -> bool:
                (told,) = (await cli.run("group", "members", "billing", "--json")).json
                return any(each["waiting"] == 9 for each in told["queues"])

            async def work(_: float) -> None:
                gate.release()
                await eventually(lambda: done, "one message")

            async def checks(**options: Any) -> set[str]:  # noqa: ANN401
                return {each.check for each in await examine(admin, **options)}

            await eventually(fetched, "all messages are there")
            ran = await cli.run("doctor", "--wait", "0.1", code=1)
            assert "9 messages in stuck queues: orders broker-0/0" in ran.out
            watched = await cli.run("cluster", "watch", "--wait", "0.1", "--rounds", "1", "--json")
            assert "stuck queues" in {each["check"] for each in watched.lines}
            assert "stuck queues" not in await checks(wait_s=0)
            assert "stuck queues" not in await checks(pause=work)
            assert done == [0]
