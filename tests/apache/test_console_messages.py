"""The console's pages of messages and dead letters on Apache's clusters: the same as on ours."""

from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from tests.support.apache.backends import Backend, until
from tests.support.console.clients import ConsoleUnderTest, carry_out
from tests.support.console.clusters import add_dead_letters, admin_of, console_of, run_jobs
from tianzhou.admin import Admin
from tianzhou.admin.messages import Sent
from tianzhou.console.changes import jobs as change_jobs
from tianzhou.errors import TianzhouError
from tianzhou.message import Message
from tianzhou.protocol.bodies.topics import TopicConfig

BASE = "/c/main"


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run jobs themselves, so changes need not wait for them."""
    monkeypatch.setattr(change_jobs, "WAIT_S", 0.0)


@pytest.fixture
async def console(backend: Backend, tmp_path: Path) -> AsyncGenerator[ConsoleUnderTest]:
    async with console_of(tmp_path, backend.namesrv) as made:
        yield made


@pytest.fixture
async def client(console: ConsoleUnderTest) -> httpx.AsyncClient:
    return await console.browser("ada")


async def new_topic(admin: Admin, topic: str, queues: int = 2) -> None:
    for at in await admin.clusters.brokers(masters=True):
        await admin.topics.put(
            at,
            TopicConfig(topic_name=topic, read_queue_count=queues, write_queue_count=queues),
        )

    async def routed() -> bool:
        try:
            return bool(await admin.messages.write_queues(topic))
        except TianzhouError:
            return False

    await until(routed, lambda is_there: is_there)


async def test_messages_are_searched_found_and_shown(
    console: ConsoleUnderTest, client: httpx.AsyncClient, backend: Backend
) -> None:
    admin, topic = admin_of(console), backend.name("console")
    await new_topic(admin, topic)
    sent: list[Sent] = [
        await admin.messages.send(
            Message(topic, b'{"n":%d}' % number, tags=f"t{number % 2}", keys=(f"key-{number}",))
        )
        for number in range(70)
    ]
    queues = await admin.messages.read_queues(topic)

    async def ends() -> int:
        return sum([await admin.offsets.end(at.broker, topic, at.queue_id) for at in queues])

    await until(ends, lambda count: count == 70)
    seen: list[str] = []
    after = ""
    for expected in (50, 20):
        page = await client.get(f"{BASE}/topics/{topic}/messages.json?last=1h{after}")
        rows, searched = page.json()["found"]["rows"], page.json()["searched"]
        assert (len(rows), searched["failures"]) == (expected, [])
        seen += [row["preview"] for row in rows]
        after = f"&after={searched['next']}"
    assert seen == [f'{{"n":{number}}}' for number in reversed(range(70))]
    tagged = await client.get(f"{BASE}/topics/{topic}/messages.json?tag=t1&show=200")
    assert len(tagged.json()["found"]["rows"]) == 35
    begin_ms = (await admin.messages.by_offset_id(sent[60].offset_id)).store_time_ms
    late = await client.get(f"{BASE}/topics/{topic}/messages.json?from={begin_ms}&sort=old")
    previews = [row["preview"] for row in late.json()["found"]["rows"]]
    assert previews[-10:] == [f'{{"n":{number}}}' for number in range(60, 70)]

    async def by_key() -> httpx.Response:
        return await client.get(f"{BASE}/messages.json?topic={topic}&q=key-7")

    # The index is written after the message.
    found = await until(by_key, lambda page: bool(page.json()["found"]["rows"]))
    (row,) = found.json()["found"]["rows"]
    assert (row["offset_id"], row["id"]) == (sent[7].offset_id, sent[7].message_id)
    one = (await client.get(f"{BASE}/messages/{row['offset_id']}.json")).json()
    assert (one["body"]["form"], one["topic"], one["groups"]) == ("json", topic, [])
    trace = (await client.get(f"{BASE}/messages/{row['offset_id']}/trace.json")).json()
    assert [each["kind"] for each in trace["spans"]] == ["stored"]
    assert trace["problem"]


async def test_dead_letters_are_shown_resent_and_exported(
    console: ConsoleUnderTest, client: httpx.AsyncClient, backend: Backend
) -> None:
    admin = admin_of(console)
    topic, group = backend.name("console"), backend.name("billing")
    await new_topic(admin, topic, 1)
    ids = await add_dead_letters(admin, group, [b"one", b"=two", b"three"], origin=topic)
    assert len(ids) == 3
    page = (await client.get(f"{BASE}/dead-letters/{group}.json?sort=old")).json()
    rows = page["found"]["rows"]
    assert [row["preview"] for row in rows] == ["one", "=two", "three"]
    assert {row["origin_topic"] for row in rows} == {topic}
    assert {row["reason"] for row in rows} == {"given up by the consumer"}
    address = f"{BASE}/dead-letters/{group}"
    done = await carry_out(client, address, {"_do": "resend", "ids": f"{ids[0]} {ids[2]}"})
    await run_jobs(console)
    job = (await client.get(f"{done.headers['location']}.json")).json()["job"]
    assert (job["state"], job["done"], job["failed"]) == ("done", 2, 0)
    stored = await backend.await_stored(f"%RETRY%{group}", 2)
    assert [message.body for message in stored] == [b"one", b"three"]
    exported = await carry_out(client, address, {"_do": "export", "format": "jsonl"})
    await run_jobs(console)
    file = await client.get(f"{exported.headers['location']}/output")
    assert file.text.count("\n") == 3
    assert f'"RETRY_TOPIC": "{topic}"' in file.text
