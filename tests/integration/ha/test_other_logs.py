"""A log that is no copy of the master's is never mixed with it, whatever happened to either.

Messages have one size here, so that records of different logs begin at the same log offsets: the
bytes of one would continue the other without a visible fault.
"""

import shutil
from pathlib import Path

import pytest
from tests.support.brokers import eventually, peer_of
from tests.support.replica_processes import Replica, ReplicaPair, replica_pair

from tianzhou.protocol.codes import ResponseCode
from tianzhou.store.message_store import MessageStore

COUNT = 20
LOST = 5
UNFLUSHED: dict[str, object] = {
    "flushIntervalCommitLog": 600_000, "flushCommitLogThoroughInterval": 600_000,
    "flushIntervalConsumeQueue": 600_000, "flushConsumeQueueThoroughInterval": 600_000,
    "haSendHeartbeatInterval": 500,
}  # fmt: skip
"""Nothing reaches the disk, so a power cut may lose everything."""


async def send(replica: Replica, text: bytes, count: int = COUNT) -> list[int]:
    """Send messages of one size; returns the end of the log before each."""
    ends: list[int] = []
    async with peer_of(replica.address) as peer:
        for number in range(count):
            ends.append((await replica.status()).master_max_offset)
            response = await peer.send("t", text + b"%04d" % number, queue_count=1)
            assert response.code in (
                ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE
            ), response.remark  # fmt: skip
    return ends


def lose_tail(replica: Replica, end: int) -> None:
    """What a power cut does to a log that was not flushed."""
    folder, file_bytes = (
        replica.config().log_directory,
        replica.config().mapped_file_size_commit_log,
    )
    with (folder / f"{end - end % file_bytes:020}").open("r+b") as file:
        file.seek(end % file_bytes)
        file.write(bytes(file_bytes - end % file_bytes))


async def reason_of(slave: Replica, words: str) -> None:
    """Wait until a slave says why it does not follow."""

    async def says() -> bool:
        return words in ((await slave.status()).client.problem or "")

    await eventually(says, words)


async def unchanged(slave: Replica, before: bytes) -> None:
    """Asserts that the slave has its log, and nothing else, also after some more attempts."""
    await slave.stop()
    with MessageStore.open(slave.config(), background=False) as store:
        assert store.end_log_offset == len(before)
    assert slave.log_bytes(len(before)) == before


async def master_that_lost_its_tail(pair: ReplicaPair) -> tuple[int, bytes]:
    """The master is dead and has less than its slave; returns its end, and the slave's log."""
    await send(pair.master, b"common")
    end = (await send(pair.master, b"lost", LOST))[0]
    whole = await pair.in_step()
    await pair.master.kill()
    before = pair.slave.log_bytes(whole)
    lose_tail(pair.master, end)
    return end, before


async def test_a_slave_that_has_more_than_its_restarted_master_is_refused(tmp_path: Path) -> None:
    """The master stores other messages at the log offsets of those that it lost."""
    async with replica_pair(tmp_path, "SYNC_MASTER", **UNFLUSHED) as pair:
        end, before = await master_that_lost_its_tail(pair)
        await pair.master.start("SYNC_MASTER")
        assert (await pair.master.status()).master_max_offset == end
        await send(pair.master, b"othr", 2 * LOST)
        assert (await pair.master.status()).master_max_offset > len(before)
        # The point up to which they are equal is known, as the master has begun an epoch.
        await reason_of(pair.slave, f"equal up to {end} only")
        assert (await pair.master.status()).in_sync_slave_count == 0
        await unchanged(pair.slave, before)


async def test_a_lost_tail_is_noticed_after_a_tool_has_opened_the_store(tmp_path: Path) -> None:
    """The master begins no epoch then, as the last stop of its store was a clean one."""
    async with replica_pair(tmp_path, "SYNC_MASTER", **UNFLUSHED) as pair:
        end, before = await master_that_lost_its_tail(pair)
        with MessageStore.open(pair.master.config(), background=False) as store:
            assert store.end_log_offset == end
        await pair.master.start("SYNC_MASTER")
        await send(pair.master, b"othr", 2 * LOST)
        await reason_of(pair.slave, "are not those that the master has there")
        assert (await pair.master.status()).in_sync_slave_count == 0
        await unchanged(pair.slave, before)


@pytest.mark.parametrize("by_request", [True, False], ids=["promoted", "started as master"])
async def test_a_former_master_with_messages_of_its_own_is_refused(
    tmp_path: Path, by_request: bool
) -> None:
    """The slave became the master without them, and has others there."""
    async with replica_pair(tmp_path, "ASYNC_MASTER", **UNFLUSHED) as pair:
        await send(pair.master, b"common")
        end = await pair.in_step()
        await pair.slave.stop()
        await send(pair.master, b"olds", LOST)
        whole = (await pair.master.status()).master_max_offset
        await pair.master.stop()
        before = pair.master.log_bytes(whole)
        if by_request:
            await pair.start_slave()
            await pair.promote()
        else:
            await pair.slave.start("ASYNC_MASTER")
            pair.swap()
        await send(pair.master, b"news", 2 * LOST)
        await pair.start_slave()
        await reason_of(pair.slave, f"equal up to {end} only")
        await unchanged(pair.slave, before)


async def test_two_masters_without_knowledge_of_each_other_do_not_mix(tmp_path: Path) -> None:
    """Both were killed with equal logs, and both come back as masters."""
    async with replica_pair(tmp_path, "ASYNC_MASTER", **UNFLUSHED) as pair:
        await send(pair.master, b"common")
        end = await pair.in_step()
        await pair.master.kill()
        await pair.slave.kill()
        await pair.master.start("ASYNC_MASTER")
        await pair.slave.start("ASYNC_MASTER")
        await send(pair.master, b"here", 2 * LOST)
        await send(pair.slave, b"else", LOST)
        whole = (await pair.slave.status()).master_max_offset
        await pair.slave.stop()
        before = pair.slave.log_bytes(whole)
        await pair.start_slave()
        await reason_of(pair.slave, f"equal up to {end} only")
        await unchanged(pair.slave, before)


async def test_a_copied_store_directory_is_noticed(tmp_path: Path) -> None:
    """Its epochs are those of the store that it was copied from, and so is its id."""
    async with replica_pair(tmp_path, "", **UNFLUSHED) as pair:
        await pair.master.start("ASYNC_MASTER")
        await send(pair.master, b"common")
        await pair.master.stop()
        shutil.copytree(pair.master.folder / "store", pair.slave.folder / "store")
        await pair.master.start("ASYNC_MASTER")
        await send(pair.master, b"here", 2 * LOST)
        await pair.slave.start("ASYNC_MASTER")
        await send(pair.slave, b"else", LOST)
        whole = (await pair.slave.status()).master_max_offset
        await pair.slave.stop()
        before = pair.slave.log_bytes(whole)
        await pair.start_slave()
        await reason_of(pair.slave, "are not those that the master has there")
        await unchanged(pair.slave, before)
