"""Endpoints of etcd as text: "http://etcd1:2379;https://10.0.0.2:2379"."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tianzhou.errors import ConfigError
from tianzhou.limits import ETCD_ENDPOINTS_MAX
from tianzhou.remoting.address import format_address
from tianzhou.remoting.tls.contexts import Tls

DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a member listens for clients."""

    host: str
    port: int
    is_tls: bool

    @property
    def authority(self) -> str:
        """As in the header Host."""
        return format_address(self.host, self.port)

    def __str__(self) -> str:
        return f"http{'s' if self.is_tls else ''}://{self.authority}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAccess:
    """How etcd is reached."""

    endpoints: tuple[Endpoint, ...]
    user: str = ""
    """Empty: no login."""
    password: str = field(default="", repr=False)
    tls: Tls = Tls()  # noqa: RUF009 - frozen
    """For https: the certificate authorities to trust, and an own certificate."""


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """The distinct endpoints of a list separated by ';' or ','. Raises ConfigError."""
    parts = [part.strip() for part in text.replace(",", ";").split(";")]
    endpoints = tuple(dict.fromkeys(_parse(part) for part in parts if part))
    if not endpoints:
        raise ConfigError(
            "haEtcdEndpoints is empty; write http://host:2379, separated by ';' for several"
        )
    if len(endpoints) > ETCD_ENDPOINTS_MAX:
        count = len(endpoints)
        raise ConfigError(f"haEtcdEndpoints has {count} endpoints, at most {ETCD_ENDPOINTS_MAX}")
    if len({endpoint.is_tls for endpoint in endpoints}) > 1:
        raise ConfigError("haEtcdEndpoints mixes http:// and https://: one cluster has either")
    return endpoints


def _parse(text: str) -> Endpoint:
    example = "; write http://host:2379 or https://host:2379"
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError as error:
        raise ConfigError(f"haEtcdEndpoints: {text!r}: {error}{example}") from error
    if url.scheme not in ("http", "https") or not host:
        raise ConfigError(f"haEtcdEndpoints: {text!r} is no address of etcd{example}")
    if url.username is not None or url.password is not None:
        # Without the text, as it has a password.
        raise ConfigError(
            f"haEtcdEndpoints: the endpoint of {host} has a user or password: use haEtcdUser and "
            "haEtcdPassword"
        )
    if url.path not in ("", "/") or url.query or url.fragment:
        raise ConfigError(f"haEtcdEndpoints: {text!r} has a path{example}")
    if any(character.isspace() or ord(character) < 33 for character in host):
        raise ConfigError(f"haEtcdEndpoints: {text!r}: {host!r} is no host name{example}")
    return Endpoint(host, DEFAULT_PORT if port is None else port, url.scheme == "https")
