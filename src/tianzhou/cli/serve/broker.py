"""`tianzhou broker`: load the settings; print them, or run a broker or several workers."""

import json
import logging
import os
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.workers import Workers, check_workers, ends_with_parent, worker_settings
from tianzhou.cli.serve import foreground
from tianzhou.cli.serve import logging as logs
from tianzhou.cli.serve.arguments import parse_pairs
from tianzhou.cli.shared import terminal
from tianzhou.cli.shared.arguments import Arguments
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, Loaded, render_properties, render_table, show
from tianzhou.errors import ConfigError

log = logging.getLogger(__name__)

PROGRAM = "broker"
COMMAND = "tianzhou broker"

_DESCRIPTION = """\
Start a broker. Ctrl-C or SIGTERM stops it.

Every setting has RocketMQ's key. Its value comes from the first of these that sets it:
  a flag                   --port 10921, or for any key --set flushDiskType=SYNC_FLUSH
  the environment          NAMESRV_ADDR, and TIANZHOU_BROKER_LISTEN_PORT=10921 for listenPort
  the configuration file   listenPort=10921 in a .properties file, RocketMQ's own included
  the default
"""
_EPILOG = """\
examples:
  tianzhou broker --namesrv localhost:9876
  tianzhou broker --config broker.properties --namesrv "ns1:9876;ns2:9876"
  tianzhou broker --config broker.properties --workers 4
  tianzhou broker --print-config               # every key, its value, its origin, its meaning
  tianzhou stop broker
manage running brokers: tianzhou broker list | show | config | runtime | lag | stats | clean | ha
"""
_FLAG_KEYS = {
    "namesrv": "namesrvAddr",
    "name": "brokerName",
    "port": "listenPort",
    "listen": "bindAddress",
    "store": "storePathRootDir",
}


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        flags = _flags(options)
        loaded = load_settings(options.config, flags)
    except (ConfigError, ValueError) as e:
        terminal.print_error(COMMAND, e)
        return terminal.USAGE_ERROR
    if options.ignored_settings:
        terminal.print_line(ignored_settings(loaded, as_json=options.json))
        return terminal.OK
    if options.print_config:
        terminal.print_line(as_json(loaded) if options.json else as_table(loaded))
        return terminal.OK
    if options.workers is not None:
        return serve_workers(loaded, arguments, options.workers)
    return serve(loaded, options.config, as_worker=options.as_worker)


def _parser() -> Arguments:
    parser = Arguments(COMMAND, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("-c", "--config", type=Path, metavar="FILE", help="configuration, a .properties file")
    add("-n", "--namesrv", metavar="ADDR", help="nameservers, separated by ';' (namesrvAddr)")
    add("--name", metavar="NAME", help="name of the broker, the host name by default (brokerName)")
    add("--port", metavar="PORT", help="TCP port, 10911 by default (listenPort)")
    add("--listen", "--bind-address", metavar="ADDRESS",
        help="address to listen on, every interface by default (bindAddress)")  # fmt: skip
    add("--store", metavar="FOLDER", help="store directory, ~/store by default (storePathRootDir)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting; may be repeated",
    )
    add("--workers", type=int, metavar="N",
        help="run N brokers NAME-0 to NAME-(N-1) on ports in steps of 10")  # fmt: skip
    # Passed by the parent of workers only.
    add("--as-worker", action="store_true", help=SUPPRESS)
    add("-p", "--print-config", action="store_true", help="print all settings and exit")
    add("--ignored-settings", action="store_true",
        help="print the given keys that have no effect, with the reason, and exit")  # fmt: skip
    add("--json", action="store_true", help="print JSON")
    logs.add_flags(parser)
    return parser


def _flags(options: Namespace) -> list[Given]:
    given = [
        Given(key, getattr(options, name), f"flag --{name}")
        for name, key in _FLAG_KEYS.items()
        if getattr(options, name) is not None
    ]
    # --set comes last, so it overrides the other flags.
    return given + logs.given_by(options) + parse_pairs(options.set)


def load_settings(
    config_file: Path | None, flags: Sequence[Given], environ: Mapping[str, str] = os.environ
) -> Loaded[BrokerConfig]:
    """Precedence: flags, environment, file, defaults. Raises ConfigError."""
    return load_broker_config(config_file, environ, flags)


# -- printing --------------------------------------------------------------------------------------


def as_properties(loaded: Loaded[BrokerConfig]) -> str:
    return render_properties(loaded).rstrip("\n")


def as_table(loaded: Loaded[BrokerConfig]) -> str:
    """Every setting, and the given keys that have no effect, with the reason."""
    lines = [render_table(loaded).rstrip("\n")]
    if loaded.notes:
        lines += ["", "accepted, no effect:", *(f"  {note}" for note in loaded.notes)]
    if loaded.warnings:
        lines += ["", "unknown:", *(f"  {warning}" for warning in loaded.warnings)]
    return "\n".join(lines)


def as_json(loaded: Loaded[BrokerConfig]) -> str:
    data = {
        "settings": [row._asdict() for row in show(loaded)],
        "notes": list(loaded.notes),
        "warnings": list(loaded.warnings),
    }
    return json.dumps(data, indent=2, ensure_ascii=False)


def ignored_settings(loaded: Loaded[BrokerConfig], *, as_json: bool) -> str:
    """The keys that were given and have no effect, with the reason."""
    if as_json:
        return json.dumps(list(loaded.notes), indent=2, ensure_ascii=False)
    return "\n".join(loaded.notes) or "every key that was given has an effect"


# -- serving ---------------------------------------------------------------------------------------


def serve(
    loaded: Loaded[BrokerConfig],
    config_file: Path | None,
    *,
    as_worker: bool = False,
) -> int:
    """Run a broker until a signal stops it; returns the exit code.

    A worker ends with its parent; `tianzhou stop broker` finds only the parent.
    """
    from tianzhou.broker.server import Broker  # Not needed to print settings.

    try:
        logs.set_up(loaded.config)
    except ConfigError as e:
        terminal.print_error(COMMAND, e)
        return terminal.USAGE_ERROR
    if config_file is not None:
        terminal.print_line(f"load config properties file OK, {config_file}")
    log_notes(loaded)
    broker: Broker | None = None

    def make() -> Broker:
        nonlocal broker
        broker = Broker(LiveSettings(loaded))
        return broker

    def started(_: str) -> str:
        assert broker is not None
        return boot_line(loaded.config, broker.address)

    if not as_worker:
        return foreground.run(PROGRAM, make, started)
    with ends_with_parent():
        return foreground.run("worker", make, started)


def log_notes(loaded: Loaded[BrokerConfig]) -> None:
    """Log warnings and notes about the settings."""
    for warning in loaded.warnings:
        log.warning("%s", warning)
    if loaded.notes:
        log.warning(
            "%d configuration keys of RocketMQ have no effect in Tianzhou; "
            "`%s --ignored-settings` with the same options lists them with the reason",
            len(loaded.notes), COMMAND,
        )  # fmt: skip


def boot_line(config: BrokerConfig, address: str) -> str:
    """The line of RocketMQ, which scripts wait for."""
    text = f"The broker[{config.broker_name}, {address}] boot success. serializeType=JSON"
    return f"{text} and name server is {config.namesrv_addr}" if config.namesrv_addr else text


class _WorkerProgram:
    """The workers as one program."""

    def __init__(self, config: BrokerConfig, commands: Sequence[Sequence[str]]) -> None:
        self._config = config
        self._workers = Workers(commands)

    async def start(self) -> tuple[str, int]:
        await self._workers.start()
        return self._config.bind_address, self._config.listen_port

    async def stop(self) -> None:
        await self._workers.stop()


def serve_workers(loaded: Loaded[BrokerConfig], arguments: Sequence[str], count: int) -> int:
    """Run `count` brokers until a signal stops them; returns the exit code."""
    config = loaded.config
    try:
        logs.set_up(config)
        check_workers(config, count)
    except ConfigError as e:
        terminal.print_error(COMMAND, e)
        return terminal.USAGE_ERROR
    commands = [
        worker_command(arguments, worker_settings(config, number)) for number in range(count)
    ]
    return foreground.run(
        PROGRAM,
        lambda: _WorkerProgram(config, commands),
        lambda _: f"{count} brokers {config.broker_name}-0 to -{count - 1} starting",
    )


def worker_command(arguments: Sequence[str], settings: Sequence[Given]) -> list[str]:
    """The command line of one worker: the parent's without --workers, and its own settings last."""
    kept: list[str] = []
    skip_next = False
    for argument in arguments:
        if not skip_next and argument.partition("=")[0] != "--workers":
            kept.append(argument)
        skip_next = argument == "--workers"
    pairs = [part for given in settings for part in ("--set", f"{given.key}={given.text}")]
    return [sys.executable, "-m", "tianzhou.cli.serve.broker", "--as-worker", *kept, *pairs]


# -- the stock command -----------------------------------------------------------------------------


def mqbroker(arguments: Sequence[str] | None = None) -> int:
    """`mqbroker [-n ADDR] [-c FILE] [-p] [-m]`, the options of RocketMQ."""
    parser = Arguments("mqbroker", "Start a broker. More options: `tianzhou broker --help`.")
    add = parser.add_argument
    add("-n", "--namesrvAddr", metavar="ADDR", help="nameservers, separated by ';'")
    add("-c", "--configFile", type=Path, metavar="FILE", help="configuration properties file")
    add("-p", "--printConfigItem", action="store_true", help="print all settings and exit")
    add("-m", "--printImportantConfig", action="store_true", help="print the settings of the file")
    options = parser.parse_args(arguments)
    flags = [Given("namesrvAddr", options.namesrvAddr, "flag -n")] if options.namesrvAddr else []
    try:
        loaded = load_settings(options.configFile, flags)
    except ConfigError as e:
        terminal.print_error("mqbroker", e)
        return terminal.USAGE_ERROR
    if options.printConfigItem or options.printImportantConfig:
        terminal.print_line(as_properties(loaded))
        return terminal.OK
    return serve(loaded, options.configFile)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
