"""Master and slaves over any interleaving of frames, disconnects, crashes, restarts, promotions.

Both sides of the connections are the real ones, without sockets; a wire is a queue of bytes, of
which any number arrives at a time. Three brokers copy one log. Checked at every step:

- what the master takes for replicated is in the log of enough slaves, on their disks if they say so
- the log of a connected slave is a part of the log of its master, from its begin on
- the epochs of each log describe it
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.memory_log import MemoryLog

from tianzhou.ha.epochs import (
    Epochs,
    of_copy,
    of_new_master,
    of_started_master,
    range_at,
    within_log,
)
from tianzhou.ha.frames import encode_opening
from tianzhou.ha.hello import (
    Broker,
    LogState,
    make_request,
    make_response,
    problem_with,
    read_request,
    read_response,
    refusal_of,
)
from tianzhou.ha.master_side import EpochRange, LogBounds, MasterSide, Rules, SlaveRefused
from tianzhou.ha.progress import Acknowledgements
from tianzhou.ha.slave_side import SlaveSide
from tianzhou.protocol import headers
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.ha import HelloRequest

FILE_BYTES = 512
BROKERS = st.integers(0, 2)
SYNC_SLAVE = 1
"""The broker that runs SYNC_FLUSH."""


@dataclass
class Wire:
    """One connection of a slave to the master."""

    slave_side: SlaveSide
    master_side: MasterSide
    to_master: bytearray = field(default_factory=bytearray)
    to_slave: bytearray = field(default_factory=bytearray)
    is_counted: bool = False

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass
class Replica:
    """One broker, with its disk."""

    number: int
    store_number: int
    log: MemoryLog
    epochs: Epochs = ()

    @property
    def store_id(self) -> str:
        return f"{self.store_number:08x}" + "0" * 24

    @property
    def broker(self) -> Broker:
        return Broker(cluster="c", name="a", id=self.number + 1, store_id=self.store_id)

    @property
    def state(self) -> LogState:
        log = self.log
        return LogState(
            first_offset=log.first_log_offset, end_offset=log.end_log_offset,
            file_bytes=FILE_BYTES, epochs=within_log(self.epochs, log.end_log_offset),
            is_flushed=self.is_sync,
        )  # fmt: skip

    @property
    def is_sync(self) -> bool:
        return self.number == SYNC_SLAVE

    @property
    def durable_end(self) -> int:
        """What it answers for: with SYNC_FLUSH only its disk."""
        return self.log.flushed_log_offset if self.is_sync else self.log.end_log_offset


class Replication(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.dice = random.Random(7)
        self.store_count = 3
        self.replicas = [Replica(number, number, new_log(number)) for number in range(3)]
        self.wires: dict[int, Wire] = {}
        self.promised = 0
        self.begin_mastership(0)

    # -- roles -----------------------------------------------------------------------------------

    def begin_mastership(self, number: int) -> None:
        self.master = self.replicas[number]
        self.acknowledgements = Acknowledgements()
        self.wires.clear()
        self.opened: list[list[Wire]] = [[], [], []]
        """Connections that the master still has, older ones of the same slave too."""
        self.promised = 0

    def promote(self, number: int) -> None:
        """By hand, and whatever the others have or know."""
        one = self.replicas[number]
        if one is self.master:
            return
        one.epochs = of_new_master(one.epochs, one.log.end_log_offset, one.store_id)
        self.begin_mastership(number)

    def replace_disk(self, number: int) -> None:
        """An operator starts a broker with an empty store, a slave or the master."""
        one = self.replicas[number]
        self.replicas[number] = Replica(number, self.store_count, new_log(number))
        self.store_count += 1
        if one is self.master:
            self.begin_mastership(number)
            return
        self.disconnect(number)
        self.promised = self.acknowledgements.replicated_log_offset

    # -- the master ------------------------------------------------------------------------------

    @rule(size=st.integers(0, 200), count=st.integers(1, 6))
    def write(self, size: int, count: int) -> None:
        master = self.master
        if not master.epochs:
            master.epochs = of_started_master(
                (), master.log.end_log_offset, master.store_id, is_clean=True
            )
        for _ in range(count):
            master.log.append(self.dice.randbytes(size))

    @rule(number=BROKERS)
    def flush(self, number: int) -> None:
        self.replicas[number].log.flush()
        self.report(number)

    def expire(self, _: int) -> None:
        """The master deletes its oldest file."""
        log = self.master.log
        if len(log.content) > 2 * FILE_BYTES:
            log.expire_files()

    @rule(number=BROKERS, bytes_max=st.integers(0, 300))
    def send(self, number: int, bytes_max: int) -> None:
        wire = self.wires.get(number)
        if wire is None:
            return
        try:
            frame = wire.master_side.next_frame(self.bounds(), self.now_ms, bytes_max)
        except SlaveRefused as error:
            self.closed(number, error)
            return
        if frame is None:
            return
        body = self.master.log.body(frame.log_offset, frame.body_bytes) if frame.body_bytes else b""
        assert len(body) == frame.body_bytes
        wire.to_slave += frame.head + body
        wire.master_side.sent(len(frame.head) + len(body), self.now_ms)

    def bounds(self) -> LogBounds:
        log = self.master.log
        return LogBounds(log.first_log_offset, log.end_log_offset, FILE_BYTES)

    # -- connections -----------------------------------------------------------------------------

    @rule(number=BROKERS)
    def connect(self, number: int) -> None:
        """The hello, and the begin of a connection, which replaces an older one at the master."""
        slave, master = self.replicas[number], self.master
        if slave is master:
            return
        if slave.is_sync and slave.log.flushed_log_offset < slave.log.end_log_offset:
            slave.log.flush()  # a follower waits for that
        request = read_request(make_request(slave.broker, slave.state, ""))
        if refusal_of(request, master.broker, master.state) is not None:
            return
        response = make_response(master.state, token=bytes(16), ha_port=1)
        offer = read_response(Command(code=0, ext_fields=headers.encode(response)))
        assert problem_with(offer, slave.state) is None
        state = slave.state
        slave.epochs = (
            () if state.is_empty else of_copy(slave.epochs, state.end_offset, offer.log.epochs)
        )
        slave_side = SlaveSide(
            None if state.is_empty else state.end_offset, FILE_BYTES, is_ours=True,
            is_flushed=slave.is_sync, epochs=slave.epochs,
        )  # fmt: skip
        self.wires[number] = wire = Wire(slave_side, self.new_master_side(request))
        self.opened[number].append(wire)
        wire.to_master += encode_opening(offer.token or b"") + slave_side.first_report(self.now_ms)

    def new_master_side(self, request: HelloRequest) -> MasterSide:
        master = self.master

        def epoch_at(log_offset: int) -> EpochRange:
            (epoch, start), stop = range_at(master.epochs, log_offset)
            return EpochRange(epoch, start, stop)

        return MasterSide("h", _RULES, self.now_ms, redeem=lambda _: request, epoch_at=epoch_at)

    @rule(number=BROKERS)
    def disconnect(self, number: int) -> None:
        self.wires.pop(number, None)
        for wire in self.opened[number]:
            self.acknowledgements.disconnected(wire)
        self.opened[number].clear()

    def closed(self, number: int, error: SlaveRefused) -> None:
        """One side refused what the other sent: between our own brokers that never happens, but
        for a slave whose next file was deleted meanwhile."""
        assert "oldest file" in str(error), error
        self.disconnect(number)

    # -- bytes arrive ----------------------------------------------------------------------------

    @rule(number=BROKERS, count=st.integers(1, 700))
    def reach_slave(self, number: int, count: int) -> None:
        wire, slave = self.wires.get(number), self.replicas[number]
        if wire is None or not wire.to_slave:
            return
        side, log = wire.slave_side, slave.log
        data = wire.to_slave[:count]
        del wire.to_slave[:count]
        side.space()[: len(data)] = data
        side.received(len(data))
        if side.epochs_changed:
            slave.epochs, side.epochs_changed = side.epochs, False
        log_offset, contents = side.contents()
        if contents:
            if log_offset != log.end_log_offset:
                log.begin_copy_at(log_offset)
            side.appended(log.append_copied(contents))
        self.report(number)

    def report(self, number: int) -> None:
        wire, slave = self.wires.get(number), self.replicas[number]
        if wire is None:
            return
        end = 0 if wire.slave_side.next_log_offset is None else slave.durable_end
        wire.to_master += wire.slave_side.report(end, self.now_ms) or b""

    @rule(number=BROKERS, count=st.integers(1, 60))
    def reach_master(self, number: int, count: int) -> None:
        wire = self.wires.get(number)
        if wire is None or not wire.to_master:
            return
        data = bytes(wire.to_master[:count])
        del wire.to_master[:count]
        side = wire.master_side
        try:
            side.receive(data, self.bounds(), self.now_ms)
        except SlaveRefused as error:
            self.closed(number, error)
            return
        if side.is_started and not wire.is_counted:
            wire.is_counted = True
            replaced = self.acknowledgements.connected(
                wire, side.name, side.reported, side.acknowledged, is_exclusive=True
            )
            assert wire not in replaced
        elif wire.is_counted:
            self.acknowledgements.report(wire, side.reported, side.acknowledged)
        self.promised = max(self.promised, self.acknowledgements.replicated_log_offset)

    @rule(number=BROKERS, size=st.integers(1, 700), rounds=st.integers(1, 8))
    def exchange(self, number: int, size: int, rounds: int) -> None:
        """What a connection does for a while: so the other rules are tried on longer logs, too."""
        if number not in self.wires:
            self.connect(number)
        for _ in range(rounds):
            self.reach_master(number, 40)
            self.send(number, size)
            self.reach_slave(number, size)
        self.reach_master(number, 40)

    @rule(ms=st.sampled_from([1, 500, 5000]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms
        for number in range(3):
            self.report(number)

    @rule(
        what=st.sampled_from(["kill", "cut_power", "promote", "expire", "replace_disk"]), n=BROKERS
    )
    def accident(self, what: str, n: int) -> None:
        """One rule, so that most steps are ordinary ones."""
        getattr(self, what)(n)

    # -- crashes ---------------------------------------------------------------------------------

    def kill(self, number: int) -> None:
        """kill -9: connections and what was not appended are lost, files are not."""
        self.restart(number)

    def cut_power(self, number: int) -> None:
        """What was not flushed is lost. Only a slave with SYNC_FLUSH keeps what it acknowledged."""
        one = self.replicas[number]
        log = one.log
        flushed = max(log.flushed_log_offset - log.first_log_offset, 0)
        del log.content[flushed:]
        self.restart(number)
        if one is not self.master and not one.is_sync:
            self.promised = self.acknowledgements.replicated_log_offset

    def restart(self, number: int) -> None:
        one = self.replicas[number]
        if one is self.master:
            one.epochs = of_started_master(
                one.epochs, one.log.end_log_offset, one.store_id, is_clean=False
            )
            promised = self.promised
            self.begin_mastership(number)
            self.promised = promised
        else:
            self.disconnect(number)
            one.epochs = within_log(one.epochs, one.log.end_log_offset)

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def replicated_bytes_are_on_enough_slaves(self) -> None:
        assert self.acknowledgements.replicated_log_offset <= self.promised
        if not self.promised:
            return
        holders = [
            one for one in self.replicas
            if one is not self.master and one.durable_end >= self.promised
        ]  # fmt: skip
        assert len(holders) >= self.acknowledgements.needed_count

    @invariant()
    def connected_slaves_have_the_log_of_their_master(self) -> None:
        master = self.master.log
        for number in self.wires:
            copy = self.replicas[number].log
            first = max(copy.first_log_offset, master.first_log_offset)
            assert copy.end_log_offset <= master.end_log_offset
            length = copy.end_log_offset - first
            if length > 0:
                mine, theirs = first - copy.first_log_offset, first - master.first_log_offset
                assert (
                    copy.content[mine : mine + length] == master.content[theirs : theirs + length]
                )

    @precondition(lambda self: bool(self.wires))
    @invariant()
    def epochs_of_a_copy_are_those_of_the_master(self) -> None:
        for number in self.wires:
            slave = self.replicas[number]
            for log_offset in (slave.log.first_log_offset, slave.log.end_log_offset - 1):
                if slave.log.content:
                    own, _ = range_at(slave.epochs, log_offset)
                    assert own == range_at(self.master.epochs, log_offset)[0]


def new_log(number: int) -> MemoryLog:
    return MemoryLog(FILE_BYTES, sync_flush=number == SYNC_SLAVE)


_RULES = Rules()

TestReplication = Replication.TestCase
TestReplication.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


# Hypothesis finds short histories and makes them shorter; few of its examples are long.
STEPS = {"write": 6, "exchange": 20, "reach_slave": 4, "reach_master": 4, "send": 4, "flush": 4,
         "connect": 1, "disconnect": 1, "time_passes": 2, "accident": 1}  # fmt: skip
ACCIDENTS = {"kill": 4, "cut_power": 4, "expire": 3, "promote": 2, "replace_disk": 1}


@pytest.mark.parametrize("seed", range(25))
def test_long_histories(seed: int) -> None:
    dice, machine = random.Random(seed), Replication()
    for _ in range(600):
        step = dice.choices(list(STEPS), list(STEPS.values()))[0]
        number, size = dice.randrange(3), dice.randrange(1, 700)
        if step == "write":
            machine.write(dice.randrange(200), dice.randrange(1, 5))
        elif step == "exchange":
            machine.exchange(number, size, dice.randrange(1, 8))
        elif step in ("reach_slave", "reach_master", "send"):
            getattr(machine, step)(number, size)
        elif step == "time_passes":
            machine.time_passes(dice.choice([1, 500, 5000]))
        elif step == "accident":
            machine.accident(dice.choices(list(ACCIDENTS), list(ACCIDENTS.values()))[0], number)
        else:
            getattr(machine, step)(number)
        machine.replicated_bytes_are_on_enough_slaves()
        machine.connected_slaves_have_the_log_of_their_master()
        machine.epochs_of_a_copy_are_those_of_the_master()
