"""Ports for servers that cannot choose a free one themselves and report it.

A free port may be in use before the server binds it: a JVM needs seconds to start. So no two test
processes of a machine use the same ports. Each locks a range of ports while it runs, and cycles
through it, so that a port is not reused shortly after. All are below the ephemeral range, whose
ports outgoing connections use.
"""

import contextlib
import fcntl
import itertools
import socket
import tempfile
import time
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import IO

FIRST = 12_000
STRETCH = 1_000
STRETCHES = 20
SPARK_CONNECT = 15_002
"""Of every local Spark Connect: its Python client knows no other."""
PATIENCE_S = 900.0


def free_port(*neighbours: int) -> int:
    """A free port; the ports at the given distances from it are free, too.

    Without distances those are free that a broker listens on, too: for important requests (VIP)
    two below, for its slaves one above.
    """
    neighbours = neighbours or (-2, 1)
    below, above = -min((0, *neighbours)), max((0, *neighbours))
    for _ in range(STRETCH):
        first = _take(below + above + 1)
        if first <= SPARK_CONNECT <= first + below + above:
            continue
        if all(is_free(first + below + distance) for distance in (0, *neighbours)):
            return first + below
    raise AssertionError(f"no free port from {_stretch().start} on")


@contextlib.contextmanager
def spark_connect() -> Generator[None]:
    """Only one local Spark Connect runs at a time; waits until the port is free."""
    path = Path(tempfile.gettempdir()) / "tianzhou-test-spark-connect"
    deadline_s = time.monotonic() + PATIENCE_S
    while (file := _locked(path)) is None or not is_free(SPARK_CONNECT):
        if file is not None:
            file.close()
        assert time.monotonic() < deadline_s, f"port {SPARK_CONNECT} is used by another program"
        time.sleep(0.5)
    with file:
        yield


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _take(count: int) -> int:
    """The first of `count` consecutive ports that were not used recently."""
    for first in _places():
        if first + count <= _stretch().stop:
            for _ in range(count - 1):
                next(_places())
            return first
    raise AssertionError("the places have no end")


@cache
def _places() -> Iterator[int]:
    return itertools.cycle(_stretch())


@cache
def _stretch() -> range:
    """The ports of this process, in a cycle."""
    for number in range(STRETCHES):
        if _lock(number) is not None:
            first = FIRST + number * STRETCH
            return range(first, first + STRETCH)
    raise AssertionError(f"{STRETCHES} test processes have all ports from {FIRST} on")


@cache
def _lock(number: int) -> IO[str] | None:
    """The locked file of a range, never closed; None if another process has it."""
    return _locked(Path(tempfile.gettempdir()) / f"tianzhou-test-ports-{number}")


def _locked(path: Path) -> IO[str] | None:
    try:
        with contextlib.suppress(FileExistsError):
            path.touch(exist_ok=False)
        file = path.open()
    except PermissionError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
