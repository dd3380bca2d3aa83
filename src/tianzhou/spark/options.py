"""Options of the sources and sinks: typed, validated, case-insensitive.

Spark passes options in lower case. A class of options is a frozen dataclass (without slots, which
multiple inheritance rules out); the option of field `name_server` is `nameServer`. An unknown
option is an error that names the closest known one, and an unreadable value is an error, too.
Secrets appear neither in errors nor in logs.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec

from tianzhou.client.queues import Queue
from tianzhou.client.settings import ClientSettings
from tianzhou.errors import ConfigError
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.properties import KEY_SEPARATOR
from tianzhou.remoting.tls.contexts import Tls
from tianzhou.spark import push_down as pushdown

O = TypeVar("O")  # noqa: E741 - the class of options

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d|)", re.ASCII)
_DURATION_MS = {"ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_DURATION_MS["d"] = 24 * _DURATION_MS["h"]
_TRIGGER_DELAY_MS = 15 * _DURATION_MS["m"]
_SIZE = re.compile(r"(\d+)\s*([kmg]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_SIZE_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_STREAM_ONLY = (
    "commit_offsets", "max_offsets_per_trigger", "min_offsets_per_trigger",
    "max_bytes_per_trigger", "max_trigger_delay",
)  # fmt: skip
_NAMED_OFFSETS = ("earliest", "latest", "committed")
_ASSIGN = dict[str, dict[str, list[Annotated[int, msgspec.Meta(ge=0)]]]]
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


# -- reading ---------------------------------------------------------------------------------------


def option_name(field_name: str) -> str:
    """`name_server` is written `nameServer`."""
    head, *rest = field_name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def read_options(kind: type[O], given: Mapping[str, str]) -> O:
    """The options of a class from those that Spark passes. Raises ConfigError."""
    fields = {option_name(field.name): field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # every class of options is a dataclass
    names = {name.lower(): name for name in fields}
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    for key, text in given.items():
        name = names.get(key.lower())
        if name is None:
            raise ConfigError(f"unknown option {key}{closest(key, sorted(fields))}")
        field = fields[name]
        parse: Callable[[str], object] = field.metadata.get("parse") or _parser(hints[field.name])
        try:
            values[field.name] = parse(text)
        except ValueError as e:
            shown = "***" if field.metadata.get("secret") else repr(text)
            raise ConfigError(f"option {name}: {shown} cannot be used: {e}") from None
    return kind(**values)


def closest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the closest known one, or all of them."""
    names = {each.lower(): each for each in known}
    nearest = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    if nearest:
        return f", did you mean {names[nearest[0]]}?"
    return f"; known are {', '.join(names.values())}"


def option_text(value: object) -> str:
    """A value as Spark expects it in options and configurations."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parser(hint: Any) -> Callable[[str], object]:  # noqa: ANN401 - a type as the typing module sees it
    (kind,) = (each for each in get_args(hint) or (hint,) if each is not NoneType)
    if issubclass(kind, StrEnum):
        return lambda text: _choice(kind, text)
    if kind is bool:
        return parse_bool
    return parse_count if kind is int else kind


def parse_bool(text: str) -> bool:
    """Raises ValueError."""
    lower = text.strip().lower()
    if lower not in _TRUE + _FALSE:
        raise ValueError("true or false is expected")
    return lower in _TRUE


def parse_count(text: str) -> int:
    """A whole number of at least 1. Raises ValueError."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("a whole number of at least 1 is expected")
    return int(text)


def parse_duration_ms(text: str) -> int:
    """`500`, `500ms`, `10s`, `15m`, `1h`, `1d` in milliseconds. Raises ValueError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError("a duration such as 500ms, 10s, 15m or 1h is expected")
    return int(match[1]) * _DURATION_MS[match[2]]


def parse_size_bytes(text: str) -> int:
    """`4096`, `64k`, `16m`, `1g` in bytes, at least 1. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise ValueError("a size such as 4096, 64k, 16m or 1g is expected")
    return int(match[1]) * _SIZE_BYTES[match[2].lower()]


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970, or an ISO time; without a time zone it is UTC. Raises ValueError."""
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("milliseconds since 1970 or 2024-02-29T12:00:00+00:00 expected") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_names(text: str) -> tuple[str, ...]:
    """Comma-separated names without duplicates. Raises ValueError for none."""
    return distinct((part.strip() for part in text.split(",")), "name")


def distinct(parts: Iterable[str], what: str) -> tuple[str, ...]:
    """The parts that are not empty, without duplicates. Raises ValueError for none."""
    found = tuple(dict.fromkeys(part for part in parts if part))
    if not found:
        raise ValueError(f"at least one {what} is expected")
    return found


def parse_keys(text: str) -> tuple[str, ...]:
    """Keys separated by spaces or ||, without duplicates. Raises ValueError for none.

    RocketMQ stores the keys of a message separated by spaces, so no key contains one.
    """
    return distinct((part for part in text.split(KEY_SEPARATOR) if part != "||"), "key")


def parse_assign(text: str) -> frozenset[Queue]:
    """The queues that `{"topic": {"broker": [0, 1]}}` names. Raises ValueError for none."""
    try:
        document = msgspec.json.decode(text, type=_ASSIGN)
    except msgspec.MsgspecError:
        document = {}
    queues = frozenset(
        Queue(topic, broker, queue_id)
        for topic, brokers in document.items()
        for broker, queue_ids in brokers.items()
        for queue_id in queue_ids
    )
    if not queues:
        raise ValueError('{"topic": {"broker": [0, 1]}} is expected')
    return queues


def parse_pattern(text: str) -> str:
    """A regular expression. Raises ValueError."""
    try:
        re.compile(text)
    except re.error as e:
        raise ValueError(f"not a regular expression: {e}") from None
    return text


def parse_offsets(text: str) -> str:
    """Offsets in the form of `offsets.py`: a named offset in any case, or case-sensitive JSON."""
    named = text.strip().lower()
    return named if named in _NAMED_OFFSETS else text


def _choice(kind: type[StrEnum], text: str) -> StrEnum:
    for member in kind:
        if member.value.lower() == text.strip().lower():
            return member
    raise ValueError(f"one of {', '.join(member.value for member in kind)} is expected")


# -- the cluster -----------------------------------------------------------------------------------


def _secret() -> Any:  # noqa: ANN401 - what dataclasses.field gives has no type of its own
    return dataclasses.field(default="", repr=False, metadata={"secret": True})


def parsed(default: object, parse: Callable[[str], object]) -> Any:  # noqa: ANN401 - as above
    """A field with its own parse function."""
    return dataclasses.field(default=default, metadata={"parse": parse})


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """How to connect to a cluster; sources and sinks inherit it."""

    name_server: str = ""  # host:port;host:port; empty: the environment variable NAMESRV_ADDR
    access_key: str = ""
    secret_key: str = _secret()
    security_token: str = _secret()
    tls: bool = False
    tls_trusted: Path | None = None  # CA certificates that sign the brokers' certificates, PEM
    tls_certificate: Path | None = None  # client certificate chain, PEM
    tls_key: Path | None = None  # private key of the client certificate, PEM
    tls_key_password: str = _secret()
    tls_verify: bool = True  # False accepts any server
    tls_check_name: bool = True  # the certificate must match the host name
    request_timeout: int = parsed(10_000, parse_duration_ms)  # of one request, ms

    def client_settings(self) -> ClientSettings:
        """The settings of clients of this cluster. Raises ConfigError."""
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError("options accessKey and secretKey go together")
        if self.security_token and not self.access_key:
            raise ConfigError("option securityToken needs accessKey and secretKey")
        if self._tls() != Tls() and not self.tls:
            # A configured certificate without TLS would send everything in plain text.
            raise ConfigError("options like tlsTrusted need tls=true")
        credentials = None
        if self.access_key:
            credentials = Credentials(self.access_key, self.secret_key, self.security_token or None)
        settings = ClientSettings(
            namesrv=self.name_server,
            credentials=credentials,
            tls=self._tls() if self.tls else None,
        )
        settings.namesrv_addresses()
        return settings

    def _tls(self) -> Tls:
        return Tls(
            trusted=self.tls_trusted,
            certificate=self.tls_certificate,
            key=self.tls_key,
            key_password=self.tls_key_password or None,
            verify=self.tls_verify,
            check_name=self.tls_check_name,
        )


# -- reading topics --------------------------------------------------------------------------------


class ReadFrom(StrEnum):
    """Which broker of a broker group serves reads."""

    MASTER = "master"
    REPLICA = "replica"


class ValueFormat(StrEnum):
    """How the column `value` is decoded."""

    TEXT = "text"
    JSON = "json"


class SplitBy(StrEnum):
    """How a store directory is divided into partitions."""

    QUEUE = "queue"
    LOG = "log"


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """What to read; common to clusters and store directories."""

    subscribe: tuple[str, ...] = parsed((), parse_names)
    subscribe_pattern: str = parsed("", parse_pattern)
    assign: frozenset[Queue] = parsed(
        frozenset[Queue](), parse_assign
    )  # {"topic": {"broker": [0, 1]}}
    # earliest, latest, committed or {"topic": {"broker": {"0": 17}}}
    starting_offsets: str = parsed("", parse_offsets)
    ending_offsets: str = parsed("latest", parse_offsets)
    starting_timestamp: int | None = parsed(None, parse_time_ms)
    ending_timestamp: int | None = parsed(None, parse_time_ms)
    starting_offsets_by_timestamp: str = ""  # {"topic": {"broker": {"0": 1700000000000}}}
    ending_offsets_by_timestamp: str = ""
    tags: str = ""  # a || b
    keys: tuple[str, ...] = parsed((), parse_keys)  # a || b: messages with one of these keys
    fail_on_data_loss: bool = True
    fail_on_malformed: bool = False  # False: null where a value cannot be decoded, and a count
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    value_format: ValueFormat | None = None
    value_schema: str = ""  # of json, in Spark's DDL
    push_down: bool | None = None  # batches: pass filters to the source, see `push_down.py`

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        chosen = [self.subscribe, self.subscribe_pattern, self.assign]
        if sum(bool(each) for each in chosen) != 1:
            raise ConfigError("one of the options subscribe, subscribePattern, assign is needed")
        _at_most_one(
            startingOffsets=self.starting_offsets,
            startingTimestamp=self.starting_timestamp is not None,
            startingOffsetsByTimestamp=self.starting_offsets_by_timestamp,
        )
        _at_most_one(
            endingOffsets=self.ending_offsets != "latest",
            endingTimestamp=self.ending_timestamp is not None,
            endingOffsetsByTimestamp=self.ending_offsets_by_timestamp,
        )
        if self.value_schema and self.value_format is not ValueFormat.JSON:
            raise ConfigError("the option valueSchema needs valueFormat=json")

    def check_batch(self) -> None:
        """Raises ConfigError for options that a batch cannot have."""
        if self.starting_offsets == "latest":
            raise ConfigError("option startingOffsets: a batch cannot start at latest")
        if self.ending_offsets == "earliest":
            raise ConfigError("option endingOffsets: a batch cannot end at earliest")

    def selects(self, queue: Queue) -> bool:
        """Whether a queue is one of those to read."""
        if self.subscribe_pattern:
            return re.fullmatch(self.subscribe_pattern, queue.topic) is not None
        return queue in self.assign or queue.topic in self.subscribe

    @property
    def pushes_tags(self) -> bool:
        """Whether conditions on tags may be pushed: not beside a filter of the options."""
        return not self.tags

    @property
    def pushes_down(self) -> bool:
        """Whether the source evaluates filters; by default only where Spark supports it safely."""
        return pushdown.is_default() if self.push_down is None else self.push_down


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ClusterOptions, ReadingOptions):
    """Options of `format("rocketmq")` for reading."""

    group: str = ""  # consumer group of startingOffsets=committed, commitOffsets and of pulls
    commit_offsets: bool = False  # streams: save the progress for the group
    sql: str = ""  # SQL92 condition over properties, evaluated by the broker
    read_from: ReadFrom = ReadFrom.MASTER
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = parsed(None, parse_size_bytes)
    max_trigger_delay: int | None = parsed(None, parse_duration_ms)  # ms

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        super().__post_init__()
        _at_most_one(tags=self.tags, sql=self.sql)
        committed = "committed" in (self.starting_offsets, self.ending_offsets)
        if (committed or self.commit_offsets) and not self.group:
            raise ConfigError("the option group is needed to start from or commit to its offsets")
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least and most and least > most:
            raise ConfigError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")

    @property
    def pushes_tags(self) -> bool:
        return not (self.tags or self.sql)

    def for_batch(self) -> "SourceOptions":
        """These options, checked for a batch. Raises ConfigError."""
        for field in dataclasses.fields(self):
            if field.name in _STREAM_ONLY and getattr(self, field.name) != field.default:
                raise ConfigError(f"option {option_name(field.name)} is for streams")
        self.check_batch()
        return self

    def for_stream(self) -> "SourceOptions":
        """These options, checked for a stream. Raises ConfigError."""
        if (
            self.ending_offsets != "latest"
            or self.ending_timestamp is not None
            or self.ending_offsets_by_timestamp
        ):
            raise ConfigError("a stream has no end: endingOffsets and the like are for batches")
        if self.push_down is not None:
            raise ConfigError("option pushDown is for batches: Spark passes no filters to streams")
        if self.max_trigger_delay is not None and self.min_offsets_per_trigger is None:
            raise ConfigError(
                "option maxTriggerDelay needs minOffsetsPerTrigger: nothing else delays a batch"
            )
        return self

    @property
    def trigger_delay_ms(self) -> int:
        """The longest wait for minOffsetsPerTrigger."""
        given = self.max_trigger_delay
        return _TRIGGER_DELAY_MS if given is None else given


@dataclass(frozen=True, kw_only=True)
class StoreOptions(ReadingOptions):
    """Options of `format("rocketmq-store")`."""

    path: Path | None = None  # storePathRootDir of the broker; also load(path)
    broker_name: str = "broker"  # the value of the column brokerName
    split_by: SplitBy = SplitBy.QUEUE

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        super().__post_init__()
        if self.path is None:
            raise ConfigError("the option path is needed: the store directory of a broker")
        if "committed" in (self.starting_offsets, self.ending_offsets):
            raise ConfigError("a store directory has no consumer groups: committed is for clusters")


def _at_most_one(**named: object) -> None:
    given = [name for name, value in named.items() if value]
    if len(given) > 1:
        raise ConfigError(f"options {' and '.join(given)} exclude each other")
