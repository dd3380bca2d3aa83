"""Our master and our slave over real sockets, with real stores: logs, queues, epochs, reports."""

import contextlib
import random
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from tests.support.remoting import eventually, on_each_loop, serving
from tests.support.replication import log_of
from tests.support.store import draft, read_queue, small_config

from tianzhou.ha.epochs import EpochFile, of_new_master, of_started_master, range_at
from tianzhou.ha.follower import Follower
from tianzhou.ha.hello import (
    Broker,
    LogState,
    make_response,
    read_request,
    refusal_of,
)
from tianzhou.ha.listener import Listener
from tianzhou.ha.master_connection import Times
from tianzhou.ha.master_side import EpochRange
from tianzhou.ha.progress import Acknowledgements
from tianzhou.ha.store_id import load_store_id
from tianzhou.protocol import headers
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command, response_to
from tianzhou.remoting import error_responses
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.store.config import FlushDiskType
from tianzhou.store.message_store import MessageStore

TIMES = Times(retry_s=0.02, lasting_retry_s=0.05, report_s=0.1)
FLUSHES = pytest.mark.parametrize("flush", list(FlushDiskType))


class Node:
    """A broker's store with its epochs; a master or a slave."""

    def __init__(self, root: Path, number: int, flush: FlushDiskType) -> None:
        self.store = MessageStore.open(small_config(root, log_file_bytes=16384, flush=flush))
        self.store_id = load_store_id(root)
        self.epochs = EpochFile(root)
        self.broker = Broker(cluster="c", name="a", id=number + 1, store_id=self.store_id)
        self.dice = random.Random(number)

    def lead(self) -> None:
        self.epochs.save(
            of_new_master(self.epochs.epochs, self.store.end_log_offset, self.store_id)
        )

    def write(self, count: int) -> None:
        for _ in range(count):
            body = self.dice.randbytes(self.dice.randrange(900))
            self.store.append(draft("t", self.dice.randrange(3), body, key="k"))

    def log(self) -> bytes:
        return log_of(self.store)

    def queues(self) -> dict[int, dict[int, tuple[bytes, int]]]:
        return {number: read_queue(self.store, "t", number) for number in range(3)}

    def state(self) -> LogState:
        store = self.store
        return LogState(
            first_offset=store.first_log_offset, end_offset=store.end_log_offset,
            file_bytes=store.config.mapped_file_size_commit_log, epochs=self.epochs.epochs,
        )  # fmt: skip


class Leading:
    """The ports of a master."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.acknowledgements = Acknowledgements()
        self.listener = Listener(node.store, self.acknowledgements, epoch_at=self._epoch_at)
        self.listen = ""
        self.ha_port = 0
        self.speaks_hello = True

    def _epoch_at(self, log_offset: int) -> EpochRange:
        (number, start), stop = range_at(self.node.epochs.epochs, log_offset)
        return EpochRange(number, start, stop)

    def addresses(self) -> tuple[str | None, str | None]:
        return self.listen, f"127.0.0.1:{self.ha_port}"

    def handle(self, _: Connection, request: Command) -> Command:
        if not self.speaks_hello:
            return error_responses.not_supported(request)
        node, header = self.node, read_request(request)
        refusal = refusal_of(header, node.broker, node.state())
        if refusal is not None:
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark=refusal)
        token = self.listener.issue_token(header)
        response = make_response(node.state(), token=token, ha_port=self.ha_port)
        return response_to(request, 0, ext_fields=headers.encode(response))


@contextlib.asynccontextmanager
async def leading(node: Node) -> AsyncGenerator[Leading, None]:
    master = Leading(node)
    async with serving(master.handle) as (_, master.listen):
        master.ha_port = await master.listener.start("127.0.0.1", 0)
        node.store.on_end_moved = master.listener.log_grew
        try:
            yield master
        finally:
            node.store.on_end_moved = None
            await master.listener.stop()


@contextlib.asynccontextmanager
async def following(node: Node, master: Leading) -> AsyncGenerator[Follower, None]:
    client = Client()
    follower = Follower(node.store, node.epochs, node.broker, client, master.addresses, times=TIMES)
    await follower.start()
    try:
        yield follower
    finally:
        await follower.stop()
        await client.close()


@contextlib.contextmanager
def nodes(root: Path, flush: FlushDiskType, count: int = 2) -> Generator[list[Node], None, None]:
    with contextlib.ExitStack() as stack:
        made = [Node(root / str(number), number, flush) for number in range(count)]
        for each in made:
            stack.callback(each.store.close)
        yield made


async def replicated(master: Leading, slave: Node) -> None:
    await eventually(
        lambda: master.acknowledgements.replicated_log_offset == master.node.store.end_log_offset,
        lambda: (master.listener.status(), slave.store.end_log_offset),
    )


@FLUSHES
@on_each_loop
async def test_logs_queues_and_epochs_become_equal(tmp_path: Path, flush: FlushDiskType) -> None:
    with nodes(tmp_path, flush) as (first, second):
        first.lead()
        first.write(60)
        async with leading(first) as master, following(second, master) as follower:
            await replicated(master, second)
            first.write(60)
            await replicated(master, second)
            assert follower.status().is_ours
        assert second.log() == first.log()
        assert second.queues() == first.queues()
        assert second.epochs.epochs == first.epochs.epochs != ()
        if flush is FlushDiskType.SYNC_FLUSH:
            assert second.store.flushed_log_offset == first.store.end_log_offset


@on_each_loop
async def test_default_ha_copies_the_same_bytes(tmp_path: Path) -> None:
    with nodes(tmp_path, FlushDiskType.ASYNC_FLUSH) as (first, second):
        first.write(5)
        async with leading(first) as master:
            master.speaks_hello = False
            async with following(second, master):
                # Else the master may be in its second file at the first report, and begin there.
                await replicated(master, second)
                first.write(40)
                await replicated(master, second)
        assert second.log() == first.log()
        assert second.queues() == first.queues()


async def test_a_slave_becomes_master_and_the_old_master_its_slave(tmp_path: Path) -> None:
    with nodes(tmp_path, FlushDiskType.SYNC_FLUSH) as (first, second):
        first.lead()
        first.write(30)
        async with leading(first) as master, following(second, master):
            await replicated(master, second)
        second.lead()
        second.write(30)
        async with leading(second) as master, following(first, master):
            await replicated(master, first)
        assert first.log() == second.log()
        assert first.queues() == second.queues()
        assert len(first.epochs.epochs) == 2
        assert first.epochs.epochs == second.epochs.epochs


async def test_an_old_master_with_messages_of_its_own_is_refused(tmp_path: Path) -> None:
    with nodes(tmp_path, FlushDiskType.SYNC_FLUSH) as (first, second):
        first.lead()
        first.write(30)
        async with leading(first) as master, following(second, master):
            await replicated(master, second)
        first.write(1)
        second.lead()
        second.write(30)
        before = first.log()
        async with leading(second) as master, following(first, master) as follower:
            await eventually(
                lambda: "the logs are equal up to" in (follower.status().problem or ""),
                follower.status,
            )
            assert master.acknowledgements.replicated_log_offset == 0
        assert first.log() == before


async def test_a_master_that_lost_its_tail_does_not_get_its_slave_back(tmp_path: Path) -> None:
    """Its log is longer again when the slave comes back, with other bytes at the same offsets."""
    with nodes(tmp_path, FlushDiskType.ASYNC_FLUSH, 3) as (first, second, third):
        first.lead()
        first.write(30)
        async with leading(first) as master, following(second, master):
            await replicated(master, second)
        # The state after a power cut: another store with the same beginning, and its epochs.
        third.store.append_copied(memoryview(first.log())[: len(first.log()) // 2])
        cut = of_started_master(
            first.epochs.epochs, third.store.end_log_offset, first.store_id, is_clean=False
        )
        third.epochs.save(cut)
        third.write(200)
        assert third.store.end_log_offset > second.store.end_log_offset
        async with leading(third) as master, following(second, master) as follower:
            await eventually(
                lambda: "the logs are equal up to" in (follower.status().problem or ""),
                follower.status,
            )


async def test_a_slave_starts_at_the_oldest_file_of_its_master(tmp_path: Path) -> None:
    with nodes(tmp_path, FlushDiskType.ASYNC_FLUSH) as (first, second):
        first.lead()
        first.write(100)
        first.store.log.segments.remove_first(2)
        begin = first.store.first_log_offset
        assert begin == 2 * 16384
        async with leading(first) as master, following(second, master):
            await replicated(master, second)
        assert second.store.first_log_offset == begin
        assert second.log() == first.log()
        assert second.epochs.epochs == first.epochs.epochs


async def test_a_slave_that_was_killed_goes_on_behind_its_last_record(tmp_path: Path) -> None:
    with nodes(tmp_path, FlushDiskType.ASYNC_FLUSH, 1) as (first,):
        first.lead()
        first.write(400)
        root = tmp_path / "slave"
        async with leading(first) as master:
            for number in range(5):
                slave = Node(root, 1, FlushDiskType.ASYNC_FLUSH)
                async with following(slave, master):
                    start = slave.store.end_log_offset
                    await eventually(
                        lambda s=slave, b=start: s.store.end_log_offset > b,  # type: ignore[misc]
                        master.listener.status,
                    )
                    if number == 4:
                        await replicated(master, slave)
                        assert slave.log() == first.log()
                        assert slave.queues() == first.queues()
                    first.write(20)
                slave.store.abandon()
