"""Commands on a pseudo terminal, where they render as for a user."""

import codecs
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

DEADLINE_S = 90.0
_BAR = "━"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")


class Terminal:
    """A command on a terminal of its own."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str] | None = None, columns: int = 100
    ) -> None:
        """`environment` is added to ours."""
        self._leader, follower = pty.openpty()
        environ = {**os.environ, **(environment or {})}
        environ |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "40"}
        environ.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tianzhou", *words],
            stdin=follower, stdout=follower, stderr=follower, env=environ, close_fds=True,
        )  # fmt: skip
        os.close(follower)
        self.seen = ""
        # A read may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def until(self, pattern: str) -> str:
        """Read until a pattern matches; returns all output."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.seen, re.DOTALL):
            may_come = self.process.poll() is None and time.monotonic() < deadline_s
            assert self._read(0.1) or may_come, f"no {pattern!r} in {self.seen!r}"
        return self.seen

    def _read(self, wait_s: float) -> bool:
        ready, _, _ = select.select([self._leader], [], [], wait_s)
        if not ready:
            return False
        try:
            data = os.read(self._leader, 65_536)
        except OSError:  # The other side is closed.
            return False
        self.seen += self._decoder.decode(data)
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def ended(self) -> int:
        """The exit code, once it has ended."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, f"still running: {self.seen!r}"
            self._read(0.05)
        while self._read(0.05):
            pass
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._leader)


def lines_of(seen: str) -> list[str]:
    """The rendered lines; of a progress bar, its last state."""
    lines: list[str] = []
    for line in _CONTROL.sub("", seen).replace("\r\n", "\n").split("\n"):
        # A progress bar is redrawn in its own line, and later output begins there.
        for state in [each.rstrip() for each in line.split("\r") if each.strip()] or [""]:
            if lines and _BAR in lines[-1] and _BAR in state:
                lines.pop()
            lines.append(state)
    while lines and not lines[-1]:
        lines.pop()
    return lines
