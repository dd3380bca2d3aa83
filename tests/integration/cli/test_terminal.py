"""The command line on a real terminal: live screens, questions, Ctrl-C, and output that is cut."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.terminal import DEADLINE_S, Terminal

from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics={"orders": 2}) as it:
        yield it


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
        place = {
            "NAMESRV_ADDR": self._cluster.namesrv_address,
            "TIANZHOU_CONFIG_DIR": str(self._folder),
        }
        self.all.append(Terminal(words, place))
        return self.all[-1]


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (("cluster", "top", "--every", "0.2"), "latency since the last refresh"),
        (("topic", "show", "orders", "--watch", "--every", "0.2"), "Topic orders"),
    ],
)
def test_live_screen_ends_with_ctrl_c(terminals: Open, words: tuple[str, ...], seen: str) -> None:
    terminal = terminals(*words)
    terminal.until(f"{seen}.*{seen}")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 0
    assert "Traceback" not in terminal.seen


def test_tail_ends_with_ctrl_c(terminals: Open) -> None:
    tail = terminals("message", "tail", "orders")
    tail.until("Ctrl-C to stop")
    sender = terminals("message", "send", "orders", "hello there")
    assert sender.ended() == 0
    tail.until("hello there")
    tail.process.send_signal(signal.SIGINT)
    assert tail.ended() == 0
    assert "Traceback" not in tail.seen


def test_destructive_commands_ask_for_confirmation(terminals: Open) -> None:
    assert terminals("topic", "create", "doomed").ended() == 0
    refused = terminals("topic", "delete", "doomed")
    refused.until(r"Delete topic doomed.*\[y/N\]")
    refused.type("n\n")
    assert refused.ended() == 0
    assert "nothing was changed" in refused.seen
    confirm = terminals("topic", "delete", "doomed")
    confirm.until(r"\[y/N\]")
    confirm.type("y\n")
    assert confirm.ended() == 0
    assert "deleted on broker-0" in confirm.seen


def test_tables_have_colours_on_a_terminal(terminals: Open) -> None:
    terminal = terminals("broker", "list")
    assert terminal.ended() == 0
    assert "\x1b[32m" in terminal.seen, "green: it answers"


def test_closed_pipe_is_no_error(cluster: Cluster, tmp_path: Path) -> None:
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
