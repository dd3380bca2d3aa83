"""The services of deploy/: start, health check, stop.

Folders and ports are those of a test; commands and environment are those of the files.
"""

import configparser
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS: Mapping[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "scripts"
]
CONTAINER = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
PATIENCE_S = 60.0
SMALL = "mappedFileSizeCommitLog=4194304\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"


@dataclass(frozen=True, slots=True)
class Service:
    """A running program, and the file with its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def port(self) -> int:
        """The port of /health, once it is served."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := re.search(r"/health\b.* on port (\d+)", self.log.read_text())):
            is_running = self.process.poll() is None and time.monotonic() < deadline_s
            assert is_running, self.log.read_text()
            time.sleep(0.02)
        return int(found[1])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def running(
    arguments: Sequence[str], folder: Path, environ: Mapping[str, str]
) -> Generator[Service]:
    """Run an installed command by calling the function of its entry point."""
    module, _, function = SCRIPTS[Path(arguments[0]).name].partition(":")
    code = f"import sys; from {module} import {function} as run; sys.exit(run())"
    log = folder / "service.log"
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments[1:]],
            stdout=out, stderr=out, cwd=folder, env={**inherited, **environ},
        )  # fmt: skip
    try:
        yield Service(process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["tianzhou-namesrv", "tianzhou-broker"])
def test_a_unit_serves_until_it_is_stopped(name: str, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.read_string((ROOT / "deploy" / f"{name}.service").read_text())
    service = unit["Service"]
    state = f"/var/lib/{service['StateDirectory']}"
    given = [pair.replace(state, str(tmp_path)) for pair in shlex.split(service["Environment"])]
    arguments = shlex.split(service["ExecStart"])
    at = arguments.index("-c") + 1
    file = tmp_path / Path(arguments[at]).name
    file.write_text(
        "listenPort=0\nbindAddress=127.0.0.1\nhealthEnable=true\nhealthPort=0\n"
        if name.endswith("namesrv")
        else f"listenPort=0\nbindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\n{SMALL}"
        "metricsExporterType=PROM\nmetricsPromExporterPort=0\n"
    )
    arguments[at] = str(file)
    with running(arguments, tmp_path, dict(pair.split("=", 1) for pair in given)) as it:
        with urlopen(f"http://127.0.0.1:{it.port()}/health", timeout=PATIENCE_S) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")
        assert it.stop() == 0, it.log.read_text()
        assert "Traceback" not in it.log.read_text()


def exec_form(instruction: str) -> list[str]:
    (text,) = re.findall(
        rf"^{instruction}(?: --\S+)*\s+(?:CMD )?(\[.*\])$", CONTAINER, re.MULTILINE
    )
    arguments: list[str] = json.loads(text)
    return arguments


def test_the_container_is_healthy_while_it_serves(tmp_path: Path) -> None:
    arguments = [argument.replace("/data", str(tmp_path / "data")) for argument in exec_form("CMD")]
    arguments[arguments.index("0.0.0.0")] = "127.0.0.1"  # noqa: S104 - what the file says
    arguments += ["--port", "0", "--namesrv-port", "0", "--log-level", "info"]
    for pair in (*SMALL.split(), "metricsPromExporterPort=0"):
        arguments += ["--set", pair]
    with running(arguments, tmp_path, {"HOME": str(tmp_path)}) as it:
        port = it.port()
        check = [argument.replace(":5557/", f":{port}/") for argument in exec_form("HEALTHCHECK")]
        check[0] = sys.executable
        assert subprocess.run(check, timeout=PATIENCE_S, check=False).returncode == 0
        assert it.stop() == 0, it.log.read_text()
        done = subprocess.run(check, timeout=PATIENCE_S, capture_output=True, check=False)
        assert done.returncode != 0
