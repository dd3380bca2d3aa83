"""Pages of a real cluster: what they say, in both languages, and what they escape."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from datetime import UTC
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.support.console.clients import carry_out
from tests.support.console.collected import CollectedConsole, collected
from tianzhou.admin import Admin
from tianzhou.client import sync
from tianzhou.console.collect.collector import Collector
from tianzhou.testing import Cluster

MARKUP = "<script>alert(1)</script>"
SPECIAL_TOPIC, SPECIAL_GROUP = "audit%2Flog|x", "late%20group|1"
SENT = 40

TABS = {
    "/brokers/broker-0": ("overview", "settings", "clients"),
    "/nameservers": ("brokers", "kv", "settings"),
    "/topics/orders": ("overview", "queues", "settings"),
    f"/topics/{quote(SPECIAL_TOPIC, safe='')}": ("overview", "queues", "settings"),
    "/groups/billing": ("overview", "queues", "members", "settings", "history"),
    "/groups/mixed": ("overview", "queues", "members", "settings", "history"),
    f"/groups/{quote(SPECIAL_GROUP, safe='')}": (
        "overview",
        "queues",
        "members",
        "settings",
        "history",
    ),
}
PAGES = [
    "/", "/c/main", "/c/main/brokers", "/c/main/topics", "/c/main/topics?kinds=all",
    "/c/main/groups", "/c/main/groups?only=conflict", "/c/main/groups?kinds=all",
    "/c/main/producers", "/c/main/statistics", "/c/main/statistics?kind=groups&days=30",
    "/c/main?span=24h", "/c/main?span=30d",
    *(f"/c/main{path}?tab={tab}" for path, tabs in TABS.items() for tab in tabs),
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    """Two brokers; `billing` is up to date, `mixed` contradicts itself, one group is off line."""
    with (
        Cluster(brokers=2, topics={"orders": 4, SPECIAL_TOPIC: 2, "quiet": 1}) as running,
        sync.Producer("shop", namesrv=running.namesrv_address) as producer,
        _member(running, "billing", "orders", "*", MARKUP),
        _member(running, "mixed", "orders", "a", "one"),
        _member(running, "mixed", "quiet", "*", "two"),
    ):
        for number in range(SENT):
            producer.send("orders", b"body", keys=f"k{number}")
        producer.send(SPECIAL_TOPIC, b"body")
        asyncio.run(_commit(running))
        yield running


def _member(
    cluster: Cluster, group: str, topic: str, tags: str, instance: str
) -> sync.PushConsumer:  # fmt: skip
    consumer = sync.PushConsumer(
        group, namesrv=cluster.namesrv_address, start="first", instance_name=instance
    )

    @consumer.handler(topic, tags=tags)
    def accept(_: object) -> None:
        pass

    return consumer


async def _commit(cluster: Cluster) -> None:
    """All orders are consumed by `billing`, none by the group that is off line."""
    admin = Admin(cluster.namesrv_address)
    for at in await admin.clusters.brokers():
        for queue_id in range(4):
            end = await admin.offsets.end(at, "orders", queue_id)
            await admin.offsets.commit(at, "billing", "orders", queue_id, end)
            await admin.offsets.commit(at, SPECIAL_GROUP, "orders", queue_id, 0)
    await admin.close()


@pytest.fixture
async def console(cluster: Cluster, tmp_path: Path) -> AsyncGenerator[CollectedConsole]:
    async with collected(tmp_path, main=cluster.namesrv_address) as made:
        yield made


@pytest.fixture
async def client(console: CollectedConsole) -> httpx.AsyncClient:
    """The browser of a reader."""
    return await console.browser("rita")


async def get(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """The JSON of a page."""
    path, mark, query = path.partition("?")
    answer = await client.get(f"{path}.json{mark}{query}")
    assert answer.status_code == 200, answer.text[:2000]
    found: dict[str, Any] = answer.json()
    return found


async def test_every_page_in_both_languages(client: httpx.AsyncClient) -> None:
    for path in PAGES:
        for language, sign in (("en", "Clusters"), ("zh", "集群")):
            answer = await client.get(path, headers={"Accept-Language": language})
            assert answer.status_code == 200, (path, answer.text[:2000])
            assert sign in answer.text
            assert MARKUP not in answer.text, path
            assert len(answer.content) < 100_000, path
        await get(client, "/index" if path == "/" else path)


async def test_the_overview_says_what_is_wrong(client: httpx.AsyncClient) -> None:
    found = await get(client, "/c/main")
    assert (found["state"]["answered"], found["state"]["known"]) == (2, 2)
    assert found["totals"]["topics"] == 3
    worst = found["problems"][0]
    assert (worst["level"], worst["path"]) == ("bad", "/groups/mixed")
    assert "subscribe differently" in worst["text"]
    assert found["totals"]["lag"] >= SENT
    assert {each["label"] for each in found["brokers"]} == {"broker-0", "broker-1"}
    page = (await client.get("/c/main")).text
    assert "verdict bad" in page
    clusters = (await get(client, "/index"))["clusters"]
    assert (clusters[0]["name"], clusters[0]["state"]["level"]) == ("main", "bad")


async def test_topics_are_listed_found_and_exported(client: httpx.AsyncClient) -> None:
    found = await get(client, "/c/main/topics?sort=-stored")
    rows = {row["name"]: row for row in found["topics"]["rows"]}
    assert rows.keys() == {"orders", SPECIAL_TOPIC, "quiet"}
    assert (rows["orders"]["queues"], rows["orders"]["brokers"]) == (8, 2)
    assert (rows["orders"]["stored"], rows["orders"]["today"]) == (SENT, SENT)
    assert found["topics"]["rows"][0]["name"] == "orders"
    assert found["hidden"] > 3
    everything = await get(client, "/c/main/topics?kinds=all&find=%25RETRY%25billing")
    assert [row["kind"] for row in everything["topics"]["rows"]] == ["retry"]
    csv = await client.get("/c/main/topics.csv?find=order")
    assert csv.text.splitlines()[1].startswith("orders,normal,")
    link = f"/c/main/topics/{quote(SPECIAL_TOPIC, safe='')}"
    assert f'href="{link}"' in (await client.get("/c/main/topics")).text


async def test_one_topic(client: httpx.AsyncClient) -> None:
    found = await get(client, "/c/main/topics/orders")
    groups = {each["group"]["name"]: each for each in found["groups"]}
    assert groups.keys() >= {"billing", SPECIAL_GROUP}
    assert (groups["billing"]["lag"], groups["billing"]["filter"]) == (0, "*")
    assert groups[SPECIAL_GROUP]["lag"] == SENT
    queues = await get(client, "/c/main/topics/orders?tab=queues&sort=-end")
    assert queues["queues"]["total"] == 8
    assert sum(row["stored"] for row in queues["queues"]["rows"]) == SENT
    settings = await get(client, "/c/main/topics/orders?tab=settings")
    assert settings["settings"]["columns"] == ["broker-0", "broker-1"]
    keys = {row["key"]: row for row in settings["settings"]["rows"]}
    assert keys["writeQueueNums"]["values"] == ["4", "4"]
    assert not any(row["differs"] for row in keys.values())


async def test_groups_are_chosen_by_state(client: httpx.AsyncClient) -> None:
    found = await get(client, "/c/main/groups")
    rows = {row["name"]: row for row in found["groups"]["rows"]}
    assert rows.keys() == {"billing", "mixed", SPECIAL_GROUP}
    assert found["groups"]["rows"][0]["name"] == SPECIAL_GROUP
    assert rows["billing"]["members"] == 1
    assert rows["billing"]["state"] == {"level": "ok", "text": "on line", "reason": ""}
    assert rows[SPECIAL_GROUP]["state"]["text"] == "no members"
    assert (found["counts"]["conflict"], found["counts"]["abandoned"]) == (1, 1)
    chosen = await get(client, "/c/main/groups?only=conflict")
    assert [row["name"] for row in chosen["groups"]["rows"]] == ["mixed"]
    by_topic = await get(client, "/c/main/groups?find=quiet")
    assert [row["name"] for row in by_topic["groups"]["rows"]] == ["mixed"]


async def test_one_group_with_its_members(client: httpx.AsyncClient) -> None:
    found = await get(client, "/c/main/groups/mixed")
    assert {each["topic"] for each in found["contradictions"]} == {"orders", "quiet"}
    members = (await get(client, "/c/main/groups/mixed?tab=members"))["members"]
    assert [each["subscriptions"] for each in members] == [[["orders", "a"]], [["quiet", "*"]]]
    queues = await get(client, "/c/main/groups/billing?tab=queues&find=orders")
    assert {row["lag"] for row in queues["queues"]["rows"]} == {0}
    holders = {row["client_id"] for row in queues["queues"]["rows"]}
    assert len(holders) == 1
    (client_id,) = holders
    assert client_id.endswith(MARKUP)
    page = (await client.get("/c/main/groups/billing?tab=queues")).text
    assert "&lt;script&gt;alert(1)" in page
    settings = await get(client, "/c/main/groups/billing?tab=settings")
    assert "retryMaxTimes" in {row["key"] for row in settings["settings"]["rows"]}


async def test_one_member_with_its_stacks(client: httpx.AsyncClient) -> None:
    (row,) = (await get(client, "/c/main/groups/billing?tab=members"))["members"]
    path = f"/c/main/groups/billing/member?client={quote(row['client_id'])}"
    found = await get(client, path)
    assert (found["problem"], found["stacks"]) == ("", None)
    assert "orders" in {each["topic"] for each in found["topics"]}
    assert sum(each["topic"] == "orders" for each in found["queues"]) == 8
    with_stacks = await get(client, f"{path}&stacks=1")
    assert "thread " in with_stacks["stacks"]
    page = await client.get(f"{path}&stacks=1")
    assert page.status_code == 200
    assert MARKUP not in page.text
    gone = await client.get("/c/main/groups/billing/member?client=nobody")
    assert gone.status_code == 404


async def test_one_broker(client: httpx.AsyncClient) -> None:
    found = await get(client, "/c/main/brokers/broker-0")
    assert found["broker"]["state"]["text"] == "up"
    assert sum(each["count"] for each in found["put_times"]) > 0
    assert found["topic_count"] > 3
    settings = await get(client, "/c/main/brokers/broker-0?tab=settings&find=namesrvAddr")
    (row,) = settings["settings"]["rows"]
    assert (row["key"], row["subject"]) == ("namesrvAddr", "Nameservers and network")
    clients = await get(client, "/c/main/brokers/broker-0?tab=clients&find=producer")
    assert "shop" in {row["group"] for row in clients["clients"]["rows"]}
    producers = await get(client, "/c/main/producers")
    assert "shop" in {row["name"] for row in producers["producers"]["rows"]}


async def test_nameservers_are_compared(client: httpx.AsyncClient, cluster: Cluster) -> None:
    found = await get(client, "/c/main/nameservers")
    (row,) = found["nameservers"]
    assert (row["address"], row["answered"]) == (cluster.namesrv_address, True)
    assert found["is_agreed"]
    assert [each["listed"] for each in found["brokers"]] == [[True], [True]]
    settings = await get(client, "/c/main/nameservers?tab=settings")
    assert "listenPort" in {row["key"] for row in settings["table"]["rows"]}


async def test_the_sum_of_the_topics_is_that_of_the_brokers(client: httpx.AsyncClient) -> None:
    found = await get(client, "/c/main/statistics")
    rows = {row["topic"]: row["count"] for row in found["rows"]["rows"]}
    assert (rows["orders"], rows[SPECIAL_TOPIC]) == (SENT, 1)
    assert found["check"]["topics"] == found["check"]["brokers"] == found["total"]
    assert found["difference"] == 0
    csv = await client.get("/c/main/statistics.csv")
    assert f"orders,,{SENT}," in csv.text
    unknown = await get(client, "/c/main/statistics?day=2001-02-03")
    assert unknown["rows"]["rows"] == []
    assert unknown["sums"] == [{"day": "2001-02-03", "count": None}]
    assert (await get(client, "/c/main/statistics?day=2001-02-31"))["last_day"] == found["today"]


@pytest.mark.parametrize(
    "path",
    ["/c/nowhere", "/c/main/topics/none", "/c/main/groups/none", "/c/main/brokers/none",
     "/c/main/brokers/broker-0?id=7", "/c/main/groups/none/member"],
)  # fmt: skip
async def test_what_does_not_exist_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert "<h1>" in answer.text


async def test_pages_before_the_first_round(cluster: Cluster, tmp_path: Path) -> None:
    async with collected(tmp_path, rounds=0, main=cluster.namesrv_address) as console:
        client = await console.browser("rita")
        for path in PAGES:
            answer = await client.get(path)
            assert answer.status_code == 200, path
            if path != "/" and "statistics" not in path:
                assert "The first round has not ended yet" in answer.text, path


async def test_a_broker_that_is_down_is_a_warning(tmp_path: Path) -> None:
    with Cluster(brokers=2, topics={"orders": 2}) as running:
        address = running.namesrv_address
        with sync.Producer("shop", namesrv=address) as producer:
            producer.send("orders", b"body")
        async with collected(tmp_path, main=address) as console:
            client = await console.browser("rita")
            running.stop_broker("broker-1")
            await console.round()
            overview = await get(client, "/c/main")
            assert (overview["state"]["answered"], overview["state"]["known"]) == (1, 2)
            assert overview["problems"][0]["path"] == "/brokers/broker-1"
            rows = (await get(client, "/c/main/brokers"))["brokers"]["rows"]
            down = next(row for row in rows if row["name"] == "broker-1")
            assert (down["in_per_s"], down["disk_ratio"], down["boot_ms"]) == (None, None, None)
            assert down["problem"]
            topic = (await get(client, "/c/main/topics/orders"))["topic"]
            assert topic["missing"] == ["broker-1"]
            page = (await client.get("/c/main/topics/orders?tab=queues")).text
            assert "The queues of broker-1 are not known" in page
            for path in ("/c/main/topics", "/c/main/brokers", "/c/main/groups"):
                assert "1 of 2 brokers answered" in (await client.get(path)).text
            settings = await client.get("/c/main/brokers/broker-1?tab=settings")
            assert "Could not be asked" in settings.text


async def test_a_cluster_without_nameservers(tmp_path: Path) -> None:
    async with collected(tmp_path, rounds=1, main="127.0.0.1:1") as console:
        client = await console.browser("rita")
        found = await get(client, "/c/main")
        assert found["problems"][0]["level"] == "bad"
        assert "no nameserver responds" in found["problems"][0]["text"]
        assert found["totals"]["in_per_s"] is None
        for path in ("/c/main", "/c/main/topics", "/c/main/brokers", "/c/main/nameservers"):
            answer = await client.get(path)
            assert answer.status_code == 200
            assert "no nameserver responds" in answer.text


async def test_the_page_after_a_change_shows_it(cluster: Cluster, tmp_path: Path) -> None:
    async with collected(tmp_path, rounds=0, main=cluster.namesrv_address) as console:
        watched = console.console.clusters["main"]
        collector = watched.collector = Collector("main", watched.admin, zone=UTC)
        running = asyncio.create_task(collector.run())
        assert await collector.newer_than(0, 30) is not None
        client = await console.browser("ada")
        before = (await get(client, "/c/main/topics/quiet"))["topic"]["stored"]
        queues = await get(client, "/c/main/topics/quiet?tab=queues")
        sent = await carry_out(
            client, "/c/main/topics/quiet/send", {"_do": "send", "body": "hello"}
        )  # fmt: skip
        assert sent.status_code == 303, sent.text[:2000]
        after = await get(client, "/c/main/topics/quiet")
        assert after["topic"]["stored"] == before + 1
        again = await get(client, "/c/main/topics/quiet?tab=queues")
        ends = [sum(row["end"] for row in each["queues"]["rows"]) for each in (queues, again)]
        assert ends[1] == ends[0] + 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
