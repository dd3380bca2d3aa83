"""`tianzhou up`: a nameserver and a broker in one process, with their data in one folder.

`--layout` starts several, masters and slaves (`layouts.py`); `--replicas` brokers that elect their
master, each a process (`replicas.py`).
"""

import argparse
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from tianzhou.broker.config import load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.cli.demo.run import keep_running
from tianzhou.cli.serve import foreground, logging
from tianzhou.cli.serve.arguments import ServerArguments
from tianzhou.cli.serve.layouts import LAYOUTS, UpLayout, started_text
from tianzhou.cli.serve.replicas import REPLICAS_MAX, REPLICAS_MIN, UpReplicas
from tianzhou.cli.serve.with_console import S, WithConsole, with_line
from tianzhou.cli.shared import terminal
from tianzhou.config.live import LiveSettings
from tianzhou.config.log_settings import LogLevel
from tianzhou.config.settings import Given, load
from tianzhou.errors import ConfigError
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.server import NameServer
from tianzhou.remoting.address import format_address, is_every_interface

COMMAND = "tianzhou up"


def _given(pairs: dict[str, object]) -> list[Given]:
    return [Given(key, str(value), COMMAND) for key, value in pairs.items()]


class Up:
    """Both servers as one program; SQL92 filters are enabled by default."""

    def __init__(
        self,
        folder: Path,
        *,
        namesrv_port: int,
        broker_port: int,
        listen: str,
        more: Sequence[Given] = (),
        demo: bool = False,
    ) -> None:
        """`more` are settings of the broker; `demo` runs the demonstration. Raises ConfigError."""
        namesrv = _given(
            {
                "listenPort": namesrv_port,
                "bindAddress": listen,
                "kvConfigPath": folder / "namesrv" / "kvConfig.json",
                "configStorePath": folder / "namesrv" / "namesrv.properties",
            }
        )
        self._namesrv = NameServer(LiveSettings(load(NamesrvConfig, namesrv)))
        self._defaults = _given(
            {
                "listenPort": broker_port,
                "bindAddress": listen,
                "brokerName": "broker-a",
                "storePathRootDir": folder / "store",
                "brokerConfigPath": folder / "broker.properties",
                "enablePropertyFilter": "true",
            }
        )
        self._more = more
        self._folder = folder
        self._broker: Broker | None = None
        self._with_demo = demo
        self._demo: asyncio.Task[None] | None = None
        load_broker_config(environ={}, defaults=self._defaults, flags=more)
        self.namesrv_address = ""
        self.broker_address = ""

    async def start(self) -> tuple[str, int]:
        """Start both; returns the address of the nameserver."""
        host, port = await self._namesrv.start()
        self.namesrv_address = format_address(
            "127.0.0.1" if is_every_interface(host) else host, port
        )
        defaults = [*self._defaults, *_given({"namesrvAddr": self.namesrv_address})]
        loaded = load_broker_config(environ={}, defaults=defaults, flags=self._more)
        self._broker = Broker(LiveSettings(loaded))
        await self._broker.start()
        self.broker_address = self._broker.address
        if self._with_demo:
            self._demo = asyncio.create_task(
                keep_running(self.namesrv_address, self._folder, terminal.print_line)
            )
        return host, port

    async def stop(self) -> None:
        """Stop both, the broker first; safe after a failed `start`."""
        if self._demo is not None:
            self._demo.cancel()
            await asyncio.gather(self._demo, return_exceptions=True)
        if self._broker is not None:
            await self._broker.stop()
        await self._namesrv.stop()


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        more = parser.settings(options)
        level = Given("logLevel", LogLevel.WARNING, COMMAND)
        logging.set_up(load_broker_config(environ={}, defaults=[level], flags=more).config)
    except ConfigError as e:
        terminal.print_error(COMMAND, e)
        return terminal.USAGE_ERROR

    if options.replicas is not None:
        return _run_replicas(options, more)
    if options.etcd is not None:
        terminal.print_error(COMMAND, "--etcd is the program for --replicas, which is not given")
        return terminal.USAGE_ERROR
    if options.layout is not None:
        return _run_layout(options, more)

    def make() -> Up:
        return Up(
            options.data.absolute(), namesrv_port=options.namesrv_port, broker_port=options.port,
            listen=options.listen, more=more, demo=options.demo,
        )  # fmt: skip

    def started(program: Up) -> str:
        return (
            f"nameserver {program.namesrv_address}, broker {program.broker_address}, "
            f"data in {options.data}; Ctrl-C to stop"
        )

    return _run(options, make, started)


def _run(options: argparse.Namespace, make: Callable[[], S], started: Callable[[S], str]) -> int:
    """Run the servers, with the console unless it is not wanted."""
    if options.no_console:
        return foreground.run("up", make, lambda program, _: started(program))

    def make_all() -> WithConsole[S]:
        return WithConsole(make(), options.data.absolute(), options.console_port)

    return foreground.run("up", make_all, with_line(started))


def _run_layout(options: argparse.Namespace, more: Sequence[Given]) -> int:
    if options.demo:
        terminal.print_error(COMMAND, "--demo runs with one broker, without --layout")
        return terminal.USAGE_ERROR

    def make() -> UpLayout:
        return UpLayout(
            options.layout, options.data.absolute(), namesrv_port=options.namesrv_port,
            broker_port=options.port, listen=options.listen, more=more,
        )  # fmt: skip

    return _run(options, make, started_text)


def _run_replicas(options: argparse.Namespace, more: Sequence[Given]) -> int:
    if options.demo or options.layout is not None:
        terminal.print_error(COMMAND, "--replicas runs without --layout and --demo")
        return terminal.USAGE_ERROR

    def make() -> UpReplicas:
        return UpReplicas(
            options.replicas, options.data.absolute(), namesrv_port=options.namesrv_port,
            broker_port=options.port, etcd_port=options.etcd_port, listen=options.listen,
            etcd=options.etcd, more=more,
        )  # fmt: skip

    return _run(options, make, UpReplicas.started_text)


def _parser() -> ServerArguments:
    parser = ServerArguments(
        COMMAND,
        "Start a nameserver and a broker in one process, or with --layout several of both, or "
        "with --replicas a group with automatic failover; and the web console, if it is "
        "installed. Ctrl-C stops them.",
    )
    add = parser.add_argument
    add("--data", type=Path, default=Path("data"), metavar="FOLDER",
        help="data folder, ./data by default")  # fmt: skip
    add("--namesrv-port", type=int, default=9876, metavar="PORT",
        help="port of the nameserver, 9876 by default")  # fmt: skip
    add("--port", type=int, default=10911, metavar="PORT",
        help="port of the broker, 10911 by default")  # fmt: skip
    add("--listen", default="127.0.0.1", metavar="ADDRESS",
        help="address to listen on; 127.0.0.1 by default, 0.0.0.0 for every interface")  # fmt: skip
    add("--layout", choices=list(LAYOUTS),
        help="start two nameservers and the masters and slaves of a layout; their ports are "
        "--namesrv-port and the one above, and --port in steps of 10")  # fmt: skip
    add(
        "--replicas",
        type=int,
        choices=range(REPLICAS_MIN, REPLICAS_MAX + 1),
        metavar="N",
        help="start etcd, a nameserver and N brokers that elect their master, each in a process of "
        "its own, to try automatic failover; the brokers' ports are --port in steps of 10",
    )
    add(
        "--etcd",
        type=Path,
        metavar="FILE",
        help="with --replicas: the program etcd, by default the one on the PATH",
    )
    add(
        "--etcd-port",
        type=int,
        default=2379,
        metavar="PORT",
        help="with --replicas: etcd's port, 2379 by default; the one above it is used, too",
    )
    add("--console-port", type=int, default=8080, metavar="PORT",
        help="port of the web console on 127.0.0.1, 8080 by default")  # fmt: skip
    add("--no-console", action="store_true", help="do not start the web console")
    add("--demo", action="store_true",
        help="send, receive and measure messages; plot the result")  # fmt: skip
    parser.add_set("a setting of the broker")
    parser.add_log_flags(LogLevel.WARNING)
    return parser
