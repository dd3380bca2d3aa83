"""`tianzhou up --replicas N`: automatic failover on one machine, to try it out.

    etcd            a process, 2379; its data is in FOLDER/etcd
    nameserver      in this process, 9876
    brokers         a process each, 10911, 10921, 10931; they elect their master

A broker that is killed is started again after RESTART_S, as a supervisor would do it. With
everything on one machine this protects nothing: docs/failover.md has the same on three hosts.
"""

import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tianzhou.admin.admin_client import Admin
from tianzhou.broker.config import load_broker_config
from tianzhou.broker.workers import Workers
from tianzhou.cli.shared.terminal import print_line
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, load
from tianzhou.errors import ConfigError, TianzhouError
from tianzhou.ha.authority.etcd_client import EtcdClient
from tianzhou.ha.authority.etcd_endpoints import EtcdAccess, parse_endpoints
from tianzhou.names import MASTER_ID
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.server import NameServer
from tianzhou.remoting.address import format_address, is_every_interface

COMMAND = "tianzhou up --replicas"
BROKER_NAME = "broker-a"
DEFAULT_NAMESRV = "127.0.0.1:9876"
"""Of commands without `-n`."""
REPLICAS_MIN, REPLICAS_MAX = 2, 5
PORT_STEP = 10
RESTART_S = 5.0
"""Long enough to see that another broker is the master before."""
INSTALL = (
    "etcd is not on the PATH: install it, on Debian and Ubuntu by `apt-get install etcd-server`, "
    "or give the program with --etcd FILE"
)
_START_S = 60.0
_PROBE_S = 1.0
_PAUSE_S = 0.1
_OWN_KEYS = (
    "brokerName", "brokerId", "listenPort", "haListenPort", "namesrvAddr", "haEtcdEndpoints",
    "storePathRootDir", "storePathCommitLog", "storePathConsumeQueue", "storePathIndex",
    "brokerConfigPath", "metricsPromExporterPort",
)  # fmt: skip
"""Settings that this command chooses for each broker."""


class UpReplicas:
    """etcd, a nameserver and the brokers as one program."""

    def __init__(
        self,
        count: int,
        folder: Path,
        *,
        namesrv_port: int,
        broker_port: int,
        etcd_port: int,
        listen: str,
        etcd: Path | None = None,
        more: Sequence[Given] = (),
        say: Callable[[str], None] = print_line,
    ) -> None:
        """`more` are settings of every broker. Raises ConfigError."""
        own = next((given for given in more if given.key in _OWN_KEYS), None)
        if own is not None:
            raise ConfigError(f"{own.origin}: {own.key} is chosen by --replicas for each broker")
        self._folder, self._listen, self._more, self._say = folder, listen, more, say
        self._program = etcd_program(etcd)
        self._etcd_port = etcd_port
        self._ports = [broker_port + number * PORT_STEP for number in range(count)]
        highest = max(*self._ports, etcd_port)
        if min(broker_port, etcd_port) < 1 or highest > 65_533:
            raise ConfigError(f"{COMMAND}: ports from 1 to 65533 are possible, not {highest}")
        for number in range(count):
            load_broker_config(environ={}, defaults=self._settings(number, ""), flags=more)
        self._namesrv = self._make_namesrv(namesrv_port)
        self._etcd: Workers | None = None
        self._brokers: Workers | None = None
        self._roles: dict[str, str] = {}
        self.namesrv_address = ""

    @property
    def endpoint(self) -> str:
        """Of etcd, as in haEtcdEndpoints."""
        return f"http://127.0.0.1:{self._etcd_port}"

    def _make_namesrv(self, port: int) -> NameServer:
        folder = self._folder / "namesrv"
        pairs = {
            "listenPort": port,
            "bindAddress": self._listen,
            "kvConfigPath": folder / "kvConfig.json",
            "configStorePath": folder / "namesrv.properties",
        }
        return NameServer(LiveSettings(load(NamesrvConfig, _given(pairs))))

    def _settings(self, number: int, namesrv: str) -> list[Given]:
        folder = self._broker_folder(number)
        pairs = {
            "brokerName": BROKER_NAME,
            "brokerRole": "SYNC_MASTER",
            "listenPort": self._ports[number],
            "bindAddress": self._listen,
            "namesrvAddr": namesrv,
            "haEtcdEndpoints": self.endpoint,
            "storePathRootDir": folder / "store",
            "brokerConfigPath": folder / "broker.properties",
            # Where metrics are on: 5557 and the ports above it.
            "metricsPromExporterPort": 5557 + number,
            "slaveReadEnable": "true",
            "enablePropertyFilter": "true",
        }
        return _given(pairs)

    def _broker_folder(self, number: int) -> Path:
        return self._folder / f"broker-{self._ports[number]}"

    # -- starting and stopping ---------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Start everything; returns the address of the nameserver when a master is registered."""
        _require_free(self._etcd_port)
        await self._start_etcd()
        host, port = await self._namesrv.start()
        self.namesrv_address = format_address(
            "127.0.0.1" if is_every_interface(host) else host, port
        )
        numbers = range(len(self._ports))
        for number in numbers:
            self._broker_folder(number).mkdir(parents=True, exist_ok=True)
        self._brokers = Workers(
            [self._broker_command(number) for number in numbers],
            pause_s=RESTART_S,
            output=[self._output(number) for number in numbers],
            on_ended=self._say_ended,
            on_started=self._say_started,
        )
        await self._brokers.start()
        await self._wait(self._has_master, "the brokers elected no master", self._output(0))
        return host, port

    async def _start_etcd(self) -> None:
        folder = self._folder / "etcd"
        folder.mkdir(parents=True, exist_ok=True)
        output = folder / "etcd.log"
        self._etcd = Workers([self._etcd_command(folder)], pause_s=RESTART_S, output=[output])
        await self._etcd.start()
        client = EtcdClient(EtcdAccess(endpoints=parse_endpoints(self.endpoint)))

        async def is_answering() -> bool:
            if not _listens(self._etcd_port):  # a probe would log that as a problem
                return False
            return all(each.is_answering for each in await client.probe(_PROBE_S))

        try:
            await self._wait(is_answering, f"{self._program} does not answer", output)
        finally:
            client.close()

    def _etcd_command(self, folder: Path) -> list[str]:
        peer = f"http://127.0.0.1:{self._etcd_port + 1}"
        flags = {
            "name": "etcd", "data-dir": folder / "data",
            "listen-client-urls": self.endpoint, "advertise-client-urls": self.endpoint,
            "listen-peer-urls": peer, "initial-advertise-peer-urls": peer,
            "initial-cluster": f"etcd={peer}",
        }  # fmt: skip
        return [str(self._program), *(f"--{key}={value}" for key, value in flags.items())]

    def _broker_command(self, number: int) -> list[str]:
        settings = [*self._settings(number, self.namesrv_address), *self._more]
        pairs = [part for given in settings for part in ("--set", f"{given.key}={given.text}")]
        return [sys.executable, "-m", "tianzhou.cli.serve.broker", "--as-worker", *pairs]

    def _output(self, number: int) -> Path:
        return self._broker_folder(number) / "broker.log"

    async def _has_master(self) -> bool:
        """Whether all brokers are registered, one of them as the master."""
        with suppress(TianzhouError):
            async with Admin(self.namesrv_address) as admin:
                info = await admin.clusters.info()
            data = info.brokers.get(BROKER_NAME)
            self._roles = {
                address: "master" if broker_id == MASTER_ID else f"slave {broker_id}"
                for broker_id, address in ((data.addresses if data else None) or {}).items()
            }
        return len(self._roles) == len(self._ports) and "master" in self._roles.values()

    async def _wait(self, probe: Callable[[], object], what: str, output: Path) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _START_S
        while True:
            seen = probe()
            if asyncio.iscoroutine(seen):
                seen = await seen
            if seen:
                return
            if loop.time() > deadline_s:
                raise TianzhouError(f"{what} within {_START_S:.0f} s: {output} says why")
            await asyncio.sleep(_PAUSE_S)

    async def stop(self) -> None:
        """Stop the brokers, the nameserver, then etcd; safe after a failed `start`."""
        if self._brokers is not None:
            await self._brokers.stop()
        await self._namesrv.stop()
        if self._etcd is not None:
            await self._etcd.stop()

    # -- what is printed ---------------------------------------------------------------------------

    def started_text(self) -> str:
        """What runs where, and what to try."""
        rows = [("SERVER", "ROLE", "PID", "ADDRESS", "DATA"), *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        lines += ["", "try, in another terminal:", *(f"  {line}" for line in self._commands())]
        lines += [
            "",
            f"{len(self._ports)} replicas on one machine, for trying it out; nameserver "
            f'"{self.namesrv_address}"; Ctrl-C stops everything',
        ]
        return "\n".join(lines)

    def _commands(self) -> list[str]:
        master = next((row[2] for row in self._rows() if row[1] == "master"), "PID")
        is_default = self.namesrv_address == DEFAULT_NAMESRV
        namesrv = "" if is_default else f' -n "{self.namesrv_address}"'
        return [
            f"tianzhou broker group {BROKER_NAME}{namesrv} --watch",
            f"tianzhou topic create tour{namesrv}",
            f"tianzhou bench send tour{namesrv} --seconds 120 &",
            f"kill -9 {master}    # the master: another one takes over; `up` starts this one again",
            f"tianzhou broker switch {BROKER_NAME}{namesrv} --yes",
        ]

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        etcd_pid, own_pid = _pid(self._etcd, 0), str(os.getpid())
        rows = [
            ("etcd", "", etcd_pid, self.endpoint, str(self._folder / "etcd")),
            ("nameserver", "", own_pid, self.namesrv_address, str(self._folder / "namesrv")),
        ]
        for number, port in enumerate(self._ports):
            address = next((each for each in self._roles if each.endswith(f":{port}")), str(port))
            rows.append((
                BROKER_NAME, self._roles.get(address, ""), _pid(self._brokers, number), address,
                str(self._broker_folder(number)),
            ))  # fmt: skip
        return rows

    def _say_ended(self, number: int, code: int, pause_s: float) -> None:
        how = f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"
        self._say(
            f"broker {self._ports[number]} {how}; it is started again in {pause_s:.0f} s; "
            f"its log: {self._output(number)}"
        )

    def _say_started(self, number: int, pid: int) -> None:
        if self._roles:  # Else the table has it.
            self._say(f"broker {self._ports[number]} is started again: process {pid}")


def etcd_program(given: Path | None) -> Path:
    """The path of etcd. Raises ConfigError if there is none."""
    if given is not None:
        if not (given.is_file() and os.access(given, os.X_OK)):
            raise ConfigError(f"--etcd {given}: is no program")
        return given.absolute()
    found = shutil.which("etcd")
    if found is None:
        raise ConfigError(INSTALL)
    return Path(found)


def _require_free(port: int) -> None:
    for each in (port, port + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", each))
            except OSError as e:
                raise ConfigError(
                    f"port {each} for etcd is in use, by another etcd perhaps: stop it, or choose "
                    "another one with --etcd-port"
                ) from e


def _listens(port: int) -> bool:
    """Whether a process of this machine accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _pid(workers: Workers | None, number: int) -> str:
    process = workers.processes.get(number) if workers is not None else None
    return str(process.pid) if process is not None else ""


def _given(pairs: Mapping[str, object]) -> list[Given]:
    return [Given(key, str(value), COMMAND) for key, value in pairs.items()]
