"""The quota file of a server: what it may say of connections and clients.

    connections: {perServer: 20000, perAddress: 500}
    inFlight: {unreadBytes: 268435456, unsentBytes: 1073741824, handledBytes: 536870912}
    burstSeconds: 1
    clients:
      - {address: 10.1.2.*, requestsPerSecond: 5000}

Of each list the first rule that matches counts; addresses are what white lists take. What a rule
does not limit is not limited. A broker's file says more (`broker/quota/rules`).
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
_REMEMBERED_MAX = 65_536

RuleT = TypeVar("RuleT")
FileT = TypeVar("FileT", bound="ServerQuotaFile")


class Said(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the file; every number in it is above 0."""


class Connections(Said, frozen=True, kw_only=True):
    """How many may be open."""

    per_server: int | None = None
    per_broker: int | None = None
    """The same, in the file of a broker."""
    per_address: int | None = None


class InFlight(Said, frozen=True, kw_only=True):
    """Bytes in memory over all connections."""

    unread_bytes: int | None = None
    unsent_bytes: int | None = None
    handled_bytes: int | None = None


class ClientRule(Said, frozen=True, kw_only=True):
    """What each address may ask for."""

    address: str
    requests_per_second: float


class ServerQuotaFile(Said, frozen=True, kw_only=True):
    """The whole file; an empty one limits nothing."""

    connections: Connections = Connections()
    in_flight: InFlight = InFlight()
    burst_seconds: float = 1.0
    clients: list[ClientRule] = []


PARTS: Mapping[str, type[Said]] = {
    "connections": Connections, "inFlight": InFlight, "clients": ClientRule
}  # fmt: skip
"""What stands under each name."""


class First(Generic[RuleT]):
    """The first of some rules that matches a key; answers are remembered."""

    __slots__ = ("_known", "_matchers")

    def __init__(self, matchers: Iterable[tuple[Callable[[str], bool], RuleT]] = ()) -> None:
        self._matchers = list(matchers)
        self._known: dict[str, RuleT | None] = {}

    def __len__(self) -> int:
        return len(self._matchers)

    def __call__(self, key: str) -> RuleT | None:
        if not self._matchers:
            return None
        try:
            return self._known[key]
        except KeyError:
            pass
        if len(self._known) >= _REMEMBERED_MAX:
            self._known.clear()
        found = next((rule for matches, rule in self._matchers if matches(key)), None)
        self._known[key] = found
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRules:
    """A file that has been checked, ready for use."""

    connections: Connections
    in_flight: InFlight
    client: First[Rate]
    """By the host of a peer."""

    @property
    def count(self) -> int:
        """For people: how many limits there are."""
        said = [
            getattr(part, name)
            for part in (self.connections, self.in_flight)
            for name in part.__struct_fields__
        ]
        return sum(map(len, self.lists)) + sum(each is not None for each in said)

    @property
    def lists(self) -> tuple[First[Any], ...]:
        """All that are lists of rules."""
        return (self.client,)


def make_server_rules(said: ServerQuotaFile) -> ServerRules:
    """Raises ConfigError for a number or a pattern that cannot be."""
    burst_s = said.burst_seconds
    if not 0 < burst_s <= _BURST_MAX_S:
        raise ConfigError(f"burstSeconds is {burst_s:g}, above 0 to {_BURST_MAX_S:g} can be")
    for part, where in ((said.connections, "connections"), (said.in_flight, "inFlight")):
        check_numbers(part, where)
    check_all_numbers(said.clients, "clients")
    clients = (
        (_is_host(rule.address), Rate(rule.requests_per_second, burst_s)) for rule in said.clients
    )
    return ServerRules(
        connections=said.connections, in_flight=said.in_flight, client=First(clients)
    )


def check_all_numbers(rules: Iterable[Said], where: str) -> None:
    """Raises ConfigError for a number that cannot be."""
    for number, rule in enumerate(rules, 1):
        check_numbers(rule, f"{where}, rule {number}")


def check_numbers(part: Said, where: str) -> None:
    """Raises ConfigError for a number that cannot be."""
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        # A comparison is false for what is no number, too.
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
    """The rules of a server that has no topics. Raises ConfigError that names the file."""
    return read_quota(
        path, lambda text: make_server_rules(parse_quota(text, ServerQuotaFile, PARTS))
    )


def read_quota(path: Path, parse: Callable[[str], RuleT]) -> RuleT:
    """The rules of a file. Raises ConfigError that names it and, where it can, the line."""
    text = read_text(path, _SIZE_MAX)
    try:
        return parse(text)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e


def parse_quota(text: str, kind: type[FileT], parts: Mapping[str, type[Said]]) -> FileT:
    """Raises ConfigError."""
    data: Any = parse_yaml(text)
    if data is None:
        return kind()
    check_names(data, kind, "the file")
    for name, part_kind in parts.items():
        part = cast("dict[str, object]", data).get(name)
        members = cast("list[object]", part) if isinstance(part, list) else [part]
        for each in members:
            if each not in (None, ""):
                check_names(each, part_kind, name)
    try:
        return msgspec.convert(data, kind, strict=False)
    except msgspec.ValidationError as e:
        raise ConfigError(str(e)) from e
