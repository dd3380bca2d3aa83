"""Argument parsing of the server commands: argparse, which imports fast; errors are one line."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from tianzhou.cli.shared.terminal import USAGE_ERROR, print_error

SERVER_COMMANDS = {
    "broker": (
        "list", "show", "config", "runtime", "lag", "stats", "clean", "ha", "promote",
        "flush-offset", "group", "switch", "pause", "resume", "retire", "init", "elect", "resync",
    ),
    "namesrv": ("list", "config", "kv", "write-permission"),
}  # fmt: skip
"""Commands of `tianzhou broker` and `tianzhou namesrv` that manage running servers."""


def is_admin_command(program: str, arguments: Sequence[str]) -> bool:
    """Whether `tianzhou broker ARGUMENTS` manages running brokers instead of starting one."""
    return bool(arguments) and arguments[0] in SERVER_COMMANDS.get(program, ())


class Arguments(argparse.ArgumentParser):
    """A parser without option abbreviations, whose errors are one line."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        print_error(self.prog, f"{message}; see {self.prog} --help")
        raise SystemExit(USAGE_ERROR)
