"""The quota file: what it may say, and which of its rules is for a name or an address.

    connections: {perBroker: 20000, perAddress: 500}
    inFlight: {unreadBytes: 268435456, unsentBytes: 1073741824, handledBytes: 536870912}
    burstSeconds: 1
    clients:
      - {address: 10.1.2.*, requestsPerSecond: 5000}
    topics:
      - {topic: orders, messagesPerSecond: 1000, bytesPerSecond: 1048576}
      - {topic: "*", messagesPerSecond: 20000}
    groups:
      - {group: "report-*", pullsPerSecond: 50}

Of each list the first rule that matches counts; names take * and ?, addresses what white lists
take. What a rule does not limit is not limited.
"""

import difflib
import fnmatch
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
import yaml

from tianzhou.broker.acl.addresses import parse_host, parse_pattern
from tianzhou.broker.quota.buckets import Rate
from tianzhou.errors import ConfigError

_SIZE_MAX = 4 * 1024 * 1024
_BURST_MAX_S = 3600.0
_REMEMBERED_MAX = 65_536

RuleT = TypeVar("RuleT")


class _Said(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the file; every number in it is above 0."""


class Connections(_Said, frozen=True, kw_only=True):
    """How many may be open."""

    per_broker: int | None = None
    per_address: int | None = None


class InFlight(_Said, frozen=True, kw_only=True):
    """Bytes in memory over all connections."""

    unread_bytes: int | None = None
    unsent_bytes: int | None = None
    handled_bytes: int | None = None


class ClientRule(_Said, frozen=True, kw_only=True):
    """What each address may ask for."""

    address: str
    requests_per_second: float


class TopicRule(_Said, frozen=True, kw_only=True):
    """What each topic may take."""

    topic: str
    messages_per_second: float | None = None
    bytes_per_second: float | None = None


class GroupRule(_Said, frozen=True, kw_only=True):
    """What each group may pull."""

    group: str
    pulls_per_second: float


class QuotaFile(_Said, frozen=True, kw_only=True):
    """The whole file; an empty one limits nothing."""

    connections: Connections = Connections()
    in_flight: InFlight = InFlight()
    burst_seconds: float = 1.0
    clients: list[ClientRule] = []
    topics: list[TopicRule] = []
    groups: list[GroupRule] = []


class _First(Generic[RuleT]):
    """The first of some rules that matches a key; answers are remembered."""

    __slots__ = ("_known", "_matchers")

    def __init__(self, matchers: Iterable[tuple[Callable[[str], bool], RuleT]]) -> None:
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


@dataclass(frozen=True, slots=True)
class TopicRates:
    """The rates of one rule for topics."""

    messages: Rate | None
    size_bytes: Rate | None


@dataclass(frozen=True, slots=True)
class Rules:
    """A file that has been checked, ready for use."""

    connections: Connections
    in_flight: InFlight
    client: _First[Rate]
    """By the host of a peer."""
    topic: _First[TopicRates]
    group: _First[Rate]

    @property
    def count(self) -> int:
        """For people: how many limits there are."""
        said = [
            getattr(part, name)
            for part in (self.connections, self.in_flight)
            for name in part.__struct_fields__
        ]
        rule_count = len(self.client) + len(self.topic) + len(self.group)
        return rule_count + sum(each is not None for each in said)


def make_rules(said: QuotaFile) -> Rules:
    """Raises ConfigError for a number or a pattern that cannot be."""
    burst_s = said.burst_seconds
    if not 0 < burst_s <= _BURST_MAX_S:
        raise ConfigError(f"burstSeconds is {burst_s:g}, above 0 to {_BURST_MAX_S:g} can be")
    for part, where in ((said.connections, "connections"), (said.in_flight, "inFlight")):
        _check_numbers(part, where)
    for where, rules in (
        ("clients", said.clients), ("topics", said.topics), ("groups", said.groups)
    ):  # fmt: skip
        for number, rule in enumerate(rules, 1):
            _check_numbers(rule, f"{where}, rule {number}")
    return Rules(
        said.connections,
        said.in_flight,
        _First(
            (_is_host(rule.address), Rate(rule.requests_per_second, burst_s))
            for rule in said.clients
        ),
        _First(
            (_is_name(rule.topic), TopicRates(
                _rate(rule.messages_per_second, burst_s), _rate(rule.bytes_per_second, burst_s)
            ))
            for rule in said.topics
        ),
        _First(
            (_is_name(rule.group), Rate(rule.pulls_per_second, burst_s)) for rule in said.groups
        ),
    )  # fmt: skip


def _check_numbers(part: _Said, where: str) -> None:
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        # A comparison is false for what is no number, too.
        if isinstance(value, int | float) and not 0 < value < float("inf"):
            raise ConfigError(f"{where}: {field.encode_name} is {value:g}, it must be above 0")


def _rate(per_second: float | None, burst_s: float) -> Rate | None:
    return None if per_second is None else Rate(per_second, burst_s)


def _is_name(pattern: str) -> Callable[[str], bool]:
    if not pattern:
        raise ConfigError("a rule has an empty name")
    matches = re.compile(fnmatch.translate(pattern)).match
    return lambda name: matches(name) is not None


def _is_host(pattern: str) -> Callable[[str], bool]:
    if not pattern.strip():
        raise ConfigError("a rule has an empty address")
    matches = parse_pattern(pattern)

    def is_host(host: str) -> bool:
        address = parse_host(host)
        return address is not None and matches(address)

    return is_host


# -- reading ---------------------------------------------------------------------------------------


def read_rules(path: Path) -> Rules:
    """Raises ConfigError that names the file and, where it can, the line."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            # Reading a pipe could take for ever, and a device would never end.
            raise ConfigError(f"{path}: is no ordinary file")
        if found.st_size > _SIZE_MAX:
            raise ConfigError(f"{path}: larger than {_SIZE_MAX} bytes, which no such file is")
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read: {e}") from e
    try:
        return make_rules(parse_quota(text))
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e


def parse_quota(text: str) -> QuotaFile:
    """Raises ConfigError."""
    try:
        # The base loader leaves every value as text: a topic 12345 is no number.
        data: Any = yaml.load(text, Loader=yaml.CBaseLoader)  # noqa: S506 - it makes text only
    except (yaml.YAMLError, RecursionError) as e:
        raise ConfigError(f"no YAML: {' '.join(str(e).split())}") from e
    if data in (None, ""):
        return QuotaFile()
    _check_names(data, QuotaFile, "the file")
    for name, kind in (
        ("connections", Connections), ("inFlight", InFlight), ("clients", ClientRule),
        ("topics", TopicRule), ("groups", GroupRule),
    ):  # fmt: skip
        part = cast("dict[str, object]", data).get(name)
        parts = cast("list[object]", part) if isinstance(part, list) else [part]
        for each in parts:
            if each not in (None, ""):
                _check_names(each, kind, name)
    try:
        return msgspec.convert(data, QuotaFile, strict=False)
    except msgspec.ValidationError as e:
        raise ConfigError(str(e)) from e


def _check_names(data: object, kind: type[msgspec.Struct], what: str) -> None:
    """A typo must not quietly lift a limit."""
    if not isinstance(data, dict):
        raise ConfigError(f"{what} must be a map of names to values")
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in cast("dict[str, object]", data):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f", meant was perhaps {near[0]}" if near else f", known are {', '.join(known)}"
            raise ConfigError(f"{what}: unknown name {name!r}{hint}")
