"""`tianzhou up --replicas`: a group with automatic failover on one machine."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest
from tests.support.brokers import SMALL
from tests.support.etcd_programs import program
from tests.support.ports import free_port, is_free

from tianzhou.cli.serve.replicas import INSTALL, UpReplicas
from tianzhou.config.settings import Given
from tianzhou.errors import ConfigError

SIZES = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
DEADLINE_S = 120.0


def up(folder: Path, *more: str) -> tuple[list[str], list[int]]:
    """The command line, and the ports that it uses."""
    broker, namesrv, etcd = free_port(*range(-2, 30)), free_port(1), free_port(1)
    arguments = [
        sys.executable, "-m", "tianzhou", "up", "--replicas", "3", "--data", str(folder),
        "--namesrv-port", str(namesrv), "--port", str(broker), "--etcd-port", str(etcd), *more,
    ]  # fmt: skip
    for setting in SIZES:
        arguments += ["--set", f"{setting}={SMALL[setting]}"]
    return arguments, [broker, broker + 10, broker + 20, namesrv, etcd, etcd + 1]


def lines_until(output: IO[str], pattern: str) -> list[str]:
    """Lines up to one that matches."""
    lines: list[str] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        lines.append(line := output.readline())
        if not line or re.search(pattern, line):
            break
    assert re.search(pattern, lines[-1]), "".join(lines)
    return lines


def assert_works(command: str, folder: Path, tries: int = 1) -> None:
    """Run a printed command, for a shorter time."""
    command = command.replace("--watch", "--json").replace("--seconds 120 &", "--count 50")
    said = ""
    for _ in range(tries):
        done = subprocess.run(
            [sys.executable, "-m", "tianzhou", *shlex.split(command)],
            capture_output=True, text=True, check=False, timeout=DEADLINE_S,
            env=os.environ | {"TIANZHOU_CONFIG_DIR": str(folder)},
        )  # fmt: skip
        if done.returncode == 0:
            return
        said = done.stdout + done.stderr
        time.sleep(0.2)
    raise AssertionError(f"{command}: {said}")


def test_the_master_can_be_killed_and_ctrl_c_stops_everything(tmp_path: Path) -> None:
    arguments, ports = up(tmp_path / "data", "--etcd", str(program()))
    group = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pids = list[int]()
    try:
        assert group.stdout is not None
        lines = lines_until(group.stdout, "Ctrl-C stops everything")
        text = "".join(lines)
        table = [line.split() for line in lines if line.startswith(("etcd ", "broker-a "))]
        roles = sorted(line[1] for line in table[1:])
        assert roles == ["master", "slave", "slave"], text
        (killed,) = re.findall(r"kill -9 (\d+)", text)
        (master,) = [line for line in table if line[1] == "master"]
        assert killed == master[2]
        commands = re.findall(r"(?m)^  tianzhou (.*)$", text)
        assert [each.split()[:2] for each in commands] == [
            ["broker", "group"], ["topic", "create"], ["bench", "send"], ["broker", "switch"],
        ]  # fmt: skip
        for command in commands[:3]:
            # The slaves may join the in-sync set only now.
            assert_works(command, tmp_path, tries=60)
        os.kill(int(killed), signal.SIGKILL)
        port = master[3].rpartition(":")[2]
        lines_until(group.stdout, rf"broker {port} was ended by signal 9; it is started again")
        (again,) = re.findall(
            rf"broker {port} is started again: process (\d+)",
            lines_until(group.stdout, "is started again: process")[-1],
        )
        found = re.findall(r"(?m)^(?:etcd|broker-a +\S+(?: \d+)?) +(\d+) +(?:http|\d)", text)
        pids = [int(again), *(int(pid) for pid in found if pid != killed)]
        assert len(pids) == 4
        # The killed one is a slave now; the master hands over when another one is in sync.
        assert_works(commands[3], tmp_path, tries=60)
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        group.send_signal(signal.SIGINT)
        group.communicate(timeout=DEADLINE_S)
    finally:
        group.kill()
        group.wait()
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert group.returncode == 0
    assert not left
    assert all(map(is_free, ports))


def test_it_says_how_to_install_etcd(tmp_path: Path) -> None:
    arguments, _ = up(tmp_path / "data")
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, timeout=DEADLINE_S,
        env={"PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr == f"up: {INSTALL}\n"


def test_it_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    def make(*more: Given, etcd: Path | None = None, etcd_port: int = 1) -> UpReplicas:
        return UpReplicas(
            3, tmp_path, namesrv_port=0, broker_port=10911, etcd_port=etcd_port,
            listen="127.0.0.1", etcd=etcd, more=more,
        )  # fmt: skip

    with pytest.raises(ConfigError, match="flag --set: brokerName is chosen by --replicas"):
        make(Given("brokerName", "b", "flag --set"))
    with pytest.raises(ConfigError, match=r"--etcd .*nowhere: is no program"):
        make(etcd=tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="ports from 1 to 65533"):
        make(etcd=Path(sys.executable), etcd_port=70_000)
