"""The broker as a program: the order in which it starts and stops.

Start: the store (which recovers itself), the tables, the ports, the features, the nameservers. A
broker registers last, when it can already be used. Stop, in reverse: it unregisters first, so that
clients use other brokers; parked requests are answered, pending responses are sent, and only
then are the tables saved and the store closed. Each step of the start registers what undoes it, so
`stop` is right after a start that failed half-way, too.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial

from tianzhou.broker import advertised_address, disk_space_check
from tianzhou.broker.assembly import Core, Features, access_control, assemble, serve_metrics
from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.cluster import copy_metadata_on_join
from tianzhou.broker.config import BrokerConfig, MetricsExporter, namesrv_addresses
from tianzhou.broker.handlers.deps import WaitingPull
from tianzhou.broker.longpoll.parked_pulls import ParkedPulls
from tianzhou.broker.quota import control as quota
from tianzhou.broker.requests.pipeline import RequestPipeline
from tianzhou.broker.requests.table import HANDLERS
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.state import BrokerState
from tianzhou.broker.statistics.counters import channel_activity
from tianzhou.clock import Clock, steady_ms, wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.watched_files import POLL_S
from tianzhou.protocol import kernel
from tianzhou.protocol.filter.sql import prepare as prepare_sql
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.event_loop import Tasks
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Server
from tianzhou.remoting.tls.settings import client_tls_of, tls_files_of, tls_of, watched_certificates
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_OVERDUE_S = 5.0
_SILENT_CLIENTS_S = 10.0
_HISTORY_S = 1.0
_CERTIFICATES_S = 1.0
_FIRST_REGISTRATION_S = 3.0
_VIP_DISTANCE = 2


class Broker:
    """One broker on one event loop; `start` it once, `stop` it once."""

    store: MessageStore
    """Set by `start`."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        *,
        clock: Clock = wall_ms,
        steady: Clock = steady_ms,
        crash_point: CrashPoint = no_crash_point,
    ) -> None:
        """Raises ConfigError for settings that contradict each other."""
        self.settings = settings
        self._clock = clock
        self._steady = steady
        self._crash_point = crash_point
        config = settings.config
        self._tls, self._client_tls = tls_of(config), client_tls_of(config)
        self._namesrvs = namesrv_addresses(config)
        self.state = state = BrokerState(settings, clock, steady)
        self.topics, self.groups, self.offsets = state.topics, state.groups, state.offsets
        self.consumers, self.producers, self.modes = state.consumers, state.producers, state.modes
        self.stats, self.history, self.table_limits = state.stats, state.history, state.limits
        self.parked = ParkedPulls[Connection, WaitingPull]()
        self.address = ""
        """The address that clients connect to; set by `start`."""
        self.web_port = 0
        """The port of /metrics and /health, if they are served; set by `start`."""
        self._running: tuple[Core, Features] | None = None
        self._tasks = Tasks()
        self._stops = AsyncExitStack()
        """What undoes each step of the start, last step first."""

    # -- starting ----------------------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Open the store, listen and register; returns the address listened on.

        Raises TianzhouError; call `stop` after that, too.
        """
        config, stops = self.settings.config, self._stops
        log.info("broker %s: starting, with %s", config.broker_name, kernel.description())
        arrivals = Arrivals()
        # The store locks its folder, so it comes before the tables in it are read.
        self.store = store = await self._open_store(config, arrivals)
        stops.push_async_callback(asyncio.to_thread, store.close)
        stops.push_async_callback(self.state.close)
        scheduled = ScheduledMessages(
            self.settings, store, self.topics, self._clock, self._crash_point,
            self.state.count_delivered,
        )  # fmt: skip
        stops.push_async_callback(scheduled.stop)
        self.state.load(scheduled.encoders())
        access = access_control(config, store, self.state, self._clock)
        limits = Limits(idle_ms=config.server_channel_max_idle_time_seconds * 1000)
        # Rules are read again only after the start, when all of these exist.
        quotas = None
        if config.quota_file is not None:
            quotas = quota.Quotas(config.quota_file, self._steady, lambda _: apply_quotas())
        pipeline = RequestPipeline(self.settings, access, quotas)
        server = Server(
            pipeline.handle,
            limits=limits if quotas is None else quotas.limits_by(limits),
            tls=self._tls,
            on_closed=pipeline.connection_closed,
            feed=pipeline.feed,
        )

        def apply_quotas() -> None:
            if quotas is not None:
                server.set_limits(quotas.limits_by(limits))
            pipeline.forget_fast_path()

        self.stats.channels = partial(channel_activity, server)
        # The ports are closed before the features stop, although they are opened before.
        feature_stops = await stops.enter_async_context(AsyncExitStack())
        stops.push_async_callback(self._close, server)
        host, port = await self._listen(server, config)
        core = Core(
            settings=self.settings, clock=self._clock, steady=self._steady,
            crash_point=self._crash_point, state=self.state, parked=self.parked, arrivals=arrivals,
            store=store, scheduled=scheduled, access=access, quotas=quotas, pipeline=pipeline,
            limits=limits, client_tls=self._client_tls, port=port,
            host=advertised_address.advertised_host(config, port),
        )  # fmt: skip
        self.address = core.address
        features = assemble(core, feature_stops)
        stops.callback(features.answer_parked)
        self._running = core, features
        scheduled.start()
        if config.copy_metadata_on_join and copy_metadata_on_join.is_new(self.topics):
            await copy_metadata_on_join.copy_metadata(
                features.deps.client, self._namesrvs, config.broker_cluster_name,
                config.broker_name, self.topics, self.groups,
            )  # fmt: skip
        if config.metrics_exporter_type is MetricsExporter.PROM:
            self.web_port = await serve_metrics(core, features, stops)
        stops.push_async_callback(features.registrar.unregister)
        stops.push_async_callback(self._tasks.cancel)
        await self._register(features)
        self._start_tasks(config, core, features, server)
        return host, port

    async def _open_store(self, config: BrokerConfig, arrivals: Arrivals) -> MessageStore:
        on_arrival = arrivals.notify_from_thread if config.is_staged else arrivals.notify
        store = await asyncio.to_thread(
            MessageStore.open, config, clock=self._clock, on_arrival=on_arrival, steady=self._steady
        )
        if (short := disk_space_check.problem(config)) is not None:
            log.warning("%s", short)
        return store

    async def _listen(self, server: Server, config: BrokerConfig) -> tuple[str, int]:
        host = config.bind_address
        address = await server.listen(host, config.listen_port)
        if config.vip_listen_enable and config.listen_port > _VIP_DISTANCE:
            await server.listen(host, config.listen_port - _VIP_DISTANCE)
        return address

    async def _register(self, features: Features) -> None:
        """Register, and keep registered; an unreachable nameserver does not delay the start."""
        if not self._namesrvs:
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
        self, config: BrokerConfig, core: Core, features: Features, server: Server
    ) -> None:
        run, repeat = self._tasks.run, self._tasks.repeat
        run(self._save_tables())
        run(features.checks.run())
        run(features.deps.pops.run())
        run(core.scheduled.run(self.state.save))
        run(asyncio.to_thread(prepare_sql))
        repeat(lambda: _OVERDUE_S, features.wake_overdue)
        repeat(self._silence_period_s, features.close_silent)
        repeat(lambda: _HISTORY_S, self.state.update_history)
        if core.access is not None:
            repeat(lambda: POLL_S, core.access.poll)
        if core.quotas is not None:
            repeat(lambda: POLL_S, core.quotas.poll)
        if tls_files := tls_files_of(config):
            watched = watched_certificates(
                tls_files, server.reload_tls, features.deps.client.reload_tls
            )
            repeat(lambda: _CERTIFICATES_S, watched.poll)

    # -- running -----------------------------------------------------------------------------------

    @property
    def registered_with(self) -> frozenset[str]:
        """The nameservers that know this broker now."""
        return self._running[1].registrar.registered if self._running else frozenset()

    @property
    def request_codes(self) -> frozenset[int]:
        """The request codes that are served; none before the start."""
        return frozenset(HANDLERS) if self._running else frozenset()

    async def register(self) -> None:
        """Register with all nameservers now; returns when they have answered."""
        if self._running is not None:
            await self._running[1].registrar.register()

    def clock_moved(self) -> None:
        """Check all deadlines again: a clock that was passed in has jumped."""
        if self._running is not None:
            core, features = self._running
            core.scheduled.clock_changed()
            features.clock_moved()

    def close_silent(self) -> None:
        """Close the connections of clients that send no heartbeats; done every few seconds."""
        if self._running is not None:
            self._running[1].close_silent()

    def _silence_period_s(self) -> float:
        return min(_SILENT_CLIENTS_S, self.settings.config.channel_expired_timeout / 1000)

    async def _save_tables(self) -> None:
        while True:
            await asyncio.sleep(self.settings.config.flush_consumer_offset_interval / 1000)
            await self.state.save()

    # -- stopping ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop in the reverse order; safe after a failed `start` and when stopped already."""
        self._running = None
        await self._stops.aclose()

    async def _close(self, server: Server) -> None:
        await server.close(self.settings.config.shutdown_wait_time_seconds)
