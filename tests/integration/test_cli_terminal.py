"""The command line on a real terminal: live screens, questions, Ctrl-C, and output that is cut."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tianzhou.testing import Cluster

DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics={"orders": 2}) as it:
        yield it


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, cluster: Cluster, folder: Path, *words: str) -> None:
        self._leader, follower = pty.openpty()
        environ = os.environ | {
            "NAMESRV_ADDR": cluster.namesrv_address,
            "TIANZHOU_CONFIG_DIR": str(folder),
            "TERM": "xterm-256color",
            "COLUMNS": "100",
            "LINES": "40",
        }
        environ.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tianzhou", *words],
            stdin=follower, stdout=follower, stderr=follower, env=environ, close_fds=True,
        )  # fmt: skip
        os.close(follower)
        self.seen = ""

    def until(self, pattern: str) -> str:
        """Read until a pattern has been seen as often as asked for; gives all that was seen."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.seen, re.DOTALL):
            may_come = self.process.poll() is None and time.monotonic() < deadline_s
            assert self._read(0.1) or may_come, f"no {pattern!r} in {self.seen!r}"
        return self.seen

    def _read(self, wait_s: float) -> bool:
        ready, _, _ = select.select([self._leader], [], [], wait_s)
        if not ready:
            return False
        try:
            data = os.read(self._leader, 65_536)
        except OSError:  # The other side is closed.
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def ended(self) -> int:
        """The exit code, once it has ended."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, f"still running: {self.seen!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._leader)


@pytest.fixture
def terminals(cluster: Cluster, tmp_path: Path) -> Iterator["Open"]:
    opened = Open(cluster, tmp_path)
    yield opened
    for terminal in opened.all:
        terminal.close()


class Open:
    """Opens terminals, and remembers them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self.all: list[Terminal] = []

    def __call__(self, *words: str) -> Terminal:
        self.all.append(Terminal(self._cluster, self._folder, *words))
        return self.all[-1]


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (("cluster", "top", "--every", "0.2"), "latency since the last look"),
        (("topic", "show", "orders", "--watch", "--every", "0.2"), "Topic orders"),
    ],
)
def test_a_live_screen_goes_on_until_ctrl_c(
    terminals: Open, words: tuple[str, ...], seen: str
) -> None:
    terminal = terminals(*words)
    terminal.until(f"{seen}.*{seen}")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 0
    assert "Traceback" not in terminal.seen


def test_tail_goes_on_until_ctrl_c(terminals: Open) -> None:
    tail = terminals("message", "tail", "orders")
    tail.until("Ctrl-C ends")
    sender = terminals("message", "send", "orders", "hello there")
    assert sender.ended() == 0
    tail.until("hello there")
    tail.process.send_signal(signal.SIGINT)
    assert tail.ended() == 0
    assert "Traceback" not in tail.seen


def test_what_destroys_asks_first(terminals: Open) -> None:
    assert terminals("topic", "create", "doomed").ended() == 0
    refused = terminals("topic", "delete", "doomed")
    refused.until(r"Delete topic doomed.*\[y/N\]")
    refused.type("n\n")
    assert refused.ended() == 0
    assert "nothing was changed" in refused.seen
    agreed = terminals("topic", "delete", "doomed")
    agreed.until(r"\[y/N\]")
    agreed.type("y\n")
    assert agreed.ended() == 0
    assert "deleted on broker-0" in agreed.seen


def test_tables_have_colours_on_a_terminal(terminals: Open) -> None:
    terminal = terminals("broker", "list")
    assert terminal.ended() == 0
    assert "\x1b[32m" in terminal.seen, "green: it answers"


def test_output_into_a_pipe_that_is_closed(cluster: Cluster, tmp_path: Path) -> None:
    environ = os.environ | {
        "NAMESRV_ADDR": cluster.namesrv_address, "TIANZHOU_CONFIG_DIR": str(tmp_path),
    }  # fmt: skip
    command = [sys.executable, "-m", "tianzhou", "broker", "config", "broker-0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "Broker broker-0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(DEADLINE_S) == 0
