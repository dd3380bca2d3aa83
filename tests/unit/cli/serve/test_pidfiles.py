"""Pidfiles list the servers of this user only."""

import json
import logging
import os
from pathlib import Path

import pytest

from tianzhou.cli.serve.pidfiles import pidfile, run_folder, running


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIANZHOU_RUN_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def test_running_server_is_listed(folder: Path) -> None:
    assert running("namesrv") == []
    with pidfile("namesrv", "0.0.0.0:9876"):
        (found,) = running("namesrv")
        assert (found.program, found.pid, found.address) == ("namesrv", os.getpid(), "0.0.0.0:9876")
        assert found.is_alive()
        assert running("broker") == []
    assert not found.is_alive()
    assert running("namesrv") == []
    assert list(folder.iterdir()) == []


def test_failed_server_is_not_listed() -> None:
    with pytest.raises(RuntimeError), pidfile("namesrv", "a:1"):
        raise RuntimeError("on purpose")
    assert running("namesrv") == []


def test_ended_server_gets_no_signal() -> None:
    with pidfile("namesrv", "a:1"):
        (found,) = running("namesrv")
    with pytest.raises(ProcessLookupError, match="has ended"):
        found.ask_to_stop()


def test_pidfile_of_another_machine_is_ignored(folder: Path) -> None:
    with pidfile("namesrv", "a:1"):
        (file,) = folder.iterdir()
        told = json.loads(file.read_bytes())
    other = folder / "namesrv-1.json"
    other.write_text(json.dumps(told | {"where": "another machine"}))
    assert running("namesrv") == []
    assert other.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"where": 1}'])
def test_invalid_pidfile_is_skipped(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "namesrv-1.json").write_text(content)
    assert running("namesrv") == []


def test_stale_pidfile_is_replaced(folder: Path) -> None:
    folder.mkdir()
    (folder / f"namesrv-{os.getpid()}.json").write_text("something long that was there before")
    with pidfile("namesrv", "a:1"):
        assert [found.address for found in running("namesrv")] == ["a:1"]


def test_server_runs_without_pidfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("TIANZHOU_RUN_DIR", str(tmp_path / "plain" / "run"))
    with caplog.at_level(logging.WARNING), pidfile("namesrv", "a:1"):
        assert running("namesrv") == []
    assert "mqshutdown will not find this process" in caplog.text


def test_default_folder_is_in_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIANZHOU_RUN_DIR")
    assert run_folder() == Path.home() / ".tianzhou" / "run"
