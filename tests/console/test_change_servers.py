"""Settings from the list only, write permission, KV pairs, expansion, doctor, pipelines."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from tests.support.console.absent import absent_broker
from tests.support.console.live import LiveConsole, live_console
from tianzhou.console.jobs.kinds import KINDS
from tianzhou.console.jobs.worker import Worker
from tianzhou.monitor import tables
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.testing import Cluster

BROKER, NAMESERVERS = "/brokers/broker-0/change", "/nameservers/change"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, topics={"orders": 2}) as made:
        yield made


@pytest.fixture
async def live(cluster: Cluster, tmp_path: Path) -> AsyncIterator[LiveConsole]:
    async with live_console(cluster, tmp_path) as made:
        yield made


async def values(live: LiveConsole, key: str) -> list[str]:
    brokers = await live.admin.clusters.brokers(masters=True)
    return [(await live.admin.brokers.settings(at))[key] for at in brokers]


async def run_jobs(live: LiveConsole) -> None:
    worker = Worker(live.console.console, KINDS)
    while await worker.run_one():
        pass


async def test_a_harmless_setting_is_changed_on_one_or_all_masters(live: LiveConsole) -> None:
    fields = {"key": "maxMsgsNumBatch", "value": "32"}
    planned = await live.plan(BROKER, "set", **fields)
    assert "<del>64</del>" in planned.text
    done = await live.confirm(planned, BROKER, "set", **fields)
    assert done.status_code == 303
    assert await values(live, "maxMsgsNumBatch") == ["32", "64"]
    row = await live.audit()
    assert (json.loads(row["before"]), json.loads(row["after"])) == (
        {"broker-0": "64"},
        {"broker-0": "32"},
    )
    await live.do(BROKER, "set", key="maxMsgsNumBatch", value="16", is_everywhere="true")
    assert await values(live, "maxMsgsNumBatch") == ["16", "16"]
    assert "maxMsgsNumBatch" in await live.page(BROKER)
    assert "清除写权限" in await live.page(BROKER, language="zh")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rocketmqHome", "/x"),
        ("filterServerNums", "1"),
        ("brokerConfigPath", "/etc/passwd"),
        ("storePathRootDir", "/"),
        ("aclFile", "x"),
        ("logFile", "/x"),
        ("logLevel", "debug"),
        ("haRoleCommand", "touch /x"),
        ("namesrvAddr", "evil:9876"),
        ("configBlackList", "x"),
        ("maxMsgsNumBatch", "64\nlogFile=/x"),
        ("maxMsgsNumBatch", "-1"),
        ("", ""),
    ],
)
async def test_settings_outside_of_the_list_are_refused(
    live: LiveConsole, key: str, value: str
) -> None:
    program = await live.console.program("ada", "read", "change")
    for address in (BROKER, NAMESERVERS):
        fields = {"_do": "set", "key": key, "value": value}
        answer = await program.post(f"/c/main{address}", json=fields)
        assert answer.status_code == 422, answer.text


async def test_what_the_broker_refuses_is_an_error_and_recorded(live: LiveConsole) -> None:
    """Without access control a broker of Tianzhou lets no request change when it deletes files."""
    fields = {"key": "fileReservedTime", "value": "48"}
    planned = await live.plan(BROKER, "set", **fields)
    assert "older messages are deleted" in planned.text
    unconfirmed = await live.confirm(planned, BROKER, "set", **fields)
    assert unconfirmed.status_code == 409
    done = await live.confirm(planned, BROKER, "set", _confirm="broker-0", **fields)
    assert done.status_code == 502
    assert (await live.audit())["result"] == "failed"
    assert await values(live, "fileReservedTime") == ["72", "72"]


async def test_write_permission_is_wiped_and_given_back(live: LiveConsole) -> None:
    planned = await live.plan(BROKER, "wipe-write")
    assert "send to other brokers" in planned.text
    await live.confirm(planned, BROKER, "wipe-write")
    route = await live.admin.topics.route("orders")
    assert {each.broker_name: each.perm for each in route.queues} == {"broker-0": 4, "broker-1": 6}
    await live.do(BROKER, "give-write")
    route = await live.admin.topics.route("orders")
    assert {each.perm for each in route.queues} == {6}


async def test_nameserver_settings_and_pairs(live: LiveConsole) -> None:
    await live.do(NAMESERVERS, "set", key="orderMessageEnable", value="true")
    state = await live.json(NAMESERVERS)
    rows = {row["key"]: row["value"] for row in state["nameservers"][0]["settings"]}
    assert rows["orderMessageEnable"] == "true"
    fields = {"namespace": "TEST", "key": "k", "value": "<b>v</b>"}
    await live.do(NAMESERVERS, "put-pair", **fields)
    assert await live.admin.namesrv.value("TEST", "k") == "<b>v</b>"
    page = await live.page(NAMESERVERS, namespace="TEST")
    assert "<b>v</b>" not in page
    assert "&lt;b&gt;v&lt;/b&gt;" in page
    await live.do(NAMESERVERS, "remove-pair", namespace="TEST", key="k")
    assert await live.admin.namesrv.value("TEST", "k") is None
    for name in ("", "a b", "a\nb"):
        answer = await live.plan(NAMESERVERS, "put-pair", namespace="TEST", key=name, value="v")
        assert answer.status_code == 422


async def test_a_reader_changes_nothing(live: LiveConsole) -> None:
    for address, verb in (
        (BROKER, "set"),
        (BROKER, "wipe-write"),
        (NAMESERVERS, "put-pair"),
        ("/expansion", "copy"),
        ("/doctor", "run"),
    ):
        assert (await live.reader.get(f"/c/main{address}")).status_code == 200
        answer = await live.reader.post(f"/c/main{address}", data={"_do": verb})
        assert answer.status_code in (403, 404)


async def test_what_a_broker_lacks_is_shown_and_copied_by_a_job(live: LiveConsole) -> None:
    first, second = await live.admin.clusters.brokers(masters=True)
    for number in range(12):
        await live.admin.topics.put(first, TopicConfig(topic_name=f"new-{number:02}"))
    await live.admin.topics.put(first, TopicConfig(topic_name="sorted", order=True))
    await live.admin.groups.put(first, SubscriptionGroupConfig(group_name="new-group"))
    state = await live.json("/expansion")
    lacking = {row["broker"]: row for row in state["brokers"]}
    assert (lacking["broker-1"]["missing_topics"], lacking["broker-1"]["missing_groups"]) == (13, 1)
    assert "incomplete" in await live.page("/expansion")
    planned = await live.plan("/expansion", "copy", broker="broker-1")
    assert "1 ordered topic is left out" in planned.text
    done = await live.confirm(planned, "/expansion", "copy", broker="broker-1")
    assert done.headers["location"].startswith("/c/main/jobs/")
    await run_jobs(live)
    job = (await live.client.get(f"{done.headers['location']}.json")).json()["job"]
    assert (job["state"], job["done"], job["failed"]) == ("done", 13, 0)
    assert await live.admin.topics.config(second, "new-07") is not None
    assert await live.admin.groups.config(second, "new-group") is not None
    assert await live.admin.topics.config(second, "sorted") is None
    await live.do("/expansion", "copy", pattern="sorted")
    await run_jobs(live)
    assert (await live.json("/expansion"))["missing"]["total"] == 0


async def test_the_doctor_runs_once_at_a_time_and_once_a_minute(live: LiveConsole) -> None:
    assert "Not examined yet" in await live.page("/doctor")
    first = await live.client.post("/c/main/doctor", data={"_do": "run"})
    assert first.status_code == 303
    again = await live.client.post("/c/main/doctor", data={"_do": "run"})
    assert again.status_code == 409
    async with absent_broker(live.cluster.namesrv_address):
        await run_jobs(live)
    state = await live.json("/doctor")
    assert state["running"] is None
    assert state["errors"] >= 1
    levels = [row["level"] for row in state["findings"]["rows"]]
    assert levels == sorted(levels, key=["error", "warning", "ok"].index)
    assert "broker-absent" in await live.page("/doctor")
    soon = await live.client.post("/c/main/doctor", data={"_do": "run"})
    assert soon.status_code == 429
    assert int(soon.headers["retry-after"]) <= 60
    live.console.now_ms += 61_000
    assert (await live.client.post("/c/main/doctor", data={"_do": "run"})).status_code == 303


async def test_runs_of_pipelines_are_shown(live: LiveConsole) -> None:
    assert "No pipeline has run" in await live.page("/pipelines")
    row = {
        "pipeline": "topic-stats",
        "state": "done",
        "started_ms": 1_790_000_000_000,
        "ended_ms": 1_790_000_012_000,
        "row_count": 7,
        "options": "{}",
        "note": "<i>n</i>",
    }
    await live.console.database.write(tables.metadata.create_all)
    await live.console.database.write(lambda each: each.execute(insert(tables.runs).values(**row)))
    (run,) = (await live.json("/pipelines"))["runs"]["rows"]
    assert (run["pipeline"], run["row_count"]) == ("topic-stats", 7)
    page = await live.page("/pipelines")
    assert "<i>n</i>" not in page
    assert "12 s" in page
    latency = {
        "cluster": "main",
        "day": "2026-11-18",
        "topic": "<u>t</u>",
        "consumer_group": "g",
        "step": "consume",
        "message_count": 4321,
        "p50_ms": 1.5,
        "p90_ms": 2.5,
        "p99_ms": 9.0,
        "max_ms": 12.0,
        "updated_ms": 1_790_000_000_000,
    }
    await live.console.database.write(
        lambda each: each.execute(insert(tables.trace_latency).values(**latency))
    )
    (result,) = (await live.json("/pipelines", tab="latency"))["results"]["rows"]
    assert (result["cluster"], result["values"]["message_count"]) == ("main", 4321)
    page = await live.page("/pipelines", tab="latency")
    assert "<u>t</u>" not in page
    assert "4,321" in page
    assert "No pipeline has written results" in await live.page("/pipelines", tab="duplicates")
