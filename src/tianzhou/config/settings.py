"""Typed settings: one frozen dataclass per program, filled from files, environment and flags.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ThingConfig:
        listen_port: int = setting(9876, "TCP port", maximum=65535)
        page_size: int = setting(4096, "bytes per page", key="thingPageSize", change=Change.FIXED)

A field has a default, a one-line meaning, a key (RocketMQ's own, by default the field's name in
camel case) and a mark that says how it can be changed. Keys are translated to fields only here.
The origin of every value is recorded.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import (
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    get_args,
    get_type_hints,
)

from tianzhou.config.properties import decode_text, format_property, parse_properties
from tianzhou.errors import ConfigError, SettingRefused

T = TypeVar("T")
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DEFAULT_ORIGIN = "default"

_METADATA_KEY = "setting"
_SECRET_NAME = re.compile("pass?w|secret|credential|token|authenticationUser", re.IGNORECASE)
_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_SIZE_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Change(StrEnum):
    """How a setting is changed, and when a new value takes effect.

    The default is LOCAL: no request changes a setting that names a file, an address or a
    certificate, or that weakens access control, durability or a limit.
    """

    FIXED = "fixed"  # never: existing files depend on it
    LOCAL = "local"  # by file, environment or flag, and a restart; not by requests
    RESTART = "restart"  # also by requests; in effect after a restart
    ADMIN = "admin"  # by requests, immediately, if the server checks accounts; otherwise as LOCAL
    LIVE = "live"  # by requests, immediately


class Configuration(Protocol):
    """A dataclass whose fields are declared with `setting`."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


C = TypeVar("C", bound=Configuration)


# -- declaring -------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """One field of a configuration as its users see it.

    Name, kind and optional are those of the field, known when the class is complete.
    """

    meaning: str
    change: Change
    key: str
    aliases: tuple[str, ...]
    minimum: int | None
    maximum: int | None
    size: bool
    secret: bool
    name: str = ""
    kind: type[Any] = str
    optional: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.aliases)


def setting(
    default: T,
    meaning: str,
    *,
    change: Change = Change.LOCAL,
    key: str = "",
    aliases: tuple[str, ...] = (),
    minimum: int | None = 0,
    maximum: int | None = None,
    size: bool = False,
    secret: bool = False,
) -> T:
    """A field of a configuration.

    `minimum` and `maximum` limit numbers, `maximum` also the length of a text. A `size` in bytes
    may be written as 64K or 1GiB. The value of a `secret` is never shown.
    """
    declared = Setting(meaning, change, key, aliases, minimum, maximum, size, secret)
    # The class attribute is a field; on instances it is a value of type T.
    return dataclasses.field(default=default, metadata={_METADATA_KEY: declared})


def positive_setting(
    default: int, meaning: str, *, change: Change = Change.LOCAL, key: str = ""
) -> int:
    """A number from 1 to the largest of 32 bits."""
    return setting(default, meaning, change=change, key=key, minimum=1, maximum=INT32_MAX)


def path_setting(
    default: Callable[[], Path], meaning: str, *, key: str = "", aliases: tuple[str, ...] = ()
) -> Path:
    """A path whose default depends on the machine."""
    declared = Setting(meaning, Change.LOCAL, key, aliases, None, None, False, False)
    return dataclasses.field(default_factory=default, metadata={_METADATA_KEY: declared})


@cache
def settings_of(configuration: type[Configuration]) -> tuple[Setting, ...]:
    """The settings of a configuration class, in the order of their declaration."""
    hints = get_type_hints(configuration)
    found: list[Setting] = []
    for field in dataclasses.fields(configuration):
        declared: Setting = field.metadata[_METADATA_KEY]
        kinds = get_args(hints[field.name]) or (hints[field.name],)
        (kind,) = [kind for kind in kinds if kind is not NoneType]
        found.append(
            declared._replace(
                name=field.name,
                key=declared.key or camel_case(field.name),
                kind=kind,
                optional=NoneType in kinds,
            )
        )
    return tuple(found)


def settings_by_key(configuration: type[Configuration]) -> dict[str, Setting]:
    """The settings of a configuration class by each of their keys."""
    return {key: declared for declared in settings_of(configuration) for key in declared.keys}


def camel_case(name: str) -> str:
    """`listen_port` as RocketMQ writes it: `listenPort`."""
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def environment_name(prefix: str, key: str) -> str:
    """The environment variable of a key: `listenPort` is `<prefix>LISTEN_PORT`."""
    return prefix + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace(".", "_").upper()


# -- values ----------------------------------------------------------------------------------------


def expected(declared: Setting) -> str:
    """The expected form of a value, for error messages."""
    if declared.kind is bool:
        return "true or false"
    if issubclass(declared.kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in declared.kind)
    if declared.kind in (int, float):
        noun = "a number" if declared.kind is float else "a whole number"
        if declared.size:
            noun = "a size in bytes such as 65536, 64K or 1G"
        low, high = declared.minimum, declared.maximum
        if low is not None and high is not None:
            return f"{noun} from {low} to {high}"
        return noun if low is None else f"{noun}, at least {low}"
    if declared.kind is str and declared.maximum is not None:
        return f"a text of at most {declared.maximum} characters"
    return "a path" if declared.kind is Path else "a text"


def parse_value(declared: Setting, text: str) -> Any:  # noqa: ANN401 - the type is the setting's kind
    """Parse a value. Raises ValueError with the expected form."""
    text = text.strip()
    if not text and declared.optional:
        return None
    value = _parse_kind(declared, text)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low = value if declared.minimum is None else declared.minimum
        high = INT64_MAX if declared.maximum is None else declared.maximum
        if not low <= value <= high:
            raise ValueError(expected(declared))
    return value


def _parse_kind(declared: Setting, text: str) -> Any:  # noqa: ANN401 - as parse_value
    kind = declared.kind
    if kind is bool:
        # Java reads everything except "true" as false, so that a typo would go unnoticed.
        if text.lower() not in ("true", "false"):
            raise ValueError(expected(declared))
        return text.lower() == "true"
    if issubclass(kind, Enum):
        return _parse_member(declared, kind, text)
    if kind is Path:
        if not text or "\0" in text:
            raise ValueError(expected(declared))
        return Path(text).expanduser()
    if kind is str:
        # The text may become part of file names, message properties and logs.
        if any((c < " " and c != "\t") or c == "\x7f" for c in text):
            raise ValueError(f"{expected(declared)} without control characters")
        if declared.maximum is not None and len(text) > declared.maximum:
            raise ValueError(expected(declared))
        return text
    return _parse_number(declared, text)


def _parse_member(declared: Setting, kind: type[Enum], text: str) -> Enum:
    for member in kind:
        if text.lower() in (str(member.value).lower(), member.name.lower()):
            return member
    raise ValueError(expected(declared))


def _parse_number(declared: Setting, text: str) -> int | float:
    # Python also accepts 1_000 and digits of other scripts; RocketMQ does not.
    if text.isascii() and "_" not in text:
        try:
            return _parse_size(text) if declared.size else declared.kind(text)
        except ValueError:
            pass
    raise ValueError(expected(declared))


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * (_SIZE_UNITS[match[2].upper()] if match[2] else 1)


def format_value(value: object) -> str:
    """A value in the form of files, which `parse_value` reads."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value) if isinstance(value, Enum) else str(value)


# -- sources ---------------------------------------------------------------------------------------


class Given(NamedTuple):
    """A value and its origin: `file.properties:3`, `environment NAME`, `flag --port`.

    A `deliberate` one was given for this program, so an unknown key is an error. A file may be
    shared with other programs, so there it is a warning.
    """

    key: str
    text: str
    origin: str
    deliberate: bool = False


def from_file(path: Path) -> list[Given]:
    """The pairs of a properties file. Raises ConfigError if it cannot be read."""
    try:
        text, _ = decode_text(path.read_bytes())
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from e
    return [
        Given(found.key, found.value, f"{path}:{found.line}")
        for found in parse_properties(text, str(path))
    ]


def from_environment(
    configuration: type[Configuration], environ: Mapping[str, str], prefix: str
) -> list[Given]:
    """The settings of environment variables that start with `prefix`."""
    keys = {environment_name(prefix, key): key for key in settings_by_key(configuration)}
    return [
        Given(keys.get(name, name), text, f"environment {name}")
        for name, text in sorted(environ.items())
        if name.startswith(prefix)
    ]


# -- loading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded(Generic[C]):
    """A configuration, the origin of each field, and the keys without a field.

    `others` are pairs without a field, stored because RocketMQ's tools show them and a file may be
    for a newer version. `warnings` are about unknown keys and misleading values, `notes`
    about known keys without effect.
    """

    config: C
    origins: Mapping[str, str]
    others: Mapping[str, str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def load(
    configuration: type[C], sources: Iterable[Given], ignored: Mapping[str, str] | None = None
) -> Loaded[C]:
    """Load a configuration; the last source of a key has precedence.

    `ignored` are keys that are accepted without effect, with the reason. Raises ConfigError for an
    invalid value.
    """
    ignored = ignored or {}
    by_key = settings_by_key(configuration)
    values: dict[str, Any] = {}
    origins = {declared.name: DEFAULT_ORIGIN for declared in settings_of(configuration)}
    others: dict[str, str] = {}
    warnings: list[str] = []
    notes: list[str] = []
    for given in sources:
        declared = by_key.get(given.key)
        if declared is not None:
            values[declared.name] = _value_given(declared, given)
            origins[declared.name] = given.origin
        elif given.key in ignored:
            others[given.key] = given.text
            notes.append(f"{given.origin}: {given.key} has no effect: {ignored[given.key]}")
        else:
            text = _unknown_key(given, list(by_key))
            if given.deliberate:
                raise ConfigError(text)
            others[given.key] = given.text
            warnings.append(text)
    return Loaded(configuration(**values), origins, others, tuple(warnings), tuple(notes))


def _value_given(declared: Setting, given: Given) -> Any:  # noqa: ANN401 - as parse_value
    try:
        return parse_value(declared, given.text)
    except ValueError as e:
        shown = "its value" if declared.secret else repr(given.text)
        raise ConfigError(f"{given.origin}: {given.key}: {shown} is not {e}") from e


def _unknown_key(given: Given, known: list[str]) -> str:
    from difflib import get_close_matches  # Rarely needed, and it takes a while to load.

    nearest = get_close_matches(given.key, known, n=1, cutoff=0.6)
    hint = f", did you mean {nearest[0]}?" if nearest else ""
    return f"{given.origin}: unknown key {given.key}{hint}"


def update(
    loaded: Loaded[C],
    changes: Iterable[Given],
    *,
    black_list: Collection[str] = (),
    has_accounts: bool = False,
) -> tuple[Loaded[C], dict[str, str]]:
    """`loaded` with the values of a request, and these values in the form of files.

    Unknown keys are skipped, as in RocketMQ. `has_accounts`: the server checks the accounts of
    requests. Raises ConfigError for an invalid value and SettingRefused for a setting that such a
    request may not change; then nothing is changed.
    """
    by_key = settings_by_key(type(loaded.config))
    values: dict[str, Any] = {}
    origins = dict(loaded.origins)
    pairs: dict[str, str] = {}
    for given in changes:
        declared = by_key.get(given.key)
        names = declared.keys if declared is not None else (given.key,)
        if any(name in black_list for name in names):
            raise SettingRefused(
                f"Can not update config in black list. {given.key}: {_LOCAL_ADVICE}"
            )
        if declared is None:
            continue
        value = _value_given(declared, given)
        _check_may_change(declared, given.key, has_accounts=has_accounts)
        values[declared.name] = value
        origins[declared.name] = given.origin
        pairs[given.key] = format_value(value)
    config = dataclasses.replace(loaded.config, **values)
    return dataclasses.replace(loaded, config=config, origins=origins), pairs


_LOCAL_ADVICE = (
    "no request changes it; set it in the configuration file, the environment or by a flag, and "
    "restart the server"
)


def _check_may_change(declared: Setting, key: str, *, has_accounts: bool) -> None:
    if declared.change is Change.FIXED:
        raise ConfigError(f"{key} is fixed: it shapes files that exist already")
    if declared.change is Change.LOCAL:
        raise SettingRefused(f"{key}: {_LOCAL_ADVICE}")
    if declared.change is Change.ADMIN and not has_accounts:
        raise SettingRefused(
            f"{key}: only an administrator changes it, and this server checks no accounts; set it "
            f"in the configuration file and restart the server, or switch access control on"
        )


# -- showing ---------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """One setting for display."""

    key: str
    value: str
    origin: str
    change: str
    meaning: str


def show(loaded: Loaded[C]) -> list[Shown]:
    """Every setting with its value, origin and meaning."""
    return [
        Shown(
            key=declared.key,
            value=_shown_value(declared, getattr(loaded.config, declared.name)),
            origin=loaded.origins[declared.name],
            change=declared.change.value,
            meaning=declared.meaning,
        )
        for declared in settings_of(type(loaded.config))
    ]


def _shown_value(declared: Setting, value: object) -> str:
    return "(hidden)" if declared.secret and value else format_value(value)


def render_properties(loaded: Loaded[C]) -> str:
    """The configuration as a properties file, sorted by key, as RocketMQ's tools get it."""
    pairs = {shown.key: shown.value for shown in show(loaded)}
    # An unknown key may be that of another version, or a misspelt one, with a secret value.
    others = {
        key: "(hidden)" if value and _SECRET_NAME.search(key) else value
        for key, value in loaded.others.items()
    }
    pairs = others | pairs
    return "".join(f"{format_property(key, pairs[key])}\n" for key in sorted(pairs))


def render_table(loaded: Loaded[C]) -> str:
    """The configuration for the terminal: key, value, origin, how it is changed, meaning."""
    rows = [Shown("KEY", "VALUE", "FROM", "CHANGE", "MEANING"), *show(loaded)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = (
        "  ".join([*(row[column].ljust(widths[column]) for column in range(4)), row.meaning])
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)
