"""Login by an OpenID provider, which is another program here; and what must not log in."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.support.console.clients import ConsoleUnderTest
from tests.support.console.oidc_provider import CLIENT, FAULTS, SECRET
from tianzhou.console.accounts.oidc import Provider
from tianzhou.console.settings import ConsoleSettings, OidcSettings
from tianzhou.errors import ConfigError


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.support.console.oidc_provider"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        yield program.stdout.readline().strip()
    finally:
        program.terminate()
        program.communicate(timeout=60)


@pytest.fixture
async def company(issuer: str, tmp_path: Path) -> AsyncIterator[ConsoleUnderTest]:
    oidc = OidcSettings(
        issuer=issuer, client_id=CLIENT, client_secret=SECRET, name="Company",
        role_claim="groups", administrators=("mq-admins",), readers=("mq-readers",),
    )  # fmt: skip
    made = ConsoleUnderTest(tmp_path, ConsoleSettings(oidc=oidc))
    await made.add("rita")
    yield made
    await made.close()


async def at_provider(browser: httpx.AsyncClient, account: str, back: str = "/") -> str:
    """Log in at the provider; where it sends the browser."""
    asked = await browser.get(f"/oidc/start?next={back}")
    assert asked.status_code == 303, asked.text
    async with httpx.AsyncClient() as outside:
        answer = await outside.get(f"{asked.headers['location']}&login_hint={account}")
    assert answer.status_code == 302, answer.text
    return answer.headers["location"]


async def log_in(browser: httpx.AsyncClient, account: str, back: str = "/") -> httpx.Response:
    where = await at_provider(browser, account, back)
    return await browser.get(where, headers={"Sec-Fetch-Site": "cross-site"})


async def test_the_login_page_offers_it(company: ConsoleUnderTest) -> None:
    page = (await company.stranger().get("/login?next=/people")).text
    assert "Log in with Company" in page
    assert 'href="/oidc/start?next=%2Fpeople"' in page


async def test_a_first_login_makes_the_person_with_the_role_of_the_groups(
    company: ConsoleUnderTest,
) -> None:
    browser = company.stranger()
    done = await log_in(browser, "ann", "/people?find=a")
    assert (done.status_code, done.headers["location"]) == (303, "/people?find=a")
    me = (await browser.get("/me.json")).json()["person"]
    assert (me["login"], me["name"], me["is_admin"]) == ("ann", "Ann Admin", True)
    assert not me["has_password"]
    reader = company.stranger()
    await log_in(reader, "bob")
    assert (await reader.get("/people")).status_code == 404
    entries = (await browser.get("/audit.json")).json()["entries"]["rows"]
    assert {each["verb"] for each in entries} == {"first OpenID login"}
    again = company.stranger()
    await log_in(again, "ann")
    rows = (await browser.get("/people.json")).json()["people"]["rows"]
    assert [each["login"] for each in rows] == ["ann", "bob", "rita"]


async def test_the_role_follows_the_groups(
    company: ConsoleUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = company.stranger()
    await log_in(browser, "ann")
    provider = company.console.provider
    assert provider is not None
    fewer = OidcSettings(
        issuer=provider.settings.issuer, client_id=CLIENT, client_secret=SECRET,
        role_claim="groups", readers=("mq-admins",),
    )  # fmt: skip
    monkeypatch.setattr(provider, "settings", fewer)
    other = company.stranger()
    await log_in(other, "ann")
    assert (await other.get("/people")).status_code == 404
    assert (await browser.get("/me")).status_code == 303, "sessions of the old rights have ended"


@pytest.mark.parametrize("account", ["eve", "rita", "markup", *FAULTS])
async def test_who_must_not_log_in(account: str, company: ConsoleUnderTest) -> None:
    browser = company.stranger()
    before = await company.dump()
    refused = await log_in(browser, account)
    assert refused.status_code == 403, refused.text
    assert (await browser.get("/me")).status_code == 303
    assert await company.dump() == before


async def test_a_login_that_the_provider_refuses(company: ConsoleUnderTest) -> None:
    refused = await log_in(company.stranger(), "unknown")
    assert refused.status_code == 403
    assert "access_denied" in refused.text


async def test_a_disabled_person_stays_outside(company: ConsoleUnderTest) -> None:
    browser = company.stranger()
    await log_in(browser, "ann")
    await company.database.write(
        lambda each: each.exec_driver_sql("UPDATE console_people SET is_enabled = 0")
    )
    assert (await browser.get("/me")).status_code == 303
    assert (await log_in(company.stranger(), "ann")).status_code == 403


async def test_the_answer_is_bound_to_the_browser_and_used_once(
    company: ConsoleUnderTest,
) -> None:
    victim, attacker = company.stranger(), company.stranger()
    where = await at_provider(attacker, "ann")
    assert (await victim.get(where)).status_code == 403, "no login was begun here"
    await at_provider(victim, "bob")
    assert (await victim.get(where)).status_code == 403, "another login was begun here"
    assert (await attacker.get(where)).status_code == 303
    assert (await company.stranger().get(where)).status_code == 403
    await attacker.get("/oidc/start")
    assert (await attacker.get(where)).status_code == 403


async def test_a_code_of_another_login_is_refused(company: ConsoleUnderTest) -> None:
    stolen = parse_qs(urlsplit(await at_provider(company.stranger(), "ann")).query)["code"][0]
    browser = company.stranger()
    own = urlsplit(await at_provider(browser, "bob"))
    state = parse_qs(own.query)["state"][0]
    refused = await browser.get(f"/oidc/callback?state={state}&code={stolen}")
    assert refused.status_code == 403, "its challenge fits the verifier of the other browser"
    assert (await browser.get("/me")).status_code == 303


async def test_a_provider_that_does_not_answer(tmp_path: Path) -> None:
    oidc = OidcSettings(issuer="http://127.0.0.1:1", client_id=CLIENT, client_secret="")
    console = ConsoleUnderTest(tmp_path, ConsoleSettings(oidc=oidc))
    answer = await console.stranger().get("/oidc/start")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
    await console.close()


@pytest.mark.parametrize("address", ["http://login.example.com", "ftp://127.0.0.1", "https://", ""])
def test_a_provider_without_tls_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="https://"):
        Provider(OidcSettings(issuer=address, client_id="x", client_secret=""))


async def test_without_a_provider_there_is_no_such_address(stranger: httpx.AsyncClient) -> None:
    assert (await stranger.get("/oidc/start")).status_code == 404
    assert (await stranger.get("/oidc/callback?code=x&state=y")).status_code == 404
