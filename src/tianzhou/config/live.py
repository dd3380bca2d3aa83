"""Settings of a running program: readers see one whole configuration, an update replaces it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple

from tianzhou.config.files import replace_file
from tianzhou.config.properties import Property, decode_text, edit_properties
from tianzhou.config.settings import C, Given, Loaded, render_properties, update
from tianzhou.errors import ConfigError


class Update(NamedTuple, Generic[C]):
    """A checked change that is not in force yet: the next configuration, and the pairs given."""

    loaded: Loaded[C]
    pairs: dict[str, str]


class LiveSettings(Generic[C]):
    """The configuration in force. Read `config` anew for every decision that may change.

    A change is prepared (checked), saved if it is to survive a restart, and then adopted, so that a
    disk that refuses leaves everything as it was.
    """

    def __init__(self, loaded: Loaded[C]) -> None:
        self._loaded = loaded
        self.config = loaded.config
        """What is in force now. A plain attribute, for it is read with every request."""

    def as_properties(self) -> str:
        return render_properties(self._loaded)

    def prepare(self, properties: Iterable[Property], by: str) -> Update[C]:
        """Check properties sent by `by`. Raises ConfigError if any of them is wrong."""
        changes = [Given(found.key, found.value, by) for found in properties]
        return Update(*update(self._loaded, changes))

    def adopt(self, prepared: Update[C]) -> None:
        self._loaded = prepared.loaded
        self.config = prepared.loaded.config


def save_pairs(path: Path, pairs: Mapping[str, str]) -> None:
    """Write pairs into a properties file, keeping its comments, its order and all other pairs.

    Raises ConfigError if the file cannot be read or written; then it is as it was.
    """
    try:
        before, encoding = decode_text(path.read_bytes()) if path.exists() else ("", "utf-8")
        replace_file(path, edit_properties(before, pairs).encode(encoding))
    except OSError as e:
        raise ConfigError(f"{path}: cannot be saved: {e.strerror}") from e
