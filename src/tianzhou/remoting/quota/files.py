"""The quota file of a server: limits of connections and clients.

    connections: {perServer: 20000, perAddress: 500}
    inFlight: {unreadBytes: 268435456, unsentBytes: 1073741824, handledBytes: 536870912}
    burstSeconds: 1
    clients:
      - {address: 10.1.2.*, requestsPerSecond: 5000}

The first matching rule of a list applies; addresses have the patterns of white lists. Anything
without a limit is not limited. A broker's file has further sections (`broker/quota/rules`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from tianzhou.config.yaml_files import check_names, parse_yaml, read_text
from tianzhou.errors import ConfigError
from tianzhou.remoting.quota.addresses import parse_host, parse_pattern
from tianzhou.remoting.quota.buckets import Rate

_SIZE_MAX = 4 * 1024 * 1024
_BURST_MAX_S = 3600.0
_CACHED_MAX = 65_536

RuleT = TypeVar("RuleT")
FileT = TypeVar("FileT", bound="ServerQuotaFile")


class QuotaSection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A section of the file; every number in it is above 0."""


class Connections(QuotaSection, frozen=True, kw_only=True):
    """The number of open connections."""

    per_server: int | None = None
    per_broker: int | None = None
    """The same, in the file of a broker."""
    per_address: int | None = None


class InFlight(QuotaSection, frozen=True, kw_only=True):
    """Bytes in memory over all connections."""

    unread_bytes: int | None = None
    unsent_bytes: int | None = None
    handled_bytes: int | None = None


class ClientRule(QuotaSection, frozen=True, kw_only=True):
    """The limit of each matching address."""

    address: str
    requests_per_second: float


class ServerQuotaFile(QuotaSection, frozen=True, kw_only=True):
    """The whole file; an empty one limits nothing."""

    connections: Connections = Connections()
    in_flight: InFlight = InFlight()
    burst_seconds: float = 1.0
    clients: list[ClientRule] = []


SECTIONS: Mapping[str, type[QuotaSection]] = {
    "connections": Connections, "inFlight": InFlight, "clients": ClientRule
}  # fmt: skip
"""The class of each section."""


class First(Generic[RuleT]):
    """Finds the first rule that matches a key; results are cached."""

    __slots__ = ("_cached", "_matchers")

    def __init__(self, matchers: Iterable[tuple[Callable[[str], bool], RuleT]] = ()) -> None:
        self._matchers = list(matchers)
        self._cached: dict[str, RuleT | None] = {}

    def __len__(self) -> int:
        return len(self._matchers)

    def __call__(self, key: str) -> RuleT | None:
        if not self._matchers:
            return None
        try:
            return self._cached[key]
        except KeyError:
            pass
        if len(self._cached) >= _CACHED_MAX:
            self._cached.clear()
        first = next((rule for matches, rule in self._matchers if matches(key)), None)
        self._cached[key] = first
        return first


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRules:
    """A file that has been checked, ready for use."""

    connections: Connections
    in_flight: InFlight
    client: First[Rate]
    """By the host of a peer."""

    @property
    def count(self) -> int:
        """The number of limits, for the log."""
        values = [
            getattr(section, name)
            for section in (self.connections, self.in_flight)
            for name in section.__struct_fields__
        ]
        return sum(map(len, self.lists)) + sum(each is not None for each in values)

    @property
    def lists(self) -> tuple[First[Any], ...]:
        """All lists of rules."""
        return (self.client,)


def make_server_rules(quota_file: ServerQuotaFile) -> ServerRules:
    """Raises ConfigError for an invalid number or pattern."""
    burst_s = quota_file.burst_seconds
    if not 0 < burst_s <= _BURST_MAX_S:
        raise ConfigError(f"burstSeconds is {burst_s:g}, above 0 to {_BURST_MAX_S:g} can be")
    connections, in_flight = quota_file.connections, quota_file.in_flight
    check_numbers(connections, "connections")
    check_numbers(in_flight, "inFlight")
    check_all_numbers(quota_file.clients, "clients")
    clients = (
        (_is_host(rule.address), Rate(rule.requests_per_second, burst_s))
        for rule in quota_file.clients
    )
    return ServerRules(connections=connections, in_flight=in_flight, client=First(clients))


def check_all_numbers(rules: Iterable[QuotaSection], where: str) -> None:
    """Raises ConfigError for an invalid number."""
    for number, rule in enumerate(rules, 1):
        check_numbers(rule, f"{where}, rule {number}")


def check_numbers(section: QuotaSection, where: str) -> None:
    """Raises ConfigError for an invalid number."""
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        # Written so that NaN is refused, too.
        if isinstance(value, int | float) and not 0 < value < float("inf"):
            raise ConfigError(f"{where}: {field.encode_name} is {value:g}, it must be above 0")


def _is_host(pattern: str) -> Callable[[str], bool]:
    if not pattern.strip():
        raise ConfigError("a rule has an empty address")
    matches = parse_pattern(pattern)

    def is_host(host: str) -> bool:
        address = parse_host(host)
        return address is not None and matches(address)

    return is_host


# -- reading ---------------------------------------------------------------------------------------


def read_server_rules(path: Path) -> ServerRules:
    """The rules of a server without topics. Raises ConfigError that names the file."""
    return read_quota(
        path, lambda text: make_server_rules(parse_quota(text, ServerQuotaFile, SECTIONS))
    )


def read_quota(path: Path, parse: Callable[[str], RuleT]) -> RuleT:
    """The rules of a file. Raises ConfigError that names it and, if known, the line."""
    text = read_text(path, _SIZE_MAX)
    try:
        return parse(text)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e


def parse_quota(text: str, kind: type[FileT], sections: Mapping[str, type[QuotaSection]]) -> FileT:
    """Raises ConfigError."""
    data: Any = parse_yaml(text)
    if data is None:
        return kind()
    check_names(data, kind, "the file")
    for name, section_kind in sections.items():
        section = cast("dict[str, object]", data).get(name)
        members = cast("list[object]", section) if isinstance(section, list) else [section]
        for each in members:
            if each not in (None, ""):
                check_names(each, section_kind, name)
    try:
        return msgspec.convert(data, kind, strict=False)
    except msgspec.ValidationError as e:
        raise ConfigError(str(e)) from e
