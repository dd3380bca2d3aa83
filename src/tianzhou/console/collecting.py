"""The collectors of a running console: one for each cluster, from start to stop."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo

from sqlalchemy import Engine

from tianzhou.admin import Admin
from tianzhou.console.collect import tables
from tianzhou.console.collect.collector import Collector
from tianzhou.console.collect.days import zone_of
from tianzhou.console.collect.recording import Recorder
from tianzhou.console.settings import ClusterSettings
from tianzhou.console.web.ask import Console, WatchedCluster

log = logging.getLogger(__name__)

_RESTART_S = 10.0


class Collectors:
    """Collects all clusters of a console."""

    def __init__(self, console: Console, open_admin: Callable[[ClusterSettings], Admin]) -> None:
        """`open_admin` opens clients with the time-out `asking.TIMEOUT_MS`.

        They are not those of pages and changes, which wait longer for a response.
        """
        self._console = console
        self._open_admin = open_admin
        self._engine: Engine | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._admins: list[Admin] = []

    async def start(self) -> None:
        """Create the tables, and collect. Raises ConfigError."""
        url = self._console.settings.database_url
        engine = self._engine = await asyncio.to_thread(tables.open_tables, url)
        instance = f"{socket.gethostname()}:{os.getpid()}"
        for cluster in self._console.clusters.values():
            admin = self._open_admin(cluster.settings)
            self._admins.append(admin)
            zone, name = _zone_of(cluster)
            cluster.collector = Collector(
                cluster.name,
                admin,
                zone=zone,
                zone_name=name,
                recorder=Recorder(engine, cluster.name, instance),
                instance=instance,
            )
            self._tasks.append(asyncio.create_task(_run(cluster.collector)))

    async def stop(self) -> None:
        """Give up the leases and disconnect; safe after a failed `start`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for admin in self._admins:
            await admin.close()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.dispose)


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
