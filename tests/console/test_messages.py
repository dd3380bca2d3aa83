"""Pages of messages against a real cluster: finding, bodies, changes, and what is refused."""

import json
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx
import pytest

from tests.support.console.clients import ConsoleUnderTest, carry_out
from tests.support.console.clusters import admin_of, console_of
from tianzhou.admin.messages import Sent
from tianzhou.message import Message
from tianzhou.testing import Cluster

BASE = "/c/main"
MARKUP = b"<script>alert(1)</script>"


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    with Cluster(topics={"orders": 2}, traceTopicEnable="true") as made:
        yield made


@pytest.fixture
async def console(cluster: Cluster, tmp_path: Path) -> AsyncGenerator[ConsoleUnderTest]:
    async with console_of(tmp_path, cluster.namesrv_address) as made:
        yield made


async def sent(console: ConsoleUnderTest, topic: str, body: bytes, **fields: object) -> Sent:
    message = Message(topic, body, **fields)  # type: ignore[arg-type]
    return await admin_of(console).messages.send(message)


# -- finding ---------------------------------------------------------------------------------------


async def test_a_message_is_found_by_both_ids_by_key_and_by_position(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    one = await sent(console, "orders", b"paid", tags="paid", keys=("order-7",))
    place = f"{one.broker_name}/{one.queue_id}@{one.queue_offset}"
    for query in (
        {"q": one.offset_id}, {"q": one.message_id, "topic": "orders"},
        {"q": "order-7", "topic": "orders"}, {"q": place, "topic": "orders"},
    ):  # fmt: skip
        page = (await client.get(f"{BASE}/messages.json", params=query)).json()
        (row,) = page["found"]["rows"]
        assert (row["offset_id"], row["id"], row["tags"]) == (one.offset_id, one.message_id, "paid")
        assert (row["preview"], row["size"], page["problem"]) == ("paid", 4, None)
    missing = await client.get(f"{BASE}/messages.json?topic=orders&q=no-such-key")
    assert "no-such-key" in missing.json()["problem"]
    without_topic = await client.get(f"{BASE}/messages.json?q=order-7")
    assert "Choose the topic" in without_topic.json()["problem"]


async def test_a_search_goes_on_where_it_ended_and_says_how_far_it_looked(
    console: ConsoleUnderTest, client: httpx.AsyncClient, cluster: Cluster
) -> None:
    cluster.create_topic("many", 3)
    for number in range(120):
        tags = "even" if number % 2 == 0 else "uneven"
        await sent(console, "many", b"%d" % number, tags=tags)
    seen: list[str] = []
    address = f"{BASE}/topics/many/messages.json?last=1h"
    for expected in (50, 50, 20):
        page = (await client.get(address)).json()
        rows, searched = page["found"]["rows"], page["searched"]
        assert len(rows) == expected
        seen += [row["preview"] for row in rows]
        address = f"{BASE}/topics/many/messages.json?last=1h&after={searched['next']}"
    assert seen == [str(number) for number in reversed(range(120))]
    assert (searched["stop"], searched["left"], searched["next"]) == ("end", 0, "")
    even = await client.get(f"{BASE}/topics/many/messages.json?last=1h&tag=even&show=200&sort=old")
    assert [row["preview"] for row in even.json()["found"]["rows"]] == [
        str(number) for number in range(0, 120, 2)
    ]
    text = await client.get(f"{BASE}/topics/many/messages.json?text=119")
    assert [row["preview"] for row in text.json()["found"]["rows"]] == ["119"]
    assert text.json()["searched"]["looked_at"] == 120
    none = await client.get(f"{BASE}/messages.json?topic=many&to=2020-01-01T00:00")
    assert (none.json()["found"]["rows"], none.json()["searched"]["stop"]) == ([], "end")


async def test_searches_are_bounded(console: ConsoleUnderTest, client: httpx.AsyncClient) -> None:
    await sent(console, "orders", b"one")
    long = await client.get(f"{BASE}/messages.json?topic=orders&from=2020-01-01T00:00&show=9999")
    wanted = long.json()["wanted"]
    assert wanted["is_shortened"]
    assert wanted["end_ms"] - wanted["begin_ms"] <= 7 * 86_400_000 + 60_000
    assert wanted["shown_max"] == 200
    for query in ("after=%21%21", "after=AAAA", "from=yesterday", "from=2026-02-02T00:00&to=1"):
        refused = await client.get(f"{BASE}/messages.json?topic=orders&{query}")
        assert refused.status_code == 422, query


async def test_a_topic_that_is_not_there_is_said(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"{BASE}/topics/nothing/messages")).status_code == 404
    page = await client.get(f"{BASE}/messages?topic=a%25b%7Cc")
    assert (page.status_code, "there is no topic" in page.text) == (200, True)


# -- one message -----------------------------------------------------------------------------------


async def test_bodies_are_shown_as_json_text_or_hex_and_markup_is_text(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    as_json = await sent(console, "orders", b'{"a":[1,{"b":"' + MARKUP + b'"}]}')
    page = await client.get(f"{BASE}/messages/{as_json.offset_id}.json")
    body = page.json()["body"]
    assert (body["form"], body["forms"]) == ("json", ["json", "text", "hex"])
    assert json.loads(body["text"])["a"][0] == 1
    assert "\n" in body["text"]
    shown = (await client.get(f"{BASE}/messages/{as_json.offset_id}")).text
    assert MARKUP.decode() not in shown
    assert "&lt;script&gt;" in shown
    binary = await sent(console, "orders", bytes(range(256)))
    body = (await client.get(f"{BASE}/messages/{binary.offset_id}.json")).json()["body"]
    assert body["form"] == "hex"
    assert body["text"].startswith("00000000  00 01 02 03")
    chinese = await sent(console, "orders", "订单已支付".encode("gb18030"))
    address = f"{BASE}/messages/{chinese.offset_id}.json?as=gb18030"
    assert (await client.get(address)).json()["body"]["text"] == "订单已支付"
    reordered = await sent(console, "orders", "a\u202eb\u200dc".encode())
    body = (await client.get(f"{BASE}/messages/{reordered.offset_id}.json")).json()["body"]
    assert body["text"] == "a\\u202eb\u200dc"


async def test_markup_in_keys_tags_and_properties_is_text(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    text = "<img/src=x>"
    one = await sent(
        console, "orders", b"x", tags=text, keys=(text,), properties={f"p{text}": text + "\u202e"}
    )
    for address in (f"messages/{one.offset_id}", f"messages?topic=orders&q={one.offset_id}"):
        page = (await client.get(f"{BASE}/{address}")).text
        assert text not in page
        assert "&lt;img/src=x&gt;" in page
    properties = (await client.get(f"{BASE}/messages/{one.offset_id}.json")).json()["properties"]
    assert [f"p{text}", text + "\\u202e"] in properties


async def test_a_long_body_is_cut_with_a_mark_and_downloaded_whole(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    whole = "订".encode() * 60_000
    one = await sent(console, "orders", whole)
    page = await client.get(f"{BASE}/messages/{one.offset_id}")
    assert "cut here" in page.text
    body = (await client.get(f"{BASE}/messages/{one.offset_id}.json")).json()["body"]
    assert (body["size"], body["shown"]) == (180_000, 65_536)
    assert len(body["text"].encode()) <= 65_536
    file = await client.get(f"{BASE}/messages/{one.offset_id}/body")
    assert file.content == whole
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"].startswith("attachment")
    assert file.headers["x-content-type-options"] == "nosniff"


async def test_ids_of_foreign_addresses_are_not_asked_for(client: httpx.AsyncClient) -> None:
    # 127.0.0.1, port 22: the address is in the id.
    for text in ("7F0000010000001600000000000000FF", "../../etc", "0" * 32, "A" * 31):
        response = await client.get(f"{BASE}/messages/{text.replace('/', '%2F')}")
        assert response.status_code == 404, text
    assert "no request was sent" in (
        await client.get(f"{BASE}/messages/7F0000010000001600000000000000FF")
    ).text  # fmt: skip


# -- changes ---------------------------------------------------------------------------------------


async def test_a_test_message_is_planned_then_sent(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    fields = {
        "_do": "send", "body": "hello", "tags": "t", "keys": "k1 k2", "properties": "region=eu\n",
        "queue": "broker-0/1",
    }  # fmt: skip
    done = await carry_out(client, f"{BASE}/topics/orders/send", fields)
    assert done.status_code == 303
    page = (await client.get(done.headers["location"].replace("?", ".json?"))).json()
    (row,) = page["found"]["rows"]
    assert (row["preview"], row["keys"], row["queue"]) == ("hello", ["k1", "k2"], 1)
    entry = (await client.get("/audit.json")).json()["entries"]["rows"][0]
    assert entry["verb"] == "send /c/{cluster}/topics/{topic}/send"
    assert "hello" not in entry["after"]


@pytest.mark.parametrize(
    "fields",
    [
        {"properties": "UNIQ_KEY=1"}, {"properties": "no equals sign"}, {"tags": "a\nb"},
        {"queue": "broker-9/0"}, {"delay_level": "19"}, {"keys": "k" * 1001},
    ],
)  # fmt: skip
async def test_a_test_message_with_a_wrong_field_is_refused(
    client: httpx.AsyncClient, fields: dict[str, str]
) -> None:
    given = {"_do": "send", "body": "x", **fields}
    refused = await client.post(f"{BASE}/topics/orders/send?dry=1", data=given)
    assert refused.status_code == 422


async def test_nothing_is_sent_to_system_topics(client: httpx.AsyncClient) -> None:
    given = {"_do": "send", "body": "x"}
    for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC"):
        refused = await client.post(f"{BASE}/topics/{topic}/send?dry=1", data=given)
        assert refused.status_code == 422, topic


async def test_readers_read_and_change_nothing(
    console: ConsoleUnderTest, reader: httpx.AsyncClient
) -> None:
    one = await sent(console, "orders", b"paid")
    address = f"{BASE}/messages/{one.offset_id}"
    assert (await reader.get(address)).status_code == 200
    for given in ({"_do": "resend"}, {"_do": "consume", "group": "g", "client": "c"}):
        assert (await reader.post(f"{address}?dry=1", data=given)).status_code == 403
    given = {"_do": "send", "body": "x"}
    assert (await reader.post(f"{BASE}/topics/orders/send", data=given)).status_code == 403


async def test_tokens_without_the_scope_see_no_bodies(console: ConsoleUnderTest) -> None:
    one = await sent(console, "orders", b"paid")
    program = await console.program("ada", "read")
    for address in (f"messages/{one.offset_id}.json", "messages.json?topic=orders"):
        assert (await program.get(f"{BASE}/{address}")).status_code in (403, 404)


async def test_a_message_is_sent_again(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    one = await sent(console, "orders", b"again", keys=("twice",))
    done = await carry_out(client, f"{BASE}/messages/{one.offset_id}", {"_do": "resend"})
    assert done.status_code == 303
    found = await client.get(f"{BASE}/messages.json?topic=orders&q=twice")
    assert [row["preview"] for row in found.json()["found"]["rows"]] == ["again", "again"]
