"""Pidfiles of running servers: one file per process, locked while the process lives.

`mqshutdown` must find only servers that this user started: no other user's, no Apache process, no
process that got a reused pid. The kernel releases the lock when the process ends, however it ends,
so a file that can be locked is stale and is removed.

    ~/.tianzhou/run/namesrv-4711.json    {"pid": 4711, "address": "0.0.0.0:9876", "where": "..."}

A home folder may be shared with other machines and containers, whose pids are not valid here:
`where` identifies the machine. `TIANZHOU_RUN_DIR` sets another folder.
"""

import fcntl
import json
import logging
import os
import platform
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tianzhou.config.files import in_home

log = logging.getLogger(__name__)


class Running(NamedTuple):
    """One server process."""

    program: str
    pid: int
    address: str
    path: Path

    def is_alive(self) -> bool:
        return _is_locked(self.path)

    def ask_to_stop(self) -> None:
        """Send SIGTERM, on which a server stops cleanly. Raises ProcessLookupError."""
        if not self.is_alive():
            raise ProcessLookupError(f"{self.program} {self.pid} has ended")
        os.kill(self.pid, signal.SIGTERM)


def run_folder() -> Path:
    """The folder of the pidfiles."""
    given = os.environ.get("TIANZHOU_RUN_DIR")
    return Path(given) if given else in_home(".tianzhou/run")


def _where() -> str:
    """The scope of a pid: this boot of this machine, this container."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return platform.node()


@contextmanager
def pidfile(program: str, address: str) -> Generator[None]:
    """Hold the pidfile of this process while the block runs; a failure is only logged."""
    path = run_folder() / f"{program}-{os.getpid()}.json"
    record = {"pid": os.getpid(), "address": address, "where": _where()}
    descriptor = -1
    try:
        descriptor = _create_locked(path)
        os.write(descriptor, json.dumps(record).encode())
    except OSError as e:
        log.warning("%s: cannot be written, mqshutdown will not find this process: %s", path, e)
    try:
        yield
    finally:
        if descriptor >= 0:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _create_locked(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Another process may have removed the file as stale before we locked it.
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


def running(program: str) -> list[Running]:
    """The running servers of this user on this machine; removes stale files."""
    found: list[Running] = []
    for path in run_folder().glob(f"{program}-*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(path.read_bytes())
            if record["where"] != _where():
                continue
            if _is_locked(path):
                found.append(Running(program, int(record["pid"]), str(record["address"]), path))
            else:
                path.unlink(missing_ok=True)
    return sorted(found, key=lambda server: server.pid)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
