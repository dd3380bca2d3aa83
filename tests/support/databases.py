"""Real database servers for tests: PostgreSQL and Redis, each in a folder and on a port of its own.

As root on Debian a missing one is installed; elsewhere the test that needs it is skipped, with the
reason.
"""

import functools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import packages
from tests.support.ports import free_port

_START_S = 120.0


@functools.cache
def program(name: str, package: str) -> str:
    """The path of a program; installs its Debian package if permitted."""
    found = _find(name)
    if found is None and packages.may_install():
        packages.install(package)
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
        process.wait(120)


@contextmanager
def postgresql(folder: Path) -> Generator[str]:
    """A PostgreSQL server with its log in `folder`; the URL of a database in libpq's form."""
    initdb, postgres = program("initdb", "postgresql"), program("postgres", "postgresql")
    # Not in `folder`: PostgreSQL does not run as root, and each pytest that starts removes other
    # users' permissions from the folders of all runs.
    with tempfile.TemporaryDirectory(prefix="tianzhou-postgresql-") as data:
        prefix: list[str] = []
        if os.getuid() == 0:
            prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
            shutil.chown(data, "postgres", "postgres")
        subprocess.run(
            [*prefix, initdb, "-D", data, "-U", "tester", "-A", "trust", "--no-sync"],
            check=True, capture_output=True, timeout=240, cwd="/",
        )  # fmt: skip
        port = free_port()
        command = [
            *prefix, postgres, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "",
            "-c", "fsync=off",
        ]  # fmt: skip
        with _running(command, port, folder / "postgresql.log"):
            url = f"postgresql://tester@127.0.0.1:{port}/postgres"
            _await_postgresql(url)
            yield url


def fresh_database(server_url: str, name: str) -> str:
    """The URL of a new database of a server, by the URL of another one."""
    import psycopg
    from psycopg.sql import SQL, Identifier

    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    return f"{server_url.rpartition('/')[0]}/{name}"


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
    """A Redis server; yields its port."""
    server = program("redis-server", "redis-server")
    port = free_port()
    command = [
        server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder),
    ]  # fmt: skip
    with _running(command, port, folder / "redis.log"):
        yield port
