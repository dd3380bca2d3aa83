"""Several brokers from one configuration: shared-nothing processes, supervised by one parent.

Worker i is the broker NAME-i on port + 10 i with the store ROOT-i. To clients they are ordinary
brokers; a topic created by an administrator must be created on each. The parent restarts a worker
that ends, with a growing back-off, and passes a stop on to all.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tianzhou.broker.config import BrokerConfig
from tianzhou.config.settings import Given
from tianzhou.errors import ConfigError

log = logging.getLogger(__name__)

PORT_STEP = 10
"""Leaves free the VIP port two below and the replication port one above."""
WORKERS_MAX = 64
_STEADY_S = 10.0
_PAUSE_FIRST_S = 0.5
_PAUSE_MAX_S = 30.0
_PARENT_CHECK_S = 1.0


def worker_settings(config: BrokerConfig, number: int) -> list[Given]:
    """The settings of one worker, as flags that override all others."""
    origin = f"worker {number}"
    root = config.root_directory
    pairs: dict[str, object] = {
        "brokerName": f"{config.broker_name}-{number}",
        "listenPort": config.listen_port + number * PORT_STEP if config.listen_port else 0,
        "storePathRootDir": _numbered(root, number),
        "brokerConfigPath": _numbered(root, number) / "broker.properties",
    }
    if config.log_file is not None:
        # Two processes cannot rotate one log file.
        own = config.log_file.with_stem(f"{config.log_file.stem}-{number}")
        pairs["logFile"] = own
    if config.ha_listen_port:
        pairs["haListenPort"] = config.ha_listen_port + number * PORT_STEP
    for key, path in (
        ("storePathCommitLog", config.store_path_commit_log),
        ("storePathConsumeQueue", config.store_path_consume_queue),
        ("storePathIndex", config.store_path_index),
    ):
        if path is not None:
            pairs[key] = _numbered(path, number)
    return [Given(key, str(value), origin) for key, value in pairs.items()]


def check_workers(config: BrokerConfig, count: int) -> None:
    """Raises ConfigError for an invalid number of workers."""
    if not 1 <= count <= WORKERS_MAX:
        raise ConfigError(f"--workers {count}: 1 to {WORKERS_MAX} are possible")
    last_port = config.listen_port + (count - 1) * PORT_STEP
    if last_port + 1 > 65_535:
        raise ConfigError(f"--workers {count}: port {last_port} of the last one is too high")


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}-{number}")


@contextmanager
def ends_with_parent() -> Generator[None]:
    """Send SIGTERM to this process when its parent process has ended."""
    parent, done = os.getppid(), threading.Event()

    def watch() -> None:
        while not done.wait(_PARENT_CHECK_S):
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watching = threading.Thread(target=watch, name="parent-watch", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()


def _log_start(number: int, pid: int) -> None:
    log.info("worker %d: process %d", number, pid)


def _log_end(number: int, code: int, pause_s: float) -> None:
    log.warning("worker %d: ended with code %d, started again in %.1f s", number, code, pause_s)


class Workers:
    """The parent: restarts one process per command."""

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        stop_timeout_s: float = 60.0,
        *,
        pause_s: float = _PAUSE_FIRST_S,
        output: Sequence[Path] | None = None,
        on_ended: Callable[[int, int, float], None] | None = None,
        on_started: Callable[[int, int], None] | None = None,
    ) -> None:
        """`pause_s` is the first pause before a restart. `output` has a file for each process, in
        place of the terminal. `on_ended` gets the number, the exit code and the pause before
        the restart; `on_started` the number and the process id, at the first start, too."""
        self._commands = commands
        self._stop_timeout_s = stop_timeout_s
        self._pause_s = pause_s
        self._output = output
        self._on_ended = on_ended or _log_end
        self._on_started = on_started or _log_start
        self._watches: list[asyncio.Task[None]] = []
        self.processes: dict[int, asyncio.subprocess.Process] = {}
        """The running process of each worker, by number."""
        self.restart_count = 0

    async def start(self) -> None:
        self._watches = [
            asyncio.create_task(self._watch(number, command))
            for number, command in enumerate(self._commands)
        ]
        await asyncio.sleep(0)

    async def stop(self) -> None:
        """Terminate all processes and wait for them; kill those that do not end in time."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await asyncio.gather(*(self._end(*each) for each in tuple(self.processes.items())))

    async def _watch(self, number: int, command: Sequence[str]) -> None:
        loop, pause_s = asyncio.get_running_loop(), self._pause_s
        while True:
            started_s = loop.time()
            # The process is registered before this task can be cancelled, so a stop finds it.
            process = await asyncio.shield(self._spawn(number, command))
            code = await process.wait()
            self.processes.pop(number, None)
            pause_s = self._pause_s if loop.time() - started_s > _STEADY_S else pause_s * 2
            pause_s = min(pause_s, _PAUSE_MAX_S)
            self._on_ended(number, code, pause_s)
            await asyncio.sleep(pause_s)
            self.restart_count += 1

    async def _spawn(self, number: int, command: Sequence[str]) -> asyncio.subprocess.Process:
        with ExitStack() as stack:
            file = stack.enter_context(self._output[number].open("ab")) if self._output else None
            process = await asyncio.create_subprocess_exec(
                *command, start_new_session=True, stdout=file, stderr=file
            )
        self.processes[number] = process
        self._on_started(number, process.pid)
        return process

    async def _end(self, number: int, process: asyncio.subprocess.Process) -> None:
        try:
            process.terminate()
            async with asyncio.timeout(self._stop_timeout_s):
                await process.wait()
        except ProcessLookupError:
            await process.wait()
        except TimeoutError:
            log.warning("worker %d: did not stop in time, killed", number)
            process.kill()
            await process.wait()
        self.processes.pop(number, None)
