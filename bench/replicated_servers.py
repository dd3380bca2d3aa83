"""Starts a master with or without a slave, ours or Apache's, and a proxy that delays between them.

The master listens on 127.0.0.1, where the load goes. With a proxy it advertises 127.0.0.2, where
the proxy listens on the same two ports and connects to the master: so the slave reaches both the
port of requests (with the hello that names the HA port) and the HA port through the proxy, and
nothing else does.
"""

import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.apache.requests import SUCCESS
from tests.support.apache.servers import (
    Server,
    apache_broker,
    apache_namesrv,
    ask_server,
    free_port,
    tianzhou_broker,
    tianzhou_namesrv,
)

from bench.broker_servers import (
    APACHE_JVM,
    COMMON,
    NAMESRV_JVM,
    KeepFiles,
    Measured,
    await_send,
    directory,
)

ALONE, ASYNC, SYNC = "no slave", "ASYNC_MASTER", "SYNC_MASTER"
ROLES = (ALONE, ASYNC, SYNC)
OURS = "Tianzhou"
APACHE_VERSIONS = ("5.5.0", "4.9.7")
LOOPBACK, PROXIED = "127.0.0.1", "127.0.0.2"
DELAY_SOURCE = Path(__file__).with_name("delay.c")

_RUNTIME_INFO = 28
_SLAVE: dict[str, Any] = {"brokerRole": "SLAVE", "brokerId": 1}
_DEADLINE_S = 120
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Delay:
    """A running proxy: it delays every byte, in both directions."""

    process: subprocess.Popen[str]
    port: int
    """Of requests; the next one is the HA port."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A master, and its slave if it has one."""

    servers: str
    role: str
    namesrv: Server
    master: Server
    start_slave: Callable[[], AbstractContextManager[Server]]
    slave: Server | None = None
    delay: Delay | None = None

    @property
    def measured(self) -> Measured:
        return Measured(self.servers, self.master.pid, self.namesrv.pid, self.master.port, 0.0)

    @property
    def beside(self) -> tuple[int, ...]:
        """The processes other than the master's that serve the load."""
        slave = (self.slave.pid,) if self.slave else ()
        return (*slave, self.delay.process.pid) if self.delay else slave


def local(server: Server) -> str:
    """Where the load and these programs reach a server; not through a proxy."""
    return f"{LOOPBACK}:{server.port}"


def end_log_offset(server: Server) -> int:
    """The end of the log of a broker; 0 if it says nothing, as Apache's without a log."""
    answer = ask_server(local(server), _RUNTIME_INFO)
    if answer.code != SUCCESS:
        return 0
    return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])


def await_in_step(master: Server, slave: Server) -> float:
    """Wait until the slave has the log of an idle master; returns after how many seconds."""
    began_s, end = time.monotonic(), end_log_offset(master)
    while (found := end_log_offset(slave)) != end:
        if time.monotonic() > began_s + _DEADLINE_S:
            raise TimeoutError(f"{slave.name}: its log ends at {found}, its master's at {end}")
        time.sleep(_POLL_S)
    return time.monotonic() - began_s


# -- ours ------------------------------------------------------------------------------------------


@contextmanager
def tianzhou(
    role: str, keep_files: KeepFiles | None = None, delay: Delay | None = None
) -> Generator[Cluster]:
    """Our brokers with default settings."""
    with directory(keep_files) as home, tianzhou_namesrv() as namesrv, ExitStack() as stack:
        own: dict[str, object] = {"brokerIP1": PROXIED, "listenPort": delay.port} if delay else {}

        def broker(name: str, **settings: object) -> AbstractContextManager[Server]:
            return tianzhou_broker(
                namesrv, **(COMMON | {"storePathRootDir": home / name} | settings)
            )

        master = stack.enter_context(
            broker("master", brokerRole=ASYNC if role == ALONE else role, **own)
        )
        alone = Cluster(OURS, role, namesrv, master, lambda: broker("slave", **_SLAVE), delay=delay)
        yield _with_slave(alone, stack)


# -- Apache's --------------------------------------------------------------------------------------


@contextmanager
def apache(version: str, role: str, keep_files: KeepFiles | None = None) -> Generator[Cluster]:
    """Apache's brokers with a production heap. `inSyncReplicas` is what makes 5.x wait."""
    with (
        directory(keep_files) as home,
        apache_namesrv(version, jvm_options=NAMESRV_JVM) as namesrv,
        ExitStack() as stack,
    ):

        def broker(name: str, **settings: object) -> AbstractContextManager[Server]:
            pairs: dict[str, Any] = {**COMMON, "inSyncReplicas": 2} | settings
            return apache_broker(
                version, namesrv.address, store_dir=home / name, jvm_options=APACHE_JVM,
                graceful=False, **pairs,
            )  # fmt: skip

        master = stack.enter_context(broker("master", brokerRole=ASYNC if role == ALONE else role))
        alone = Cluster(
            f"Apache {version}", role, namesrv, master, lambda: broker("slave", **_SLAVE)
        )
        yield _with_slave(alone, stack)


def _with_slave(alone: Cluster, stack: ExitStack) -> Cluster:
    """The cluster of a master, ready for a load."""
    master = alone.master
    if alone.role == ALONE:
        await_send(master.port)
        return alone
    slave = stack.enter_context(alone.start_slave())
    await_send(master.port)  # at a SYNC_MASTER accepted means that the slave has it
    await_in_step(master, slave)
    return Cluster(
        alone.servers, alone.role, alone.namesrv, master, alone.start_slave, slave, alone.delay
    )


# -- the delay between them ------------------------------------------------------------------------


@contextmanager
def delaying(delay_us: int) -> Generator[Delay]:
    """A proxy in front of a master that is not there yet."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("bench: the delaying proxy needs a C compiler")
    port = free_port(-2, 1)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-delay-"))
        program = Path(folder) / "delay"
        subprocess.run([compiler, "-O2", "-o", str(program), str(DELAY_SOURCE)], check=True)
        command = [str(program), str(delay_us), PROXIED, LOOPBACK, str(port), str(port + 1)]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        if _line_of(process) != "ready":
            raise RuntimeError("the delaying proxy did not start")
        yield Delay(process, port)


def check_passed(delay: Delay, log_bytes: int) -> None:
    """Ends the proxy. Raises RuntimeError unless the whole log has passed through it."""
    delay.process.send_signal(signal.SIGTERM)
    if (passed_bytes := int(_line_of(delay.process))) < log_bytes:
        raise RuntimeError(f"the proxy passed {passed_bytes} bytes of a log of {log_bytes}")


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
