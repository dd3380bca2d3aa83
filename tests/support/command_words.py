"""Checks that our command line accepts some arguments, without running the command."""

from collections.abc import Sequence
from typing import Any

import typer

from tianzhou.cli.app import app


def check_words(words: Sequence[str]) -> None:
    """Parse words as `tianzhou WORDS` would. Raises click's UsageError."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    with command.make_context("tianzhou", rest[:1], resilient_parsing=True) as context:
        while hasattr(command, "get_command"):
            command = command.get_command(context, rest[0])
            assert command is not None, words
            del rest[0]
        command.make_context(words[0], rest)
