"""The slave of an elected master: what it accepts between the hello and the HA connection."""

import asyncio
import random
import socket
from pathlib import Path
from typing import cast

from tests.support.memory_log import FILE_BYTES, MemoryLog
from tests.support.remoting import eventually

from tianzhou.ha.elected_follower import ElectedFollower, Target
from tianzhou.ha.epochs import Epoch, EpochFile
from tianzhou.ha.hello import Broker, LogState, Membership, Offer, make_response, read_request
from tianzhou.ha.master_connection import Times
from tianzhou.protocol import headers
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.ha import HelloRequest
from tianzhou.remoting.client import Client

SLAVE = Broker(cluster="c", name="broker-a", id=2, store_id="1" * 32)
MEMBER = Membership(group="g", incarnation=7, followed_epoch=0)
TIMES = Times(retry_s=0.02, lasting_retry_s=0.05, request_s=2.0)


class Answers:
    """A client whose hellos get these epochs, the first one perhaps without a token."""

    speaks_tls = False

    def __init__(self, ha_port: int, *epochs: int, must_cut: bool = True) -> None:
        self._ha_port = ha_port
        self._must_cut = must_cut
        self.hellos: list[HelloRequest] = []
        self._epochs = iter(epochs)

    async def request(self, address: str, request: Command, timeout_ms: int) -> Command:
        epoch = next(self._epochs, None)
        if epoch is None:
            await asyncio.Event().wait()
        assert epoch is not None
        self.hellos.append(read_request(request))
        must_cut = self._must_cut and len(self.hellos) == 1
        log = LogState(
            first_offset=0, end_offset=0, file_bytes=FILE_BYTES, epochs=(Epoch(epoch, 0),),
            is_flushed=False,
        )  # fmt: skip
        response = make_response(
            log, token=None if must_cut else bytes(16), ha_port=self._ha_port, group="g"
        )
        return Command(code=ResponseCode.SUCCESS, ext_fields=headers.encode(response))


class Accepting:
    """Accepts every offer, as the state machine would after a cut."""

    follower: ElectedFollower

    def __init__(self) -> None:
        self.problems: list[str] = []

    def offered(self, target: Target, offer: Offer, log_state: LogState) -> None:
        self.follower.open_stream(offer.epoch)

    def connected(self) -> None: ...

    def received(self, confirm_offset: int) -> None: ...

    def heard(self, confirm_offset: int) -> None: ...

    def announced(self, lines: bytes) -> None: ...

    def agreed(self, epoch: int) -> None: ...

    def disconnected(self, why: str) -> None:
        self.problems.append(why)

    def refused(self) -> None: ...


async def test_a_master_that_began_another_epoch_since_the_offer_gets_no_report(
    tmp_path: Path,
) -> None:
    """R9: the followed epoch was saved, and the log cut, for the epoch of the offer."""
    with socket.create_server(("127.0.0.1", 0)) as ha_port:
        ha_port.setblocking(False)
        observer = Accepting()
        client = cast("Client", Answers(ha_port.getsockname()[1], 5, 6))
        follower = ElectedFollower(MemoryLog(), EpochFile(tmp_path), client, observer, times=TIMES)
        observer.follower = follower
        follower.follow(Target(1, "127.0.0.1:1", "127.0.0.1"), SLAVE, lambda: MEMBER)
        await eventually(lambda: bool(observer.problems), lambda: follower.status())
        await follower.stop()
        assert "began another epoch" in observer.problems[0]
        try:
            ha_port.accept()[0].close()
        except BlockingIOError:
            return
        raise AssertionError("the slave has connected to the HA port")


async def test_a_log_that_was_cut_after_the_offer_is_described_in_another_hello(
    tmp_path: Path,
) -> None:
    """Also if only an entry was cut, in which nothing is written: it must not come back."""
    epochs = EpochFile(tmp_path)
    epochs.save((Epoch(1, 0), Epoch(3, 2000)))
    log = MemoryLog()
    log.fill(3000, random.Random(1))

    class Cutting(Accepting):
        def offered(self, target: Target, offer: Offer, log_state: LogState) -> None:
            epochs.save((Epoch(1, 0),))
            super().offered(target, offer, log_state)

    with socket.create_server(("127.0.0.1", 0)) as ha_port:
        observer = Cutting()
        answers = Answers(ha_port.getsockname()[1], 5, 5, must_cut=False)
        follower = ElectedFollower(log, epochs, cast("Client", answers), observer, times=TIMES)
        observer.follower = follower
        follower.follow(Target(1, "127.0.0.1:1", "127.0.0.1"), SLAVE, lambda: MEMBER)
        await eventually(lambda: follower.is_connected, lambda: follower.status())
        await follower.stop()
    assert [each.epochs for each in answers.hellos] == ["1-0,3-2000", "1-0"]


async def test_a_sync_flush_slave_says_hello_when_its_log_is_flushed(tmp_path: Path) -> None:
    """Its first report acknowledges all of it."""
    log = MemoryLog(sync_flush=True)
    log.fill(3000, random.Random(1))
    log.flushed_log_offset, log.hold_flushes = 0, True
    with socket.create_server(("127.0.0.1", 0)) as ha_port:
        observer = Accepting()
        answers = Answers(ha_port.getsockname()[1], 5, must_cut=False)
        follower = ElectedFollower(
            log, EpochFile(tmp_path), cast("Client", answers), observer, times=TIMES
        )
        observer.follower = follower
        follower.follow(Target(1, "127.0.0.1:1", "127.0.0.1"), SLAVE, lambda: MEMBER)
        await eventually(lambda: len(log.flush_requests) > 0, lambda: follower.status())
        assert not answers.hellos
        log.hold_flushes = False
        log.flush()
        await eventually(lambda: follower.is_connected, lambda: follower.status())
        await follower.stop()
