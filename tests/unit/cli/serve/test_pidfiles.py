"""Finding the servers of this user, and nothing else."""

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


def test_a_server_is_found_while_it_runs(folder: Path) -> None:
    assert running("namesrv") == []
    with pidfile("namesrv", "0.0.0.0:9876"):
        (found,) = running("namesrv")
        assert (found.program, found.pid, found.address) == ("namesrv", os.getpid(), "0.0.0.0:9876")
        assert found.is_alive()
        assert running("broker") == []
    assert not found.is_alive()
    assert running("namesrv") == []
    assert list(folder.iterdir()) == []


def test_a_server_that_failed_is_not_found() -> None:
    with pytest.raises(RuntimeError), pidfile("namesrv", "a:1"):
        raise RuntimeError("on purpose")
    assert running("namesrv") == []


def test_one_that_has_ended_is_not_asked_to_stop() -> None:
    with pidfile("namesrv", "a:1"):
        (found,) = running("namesrv")
    with pytest.raises(ProcessLookupError, match="has ended"):
        found.ask_to_stop()


def test_the_file_of_another_machine_is_left_alone(folder: Path) -> None:
    with pidfile("namesrv", "a:1"):
        (file,) = folder.iterdir()
        told = json.loads(file.read_bytes())
    other = folder / "namesrv-1.json"
    other.write_text(json.dumps(told | {"where": "another machine"}))
    assert running("namesrv") == []
    assert other.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"where": 1}'])
def test_a_file_that_says_nothing_is_passed_over(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "namesrv-1.json").write_text(content)
    assert running("namesrv") == []


def test_a_left_over_file_is_taken_over(folder: Path) -> None:
    folder.mkdir()
    (folder / f"namesrv-{os.getpid()}.json").write_text("something long that was there before")
    with pidfile("namesrv", "a:1"):
        assert [found.address for found in running("namesrv")] == ["a:1"]


def test_where_it_cannot_be_announced_it_runs_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("TIANZHOU_RUN_DIR", str(tmp_path / "plain" / "run"))
    with caplog.at_level(logging.WARNING), pidfile("namesrv", "a:1"):
        assert running("namesrv") == []
    assert "mqshutdown will not find this process" in caplog.text


def test_the_folder_is_in_the_home_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIANZHOU_RUN_DIR")
    assert run_folder() == Path.home() / ".tianzhou" / "run"
