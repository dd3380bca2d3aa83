"""Real database servers for tests: PostgreSQL and Redis, each in a folder and on a port of its own.

As root on Debian a missing one is installed; elsewhere the test that needs it is skipped, and says
what is missing.
"""

import functools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

_START_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@functools.cache
def program(name: str, package: str) -> str:
    """Where a program is; installs the Debian package that has it, if it may."""
    found = _find(name)
    if found is None and os.getuid() == 0 and shutil.which("apt-get"):
        environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        for arguments in (["update", "-qq"], ["install", "-y", "-qq", package]):
            subprocess.run(
                ["apt-get", *arguments], env=environ, capture_output=True, check=False, timeout=600
            )
        found = _find(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian package {package})")
    return found


def _find(name: str) -> str | None:
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", "")])
    return shutil.which(name, path=path)


@contextmanager
def _running(command: list[str], port: int, log: Path) -> Generator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    text = log.read_text(errors="replace")
                    raise AssertionError(f"{command[0]} did not start:\n{text}") from None
                time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def postgresql(folder: Path) -> Generator[str]:
    """A PostgreSQL server; gives the URL of a database in libpq's form."""
    initdb, postgres = program("initdb", "postgresql"), program("postgres", "postgresql")
    data = folder / "postgresql"
    data.mkdir()
    # PostgreSQL refuses to run as root.
    prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
    if os.getuid() == 0:
        for each in (folder, *folder.parents):
            if (
                each.owner() == "root"
                and each != Path("/")
                and each.stat().st_mode & 0o005 != 0o005
            ):
                each.chmod(each.stat().st_mode | 0o011)
        shutil.chown(data, "postgres", "postgres")
    else:
        prefix = []
    subprocess.run(
        [*prefix, initdb, "-D", str(data), "-U", "tester", "-A", "trust", "--no-sync"],
        check=True, capture_output=True, timeout=120, cwd="/",
    )  # fmt: skip
    port = free_port()
    command = [
        *prefix, postgres, "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", "",
        "-c", "fsync=off",
    ]  # fmt: skip
    with _running(command, port, folder / "postgresql.log"):
        url = f"postgresql://tester@127.0.0.1:{port}/postgres"
        _await_postgresql(url)
        yield url


def _await_postgresql(url: str) -> None:
    import psycopg

    deadline = time.monotonic() + _START_S
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@contextmanager
def redis_server(folder: Path) -> Generator[int]:
    """A Redis server; gives its port."""
    server = program("redis-server", "redis-server")
    port = free_port()
    command = [
        server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder),
    ]  # fmt: skip
    with _running(command, port, folder / "redis.log"):
        yield port
