"""Small hand-written YAML files: limited size and depth, unknown names are errors."""

import difflib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from tianzhou.errors import ConfigError

_DEPTH_MAX = 20


def read_text(path: Path, max_bytes: int) -> str:
    """The text of a regular file. Raises ConfigError with its path."""
    try:
        # Non-blocking: opening a pipe without a writer would otherwise block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path}: is no ordinary file")
            if found.st_size > max_bytes:
                raise ConfigError(f"{path}: larger than {max_bytes} bytes, which no such file is")
            return os.read(descriptor, max_bytes).decode()
        finally:
            os.close(descriptor)
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read: {e}") from e


def parse_yaml(text: str) -> Any:  # noqa: ANN401 - whatever YAML can hold
    """The value of a text, None for an empty one. Raises ConfigError.

    Every scalar is text: a secret 12345678, or a topic 12345, is no number.
    """
    try:
        _check_depth(text)
        data: Any = yaml.load(text, Loader=yaml.CBaseLoader)  # noqa: S506 - it makes text only
    except yaml.YAMLError as e:
        raise ConfigError(f"no YAML: {' '.join(str(e).split())}") from e
    return None if data in (None, "") else data


def _check_depth(text: str) -> None:
    """The loader is recursive, in C: deep nesting would crash the process."""
    depth = 0
    events = cast("Iterator[object]", yaml.parse(text, Loader=yaml.CBaseLoader))  # pyright: ignore[reportUnknownMemberType] - it has no types
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEPTH_MAX:
                raise ConfigError(f"no YAML that is read here: nested {_DEPTH_MAX} deep and more")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def check_names(data: object, kind: type[msgspec.Struct], what: str) -> None:
    """Reject unknown names: a typo must not remove a limit or a permission. Raises ConfigError."""
    if not isinstance(data, dict):
        raise ConfigError(f"{what} must be a map of names to values")
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    for name in cast("dict[str, object]", data):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f", meant was perhaps {near[0]}" if near else f", known are {', '.join(known)}"
            raise ConfigError(f"{what} has an unknown name {name!r}{hint}")
