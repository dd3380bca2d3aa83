"""Flows of messages that need consumers, several brokers or a running console."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from tests.support.console.clients import ConsoleUnderTest, carry_out
from tests.support.console.clusters import add_dead_letters, admin_of, console_of
from tests.support.console.collected import collected
from tests.support.ports import free_port
from tianzhou.admin import Admin
from tianzhou.admin.message_search import Cursor, Limits, search_page
from tianzhou.client import ClientSettings, Message, Producer, PushConsumer, ReceivedMessage
from tianzhou.console.jobs.resend import STORE_EVERY
from tianzhou.console.messages import tailing
from tianzhou.console.web.refusals import TooMany
from tianzhou.console.web.slots import Slots, Tails
from tianzhou.errors import TargetError
from tianzhou.message import Message as PlainMessage
from tianzhou.names import TRACE_TOPIC
from tianzhou.testing import Cluster

T = TypeVar("T")

BASE = "/c/main"


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    topics = {"orders": 1, "quiet": 2, "later": 1}
    with Cluster(topics=topics, traceTopicEnable="true", recallMessageEnable="true") as made:
        yield made


@pytest.fixture
async def console(cluster: Cluster, tmp_path: Path) -> AsyncGenerator[ConsoleUnderTest]:
    async with console_of(tmp_path, cluster.namesrv_address) as made:
        yield made


# -- who has consumed it, and the trace ------------------------------------------------------------


async def test_a_message_shows_its_groups_is_consumed_again_and_has_a_timeline(
    console: ConsoleUnderTest, client: httpx.AsyncClient, cluster: Cluster
) -> None:
    settings = ClientSettings(namesrv=cluster.namesrv_address)
    handled: asyncio.Queue[str] = asyncio.Queue()
    consumer = PushConsumer("billing", settings=settings, trace=True)

    @consumer.handler("orders")
    async def handle(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction]
        await handled.put(message.text)

    async with Producer("shop", settings=settings, trace=True) as producer:
        sent = await producer.send(Message("orders", "paid", keys="order-7"))
    address = f"{BASE}/messages/{sent.offset_msg_id}"
    async with consumer:
        assert await asyncio.wait_for(handled.get(), 20) == "paid"
        group = await eventually(client, f"{address}.json", consumed)
        (member,) = group["members"]
        fields = {"_do": "consume", "group": "billing", "client": member}
        done = await carry_out(client, address, fields)
        assert done.status_code == 303
        assert await asyncio.wait_for(handled.get(), 20) == "paid"
        missing = await carry_out(client, address, {**fields, "client": "no-such-client"})
        assert missing.status_code == 409
    entry = (await client.get("/audit.json")).json()["entries"]["rows"][1]
    assert (entry["result"], "billing" in entry["subject"]) == ("ok", True)
    spans = await eventually(client, f"{address}/trace.json", all_kinds)
    assert [each["kind"] for each in spans[:2]] == ["sent", "stored"]
    last = spans[-1]
    assert (last["who"], last["is_ok"], last["took_ms"] is not None) == ("billing", True, True)
    assert "billing" in (await client.get(f"{address}/trace")).text


async def test_a_message_without_a_trace_says_why(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    admin = admin_of(console)
    untraced = await admin.messages.send(PlainMessage("quiet", b"x"))
    await admin.messages.send(PlainMessage(TRACE_TOPIC, b"-", keys=("other",)))
    page = (await client.get(f"{BASE}/messages/{untraced.offset_id}/trace.json")).json()
    assert [each["kind"] for each in page["spans"]] == ["stored"]
    assert "do not trace" in page["problem"] or "older than the oldest" in page["problem"]


Page = dict[str, Any]


def all_kinds(page: Page) -> list[Page] | None:
    """The lines of the timeline, once the traces of producer and consumer are written."""
    kinds = {each["kind"] for each in page["spans"]}
    return page["spans"] if {"sent", "stored", "consumed"} <= kinds else None


def consumed(page: Page) -> Page | None:
    """The group that has consumed the message, with its members."""
    for each in page["groups"] or ():
        if each["is_consumed"] and each["members"]:
            return dict(each)
    return None


def scheduled_in(page: Page) -> Page | None:
    return page.get("scheduled")


def cancelled(page: Page) -> bool | None:
    return page["scheduled"]["is_cancelled"] or None


async def eventually(
    client: httpx.AsyncClient, address: str, wanted: Callable[[Page], T | None]
) -> T:
    """What `wanted` makes of a page, once it makes something of it."""
    page: Page = {}
    try:
        async with asyncio.timeout(30):
            while True:
                page = (await client.get(address)).json()
                if (result := wanted(page)) is not None:
                    return result
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{address} still shows {page}") from None


# -- timed messages --------------------------------------------------------------------------------


async def test_a_timed_message_is_shown_and_cancelled(
    console: ConsoleUnderTest, client: httpx.AsyncClient, cluster: Cluster
) -> None:
    async with Producer("shop", namesrv=cluster.namesrv_address) as producer:
        sent = await producer.send(Message("later", "x", delay=3600))
    address = f"{BASE}/messages/{sent.msg_id}"
    scheduled = await eventually(client, f"{address}.json?topic=later", scheduled_in)
    assert scheduled["deliver_ms"] > console.now_ms + 3000_000
    assert "Timed message" in (await client.get(f"{address}?topic=later")).text
    fields = {"_do": "recall", "topic": "later"}
    done = await carry_out(client, address, fields)
    assert done.status_code == 303, done.text[:2000]
    await eventually(client, f"{address}.json?topic=later", cancelled)
    again = await client.post(f"{address}?dry=1", data=fields)
    assert (again.status_code, "is cancelled already" in again.text) == (409, True)


# -- a console that is killed ----------------------------------------------------------------------


async def test_a_resend_continues_after_the_console_was_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    count, group = 600, "killed"
    async with console_of(tmp_path, cluster.namesrv_address) as console:
        admin = admin_of(console)
        await add_dead_letters(admin, group, [b"%d" % number for number in range(count)])
        token = (await console.program("ada", "read", "change", "bodies")).headers["Authorization"]
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-m", "tianzhou", "console", "--listen", address, "--namesrv",
        cluster.namesrv_address, "--data", str(tmp_path),
    ]  # fmt: skip
    base = f"http://{address}"
    async with httpx.AsyncClient(base_url=base, headers={"Authorization": token}) as client:
        with started(command) as first:
            name = await cluster_name(client)
            given = {"_do": "resend", "_confirm": group}
            begun = await client.post(f"/c/{name}/dead-letters/{group}", json=given)
            assert begun.status_code == 200, begun.text
            job = f"{begun.json()['location']}.json"
            done = await eventually(client, job, lambda page: page["job"]["done"] or None)
            first.kill()
        assert done < count
        with started(command) as second:
            await cluster_name(client)
            ended = await eventually(client, job, lambda page: page["job"]["ended_ms"])
            assert ended
            page = (await client.get(job)).json()["job"]
            second.terminate()
        assert (page["state"], page["done"], page["failed"]) == ("done", count, 0)
    async with Admin(cluster.namesrv_address) as admin:
        (at,) = await admin.messages.read_queues(f"%RETRY%{group}")
        end = await admin.offsets.end(at.broker, at.topic, at.queue_id)
        bodies = [int(each.body) async for each in admin.messages.walk(at, 0, end)]
    assert set(bodies) == set(range(count))
    # What was sent after the last stored position is sent again.
    assert len(bodies) <= count + STORE_EVERY


def started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE)


async def cluster_name(client: httpx.AsyncClient) -> str:
    """The cluster of a console, once it answers."""
    async with asyncio.timeout(30):
        while True:
            try:
                page = await client.get("/index.json")
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            return str(page.json()["clusters"][0]["name"])


# -- brokers that do not answer --------------------------------------------------------------------


async def test_a_broker_that_is_down_is_named_and_its_messages_come_later(
    tmp_path: Path,
) -> None:
    with Cluster(brokers=2, topics={"orders": 1}) as two:
        async with collected(tmp_path, main=two.namesrv_address) as console:
            admin = admin_of(console)
            for number in range(10):
                await admin.messages.send(PlainMessage("orders", b"%d" % number))
            queues = await admin.messages.read_queues("orders")
            two.stop_broker("broker-1")
            page = await search_page(admin, queues, 0, 2**62, limits=Limits(shown_max=3))
            assert list(page.failures) == ["broker-1"]
            assert {at.broker.name for at, _ in page.messages} == {"broker-0"}
            client = await console.browser("ada")
            shown = await client.get(f"{BASE}/dead-letters.json")
            assert shown.status_code == 200


async def test_groups_with_dead_letters_are_listed_from_the_snapshot(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with collected(tmp_path, rounds=1, main=cluster.namesrv_address) as console:
        await add_dead_letters(admin_of(console), "listed", [b"one", b"two"])
        await add_dead_letters(admin_of(console), "spotless", [])
        await console.round()
        client = await console.browser("rita")
        page = (await client.get(f"{BASE}/dead-letters.json")).json()
        rows = {each["group"]: each for each in page["groups"]["rows"]}
        row = rows["listed"]
        assert (row["count"], row["total"], "spotless" in rows) == (2, 2, False)
        assert row["last_ms"] is not None
        shown = await client.get(f"{BASE}/dead-letters", headers={"Accept-Language": "zh"})
        assert f"{BASE}/dead-letters/listed" in shown.text
        assert "死信" in shown.text


# -- bounds ----------------------------------------------------------------------------------------


async def test_a_search_ends_at_its_bounds_and_continues(console: ConsoleUnderTest) -> None:
    admin = admin_of(console)
    for number in range(30):
        await admin.messages.send(PlainMessage("quiet", b"%d" % number, tags=f"t{number % 2}"))
    queues = await admin.messages.read_queues("quiet")
    found: list[bytes] = []
    stops: list[str] = []
    cursor: Cursor | None = None
    while True:
        page = await search_page(
            admin, queues, 0, 2**62, newest_first=False, cursor=cursor,
            matches=lambda each: each.body == b"29", limits=Limits(looked_at_max=8),
        )  # fmt: skip
        found += [message.body for _, message in page.messages]
        stops.append(page.stop)
        cursor = page.cursor
        assert page.looked_at <= 16
        if page.stop == "end":
            break
    assert (found, stops[0], page.left) == ([b"29"], "looked_at", 0)
    with pytest.raises(TargetError, match="no answer within"):
        await search_page(admin, queues, 0, 2**62, limits=Limits(time_s=0.000001))


async def test_one_search_at_a_time_per_person_and_eight_per_console() -> None:
    slots = Slots(2)
    begun = asyncio.Event()

    async def long() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async def short() -> str:
        return "done"

    first = asyncio.create_task(slots.run("ada", long))
    await begun.wait()
    assert await slots.run("ada", short) == "done"
    with pytest.raises(TooMany) as replaced:
        await first
    assert replaced.value.retry_s
    others = [asyncio.create_task(slots.run(name, long)) for name in ("rita", "bob")]
    await asyncio.sleep(0)
    with pytest.raises(TooMany):
        await slots.run("ada", short)
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    assert await slots.run("ada", short) == "done"


# -- following -------------------------------------------------------------------------------------


async def test_new_messages_arrive_bounded_and_the_stream_ends(console: ConsoleUnderTest) -> None:
    admin = admin_of(console)
    queues = await admin.messages.read_queues("quiet")
    tails = Tails(1)
    replaced = tails.enter("ada")
    with pytest.raises(TooMany):
        tails.enter("rita")
    stream = tailing.events(
        admin, queues, replaced, tags="*", matches=None, length_s=4, rate=3
    )  # fmt: skip
    names: list[str] = []
    bodies: list[str] = []
    last: dict[str, Any] = {}
    sender: asyncio.Task[None] | None = None

    async def send() -> None:
        # The stream reads from the end of the queues on: until it does, messages are not shown.
        while not bodies:
            await admin.messages.send(PlainMessage("quiet", b"<b>"))
            await asyncio.sleep(0.05)
        for _ in range(40):
            await admin.messages.send(PlainMessage("quiet", b"<b>"))

    async with aclosing(stream) as events:
        async for each in events:
            sender = sender or asyncio.create_task(send())
            name, _, data = each.decode().partition("\ndata: ")
            if name.startswith("event: "):
                names.append(name.removeprefix("event: "))
                last = json.loads(data)
                if names[-1] == "message":
                    bodies.append(last["preview"])
    assert sender is not None
    await sender
    assert (names[-1], last["why"]) == ("end", "time")
    # Four seconds, and the one that had begun.
    assert 0 < len(bodies) <= 5 * 3
    assert set(bodies) == {"<b>"}
    newer = tails.enter("ada")
    assert replaced.is_set()
    tails.leave("ada", replaced)
    assert len(tails) == 1
    tails.leave("ada", newer)
    assert len(tails) == 0
