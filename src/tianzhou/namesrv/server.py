"""The nameserver as a program: its parts, and the order in which they start and stop.

Start: the KV file, the port, the regular scan. Stop, in reverse: no more scans, no more
connections, answers under way leave, notices end. Nothing is written at the end: what must survive
was on disk before it was answered.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tianzhou.clock import Clock, steady_ms
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RemotingError, RequestError
from tianzhou.limits import FILTER_SERVERS_MAX
from tianzhou.names import ORDER_TOPIC_NAMESPACE
from tianzhou.namesrv import dispatch
from tianzhou.namesrv.body_limits import LONGER
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.config_requests import fixed_keys
from tianzhou.namesrv.handlers import Parts, change_registry, is_in_service, tell_dropped
from tianzhou.namesrv.kv_config import KVConfig
from tianzhou.namesrv.min_broker_id_notices import Notices
from tianzhou.namesrv.registrations import MinIdNotice
from tianzhou.namesrv.registry import Registry, Sizes
from tianzhou.namesrv.route_cache import RouteCache
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Answer, Connection
from tianzhou.remoting.http import Page, WebServer
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.log_rate_limit import LogRateLimit
from tianzhou.remoting.quota.bodies import check_body
from tianzhou.remoting.quota.tables import TableLimits
from tianzhou.remoting.server import Server
from tianzhou.remoting.sliced_requests import Response, handle_in_order
from tianzhou.remoting.slices import Steps
from tianzhou.remoting.tls.renewal import Renewal
from tianzhou.remoting.tls.settings import client_tls_of, tls_files_of, tls_of

if TYPE_CHECKING:
    from tianzhou.namesrv.access import Access
    from tianzhou.remoting.quota.control import ClientQuotas
    from tianzhou.remoting.quota.files import ServerRules

log = logging.getLogger(__name__)

QUOTA_LOOK_S = ACCESS_LOOK_S = 0.25
"""How often these files are looked at, so that a change counts within half a second."""
_KEEPS_ALIVE = (
    RequestCode.REGISTER_BROKER, RequestCode.BROKER_HEARTBEAT, RequestCode.UNREGISTER_BROKER
)  # fmt: skip


def _open_access(path: Path | None) -> "Access | None":
    if path is None:
        return None
    # Only a nameserver with such a file needs a reader of YAML.
    from tianzhou.namesrv.access import Access

    return Access(path)


class NameServer:
    """One nameserver on one event loop; `start` it once, `stop` it once."""

    def __init__(self, settings: LiveSettings[NamesrvConfig], *, clock: Clock = steady_ms) -> None:
        """`clock` is a steady one. Raises ConfigError for a file that cannot be read."""
        self._settings = settings
        config = settings.config
        self._routes = RouteCache(self._route, config.route_cache_size)
        self._table_limits = TableLimits(clock)
        self._registry = Registry(self._routes.forget, self._check_growth)
        self._notices = Notices(client_tls_of(config))
        self._access = _open_access(config.access_file)
        wait_ms = config.wait_seconds_for_service * 1000 if config.need_wait_for_service else 0
        self._parts = Parts(
            settings=settings,
            settings_lock=asyncio.Lock(),
            fixed_keys=fixed_keys(config),
            has_accounts=self._access is not None,
            warnings=LogRateLimit(),
            registry=self._registry,
            routes=self._routes,
            kv=KVConfig(config.kv_config_path, self._check_kv),
            clock=clock,
            ready_ms=clock() + wait_ms,
            tell=self._tell,
        )
        self._limits = Limits(idle_ms=config.server_channel_max_idle_time_seconds * 1000)
        self._quotas = self._open_quotas(config.quota_file)
        self._server = Server(
            self._handle,
            limits=self._quotas.limits_by(self._limits) if self._quotas else self._limits,
            tls=tls_of(config),
            on_closed=self._closed,
        )
        self._certificates = Renewal(
            tls_files_of(config), self._server.reload_tls, self._notices.reload_tls
        )
        self._background: list[asyncio.Task[None]] = []
        self._web: WebServer | None = None
        self.web_port = 0
        """Of /health and /metrics, if they are served."""

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address. Raises RemotingError if it cannot be had."""
        config = self._settings.config
        address = await self._server.listen(config.bind_address, config.listen_port)
        self._background = [asyncio.create_task(self._scan_regularly())]
        if config.health_enable:
            await self._serve_pages(config)
        if self._quotas is not None:
            look = self._look_at(self._quotas.look, QUOTA_LOOK_S)
            self._background.append(asyncio.create_task(look))
        if self._access is not None:
            look = self._look_at(self._access.look, ACCESS_LOOK_S)
            self._background.append(asyncio.create_task(look))
        return address

    async def _serve_pages(self, config: NamesrvConfig) -> None:
        # Only a nameserver that serves it needs the library.
        from tianzhou.namesrv.metrics import metrics_page

        def metrics() -> Page:
            return metrics_page(
                self._registry.sizes,
                self._table_limits.refused,
                self._quotas.refused if self._quotas else {},
                self._access.refused_count if self._access else 0,
            )

        self._web = WebServer({"/health": self._health, "/metrics": metrics})
        try:
            host = config.health_host or config.bind_address
            self.web_port = await self._web.listen(host, config.health_port)
        except RemotingError as e:
            raise RemotingError(f"/health cannot be served (healthHost, healthPort): {e}") from e
        log.info("serving /health and /metrics on port %d", self.web_port)

    def _health(self) -> Page:
        if is_in_service(self._parts):
            return Page(b"ok\n")
        text = b"clients wait until brokers have registered (needWaitForService)\n"
        return Page(text, status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def stop(self) -> None:
        """Answer what is under way, then close; safe after a failed `start`."""
        if self._web is not None:
            await self._web.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._server.close(self._settings.config.shutdown_wait_time_seconds)
        await self._notices.close()

    # -- what the parts call ----------------------------------------------------------------------

    def _handle(self, connection: Connection, request: Command) -> Answer:
        check_body(request, LONGER)
        if self._quotas is not None:
            self._quotas.check_client(connection.peer, request)
        if self._access is None:
            return dispatch.answer(self._parts, connection, request)
        return handle_in_order(
            connection, self._check_and_handle(self._access, connection, request)
        )

    def _check_and_handle(
        self, access: "Access", connection: Connection, request: Command
    ) -> Steps[Response]:
        yield from access.check(connection.peer, request)
        return dispatch.answer(self._parts, connection, request)

    def _closed(self, connection: Connection) -> None:
        change_registry(self._parts, self._forget_closed(connection))

    def _forget_closed(self, connection: Connection) -> Steps[None]:
        dropped = yield from self._registry.close(connection)
        tell_dropped(self._parts, dropped, "its connection has ended")

    def _route(self, topic: str) -> TopicRouteData | None:
        config = self._settings.config
        route = self._registry.route(topic, acting_master=config.support_acting_master)
        if route is None or not config.order_message_enable:
            return route
        order = self._parts.kv.get(ORDER_TOPIC_NAMESPACE, topic)
        return msgspec.structs.replace(route, order_conf=order)

    def _tell(self, notice: MinIdNotice) -> None:
        if self._settings.config.notify_min_broker_id_changed:
            self._notices.send(notice)

    def _check_growth(self, sizes: Sizes, what: str) -> None:
        """Raises RequestError if the registry must not become so large."""
        config, text = self._settings.config, f"{what} cannot be registered"
        for setting, limit, size, things in (
            ("maxBrokers", config.max_brokers, sizes.brokers, "brokers"),
            ("maxTopics", config.max_topics, sizes.topics, "topics"),
            ("maxRoutes", config.max_routes, sizes.routes, "topics of brokers"),
        ):
            self._table_limits.check(setting, limit, size - 1, f"{text}, too many {things}")
        if sizes.filter_servers > FILTER_SERVERS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{text}: it names {sizes.filter_servers} filter servers, {FILTER_SERVERS_MAX} are "
                f"possible",
            )

    def _check_kv(self, size_bytes: int, what: str) -> None:
        """Raises RequestError if the KV configuration must not become so large."""
        limit = self._settings.config.max_kv_bytes
        self._table_limits.check("maxKVBytes", limit, size_bytes - 1, what)

    def _open_quotas(self, path: Path | None) -> "ClientQuotas[ServerRules] | None":
        if path is None:
            return None
        # Only who has quotas needs a reader of YAML.
        from tianzhou.remoting.quota.control import ClientQuotas
        from tianzhou.remoting.quota.files import read_server_rules

        return ClientQuotas(
            path, steady_ms, read_server_rules, self._quotas_changed, _KEEPS_ALIVE, "nameserver"
        )

    def _quotas_changed(self, _: "ServerRules") -> None:
        if self._quotas is not None:
            self._server.adopt(self._quotas.limits_by(self._limits))

    async def _look_at(self, look: Callable[[], None], period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            look()

    async def _scan_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.config.scan_not_active_broker_interval_ms / 1000)
            self._drop_silent_brokers()
            self._certificates.look()

    def _drop_silent_brokers(self) -> None:
        change_registry(self._parts, self._forget_silent())

    def _forget_silent(self) -> Steps[None]:
        timeout_ms = self._settings.config.broker_channel_expired_time_ms
        for dropped in (yield from self._registry.expire(self._parts.clock(), timeout_ms)):
            tell_dropped(self._parts, [dropped], f"silent for {dropped.silent_ms} ms")
            if isinstance(dropped.connection, Connection):
                dropped.connection.close("its broker has been silent for too long")
