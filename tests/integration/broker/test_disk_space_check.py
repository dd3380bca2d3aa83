"""A disk that is too small for the log causes a warning at the start, with what to do."""

import logging
from pathlib import Path

import pytest
from tests.support.brokers import peer_of, running_broker

from tianzhou.broker import disk_space_check
from tianzhou.protocol.codes import ResponseCode

MIB = 1024 * 1024


async def test_a_disk_without_space_for_a_log_file_causes_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_space_check, "free_bytes", lambda _: 3 * MIB)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType] - the folder does not matter
    caplog.set_level(logging.WARNING, logger="tianzhou.broker.server")
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        (warning,) = [text for text in caplog.messages if "MiB left" in text]
        assert f"{tmp_path / 'commitlog'}: the disk has 3 MiB left" in warning
        assert "first log file uses 4 MiB" in warning
        assert "mappedFileSizeCommitLog" in warning
        assert (await peer.send("t", b"x")).code == ResponseCode.SUCCESS, "the disk is a real one"
    caplog.clear()
    async with running_broker(tmp_path):
        (warning,) = [text for text in caplog.messages if "MiB left" in text]
        assert "next log file" in warning
        assert "fileReservedTime" in warning
        assert "mappedFileSizeCommitLog" not in warning
    caplog.clear()
    monkeypatch.undo()
    async with running_broker(tmp_path):
        assert not [text for text in caplog.messages if "MiB left" in text]
