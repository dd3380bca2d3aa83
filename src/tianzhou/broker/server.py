"""The broker as a program: the order in which it starts and stops, and changes its role.

Start: the store (which recovers itself), the tables, the ports, then what its role needs
(`role.py`), and at last registration, when it can already be used. Stop, in reverse: it unregisters
first, so that clients use other brokers; parked requests are answered, pending responses are sent,
and only then are the tables saved and the store closed. Each step of the start registers what
undoes it, so `stop` is right after a start that failed half-way, too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from tianzhou.broker import advertised_address, disk_space_check
from tianzhou.broker.assembly import Core, access_control
from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.background.crash_points import CrashPoint, no_crash_point
from tianzhou.broker.config import BrokerConfig, BrokerRole
from tianzhou.broker.elected import ElectedBroker
from tianzhou.broker.handlers.deps import WaitingPull
from tianzhou.broker.longpoll.parked_pulls import ParkedPulls
from tianzhou.broker.quota import control as quota
from tianzhou.broker.replication.failover import Failover
from tianzhou.broker.replication.service import Replication
from tianzhou.broker.requests.pipeline import RequestPipeline
from tianzhou.broker.requests.table import HANDLERS
from tianzhou.broker.role import RunningRole
from tianzhou.broker.state import BrokerState
from tianzhou.broker.storing.durability import Durability
from tianzhou.broker.storing.serving import Serving
from tianzhou.clock import Clock, steady_ms, wall_ms
from tianzhou.config.live import LiveSettings, save_pairs
from tianzhou.errors import ConfigError, StoreClosed
from tianzhou.protocol import kernel
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.server import Server
from tianzhou.remoting.tls.settings import client_tls_of, tls_of
from tianzhou.store.message_store import MessageStore

log = logging.getLogger(__name__)

_VIP_DISTANCE = 2
_BY_REQUEST = "a change of the role"


class Broker:
    """One broker on one event loop; `start` it once, `stop` it once."""

    store: MessageStore
    """Set by `start`."""
    durability: Durability
    """Set by `start`; its `replicas_advanced` is called when slaves acknowledge more."""
    serving: Serving
    """Set by `start`; what is stored and shown under automatic failover."""

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
        self.state = state = BrokerState(settings, clock, steady)
        self.topics, self.groups, self.offsets = state.topics, state.groups, state.offsets
        self.consumers, self.producers, self.modes = state.consumers, state.producers, state.modes
        self.stats, self.history, self.table_limits = state.stats, state.history, state.limits
        self.parked = ParkedPulls[Connection, WaitingPull]()
        self.address = ""
        """The address that clients connect to; set by `start`."""
        self._core: Core | None = None
        self._role: RunningRole | None = None
        self._elected: ElectedBroker | None = None
        self._changing = asyncio.Lock()
        """Held while the role changes, and by `stop`."""
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
        self.state.log_end = lambda: store.end_log_offset
        self.durability = Durability(store, self.settings)
        self.serving = Serving(
            store, self.durability, arrivals, lambda: self.settings.config.in_sync_replicas
        )
        self.state.load()
        access = access_control(config, store, self.state, self._clock)
        limits = Limits(idle_ms=config.server_channel_max_idle_time_seconds * 1000)
        # Rules are read again only after the start, when all of these exist.
        quotas = None
        if config.quota_file is not None:
            quotas = quota.Quotas(config.quota_file, self._steady, lambda _: apply_quotas())
        pipeline = RequestPipeline(self.settings, access, quotas)
        self._server = server = Server(
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

        stops.push_async_callback(self._stop_features)
        stops.push_async_callback(self._close, server)
        host, port = await self._listen(server, config)
        self._core = Core(
            settings=self.settings, clock=self._clock, steady=self._steady,
            crash_point=self._crash_point, state=self.state, parked=self.parked, arrivals=arrivals,
            store=store, durability=self.durability, serving=self.serving, access=access,
            quotas=quotas, pipeline=pipeline, limits=limits, client_tls=self._client_tls, port=port,
            port_tls=lambda: server.tls_context,
            host=advertised_address.advertised_host(config, port), change_role=self.change_role,
        )  # fmt: skip
        self.address = self._core.address
        stops.push_async_callback(self._stop_serving)
        if config.has_failover:
            await self._start_elected(self._core)
        else:
            await self._start_role(self._core)
        return host, port

    async def _start_elected(self, core: Core) -> None:
        """Take part in the elections of the group; the role comes later."""
        self._elected = elected = ElectedBroker(core, self._server, self._replace_role)
        self._core = core = replace(
            core, failover=elected.failover, may_register=elected.may_register
        )
        self._stops.push_async_callback(elected.stop)
        await elected.begin()
        await self._start_role(core)
        elected.running = lambda: self._role
        elected.start()

    async def _start_role(self, core: Core) -> None:
        self._role = RunningRole(core, self._server)
        await self._role.start()

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

    # -- changing the role -------------------------------------------------------------------------

    async def change_role(self, role: BrokerRole, broker_id: int) -> None:
        """Become a master or a slave; the role is saved in the configuration file.

        Raises TianzhouError; then the role is the old one.
        """
        if self._elected is not None:
            raise ConfigError(
                "the role is decided by election (haEtcdEndpoints): use tianzhou broker switch"
            )
        prepare = partial(self._prepare_role, role=role, broker_id=broker_id)
        await self._replace_role(prepare, _BY_REQUEST)

    async def _replace_role(
        self, prepare: Callable[[RunningRole], Awaitable[dict[str, object]]], origin: str
    ) -> None:
        """Stop what runs in the present role, `prepare` another one, and start what runs in it.

        `prepare` returns the settings of the other role. Raises its TianzhouError; then the role is
        the old one.
        """
        async with self._changing:
            core, running = self._core, self._role
            if core is None or running is None:
                raise StoreClosed("the broker is not running")
            core.pipeline.close("the broker changes its role")
            await running.stop_serving(unregister=False)
            values: dict[str, object] = {}
            try:
                values = await prepare(running)
            finally:
                await running.stop_features()
                # A change by request, which is being saved, must not bring the old role back.
                async with self.settings.lock:
                    self.settings.activate(self.settings.prepare_values(values, origin))
                await self._start_role(core)

    async def _prepare_role(
        self, running: RunningRole, role: BrokerRole, broker_id: int
    ) -> dict[str, object]:
        """Save the new role; after an error the old one goes on."""
        config = self.settings.config
        if config.is_slave:
            replication = running.features.replication
            await replication.finish_copies()
            self.topics.begin_epoch(replication.begin_epoch())
            await self.state.save()
        values: dict[str, object] = {"broker_role": role, "broker_id": broker_id}
        changed = self.settings.prepare_values(values, _BY_REQUEST)
        await asyncio.to_thread(save_pairs, config.broker_config_path, changed.pairs)
        if (origin := self.settings.overriding("broker_role")) is not None:
            log.warning(
                "broker %s: its new role is saved in %s, and brokerRole is given by %s, which has "
                "priority: change it there before the next start",
                config.broker_name, config.broker_config_path, origin,
            )  # fmt: skip
        log.warning("broker %s: becomes %s with brokerId %d", config.broker_name, role, broker_id)
        return values

    # -- running -----------------------------------------------------------------------------------

    @property
    def web_port(self) -> int:
        """The port of /metrics and /health, if they are served."""
        return self._role.web_port if self._role else 0

    @property
    def registered_with(self) -> frozenset[str]:
        """The nameservers that know this broker now."""
        return self._role.features.registrar.registered if self._role else frozenset()

    @property
    def request_codes(self) -> frozenset[int]:
        """The request codes that are served; none before the start."""
        return frozenset(HANDLERS) if self._role else frozenset()

    @property
    def replication(self) -> Replication | None:
        """The role in replication; None before the start."""
        return self._role.features.replication if self._role else None

    @property
    def failover(self) -> Failover | None:
        """Automatic failover; None with fixed roles, and before the start."""
        return self._elected.failover if self._elected else None

    async def register(self) -> None:
        """Register with all nameservers now; returns when they have answered."""
        if self._role is not None:
            await self._role.features.registrar.register()

    def clock_moved(self) -> None:
        """Check all deadlines again: a clock that was passed in has jumped."""
        if self._role is not None:
            self._role.features.clock_moved()

    def close_silent(self) -> None:
        """Close the connections of clients that send no heartbeats; done every few seconds."""
        if self._role is not None:
            self._role.features.close_silent()

    # -- stopping ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop in the reverse order; safe after a failed `start` and when stopped already.

        An elected master hands over first.
        """
        if self._elected is not None:
            await self._elected.resign()
        async with self._changing:
            await self._stops.aclose()

    async def _stop_serving(self) -> None:
        running = self._role
        if running is not None:
            await running.stop_serving(unregister=True)

    async def _close(self, server: Server) -> None:
        await server.close(self.settings.config.shutdown_wait_time_seconds)

    async def _stop_features(self) -> None:
        running, self._role = self._role, None
        if running is not None:
            await running.stop_features()
