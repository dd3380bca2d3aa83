"""What must be refused: each row of the table is an attack, and what it must not achieve."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Connection

from tests.support.console.clients import HOST, PASSWORD, ConsoleUnderTest
from tianzhou.console.accounts import audit
from tianzhou.console.server import outer
from tianzhou.console.settings import ConsoleSettings

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'>{{7*7}}"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[", "10.0.0.5", "a b",
     "localhost.evil.example", "0"],
)  # fmt: skip
async def test_a_foreign_host_name_is_refused(host: str, client: httpx.AsyncClient) -> None:
    answer = await client.get("/people", headers={"Host": host})
    assert answer.status_code == 421
    assert "ada" not in answer.text
    login = await client.post("/login", data={"login": "x"}, headers={"Host": host})
    assert login.status_code == 421


async def test_names_of_the_console_are_accepted(tmp_path: Path) -> None:
    settings = ConsoleSettings(host_names=("Mq.Example.com",))
    console = ConsoleUnderTest(tmp_path, settings)
    for host in ("mq.example.com", "MQ.example.com:443", "localhost:8080", "[::1]:8080", HOST):
        assert (await console.stranger(host=host).get("/login")).status_code == 200, host
    await console.close()


async def test_markup_in_names_is_text(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    def write(connection: Connection) -> None:
        audit.record(
            connection, 5, person=MARKUP, ip=MARKUP, agent=MARKUP, verb="x", subject=MARKUP,
            after={MARKUP: MARKUP}, result="failed", reason=MARKUP,
        )  # fmt: skip

    await console.database.write(write)
    for where in ("/audit", f"/audit?find={MARKUP}", f"/people?find={MARKUP}&sort={MARKUP}",
                  f"/login?next={MARKUP}", f"/{MARKUP}"):  # fmt: skip
        text = (await client.get(where)).text
        assert "<script>alert" not in text, where
        assert "<img src=x" not in text, where


async def test_no_page_has_inline_script_or_style(client: httpx.AsyncClient) -> None:
    for where in ("/", "/people", "/people/2", "/audit", "/me", "/login", "/nothing"):
        text = (await client.get(where)).text
        assert "<style" not in text, where
        assert " style=" not in text, where
        assert " onclick=" not in text, where
        for script in text.split("<script")[1:]:
            assert script.startswith(' src="/static/'), where


@pytest.mark.parametrize(
    "target",
    ["https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil.example",
     "javascript:alert(1)", "/%0d%0aSet-Cookie: a=b", "/\r\nSet-Cookie: a=b", "/\t/evil.example",
     "http:/evil.example", " //evil.example", "/" + "a" * 5000],
)  # fmt: skip
async def test_login_goes_on_at_own_pages_only(target: str, tmp_path: Path) -> None:
    console = ConsoleUnderTest(tmp_path)
    await console.add("ada", password=PASSWORD)
    form = {"login": "ada", "password": PASSWORD, "next": target}
    answer = await console.stranger().post("/login", data=form)
    assert answer.status_code == 303
    location = answer.headers["location"]
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))
    assert "\r" not in location
    assert "\n" not in location
    await console.close()


async def test_cells_of_a_csv_are_no_formulas(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    for number, start in enumerate(("=", "+", "-", "@", "\t", "\r")):
        added = await console.add(f"login-{number}")
        await console.rename(added, f"{start}HYPERLINK(1)")
    answer = await client.get("/people.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="people.csv"'
    assert answer.text.count("'=HYPERLINK(1)") == 1
    for start in ("=", "+", "-", "@", "\t", "\r"):
        assert f",{start}HYPERLINK" not in answer.text
        assert f',"{start}HYPERLINK' not in answer.text


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"a=" + b"x" * 1_100_000, "application/x-www-form-urlencoded", 413),
        (b"&".join(b"f%d=1" % n for n in range(250)), "application/x-www-form-urlencoded", 400),
        (b"a=" + b"x" * 300_000, "application/x-www-form-urlencoded", 400),
        (b"_do=add&login=\xff\xfe", "application/x-www-form-urlencoded", 400),
        (b"_do=add&login=a%00b&password=x", "application/x-www-form-urlencoded", 422),
        (b"_do=add&unknown=1", "application/x-www-form-urlencoded", 422),
        (b"_do=add&login=a&login=b&password=c", "application/x-www-form-urlencoded", 422),
        (b"", "application/x-www-form-urlencoded", 422),
    ],
)  # fmt: skip
async def test_a_malformed_form_is_refused(
    content: bytes, kind: str, status: int, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/people", content=content, headers={"Content-Type": kind})
    assert answer.status_code == status


@pytest.mark.parametrize("content", [b"{", b"[]", b"1", b"\xff", b"[" * 100_000, b'{"_do": 1}'])
async def test_malformed_json_is_refused(content: bytes, console: ConsoleUnderTest) -> None:
    program = await console.program("ada", "read", "change", "platform")
    headers = {"Content-Type": "application/json"}
    answer = await program.post("/people", content=content, headers=headers)
    assert 400 <= answer.status_code < 500
    assert set(answer.json()) <= {"error", "field"}


async def test_a_body_without_a_length_is_cut(client: httpx.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100_000

    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = await client.post("/people", content=endless(), headers=headers)
    assert answer.status_code == 413


async def test_forwarded_addresses_of_strangers_are_not_believed(tmp_path: Path) -> None:
    settings = ConsoleSettings(trusted_proxies=("10.1.0.0/16",))
    console = ConsoleUnderTest(tmp_path, settings)
    await console.add("ada", password=PASSWORD)
    forwarded = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
    application = outer(console.application, settings)

    async def address_of(peer: str) -> str:
        transport = httpx.ASGITransport(app=application, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as browser:
            browser.headers["Sec-Fetch-Site"] = "same-origin"
            form = {"login": "ada", "password": PASSWORD}
            assert (await browser.post("/login", data=form, headers=forwarded)).status_code == 303
            me = (await browser.get("/me.json")).json()
        return str(me["sessions"][0]["ip"])

    assert await address_of("10.1.2.3") == "192.0.2.7"
    console.now_ms += 1000
    assert await address_of("10.2.2.3") == "10.2.2.3"
    console.now_ms += 1000
    assert await address_of("::ffff:10.1.2.3") == "192.0.2.7"
    await console.close()


async def test_secrets_are_nowhere_but_in_their_answer(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    form = {"_do": "make-token", "name": "robot", "scopes": "read", "days": "5"}
    planned = await client.post("/me?dry=1", data=form)
    digest = planned.text.partition('name="_plan" value="')[2].partition('"')[0]
    made = await client.post("/me", data={**form, "_plan": digest})
    secret = made.text.partition("<code>")[2].partition("</code>")[0]
    assert secret.startswith("tzc_")
    assert len(secret) == 44
    for where in ("/me", "/me.json", "/audit", "/audit.json", "/audit.csv"):
        assert secret not in (await client.get(where)).text
    dump = str(await console.dump())
    assert secret not in dump


async def test_changing_pages_of_others_by_id_is_refused(
    console: ConsoleUnderTest, reader: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    await console.program("ada", "read")
    number = (await client.get("/me.json")).json()["tokens"][0]["id"]
    session = (await client.get("/me.json")).json()["sessions"][0]["id"]
    refused = await reader.post("/me", data={"_do": "revoke-token", "token": str(number)})
    assert refused.status_code == 404
    refused = await reader.post("/me", data={"_do": "end-session", "session": session})
    assert refused.status_code == 404
    assert (await client.get("/me")).status_code == 200


async def test_a_reader_gets_no_token_of_an_administrator(reader: httpx.AsyncClient) -> None:
    form = {"_do": "make-token", "name": "robot", "scopes": "platform", "days": "5"}
    assert (await reader.post("/me?dry=1", data=form)).status_code == 422


def test_a_console_for_other_machines_accepts_addresses(tmp_path: Path) -> None:
    open_one = ConsoleSettings(listen_host="0.0.0.0", data=tmp_path)  # noqa: S104
    assert not open_one.is_loopback
    assert replace(open_one, listen_host="127.0.0.3").is_loopback
