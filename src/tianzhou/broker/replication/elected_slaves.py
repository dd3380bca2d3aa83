"""The slaves of an elected master: their acknowledgements go to the counted set of its session.

Acknowledgements come thousands of times a second and go there directly; the state machine gets an
event only when a slave connects or disconnects. Slaves by the default HA protocol are readers: they
have no identity and no incarnation, so they never count.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

from tianzhou.ha.log_sender import SlaveConnection
from tianzhou.ha.roles.counted_set import CountedSet
from tianzhou.ha.roles.events import Event, SlaveConnected, SlaveDisconnected


class SessionSet(Protocol):
    """What the counted set of the present session is; None without a session."""

    def __call__(self) -> CountedSet | None: ...


class ElectedSlaves:
    """Meets `ha.progress.Followers`."""

    def __init__(
        self,
        counted: SessionSet,
        put: Callable[[Event], None],
        on_confirmed: Callable[[int], None],
    ) -> None:
        """`on_confirmed` is called with the confirm offset when it has grown."""
        self._counted = counted
        self._put = put
        self._on_confirmed = on_confirmed
        self._ids: dict[Hashable, int] = {}
        """The counted connections: one of each slave."""

    def connected(
        self,
        connection: Hashable,
        name: str,
        reported: int,
        acknowledged: int,
        *,
        is_exclusive: bool,
    ) -> list[Hashable]:
        """See `Followers`."""
        assert isinstance(connection, SlaveConnection)
        hello = connection.side.hello
        if hello is None:
            return []
        replaced = [each for each, its_id in self._ids.items() if its_id == hello.broker_id]
        for other in replaced:
            del self._ids[other]
        self._ids[connection] = hello.broker_id
        self._put(SlaveConnected(hello.broker_id, hello.incarnation or 0))
        self._acknowledge(hello.broker_id, acknowledged)
        return replaced

    def report(self, connection: Hashable, reported: int, acknowledged: int) -> None:
        """See `Followers`."""
        slave_id = self._ids.get(connection)
        if slave_id is not None:
            self._acknowledge(slave_id, acknowledged)

    def disconnected(self, connection: Hashable) -> None:
        """See `Followers`."""
        slave_id = self._ids.pop(connection, None)
        if slave_id is not None:
            self._put(SlaveDisconnected(slave_id))

    def _acknowledge(self, slave_id: int, acknowledged: int) -> None:
        counted = self._counted()
        if counted is not None and counted.acknowledge(slave_id, acknowledged):
            self._on_confirmed(counted.confirm)
