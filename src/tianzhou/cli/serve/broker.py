"""`tianzhou broker`: load the settings; print them, or run a broker or several workers."""

import json
import logging
import os
import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from pathlib import Path

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.workers import Workers, check_workers, ends_with_parent, worker_settings
from tianzhou.cli.serve import arguments as server
from tianzhou.cli.serve import foreground
from tianzhou.cli.shared import terminal
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, Loaded, render_table, show
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
  | promote | flush-offset
with automatic failover: tianzhou broker group | switch | pause | resume | retire | resync | init
  | elect
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)

    def shown(loaded: Loaded[BrokerConfig]) -> str | None:
        if options.ignored_settings:
            return ignored_settings(loaded, as_json=options.json)
        if options.print_config:
            return as_json(loaded) if options.json else as_table(loaded)
        return None

    def run(loaded: Loaded[BrokerConfig]) -> int:
        if options.workers is not None:
            return serve_workers(loaded, arguments, options.workers)
        return serve(loaded, options.config, as_worker=options.as_worker)

    return server.run(
        COMMAND, lambda: load_settings(options.config, parser.settings(options)), shown, run
    )


def _parser() -> server.ServerArguments:
    parser = server.ServerArguments(COMMAND, _DESCRIPTION, _EPILOG)
    add, setting = parser.add_argument, parser.add_setting
    add("-c", "--config", type=Path, metavar="FILE", help="configuration, a .properties file")
    setting("namesrvAddr", "-n", "--namesrv", metavar="ADDR", text="nameservers, separated by ';'")
    setting("brokerName", "--name", metavar="NAME",
            text="name of the broker, the host name by default")  # fmt: skip
    setting("listenPort", "--port", metavar="PORT", text="TCP port, 10911 by default")
    parser.add_listen()
    setting("storePathRootDir", "--store", metavar="FOLDER",
            text="store directory, ~/store by default")  # fmt: skip
    parser.add_set()
    add("--workers", type=int, metavar="N",
        help="run N brokers NAME-0 to NAME-(N-1) on ports in steps of 10")  # fmt: skip
    # Passed by the parent of workers only.
    add("--as-worker", action="store_true", help=SUPPRESS)
    add("-p", "--print-config", action="store_true", help="print all settings and exit")
    add("--ignored-settings", action="store_true",
        help="print the given keys that have no effect, with the reason, and exit")  # fmt: skip
    add("--json", action="store_true", help="print JSON")
    parser.add_log_flags()
    return parser


def load_settings(
    config_file: Path | None, flags: Sequence[Given], environ: Mapping[str, str] = os.environ
) -> Loaded[BrokerConfig]:
    """Precedence: flags, environment, file, defaults. Raises ConfigError."""
    return load_broker_config(config_file, environ, flags)


# -- printing --------------------------------------------------------------------------------------


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
    loaded: Loaded[BrokerConfig], config_file: Path | None, *, as_worker: bool = False
) -> int:
    """Run a broker until a signal stops it; returns the exit code.

    A worker ends with its parent; `tianzhou stop broker` finds only the parent.
    """
    from tianzhou.broker.server import Broker  # Not needed to print settings.

    if not server.start_log(COMMAND, loaded.config, config_file):
        return terminal.USAGE_ERROR
    log_notes(loaded)

    def make() -> Broker:
        return Broker(LiveSettings(loaded))

    def started(broker: Broker, _: str) -> str:
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
    if not server.start_log(COMMAND, config):
        return terminal.USAGE_ERROR
    try:
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
        lambda _program, _address: (
            f"{count} brokers {config.broker_name}-0 to -{count - 1} starting"
        ),
    )


def worker_command(arguments: Sequence[str], settings: Sequence[Given]) -> list[str]:
    """The command line of one worker: the parent's without --workers, and its own settings last."""
    passed: list[str] = []
    skip_next = False
    for argument in arguments:
        if not skip_next and argument.partition("=")[0] != "--workers":
            passed.append(argument)
        skip_next = argument == "--workers"
    pairs = [part for given in settings for part in ("--set", f"{given.key}={given.text}")]
    return [sys.executable, "-m", "tianzhou.cli.serve.broker", "--as-worker", *passed, *pairs]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
