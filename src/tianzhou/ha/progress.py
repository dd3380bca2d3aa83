"""How far the slaves have copied the log: when a message counts as replicated.

Each connection of a slave has a name, and two log offsets: the end that the slave reported, and the
end that it acknowledged, which may be smaller (see `master_side`). Connections of one name are one
slave: only distinct slaves count.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Protocol

BEHIND_BYTES_MAX: Final = 256 * 1024 * 1024
_COPIES_MIN: Final = 2


@dataclass(slots=True)
class _Follower:
    name: str
    reported: int
    acknowledged: int


class Followers(Protocol):
    """Who must know how far the slaves are; `Acknowledgements` with fixed roles."""

    def connected(
        self,
        connection: Hashable,
        name: str,
        reported: int,
        acknowledged: int,
        *,
        is_exclusive: bool,
    ) -> list[Hashable]:
        """A slave has sent its first report. Returns the connections that this one replaces."""
        ...

    def report(self, connection: Hashable, reported: int, acknowledged: int) -> None:
        """A connected slave has sent a further report."""
        ...

    def disconnected(self, connection: Hashable) -> None:
        """Forget a connection; does nothing if it never reported or was replaced."""
        ...


class Acknowledgements:
    """The log offsets of the slaves that are connected now."""

    def __init__(
        self,
        in_sync_replicas: int = _COPIES_MIN,
        behind_bytes_max: int = BEHIND_BYTES_MAX,
        on_advance: Callable[[], None] = lambda: None,
    ) -> None:
        """See `set_limits`."""
        self._followers: dict[Hashable, _Follower] = {}
        self.replicated_log_offset = 0
        """What enough slaves have acknowledged; it falls when one of them disconnects."""
        self.on_advance = on_advance
        """Called when `replicated_log_offset` has grown."""
        self.set_limits(in_sync_replicas, behind_bytes_max)

    def set_limits(self, in_sync_replicas: int, behind_bytes_max: int) -> None:
        """How many copies are wanted, the master's included, and how far behind a slave may be."""
        self.needed_count = max(in_sync_replicas, _COPIES_MIN) - 1
        """Slaves that must acknowledge."""
        self._behind_bytes_max = behind_bytes_max
        self._update()

    def connected(
        self,
        connection: Hashable,
        name: str,
        reported: int,
        acknowledged: int,
        *,
        is_exclusive: bool,
    ) -> list[Hashable]:
        """A slave has sent its first report. Returns the connections that this one replaces.

        With `is_exclusive` the name has one connection: what others of it acknowledged is
        forgotten, as the slave may have lost it since.
        """
        replaced = [
            other
            for other, follower in self._followers.items()
            if is_exclusive and follower.name == name and other != connection
        ]
        for other in replaced:
            del self._followers[other]
        self._followers[connection] = _Follower(name, reported, acknowledged)
        self._update()
        return replaced

    def report(self, connection: Hashable, reported: int, acknowledged: int) -> None:
        """A connected slave has sent a further report; neither log offset ever falls."""
        follower = self._followers[connection]
        follower.reported = reported
        if acknowledged > follower.acknowledged:
            follower.acknowledged = acknowledged
            self._update()

    def disconnected(self, connection: Hashable) -> None:
        """Forget a connection; does nothing if it never reported or was replaced."""
        if self._followers.pop(connection, None) is not None:
            self._update()

    def are_in_reach(self, end_log_offset: int) -> bool:
        """Whether enough slaves are connected and not too far behind."""
        least = end_log_offset - self._behind_bytes_max
        names = {each.name for each in self._followers.values() if each.reported >= least}
        return len(names) >= self.needed_count

    def _update(self) -> None:
        by_name: dict[str, int] = {}
        for each in self._followers.values():
            by_name[each.name] = max(each.acknowledged, by_name.get(each.name, 0))
        ordered = sorted(by_name.values(), reverse=True)
        before = self.replicated_log_offset
        count = self.needed_count
        self.replicated_log_offset = ordered[count - 1] if len(ordered) >= count else 0
        if self.replicated_log_offset > before:
            self.on_advance()
