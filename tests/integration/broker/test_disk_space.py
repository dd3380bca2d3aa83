"""The disk space of a store follows its content, with files of the usual size."""

from pathlib import Path

import pytest
from tests.support.brokers import peer_of, running_broker

from tianzhou.protocol.codes import ResponseCode

MIB = 1024 * 1024
USUAL = {
    "mappedFileSizeCommitLog": 1024 * MIB,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}


def allocated_bytes(folder: Path) -> int:
    """Allocated bytes of all files of a folder."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*"))


@pytest.mark.parametrize("ext", ["true", "false"])
async def test_small_store_uses_little_disk_space(tmp_path: Path, ext: str) -> None:
    settings = USUAL | {"enableConsumeQueueExt": ext}
    async with running_broker(tmp_path, **settings) as broker, peer_of(broker.address) as peer:
        for number in range(96):
            answer = await peer.send(
                f"t{number % 3}", b"x" * 100, queue_id=number % 4, props={"KEYS": f"k{number}"}
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert allocated_bytes(tmp_path) < 16 * MIB
    assert allocated_bytes(tmp_path) < 16 * MIB
    # Files still have their full length, as RocketMQ expects.
    (log_file,) = (tmp_path / "commitlog").iterdir()
    assert log_file.stat().st_size == 1024 * MIB
    assert len(list((tmp_path / "consumequeue_ext").rglob("0" * 20))) == (
        12 if ext == "true" else 0
    )
    async with running_broker(tmp_path, **settings):
        assert allocated_bytes(tmp_path) < 16 * MIB


async def test_disk_space_is_proportional_to_small_messages(tmp_path: Path) -> None:
    body, count = b"x" * 1000, 12_000
    async with running_broker(tmp_path, **USUAL) as broker, peer_of(broker.address) as peer:
        for number in range(count):
            props = {"KEYS": f"k{number}"}
            answer = await peer.send("t", body, queue_id=number % 4, props=props)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert allocated_bytes(tmp_path / "commitlog") < 3 * count * len(body)
        # The slots of an index file are 19 MiB.
        assert allocated_bytes(tmp_path) < 3 * count * len(body) + 24 * MIB
