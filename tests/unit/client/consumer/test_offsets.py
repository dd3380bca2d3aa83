"""Offset stores: in memory, at brokers, in the file of the Java client."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from tianzhou.client.consumer.offsets import (
    LocalOffsets,
    RemoteOffsets,
    SerializedCommits,
    commit_all,
    directory_from,
)
from tianzhou.client.queues import Queue
from tianzhou.errors import ConfigError, ConnectionClosed
from tianzhou.protocol import fastjson

ONE, TWO = Queue("t", "a", 0), Queue("u", "a", 1)


def local(tmp_path: Path) -> LocalOffsets:
    return LocalOffsets(tmp_path, "10.0.0.1@1", "g")


async def test_offsets_only_rise_unless_they_may_fall(tmp_path: Path) -> None:
    offsets = local(tmp_path)
    offsets.update(ONE, 5)
    offsets.update(ONE, 3)
    assert offsets.read(ONE) == 5
    offsets.update(ONE, 3, may_fall=True)
    assert offsets.of_topic("t") == {ONE: 3}
    offsets.update(TWO, 0)
    assert offsets.of_topic("") == {ONE: 3, TWO: 0}
    offsets.forget(ONE)
    assert offsets.read(ONE) is None


async def test_file_has_path_and_format_of_the_java_client(tmp_path: Path) -> None:
    offsets = local(tmp_path)
    assert await offsets.load(ONE) is None
    offsets.update(ONE, 42)
    offsets.update(TWO, 7)
    await offsets.persist([ONE])
    path = tmp_path / "10.0.0.1@1" / "g" / "offsets.json"
    assert path == offsets.path
    table = fastjson.loads(path.read_bytes())["offsetTable"]
    assert [(dict(key), at) for key, at in table.items()] == [
        ({"brokerName": "a", "queueId": 0, "topic": "t"}, 42)
    ]
    offsets.update(ONE, 43)
    await offsets.persist([ONE, TWO])
    again = local(tmp_path)
    assert (await again.load(ONE), await again.load(TWO)) == (43, 7)
    assert '"queueId":0' in path.with_name("offsets.json.bak").read_text().replace(" ", "")


async def test_file_of_the_java_client_is_read(tmp_path: Path) -> None:
    path = local(tmp_path).path
    path.parent.mkdir(parents=True)
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"t"\n'
        "\t\t}:12\n\t}\n}"
    )
    assert await local(tmp_path).load(ONE) == 12


async def test_backup_replaces_a_broken_file(tmp_path: Path) -> None:
    offsets = local(tmp_path)
    for at in (1, 2):
        offsets.update(ONE, at)
        await offsets.persist([ONE])
    offsets.path.write_text("{")
    assert await local(tmp_path).load(ONE) == 1
    offsets.path.with_name("offsets.json.bak").write_text("")
    with pytest.raises(ConfigError, match="cannot be read, so the start offsets are unknown"):
        await local(tmp_path).load(ONE)


async def test_failed_write_is_retried(tmp_path: Path) -> None:
    offsets = local(tmp_path)
    offsets.update(ONE, 1)
    blocker = tmp_path / "10.0.0.1@1"
    blocker.write_text("in the way")
    await offsets.persist([ONE])
    blocker.unlink()
    await offsets.persist([ONE])
    assert json.loads(offsets.path.read_text().partition("}:")[2][:1]) == 1


async def test_offsets_are_loaded_from_and_committed_to_brokers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept: dict[Queue, int] = {ONE: 5}

    async def query(queue: Queue) -> int | None:
        return kept.get(queue)

    async def commit(queue: Queue, queue_offset: int) -> None:
        if queue == TWO:
            raise ConnectionClosed("gone")
        kept[queue] = queue_offset

    offsets = RemoteOffsets("g", query, commit)
    assert (await offsets.load(ONE), offsets.read(ONE)) == (5, 5)
    assert (await offsets.load(TWO), offsets.read(TWO)) == (None, None)
    offsets.update(ONE, 9)
    offsets.update(TWO, 3)
    await offsets.persist([ONE, TWO, Queue("v", "a", 0)])
    assert kept == {ONE: 9}
    assert "queue u@a:1: offset not saved: gone" in caplog.text


async def test_first_commit_of_each_topic_and_broker_is_sent_alone() -> None:
    tables: dict[tuple[str, str], dict[int, int]] = {}

    async def commit(queue: Queue, queue_offset: int) -> None:
        """Like a broker of Apache's that handles each commit in its own thread."""
        key = (queue.topic, queue.broker_name)
        table = tables.get(key)
        await asyncio.sleep(0)
        if table is None:
            tables[key] = {queue.queue_id: queue_offset}
        else:
            table[queue.queue_id] = queue_offset

    wanted = {Queue(t, b, q): 100 + q for t in ("t", "u") for b in ("a", "b") for q in range(4)}
    await commit_all(commit, wanted)
    assert {
        Queue(*key, q): at for key, table in tables.items() for q, at in table.items()
    } == wanted


class ManyThreads:
    """A broker that applies commits in the order in which the test releases them."""

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.served: dict[int, asyncio.Event] = {}
        self.two_came = asyncio.Event()

    async def commit(self, queue_offset: int) -> None:
        self.served[queue_offset] = asyncio.Event()
        if len(self.served) == 2:
            self.two_came.set()
        await self.served[queue_offset].wait()
        self.saved.append(queue_offset)


async def until_it_rests() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_commits_of_a_queue_are_serialized() -> None:
    broker, turns = ManyThreads(), SerializedCommits()
    tasks = [
        asyncio.create_task(turns.run(ONE, partial(broker.commit, offset))) for offset in (1, 2, 3)
    ]
    other = asyncio.create_task(turns.run(TWO, partial(broker.commit, 100)))
    await until_it_rests()
    assert [*broker.served] == [1, 100]
    assert not turns.is_free(ONE)
    # Whoever sent the first stops; it is under way all the same.
    tasks[0].cancel()
    await until_it_rests()
    assert [*broker.served] == [1, 100]
    for offset in (1, 2, 3, 100):
        broker.served[offset].set()
        await until_it_rests()
    await asyncio.gather(*tasks[1:], other)
    assert broker.saved == [1, 2, 3, 100]
    assert turns.is_free(ONE)
    assert turns.is_free(TWO)


async def test_failed_commit_does_not_block_the_next() -> None:
    turns = SerializedCommits()

    async def fail() -> None:
        raise ConnectionClosed("gone")

    async def answer() -> str:
        return "saved"

    with pytest.raises(ConnectionClosed):
        await turns.run(ONE, fail)
    assert await turns.run(ONE, answer) == "saved"


async def test_commit_without_response_blocks_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tianzhou.client.consumer.offsets._PATIENCE_S", 0.01)
    broker, turns = ManyThreads(), SerializedCommits()
    tasks = [
        asyncio.create_task(turns.run(ONE, partial(broker.commit, offset))) for offset in (1, 2)
    ]
    await broker.two_came.wait()
    broker.served[2].set()
    await tasks[1]
    assert broker.saved == [2]
    broker.served[1].set()
    await tasks[0]
    assert turns.is_free(ONE)


def test_default_directory_is_that_of_java(tmp_path: Path) -> None:
    assert directory_from("") == Path.home() / ".rocketmq_offsets"
    assert directory_from(str(tmp_path)) == tmp_path
