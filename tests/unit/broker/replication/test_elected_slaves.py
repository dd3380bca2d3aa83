"""Slaves of an elected master: which acknowledgements count, and which events there are."""

import socket
from collections.abc import Iterator

import pytest
from tests.support.ha import GivenHello

from tianzhou.broker.replication.elected_slaves import ElectedSlaves
from tianzhou.ha.log_sender import SlaveConnection
from tianzhou.ha.master_side import MasterSide, Rules
from tianzhou.ha.roles.counted_set import CountedSet
from tianzhou.ha.roles.events import Event, SlaveConnected, SlaveDisconnected


class Session:
    """A session of master 1 with 2 and 3 in sync, which connects slaves by the events."""

    def __init__(self) -> None:
        self.counted: CountedSet | None = CountedSet(
            1, [1, 2, 3], confirm=0, copies=2, is_sync_flush=False
        )
        self.counted.own_end(1000, 1000)
        self.events: list[Event] = []
        self.confirmed: list[int] = []
        self.slaves = ElectedSlaves(lambda: self.counted, self.put, self.confirmed.append)

    def put(self, event: Event) -> None:
        self.events.append(event)
        assert self.counted is not None
        if isinstance(event, SlaveConnected):
            self.counted.connected(event.id)
        elif isinstance(event, SlaveDisconnected):
            self.counted.disconnected(event.id)

    def connect(self, connection: SlaveConnection, acknowledged: int) -> list[object]:
        is_ours = connection.side.hello is not None
        name = connection.side.name
        return list(
            self.slaves.connected(connection, name, 900, acknowledged, is_exclusive=is_ours)
        )


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for each in made:
        each.close()


def connection(
    sockets: list[socket.socket], slave_id: int | None, incarnation: int | None = 7
) -> SlaveConnection:
    side = MasterSide("10.0.0.9", Rules(), 0, redeem=lambda token: None)
    if slave_id is not None:
        side.hello = GivenHello(slave_id, 2**62, False, "1", incarnation)
    sockets.append(socket.socket())
    return SlaveConnection(sockets[-1], "10.0.0.9:1", side)


def test_acknowledgements_of_all_members_move_the_confirm_offset(
    sockets: list[socket.socket],
) -> None:
    session = Session()
    two, three = connection(sockets, 2), connection(sockets, 3, None)
    assert session.connect(two, 100) == []
    assert session.confirmed == []
    session.connect(three, 50)
    session.slaves.report(three, 400, 400)
    session.slaves.report(two, 300, 300)
    assert session.confirmed == [50, 100, 300]
    assert session.events == [SlaveConnected(2, 7), SlaveConnected(3, 0)]


def test_a_new_connection_replaces_the_old_one_and_what_it_acknowledged(
    sockets: list[socket.socket],
) -> None:
    session = Session()
    old, new, three = connection(sockets, 2), connection(sockets, 2, 8), connection(sockets, 3)
    session.connect(old, 500)
    assert session.connect(new, 20) == [old]
    session.slaves.disconnected(old)
    session.slaves.report(old, 800, 800)
    session.connect(three, 900)
    assert session.confirmed == [20]
    assert SlaveDisconnected(2) not in session.events


def test_a_slave_by_the_default_protocol_counts_for_nothing(
    sockets: list[socket.socket],
) -> None:
    session = Session()
    reader = connection(sockets, None)
    assert session.connect(reader, 900) == []
    session.slaves.report(reader, 950, 950)
    session.slaves.disconnected(reader)
    assert session.events == []
    assert session.confirmed == []


def test_nothing_counts_between_sessions(sockets: list[socket.socket]) -> None:
    session = Session()
    two, three = connection(sockets, 2), connection(sockets, 3)
    session.connect(two, 100)
    session.connect(three, 100)
    session.slaves.disconnected(three)
    session.slaves.report(two, 500, 500)
    assert session.events[-1] == SlaveDisconnected(3)
    session.counted = None
    session.slaves.report(two, 600, 600)
    assert session.confirmed == [100]
