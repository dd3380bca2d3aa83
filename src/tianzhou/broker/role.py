"""What runs in one role of a broker, as master or slave: started together, stopped together.

A broker keeps its store, its tables, its ports and its connections when its role changes. All that
depends on the role is stopped and built again: handlers and their features, the fast path, delayed
and timed messages, transaction checks, replication, registration. Meanwhile requests are refused
with SERVICE_NOT_AVAILABLE, which clients retry.

A slave builds the same features, for the requests that it serves, and starts none that writes.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial

from tianzhou.broker.assembly import Core, Features, assemble, serve_metrics
from tianzhou.broker.cluster import copy_metadata_on_join
from tianzhou.broker.config import BrokerConfig, MetricsExporter, namesrv_addresses
from tianzhou.broker.replication import adaptation
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.statistics.counters import channel_activity
from tianzhou.config.watched_files import POLL_S
from tianzhou.protocol.filter.sql import prepare as prepare_sql
from tianzhou.remoting.event_loop import Tasks
from tianzhou.remoting.server import Server
from tianzhou.remoting.tls.settings import tls_files_of, watched_certificates

log = logging.getLogger(__name__)

_OVERDUE_S = 5.0
_SILENT_CLIENTS_S = 10.0
_HISTORY_S = 1.0
_CERTIFICATES_S = 1.0
_FIRST_REGISTRATION_S = 3.0


class RunningRole:
    """The features of one role, from `start` to `stop_features`."""

    features: Features
    """Set by `start`."""

    def __init__(self, core: Core, server: Server) -> None:
        self._core = core
        self._server = server
        self._tasks = Tasks()
        self._serving = AsyncExitStack()
        """What undoes each step that clients notice, last step first."""
        self._built = AsyncExitStack()
        """What undoes each feature, last one first."""
        self._last = AsyncExitStack()
        """The HA port is closed last, so that slaves get all that is stored until then."""
        self._is_ending = False
        self.web_port = 0
        """The port of /metrics and /health, if they are served."""

    # -- starting ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Build the features, serve requests and register.

        Raises TianzhouError; call both stops after that, too.
        """
        core, config = self._core, self._core.settings.config
        scheduled = self._scheduled()
        if core.store.truncation.pending is not None:
            await adaptation.finish_truncation(core.store, core.state, scheduled)
            if not config.is_slave:
                scheduled.reload()
        self.features = features = assemble(core, scheduled, self._built)
        self._last.push_async_callback(features.replication.close)
        core.state.stats.channels = partial(channel_activity, self._server)
        self._serving.callback(features.answer_parked)
        if not config.is_slave:
            scheduled.start()
            await self._copy_metadata(config, features)
        if config.metrics_exporter_type is MetricsExporter.PROM:
            self.web_port = await serve_metrics(core, features, self._serving)
        self._serving.push_async_callback(self._unregister)
        self._serving.push_async_callback(features.replication.stop_following)
        self._serving.push_async_callback(self._tasks.cancel)
        await features.replication.listen()
        await self._register(features)
        # The nameservers have said by now where the master is.
        await features.replication.follow()
        self._start_tasks(config, scheduled, features)

    def _scheduled(self) -> ScheduledMessages:
        core = self._core
        scheduled = ScheduledMessages(
            core.settings, core.store, core.durability, core.state.topics, core.clock,
            core.crash_point, core.state.count_delivered,
        )  # fmt: skip
        files = scheduled.encoders()
        core.state.add_files(files)
        self._built.push_async_callback(core.state.remove_files, files)
        self._built.push_async_callback(scheduled.stop)
        return scheduled

    async def _copy_metadata(self, config: BrokerConfig, features: Features) -> None:
        topics, groups = self._core.state.topics, self._core.state.groups
        if config.copy_metadata_on_join and copy_metadata_on_join.is_new(topics):
            await copy_metadata_on_join.copy_metadata(
                features.deps.client, namesrv_addresses(config), config.broker_cluster_name,
                config.broker_name, topics, groups,
            )  # fmt: skip

    async def _register(self, features: Features) -> None:
        """Register, and keep registered; an unreachable nameserver does not delay the start."""
        if not namesrv_addresses(self._core.settings.config):
            log.warning(
                "no nameserver is configured (namesrvAddr), so clients cannot find this one"
            )
        first = asyncio.create_task(features.registrar.register())

        async def keep_registered() -> None:
            await first
            await features.registrar.run()

        self._tasks.run(keep_registered())
        await asyncio.wait((first,), timeout=_FIRST_REGISTRATION_S)

    def _start_tasks(
        self, config: BrokerConfig, scheduled: ScheduledMessages, features: Features
    ) -> None:
        core, run, repeat = self._core, self._tasks.run, self._tasks.repeat
        run(self._save_tables())
        if not config.is_slave:
            run(features.checks.run())
            run(features.deps.pops.run())
            run(scheduled.run(core.state.save))
        run(features.replication.run())
        run(asyncio.to_thread(prepare_sql))
        repeat(lambda: _OVERDUE_S, features.wake_overdue)
        repeat(self._silence_period_s, features.close_silent)
        repeat(lambda: _HISTORY_S, core.state.update_history)
        if core.access is not None:
            repeat(lambda: POLL_S, core.access.poll)
        if core.quotas is not None:
            repeat(lambda: POLL_S, core.quotas.poll)
        if tls_files := tls_files_of(config):
            watched = watched_certificates(
                tls_files, self._server.reload_tls, features.deps.client.reload_tls
            )
            repeat(lambda: _CERTIFICATES_S, watched.poll)

    def _silence_period_s(self) -> float:
        return min(_SILENT_CLIENTS_S, self._core.settings.config.channel_expired_timeout / 1000)

    async def _save_tables(self) -> None:
        while True:
            config = self._core.settings.config
            await asyncio.sleep(config.flush_consumer_offset_interval / 1000)
            await self._core.state.save()

    # -- stopping ----------------------------------------------------------------------------------

    async def stop_serving(self, *, unregister: bool) -> None:
        """End background tasks and replication, and answer parked requests."""
        self._is_ending = unregister
        await self._serving.aclose()

    async def _unregister(self) -> None:
        # The registration of another role replaces this one: it has the same address.
        if self._is_ending:
            await self.features.registrar.unregister()

    async def stop_features(self) -> None:
        """Stop the features, after requests have ended or are refused."""
        if self._is_ending:
            self._core.serving.end_session()  # no feature waits for other replicas any more
        await self._built.aclose()
        await self._last.aclose()
