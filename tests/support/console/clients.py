"""The application of a console in this process, and browsers and programs that use it by ASGI."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Connection

from tianzhou.console import app
from tianzhou.console.accounts import people, sessions, tokens
from tianzhou.console.accounts.oidc import Provider
from tianzhou.console.collect import tables
from tianzhou.console.server import open_admin
from tianzhou.console.settings import ClusterSettings, ConsoleSettings
from tianzhou.console.tables import ConsoleDatabase
from tianzhou.console.web import gate
from tianzhou.console.web.ask import Console, WatchedCluster
from tianzhou.console.web.dispatch import Application

HOST = "127.0.0.1:8080"
PASSWORD = "correct horse battery"  # noqa: S105
"""Of the people that tests add."""
NOWHERE = "127.0.0.1:1"


class ConsoleUnderTest:
    """One console on an SQLite file; the clock is moved by the test."""

    def __init__(
        self, folder: Path, settings: ConsoleSettings | None = None, *, url: str = ""
    ) -> None:
        chosen = settings or ConsoleSettings(
            clusters=(ClusterSettings(name="main", namesrv=NOWHERE),)
        )
        self.settings = replace(chosen, data=folder, database=url or chosen.database)
        self.database = ConsoleDatabase(self.settings.database_url)
        # Pages of a cluster read what its collector has written.
        tables.open_tables(self.settings.database_url).dispose()
        self.console = Console(settings=self.settings, database=self.database)
        self.console.now_ms = lambda: self.now_ms
        self.now_ms = 1_790_000_000_000
        if self.settings.oidc is not None:
            self.console.provider = Provider(self.settings.oidc)
        for each in self.settings.clusters:
            self.console.clusters[each.name] = WatchedCluster(settings=each, admin=open_admin(each))
        self.application: Application = app.build(self.console)
        self._clients: list[httpx.AsyncClient] = []

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()
        for cluster in self.console.clusters.values():
            await cluster.admin.close()
        self.database.close()

    async def add(self, login: str, *, is_admin: bool = False, password: str = "") -> int:
        """Add a person; without a password he has none, which saves the test its hash."""
        hashed = await self.console.passwords.hashed(password) if password else ""
        values: dict[str, Any] = {"is_admin": int(is_admin), "password": hashed}
        return await self.database.write(
            lambda each: people.add(each, login, self.now_ms, **values)
        )

    async def rename(self, person: int, name: str) -> None:
        """A name as it may come from elsewhere, unchecked."""
        await self.database.write(lambda each: people.change(each, person, self.now_ms, name=name))

    async def dump(self) -> list[str]:
        """All rows of the (SQLite) database, except what a request changes by itself."""

        def read(connection: Connection) -> list[str]:
            driver: Any = connection.connection.driver_connection
            return [line for line in driver.iterdump() if "console_failures" not in line]

        return await self.database.read(read)

    def stranger(self, *, host: str = HOST, ip: str = "127.0.0.1") -> httpx.AsyncClient:
        """A browser that is not logged in."""
        scheme = "https" if self.settings.is_https else "http"
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.application, client=(ip, 4711)),
            base_url=f"{scheme}://{host}",
            headers={"Sec-Fetch-Site": "same-origin", "User-Agent": "browser"},
        )
        self._clients.append(client)
        return client

    async def browser(self, login: str) -> httpx.AsyncClient:
        """A browser in which a person is logged in."""

        def begin(connection: Connection) -> str:
            person = people.by_login(connection, login)
            assert person is not None
            return sessions.begin(connection, person.id, "127.0.0.1", "browser", self.now_ms)

        secret = await self.database.write(begin)
        client = self.stranger()
        client.headers["Cookie"] = f"{gate.cookie_name(self.settings)}={secret}"
        return client

    async def program(self, login: str, *scopes: str, life_ms: int = 3600_000) -> httpx.AsyncClient:
        """A program with an API token of a person."""

        def make(connection: Connection) -> str:
            person = people.by_login(connection, login)
            assert person is not None
            until_ms = self.now_ms + life_ms
            return tokens.make(connection, person.id, "t", scopes, self.now_ms, until_ms)[1]

        secret = await self.database.write(make)
        client = self.stranger()
        del client.headers["Sec-Fetch-Site"]
        client.headers["Authorization"] = f"Bearer {secret}"
        return client


def plan_of(response: httpx.Response) -> str:
    """The digest in a page that shows a plan."""
    _, _, rest = response.text.partition('name="_plan" value="')
    digest, quote, _ = rest.partition('"')
    assert quote, response.text[:3000]
    return digest


async def carry_out(
    client: httpx.AsyncClient, address: str, fields: Mapping[str, str]
) -> httpx.Response:
    """Ask for the plan of a change and confirm it, as a person does with two clicks."""
    planned = await client.post(f"{address}?dry=1", data=dict(fields))
    assert planned.status_code == 200, planned.text[:3000]
    return await client.post(address, data={**fields, "_plan": plan_of(planned)})
