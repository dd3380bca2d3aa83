"""Reading elected brokers with Spark while they change their master.

What a reader was promised at the old master is there at the new one, which may show it a moment
later: readers wait, they report no loss and do not go back. The first tests set what one broker
shows; the last one kills masters as processes, with a real etcd.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from tests.support.brokers import Peer, eventually, peer_of, running_broker, running_namesrv
from tests.support.counted import Counted, obey
from tests.support.elected_group import ElectedGroup, elected_group
from tests.support.failover_load import QUEUES
from tests.support.failover_scenario import TOPIC, LoadProcess, start_load
from tests.support.replicated_load import messages_of
from tianzhou.broker.server import Broker
from tianzhou.broker.storing.serving import Refusal, Serving
from tianzhou.client.queues import Queue
from tianzhou.errors import DataLost, RemotingError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.records.record import decode_records
from tianzhou.spark.offsets import Bounds, Range
from tianzhou.spark.options import SourceOptions, read_options
from tianzhou.spark.source import cluster_reader
from tianzhou.spark.source.cluster_reader import ClusterReader

QUEUE = Queue("t", "broker-a", 0)
COUNT, KNOWN = 6, 2
"""Messages that the old master has shown, and those that the new one knows to be confirmed."""
PATIENCE_S = 120.0


@dataclass(slots=True)
class NewMaster:
    """A broker that took over messages, and shows some of them."""

    broker: Broker
    namesrv: str
    ends: list[int]

    def reader(self, *, fail: bool = True) -> ClusterReader:
        given = {"nameServer": self.namesrv, "subscribe": "t", "failOnDataLoss": str(fail)}
        return ClusterReader(read_options(SourceOptions, given))

    def confirm(self) -> None:
        """Its replicas have acknowledged everything."""
        self.broker.serving.confirm(self.ends[-1])

    def missed(self) -> int:
        """Pulls that got no message."""
        return self.broker.stats.pulls_missed


@asynccontextmanager
async def new_master(folder: Path) -> AsyncGenerator[NewMaster]:
    async with (
        running_namesrv(folder / "namesrv") as namesrv,
        running_broker(folder / "broker", namesrvAddr=namesrv, brokerName="broker-a") as broker,
        peer_of(broker.address) as peer,
    ):
        ends = list[int]()
        for number in range(COUNT):
            await _send(peer, number)
            ends.append(broker.store.end_log_offset)
        await eventually(lambda: broker.registered_with, "its registration")
        broker.serving.show_confirmed(ends[KNOWN - 1])
        broker.serving.begin_session(Counted())
        gap = obey(broker).gap
        yield NewMaster(broker, namesrv, ends)
        await gap.stop()


async def _send(peer: Peer, number: int) -> None:
    answer = await peer.send("t", b"%d" % number, queue_count=1)
    assert answer.code == ResponseCode.SUCCESS


def _read(reader: ClusterReader, wanted: Range) -> list[bytes]:
    """The bodies of a range."""
    with closing(reader):
        return [
            record.body
            for block in reader.read(wanted)
            for records, _ in block.responses
            for record in decode_records(records)
        ]


# -- a new master that does not show yet what it took over -----------------------------------------


async def test_reading_waits_for_messages_that_the_new_master_shows_later(tmp_path: Path) -> None:
    async with new_master(tmp_path) as it:
        reading = asyncio.create_task(asyncio.to_thread(_read, it.reader(), Range(QUEUE, 0, COUNT)))
        # Those of the pipeline, of the first pull, and of the ones that wait.
        await eventually(lambda: reading.done() or it.missed() > 4, "pulls that wait")
        assert not reading.done()
        it.confirm()
        assert await reading == [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("fail", [True, False])
async def test_messages_that_stay_hidden_are_neither_lost_nor_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: bool
) -> None:
    monkeypatch.setattr(cluster_reader, "CONFIRM_ATTEMPTS", 2)
    async with new_master(tmp_path) as it:
        with pytest.raises(RemotingError, match="has messages from offset 2 on, but its replicas"):
            await asyncio.to_thread(_read, it.reader(fail=fail), Range(QUEUE, 0, COUNT))


async def test_messages_that_no_broker_has_are_lost_at_once(tmp_path: Path) -> None:
    async with new_master(tmp_path) as it:
        beyond = Range(QUEUE, 0, COUNT + 1)
        with pytest.raises(DataLost, match="5 messages from 2 to before 7 are not there"):
            await asyncio.to_thread(_read, it.reader(), beyond)
        assert len(await asyncio.to_thread(_read, it.reader(fail=False), beyond)) == KNOWN


async def test_a_batch_is_planned_when_the_ends_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends that are too low would leave out messages that were acknowledged before."""
    refused = list[Refusal]()

    def ends(serving: Serving) -> Refusal | None:
        refusal = known_ends(serving)
        refused.extend([refusal] if refusal else [])
        return refusal

    known_ends: Callable[[Serving], Refusal | None] = vars(Serving)["ends"].fget
    monkeypatch.setattr(Serving, "ends", property(ends))
    async with new_master(tmp_path) as it:
        with closing(it.reader()) as reader:
            # A stream goes on with the other queues.
            assert await asyncio.to_thread(reader.bounds, [QUEUE], allow_missing=True) == {}
            refused.clear()
            planning = asyncio.create_task(asyncio.to_thread(reader.bounds, [QUEUE]))
            await eventually(lambda: planning.done() or len(refused) > 2, "refusals")
            assert not planning.done()
            it.confirm()
            assert await planning == {QUEUE: Bounds(0, COUNT)}


# -- kills of masters under load -------------------------------------------------------------------

Place = tuple[int, int]
"""Queue and queue offset."""


@dataclass
class Copy:
    """What a stream has written: each batch once, however often Spark repeats it."""

    batches: dict[int, list[tuple[Place, bytes]]] = field(
        default_factory=dict[int, list[tuple[Place, bytes]]]
    )

    def write(self, batch: DataFrame, number: int) -> None:
        self.batches[number] = _rows(batch)

    def places(self) -> list[Place]:
        return [place for rows in list(self.batches.values()) for place, _ in rows]


def _rows(frame: DataFrame) -> list[tuple[Place, bytes]]:
    wanted = frame.select("queueId", "queueOffset", "body")
    return [((row[0], row[1]), bytes(row[2])) for row in wanted.collect()]


def _acknowledged(load: LoadProcess) -> set[Place]:
    return {
        (each.queue_id, each.queue_offset + number)
        for each in load.acknowledged()
        for number in range(each.count)
    }


def _check_once(rows: list[tuple[Place, bytes]], wanted: set[Place]) -> None:
    """Everything that was acknowledged, each place once, no gap."""
    places = [place for place, _ in rows]
    assert len(places) == len(set(places)), "a message came twice"
    missing = wanted - set(places)
    assert not missing, f"{len(missing)} of {len(wanted)} are missing, as {min(missing)}"
    found: dict[int, list[int]] = defaultdict(list)
    for queue_id, queue_offset in places:
        found[queue_id].append(queue_offset)
    for queue_id, offsets in found.items():
        assert sorted(offsets) == list(range(len(offsets))), f"queue {queue_id} has gaps"


@pytest.mark.full
async def test_a_stream_and_batches_read_everything_once_while_masters_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with elected_group(tmp_path / "group") as group:
        await group.accepting_master()
        await group.in_sync(group.replicas)
        load = await start_load(tmp_path, "send", group.namesrv, "before-and-after")
        try:
            await _reads(spark, tmp_path, group, load)
        finally:
            await load.stop()


async def _reads(spark: SparkSession, folder: Path, group: ElectedGroup, load: LoadProcess) -> None:
    await _until(lambda: load.count > 2000, "messages")
    copy = Copy()
    source = spark.readStream.format("rocketmq").option("nameServer", group.namesrv)
    query = (
        source.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
        .writeStream.foreachBatch(copy.write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="100 milliseconds").start()
    )  # fmt: skip
    frame = spark.read.format("rocketmq").option("nameServer", group.namesrv)
    read = Batch(spark, frame.option("subscribe", TOPIC))
    try:
        await _until(lambda: len(copy.places()) > 1000, "rows of the stream")
        await _across_a_kill(group, load, copy, read, lambda: True)
        await _across_a_kill(group, load, copy, read, read.has_job)
        await load.stop()
        wanted = _acknowledged(load)
        await _until(lambda: wanted <= set(copy.places()), "all messages in the stream")
        error = query.exception()
        assert error is None, error
    finally:
        query.stop()
    everything = await asyncio.to_thread(read)
    _check_once(everything, wanted)
    streamed = [row for rows in copy.batches.values() for row in rows]
    _check_once(streamed, wanted)
    assert dict(streamed) == dict(everything)
    async with peer_of((await group.master()).address) as peer:
        for queue_id in range(QUEUES):
            stored = await messages_of(peer, TOPIC, queue_id)
            assert {at: body for (queue, at), body in everything if queue == queue_id} == stored


class Batch:
    """A batch that can be read several times."""

    def __init__(self, spark: SparkSession, reader: DataFrameReader) -> None:
        self._spark = spark
        self._reader = reader
        self.number = 0
        """Of the next read, or the present one."""

    def __call__(self) -> list[tuple[Place, bytes]]:
        self._spark.sparkContext.setJobGroup(self._group, "a batch across a switch")
        return _rows(self._reader.load())

    def has_job(self) -> bool:
        """Whether its tasks have begun: it is planned."""
        return bool(self._spark.sparkContext.statusTracker().getJobIdsForGroup(self._group))

    @property
    def _group(self) -> str:
        return f"batch-{self.number}"


async def _across_a_kill(
    group: ElectedGroup, load: LoadProcess, copy: Copy, read: Batch, is_time: Callable[[], bool]
) -> None:
    """Kill the master when it is time, while a batch is read, and restart it as a slave."""
    master = await group.master()
    wanted = _acknowledged(load)
    read.number += 1
    reading = asyncio.create_task(asyncio.to_thread(read))
    await _until(lambda: reading.done() or is_time(), "batch")
    assert not reading.done()
    await master.kill()
    _check_once(await reading, wanted)
    await group.master(other_than=master)
    sent, streamed = load.count, len(copy.places())
    await _until(lambda: load.count > sent + 1000, "messages to the new master")
    await _until(lambda: len(copy.places()) > streamed + 1000, "rows of the new master")
    await master.run()
    await group.in_sync(group.replicas)


async def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"no {what} within {PATIENCE_S} s"
        await asyncio.sleep(0.02)
