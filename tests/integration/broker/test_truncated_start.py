"""A start that finds the record of a truncation completes it, and adapts the tables (R0, R9)."""

from pathlib import Path

import pytest
from tests.support.brokers import SMALL, cluster, peer_of, running_broker

from tianzhou.broker.config import load_broker_config
from tianzhou.config.settings import Given
from tianzhou.protocol.codes import RequestCode
from tianzhou.store.message_store import MessageStore
from tianzhou.store.truncation import cutting, record
from tianzhou.store.truncation.record import Truncation

SLAVE: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": 1}


async def prepare(folder: Path) -> int:
    """A store with five messages, all consumed; returns where the third begins."""
    async with cluster(folder) as it:
        for number in range(5):
            await it.peer.send("t", b"%d" % number, queue_id=0)
        committed = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "5"}
        await it.peer.expect(RequestCode.UPDATE_CONSUMER_OFFSET, committed)
        queue = it.broker.store.queues.get("t", 0)
        entry = queue.entry(2) if queue is not None else None
        assert entry is not None
        return entry[0]


def interrupted_at(folder: Path, to: int, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncation that ended with its process before a step."""
    pairs = SMALL | {"storePathRootDir": folder / "store"}
    given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
    config = load_broker_config(environ={}, flags=given).config
    store = MessageStore.open(config, background=False)
    with monkeypatch.context() as patched:
        if step:
            patched.setattr(cutting, step, ended)
        try:
            store.truncation.run(Truncation(to=to), confirm=0)
        except KeyboardInterrupt:
            assert step
    store.abandon()


def ended(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["cut", "_cut_log", "_write_files", ""])
@pytest.mark.parametrize("settings", [SLAVE, {}])
async def test_a_start_completes_a_truncation(
    tmp_path: Path, step: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    to = await prepare(tmp_path)
    interrupted_at(tmp_path, to, step, monkeypatch)
    for _ in range(2):
        async with running_broker(tmp_path / "store", **settings) as broker:
            assert broker.store.end_log_offset == to
            assert broker.store.truncation.pending is None
            assert broker.offsets.find("g", "t", 0) == 2, "the consumer would pass the next ones"
            assert broker.topics.log_end <= to
        assert not (tmp_path / "store" / record.FILE_NAME).exists()
    async with running_broker(tmp_path / "store") as broker, peer_of(broker.address) as peer:
        await peer.send("t", b"new", queue_id=0)
        assert broker.store.max_offset("t", 0) == 3


async def test_tables_that_cannot_be_saved_leave_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = await prepare(tmp_path)
    interrupted_at(tmp_path, to, "", monkeypatch)
    offsets = tmp_path / "store" / "config" / "delayOffset.json"
    offsets.unlink(missing_ok=True)
    offsets.mkdir()
    with pytest.raises(Exception, match=r"could not be saved|delayOffset|directory"):
        async with running_broker(tmp_path / "store", **SLAVE):
            pass
    assert (tmp_path / "store" / record.FILE_NAME).exists()
    offsets.rmdir()
    async with running_broker(tmp_path / "store", **SLAVE) as broker:
        assert broker.offsets.find("g", "t", 0) == 2
    assert not (tmp_path / "store" / record.FILE_NAME).exists()
