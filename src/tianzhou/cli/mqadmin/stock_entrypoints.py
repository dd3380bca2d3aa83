"""The commands of RocketMQ with its options: mqnamesrv, mqbroker, mqadmin, mqshutdown.

Scripts written for RocketMQ keep working. Few modules are imported, so that servers start fast.
"""

import sys
from pathlib import Path

from tianzhou.cli.shared.arguments import Arguments

# Modules of servers are imported after parsing, so that --help and errors are fast.


def _parser(name: str, what: str, namesrv_help: str) -> Arguments:
    """The options that mqnamesrv and mqbroker share."""
    more = f"`tianzhou {name.removeprefix('mq')} --help`"
    parser = Arguments(name, f"Start a {what}. More options: {more}.")
    add = parser.add_argument
    add("-c", "--configFile", type=Path, metavar="FILE", help="configuration properties file")
    add("-n", "--namesrvAddr", metavar="ADDR", help=namesrv_help)
    add("-p", "--printConfigItem", action="store_true", help="print all settings and exit")
    return parser


def mqnamesrv(arguments: list[str] | None = None) -> int:
    """`mqnamesrv [-c FILE] [-n ADDR] [-p]`."""
    parser = _parser("mqnamesrv", "nameserver", "ignored, as in RocketMQ")
    options = parser.parse_args(arguments)
    from tianzhou.cli.serve import arguments as server
    from tianzhou.cli.serve import namesrv

    return server.run(
        "mqnamesrv",
        lambda: namesrv.load_settings(options.configFile, []),
        lambda loaded: server.as_properties(loaded) if options.printConfigItem else None,
        lambda loaded: namesrv.serve(loaded, options.configFile),
    )


def mqbroker(arguments: list[str] | None = None) -> int:
    """`mqbroker [-n ADDR] [-c FILE] [-p] [-m]`."""
    parser = _parser("mqbroker", "broker", "nameservers, separated by ';'")
    parser.add_argument(
        "-m", "--printImportantConfig", action="store_true", help="print the settings of the file"
    )
    options = parser.parse_args(arguments)
    from tianzhou.cli.serve import arguments as server
    from tianzhou.cli.serve import broker
    from tianzhou.config.settings import Given

    address, is_shown = options.namesrvAddr, options.printConfigItem or options.printImportantConfig
    flags = [Given("namesrvAddr", address, "flag -n")] if address else []
    return server.run(
        "mqbroker",
        lambda: broker.load_settings(options.configFile, flags),
        lambda loaded: server.as_properties(loaded) if is_shown else None,
        lambda loaded: broker.serve(loaded, options.configFile),
    )


def mqshutdown(arguments: list[str] | None = None) -> int:
    """`mqshutdown namesrv|broker`."""
    parser = Arguments("mqshutdown", "Stop the Tianzhou servers that you run (not Apache's).")
    parser.add_argument("program", choices=("namesrv", "broker"))
    options = parser.parse_args(arguments)
    from tianzhou.cli.serve.stop import stop_all

    return stop_all("mqshutdown", options.program, wait_s=0)


def mqadmin(arguments: list[str] | None = None) -> int:
    """`mqadmin SUBCOMMAND [-n ADDR] ...`."""
    from tianzhou.cli.mqadmin import command

    return command.run(sys.argv[1:] if arguments is None else arguments)
