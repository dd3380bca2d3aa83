"""Ports for servers that must be told theirs, because they cannot choose one and then say which.

A port that was seen to be free may be taken before the server has it: a JVM needs seconds to start.
So no two test processes of a machine give out the same ports. Each holds the lock of a stretch of
its own while it lives, and goes through it without coming back to a port soon. All lie below the
range of outgoing connections, which could take them as well.
"""

import contextlib
import fcntl
import itertools
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO

FIRST = 12_000
STRETCH = 1_000
STRETCHES = 20


def free_port(*neighbours: int) -> int:
    """A port that nobody listens on, nor on those at the given distances from it."""
    below, above = -min((0, *neighbours)), max((0, *neighbours))
    for _ in range(STRETCH):
        first = _take(below + above + 1)
        if all(is_free(first + below + distance) for distance in (0, *neighbours)):
            return first + below
    raise AssertionError(f"no free port from {_stretch().start} on")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _take(count: int) -> int:
    """The first of so many ports in a row that were not given out lately."""
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
    """The ports of this process, from now to its end."""
    for number in range(STRETCHES):
        if _lock(number) is not None:
            first = FIRST + number * STRETCH
            return range(first, first + STRETCH)
    raise AssertionError(f"{STRETCHES} test processes have all ports from {FIRST} on")


@cache
def _lock(number: int) -> IO[str] | None:
    """The locked file of a stretch, open for good; None if another process has it."""
    path = Path(tempfile.gettempdir()) / f"tianzhou-test-ports-{number}"
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
