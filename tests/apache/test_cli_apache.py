"""The command line on Apache's clusters: it works there unchanged, and does the same on ours.

Every test runs against our cluster, 5.5.0 and 4.9.7. Consumers are the client of this package, so
that the subscriptions of each member can be queried on any broker.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.apache.backends import Backend, until
from tests.support.command_line import Cli, Ran
from tianzhou.client.consumer.push import PushConsumer
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.producer.producer import Producer


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def cli(backend: Backend) -> Cli:
    return Cli(backend.namesrv)


def new_topic(cli: Cli, backend: Backend, text: str) -> str:
    """A topic with two queues, registered with the nameserver."""
    topic = backend.name(text)
    cli("topic", "create", topic, "--queues", "2")
    return topic


async def run_until_success(cli: Cli, *arguments: str) -> Ran:
    """Run a command until it succeeds: brokers register topics with Apache's nameserver later."""

    async def attempt() -> Ran:
        return await asyncio.to_thread(run_any, cli, *arguments)

    return await until(attempt, lambda ran: ran.code == 0)


def run_any(cli: Cli, *arguments: str) -> Ran:
    from tests.support.command_line import run_words

    return run_words([*arguments, "--namesrv", cli.namesrv])


@asynccontextmanager
async def consumer(
    backend: Backend, group: str, topic: str, tags: str = "*", name: str = "member"
) -> AsyncGenerator[list[bytes]]:
    received: list[bytes] = []

    async def take(message: ReceivedMessage) -> None:
        received.append(message.body)

    it = PushConsumer(group, namesrv=backend.namesrv, instance_name=name)
    it.subscribe(topic, take, tags=tags)
    await it.start()
    try:
        yield received
    finally:
        await it.close()


async def test_topic_list(cli: Cli, backend: Backend) -> None:
    topic = await asyncio.to_thread(new_topic, cli, backend, "listed")
    ran = await run_until_success(cli, "topic", "show", topic, "--json")
    assert [each["read_queues"] for each in ran.json["brokers"]] == [2]
    assert len(ran.json["queues"]) == 2
    (row,) = (await cli.run("topic", "list", topic, "--json")).json
    assert (row["kind"], row["read_queues"], row["perm"]) == ("normal", 2, "RW")
    everything = (await cli.run("topic", "list", "--all", "--json")).json
    assert {"TBW102", topic} <= {row["topic"] for row in everything}
    out = (await cli.run("topic", "update", topic, "--queues", "3")).out
    assert "read queues 2 -> 3" in out

    async def delete() -> Ran:
        await asyncio.to_thread(run_any, cli, "topic", "delete", topic, "--yes")
        return await asyncio.to_thread(run_any, cli, "topic", "show", topic)

    # A registration in flight to Apache's nameserver restores the topic.
    gone = await until(delete, lambda ran: ran.code == 1)
    assert "there is no topic" in gone.err


async def test_group_show(cli: Cli, backend: Backend) -> None:
    topic = await asyncio.to_thread(new_topic, cli, backend, "shown")
    group = backend.name("shown")
    await cli.run("group", "create", group, "--retries", "3")
    await run_until_success(cli, "message", "send", topic, "x", "--count", "4", "--tag", "a")
    async with (
        consumer(backend, group, topic, "a", "one") as received,
        consumer(backend, group, topic, "a || b", "two") as more,
    ):

        async def attempt() -> Ran:
            return await cli.run("group", "show", group, "--json")

        def both(ran: Ran) -> bool:
            asked = [each["subscriptions"] for each in ran.json["members"]]
            return len(asked) == 2 and None not in asked

        ran = await until(attempt, both)
        (found,) = ran.json["contradictions"]
        assert found["topic"] == topic
        sides = {what: who[0].split("@")[1] for what, who in found["sides"].items()}
        assert sides == {"a": "one", "a || b": "two"}
        assert "members have different subscriptions" in ran.err
        assert ran.json["settings"]
        assert "Group " in (await cli.run("group", "show", group)).out
    assert received is not more
    await cli.run("group", "delete", group, "--yes")


async def test_message_tail(cli: Cli, backend: Backend) -> None:
    topic = await asyncio.to_thread(new_topic, cli, backend, "tailed")
    sent = await run_until_success(
        cli, "message", "send", topic, "first", "--tag", "a", "--key", "k1", "--property", "n=7",
        "--json",
    )  # fmt: skip
    await cli.run("message", "send", topic, "second", "--tag", "b", "--property", "n=1")
    tail = ("message", "tail", topic, "--since", "earliest", "--json")
    both = (await cli.run(*tail, "--count", "2")).lines
    assert {each["body"] for each in both} == {"first", "second"}
    for chosen in (("--tag", "a"), ("--sql", "n > 5"), ("--grep", "fir")):
        (found,) = (await cli.run(*tail, *chosen, "--count", "1")).lines
        assert found["body"] == "first"
    message_id = sent.json[0]["message_id"]

    async def by_key() -> Ran:
        return await cli.run("message", "query", topic, "--key", "k1", "--json")

    # Apache's index is updated after the log.
    (found,) = (await until(by_key, lambda ran: bool(ran.json))).json
    assert found["id"] == message_id
    shown = await run_until_success(cli, "message", "show", message_id, "--topic", topic, "--json")
    assert shown.json["properties"]["n"] == "7"
    (walked,) = (
        await cli.run("message", "query", topic, "--from", "1h", "--tag", "b", "--json")
    ).json
    assert walked["body"] == "second"


async def test_message_recall(cli: Cli, backend: Backend) -> None:
    topic = await asyncio.to_thread(new_topic, cli, backend, "recalled")
    await run_until_success(cli, "topic", "show", topic)
    async with Producer("recalling", namesrv=backend.namesrv) as producer:
        gone = await producer.send(topic, b"gone", delay=8)
        await producer.send(topic, b"kept", delay=8)
    arguments = ("message", "recall", gone.msg_id, "--topic", topic, "--yes")
    if not backend.has_timers:
        assert "is pending" in (await cli.run(*arguments, code=1)).err
        return
    assert "recalled" in (await run_until_success(cli, *arguments)).out
    assert [each.body for each in await backend.await_stored(topic, 1)] == [b"kept"]


async def test_offset_reset(cli: Cli, backend: Backend) -> None:
    topic = await asyncio.to_thread(new_topic, cli, backend, "moved")
    group = backend.name("moved")
    await cli.run("group", "create", group)
    await run_until_success(cli, "message", "send", topic, "x", "--count", "6")
    move = ("offset", "reset", group, topic, "--yes")

    async def lag_at_the_end() -> int:
        await run_until_success(cli, *move, "--to", "latest")
        lag: int = (await cli.run("group", "show", group, "--json")).json["lag"]
        return lag

    # Apache's broker adds stored messages to its queues later; only then the end includes them.
    await until(lag_at_the_end, lambda lag: lag == 0)
    await cli.run(*move, "--to", "earliest")

    async def lag() -> int:
        found: int = (await cli.run("group", "show", group, "--json")).json["lag"]
        return found

    await until(lag, lambda found: found == 6)
    name = (await cli.run("broker", "list", "--json")).json[0]["broker"]
    await cli.run(*move, "--to-offset", "2", "--queue", "1", "--broker", name)
    shown = (await cli.run("offset", "show", group, "--topic", topic, "--json")).json
    assert [each["committed"] for each in shown] == [0, 2]


async def test_offset_reset_while_consumers_are_online(cli: Cli, backend: Backend) -> None:
    topic = await asyncio.to_thread(new_topic, cli, backend, "online")
    group = backend.name("online")
    await cli.run("group", "create", group)
    await run_until_success(cli, "message", "send", topic, "x", "--count", "6")
    async with consumer(backend, group, topic) as received:

        async def committed() -> bool:
            answered = await cli.run("group", "show", group, "--json")
            mine = [each for each in answered.json["queues"] if each["topic"] == topic]
            return len(received) >= 6 and len(mine) == 2 and all(not each["lag"] for each in mine)

        await until(committed, bool)
        moved = await cli.run("offset", "reset", group, topic, "--to", "earliest", "--yes")
        assert "online" in moved.out

        async def attempt() -> int:
            return len(received)

        await until(attempt, lambda number: number >= 12)


async def test_cluster_top(cli: Cli, backend: Backend) -> None:
    async def attempt() -> Ran:
        return await cli.run("cluster", "top", "--once", "--json")

    def has_rates(ran: Ran) -> bool:
        (broker,) = ran.json["brokers"]
        return broker["in_tps"] is not None and broker["out_tps"] is not None

    # A 4.9 broker reports a rate only after it has run for the whole window of that rate.
    (broker,) = (await until(attempt, has_rates)).json["brokers"]
    assert 0 < broker["disk_ratio"] < 1
    assert "backlog" in (await cli.run("cluster", "top", "--once")).out
    assert (await cli.run("cluster", "show", "--json")).json[0]["version"] == broker["version"]


async def test_doctor(cli: Cli, backend: Backend) -> None:
    found = (await cli.run("doctor", "--wait", "0", "--json")).json
    checks = {each["check"]: each["level"] for each in found}
    assert checks["nameservers"] == "ok"
    assert checks["addresses"] == "ok"
    assert checks["clocks"] == "ok"
    assert "autoCreateTopicEnable" in (await cli.run("doctor", "--wait", "0")).out


async def test_settings_and_nameserver(cli: Cli, backend: Backend) -> None:
    name = (await cli.run("broker", "list", "--json")).json[0]["broker"]
    arguments = ("broker", "config", name)
    await cli.run(*arguments, "--set", "maxMessageSize=4194303", "--yes")
    answered = (await cli.run(*arguments, "maxMessageSize", "--json")).json
    assert answered == {name: {"maxMessageSize": "4194303"}}
    await cli.run("namesrv", "kv", "put", "cli", "key", "value")
    assert (await cli.run("namesrv", "kv", "get", "cli", "key")).out == "value\n"
    assert "listenPort" in (await cli.run("namesrv", "config")).out


async def test_export_latency_allocate_and_watch(
    cli: Cli, backend: Backend, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(new_topic, cli, backend, "exported")
    group = backend.name("exported")
    await cli.run("group", "create", group, "--retry-queues", "2")
    await run_until_success(cli, "topic", "show", topic)
    answered = (await cli.run("cluster", "export", "metadata", "--json")).json
    assert answered["topicConfigTable"][topic]["readQueueNums"] == 2
    assert answered["subscriptionGroupTable"][group]["retryQueueNums"] == 2
    assert "TBW102" not in answered["topicConfigTable"]
    await cli.run("cluster", "export", "configs", "--folder", str(tmp_path))
    assert "flushDiskType" in (tmp_path / "configs.json").read_text()
    figures = (await cli.run("cluster", "export", "metrics", "--json")).json
    (report,) = figures["evaluateReport"].values()
    assert report["runtimeQuota"]["topicSize"] >= 1
    assert report["runtimeQuota"]["diskRatio"]["commitLogDiskRatio"]
    (row,) = (
        await run_until_success(cli, "cluster", "latency", "--count", "3", "--once", "--json")
    ).json
    assert (row["stored"], row["failed"]) == (3, 0)
    shares = (await cli.run("group", "allocate", topic, "a", "b", "--json")).json["result"]
    assert [len(shares[name]) for name in ("a", "b")] == [1, 1]
    watched = await cli.run("cluster", "watch", "--rounds", "1", "--wait", "0", "--json")
    assert all(line["change"] == "came" for line in watched.lines)
