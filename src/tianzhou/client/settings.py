"""The settings of all clients, and how keywords become settings.

Clients with equal connection settings share one hub, that is connections, routes and heartbeats.
Producers and consumers add their own settings in subclasses of `ClientSettings`. An unknown keyword
is an error that names the nearest known one.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Any, ClassVar, TypedDict, TypeVar

from tianzhou.errors import AddressError, ConfigError
from tianzhou.names import TRACE_TOPIC
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.command import HeaderEncoding
from tianzhou.remoting.address import format_address, parse_addresses
from tianzhou.remoting.tls.contexts import Tls

DEFAULT_INSTANCE = "DEFAULT"
NAMESRV_VARIABLE = "NAMESRV_ADDR"


class ClientOptions(TypedDict, total=False):
    """The fields of `ClientSettings` as keywords of producers and consumers."""

    namesrv: str
    instance_name: str
    unit_name: str
    unit_mode: bool
    client_ip: str
    namespace: str
    credentials: Credentials | None
    tls: Tls | None
    vip_channel: bool
    header_encoding: HeaderEncoding
    poll_namesrv_ms: int
    heartbeat_ms: int
    persist_offsets_ms: int
    api_timeout_ms: int
    reconnect_min_ms: int
    reconnect_max_ms: int
    trace: bool
    trace_topic: str
    unpacked_bytes_max: int
    telemetry: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings of every client: addresses, identity, security, intervals."""

    # -- addresses ---------------------------------------------------------------------------------
    namesrv: str = ""  # "host:port;host:port"; empty: the environment variable NAMESRV_ADDR
    vip_channel: bool = False  # send to the broker's port - 2, which serves producers only

    # -- identity ----------------------------------------------------------------------------------
    instance_name: str = DEFAULT_INSTANCE  # part of the client id; DEFAULT: process id and a number
    unit_name: str = ""  # further part of the client id
    unit_mode: bool = False  # the client belongs to one unit (region) of several
    client_ip: str = ""  # part of the client id; empty: this machine's address
    namespace: str = ""  # put before the names of topics and groups
    credentials: Credentials | None = None  # every request is signed with them
    tls: Tls | None = None  # None: plain connections

    # -- protocol ----------------------------------------------------------------------------------
    header_encoding: HeaderEncoding = HeaderEncoding.JSON  # of requests; responses have the same
    poll_namesrv_ms: int = 30_000  # interval of route refreshes
    heartbeat_ms: int = 30_000  # interval of heartbeats
    persist_offsets_ms: int = 5_000  # interval of saving consumer offsets
    api_timeout_ms: int = 3_000  # time-out of requests other than sends and pulls
    reconnect_min_ms: int = 50  # back-off after a failed connection, doubled every time
    reconnect_max_ms: int = 250  # up to this
    unpacked_bytes_max: int = 64 * 1024 * 1024  # limit of a decompressed body

    # -- observation -------------------------------------------------------------------------------
    trace: bool = False  # send trace messages, for RocketMQ's trace tools
    trace_topic: str = TRACE_TOPIC
    telemetry: bool = False  # OpenTelemetry spans and metrics; needs opentelemetry-api

    _AT_LEAST_ONE: ClassVar[tuple[str, ...]] = (
        "poll_namesrv_ms", "heartbeat_ms", "persist_offsets_ms", "api_timeout_ms",
        "reconnect_min_ms", "reconnect_max_ms", "unpacked_bytes_max",
    )  # fmt: skip

    _OF_EACH_CLIENT: ClassVar[frozenset[str]] = frozenset((
        "vip_channel", "unit_mode", "namespace", "persist_offsets_ms", "unpacked_bytes_max",
        "trace", "trace_topic", "telemetry",
    ))  # fmt: skip
    """Settings of the single client, which do not prevent sharing a hub."""

    def __post_init__(self) -> None:
        """Raises ConfigError for invalid values."""
        _check_types(self)
        _addresses(self.namesrv, "namesrv")
        require_positive(self, ClientSettings._AT_LEAST_ONE)

    def namesrv_addresses(self) -> tuple[str, ...]:
        """The addresses of the nameservers. Raises ConfigError if there is none."""
        addresses = _addresses(self.namesrv, "namesrv") or _addresses(
            os.environ.get(NAMESRV_VARIABLE, ""), f"environment {NAMESRV_VARIABLE}"
        )
        if not addresses:
            raise ConfigError(f"no nameserver: give namesrv='host:9876' or set {NAMESRV_VARIABLE}")
        return addresses

    def shared(self) -> "ClientSettings":
        """The settings of the hub; clients for which they are equal share one.

        Raises ConfigError if there is no nameserver.
        """
        names = {field.name for field in dataclasses.fields(ClientSettings)}
        own = {name: getattr(self, name) for name in names - ClientSettings._OF_EACH_CLIENT}
        # The same nameservers in another order are the same cluster.
        own["namesrv"] = ";".join(sorted(self.namesrv_addresses()))
        return ClientSettings(**own)


def _check_types(settings: ClientSettings) -> None:
    """Raises ConfigError for a value of the wrong type."""
    for field in dataclasses.fields(settings):
        value, kind = getattr(settings, field.name), field.type
        kind = int | float if kind is float else kind
        if not _fits(value, kind):
            raise ConfigError(f"{field.name} is {value!r}; it must be {_wanted(field.name, kind)}")


def _fits(value: object, kind: object) -> bool:
    if not isinstance(kind, type | UnionType):
        return True  # a Literal or a Callable, which is checked elsewhere
    try:
        return isinstance(value, kind)
    except TypeError:  # a union with one of those
        return True


def _wanted(name: str, kind: object) -> str:
    if name == "namesrv":
        return "a string such as '127.0.0.1:9876', or '' for the environment variable NAMESRV_ADDR"
    return _KINDS.get(kind) or getattr(kind, "__name__", None) or _union_text(str(kind))


def _union_text(text: str) -> str:
    """ "Tls | None" of a union of classes, without their modules."""
    return " | ".join(part.rpartition(".")[2] for part in text.split(" | "))


_KINDS: dict[object, str] = {
    str: "a string",
    int: "a whole number",
    bool: "True or False",
    int | float: "a number",
}


def _addresses(text: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(format_address(*each) for each in parse_addresses(text))
    except AddressError as e:
        raise ConfigError(f"{where}: {e}") from e


def nearest_hint(name: str, known: Sequence[str]) -> str:
    """The end of an error message about an unknown name."""
    nearest = get_close_matches(name, known, n=1, cutoff=0.5)
    return f", did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(known)}"


S = TypeVar("S", bound=ClientSettings)


def require_positive(settings: ClientSettings, names: tuple[str, ...]) -> None:
    """Raises ConfigError for a number below 1."""
    for name in names:
        if getattr(settings, name) < 1:
            raise ConfigError(f"{name} is {getattr(settings, name)}, at least 1 is needed")


def settings_from(kind: type[S], base: ClientSettings | None, options: Mapping[str, Any]) -> S:
    """Settings of a class: the values of `base`, overridden by `options`.

    Raises ConfigError for unknown names and invalid values.
    """
    known = [field.name for field in dataclasses.fields(kind)]
    for name in options:
        if name not in known:
            raise ConfigError(f"unknown setting {name}{nearest_hint(name, known)}")
    values = {name: getattr(base, name) for name in known if hasattr(base, name)} if base else {}
    return kind(**values | dict(options))
