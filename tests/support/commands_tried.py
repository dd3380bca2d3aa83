"""Records which options of which commands the tests have used, as parsed.

Every command that runs in this process records the parameters of its command line. An on/off flag
has two values, and both count.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import typer.core

from tests.support.command_reference import commands

SHARED = ("namesrv", "context", "access_key", "secret_key", "timeout_s")
"""All commands share the code of these, so they need not be tested with each command."""


class Tried(NamedTuple):
    """A parameter of a command; for an on/off flag, one of its two values."""

    words: str
    flag: str

    def __str__(self) -> str:
        return f"tianzhou {self.words} {self.flag}"


tried: set[Tried] = set()
"""Everything up to now."""


def sides(parameter: Any, value: object = None) -> list[str]:  # noqa: ANN401 - click's or typer's own
    """The records of a parameter: all its values, or the one for a given value."""
    if parameter.param_type_name != "option":
        return [str(parameter.name)]
    if not parameter.secondary_opts:
        return [parameter.opts[0]]
    both = [parameter.opts[0], parameter.secondary_opts[0]]
    return both if value is None else [both[0] if value else both[1]]


def note(context: Any) -> None:  # noqa: ANN401
    """Record the parameters of a command that is about to run."""
    words = context.command_path.removeprefix("tianzhou ")
    tried.add(Tried(words, ""))
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":
            for flag in sides(parameter, context.params.get(parameter.name)):
                tried.add(Tried(words, flag))


def record(patch: pytest.MonkeyPatch) -> None:
    """Record every command from now on."""
    invoke = typer.core.TyperCommand.invoke

    def invoke_and_note(self: Any, ctx: Any) -> Any:  # noqa: ANN401
        note(ctx)
        return invoke(self, ctx)

    patch.setattr(typer.core.TyperCommand, "invoke", invoke_and_note)


def everything() -> Iterator[Tried]:
    """Every command, with every value of each of its own options."""
    for words, command in commands():
        yield Tried(words, "")
        for parameter in command.params:
            if parameter.name not in ("help", *SHARED):
                for flag in sides(parameter):
                    yield Tried(words, flag)
