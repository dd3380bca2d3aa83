"""The settings of a console, fixed when it starts."""

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from tianzhou.errors import ConfigError

DEFAULT_PORT = 8080
SETUP_CODE_MS = 30 * 60_000
"""How long the link of the first start is valid."""


_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


def check_cluster_name(name: str) -> None:
    """Raises ConfigError for a name that cannot be part of an address."""
    if _CLUSTER_NAME.fullmatch(name) is None:
        raise ConfigError(
            f"cluster name {name!r}: use letters, digits, - and _, at most 64 characters"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """One cluster that the console shows."""

    name: str
    """Its name in addresses: /c/NAME."""
    namesrv: str
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    zone: str = ""
    """Time zone in which its days begin; empty: that of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """Login by an OpenID provider, such as Keycloak, Dex or authentik."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    name: str = "OpenID"
    """What the login button says."""
    scopes: str = "openid profile email"
    role_claim: str = ""
    """The claim with a person's groups or roles, such as "groups"; empty: none is used."""
    administrators: tuple[str, ...] = ()
    """Values of the claim that make an administrator."""
    readers: tuple[str, ...] = ()
    """Values of the claim that make a reader; "*" stands for every person of the provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Everything that the command line decides."""

    listen_host: str = "127.0.0.1"
    listen_port: int = DEFAULT_PORT
    clusters: tuple[ClusterSettings, ...] = ()
    data: Path = Path("data/console")
    """Folder of the SQLite database."""
    database: str = ""
    """SQLAlchemy URL; empty: SQLite in `data`."""
    root_path: str = ""
    """Path below which a reverse proxy shows the console, such as /mq."""
    host_names: tuple[str, ...] = ()
    """Names under which browsers may address it, besides the address that it listens on."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    is_https_outside: bool = False
    """Whether browsers use HTTPS although this server does not: a proxy ends TLS."""
    oidc: OidcSettings | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(
                f"--root-path {self.root_path}: write /PATH, without a slash at the end"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both --tls-cert and --tls-key")
        for each in self.trusted_proxies:
            try:
                ipaddress.ip_network(each, strict=False)
            except ValueError as e:
                raise ConfigError(f"--trusted-proxies {each}: {e}") from e

    @property
    def database_url(self) -> str:
        return self.database or f"sqlite:///{(self.data / 'console.db').absolute()}"

    @property
    def is_https(self) -> bool:
        """Whether cookies can be `Secure`."""
        return self.tls_cert is not None or self.is_https_outside

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.listen_host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.listen_host).is_loopback
        except ValueError:
            return False
