"""Commands of the operator around a change of the role: `haFenceCommand` and `haRoleCommand`.

They are programs with arguments, not lines of a shell, and get what they need in environment
variables. One runs at a time, in the order of the changes; each has a limit of time, after which it
is killed with all processes that it started.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import signal
from collections.abc import Mapping
from typing import Final

log = logging.getLogger(__name__)

LIMIT_S: Final = 10.0
_OUTPUT_BYTES_MAX: Final = 2000


async def run(what: str, command: str, variables: Mapping[str, str]) -> bool:
    """Run a command to its end; whether it ended with 0. Failures are logged."""
    try:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command),
            env={**os.environ, **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        log.warning("%s: cannot be started: %s", what, error)
        return False
    output = b""
    try:
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        log.warning("%s: killed, it did not end within %g s", what, LIMIT_S)
        return False
    finally:
        # What it left behind on purpose stays; its output was closed, then.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        shown = output[-_OUTPUT_BYTES_MAX:].decode("utf-8", "backslashreplace").strip()
        log.warning("%s: ended with %d: %s", what, process.returncode, shown)
        return False
    return True


class CommandQueue:
    """Runs commands one after the other in the background; of waiting ones only the newest."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._task: asyncio.Task[None] | None = None
        self._next: tuple[str, Mapping[str, str]] | None = None

    def put(self, command: str, variables: Mapping[str, str]) -> None:
        """Run a command when the present one has ended."""
        self._next = (command, variables)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._next is not None:
            (command, variables), self._next = self._next, None
            await run(self._what, command, variables)

    async def stop(self) -> None:
        """Wait for the command that runs, or its limit, and for the one that waits."""
        if self._task is not None:
            await asyncio.wait((self._task,))
