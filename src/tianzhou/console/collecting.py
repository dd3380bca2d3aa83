"""The collectors of a running console: one for each cluster, from start to stop."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

from sqlalchemy import Engine

from tianzhou.admin import Admin
from tianzhou.admin.requests import TIMEOUT_MS as PAGE_TIMEOUT_MS
from tianzhou.console import added_clusters
from tianzhou.console.collect import tables
from tianzhou.console.collect.asking import TIMEOUT_MS as COLLECT_TIMEOUT_MS
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.days import zone_of
from tianzhou.console.collect.recording import Recorder
from tianzhou.console.settings import ClusterSettings
from tianzhou.console.web.ask import Console, WatchedCluster
from tianzhou.errors import TianzhouError

log = logging.getLogger(__name__)

_RESTART_S = 10.0
_FOLLOW_S = 10.0


class Collectors:
    """Collects all clusters of a console: those of its settings, and those of the database."""

    def __init__(
        self, console: Console, open_admin: Callable[[ClusterSettings, int], Admin]
    ) -> None:
        """`open_admin` opens a client with a time-out in milliseconds."""
        self._console = console
        self._open_admin = open_admin
        self._engine: Engine | None = None
        self._watched: dict[str, tuple[ClusterSettings, asyncio.Task[None], Admin]] = {}
        self._reading = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create the tables, and collect. Raises ConfigError."""
        url = self._console.settings.database_url
        self._engine = await asyncio.to_thread(tables.open_tables, url)
        await self.reload()
        self._console.reload_clusters = self.reload
        self._following = asyncio.create_task(self._follow())

    async def reload(self) -> None:
        """Begin with clusters that were added, and end with those that were removed."""
        async with self._reading:
            listed = await self._console.database.read(lambda each: added_clusters.listed(each))
            wanted = {each.name: each for each in (*listed, *self._console.settings.clusters)}
            for name, (settings, _, _) in list(self._watched.items()):
                if wanted.get(name) != settings:
                    await self._unwatch(name)
            for name, settings in wanted.items():
                if name not in self._watched:
                    self._watch(settings)

    async def stop(self) -> None:
        """Give up the leases and disconnect; safe after a failed `start`."""
        self._console.reload_clusters = None
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        for name in list(self._watched):
            await self._unwatch(name)
        if self._engine is not None:
            await asyncio.to_thread(self._engine.dispose)

    async def _follow(self) -> None:
        """Another instance may add a cluster."""
        while True:
            await asyncio.sleep(_FOLLOW_S)
            try:
                await self.reload()
            except TianzhouError as e:
                log.debug("the list of clusters was not read: %s", e)

    def _watch(self, settings: ClusterSettings) -> None:
        cluster = WatchedCluster(
            settings=settings, admin=self._open_admin(settings, PAGE_TIMEOUT_MS)
        )
        admin = self._open_admin(settings, COLLECT_TIMEOUT_MS)
        zone, name = _zone_of(cluster)
        instance = f"{socket.gethostname()}:{os.getpid()}"
        assert self._engine is not None, "started"
        cluster.collector = Collector(
            cluster.name,
            admin,
            zone=zone,
            zone_name=name,
            recorder=Recorder(self._engine, cluster.name, instance),
            instance=instance,
        )
        task = asyncio.create_task(_run(cluster.collector))
        self._watched[cluster.name] = (settings, task, admin)
        self._console.clusters[cluster.name] = cluster

    async def _unwatch(self, name: str) -> None:
        _, task, admin = self._watched.pop(name)
        cluster = self._console.clusters.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await admin.close()
        await cluster.admin.close()


async def _run(collector: Collector) -> None:
    while True:
        try:
            await collector.run()
        except Exception:  # a bug must not leave the pages with old figures for ever
            log.exception("cluster %s: the collector failed, it begins again", collector.cluster)
        await asyncio.sleep(_RESTART_S)


def _zone_of(cluster: WatchedCluster) -> tuple[tzinfo, str]:
    """The time zone in which the days of a cluster begin: that of the machine if none is set."""
    name = cluster.settings.zone or os.environ.get("TZ", "").removeprefix(":")
    if name:
        return zone_of(name), name
    zone = datetime.now(UTC).astimezone().tzinfo or UTC
    return zone, str(zone)
