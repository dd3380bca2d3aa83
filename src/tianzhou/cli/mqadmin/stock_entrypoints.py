"""The commands of RocketMQ with its options: mqnamesrv, mqbroker, mqadmin, mqshutdown.

Scripts written for RocketMQ keep working. Imports are kept few, so that servers start fast.
"""

import sys
from pathlib import Path

from tianzhou.cli.shared.arguments import Arguments
from tianzhou.cli.shared.terminal import OK, USAGE_ERROR, print_error, print_line
from tianzhou.errors import ConfigError


def mqnamesrv(arguments: list[str] | None = None) -> int:
    """`mqnamesrv [-c FILE] [-n ADDR] [-p]`."""
    parser = Arguments("mqnamesrv", "Start a nameserver. More options: `tianzhou namesrv --help`.")
    add = parser.add_argument
    add("-c", "--configFile", type=Path, metavar="FILE", help="configuration properties file")
    add("-n", "--namesrvAddr", metavar="ADDR", help="ignored, as in RocketMQ")
    add("-p", "--printConfigItem", action="store_true", help="print all settings and exit")
    options = parser.parse_args(arguments)
    from tianzhou.cli.serve import (
        namesrv,  # Imported after parsing, so that --help and errors are fast.
    )

    try:
        loaded = namesrv.load_settings(options.configFile, [])
    except ConfigError as e:
        print_error("mqnamesrv", e)
        return USAGE_ERROR
    if options.printConfigItem:
        print_line(namesrv.as_properties(loaded))
        return OK
    return namesrv.serve(loaded, options.configFile)


def mqshutdown(arguments: list[str] | None = None) -> int:
    """`mqshutdown namesrv|broker`."""
    parser = Arguments("mqshutdown", "Stop the Tianzhou servers that you run (not Apache's).")
    parser.add_argument("program", choices=("namesrv", "broker"))
    options = parser.parse_args(arguments)
    from tianzhou.cli.serve.stop import stop_all

    return stop_all("mqshutdown", options.program, wait_s=0)


def mqbroker(arguments: list[str] | None = None) -> int:
    """`mqbroker [-n ADDR] [-c FILE] [-p] [-m]`."""
    from tianzhou.cli.serve import broker

    return broker.mqbroker(arguments)


def mqadmin(arguments: list[str] | None = None) -> int:
    """`mqadmin SUBCOMMAND [-n ADDR] ...`."""
    from tianzhou.cli.mqadmin import command

    return command.run(sys.argv[1:] if arguments is None else arguments)
