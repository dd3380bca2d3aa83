"""The image of deploy/Containerfile: build, start, health check, use, stop.

Its base is a Debian created by debootstrap, so a build fetches only packages. Containers share the
machine's network: chroot is the only isolation, which works inside containers, too.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.support import packages
from tests.support.ports import free_port

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
BASE, IMAGE = "localhost/debian:trixie", "localhost/tianzhou"
LOCAL_AUTHORITIES = Path("usr/local/share/ca-certificates")
BUILD_TIMEOUT_S = 1200
PATIENCE_S = 60.0
SMALL = ("mappedFileSizeCommitLog=4194304", "maxHashSlotNum=1000", "maxIndexNum=4000")


def run_program(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )


@dataclass(frozen=True, slots=True)
class Buildah:
    """Buildah with images and containers in separate folders."""

    folder: Path

    def command_line(self, *arguments: str) -> list[str]:
        folders = ["--root", str(self.folder / "images"), "--runroot", str(self.folder / "run")]
        return ["buildah", *folders, "--storage-driver", "vfs", *arguments]

    def __call__(self, *arguments: str) -> str:
        done = run_program(self.command_line(*arguments))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout.strip()


def make_base(root: Path) -> None:
    """A minimal Debian with the certificate authorities of this machine."""
    command = ["debootstrap", "--variant=minbase", "trixie", str(root)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        package.unlink()
    if (Path("/") / LOCAL_AUTHORITIES).is_dir():
        shutil.copytree(Path("/") / LOCAL_AUTHORITIES, root / LOCAL_AUTHORITIES, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Generator[Buildah]:
    """With the image built."""
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None and packages.may_install():
            packages.install(program)
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here, and it may not be installed")
    if os.geteuid() != 0:
        pytest.skip("only root may make a Debian to build upon")
    folder = tmp_path_factory.mktemp("image")
    run = Buildah(folder)
    make_base(folder / "base")
    container = run("from", "scratch")
    run("add", container, str(folder / "base"), "/")
    run("commit", "--rm", container, BASE)
    shutil.rmtree(folder / "base")
    file = str(ROOT / "deploy" / "Containerfile")
    run(
        *("build", "--isolation", "chroot", "--pull-never", "--format", "docker", "--no-cache"),
        *("--build-arg", f"BASE={BASE}", "-f", file, "-t", IMAGE, str(ROOT)),
    )
    yield run
    run("rm", "--all")
    shutil.rmtree(folder)


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in lists for child in each.read_text().split()]


def inner(pid: int) -> int:
    """The last process of a chain of children: the program of the container."""
    while below := children(pid):
        pid = below[0]
    return pid


@dataclass(frozen=True, slots=True)
class Container:
    buildah: Buildah
    name: str
    config: dict[str, Any]
    port: int
    namesrv_port: int
    health_port: int

    def run(self, *command: str) -> str:
        return self.buildah("run", "--isolation", "chroot", self.name, "--", *command)

    def command(self) -> list[str]:
        """The command of the image, on ports of a test."""
        public = "0.0.0.0"  # noqa: S104 - what the file says
        command = ["127.0.0.1" if each == public else each for each in self.config["Cmd"]]
        command += ["--port", str(self.port), "--namesrv-port", str(self.namesrv_port)]
        for pair in (*SMALL, f"metricsPromExporterPort={self.health_port}"):
            command += ["--set", pair]
        return command

    def check(self) -> int:
        """The image's own health check."""
        command: Sequence[str] = self.config["Healthcheck"]["Test"][1:]
        command = [argument.replace(":5557/", f":{self.health_port}/") for argument in command]
        run = self.buildah.command_line("run", "--isolation", "chroot", self.name, "--", *command)
        return subprocess.run(run, timeout=PATIENCE_S, capture_output=True, check=False).returncode

    def is_healthy(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.health_port}/health", timeout=5) as answer:
                return bool(answer.read() == b"ok\n")
        except URLError:
            return False

    @contextmanager
    def serving(self) -> Generator[subprocess.Popen[str]]:
        command = self.buildah.command_line(
            "run", "--isolation", "chroot", self.name, "--", *self.command()
        )
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                deadline_s = time.monotonic() + PATIENCE_S
                while not self.is_healthy():
                    assert process.poll() is None, cast("Any", process.stdout).read()
                    assert time.monotonic() < deadline_s, "the container did not get healthy"
                    time.sleep(0.1)
                yield process
            finally:
                # Its end ends the processes around it; ending those would leave it running.
                if process.poll() is None:
                    os.kill(inner(process.pid), signal.SIGKILL)


@pytest.fixture
def container(buildah: Buildah) -> Container:
    config = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    name = buildah("from", "--pull-never", IMAGE)
    return Container(buildah, name, config, free_port(-2, 1), free_port(), free_port())


def test_the_image_has_the_kernel_and_runs_as_its_own_user(container: Container) -> None:
    assert "kernel: compiled" in container.run("tianzhou", "version")
    assert container.config["User"] == "tianzhou"
    assert container.run("id", "-u", "-n") == "tianzhou"
    assert container.run("ls", "-A", "/data") == ""
    assert container.run("sh", "-c", "command -v cargo gcc || true") == ""


def test_messages_survive_a_restart_of_the_container(container: Container) -> None:
    cluster = ("--namesrv", f"127.0.0.1:{container.namesrv_port}")
    with container.serving() as process:
        assert container.check() == 0
        container.run("tianzhou", "topic", "create", "Harbour", "--queues", "1", *cluster)
        container.run("tianzhou", "message", "send", "Harbour", "cargo", "--count", "3", *cluster)
        os.kill(inner(process.pid), signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, cast("Any", process.stdout).read()
    assert container.check() != 0
    with container.serving():
        asked = (
            "message",
            "tail",
            "Harbour",
            "--since",
            "earliest",
            "--count",
            "3",
            "--json",
            *cluster,
        )
        printed = container.run("tianzhou", *asked)
    assert [json.loads(line)["body"] for line in printed.splitlines()] == ["cargo"] * 3
