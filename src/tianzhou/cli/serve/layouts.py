"""`tianzhou up --layout NAME`: nameservers, masters and slaves of a layout, in one process.

For trying a layout out on one machine: everything runs on one event loop and ends together, so
this protects nothing. `deploy/layouts/` has the files of the same brokers for separate hosts.

    2m-2s-sync    nameserver 9876, 9877
                  broker-a 10911, broker-a[1] 10921, broker-b 10931, broker-b[1] 10941
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tianzhou.broker.config import BrokerConfig, BrokerRole, load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, load
from tianzhou.errors import ConfigError, TianzhouError
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.server import NameServer
from tianzhou.remoting.address import format_address, is_every_interface

COMMAND = "tianzhou up --layout"
PORT_STEP = 10
"""Leaves free the VIP port two below and the replication port one above, as `--workers` does."""
_OWN_KEYS = (
    "brokerName", "brokerId", "brokerRole", "listenPort", "haListenPort", "namesrvAddr",
    "storePathRootDir", "storePathCommitLog", "storePathConsumeQueue", "storePathIndex",
    "brokerConfigPath",
)  # fmt: skip
"""Settings that are different for each broker of a layout."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One broker of a layout."""

    name: str
    role: BrokerRole
    host: str
    """The host or site of `deploy/layouts/` that it stands for."""

    @property
    def broker_id(self) -> int:
        return 1 if self.role is BrokerRole.SLAVE else 0

    @property
    def label(self) -> str:
        return f"{self.name}[{self.broker_id}]" if self.broker_id else self.name

    @property
    def folder(self) -> str:
        return f"{self.name}-s" if self.broker_id else self.name


_ASYNC, _SYNC, _SLAVE = BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.SLAVE


def _crossed(role: BrokerRole) -> tuple[Planned, ...]:
    """Two masters, the slave of each on the other's host."""
    return (
        Planned("broker-a", role, "host 1"),
        Planned("broker-a", _SLAVE, "host 2"),
        Planned("broker-b", role, "host 2"),
        Planned("broker-b", _SLAVE, "host 1"),
    )


LAYOUTS = {
    "2m-noslave": (
        Planned("broker-a", _ASYNC, "host 1"),
        Planned("broker-b", _ASYNC, "host 2"),
    ),
    "2m-2s-async": _crossed(_ASYNC),
    "2m-2s-sync": _crossed(_SYNC),
    "two-sites": (
        Planned("broker-a", _ASYNC, "site 1"),
        Planned("broker-a", _SLAVE, "site 1"),
        Planned("broker-b", _ASYNC, "site 2"),
        Planned("broker-b", _SLAVE, "site 2"),
    ),
}
_NAMESRV_COUNT = 2
"""Of every layout: one for each host or site."""


class UpLayout:
    """All servers of a layout as one program."""

    def __init__(
        self,
        layout: str,
        folder: Path,
        *,
        namesrv_port: int,
        broker_port: int,
        listen: str,
        more: Sequence[Given] = (),
    ) -> None:
        """`more` are settings of every broker. Raises ConfigError."""
        self._folder, self._listen, self._more = folder, listen, more
        own = next((given for given in more if given.key in _OWN_KEYS), None)
        if own is not None:
            raise ConfigError(f"{own.origin}: {own.key} is different for each broker of a layout")
        self.layout = layout
        self.planned = LAYOUTS[layout]
        self._ports = [
            _shifted(broker_port, number * PORT_STEP) for number in range(len(self.planned))
        ]
        self._namesrvs = [
            self._namesrv(number, _shifted(namesrv_port, number))
            for number in range(_NAMESRV_COUNT)
        ]
        for number in range(len(self.planned)):
            self._config(number, "")
        self.namesrv_address = ""
        self.brokers: list[Broker | None] = [None] * len(self.planned)

    def _namesrv(self, number: int, port: int) -> NameServer:
        folder = self._folder / f"namesrv-{number + 1}"
        pairs = {
            "listenPort": port,
            "bindAddress": self._listen,
            "kvConfigPath": folder / "kvConfig.json",
            "configStorePath": folder / "namesrv.properties",
        }
        return NameServer(LiveSettings(load(NamesrvConfig, _given(pairs))))

    def _config(self, number: int, namesrv: str) -> LiveSettings[BrokerConfig]:
        planned = self.planned[number]
        folder = self._folder / planned.folder
        pairs = {
            "brokerName": planned.name,
            "brokerId": planned.broker_id,
            "brokerRole": planned.role.value,
            "listenPort": self._ports[number],
            "bindAddress": self._listen,
            "namesrvAddr": namesrv,
            "storePathRootDir": folder / "store",
            "brokerConfigPath": folder / "broker.properties",
            # Where metrics are on: 5557 and the ports above it.
            "metricsPromExporterPort": BrokerConfig().metrics_prom_exporter_port + number,
            "slaveReadEnable": "true",
            "enablePropertyFilter": "true",
        }
        return LiveSettings(
            load_broker_config(environ={}, defaults=_given(pairs), flags=self._more)
        )

    async def start(self) -> tuple[str, int]:
        """Start the nameservers, the masters, then the slaves; returns the first address."""
        addresses = [await namesrv.start() for namesrv in self._namesrvs]
        shown = [
            format_address("127.0.0.1" if is_every_interface(host) else host, port)
            for host, port in addresses
        ]
        self.namesrv_address = ";".join(shown)
        for number in self._masters_first():
            self.brokers[number] = broker = Broker(self._config(number, self.namesrv_address))
            await broker.start()
        return addresses[0]

    def _masters_first(self) -> list[int]:
        return sorted(range(len(self.planned)), key=lambda number: self.planned[number].broker_id)

    async def stop(self) -> None:
        """Stop the masters while their slaves still acknowledge, then the slaves and nameservers;
        safe after a failed `start`."""
        failures: list[TianzhouError | OSError] = []
        for broker_id in (0, 1):
            for number, planned in enumerate(self.planned):
                broker = self.brokers[number]
                if broker is None or planned.broker_id != broker_id:
                    continue
                try:
                    await broker.stop()
                except (TianzhouError, OSError) as e:
                    failures.append(e)
        for namesrv in self._namesrvs:
            await namesrv.stop()
        if failures:
            raise failures[0]

    def table(self) -> list[tuple[str, str, str, str, str]]:
        """What runs where: server, role, the host it stands for, address, data."""
        namesrvs = [
            (
                f"nameserver {number + 1}",
                "",
                "",
                address,
                str(self._folder / f"namesrv-{number + 1}"),
            )
            for number, address in enumerate(self.namesrv_address.split(";"))
        ]
        return namesrvs + [
            (
                planned.label, planned.role.value, planned.host,
                broker.address if broker is not None else "",
                str(self._folder / planned.folder),
            )
            for planned, broker in zip(self.planned, self.brokers, strict=True)
        ]  # fmt: skip


def started_text(program: UpLayout) -> str:
    """The table of servers, and how to reach and stop them."""
    rows = [("SERVER", "ROLE", "STANDS FOR", "ADDRESS", "DATA"), *program.table()]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.append(
        f"layout {program.layout} in one process, for trying it out; "
        f'nameservers "{program.namesrv_address}"; Ctrl-C stops everything'
    )
    return "\n".join(lines)


def _shifted(port: int, distance: int) -> int:
    """A port of its own; 0, which lets the system choose, stays 0. Raises ConfigError."""
    if port and port + distance > 65_533:
        raise ConfigError(f"port {port} leaves no ports above it for all servers of a layout")
    return port and port + distance


def _given(pairs: Mapping[str, object]) -> list[Given]:
    return [Given(key, str(value), COMMAND) for key, value in pairs.items()]
