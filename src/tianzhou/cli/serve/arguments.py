"""What the server commands share before a server runs: flags of settings, printing, the log."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tianzhou.cli.serve import logging as logs
from tianzhou.cli.shared.arguments import Arguments
from tianzhou.cli.shared.terminal import OK, USAGE_ERROR, print_error, print_line
from tianzhou.config.log_settings import LogLevel, LogSettings
from tianzhou.config.settings import C, Given, Loaded, render_properties
from tianzhou.errors import ConfigError


class ServerArguments(Arguments):
    """A parser some of whose flags are settings."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(prog, description, epilog)
        self._keys: dict[str, str] = {}

    def add_setting(self, key: str, *flags: str, text: str, **more: Any) -> None:  # noqa: ANN401 - what argparse accepts
        """A flag for the setting with this key."""
        self._keys[self.add_argument(*flags, help=f"{text} ({key})", **more).dest] = key

    def add_listen(self) -> None:
        self.add_setting(
            "bindAddress", "--listen", "--bind-address", metavar="ADDRESS",
            text="address to listen on, every interface by default",
        )  # fmt: skip

    def add_set(self, text: str = "any setting; may be repeated") -> None:
        self.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)

    def add_log_flags(self, default_level: LogLevel = LogLevel.INFO) -> None:
        """The logging flags of every server."""
        add = self.add_setting
        add("logLevel", "--log-level", choices=[each.value for each in LogLevel],
            text=f"log level, {default_level} by default")  # fmt: skip
        add("logFile", "--log-file", metavar="FILE",
            text="log to FILE; only errors go to standard error")  # fmt: skip
        add("logJson", "--log-json", action="store_const", const="true", text="log JSON lines")
        add("logFileSize", "--log-file-size", metavar="SIZE",
            text="size at which files rotate, 64M by default")  # fmt: skip
        add("logFileCount", "--log-file-count", metavar="N", text="number of files, 10 by default")

    def settings(self, options: argparse.Namespace) -> list[Given]:
        """The settings given by flags; --set overrides the others. Raises ConfigError."""
        given = [
            Given(key, getattr(options, name), f"flag --{name.replace('_', '-')}")
            for name, key in self._keys.items()
            if getattr(options, name) is not None
        ]
        # Only parsers with `add_set` have that flag.
        for text in getattr(options, "set", ()):
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"--set {text}: write KEY=VALUE")
            given.append(Given(key.strip(), value, "flag --set", deliberate=True))
        return given


def run(
    command: str,
    load: Callable[[], Loaded[C]],
    show: Callable[[Loaded[C]], str | None],
    serve: Callable[[Loaded[C]], int],
) -> int:
    """Load the settings; print what `show` returns, or serve. Returns the exit code."""
    try:
        loaded = load()
    except (ConfigError, ValueError) as e:
        print_error(command, e)
        return USAGE_ERROR
    text = show(loaded)
    if text is None:
        return serve(loaded)
    print_line(text)
    return OK


def as_properties(loaded: Loaded[C]) -> str:
    return render_properties(loaded).rstrip("\n")


def start_log(command: str, settings: LogSettings, config_file: Path | None = None) -> bool:
    """Configure the log of a server; prints an error and returns False if that fails."""
    try:
        logs.set_up(settings)
    except ConfigError as e:
        print_error(command, e)
        return False
    if config_file is not None:
        print_line(f"load config properties file OK, {config_file}")
    return True
