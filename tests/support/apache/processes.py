"""Server processes: waiting with a deadline, starting, pausing and ending by pid."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 240
STOP_TIMEOUT_S = 120
POLL_S = 0.05
LOG_TAIL_LINES = 40

T = TypeVar("T")


# -- waiting ---------------------------------------------------------------------------------------


def wait_until(
    read_value: Callable[[], T | None],
    what: str,
    *,
    timeout_s: float,
    seen: Callable[[], object] | None = None,
) -> T:
    """Call `read_value` until it is true; after the deadline fail with the last value seen."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = read_value()
        if found:
            return found
        if time.monotonic() >= deadline:
            shown = seen() if seen is not None else found
            raise AssertionError(f"{what}: not within {timeout_s} s; last seen: {shown}")
        time.sleep(POLL_S)


def wait_to_hold(check: Callable[[], None], *, timeout_s: float) -> None:
    """Call `check` until it raises no AssertionError; after the deadline raise the last."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            check()
        except AssertionError:
            if time.monotonic() >= deadline:
                raise
        else:
            return
        time.sleep(POLL_S)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


# -- one server ------------------------------------------------------------------------------------


def environment_in(home: Path) -> dict[str, str]:
    """Our environment without addresses of other clusters, with `home` as home directory."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key != "NAMESRV_ADDR" and not key.startswith(("TIANZHOU_NAMESRV_", "TIANZHOU_BROKER_"))
    }
    return kept | {"ROCKETMQ_HOME": str(home), "HOME": str(home), "LC_ALL": "C.UTF-8"}


class Server:
    """A running nameserver or broker; `address` is where clients reach it."""

    def __init__(self, name: str, address: str, home: Path, command: Sequence[str]) -> None:
        self.name = name
        self.address = address
        self.home = home
        self.stdout_path = home / "stdout.log"
        with self.stdout_path.open("ab") as output:
            # Launch.java ends its JVM when this pipe closes: however this process ends.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=home,
                env=environment_in(home),
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def output(self) -> str:
        """The program's standard output and error."""
        return self.stdout_path.read_text(errors="replace")

    def report(self) -> str:
        """The end of the program's output, log files included."""
        parts = [f"{self.name} (pid {self.pid}, exit code {self.process.poll()})"]
        for path in (self.stdout_path, *sorted((self.home / "logs").rglob("*.log"))):
            lines = path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            if lines:
                parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)

    def wait_for_boot(self) -> None:
        def booted() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"ended while starting: {self.report()}")
            return "boot success" in self.output() and is_listening(self.port)

        wait_until(booted, f"start of {self.name}", timeout_s=START_TIMEOUT_S, seen=self.report)

    def pause(self) -> None:
        """Suspend the program (SIGSTOP); its connections stay open and silent."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, as in a crash."""
        self.process.kill()
        self.close()

    def stop(self) -> None:
        """Shut it down; a program that does not end in time is killed and reported."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                report = self.report()
                self.kill()
                raise AssertionError(f"did not stop in {STOP_TIMEOUT_S} s: {report}") from None
        self.close()

    def close(self) -> None:
        self.process.wait(STOP_TIMEOUT_S)
        if self.process.stdin is not None:
            self.process.stdin.close()


@contextmanager
def running(server: Server, *, graceful: bool = True) -> Generator[Server]:
    """Wait until the server responds; if it does not, kill its process."""
    try:
        server.wait_for_boot()
        yield server
    except BaseException:
        server.kill()
        raise
    if graceful:
        server.stop()
    else:
        server.kill()
