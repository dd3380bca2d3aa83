"""The HA port of a master with real sockets: scripted slaves of Apache's kind and of ours."""

import asyncio
import logging
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.brokers import eventually
from tests.support.ha import HELLO, ScriptedSlave, hello
from tests.support.remoting import on_each_loop
from tests.support.store import draft, open_store, small_config

from tianzhou.errors import ConfigError
from tianzhou.ha import log_sender
from tianzhou.ha.frames import encode_default_report, encode_opening
from tianzhou.ha.listener import Listener, allowed_addresses
from tianzhou.ha.master_side import EpochRange, Rules, SlaveState
from tianzhou.ha.progress import Acknowledgements
from tianzhou.store.files.mapped_file import MappedFile
from tianzhou.store.files.real_disk import RealFile
from tianzhou.store.message_store import MessageStore

FILE_BYTES = 8192
PATIENT = Rules(
    heartbeat_ms=120_000, own_heartbeat_ms=120_000, silence_ms=120_000, first_report_ms=120_000,
    own_first_report_ms=120_000,
)  # fmt: skip
"""Nothing happens by itself."""


@dataclass
class Master:
    """A store and its HA port."""

    store: MessageStore
    listener: Listener
    acknowledgements: Acknowledgements
    port: int

    def append(self, count: int = 1, size_bytes: int = 500) -> None:
        for number in range(count):
            self.store.append(draft("t", number % 3, bytes([number % 256]) * size_bytes))
            self.listener.log_grew()

    @property
    def end(self) -> int:
        return self.store.end_log_offset

    def log_bytes(self, start: int, stop: int) -> bytes:
        """The log as its files have it."""
        files = self.store.log.segments.files
        content = b"".join(file.path.read_bytes() for file in files)
        return content[start - files[0].first : stop - files[0].first]

    async def default(self, first_report: int, *, receive_buffer_bytes: int = 0) -> ScriptedSlave:
        slave = await ScriptedSlave.connect(self.port, receive_buffer_bytes=receive_buffer_bytes)
        await slave.report(first_report)
        return slave

    async def own(
        self, first_report: int, broker_id: int = 1, *, receive_buffer_bytes: int = 0
    ) -> ScriptedSlave:
        token = self.listener.issue_token(hello(broker_id))
        slave = await ScriptedSlave.connect(self.port, token, receive_buffer_bytes)
        await slave.report(first_report)
        return slave

    async def until_replicated(self, log_offset: int) -> None:
        acknowledgements = self.acknowledgements
        await eventually(
            lambda: acknowledgements.replicated_log_offset == log_offset, "acknowledgement"
        )

    def states(self) -> list[SlaveState]:
        return [each.state for each in self.listener.status()]

    async def until_connected(self, count: int) -> None:
        await eventually(
            lambda: len([s for s in self.states() if s is not SlaveState.WAITING]) == count,
            f"{count} slaves",
        )


@asynccontextmanager
async def master(
    folder: Path,
    *,
    rules: Rules = PATIENT,
    file_bytes: int = FILE_BYTES,
    copies: int = 2,
    **options: Any,  # noqa: ANN401 - of the listener
) -> AsyncGenerator[Master]:
    acknowledgements = Acknowledgements(copies)
    with open_store(small_config(folder, log_file_bytes=file_bytes)) as store:
        listener = Listener(store, acknowledgements, rules=rules, **options)
        port = await listener.start("127.0.0.1", 0)
        try:
            yield Master(store, listener, acknowledgements, port)
        finally:
            await listener.stop()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


# -- the log, byte for byte ------------------------------------------------------------------------


@on_each_loop
async def test_slaves_of_both_kinds_get_the_log_byte_for_byte_over_several_files(
    tmp_path: Path,
) -> None:
    rules = Rules(batch_bytes=1500, own_batch_bytes=3000)
    async with master(tmp_path, rules=rules) as it:
        it.append(20)
        start = it.store.log.segments.files[-1].first
        apache, ours = await it.default(start), await it.own(0)
        await it.until_connected(2)
        for _ in range(10):
            it.append(9)
            await asyncio.gather(apache.follow(it.end), ours.follow(it.end))
        assert len(it.store.log.segments.files) > 8
        assert apache.start == start
        assert apache.log == it.log_bytes(start, it.end)
        assert ours.log == it.log_bytes(0, it.end)
        for slave, most in ((apache, 1500), (ours, 3000)):
            assert max(each.body_bytes for each in slave.bodies) <= most
            assert all(
                each.log_offset // FILE_BYTES
                == (each.log_offset + each.body_bytes - 1) // FILE_BYTES
                for each in slave.bodies
            )
        await it.until_replicated(it.end)
        assert it.states() == [SlaveState.IN_STEP] * 2
        apache.close()
        ours.close()


@on_each_loop
async def test_a_slave_of_apaches_without_a_log_gets_the_last_file(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        it.append(40)
        slave = await it.default(0)
        await slave.follow(it.end)
        start = it.store.log.segments.files[-1].first
        assert slave.start == start > 0
        assert slave.log == it.log_bytes(start, it.end)
        slave.close()


@on_each_loop
async def test_a_slave_of_apaches_gets_only_what_is_confirmed(tmp_path: Path) -> None:
    """It is a reader that can take nothing back; a slave of ours has to have it to confirm it."""
    async with master(tmp_path, file_bytes=1 << 20) as it:
        it.append(4)
        confirmed = it.end
        it.store.show_confirmed(confirmed)
        apache, ours = await it.default(0), await it.own(0)
        await asyncio.gather(apache.follow(it.end), ours.follow(it.end))
        it.append(4)
        await ours.follow(it.end)
        await it.until_replicated(it.end)
        apache_status = next(each for each in it.listener.status() if not each.is_ours)
        assert apache_status.position == confirmed
        it.store.confirm(it.end)
        it.listener.confirmed()
        await apache.follow(it.end)
        assert apache.log == ours.log == it.log_bytes(0, it.end)
        apache.close()
        ours.close()


@on_each_loop
async def test_a_slave_that_is_far_behind_catches_up_while_the_log_grows(tmp_path: Path) -> None:
    async with master(tmp_path, file_bytes=1 << 20) as it:
        it.append(500, 10_000)
        apache, ours = await it.default(1 << 20), await it.own(0)
        writing = asyncio.create_task(write_on(it, 300))
        await asyncio.gather(apache.follow(it.end), ours.follow(it.end))
        await writing
        await asyncio.gather(apache.follow(it.end), ours.follow(it.end))
        assert apache.log == it.log_bytes(1 << 20, it.end)
        assert ours.log == it.log_bytes(0, it.end)
        apache.close()
        ours.close()


async def write_on(it: Master, times: int) -> None:
    for _ in range(times):
        it.append(3)
        await asyncio.sleep(0)


@on_each_loop
async def test_all_bytes_of_a_loop_iteration_leave_in_one_frame(tmp_path: Path) -> None:
    async with master(tmp_path, file_bytes=1 << 20) as it:
        it.append()
        apache, ours = await it.default(it.end), await it.own(it.end)
        await it.until_connected(2)
        for _ in range(3):
            start = it.end
            it.append(10)
            for slave in (apache, ours):
                head = await slave.frame()
                assert (head.log_offset, head.body_bytes) == (start, it.end - start)
        apache.close()
        ours.close()


def seventh_epoch(_: int) -> EpochRange:
    return EpochRange(7, 0)


@on_each_loop
async def test_heads_of_ours_have_the_epoch_and_the_confirm_offset(tmp_path: Path) -> None:
    async with master(tmp_path, epoch_at=seventh_epoch, confirm_offset=lambda: 42) as it:
        it.append()
        slave = await it.own(0)
        head = await slave.frame()
        assert head[2:] == (7, 0, 42)
        slave.close()


def never_cached(_: MappedFile, __: int, ___: int) -> bool:
    return False


@on_each_loop
async def test_cold_parts_of_the_log_are_read_in_a_thread_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: set[threading.Thread] = set()
    read = RealFile.read

    def noted(file: RealFile, position: int, count: int) -> bytes:
        readers.add(threading.current_thread())
        return read(file, position, count)

    monkeypatch.setattr(log_sender, "_HOT_BYTES", 0)
    monkeypatch.setattr(log_sender, "_PREFETCH_BYTES", 4096)
    monkeypatch.setattr(MappedFile, "is_cached", never_cached)
    async with master(tmp_path) as it:
        it.append(60)
        monkeypatch.setattr(RealFile, "read", noted)
        apache, ours = await it.default(FILE_BYTES), await it.own(0)
        await asyncio.gather(apache.follow(it.end), ours.follow(it.end))
        assert apache.log == it.log_bytes(FILE_BYTES, it.end)
        assert ours.log == it.log_bytes(0, it.end)
        assert readers
        assert threading.main_thread() not in readers
        apache.close()
        ours.close()


# -- reports that are wrong ------------------------------------------------------------------------


@on_each_loop
async def test_a_report_beyond_the_end_closes_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path) as it:
        it.append(3)
        for log_offset in (it.end + 1, 2**63 - 1, it.end + 1):
            slave = await it.default(log_offset)
            assert await slave.is_closed()
            slave.close()
        assert it.acknowledgements.replicated_log_offset == 0
        assert not it.acknowledgements.are_in_reach(it.end)
        (line,) = warnings_in(caplog)
        assert f"its log ends at {it.end + 1}, after the end of this one, {it.end}" in line
        (status,) = it.listener.status()
        assert status.state is SlaveState.REFUSED
        assert status.problem is not None
        assert "no copy of this log" in status.problem


@on_each_loop
async def test_a_report_beyond_what_was_sent_closes_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, rules=Rules(batch_bytes=1024)) as it:
        it.append(200)
        for make in (it.default, it.own):
            # So small a buffer cannot hold the log.
            slave = await make(FILE_BYTES, receive_buffer_bytes=4096)
            await slave.frame()
            await slave.report(slave.end)
            await it.until_replicated(slave.end)
            await slave.report(it.end + 1)
            assert await slave.is_closed()
            slave.close()
            assert it.acknowledgements.replicated_log_offset == 0
        (line,) = warnings_in(caplog)
        assert f"it reported {it.end + 1}" in line
        assert it.listener.status() == []


@on_each_loop
async def test_foreign_bytes_acknowledge_nothing_and_harm_no_slave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(7)
    async with master(tmp_path) as it:
        it.append(30)
        slave = await it.own(0)
        await slave.follow(it.end, reports=False)
        for _ in range(30):
            peer = await ScriptedSlave.connect(it.port)
            await peer.send(chance.choice((b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02", b"")))
            await peer.send(bytes([255]) + chance.randbytes(64))
            assert await peer.is_closed()
            peer.close()
        assert it.acknowledgements.replicated_log_offset == 0
        assert len(warnings_in(caplog)) == 1
        it.append(5)
        await slave.follow(it.end)
        await it.until_replicated(it.end)
        slave.close()


@on_each_loop
async def test_a_slave_of_apaches_before_the_oldest_file_gets_heartbeats_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, rules=Rules(heartbeat_ms=20)) as it:
        it.append(60)
        it.store.log.segments.remove_first(2)
        for _ in range(2):
            slave = await it.default(FILE_BYTES)
            assert await slave.frame() == (FILE_BYTES, 0, 0, 0, -1)
            await slave.report(FILE_BYTES)
            assert await slave.frame() == (FILE_BYTES, 0, 0, 0, -1)
            (status,) = it.listener.status()
            assert status.state is SlaveState.CANNOT_FOLLOW
            assert status.problem is not None
            assert f"before the oldest file here, {2 * FILE_BYTES}" in status.problem
            assert not it.acknowledgements.are_in_reach(it.end)
            assert it.acknowledgements.replicated_log_offset == 0
            slave.close()
            await eventually(lambda: not it.listener.status(), "close")
        assert len(warnings_in(caplog)) == 1


@on_each_loop
async def test_a_slave_whose_next_file_is_deleted_stops_counting(tmp_path: Path) -> None:
    async with master(tmp_path, rules=Rules(heartbeat_ms=20)) as it:
        it.append(5)
        slave = await it.default(0)
        await slave.follow(it.end)
        await it.until_replicated(it.end)
        for _ in range(60):
            it.store.append(draft("t", 0, bytes(500)))
        it.store.log.segments.remove_first(2)
        it.listener.log_grew()
        await eventually(lambda: it.states() == [SlaveState.CANNOT_FOLLOW], "state")
        assert it.acknowledgements.replicated_log_offset == 0
        slave.close()


# -- tokens, ids, addresses ------------------------------------------------------------------------


@on_each_loop
async def test_a_token_opens_one_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path) as it:
        it.append()
        token = it.listener.issue_token(HELLO)
        slave = await ScriptedSlave.connect(it.port, token)
        await slave.report(0)
        await slave.follow(it.end)
        for wrong in (token, bytes(16)):
            peer = await ScriptedSlave.connect(it.port, wrong)
            assert await peer.is_closed()
            peer.close()
        assert [each.name for each in it.listener.status()] == ["id:1"]
        (line,) = warnings_in(caplog)
        assert "its token is unknown, used or too old" in line
        slave.close()


@on_each_loop
async def test_a_token_that_is_too_old_is_refused(tmp_path: Path) -> None:
    async with master(tmp_path, token_ms=1) as it:
        token = it.listener.issue_token(HELLO)
        await asyncio.sleep(0.01)
        slave = await ScriptedSlave.connect(it.port, token)
        assert await slave.is_closed()
        slave.close()


@on_each_loop
async def test_a_second_connection_of_an_id_replaces_the_first(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        it.append(10)
        first = await it.own(0, 1)
        other = await it.own(0, 2)
        await first.follow(it.end)
        await it.until_replicated(it.end)
        second = await it.own(0, 1)
        assert await first.is_closed()
        await it.until_replicated(0)
        await second.follow(it.end)
        await it.until_replicated(it.end)
        assert sorted(each.name for each in it.listener.status()) == ["id:1", "id:2"]
        for each in (first, second, other):
            each.close()


@on_each_loop
async def test_with_an_access_list_only_its_addresses_and_tokens_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, allows_default=allowed_addresses("10.0.0.*;10.1.0.1")) as it:
        it.append()
        for _ in range(2):
            refused = await it.default(it.end)
            assert await refused.is_closed()
            refused.close()
        assert "haAllowedAddresses does not name this address" in warnings_in(caplog)[0]
        assert len(warnings_in(caplog)) == 1
        slave = await it.own(0)
        await slave.follow(it.end)
        slave.close()
    async with master(tmp_path, allows_default=allowed_addresses("10.1.0.1; 127.0.0.1")) as it:
        slave = await it.default(0)
        await slave.follow(it.end)
        slave.close()


def test_an_access_list_has_patterns_and_an_empty_one_admits_none() -> None:
    allows = allowed_addresses("10.0.0.0/24;::1")
    assert allows("10.0.0.7")
    assert allows("[::1]")
    assert not allows("10.0.1.7")
    assert not allowed_addresses("")("10.0.0.7")
    with pytest.raises(ConfigError):
        allowed_addresses("10.0.0.300")


# -- heartbeats and silence ------------------------------------------------------------------------


@on_each_loop
async def test_heartbeats_come_while_nothing_is_written(tmp_path: Path) -> None:
    async with master(tmp_path, rules=Rules(heartbeat_ms=80, own_heartbeat_ms=20)) as it:
        it.append()
        apache, ours = await it.default(it.end), await it.own(it.end)
        for slave in (apache, ours):
            for _ in range(3):
                head = await slave.frame()
                assert (head.log_offset, head.body_bytes) == (it.end, 0)
        assert len(ours.heartbeats) == 3
        apache.close()
        ours.close()


@on_each_loop
async def test_silent_peers_and_half_frames_are_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = Rules(first_report_ms=60, own_first_report_ms=30)
    async with master(tmp_path, rules=rules) as it:
        it.append()
        token = it.listener.issue_token(HELLO)
        for piece in (
            b"", encode_default_report(0)[:7], encode_opening(token)[:19], encode_opening(token),
        ):  # fmt: skip
            peer = await ScriptedSlave.connect(it.port)
            await peer.send(piece)
            assert await peer.is_closed()
            peer.close()
        assert it.listener.status() == []
        (line,) = warnings_in(caplog)
        assert "no report within 60 ms" in line


@on_each_loop
async def test_a_slave_that_falls_silent_is_closed_and_no_longer_counts(tmp_path: Path) -> None:
    rules = Rules(heartbeat_ms=20, silence_ms=150)
    async with master(tmp_path, rules=rules) as it:
        it.append()
        slave = await it.default(0)
        await slave.follow(it.end)
        await it.until_replicated(it.end)
        await slave.report(it.end)
        assert await slave.is_closed()
        assert it.acknowledgements.replicated_log_offset == 0
        assert not it.acknowledgements.are_in_reach(it.end)
        slave.close()


@on_each_loop
async def test_a_report_that_arrived_while_the_loop_was_blocked_counts_in_time(
    tmp_path: Path,
) -> None:
    async with master(tmp_path, rules=replace(PATIENT, silence_ms=300)) as it:
        it.append()
        slave = await it.default(it.end)
        await it.until_connected(1)
        slave.sock.send(encode_default_report(it.end))
        time.sleep(0.5)  # noqa: ASYNC251 - a callback that takes long
        await asyncio.sleep(0.01)
        assert it.states() == [SlaveState.IN_STEP]
        assert it.acknowledgements.replicated_log_offset == it.end
        slave.close()


@on_each_loop
async def test_a_slave_that_reports_and_does_not_read_is_closed(tmp_path: Path) -> None:
    async with master(tmp_path, rules=Rules(silence_ms=150), file_bytes=1 << 20) as it:
        it.append(1200, 10_000)
        slave = await it.own(0, receive_buffer_bytes=4096)
        await slave.frame()

        async def report_on() -> bool:
            try:
                await slave.report(slave.end)
            except ConnectionError:
                return True
            return not it.listener.status()

        await eventually(report_on, "close")
        slave.close()


# -- many and slow peers ---------------------------------------------------------------------------


@on_each_loop
async def test_a_slow_reader_delays_only_itself(tmp_path: Path) -> None:
    async with master(tmp_path, file_bytes=1 << 20) as it:
        it.append(1200, 10_000)
        slow, ours = await it.own(0, 1, receive_buffer_bytes=4096), await it.own(0, 2)
        await slow.frame()
        await ours.follow(it.end)
        it.append(50)
        await ours.follow(it.end)
        await it.until_replicated(it.end)
        by_name = {each.name: each for each in it.listener.status()}
        assert by_name["id:1"].state is SlaveState.CATCHING_UP
        assert by_name["id:1"].position < it.end
        await slow.follow(it.end)
        assert slow.log == ours.log == it.log_bytes(0, it.end)
        slow.close()
        ours.close()


@on_each_loop
async def test_a_frame_that_a_socket_accepts_in_part_is_completed_without_new_bytes(
    tmp_path: Path,
) -> None:
    async with master(tmp_path, file_bytes=1 << 20) as it:
        it.append()
        for connect in (it.default, it.own):
            slave = await connect(it.end, receive_buffer_bytes=4096)
            await it.until_connected(1)
            while it.states() == [SlaveState.IN_STEP]:
                it.append(20, 10_000)
                await asyncio.sleep(0.001)
            await slave.follow(it.end)
            slave.close()
            await eventually(lambda: not it.listener.status(), "close")


@on_each_loop
async def test_a_thousand_connections_are_bounded_and_slaves_go_on(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        it.append(5)
        slaves = [await it.default(0), await it.own(0)]
        process = psutil.Process()
        before = process.num_fds()
        peers: list[ScriptedSlave] = []
        for number in range(1000):
            peer = await ScriptedSlave.connect(it.port)
            peers.append(peer)
            await peer.send(b"\0" * (number % 8))
            if number % 100 == 50:
                it.append(2)
                for slave in slaves:
                    await slave.follow(it.end)
        late = await it.own(0, 2)
        await late.follow(it.end)
        # It came last, so all others were accepted, or were closed.
        assert len(it.listener.status()) <= 3 + 16
        # Here are both ends of the connections: those of the peers, and those of the port.
        assert process.num_fds() - before <= 1000 + 1 + 1 + 16
        await it.until_replicated(it.end)
        for each in (*peers, *slaves, late):
            each.close()


@on_each_loop
async def test_slaves_above_the_limit_are_refused_and_one_that_returns_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, connections_max=5, silent_max=2) as it:
        it.append()
        slaves = [await it.own(0, number) for number in range(3)]
        for slave in slaves:
            await slave.follow(it.end)
        refused = await it.own(0, 3)
        assert await refused.is_closed()
        again = await it.own(0, 2)
        await again.follow(it.end)
        assert await slaves[2].is_closed()
        (line,) = warnings_in(caplog)
        assert "3 slaves are connected, the limit" in line
        for each in (*slaves, refused, again):
            each.close()


@on_each_loop
async def test_connections_of_default_ha_do_not_shut_out_slaves_of_ours(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path, connections_max=5, silent_max=2) as it:
        it.append()
        foreign = [await it.default(0) for _ in range(3)]
        await it.until_connected(3)
        slaves = [await it.own(0, number) for number in range(3)]
        for slave in slaves:
            await slave.follow(it.end)
        assert all([await each.is_closed() for each in foreign])
        assert {each.name for each in it.listener.status()} == {"id:0", "id:1", "id:2"}
        assert "one of Tianzhou connects" in warnings_in(caplog)[0]
        late = await it.default(0)
        assert await late.is_closed()
        for each in (*foreign, *slaves, late):
            each.close()


# -- flow control ----------------------------------------------------------------------------------


def reaches(value: Callable[[], int], least: int) -> bool:
    return value() >= least


@on_each_loop
async def test_the_rate_limit_is_for_all_slaves_together(tmp_path: Path) -> None:
    now_ms = [0]
    async with master(
        tmp_path, rules=Rules(batch_bytes=1000, own_batch_bytes=1000), bytes_per_second=100_000,
        clock=lambda: now_ms[0],
    ) as it:  # fmt: skip
        it.append(200)
        slaves = [await it.own(0, 1), await it.own(0, 2)]
        await it.until_connected(2)

        def sent() -> int:
            return sum(each.position for each in it.listener.status())

        for slave in slaves:
            reading = asyncio.create_task(slave.follow(it.end))
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        for round_ in range(6):
            # Each tenth of a second is worth 10,000 bytes, and a frame may exceed it.
            most = 10_000 * (round_ + 1)
            await eventually(partial(reaches, sent, most), "share")
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert sent() <= most + 1000
            now_ms[0] += 100
        positions = [each.position for each in it.listener.status()]
        assert min(positions) > 0
        while sent() < 2 * it.end:
            now_ms[0] += 100
            await asyncio.sleep(0.001)
        await eventually(lambda: all(each.end == it.end for each in slaves), "the whole log")
        assert all(each.log == it.log_bytes(0, it.end) for each in slaves)
        for each in slaves:
            each.close()


# -- starting and stopping -------------------------------------------------------------------------


@on_each_loop
async def test_all_are_disconnected_and_may_come_back(tmp_path: Path) -> None:
    async with master(tmp_path) as it:
        it.append(5)
        slave = await it.own(0)
        await slave.follow(it.end)
        token = it.listener.issue_token(HELLO)
        it.listener.disconnect_all("the role changes")
        assert await slave.is_closed()
        assert it.listener.status() == []
        assert it.acknowledgements.replicated_log_offset == 0
        late = await ScriptedSlave.connect(it.port, token)
        assert await late.is_closed()
        again = await it.own(0)
        await again.follow(it.end)
        await it.listener.stop()
        assert await again.is_closed()
        it.port = await it.listener.start("127.0.0.1", 0)
        third = await it.own(0)
        await third.follow(it.end)
        for each in (slave, late, again, third):
            each.close()


@on_each_loop
async def test_the_status_has_rates_and_positions(tmp_path: Path) -> None:
    now_ms = [0]
    async with master(tmp_path, clock=lambda: now_ms[0]) as it:
        it.append(10)
        slave = await it.own(0)
        await slave.follow(it.end)
        await it.until_replicated(it.end)
        now_ms[0] = 1000
        (status,) = it.listener.status()
        assert (status.name, status.is_ours, status.problem) == ("id:1", True, None)
        assert status.position == status.reported == status.acknowledged == it.end
        assert status.bytes_per_second >= it.end
        slave.close()
