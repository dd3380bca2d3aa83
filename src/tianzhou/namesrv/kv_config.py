"""The KV configuration: names and values by namespace, in a file that RocketMQ reads too.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}

A change is on disk before it is in force, so an acknowledged change survives a crash. Files are
written in a thread: a slow disk must not delay route queries.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from tianzhou.config.files import replace_file
from tianzhou.errors import BodyError, ConfigError, StoreError
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies import Body

Table = dict[str, dict[str, str]]

_PAIR_BYTES = 64
"""Overhead of a pair, so that a million empty pairs do not count as an empty table."""


class _File(Body, frozen=True, kw_only=True):
    config_table: Table


def load_table(path: Path) -> Table:
    """The content of the file, empty if it does not exist. Raises ConfigError if it cannot be read.

    A broken file is not ignored: the next change would overwrite data that can still be recovered.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as e:
        raise ConfigError(f"KV configuration {path} cannot be read: {e.strerror}") from e
    if not data.strip():
        return {}  # As in RocketMQ, an empty file is an empty table.
    try:
        return bodies.decode(_File, data).config_table
    except BodyError as e:
        raise ConfigError(
            f"KV configuration {path} is broken ({e}); repair it, or move it away to start empty"
        ) from e


class KVConfig:
    """The table in force and its file."""

    def __init__(
        self, path: Path, check_growth: Callable[[int, str], None] = lambda size, what: None
    ) -> None:
        """`check_growth` is called with the new size in bytes before the table grows, and raises an
        error to reject the change. Raises ConfigError if the file cannot be read.
        """
        self._path = path
        self._check_growth = check_growth
        self._table = load_table(path)
        self._lock = asyncio.Lock()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All pairs of a namespace, None if it never had one."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises StoreError, and changes nothing, if it cannot be saved. The size of the table is
        limited, as it is in memory and rewritten with every change.
        """
        async with self._lock:
            pairs = self._table.get(namespace, {}) | {key: value}
            table = self._table | {namespace: pairs}
            size = _size_of(table)
            if size > _size_of(self._table):
                self._check_growth(size, f"value {key} of namespace {namespace} cannot be set")
            await self._save(table)

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it exists. Raises StoreError, and changes nothing, like `put`."""
        async with self._lock:
            pairs = dict(self._table.get(namespace, {}))
            if pairs.pop(key, None) is not None:
                await self._save(self._table | {namespace: pairs})

    async def _save(self, table: Table) -> None:
        try:
            await asyncio.to_thread(
                lambda: replace_file(self._path, bodies.encode(_File(config_table=table)))
            )
        except OSError as e:
            raise StoreError(f"KV configuration {self._path} cannot be saved: {e.strerror}") from e
        self._table = table


def _size_of(table: Table) -> int:
    """A namespace without pairs counts as one with a pair."""
    return sum(
        len(namespace)
        + _PAIR_BYTES * max(len(pairs), 1)
        + sum(len(key) + len(value) for key, value in pairs.items())
        for namespace, pairs in table.items()
    )
