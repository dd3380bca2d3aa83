"""Announces changed topics and groups of a master to its slaves, before messages that need them.

A connection that begins gets what has changed of late, too: what was announced while a slave
was not connected would otherwise reach it with the next copy of the table, and so perhaps after
messages that it acknowledges. Changes beyond the newest HA_CHANGES_MAX wait for that copy.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from tianzhou.broker.state import BrokerState
from tianzhou.ha.frames import CHANGES_BYTES_MAX
from tianzhou.ha.listener import Listener
from tianzhou.ha.tables import Table, TableChange, encode_change
from tianzhou.limits import HA_CHANGES_MAX


class Announcements:
    """The changes of one master; `begin` when its HA port is open, `end` before it is closed."""

    def __init__(self, state: BrokerState, listener: Listener) -> None:
        self._state = state
        self._listener = listener
        self._recent: OrderedDict[tuple[Table, str], None] = OrderedDict()
        """What was created or replaced of late, oldest first."""

    def begin(self) -> None:
        """Announce every change from now on."""
        self._listener.announced = self._lines
        self._state.topics.on_entries = lambda names: self._changed(Table.TOPICS, names)
        self._state.groups.on_entries = lambda names: self._changed(Table.GROUPS, names)

    def end(self) -> None:
        """Announce nothing any more."""
        self._state.topics.on_entries = self._state.groups.on_entries = lambda names: None

    def _changed(self, table: Table, names: Iterable[str]) -> None:
        for name in names or ("",):
            if name:
                self._recent[table, name] = None
                self._recent.move_to_end((table, name))
                if len(self._recent) > HA_CHANGES_MAX:
                    self._recent.popitem(last=False)
            self._listener.announce(f"{table} {name}", self._line(table, name))

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        """What a connection that begins gets first."""
        for table, name in self._recent:
            yield f"{table} {name}", self._line(table, name)

    def _line(self, table: Table, name: str) -> bytes:
        """The present entry; that the table is to be read, if there is none or it is too long."""
        state = self._state
        if table is Table.TOPICS:
            counter = state.topics.data_version.counter
            change = TableChange(table=table, counter=counter, topic=state.topics.get(name))
        else:
            counter = state.groups.data_version.counter
            change = TableChange(table=table, counter=counter, group=state.groups.get(name))
        line = encode_change(change)
        if len(line) < CHANGES_BYTES_MAX:
            return line
        return encode_change(TableChange(table=table, counter=counter))
