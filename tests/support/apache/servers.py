"""Runs the real Apache RocketMQ: its nameserver, its broker, its mqadmin and its clients.

Each server is a process on free loopback ports, with its own directory for home, logs and store. A
context manager yields it once it responds, and ends it by its process id:

    with apache_namesrv("4.9.7") as namesrv, apache_broker("5.5.0", namesrv.address) as broker:
        print(run_mqadmin("4.9.7", namesrv.address, "clusterList"))

Waits have a condition and a deadline; the error after the deadline contains the output of the
program. `python -m tests.support.apache.servers` fetches and compiles everything in advance.
"""

import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.apache import jars
from tests.support.apache.jars import TOOLS_ONLY, VERSIONS, ApacheUnavailable
from tests.support.apache.jvm import java_command, make_home, run_java, write_properties
from tests.support.apache.processes import (
    LOOPBACK,
    START_TIMEOUT_S,
    Server,
    running,
    wait_to_hold,
    wait_until,
)
from tests.support.apache.requests import Answer, ask_server, is_registered
from tests.support.apache.shell import Shell, java_shell, java_shells
from tests.support.ports import free_port

__all__ = [
    "LOOPBACK",
    "TOOLS_ONLY",
    "VERSIONS",
    "Answer",
    "ApacheUnavailable",
    "Restartable",
    "Server",
    "Shell",
    "apache_broker",
    "apache_namesrv",
    "ask_server",
    "free_port",
    "java_shell",
    "java_shells",
    "run_java",
    "run_mqadmin",
    "tianzhou_broker",
    "tianzhou_namesrv",
    "wait_to_hold",
    "wait_until",
]

BROKER_DEFAULTS: dict[str, object] = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerIP1": LOOPBACK,
    "brokerIP2": LOOPBACK,
    # Both spellings: the key was corrected during 4.x, and an unknown key is ignored.
    "mapedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 6000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "diskMaxUsedSpaceRatio": 95,
    "enableControllerMode": "false",
    "mappedFileSizeTimerLog": 1024 * 1024,
    "registerNameServerPeriod": 10_000,
    # Do not reject requests that waited in a queue, or after a slow disk write.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": 60_000,
    # 5.x keeps a core busy from its start until this time has passed (default 10 s) ...
    "transactionMetricFlushInterval": 100,
    # ... and a fifth of a core permanently by comparing its whole timer wheel every second.
    "timerFlushIntervalMs": 5_000,
}
"""A small broker that accepts requests on a full disk or a busy machine."""


# -- servers ---------------------------------------------------------------------------------------


@contextmanager
def apache_namesrv(
    version: str,
    *,
    port: int | None = None,
    jvm_options: Sequence[str] = (),
    graceful: bool = False,
    **properties: object,
) -> Generator[Server]:
    """Apache's nameserver. `properties` are lines of its configuration file."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="apache-namesrv-") as directory:
        home = make_home(Path(directory))
        configuration = home / "namesrv.properties"
        defaults = {
            "listenPort": port,
            "kvConfigPath": home / "kvConfig.json",
            "rocketmqHome": home,
        }
        write_properties(configuration, defaults | properties)
        command = [
            *java_command(version, home, jvm_options),
            *("Launch", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(configuration)),
        ]
        server = Server(f"Apache nameserver {version}", f"{LOOPBACK}:{port}", home, command)
        with running(server, graceful=graceful):
            yield server


@contextmanager
def apache_broker(
    version: str,
    namesrv_addrs: str,
    *,
    store_dir: Path | None = None,
    port: int | None = None,
    jvm_options: Sequence[str] = (),
    graceful: bool = True,
    await_registration: bool = True,
    conf_files: Mapping[str, str] | None = None,
    **properties: object,
) -> Generator[Server]:
    """Apache's broker, registered with the nameservers `a:1;b:2`.

    `store_dir` is its storePathRootDir, which is not removed; without one the store is removed with
    the broker. `properties` are lines of the configuration file and override BROKER_DEFAULTS.
    `conf_files` are further files of its conf directory, by name.
    `graceful=False` kills the broker at the end, which is quicker and leaves an abort file in the
    store.
    """
    # Two below is the VIP port, one above the replication port.
    port = port or free_port(-2, 1)
    with tempfile.TemporaryDirectory(prefix="apache-broker-") as directory:
        home = make_home(Path(directory))
        for name, text in (conf_files or {}).items():
            (home / "conf" / name).write_text(text)
        store = store_dir or home / "store"
        configuration = home / "broker.properties"
        defaults = BROKER_DEFAULTS | {
            "rocketmqHome": home,
            "namesrvAddr": namesrv_addrs,
            "listenPort": port,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
        }
        write_properties(configuration, defaults | properties)
        command = [
            *java_command(version, home, jvm_options),
            *("Launch", "org.apache.rocketmq.broker.BrokerStartup", "-c", str(configuration)),
        ]
        address = f"{properties.get('brokerIP1', LOOPBACK)}:{port}"
        server = Server(f"Apache broker {version}", address, home, command)
        with running(server, graceful=graceful):
            if await_registration:
                # 5.x registers some time after it logs that it has started.
                for namesrv in filter(None, namesrv_addrs.split(";")):
                    wait_until(
                        partial(is_registered, namesrv, address),
                        f"registration of {server.name} with {namesrv}",
                        timeout_s=START_TIMEOUT_S,
                        seen=server.report,
                    )
            yield server


@contextmanager
def tianzhou_namesrv(
    *, port: int | None = None, graceful: bool = True, **properties: object
) -> Generator[Server]:
    """Our nameserver as users start it. `properties` are lines of its configuration file."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="tianzhou-namesrv-") as directory:
        home = Path(directory)
        configuration = home / "namesrv.properties"
        write_properties(
            configuration,
            {"listenPort": port, "kvConfigPath": home / "kvConfig.json"} | properties,
        )
        program = Path(sys.executable).parent / "mqnamesrv"
        command = [str(program), "-c", str(configuration)]
        server = Server("our nameserver", f"{LOOPBACK}:{port}", home, command)
        with running(server, graceful=graceful):
            yield server


@contextmanager
def tianzhou_broker(namesrv: Server, **properties: object) -> Generator[Server]:
    """Our broker, registered with a nameserver. `properties` are lines of its configuration.

    With the property `graceful=False` it is killed at the end.
    """
    graceful = bool(properties.pop("graceful", True))
    # Two below is the port that clients with vipChannelEnabled use.
    port = properties.get("listenPort") or free_port(-2, 1)
    with tempfile.TemporaryDirectory(prefix="tianzhou-broker-") as directory:
        home = Path(directory)
        configuration = home / "broker.properties"
        defaults: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerIP1": LOOPBACK,
            "bindAddress": LOOPBACK,
            "listenPort": port,
            "storePathRootDir": home / "store",
            "mappedFileSizeCommitLog": 4 * 1024 * 1024,
            "mappedFileSizeConsumeQueue": 20 * 2000,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
            # A full disk or a busy machine must not fail tests.
            "diskMaxUsedSpaceRatio": 95,
            "diskSpaceCleanForciblyRatio": 99,
            "diskSpaceWarningLevelRatio": 100,
            "osPageCacheBusyTimeOutMills": 60_000,
        }
        write_properties(configuration, defaults | properties)
        program = Path(sys.executable).parent / "mqbroker"
        command = [str(program), "-n", namesrv.address, "-c", str(configuration)]
        address = f"{properties.get('brokerIP1', LOOPBACK)}:{port}"
        server = Server("our broker", address, home, command)
        with running(server, graceful=graceful):
            wait_until(
                partial(is_registered, namesrv.address, server.address),
                "registration of our broker",
                timeout_s=START_TIMEOUT_S,
                seen=server.report,
            )
            yield server


class Restartable:
    """A server that tests stop and restart; `begin` must use the same port and store."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Server]]) -> None:
        self._begin = begin
        self._life = ExitStack()
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        """The current or last process."""
        assert self._server is not None
        return self._server

    def start(self) -> None:
        self._server = self._life.enter_context(self._begin())

    def kill(self) -> None:
        """SIGKILL: no unregistration, no flush."""
        self.server.kill()
        self._life.close()

    def stop(self) -> None:
        """Stop it by the context manager of `begin`."""
        self._life.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


# -- programs that end -----------------------------------------------------------------------------


def run_mqadmin(version: str, namesrv: str, *arguments: str, timeout_s: float = 240) -> str:
    """The output of `mqadmin ARGUMENTS -n NAMESRV`, in a new JVM; a Shell is faster."""
    main_class = "org.apache.rocketmq.tools.command.MQAdminStartup"
    done = run_java(version, main_class, *arguments, "-n", namesrv, timeout_s=timeout_s)
    if done.returncode != 0:
        raise AssertionError(
            f"mqadmin {arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout + done.stderr


def prepare() -> None:
    """Fetch and compile everything now."""
    for version in (*VERSIONS, TOOLS_ONLY):
        jars.classpath(version)
        jars.say(f"apache: RocketMQ {version} is ready in {jars.CACHE / version}")


if __name__ == "__main__":
    prepare()
