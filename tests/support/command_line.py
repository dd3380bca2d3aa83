"""The command line in this process, against a cluster in this process.

    ran = cli("topic", "list", "--json")
    assert ran.json[0]["topic"] == "orders"

Output and exit code are what a user sees: `main` is the program without its process. Commands run
in a separate thread, so that a test can run consumers meanwhile.
"""

import asyncio
import contextlib
import io
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tianzhou.cli.app import main
from tianzhou.cli.mqadmin.command import run as run_mqadmin


@dataclass(frozen=True, slots=True)
class Ran:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - whatever the command printed
        return json.loads(self.out)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """One JSON value a line."""
        return [json.loads(line) for line in self.out.splitlines()]


_one_at_a_time = threading.Lock()


def run_words(words: Sequence[str], *, mqadmin: bool = False) -> Ran:
    """Run a command in the calling thread."""
    out, err = io.StringIO(), io.StringIO()
    with (
        _one_at_a_time,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run_mqadmin(words) if mqadmin else main(words)
    return Ran(code, out.getvalue(), err.getvalue())


@dataclass(frozen=True, slots=True)
class Cli:
    """Commands for one cluster."""

    namesrv: str

    def __call__(self, *words: str, code: int = 0) -> Ran:
        """Run a command, which must end with the given exit code."""
        ran = run_words([*words, "--namesrv", self.namesrv])
        assert ran.code == code, (words, ran)
        return ran

    async def run(self, *words: str, code: int = 0) -> Ran:
        """The same for a test on an event loop."""
        return await asyncio.to_thread(self, *words, code=code)

    def mqadmin(self, *words: str, code: int = 0) -> Ran:
        ran = run_words([*words, "-n", self.namesrv], mqadmin=True)
        assert ran.code == code, (words, ran)
        return ran

    def refused(self, *words: str, code: int = 1) -> str:
        """The one line of a command that fails."""
        ran = self(*words, code=code)
        assert ran.out == "", ran
        assert ran.err.count("\n") == 1, ran
        return ran.err
