"""Which of our servers run: one file per process, locked for as long as the process lives.

`mqshutdown` must find the servers that this user started and nothing else: no other user's, no
program of Apache's, no stranger that was given the number of a process long gone. A lock ends with
its holder, however that ends, so a file whose lock can be taken is left over and is removed.

    ~/.tianzhou/run/namesrv-4711.json    {"pid": 4711, "address": "0.0.0.0:9876", "where": "..."}

A home folder may be shared with other machines and containers, whose process numbers mean nothing
here: `where` tells. `TIANZHOU_RUN_DIR` names another folder.
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
        """Send the signal on which a server stops cleanly. Raises ProcessLookupError."""
        if not self.is_alive():
            raise ProcessLookupError(f"{self.program} {self.pid} has ended")
        os.kill(self.pid, signal.SIGTERM)


def run_folder() -> Path:
    """The folder of the files."""
    given = os.environ.get("TIANZHOU_RUN_DIR")
    return Path(given) if given else in_home(".tianzhou/run")


def _where() -> str:
    """What process numbers are valid for: this boot of this machine, this container."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return platform.node()


@contextmanager
def pidfile(program: str, address: str) -> Generator[None]:
    """Make this process findable while the block runs; where that cannot be, it is only logged."""
    path = run_folder() / f"{program}-{os.getpid()}.json"
    record = {"pid": os.getpid(), "address": address, "where": _where()}
    descriptor = -1
    try:
        descriptor = _create_locked(path)
        os.write(descriptor, json.dumps(record).encode())
    except OSError as e:
        log.warning("%s: cannot be written, so mqshutdown will not find this process: %s", path, e)
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
        # Someone who took the file for left over may have removed it before the lock was ours.
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


def running(program: str) -> list[Running]:
    """The servers of this user that run here and now; left-over files are removed."""
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
