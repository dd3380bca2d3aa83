"""Which options of which commands the tests have really given, as the parser saw them.

Every command that runs in this process leaves a note of the parameters that stood on its command
line: not the text of a test, but what became of it. An on/off switch has two sides, and both count.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import typer.core

from tests.support.command_reference import commands

SHARED = ("namesrv", "context", "access_key", "secret_key", "timeout_s")
"""Every command gets these from one place, so they need not be tried with each of them."""


class Tried(NamedTuple):
    """A parameter of a command; of a switch that can be turned off, one side of it."""

    words: str
    flag: str

    def __str__(self) -> str:
        return f"tianzhou {self.words} {self.flag}"


tried: set[Tried] = set()
"""Everything up to now."""


def sides(parameter: Any, value: object = None) -> list[str]:  # noqa: ANN401 - click's or typer's own
    """What stands for a parameter in the notes: all its sides, or the one that a value means."""
    if parameter.param_type_name != "option":
        return [str(parameter.name)]
    if not parameter.secondary_opts:
        return [parameter.opts[0]]
    both = [parameter.opts[0], parameter.secondary_opts[0]]
    return both if value is None else [both[0] if value else both[1]]


def note(context: Any) -> None:  # noqa: ANN401
    """Note what was given of a command that is about to run."""
    words = context.command_path.removeprefix("tianzhou ")
    tried.add(Tried(words, ""))
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":
            for flag in sides(parameter, context.params.get(parameter.name)):
                tried.add(Tried(words, flag))


def record(patch: pytest.MonkeyPatch) -> None:
    """Note every command from now on."""
    invoke = typer.core.TyperCommand.invoke

    def invoke_and_note(self: Any, ctx: Any) -> Any:  # noqa: ANN401
        note(ctx)
        return invoke(self, ctx)

    patch.setattr(typer.core.TyperCommand, "invoke", invoke_and_note)


def everything() -> Iterator[Tried]:
    """Every command, with every side of every option of its own."""
    for words, command in commands():
        yield Tried(words, "")
        for parameter in command.params:
            if parameter.name not in ("help", *SHARED):
                for flag in sides(parameter):
                    yield Tried(words, flag)
