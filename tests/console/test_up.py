"""`tianzhou up` starts the console beside its servers, and runs without it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.console.clients import PASSWORD
from tests.support.console.programs import SAME
from tianzhou.testing.cluster import SMALL

NEW = {"login": "first", "name": "", "password": PASSWORD, "again": PASSWORD}


@contextmanager
def up(folder: Path, *words: str) -> Generator[list[str]]:
    """The program, and its first two lines."""
    arguments = ["up", "--data", str(folder / "data"), "--namesrv-port", "0", "--port", "0", *words]
    for key in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"):
        arguments += ["--set", f"{key}={SMALL[key]}"]
    program = subprocess.Popen(
        [sys.executable, "-m", "tianzhou", *arguments], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TIANZHOU_RUN_DIR": str(folder)},
    )  # fmt: skip
    lines: list[str] = []
    try:
        assert program.stdout is not None
        lines.append(program.stdout.readline())
        if "--no-console" not in words:
            lines.append(program.stdout.readline())
        yield lines
        program.send_signal(signal.SIGINT)
        lines += program.communicate(timeout=60)[0].splitlines()
    finally:
        program.kill()
        program.communicate()
    assert program.returncode == 0


def test_it_shows_the_cluster_that_it_started(tmp_path: Path) -> None:
    with up(tmp_path, "--console-port", "0") as lines:
        assert lines[0].startswith("nameserver 127.0.0.1:")
        assert lines[1].startswith("console: open http://127.0.0.1:")
        url = lines[1].split()[2]
        with httpx.Client(headers=SAME) as browser:
            assert browser.post(url, data=NEW).status_code == 303
            shown = browser.get(f"{url.partition('/setup/')[0]}/index.json").json()["clusters"]
    assert [each["name"] for each in shown] == ["local"]
    assert shown[0]["namesrv"] in lines[0]
    with up(tmp_path, "--console-port", "0") as lines:
        assert "setup" not in lines[1], "there is an administrator now"


def test_it_runs_without_the_console(tmp_path: Path) -> None:
    with up(tmp_path, "--no-console") as lines:
        assert lines[0].startswith("nameserver 127.0.0.1:")
    assert not [each for each in lines if "console" in each]
    assert not (tmp_path / "data/console").exists()


def test_a_port_in_use_stops_only_the_console(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # noqa: SIM117
        with up(tmp_path, "--console-port", str(taken.getsockname()[1])) as lines:
            assert lines[1].startswith("console: not started: cannot listen on 127.0.0.1:")
            assert "--console-port" in lines[1]
