"""A running console: database, clusters, HTTP server; from start to stop."""

import asyncio
import contextlib
import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import uvicorn
from sqlalchemy import Connection
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tianzhou.admin import Admin
from tianzhou.admin.requests import TIMEOUT_MS as ADMIN_TIMEOUT_MS
from tianzhou.console import app
from tianzhou.console.accounts import audit, people, setup_codes
from tianzhou.console.accounts.oidc import Provider
from tianzhou.console.accounts.passwords import problem_of
from tianzhou.console.collecting import Collectors
from tianzhou.console.jobs.kinds import KINDS
from tianzhou.console.jobs.worker import Worker
from tianzhou.console.settings import SETUP_CODE_MS, ClusterSettings, ConsoleSettings
from tianzhou.console.tables import ConsoleDatabase
from tianzhou.console.web.ask import Console
from tianzhou.errors import ConfigError, DatabaseUnavailable
from tianzhou.protocol.acl import Credentials
from tianzhou.remoting.address import format_address, is_every_interface
from tianzhou.remoting.sockets import listening
from tianzhou.remoting.tls.contexts import Tls

log = logging.getLogger(__name__)

_CONNECTIONS_MAX = 512
_KEEP_ALIVE_S = 30
_STOP_S = 5
_BACKLOG = 128
_EXPIRE_S = 3600.0


class _Server(uvicorn.Server):
    """Without handlers of signals: the program that runs the console has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class ConsoleServer:
    """The console from `start` to `stop`."""

    def __init__(
        self, settings: ConsoleSettings, *, admin_mail: str = "", admin_password: str = ""
    ) -> None:
        """The account is made at the first start, instead of the link. Raises ConfigError."""
        self.settings = settings
        self._first_admin = (admin_mail, admin_password)
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._expiring: asyncio.Task[None] | None = None
        self._collectors: Collectors | None = None
        self.console: Console | None = None
        self.setup_url = ""
        """The one-time link, if there are no people yet."""
        self.url = ""

    async def start(self) -> tuple[str, int]:
        """Open the database and listen; returns the address. Raises ConfigError, RemotingError."""
        settings = self.settings
        database = ConsoleDatabase(settings.database_url)
        console = self.console = Console(settings=settings, database=database)
        if settings.oidc is not None:
            console.provider = Provider(settings.oidc)
        code = await self._first_start(console)
        self._collectors = Collectors(console, open_admin)
        await self._collectors.start()
        sockets = await listening(settings.listen_host, settings.listen_port, _BACKLOG)
        port = int(sockets[0].getsockname()[1])
        config = uvicorn.Config(
            outer(app.build(console), settings),
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        try:
            config.load()
        except OSError as e:
            for bound in sockets:
                bound.close()
            raise ConfigError(f"--tls-cert {settings.tls_cert} cannot be used: {e}") from e
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets))
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110 - its own flag
            await asyncio.sleep(0.01)
        if self._serving.done():
            await self._serving
            raise ConfigError("the web server of the console did not start; its log has the reason")
        self._expiring = asyncio.create_task(_expire(console), name="console-expiry")
        self._worker = asyncio.create_task(Worker(console, KINDS).run(), name="console-jobs")
        self.url = self._url(port)
        if code:
            self.setup_url = f"{self.url}/setup/{code}"
        if not settings.is_https and not settings.is_loopback:
            log.warning(
                "the console listens on %s without TLS: passwords and cookies can be read on the "
                "way; pass --tls-cert and --tls-key, or put a proxy with TLS in front of it",
                format_address(settings.listen_host, port),
            )
        return settings.listen_host, port

    async def stop(self) -> None:
        """Finish open requests, then close; safe after a failed `start`."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)
        for task in (self._worker, self._expiring):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._collectors is not None:
            await self._collectors.stop()
        if self.console is not None:
            await self.console.answers.close()
            await asyncio.to_thread(self.console.database.close)

    async def _first_start(self, console: Console) -> str:
        """The code of the set-up link; empty if there are people. Raises ConfigError."""
        mail, password = self._first_admin
        now_ms = console.now_ms()
        if await console.database.read(people.count):
            return ""
        if mail and password:
            problem = problem_of(password, mail)
            if problem is not None:
                raise ConfigError(f"TIANZHOU_CONSOLE_PASSWORD: {problem}")
            hashed = await console.passwords.hashed(password)
            await console.database.write(
                lambda each: people.add(each, mail, now_ms, mail=mail, password=hashed, is_admin=1)
            )
            return ""

        def make(connection: Connection) -> str:
            if not self.settings.is_loopback and setup_codes.is_expired(connection, now_ms):
                raise ConfigError(
                    "the link of an earlier start was not used within 30 minutes, and the console "
                    "is to listen for other machines: add an administrator first, with "
                    "`tianzhou console user add LOGIN --admin`, or start it on 127.0.0.1"
                )
            return setup_codes.make(connection, now_ms, SETUP_CODE_MS)

        return await console.database.write(make)

    def _url(self, port: int) -> str:
        settings = self.settings
        scheme = "https" if settings.tls_cert is not None else "http"
        host = settings.listen_host
        if settings.host_names:
            host = settings.host_names[0]
        elif is_every_interface(host):
            host = "127.0.0.1"
        return f"{scheme}://{format_address(host, port)}{settings.root_path}"


async def _expire(console: Console) -> None:
    """Delete old rows of the audit log, at the start and every hour."""
    while True:
        try:
            await console.database.write(lambda each: audit.expire(each, console.now_ms()))
        except DatabaseUnavailable as e:
            log.debug("old rows of the audit log stay for now: %s", e)
        await asyncio.sleep(_EXPIRE_S)


def open_admin(cluster: ClusterSettings, timeout_ms: int = ADMIN_TIMEOUT_MS) -> Admin:
    """The admin client of a cluster. Raises AddressError, ConfigError."""
    account = None
    if cluster.access_key is not None and cluster.secret_key is not None:
        account = Credentials(cluster.access_key, cluster.secret_key)
    tls = None
    if cluster.tls:
        tls = Tls(
            certificate=_path(cluster.tls_cert), key=_path(cluster.tls_key),
            trusted=_path(cluster.tls_ca),
        )  # fmt: skip
    return Admin(cluster.namesrv, timeout_ms=timeout_ms, credentials=account, tls=tls)


def outer(application: ASGIApp, settings: ConsoleSettings) -> ASGIApp:
    """The application behind trusted proxies; addresses of IPv4 peers are written as such."""
    # uvicorn has types of its own for the same protocol.
    inner: Any = application
    if settings.trusted_proxies:
        inner = ProxyHeadersMiddleware(inner, list(settings.trusted_proxies))

    async def with_plain_address(scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if client is not None:
            scope["client"] = (str(client[0]).removeprefix("::ffff:"), client[1])
        await inner(scope, receive, send)

    return with_plain_address


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
