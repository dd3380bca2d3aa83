"""Login, its rate limit, sessions, the set-up link, passwords, and being asked for it again."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.console.clients import PASSWORD, ConsoleUnderTest, carry_out, plan_of
from tianzhou.console.accounts import sessions, setup_codes
from tianzhou.console.accounts.passwords import problem_of
from tianzhou.console.settings import SETUP_CODE_MS, ConsoleSettings

WRONG = "wrong password 1"
MINUTE_MS = 60_000
HOUR_MS = 3600_000


@pytest.fixture
async def hopper(console: ConsoleUnderTest) -> int:
    return await console.add("hopper", is_admin=True, password=PASSWORD)


def form(login: str = "hopper", password: str = PASSWORD, **more: str) -> dict[str, str]:
    return {"login": login, "password": password, **more}


# -- login -----------------------------------------------------------------------------------------


async def test_login_goes_on_where_it_was_asked_for(
    hopper: int, stranger: httpx.AsyncClient
) -> None:
    asked = await stranger.get("/people?find=a")
    assert asked.headers["location"] == "/login?next=%2Fpeople%3Ffind%3Da"
    page = await stranger.get(asked.headers["location"])
    assert 'value="/people?find=a"' in page.text
    done = await stranger.post("/login", data=form("HOPPER", next="/people?find=a"))
    assert (done.status_code, done.headers["location"]) == (303, "/people?find=a")
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert "Secure" not in cookie
    assert (await stranger.get("/people")).status_code == 200


async def test_the_cookie_is_bound_to_the_host_where_tls_is_on(tmp_path: Path) -> None:
    console = ConsoleUnderTest(tmp_path, ConsoleSettings(is_https_outside=True))
    await console.add("hopper", password=PASSWORD)
    answer = await console.stranger().post("/login", data=form())
    assert answer.headers["set-cookie"].startswith("__Host-tianzhou=")
    assert "; Secure" in answer.headers["set-cookie"]
    assert "; Path=/;" in answer.headers["set-cookie"]
    assert answer.headers["strict-transport-security"]
    await console.close()


async def test_a_wrong_login_and_a_wrong_password_look_alike(
    hopper: int, stranger: httpx.AsyncClient
) -> None:
    wrong_password = await stranger.post("/login", data=form(password=WRONG))
    wrong_login = await stranger.post("/login", data=form("nobody-here", WRONG))
    disabled = await stranger.post("/login", data=form("rita", WRONG))
    texts = {
        each.text.replace("nobody-here", "hopper").replace("rita", "hopper")
        for each in (wrong_password, wrong_login, disabled)
    }
    assert len(texts) == 1
    assert wrong_password.status_code == wrong_login.status_code == 422


@pytest.mark.parametrize("login", ["hopper", "not-a-person"])
async def test_five_failures_lock_a_login_for_a_minute_that_doubles(
    login: str, hopper: int, console: ConsoleUnderTest
) -> None:
    async def attempt(number: int, password: str = WRONG) -> httpx.Response:
        browser = console.stranger(ip=f"10.0.0.{number}")
        return await browser.post("/login", data=form(login, password))

    for number in range(5):
        assert (await attempt(number)).status_code == 422
    locked = await attempt(6, PASSWORD)
    assert locked.status_code == 429
    assert 0 < int(locked.headers["retry-after"]) <= 61
    console.now_ms += MINUTE_MS + 1
    assert (await attempt(7)).status_code == 422
    console.now_ms += MINUTE_MS + 1
    assert (await attempt(8)).status_code == 429, "two minutes after the sixth"
    console.now_ms += MINUTE_MS
    expected = 303 if login == "hopper" else 422
    assert (await attempt(9, PASSWORD)).status_code == expected


async def test_five_failures_lock_an_address_for_all_logins(
    hopper: int, console: ConsoleUnderTest
) -> None:
    browser = console.stranger(ip="192.0.2.1")
    for number in range(5):
        await browser.post("/login", data=form(f"login-{number}", WRONG))
    assert (await browser.post("/login", data=form())).status_code == 429
    assert (await console.stranger(ip="192.0.2.2").post("/login", data=form())).status_code == 303


# -- sessions --------------------------------------------------------------------------------------


async def test_a_session_ends_when_idle_and_after_a_week(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    status = 200
    for _ in range(15):
        console.now_ms += sessions.IDLE_MS - MINUTE_MS
        status = (await client.get("/me")).status_code
        if status != 200:
            break
    assert status == 303
    assert console.now_ms >= 1_790_000_000_000 + sessions.LIFE_MS
    fresh = await console.browser("ada")
    assert (await fresh.get("/me")).status_code == 200
    console.now_ms += sessions.IDLE_MS + 1
    assert (await fresh.get("/me")).status_code == 303


async def test_logout_ends_the_session_on_the_server(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    secret = client.headers["Cookie"]
    done = await client.post("/logout", data={})
    assert done.headers["location"] == "/login"
    again = console.stranger()
    again.headers["Cookie"] = secret
    assert (await again.get("/me")).status_code == 303


async def test_login_gives_a_new_session_and_ends_the_old_one(
    hopper: int, console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    old = client.headers["Cookie"]
    done = await client.post("/login", data=form())
    assert done.headers["set-cookie"].partition(";")[0] != old
    again = console.stranger()
    again.headers["Cookie"] = old
    assert (await again.get("/me")).status_code == 303


async def test_own_sessions_are_listed_and_ended(console: ConsoleUnderTest) -> None:
    one, other = await console.browser("ada"), await console.browser("ada")
    rows = (await one.get("/me.json")).json()["sessions"]
    assert [each["is_this"] for each in rows].count(True) == 1
    (there,) = [each["id"] for each in rows if not each["is_this"]]
    ended = await one.post("/me", data={"_do": "end-session", "session": there})
    assert ended.status_code == 303
    assert (await other.get("/me")).status_code == 303
    third = await console.browser("ada")
    await one.post("/me", data={"_do": "end-other-sessions"})
    assert (await third.get("/me")).status_code == 303
    assert (await one.get("/me")).status_code == 200


async def test_a_new_password_ends_all_other_sessions(
    hopper: int, console: ConsoleUnderTest
) -> None:
    one, other = await console.browser("hopper"), await console.browser("hopper")
    new = "another good phrase"
    done = await carry_out(one, "/me", {"_do": "password", "password": new, "again": new})
    assert done.status_code == 303
    assert (await other.get("/me")).status_code == 303
    kept = console.stranger()
    kept.headers["Cookie"] = done.headers["set-cookie"].partition(";")[0]
    assert (await kept.get("/me")).status_code == 200
    assert (await console.stranger().post("/login", data=form())).status_code == 422
    assert (await console.stranger().post("/login", data=form(password=new))).status_code == 303


async def test_another_role_needs_a_new_login(
    console: ConsoleUnderTest, client: httpx.AsyncClient, reader: httpx.AsyncClient
) -> None:
    done = await carry_out(client, "/people/2", {"_do": "change", "role": "administrator"})
    assert done.status_code == 303
    assert (await reader.get("/me")).status_code == 303
    assert (await (await console.browser("rita")).get("/people")).status_code == 200


# -- asked again -----------------------------------------------------------------------------------


async def test_the_password_is_asked_for_again_after_five_minutes(
    hopper: int, console: ConsoleUnderTest
) -> None:
    browser = await console.browser("hopper")
    change = {"_do": "disable"}
    console.now_ms += 5 * MINUTE_MS
    planned = await browser.post("/people/2?dry=1", data=change)
    assert 'name="_password"' in planned.text
    confirmed = {**change, "_plan": plan_of(planned)}
    asked = await browser.post("/people/2", data=confirmed)
    assert asked.status_code == 200, "asked for the password, nothing wrong yet"
    wrong = await browser.post("/people/2", data={**confirmed, "_password": WRONG})
    assert wrong.status_code == 409
    assert "The password is wrong" in wrong.text
    enabled = (await browser.get("/people/2.json")).json()["person"]["is_enabled"]
    assert enabled
    done = await browser.post("/people/2", data={**confirmed, "_password": PASSWORD})
    assert done.status_code == 303
    planned = await browser.post("/people/2?dry=1", data={"_do": "enable"})
    assert 'name="_password"' not in planned.text


async def test_guessing_the_password_again_is_limited(
    hopper: int, console: ConsoleUnderTest
) -> None:
    browser = await console.browser("hopper")
    console.now_ms += 5 * MINUTE_MS
    planned = await browser.post("/people/2?dry=1", data={"_do": "disable"})
    fields = {"_do": "disable", "_plan": plan_of(planned), "_password": WRONG}
    statuses = [(await browser.post("/people/2", data=fields)).status_code for _ in range(6)]
    assert statuses == [409] * 5 + [429]


async def test_a_plan_that_is_no_longer_true_is_shown_again(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    change = {"_do": "change", "name": "New Name", "role": "reader"}
    planned = await client.post("/people/2?dry=1", data=change)
    await carry_out(client, "/people/2", {"_do": "change", "name": "Other", "role": "reader"})
    answer = await client.post("/people/2", data={**change, "_plan": plan_of(planned)})
    assert answer.status_code == 409
    assert "Meanwhile something has changed" in answer.text
    assert (await client.get("/people/2.json")).json()["person"]["name"] == "Other"


# -- the first start -------------------------------------------------------------------------------


async def code_of(console: ConsoleUnderTest) -> str:
    return await console.database.write(
        lambda each: setup_codes.make(each, console.now_ms, SETUP_CODE_MS)
    )


@pytest.fixture
async def empty(tmp_path: Path) -> AsyncIterator[ConsoleUnderTest]:
    console = ConsoleUnderTest(tmp_path)
    yield console
    await console.close()


NEW = {"login": "first", "name": "The First", "password": PASSWORD, "again": PASSWORD}


async def test_the_link_makes_the_first_administrator_once(empty: ConsoleUnderTest) -> None:
    where = f"/setup/{await code_of(empty)}"
    browser, late = empty.stranger(), empty.stranger()
    assert (await late.get(where)).status_code == 200
    done = await browser.post(where, data=NEW)
    assert (done.status_code, done.headers["location"]) == (303, "/")
    assert (await browser.get("/people")).status_code == 200
    assert (await late.get(where)).status_code == 404
    assert (await late.post(where, data={**NEW, "login": "second"})).status_code == 404
    rows = (await browser.get("/people.json")).json()["people"]["rows"]
    assert [(each["login"], each["is_admin"]) for each in rows] == [("first", True)]


async def test_the_link_ends_after_half_an_hour(empty: ConsoleUnderTest) -> None:
    where = f"/setup/{await code_of(empty)}"
    empty.now_ms += SETUP_CODE_MS
    assert (await empty.stranger().post(where, data=NEW)).status_code == 404
    assert (await empty.stranger().get("/setup/" + "a" * 24)).status_code == 404


async def test_a_code_is_useless_once_there_are_people(
    console: ConsoleUnderTest, stranger: httpx.AsyncClient
) -> None:
    where = f"/setup/{await code_of(console)}"
    assert (await stranger.post(where, data=NEW)).status_code == 404


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"password": "short", "again": "short"}, "at least 12 characters"),
        ({"again": "something else 1"}, "two passwords differ"),
        ({"login": ""}, "A login has 1 to"),
        ({"login": "a b"}, "letters, digits"),
        ({"name": "a\nb"}, "line breaks"),
    ],
)
async def test_the_set_up_says_what_is_wrong(
    change: dict[str, str], reason: str, empty: ConsoleUnderTest
) -> None:
    where = f"/setup/{await code_of(empty)}"
    answer = await empty.stranger().post(where, data={**NEW, **change})
    assert answer.status_code == 422
    assert reason in answer.text
    assert (await empty.stranger().get(where)).status_code == 200, "the code is not used up"


# -- passwords -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "password",
    ["short", "a" * 12, "abababababab", "password1234", "P@ssw0rd2024!", "qwertyuiop12",
     "123456789012", "abcdefghijkl", "rocketmqrocketmq", "hopperhopper", "adminadmin123",
     "x" * 300, "welcome2026!!", "zxcvbnmasdfgh"],
)  # fmt: skip
def test_passwords_that_are_guessed_first_are_refused(password: str) -> None:
    assert problem_of(password, "hopper") is not None


@pytest.mark.parametrize(
    "password", [PASSWORD, "nine purple elephants", "Xq7#mVp2-wLz", "我喜欢在下雨天喝热的绿茶啊"]
)
def test_good_passwords_are_accepted(password: str) -> None:
    assert problem_of(password, "hopper") is None


# -- language and theme ----------------------------------------------------------------------------


async def test_language_and_theme_are_remembered(
    console: ConsoleUnderTest, stranger: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    done = await stranger.post("/display", data={"language": "zh", "next": "/login"})
    assert done.headers["location"] == "/login"
    await stranger.post("/display", data={"theme": "dark", "next": "//evil.example"})
    page = (await stranger.get("/login")).text
    assert 'lang="zh-CN"' in page
    assert 'data-theme="dark"' in page
    assert "登录" in page
    await client.post("/display", data={"language": "zh", "next": "/people"})
    del client.headers["Cookie"]
    other = await console.browser("ada")
    assert "人员" in (await other.get("/people")).text, "it is the person's, in any browser"


async def test_times_are_in_the_zone_of_the_person(
    console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    async def seen(zone: str) -> str:
        await client.post("/me", data={"_do": "profile", "zone": zone})
        return (await client.get("/me")).text

    assert "2026-09-21 14:13:20" in await seen("UTC")
    assert "2026-09-21 22:13:20" in await seen("Asia/Shanghai")
    refused = await client.post("/me", data={"_do": "profile", "zone": "Mars/Olympus"})
    assert refused.status_code == 422
