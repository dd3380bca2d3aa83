"""The settings page, clusters that are added to a running console, health, two instances."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path

import httpx
import pytest

from tests.support import databases
from tests.support.brokers import eventually
from tests.support.console.clients import NOWHERE, PASSWORD, ConsoleUnderTest, carry_out
from tests.support.console.programs import SAME, running
from tianzhou.console.collect.collector import Collector
from tianzhou.console.settings import ClusterSettings, ConsoleSettings
from tianzhou.testing import Cluster

LOGIN = {"login": "ops@example.com", "password": PASSWORD}
ADMIN = {"admin_mail": LOGIN["login"], "admin_password": PASSWORD}


@asynccontextmanager
async def browser_of(url: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with httpx.AsyncClient(headers=SAME, base_url=url, timeout=30) as browser:
        assert (await browser.post("/login", data=LOGIN)).status_code == 303
        yield browser


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with databases.postgresql(tmp_path_factory.mktemp("postgresql")) as url:
        yield url


async def test_the_page_names_no_secret(tmp_path: Path) -> None:
    cluster = ClusterSettings(
        name="main",
        namesrv="127.0.0.1:1",
        access_key="account",
        secret_key="very-secret",  # noqa: S106
    )
    console = ConsoleUnderTest(tmp_path, ConsoleSettings(clusters=(cluster,)))
    await console.add("ada", is_admin=True)
    browser = await console.browser("ada")
    page, plain = await browser.get("/settings"), await browser.get("/settings.json")
    assert "account" in page.text
    assert "very-secret" not in page.text + plain.text
    assert plain.json()["clusters"][0]["is_added"] is False
    await console.close()


async def test_listening_for_others_without_tls_is_a_warning(tmp_path: Path) -> None:
    open_one = ConsoleSettings(listen_host="0.0.0.0")  # noqa: S104
    console = ConsoleUnderTest(tmp_path, open_one)
    await console.add("ada", is_admin=True)
    assert "without TLS" in (await (await console.browser("ada")).get("/settings")).text
    await console.close()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"name": "a b", "namesrv": "x:1"}, 422),
        ({"name": "ok", "namesrv": "nowhere"}, 422),
        ({"name": "ok", "namesrv": ";"}, 422),
        ({"name": "ok", "namesrv": "x:1", "zone": "Mars"}, 422),
        ({"name": "main", "namesrv": "x:1"}, 409),
    ],
)
async def test_a_wrong_cluster_is_refused(
    fields: dict[str, str], status: int, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/settings?dry=1", data={"_do": "add-cluster", **fields})
    assert answer.status_code == status


async def test_a_cluster_is_added_to_a_running_console(tmp_path: Path) -> None:
    settings = ConsoleSettings(listen_port=0, data=tmp_path)
    with Cluster(topics={"orders": 2}) as cluster:
        async with running(settings, **ADMIN) as server, browser_of(server.url) as browser:
            add = {"_do": "add-cluster", "name": "prod", "namesrv": cluster.namesrv_address}
            assert (await carry_out(browser, "/settings", add)).status_code == 303
            assert (await browser.get("/c/prod.json")).status_code == 200

            async def has_orders() -> bool:
                rows = (await browser.get("/c/prod/topics.json")).json()["topics"]["rows"]
                return "orders" in [each["name"] for each in rows]

            await eventually(has_orders, "the topic in the list")
            health = await browser.get("/healthz")
            assert (health.status_code, health.text) == (200, "ok\n")
            metrics = (await browser.get("/metrics")).text
            assert 'tianzhou_console_cluster_fresh{cluster="prod"} 1.0' in metrics
            assert 'tianzhou_console_cluster_brokers_answered{cluster="prod"} 1.0' in metrics


async def test_an_added_cluster_is_there_after_a_restart_until_it_is_removed(
    tmp_path: Path,
) -> None:
    settings = ConsoleSettings(listen_port=0, data=tmp_path)
    async with running(settings, **ADMIN) as server, browser_of(server.url) as browser:
        add = {"_do": "add-cluster", "name": "prod", "namesrv": NOWHERE}
        assert (await carry_out(browser, "/settings", add)).status_code == 303
    async with running(settings) as server, browser_of(server.url) as browser:
        assert (await browser.get("/c/prod.json")).status_code == 200
        remove = {"_do": "remove-cluster", "name": "prod"}
        assert (await carry_out(browser, "/settings", remove)).status_code == 303
        assert (await browser.get("/c/prod.json")).status_code == 404


async def test_health_fails_without_a_round_for_three_intervals(
    console: ConsoleUnderTest, stranger: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    cluster = console.console.clusters["main"]
    cluster.collector = Collector("main", cluster.admin, zone=UTC)
    console.console.started_ms = console.now_ms
    assert (await stranger.get("/healthz")).text == "ok\n", "the first round is waited for"
    console.now_ms += 10 * 60_000
    failing = await stranger.get("/healthz")
    assert (failing.status_code, failing.text) == (503, "failing\n")
    assert (await client.get("/healthz")).text == "cluster main: no round for three intervals\n"


async def test_health_and_pages_without_the_database(
    console: ConsoleUnderTest, stranger: httpx.AsyncClient, client: httpx.AsyncClient
) -> None:
    with console.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE console_people RENAME TO away")
    page = await client.get("/people")
    assert (page.status_code, page.headers["retry-after"]) == (503, "10")
    assert (await client.get("/people.json")).json()["error"].startswith("database ")
    with console.database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO console_people")
    assert (await client.get("/people")).status_code == 200


async def test_two_instances_on_postgresql_serve_the_same_people(
    postgresql: str, tmp_path: Path
) -> None:
    url = databases.fresh_database(postgresql, "console_two")
    settings = ConsoleSettings(listen_port=0, data=tmp_path, database=url)
    async with running(settings, **ADMIN) as one, running(settings) as other:
        assert other.setup_url == ""
        async with httpx.AsyncClient(headers=SAME, timeout=30) as browser:
            done = await browser.post(f"{one.url}/login", data=LOGIN)
            assert done.status_code == 303
            page = await browser.get(f"{other.url}/me.json")
            assert page.json()["person"]["login"] == LOGIN["login"]
            add = {"_do": "add", "login": "grace", "password": PASSWORD}
            assert (await carry_out(browser, f"{other.url}/people", add)).status_code == 303
            assert "grace" in (await browser.get(f"{one.url}/people")).text
            found = (await browser.get(f"{one.url}/audit.json?find=GRACE")).json()["entries"]
            assert (found["matching"], found["total"]) == (1, 1)
            assert (await browser.post(f"{other.url}/logout", data={})).status_code == 303
            assert (await browser.get(f"{one.url}/me")).status_code == 303
