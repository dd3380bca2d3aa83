"""Settings of a running program: an update replaces the whole configuration atomically."""

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple

from tianzhou.config.files import replace_file
from tianzhou.config.properties import Property, decode_text, edit_properties
from tianzhou.config.settings import (
    C,
    Change,
    Given,
    Loaded,
    format_value,
    render_properties,
    settings_by_key,
    settings_of,
    update,
)
from tianzhou.errors import ConfigError

log = logging.getLogger(__name__)


class Update(NamedTuple, Generic[C]):
    """A checked change: the configuration before and after it, and the given pairs."""

    before: C
    loaded: Loaded[C]
    pairs: dict[str, str]
    keys: list[str]
    """Every key of the request, including unknown ones."""

    def pending(self) -> list[str]:
        """The keys whose new values take effect after a restart."""
        by_key = settings_by_key(type(self.loaded.config))
        return [key for key in self.pairs if by_key[key].change is Change.RESTART]

    def log(self, by: str) -> None:
        """One line for each key of the request."""
        by_key, pending = settings_by_key(type(self.loaded.config)), set(self.pending())
        unknown = [key for key in self.keys if key not in self.pairs]
        for key in unknown[:_UNKNOWN_LOGGED_MAX]:
            log.warning("setting %s: unknown, left out, by %s", key, by)
        if len(unknown) > _UNKNOWN_LOGGED_MAX:
            more = len(unknown) - _UNKNOWN_LOGGED_MAX
            log.warning("%d more settings are unknown and left out, by %s", more, by)
        for key, value in self.pairs.items():
            shown = "(hidden)" if by_key[key].secret else value
            when = ", in effect after a restart" if key in pending else ""
            log.info("setting %s: %s%s, by %s", key, shown, when, by)


_UNKNOWN_LOGGED_MAX = 20


class LiveSettings(Generic[C]):
    """The active configuration. Read `config` for every decision; do not cache it.

    A change is prepared (checked), saved if it must survive a restart, and then activated, so that
    a failed write changes nothing.
    """

    def __init__(self, loaded: Loaded[C]) -> None:
        self._loaded = loaded
        self.config = loaded.config
        """The active configuration; a plain attribute because every request reads it."""
        self.lock = asyncio.Lock()
        """Held while a change is prepared, saved and activated."""

    def as_properties(self) -> str:
        return render_properties(self._loaded)

    def overriding(self, name: str) -> str | None:
        """The flag or variable that sets a field, which the saved value cannot replace."""
        origin = self._loaded.origins[name]
        return origin if origin.startswith(("flag ", "environment ")) else None

    def prepare(
        self,
        properties: Iterable[Property],
        by: str,
        *,
        black_list: Collection[str] = (),
        has_accounts: bool = False,
    ) -> Update[C]:
        """Check properties sent by `by`; the other parameters are those of `update`.

        Raises ConfigError for an invalid value, SettingRefused if a request may not change it.
        """
        changes = [Given(found.key, found.value, by) for found in properties]
        checked = update(self._loaded, changes, black_list=black_list, has_accounts=has_accounts)
        return Update(self.config, *checked, [change.key for change in changes])

    def prepare_values(self, values: Mapping[str, object], origin: str) -> Update[C]:
        """Change fields by name, also those that no request may change."""
        loaded, by_name = self._loaded, {one.name: one for one in settings_of(type(self.config))}
        config = dataclasses.replace(loaded.config, **values)
        origins = {**loaded.origins, **dict.fromkeys(values, origin)}
        pairs = {by_name[name].key: format_value(value) for name, value in values.items()}
        changed = dataclasses.replace(loaded, config=config, origins=origins)
        return Update(self.config, changed, pairs, list(pairs))

    def activate(self, prepared: Update[C]) -> None:
        self._loaded = prepared.loaded
        self.config = prepared.loaded.config


def save_pairs(path: Path, pairs: Mapping[str, str]) -> None:
    """Write pairs into a properties file; comments, order and all other pairs stay.

    Raises ConfigError if the file cannot be read or written; then it is unchanged.
    """
    try:
        before, encoding = decode_text(path.read_bytes()) if path.exists() else ("", "utf-8")
        replace_file(path, edit_properties(before, pairs).encode(encoding))
    except OSError as e:
        raise ConfigError(f"{path}: cannot be saved: {e.strerror}") from e
