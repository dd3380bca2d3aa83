"""Typed settings: one frozen dataclass per program, filled from files, environment and flags.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ThingConfig:
        listen_port: int = setting(9876, "TCP port", maximum=65535)
        page_size: int = setting(4096, "bytes per page", key="thingPageSize", change=Change.FIXED)

A field has a default, a one-line meaning, the key it has in files (RocketMQ's own, by default the
field's name in camel case) and a mark that says when a new value counts. The translation between
keys and fields happens here and nowhere else. Every value remembers where it came from.
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

    A setting is LOCAL unless it says otherwise: a request changes nothing that names a file, an
    address or a certificate, or that weakens access control, durability or a limit.
    """

    FIXED = "fixed"  # never: it shapes files that exist
    LOCAL = "local"  # in the file, the environment or by a flag, and a restart; by no request
    RESTART = "restart"  # by a request, too; in effect after a restart
    ADMIN = "admin"  # at once, by a request if the server checks accounts; else as LOCAL
    LIVE = "live"  # at once, by a request


class Configuration(Protocol):
    """Any dataclass whose fields were made by `setting`."""

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

    `minimum` and `maximum` bound numbers, `maximum` the characters of a text. A `size` in bytes may
    be written like 64K or 1GiB. The value of a `secret` is never shown.
    """
    declared = Setting(meaning, change, key, aliases, minimum, maximum, size, secret)
    # What the class declares is a field; what its objects have there is a value of type T.
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
    """What a value must look like, in words."""
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
    """The value that `text` stands for. Raises ValueError, whose text says what is expected."""
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
        # Java takes everything but "true" for false, so a typing error would pass unseen.
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
        # They would end up in file names, properties of messages and logs.
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
    # Python also reads 1_000 and digits of other scripts, which RocketMQ's programs do not.
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
    """A value as files have it; `parse_value` reads it back."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value) if isinstance(value, Enum) else str(value)


# -- sources ---------------------------------------------------------------------------------------


class Given(NamedTuple):
    """A value and its origin: `file.properties:3`, `environment NAME`, `flag --port`.

    A `deliberate` one was typed for this program, so a key that does not exist is an error there; a
    file may be shared with other programs, so there it is a warning.
    """

    key: str
    text: str
    origin: str
    deliberate: bool = False


def from_file(path: Path) -> list[Given]:
    """What a properties file gives. Raises ConfigError if it cannot be read."""
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
    """What environment variables that start with `prefix` give."""
    keys = {environment_name(prefix, key): key for key in settings_by_key(configuration)}
    return [
        Given(keys.get(name, name), text, f"environment {name}")
        for name, text in sorted(environ.items())
        if name.startswith(prefix)
    ]


# -- loading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded(Generic[C]):
    """A configuration, the origin of each field, and what its sources said besides.

    `others` are pairs that no field answers to. They are kept because RocketMQ keeps them: its
    tools show them, and a file may be meant for a newer version. `warnings` are about unknown
    keys, `notes` about known ones without effect.
    """

    config: C
    origins: Mapping[str, str]
    others: Mapping[str, str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def load(
    configuration: type[C], sources: Iterable[Given], ignored: Mapping[str, str] | None = None
) -> Loaded[C]:
    """Fill a configuration; of values for one key the last source's counts.

    `ignored` are keys that are accepted without effect, and why. Raises ConfigError for a value
    that cannot be what the setting expects.
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
    """`loaded` with values that a request gives, and those values as a file has them.

    Keys that no field answers to are left out, as RocketMQ leaves them out. `has_accounts` says
    that the server checks who sends requests. Raises ConfigError, and changes nothing, if a value
    is wrong, and SettingRefused if no such request may change a setting.
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
    """One setting for the eye."""

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
    # A key that no setting has may be one of another version, or a misspelt one, with its secret.
    others = {
        key: "(hidden)" if value and _SECRET_NAME.search(key) else value
        for key, value in loaded.others.items()
    }
    pairs = others | pairs
    return "".join(f"{format_property(key, pairs[key])}\n" for key in sorted(pairs))


def render_table(loaded: Loaded[C]) -> str:
    """The configuration for the terminal: key, value, origin, when a change counts, meaning."""
    rows = [Shown("KEY", "VALUE", "FROM", "CHANGE", "MEANING"), *show(loaded)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = (
        "  ".join([*(row[column].ljust(widths[column]) for column in range(4)), row.meaning])
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)
