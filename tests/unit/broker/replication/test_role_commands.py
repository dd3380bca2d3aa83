"""Commands of the operator around a change of the role, as real processes."""

import asyncio
import logging
import shlex
import sys
from pathlib import Path

import pytest
from tests.support.brokers import eventually

from tianzhou.broker.replication import role_commands
from tianzhou.broker.replication.role_commands import CommandQueue


def script(text: str) -> str:
    """A command that runs a Python program."""
    return shlex.join([sys.executable, "-c", text])


async def test_a_command_gets_the_variables_and_no_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = f"import os, sys; open({str(out)!r}, 'w').write(os.environ['X'] + sys.argv[1])"
    command = shlex.join([sys.executable, "-c", text, "$X; exit 1"])
    assert await role_commands.run("a command", command, {"X": "value "})
    assert out.read_text() == "value $X; exit 1"


async def test_a_command_that_fails_is_logged_with_its_output(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert not await role_commands.run("a fence", script("print('no route'); exit(3)"), {})
        assert not await role_commands.run("a fence", "/nowhere/at/all", {})
    first, second = caplog.messages
    assert first == "a fence: ended with 3: no route"
    assert "a fence: cannot be started" in second


async def test_a_command_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(role_commands, "LIMIT_S", 2.0)
    pid_file = tmp_path / "pid"
    child = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(99)"
    text = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert not await role_commands.run("a fence", script(text), {})
    assert "did not end within 2 s" in caplog.text
    status = Path("/proc") / pid_file.read_text() / "stat"
    await eventually(lambda: not status.exists() or " Z " in status.read_text(), "its child's end")


async def test_commands_run_one_after_the_other_and_of_waiting_ones_the_newest(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    text = (
        "import os, pathlib, time\n"
        f"out = pathlib.Path({str(out)!r})\n"
        "with out.open('a') as file: file.write('<' + os.environ['ROLE'])\n"
        "while os.environ['ROLE'] == 'a' and not out.with_name('go').exists(): time.sleep(0.01)\n"
        "with out.open('a') as file: file.write('>')"
    )
    queue = CommandQueue("haRoleCommand")
    queue.put(script(text), {"ROLE": "a"})
    await eventually(out.exists, "the first command")
    for role in "bcd":
        queue.put(script(text), {"ROLE": role})
    (tmp_path / "go").touch()
    await queue.stop()
    assert out.read_text() == "<a><d>"
    queue.put(script(text), {"ROLE": "e"})
    await asyncio.gather(queue.stop(), queue.stop())
    assert out.read_text() == "<a><d><e>"
