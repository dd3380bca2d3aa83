"""What the tables of topics and groups have in common: a version, a limit, and a file.

Every change increments the version; nameservers and slaves compare it to see whether they are up to
date. No I/O happens here: `on_change` is called, and the owner of the table saves and registers it.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from tianzhou.broker.tables.saver import EncodedBodies, encode_body
from tianzhou.clock import Clock
from tianzhou.protocol.bodies.topics import DataVersion

V = TypeVar("V", bound=msgspec.Struct)


class VersionedTable(Generic[V]):
    """Bodies by name."""

    def __init__(
        self,
        kind: str,
        bodies: dict[str, V],
        clock: Clock,
        on_change: Callable[[], None],
        check_capacity: Callable[[int, str], None],
    ) -> None:
        """`check_capacity` raises RequestError if a table of so many entries is full."""
        self._kind = kind
        self._bodies = bodies
        self.data_version = DataVersion(timestamp=clock(), counter=0)
        self._clock = clock
        self._on_change = on_change
        self.on_entries: Callable[[Iterable[str]], None] = lambda names: None
        """Called after a change with the entries that were created or replaced; without any if
        something else has changed. A master with slaves sets it."""
        self._check_capacity = check_capacity
        self._others: dict[str, object] = {}
        self._encoded = EncodedBodies(bodies)

    def get(self, name: str) -> V | None:
        return self._bodies.get(name)

    def check_capacity(self, names: Iterable[str]) -> None:
        """Raises RequestError if the table is too full for the new ones of these names."""
        new = [name for name in dict.fromkeys(names) if name not in self._bodies]
        if new:
            count = len(self._bodies) + len(new) - 1
            self._check_capacity(count, f"{self._kind} {new[0]} cannot be created")

    def _put(self, name: str | None, body: V) -> bool:
        assert name is not None, "an entry of the table has a name"
        if self._bodies.get(name) == body:
            return False
        self._bodies[name] = body
        self.touch(name)
        return True

    def remove(self, name: str) -> bool:
        """Remove an entry; False if there was none."""
        if self._bodies.pop(name, None) is None:
            return False
        self.touch()
        return True

    def touch(self, *names: str) -> None:
        """Count as changed: these entries were created or replaced, or without names, others."""
        self.data_version = next_version(self.data_version, self._clock())
        self._on_change()
        self.on_entries(names)

    def replaced(self, version: DataVersion, *, is_changed: bool) -> bool:
        """The bodies are those of another broker's table now; returns whether anything changed."""
        if not is_changed and same_version(self.data_version, version):
            return False
        self.data_version = msgspec.structs.replace(version)
        self._on_change()
        return True

    # -- on disk -----------------------------------------------------------------------------------

    def _as_file(self, table_key: str, **more: object) -> dict[str, object]:
        """The content of the file, with unknown keys of other versions."""
        version = encode_body(self.data_version)
        return {**self._others, "dataVersion": version, **more, table_key: self._encoded}


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """The version after one more change."""
    return msgspec.structs.replace(version, timestamp=now_ms, counter=version.counter + 1)


def same_version(one: DataVersion, other: DataVersion) -> bool:
    """Whether two tables are equal by their versions; brokers of 4.9 have no state version."""
    return version_text(one) == version_text(other)


def version_text(version: DataVersion) -> str:
    """A version as `table_version` of responses."""
    return f"{version.state_version or 0}.{version.timestamp}.{version.counter}"
