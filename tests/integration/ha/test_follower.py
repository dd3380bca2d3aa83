"""A slave and a scripted master over real sockets: both protocols, and every way it can fail."""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import replace
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from tests.support.memory_log import FILE_BYTES, MemoryLog
from tests.support.ports import free_port
from tests.support.remoting import eventually, on_each_loop
from tests.support.scripted_master import TOKEN, ScriptedMaster, scripted_master

from tianzhou.errors import StoreError, StoreFull
from tianzhou.ha.epochs import Epoch, EpochFile
from tianzhou.ha.follower import Follower
from tianzhou.ha.frames import HEAD, encode_default_head, encode_opening
from tianzhou.ha.hello import Broker
from tianzhou.ha.master_connection import Times
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.remoting.client import Client

SLAVE = Broker(cluster="c", name="broker-a", id=1, store_id="1" * 32)
TIMES = Times(
    retry_s=0.02, lasting_retry_s=0.05, silence_s=5.0, report_s=0.1, range_s=0.1, request_s=2.0
)
IMPATIENT = replace(TIMES, silence_s=0.4)
BOTH = pytest.mark.parametrize("is_ours", [False, True], ids=["apache", "ours"])
ONE = (Epoch(1, 0),)

Master = Callable[[], tuple[str | None, str | None]]


@contextlib.asynccontextmanager
async def following(
    master: ScriptedMaster | Master, log: MemoryLog, root: Path, times: Times = TIMES
) -> AsyncGenerator[Follower, None]:
    addresses = master.addresses if isinstance(master, ScriptedMaster) else master
    client = Client()
    follower = Follower(log, EpochFile(root), SLAVE, client, addresses, times=times)
    await follower.start()
    try:
        yield follower
    finally:
        await follower.stop()
        await client.close()


def filled(byte_count: int = 20_000, *, seed: int = 1) -> MemoryLog:
    log = MemoryLog()
    log.fill(byte_count, random.Random(seed))
    return log


async def equal(master: MemoryLog, slave: MemoryLog) -> None:
    await eventually(
        lambda: slave.end_log_offset == master.end_log_offset,
        lambda: (slave.end_log_offset, master.end_log_offset),
    )
    assert master.content.endswith(slave.content)


async def problem_with(follower: Follower, *words: str) -> str:
    def text() -> str:
        return follower.status().problem or ""

    await eventually(lambda: all(word in text() for word in words), follower.status)
    return text()


# -- copying ---------------------------------------------------------------------------------------


@BOTH
@on_each_loop
async def test_the_log_is_copied_and_acknowledged(tmp_path: Path, is_ours: bool) -> None:
    log, copy = filled(), MemoryLog()
    copy.append_copied(memoryview(log.body(0, 3000)))
    async with scripted_master(log, is_ours=is_ours) as master:
        if is_ours:
            EpochFile(tmp_path).save(ONE)
        start = copy.end_log_offset
        async with following(master, copy, tmp_path) as follower:
            await equal(log, copy)
            log.fill(40_000, random.Random(2))
            await equal(log, copy)
            await eventually(
                lambda: master.reports[0][-1] == log.end_log_offset, lambda: master.reports
            )
            status = follower.status()
        assert master.reports[0][0] == start > 0
        assert master.reports[0] == sorted(master.reports[0])
        assert (status.state, status.problem, status.is_ours) == ("following", None, is_ours)
        assert (status.end_log_offset, status.master_end) == (log.end_log_offset,) * 2
        assert status.master_address == master.ha_address
        assert min(status.last_read_ms, status.last_write_ms) > 0
        assert len(master.hellos) == 1
        assert master.openings[0] == (encode_opening(TOKEN) if is_ours else b"")
    assert follower.status().state == "stopped"


@BOTH
async def test_records_that_bodies_cut_are_joined(tmp_path: Path, is_ours: bool) -> None:
    log, copy = filled(6000), MemoryLog()
    async with scripted_master(log, is_ours=is_ours) as master:
        master.body_bytes = 13
        log.first_log_offset = 0
        copy.append_copied(memoryview(log.body(0, 2000)))
        EpochFile(tmp_path).save(ONE)
        async with following(master, copy, tmp_path):
            await equal(log, copy)
    assert copy.content == log.content


@BOTH
async def test_an_empty_slave_begins_at_the_file_that_the_master_sends(
    tmp_path: Path, is_ours: bool
) -> None:
    log, copy = filled(), MemoryLog()
    log.expire_files(2)
    EpochFile(tmp_path).save((Epoch(7, 30),))
    async with scripted_master(log, is_ours=is_ours) as master:
        async with following(master, copy, tmp_path):
            await equal(log, copy)
        assert master.reports[0][0] == 0
    # Apache's master sends its last file only, ours everything it has.
    last_file = log.end_log_offset - log.end_log_offset % FILE_BYTES
    assert copy.first_log_offset == (2 * FILE_BYTES if is_ours else last_file)
    # The entries of the log that was there before describe nothing.
    assert EpochFile(tmp_path).epochs == (ONE if is_ours else ())


async def test_an_empty_slave_follows_an_empty_master(tmp_path: Path) -> None:
    log, copy = MemoryLog(), MemoryLog()
    async with (
        scripted_master(log, is_ours=False) as master,
        following(master, copy, tmp_path) as follower,
    ):
        await eventually(lambda: follower.status().last_read_ms > 0, follower.status)
        log.fill(9000, random.Random(3))
        await equal(log, copy)
    assert copy.content == log.content


async def test_epochs_of_the_master_are_saved_before_their_bytes(tmp_path: Path) -> None:
    log, copy = filled(9000), MemoryLog()
    boundary = log.first_log_offset + FILE_BYTES
    epochs = (*ONE, Epoch(3, boundary))

    class Watched(EpochFile):
        def save(self, epochs: tuple[Epoch, ...]) -> None:
            changes.append((copy.end_log_offset, epochs))
            super().save(epochs)

    changes: list[tuple[int, tuple[Epoch, ...]]] = []
    client = Client()
    async with scripted_master(log, is_ours=True) as master:
        master.epochs = epochs
        follower = Follower(copy, Watched(tmp_path), SLAVE, client, master.addresses, times=TIMES)
        await follower.start()
        await equal(log, copy)
        await follower.stop()
        await client.close()
    assert EpochFile(tmp_path).epochs == epochs
    assert all(end <= boundary for end, saved in changes if saved == epochs)


# -- disconnects -----------------------------------------------------------------------------------


@BOTH
@on_each_loop
async def test_a_reset_connection_begins_again_at_the_end_of_the_log(
    tmp_path: Path, is_ours: bool
) -> None:
    log, copy = filled(300_000), MemoryLog()
    log.expire_files(0)
    begins: list[tuple[int, int]] = []
    """At each reset, the number of the next connection and the end of the log."""
    async with scripted_master(log, is_ours=is_ours) as master:
        master.body_bytes = 700
        copy.append_copied(memoryview(log.body(0, 3000)))
        EpochFile(tmp_path).save(ONE)
        async with following(master, copy, tmp_path):
            for _ in range(4):
                seen = len(master.reports) if begins else 0
                await eventually(
                    lambda n=seen: any(len(each) > 3 for each in master.reports[n:]),  # type: ignore[misc]
                    lambda: master.reports,
                )
                master.reset()
                begins.append((len(master.reports), copy.end_log_offset))
            await equal(log, copy)
        for number, end in begins:
            assert all(reports[0] >= end for reports in master.reports[number:] if reports)
    assert copy.content == log.content


@BOTH
async def test_a_silent_master_is_left(tmp_path: Path, is_ours: bool) -> None:
    log, copy = filled(), filled(4000)
    EpochFile(tmp_path).save(ONE)
    async with scripted_master(log, is_ours=is_ours) as master:
        master.silent = True
        async with following(master, copy, tmp_path, IMPATIENT) as follower:
            await problem_with(follower, "sent nothing for 0.4 s")
            master.silent = False
            await equal(log, copy)
            await eventually(lambda: follower.status().problem is None, follower.status)
        assert len(master.reports) >= 2


@BOTH
async def test_heartbeats_show_that_a_master_is_alive(tmp_path: Path, is_ours: bool) -> None:
    log, copy = filled(), MemoryLog()
    patience = replace(TIMES, silence_s=1.0)
    async with (
        scripted_master(log, is_ours=is_ours) as master,
        following(master, copy, tmp_path, patience),
    ):
        await equal(log, copy)
        # 0.1 s between reports, 1 s until silence closes a connection.
        await eventually(lambda: len(master.reports[0]) >= 15, lambda: master.reports)
        assert len(master.reports) == 1


async def test_a_master_that_moved_is_followed_to_its_new_address(tmp_path: Path) -> None:
    log, copy = filled(), MemoryLog()
    async with (
        scripted_master(log, is_ours=True) as old,
        scripted_master(log, is_ours=True) as new,
    ):
        current = old
        async with following(lambda: current.addresses(), copy, tmp_path):
            await equal(log, copy)
            current = new
            log.fill(30_000, random.Random(4))
            await eventually(lambda: len(new.reports) == 1, lambda: new.reports)
            await equal(log, copy)


# -- the hello -------------------------------------------------------------------------------------


@on_each_loop
async def test_nothing_is_sent_to_the_ha_port_before_the_hello_has_a_response(
    tmp_path: Path,
) -> None:
    """Apache's would take "TZHA" for a log offset; ours would not compare logs in default HA."""
    log = filled()
    async with scripted_master(log, is_ours=True) as master:
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as mute:
            port = mute.getsockname()[1]
            silent = Times(retry_s=0.02, request_s=0.1)
            addresses = (f"127.0.0.1:{port}", master.ha_address)
            async with following(lambda: addresses, MemoryLog(), tmp_path, silent) as follower:
                await problem_with(follower, "cannot be reached", "has not answered")
        refused = (f"127.0.0.1:{free_port()}", master.ha_address)
        async with following(lambda: refused, MemoryLog(), tmp_path) as follower:
            await problem_with(follower, "cannot be reached", "Connection refused")
        master.response_code = ResponseCode.SYSTEM_BUSY
        async with following(master, MemoryLog(), tmp_path) as follower:
            await problem_with(follower, "cannot be reached", "starting")
        master.response_code = ResponseCode.NO_PERMISSION
        async with following(master, MemoryLog(), tmp_path) as follower:
            await problem_with(follower, "refuses this slave", "starting")
        assert master.reports == []


async def test_the_listen_port_is_one_below_the_ha_port_if_it_is_not_known(tmp_path: Path) -> None:
    port = free_port()
    async with following(lambda: (None, f"127.0.0.1:{port + 1}"), MemoryLog(), tmp_path) as slave:
        await problem_with(
            slave, f"127.0.0.1:{port}", "Connection refused",
            f"the port below haMasterAddress=127.0.0.1:{port + 1}, which must be its HA port",
        )  # fmt: skip


@contextlib.contextmanager
def full_port() -> Generator[int]:
    """A port that accepts no connection and refuses none, as behind a firewall."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


async def test_why_the_ha_port_cannot_be_reached(tmp_path: Path) -> None:
    async with scripted_master(filled(), is_ours=True) as master:
        times = Times(retry_s=0.02, request_s=0.3)
        master.ha_port = free_port()
        async with following(master, MemoryLog(), tmp_path, times) as follower:
            port = f"the master's HA port 127.0.0.1:{master.ha_port} cannot be reached"
            await problem_with(follower, f"{port}: Connection refused")
            with full_port() as master.ha_port:
                port = f"the master's HA port 127.0.0.1:{master.ha_port} cannot be reached"
                await problem_with(follower, f"{port}: no response in time")


async def test_without_a_master_the_slave_says_where_one_would_come_from(tmp_path: Path) -> None:
    async with following(lambda: (None, None), MemoryLog(), tmp_path) as follower:
        await problem_with(follower, "no master is known", "haMasterAddress")


async def test_the_masters_reason_for_a_refusal_is_shown_until_it_accepts(tmp_path: Path) -> None:
    log, copy = filled(), MemoryLog()
    async with scripted_master(log, is_ours=True) as master:
        master.refusal = "this broker is a slave itself"
        async with following(master, copy, tmp_path) as follower:
            await problem_with(follower, "refuses this slave: this broker is a slave itself")
            assert follower.status().state != "following"
            master.refusal = None
            await equal(log, copy)
            await eventually(lambda: follower.status().problem is None, follower.status)


async def test_different_file_sizes_are_named(tmp_path: Path) -> None:
    async with scripted_master(filled(), is_ours=True) as master:
        copy = MemoryLog(2 * FILE_BYTES)
        async with following(master, copy, tmp_path) as follower:
            await problem_with(follower, "is 4096 on the master and 8192 on the slave")
    assert copy.content == b""


async def test_apaches_master_with_other_file_sizes_is_noticed(tmp_path: Path) -> None:
    """Default HA does not say the size; the first offset or a body across a boundary shows it."""
    log = filled(24_000)
    assert log.end_log_offset // FILE_BYTES % 2 == 1, "its last file begins in the middle of ours"
    async with scripted_master(log, is_ours=False) as master:
        larger, smaller = MemoryLog(2 * FILE_BYTES), MemoryLog(FILE_BYTES // 2)
        async with following(master, larger, tmp_path) as follower:
            await problem_with(follower, "mappedFileSizeCommitLog is 8192 as here")
        async with following(master, smaller, tmp_path) as follower:
            await problem_with(follower, "mappedFileSizeCommitLog")
    assert larger.content == smaller.content == b""


# -- logs that cannot follow -----------------------------------------------------------------------


def ahead() -> MemoryLog:
    return filled(30_000)


def old() -> MemoryLog:
    copy = MemoryLog()
    copy.append_copied(memoryview(filled().body(0, FILE_BYTES)))
    return copy


@BOTH
@pytest.mark.parametrize(
    ("slave", "words"),
    [
        pytest.param(ahead, ("slave has", "master lacks", "promote the slave"), id="ahead"),
        pytest.param(old, ("begins at 8192", "expired", "empty one"), id="gap"),
    ],
)
async def test_a_slave_that_cannot_follow_says_so_once_and_never_connects(
    tmp_path: Path,
    is_ours: bool,
    slave: Callable[[], MemoryLog],
    words: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, copy = filled(), slave()
    log.expire_files(2)
    before = bytes(copy.content)
    EpochFile(tmp_path).save(ONE)
    async with scripted_master(log, is_ours=is_ours) as master:
        with caplog.at_level(logging.INFO, "tianzhou.ha"):
            async with following(master, copy, tmp_path) as follower:
                await problem_with(follower, *words)
                await eventually(lambda: len(master.hellos) >= 4, lambda: master.hellos)
        assert master.reports == []
    assert copy.content == before, "nothing is truncated"
    assert len([each for each in caplog.records if words[0] in each.message]) == 1


async def test_diverged_epochs_are_refused(tmp_path: Path) -> None:
    log, copy = filled(), filled(15_000)
    EpochFile(tmp_path).save(ONE)
    async with scripted_master(log, is_ours=True) as master:
        master.epochs = (*ONE, Epoch(2, 9000))
        async with following(master, copy, tmp_path) as follower:
            await problem_with(follower, "equal up to 9000 only", "lost the end of its log")
        assert master.reports == []


async def test_files_that_expire_before_a_slave_of_apaches_master_got_them_are_noticed(
    tmp_path: Path,
) -> None:
    """Apache's master goes on with heartbeats then, and nothing else is to be seen."""
    log, copy = filled(), MemoryLog()
    copy.append_copied(memoryview(log.body(0, FILE_BYTES)))
    async with scripted_master(log, is_ours=False) as master:
        master.lie = lambda position, body: encode_default_head(FILE_BYTES, 0)
        async with following(master, copy, tmp_path) as follower:
            await eventually(lambda: follower.status().state == "following", follower.status)
            log.expire_files(2)
            await problem_with(follower, "begins at 8192", "expired")


def lying(lie: Callable[[int, bytes], bytes], words: str, *, id: str) -> ParameterSet:
    return pytest.param(lie, words, id=id)


# -- masters that lie ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        lying(lambda at, body: encode_default_head(at + 1, len(body)) + body,
                     "comes next", id="wrong offset"),
        lying(lambda at, body: encode_default_head(at, -5), "a body of -5", id="negative"),
        lying(lambda at, body: encode_default_head(at, 1 << 30), "are accepted", id="long"),
        lying(lambda at, body: encode_default_head(at, 4096) + bytes(4096),
                     "cross the end of a file", id="across files"),
        lying(lambda at, body: encode_default_head(at, len(body)) + bytes(len(body)),
                     "no record", id="no records"),
        lying(lambda at, body: HEAD.pack(2, 10, at, 1, 0, 0), "comes next",
                     id="frames of the other protocol"),
    ],
)  # fmt: skip
async def test_a_lie_of_apaches_master_closes_the_connection(
    tmp_path: Path, lie: Callable[[int, bytes], bytes], words: str
) -> None:
    await check_lie(tmp_path, lie, words, is_ours=False)


def our_head(at: int, size: int, *, state: int = 2, epoch: int = 1, start: int = 0) -> bytes:
    return HEAD.pack(state, size, at, epoch, start, 0)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        lying(lambda at, body: our_head(at - 1, len(body)) + body, "comes next",
                     id="wrong offset"),
        lying(lambda at, body: our_head(at, -1), "a body of -1", id="negative"),
        lying(lambda at, body: our_head(at, 5 << 20), "are accepted", id="long"),
        lying(lambda at, body: our_head(at, 0, state=1), "of state 1", id="handshake"),
        lying(lambda at, body: our_head(at, 0, state=3), "of state 3", id="suspend"),
        lying(lambda at, body: our_head(at, 0, epoch=0), "of epoch 0", id="old epoch"),
        lying(lambda at, body: our_head(at, 0, epoch=2, start=9), "of epoch 2",
                     id="another history"),
        lying(lambda at, body: our_head(at, len(body)) + bytes(len(body)), "no record",
                     id="no records"),
    ],
)  # fmt: skip
async def test_a_lie_of_our_master_closes_the_connection(
    tmp_path: Path, lie: Callable[[int, bytes], bytes], words: str
) -> None:
    await check_lie(tmp_path, lie, words, is_ours=True)


async def check_lie(
    root: Path, lie: Callable[[int, bytes], bytes], words: str, *, is_ours: bool
) -> None:
    log, copy = filled(), MemoryLog()
    copy.append_copied(memoryview(log.body(0, 3000)))
    before = bytes(copy.content)
    EpochFile(root).save(ONE)
    async with scripted_master(log, is_ours=is_ours) as master:
        master.lie = lie
        async with following(master, copy, root) as follower:
            await problem_with(follower, words)
            assert copy.content == before
            master.lie = None
            await equal(log, copy)
    assert copy.content == log.content


# -- a store that refuses --------------------------------------------------------------------------


@BOTH
@on_each_loop
async def test_a_full_disk_pauses_the_copy_and_loses_nothing(
    tmp_path: Path, is_ours: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log, copy = filled(), MemoryLog()
    EpochFile(tmp_path).save(ONE)
    copy.append_copied(memoryview(log.body(0, 3000)))
    start = copy.end_log_offset
    copy.refusal = StoreFull("no space left on the disk")
    async with scripted_master(log, is_ours=is_ours) as master:
        async with following(master, copy, tmp_path, IMPATIENT) as follower:
            await problem_with(follower, "no space left")
            assert follower.status().state == "paused"
            calls = copy.append_count
            # It lives on, longer than silence would be accepted, and reports.
            await eventually(lambda: len(master.reports[0]) >= 8, lambda: master.reports)
            assert set(master.reports[0]) == {start}
            assert 1 < copy.append_count - calls < 20, "tried again, in no busy loop"
            assert sum("replication pauses" in each for each in caplog.messages) == 1
            copy.refusal = None
            await equal(log, copy)
            await eventually(lambda: follower.status().state == "following", follower.status)
            assert follower.status().problem is None
        assert len(master.reports) == 1
    assert copy.content == log.content


async def test_a_log_that_others_write_to_is_not_continued(tmp_path: Path) -> None:
    log, copy = filled(), MemoryLog()
    async with (
        scripted_master(log, is_ours=True) as master,
        following(master, copy, tmp_path) as follower,
    ):
        await equal(log, copy)
        copy.append(b"of a delay service that should not run")
        log.append(b"the next message")
        await problem_with(follower, "the slave")


# -- SYNC_FLUSH ------------------------------------------------------------------------------------


@BOTH
async def test_a_sync_flush_slave_reports_only_what_is_flushed(
    tmp_path: Path, is_ours: bool
) -> None:
    log, copy = filled(), MemoryLog(sync_flush=True)
    EpochFile(tmp_path).save(ONE)
    copy.append_copied(memoryview(log.body(0, 3000)))
    copy.flush()
    start = copy.end_log_offset
    async with scripted_master(log, is_ours=is_ours) as master:
        copy.hold_flushes = True
        async with following(master, copy, tmp_path):
            await equal(log, copy)
            await eventually(lambda: len(master.reports[0]) >= 4, lambda: master.reports)
            assert set(master.reports[0]) == {start}
            copy.flush()
            flushed = log.end_log_offset
            await eventually(lambda: master.reports[0][-1] == flushed, lambda: master.reports)
            log.fill(30_000, random.Random(5))
            await equal(log, copy)
            await eventually(lambda: len(copy.flush_requests) > 0, lambda: copy.flush_requests)
            assert master.reports[0][-1] == flushed
        if is_ours:
            assert master.hellos[0].fields["isFlushed"] == "true"


async def test_a_sync_flush_slave_connects_when_its_log_is_flushed(tmp_path: Path) -> None:
    log, copy = filled(), MemoryLog(sync_flush=True)
    EpochFile(tmp_path).save(ONE)
    copy.append_copied(memoryview(log.body(0, 3000)))
    copy.hold_flushes = True
    async with scripted_master(log, is_ours=True) as master, following(master, copy, tmp_path):
        await eventually(lambda: len(copy.flush_requests) > 0, lambda: copy.flush_requests)
        assert master.hellos == []
        copy.hold_flushes = False
        copy.flush()
        await eventually(
            lambda: any(each[-1:] == [log.end_log_offset] for each in master.reports[:1]),
            lambda: master.reports,
        )


async def test_a_failed_flush_is_never_reported(tmp_path: Path) -> None:
    log, copy = filled(), MemoryLog(sync_flush=True)
    async with scripted_master(log, is_ours=True) as master:
        copy.flush_failure = StoreError("fdatasync failed")
        async with following(master, copy, tmp_path) as follower:
            await problem_with(follower, "fdatasync failed")
            assert set(master.reports[0]) == {0}
            assert follower.status().state == "paused"


async def test_the_request_of_the_hello_is_an_ordinary_one(tmp_path: Path) -> None:
    async with scripted_master(filled(), is_ours=True) as master:
        async with following(master, MemoryLog(), tmp_path):
            await eventually(lambda: len(master.reports) == 1, lambda: master.reports)
        (hello,) = master.hellos
    assert hello.code == RequestCode.HA_HELLO
    assert hello.fields["brokerId"] == "1"


async def test_stopping_ends_an_attempt_that_waits_for_the_master(tmp_path: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as mute:
        port = mute.getsockname()[1]
        async with following(lambda: (f"127.0.0.1:{port}", None), MemoryLog(), tmp_path) as slave:
            await eventually(lambda: slave.status().state == "connecting", slave.status)
            await asyncio.sleep(0)
    assert slave.status().state == "stopped"
