"""The nameserver: its components, and the order in which they start and stop.

Start: the KV file, the port, periodic tasks. Stop, in reverse: periodic tasks are cancelled, no
connection is accepted, requests in flight are answered, notices are cancelled. A stop writes
nothing: persistent changes were on disk before they were acknowledged.
"""

import logging
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tianzhou.clock import Clock, steady_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.watched_files import POLL_S
from tianzhou.errors import RemotingError, RequestError
from tianzhou.limits import FILTER_SERVERS_MAX
from tianzhou.names import ORDER_TOPIC_NAMESPACE
from tianzhou.namesrv import dispatch
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.handlers import NamesrvDeps, is_in_service, report_dropped
from tianzhou.namesrv.kv_config import KVConfig
from tianzhou.namesrv.min_broker_id_notices import Notices
from tianzhou.namesrv.registrations import MinIdNotice
from tianzhou.namesrv.registry import Registry, Sizes
from tianzhou.namesrv.route_cache import RouteCache
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Answer, Connection
from tianzhou.remoting.event_loop import Tasks
from tianzhou.remoting.http import Page, WebServer
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.log_rate_limit import LogRateLimit
from tianzhou.remoting.quota.body_limits import check_body
from tianzhou.remoting.quota.tables import TableLimits
from tianzhou.remoting.scheduler import Response, Steps, handle_in_order
from tianzhou.remoting.server import Server
from tianzhou.remoting.tls.settings import client_tls_of, tls_files_of, tls_of, watched_certificates

if TYPE_CHECKING:
    from tianzhou.namesrv.access import Access
    from tianzhou.remoting.quota.control import ClientQuotas
    from tianzhou.remoting.quota.files import ServerRules

log = logging.getLogger(__name__)

_KEEPS_ALIVE = (
    RequestCode.REGISTER_BROKER, RequestCode.BROKER_HEARTBEAT, RequestCode.UNREGISTER_BROKER
)  # fmt: skip


def _open_access(path: Path | None) -> "Access | None":
    if path is None:
        return None
    # Imports the YAML parser, which is needed only with such a file.
    from tianzhou.namesrv.access import Access

    return Access(path)


class NameServer:
    """One nameserver on one event loop; `start` it once, `stop` it once."""

    def __init__(self, settings: LiveSettings[NamesrvConfig], *, clock: Clock = steady_ms) -> None:
        """`clock` is monotonic. Raises ConfigError for a file that cannot be read."""
        self._settings = settings
        config = settings.config
        self._routes = RouteCache(self._route, config.route_cache_size)
        self._table_limits = TableLimits(clock)
        self._registry = Registry(self._routes.forget, self._check_growth)
        self._notices = Notices(client_tls_of(config))
        self._access = _open_access(config.access_file)
        wait_ms = config.wait_seconds_for_service * 1000 if config.need_wait_for_service else 0
        self._deps = NamesrvDeps(
            settings=settings,
            has_accounts=self._access is not None,
            warnings=LogRateLimit(),
            registry=self._registry,
            routes=self._routes,
            kv=KVConfig(config.kv_config_path, self._check_kv),
            clock=clock,
            ready_ms=clock() + wait_ms,
            notify=self._notify,
        )
        self._limits = Limits(idle_ms=config.server_channel_max_idle_time_seconds * 1000)
        self._quotas = self._open_quotas(config.quota_file)
        self._server = Server(
            self._handle,
            limits=self._quotas.limits_by(self._limits) if self._quotas else self._limits,
            tls=tls_of(config),
            on_closed=self._closed,
        )
        self._certificates = watched_certificates(
            tls_files_of(config), self._server.reload_tls, self._notices.reload_tls
        )
        self._tasks = Tasks()
        self._web: WebServer | None = None
        self.web_port = 0
        """Port of /health and /metrics, if they are served."""

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address. Raises RemotingError if it is not available."""
        config = self._settings.config
        address = await self._server.listen(config.bind_address, config.listen_port)
        repeat = self._tasks.repeat
        repeat(self._scan_period_s, self._drop_silent_brokers)
        repeat(self._scan_period_s, self._certificates.poll)
        if config.health_enable:
            await self._serve_pages(config)
        for file in (self._quotas, self._access):
            if file is not None:
                repeat(lambda: POLL_S, file.poll)
        return address

    async def _serve_pages(self, config: NamesrvConfig) -> None:
        # Imports the Prometheus library, which is needed only for this page.
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
        if is_in_service(self._deps):
            return Page(b"ok\n")
        text = b"clients wait until brokers have registered (needWaitForService)\n"
        return Page(text, status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def stop(self) -> None:
        """Answer the requests in flight, then close; safe after a failed `start`."""
        if self._web is not None:
            await self._web.close()
        await self._tasks.cancel()
        await self._server.close(self._settings.config.shutdown_wait_time_seconds)
        await self._notices.close()

    # -- callbacks ----------------------------------------------------------------------

    def _handle(self, connection: Connection, request: Command) -> Answer:
        check_body(request, dispatch.LONGER)
        if self._quotas is not None:
            self._quotas.check_client(connection.peer, request)
        if self._access is None:
            return dispatch.answer(self._deps, connection, request)
        return handle_in_order(
            connection, self._check_and_handle(self._access, connection, request)
        )

    def _check_and_handle(
        self, access: "Access", connection: Connection, request: Command
    ) -> Steps[Response]:
        yield from access.check(connection.peer, request)
        return dispatch.answer(self._deps, connection, request)

    def _closed(self, connection: Connection) -> None:
        self._deps.changes.answer(self._drop_closed(connection))

    def _drop_closed(self, connection: Connection) -> Steps[None]:
        dropped = yield from self._registry.close(connection)
        report_dropped(self._deps, dropped, "its connection was closed")

    def _route(self, topic: str) -> TopicRouteData | None:
        config = self._settings.config
        route = self._registry.route(topic, acting_master=config.support_acting_master)
        if route is None or not config.order_message_enable:
            return route
        order = self._deps.kv.get(ORDER_TOPIC_NAMESPACE, topic)
        return msgspec.structs.replace(route, order_conf=order)

    def _notify(self, notice: MinIdNotice) -> None:
        if self._settings.config.notify_min_broker_id_changed:
            self._notices.send(notice)

    def _check_growth(self, sizes: Sizes, what: str) -> None:
        """Raises RequestError if a table of the registry would exceed its limit."""
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
        """Raises RequestError if the KV configuration would exceed its limit."""
        limit = self._settings.config.max_kv_bytes
        self._table_limits.check("maxKVBytes", limit, size_bytes - 1, what)

    def _open_quotas(self, path: Path | None) -> "ClientQuotas[ServerRules] | None":
        if path is None:
            return None
        # Imports the YAML parser, which is needed only with such a file.
        from tianzhou.remoting.quota.control import ClientQuotas
        from tianzhou.remoting.quota.files import read_server_rules

        return ClientQuotas(
            path, steady_ms, read_server_rules, self._quotas_changed, _KEEPS_ALIVE, "nameserver"
        )

    def _quotas_changed(self, _: "ServerRules") -> None:
        if self._quotas is not None:
            self._server.set_limits(self._quotas.limits_by(self._limits))

    def _scan_period_s(self) -> float:
        return self._settings.config.scan_not_active_broker_interval_ms / 1000

    def _drop_silent_brokers(self) -> None:
        self._deps.changes.answer(self._drop_silent())

    def _drop_silent(self) -> Steps[None]:
        timeout_ms = self._settings.config.broker_channel_expired_time_ms
        for dropped in (yield from self._registry.expire(self._deps.clock(), timeout_ms)):
            report_dropped(self._deps, [dropped], f"silent for {dropped.silent_ms} ms")
            if isinstance(dropped.connection, Connection):
                dropped.connection.close("its broker has been silent for too long")
