"""`tianzhou namesrv`: load the settings; print them, or run a nameserver."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tianzhou.cli.serve import arguments as server
from tianzhou.cli.serve import foreground
from tianzhou.cli.shared import terminal
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import (
    Given,
    Loaded,
    from_environment,
    from_file,
    load,
    render_table,
    show,
)
from tianzhou.namesrv.config import ENVIRONMENT_PREFIX, IGNORED, NamesrvConfig

log = logging.getLogger(__name__)

PROGRAM = "namesrv"
COMMAND = "tianzhou namesrv"

_DESCRIPTION = """\
Start a nameserver. Ctrl-C or SIGTERM stops it.

Every setting has RocketMQ's key. Its value comes from the first of these that sets it:
  a flag                   --port 9877, or for any key --set orderMessageEnable=true
  the environment          TIANZHOU_NAMESRV_LISTEN_PORT=9877 for listenPort
  the configuration file   listenPort=9877 in a .properties file, RocketMQ's own included
  the default
"""
_EPILOG = """\
examples:
  tianzhou namesrv
  tianzhou namesrv --config namesrv.properties --port 9877
  tianzhou namesrv --print-config             # every key, its value, its origin, its meaning
  tianzhou stop namesrv
manage running nameservers: tianzhou namesrv list | config | kv | write-permission
"""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = server.ServerArguments(COMMAND, _DESCRIPTION, _EPILOG)
    add = parser.add_argument
    add("-c", "--config", type=Path, metavar="FILE", help="configuration, a .properties file")
    parser.add_setting("listenPort", "--port", metavar="PORT", text="TCP port, 9876 by default")
    parser.add_listen()
    parser.add_setting(
        "kvConfigPath", "--kv-config", metavar="FILE",
        text="KV configuration, ~/namesrv/kvConfig.json by default",
    )  # fmt: skip
    parser.add_set()
    add("-p", "--print-config", action="store_true", help="print all settings and exit")
    add("--json", action="store_true", help="with --print-config: print JSON")
    parser.add_log_flags()
    options = parser.parse_args(arguments)

    def shown(loaded: Loaded[NamesrvConfig]) -> str | None:
        if not options.print_config:
            return None
        return as_json(loaded) if options.json else as_table(loaded)

    return server.run(
        COMMAND,
        lambda: load_settings(options.config, parser.settings(options)),
        shown,
        lambda loaded: serve(loaded, options.config),
    )


def load_settings(
    config_file: Path | None, flags: Sequence[Given], environ: Mapping[str, str] = os.environ
) -> Loaded[NamesrvConfig]:
    """Precedence: flags, environment, file, defaults. Raises ConfigError."""
    sources: list[Given] = []
    if config_file is not None:
        sources += from_file(config_file)
        # As in RocketMQ: changes at run time are saved to the file it was started with.
        sources.append(Given("configStorePath", str(config_file.absolute()), str(config_file)))
    sources += from_environment(NamesrvConfig, environ, ENVIRONMENT_PREFIX)
    sources += flags
    return load(NamesrvConfig, sources, IGNORED)


def as_table(loaded: Loaded[NamesrvConfig]) -> str:
    return render_table(loaded).rstrip("\n")


def as_json(loaded: Loaded[NamesrvConfig]) -> str:
    return json.dumps([row._asdict() for row in show(loaded)], indent=2, ensure_ascii=False)


def serve(loaded: Loaded[NamesrvConfig], config_file: Path | None) -> int:
    """Run a nameserver until a signal stops it; returns the exit code."""
    from tianzhou.namesrv.server import NameServer  # Not needed to print settings.

    if not server.start_log(COMMAND, loaded.config, config_file):
        return terminal.USAGE_ERROR
    for warning in loaded.warnings:
        log.warning("%s", warning)
    for note in loaded.notes:
        log.info("%s", note)
    return foreground.run(
        PROGRAM,
        lambda: NameServer(LiveSettings(loaded)),
        lambda _, address: _started(loaded, address),
    )


def _started(loaded: Loaded[NamesrvConfig], address: str) -> str:
    """The line of RocketMQ, which scripts wait for; with the address as configured."""
    port = address.rpartition(":")[2]
    return (
        "The Name Server boot success. serializeType=JSON, "
        f"address {loaded.config.bind_address}:{port}"
    )
