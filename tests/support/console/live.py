"""A console that shows a real cluster, with an administrator and a reader."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.console.clients import ConsoleUnderTest, carry_out, plan_of
from tianzhou.admin import Admin
from tianzhou.console.settings import ClusterSettings, ConsoleSettings
from tianzhou.testing import Cluster


class LiveConsole:
    """A console of one cluster, `main`."""

    def __init__(
        self, cluster: Cluster, console: ConsoleUnderTest, client: httpx.AsyncClient,
        reader: httpx.AsyncClient,
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.console = console
        self.client = client
        self.reader = reader

    @property
    def admin(self) -> Admin:
        return self.console.console.clusters["main"].admin

    async def json(self, address: str, **query: str) -> Any:  # noqa: ANN401 - JSON of a page
        response = await self.client.get(f"/c/main{address}.json", params=query)
        assert response.status_code == 200, response.text[:2000]
        return response.json()

    async def page(self, address: str, language: str = "en", **query: str) -> str:
        headers = {"Cookie": f"{self.client.headers['Cookie']}; tianzhou_language={language}"}
        response = await self.client.get(f"/c/main{address}", params=query, headers=headers)
        assert response.status_code == 200, response.text[:2000]
        return response.text

    async def plan(self, address: str, verb: str, **fields: str) -> httpx.Response:
        """The page with the plan of a change."""
        return await self.client.post(f"/c/main{address}?dry=1", data={"_do": verb, **fields})

    async def do(self, address: str, verb: str, **fields: str) -> httpx.Response:
        """Plan and confirm."""
        return await carry_out(self.client, f"/c/main{address}", {"_do": verb, **fields})

    async def confirm(
        self, planned: httpx.Response, address: str, verb: str, **fields: str
    ) -> httpx.Response:
        """Confirm a plan that was shown before."""
        data = {"_do": verb, "_plan": plan_of(planned), **fields}
        return await self.client.post(f"/c/main{address}", data=data)

    async def audit(self) -> dict[str, Any]:
        """The newest row of the audit log."""
        rows = (await self.client.get("/audit.json")).json()["entries"]["rows"]
        first: dict[str, Any] = rows[0]
        return first


@asynccontextmanager
async def live_console(cluster: Cluster, folder: Path) -> AsyncGenerator[LiveConsole]:
    """A console of a running cluster."""
    settings = ConsoleSettings(
        clusters=(ClusterSettings(name="main", namesrv=cluster.namesrv_address),)
    )
    console = ConsoleUnderTest(folder, settings)
    try:
        await console.add("ada", is_admin=True)
        await console.add("rita")
        yield LiveConsole(
            cluster, console, await console.browser("ada"), await console.browser("rita")
        )
    finally:
        await console.close()
