"""Consoles whose pages show a real cluster: collected as by a running console, round by round."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC
from pathlib import Path

from sqlalchemy import Engine

from tests.support.console.clients import ConsoleUnderTest
from tianzhou.clock import wall_ms
from tianzhou.console.collect import tables
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.recording import Recorder
from tianzhou.console.settings import ClusterSettings, ConsoleSettings


class CollectedConsole(ConsoleUnderTest):
    """A console with collectors; `round` asks the brokers of all its clusters."""

    def __init__(self, folder: Path, clusters: dict[str, str]) -> None:
        settings = ConsoleSettings(
            clusters=tuple(
                ClusterSettings(name=name, namesrv=namesrv) for name, namesrv in clusters.items()
            )
        )
        super().__init__(folder, settings)
        self.now_ms = wall_ms()
        self.engine: Engine = tables.open_tables(self.settings.database_url)
        self._recorders = [Recorder(self.engine, name, "test") for name in clusters]
        for recorder, cluster in zip(self._recorders, self.console.clusters.values(), strict=True):
            cluster.collector = Collector(
                cluster.name, cluster.admin, zone=UTC, recorder=recorder, instance="test"
            )

    async def round(self) -> None:
        """One round of every collector."""
        self.now_ms = wall_ms()
        for recorder, cluster in zip(self._recorders, self.console.clusters.values(), strict=True):
            assert recorder.acquire()
            assert cluster.collector is not None
            await cluster.collector.round()

    async def close(self) -> None:
        await self.console.answers.close()
        await super().close()
        self.engine.dispose()


@asynccontextmanager
async def collected(
    folder: Path, rounds: int = 2, **clusters: str
) -> AsyncGenerator[CollectedConsole]:
    """A console with an administrator "ada" and the reader "rita" after some rounds."""
    console = CollectedConsole(folder, clusters)
    try:
        await console.add("ada", is_admin=True)
        await console.add("rita")
        for _ in range(rounds):
            await console.round()
        yield console
    finally:
        await console.close()
