"""A walk over the route table: what strangers, readers, other sites and programs are refused."""

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.support.console.clients import ConsoleUnderTest
from tianzhou.console.app import ROUTES
from tianzhou.console.web.dispatch import POLICY
from tianzhou.console.web.route import Change, Route, Who

OPEN = {"/static/{name:path}", "/login", "/setup/{code}", "/display", "/logout", "/healthz",
        "/oidc/start", "/oidc/callback"}  # fmt: skip
FORM = {"Content-Type": "application/x-www-form-urlencoded"}

PROTECTED = [each for each in ROUTES if each.path not in OPEN]
CHANGES = [(route, change) for route in ROUTES for change in route.changes.values()]


def address(route: Route) -> str:
    """An address of the route, with names that fit it."""
    names = {"cluster": "main", "person": "2"}
    return re.sub(r"\{(\w+)(:path)?\}", lambda found: names.get(found[1], "x"), route.path)


def shown(route: Route) -> str:
    return route.path


def named(pair: tuple[Route, Change]) -> str:
    return f"{pair[0].path} {pair[1].verb}"


def forms(route: Route) -> Iterator[str]:
    where = address(route)
    yield where
    if route.view is not None:
        yield f"{where.rstrip('/') or '/index'}.json"
    if route.rows:
        yield f"{where}.csv"


def test_only_these_routes_are_open_to_strangers() -> None:
    assert {each.path for each in ROUTES if each.who == Who.STRANGER} <= OPEN
    assert all(each.who != Who.STRANGER for _, each in CHANGES)


@pytest.mark.parametrize("route", PROTECTED, ids=shown)
async def test_strangers_are_refused(route: Route, stranger: httpx.AsyncClient) -> None:
    for where in forms(route):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            answer = await stranger.request(method, where, headers=FORM)
            is_page = where == address(route)
            assert answer.status_code == (303 if is_page else 401), (method, where)
            if is_page:
                assert answer.headers["location"].startswith("/login")


@pytest.mark.parametrize("route", PROTECTED, ids=shown)
async def test_a_wrong_token_is_refused(route: Route, stranger: httpx.AsyncClient) -> None:
    for secret in ("tzc_" + "a" * 40, "", "tzc_", "x" * 500):
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await stranger.get(address(route), headers=headers)).status_code == 401


async def test_a_stranger_cannot_tell_which_addresses_exist(stranger: httpx.AsyncClient) -> None:
    there = await stranger.get("/people")
    missing = await stranger.get("/nothing-here")
    assert (there.status_code, missing.status_code) == (303, 303)
    assert (await stranger.get("/people.json")).text == (await stranger.get("/no.json")).text


@pytest.mark.parametrize("route", ROUTES, ids=shown)
async def test_every_answer_has_the_headers_that_protect_it(
    route: Route, stranger: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    for browser in (stranger, client):
        answer = await browser.get(address(route))
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        if not route.path.startswith("/static"):
            assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("route", [r for r in PROTECTED if r.who == Who.ADMINISTRATOR], ids=shown)
async def test_pages_of_administrators_do_not_exist_for_readers(
    route: Route, reader: httpx.AsyncClient
) -> None:
    for where in forms(route):
        assert (await reader.get(where)).status_code == 404, where


@pytest.mark.parametrize("pair", CHANGES, ids=named)
async def test_every_change_is_refused_from_elsewhere(
    pair: tuple[Route, Change], console: ConsoleUnderTest, client: httpx.AsyncClient
) -> None:
    route, change = pair
    fields = {"_do": change.verb}
    where = address(route)
    before = await console.dump()

    async def refused(status: int, **headers: str) -> None:
        answer = await client.post(where, data=fields, headers=headers)
        assert answer.status_code == status, (headers, answer.text[:300])

    for site in ("cross-site", "same-site", "nonsense", ""):
        await refused(403, **{"Sec-Fetch-Site": site})
    del client.headers["Sec-Fetch-Site"]
    for origin in ("https://evil.example", "null", "http://127.0.0.1:8080.evil.example", ""):
        await refused(403, Origin=origin)
    client.headers["Sec-Fetch-Site"] = "same-origin"
    answer = await client.get(where, params=fields)
    assert answer.status_code in (200, 404, 502)
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/xml", ""):
        answer = await client.post(where, content=b"_do=x", headers={"Content-Type": kind})
        assert answer.status_code == 415, kind
    answer = await client.post(where, json=fields)
    assert answer.status_code == 415, "JSON is for tokens"
    after = await console.dump()
    assert after == before


@pytest.mark.parametrize(
    "pair", [each for each in CHANGES if each[1].who == Who.ADMINISTRATOR], ids=named
)
async def test_a_reader_cannot_change(
    pair: tuple[Route, Change], reader: httpx.AsyncClient, console: ConsoleUnderTest
) -> None:
    route, change = pair
    answer = await reader.post(address(route), data={"_do": change.verb})
    assert answer.status_code in (403, 404)
    program = await console.program("rita", "read", "bodies", "change")
    answer = await program.post(address(route), json={"_do": change.verb})
    assert answer.status_code in (403, 404)


@pytest.mark.parametrize("pair", CHANGES, ids=named)
async def test_a_token_needs_the_scope_of_the_change(
    pair: tuple[Route, Change], console: ConsoleUnderTest
) -> None:
    route, change = pair
    others = [each for each in ("read", "bodies", "change", "platform") if each != change.scope]
    if not change.scope or route.scope in others or route.scope == change.scope:
        program = await console.program("ada", *others)
        answer = await program.post(address(route), json={"_do": change.verb})
        assert answer.status_code == 403, answer.text


@pytest.mark.parametrize("route", PROTECTED, ids=shown)
async def test_a_token_needs_the_scope_of_the_page(route: Route, console: ConsoleUnderTest) -> None:
    others = [each for each in ("read", "bodies", "change", "platform") if each != route.scope]
    program = await console.program("ada", *others)
    assert (await program.get(address(route))).status_code == 403
    program = await console.program("ada", route.scope)
    assert (await program.get(address(route))).status_code in (200, 404, 502)


async def test_methods_that_a_route_lacks_are_refused(client: httpx.AsyncClient) -> None:
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        answer = await client.request(method, "/people")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert (await client.post("/audit", data={"_do": "x"})).status_code == 405
