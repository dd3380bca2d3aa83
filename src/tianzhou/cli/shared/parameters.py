"""Declaring options and arguments of commands as their help shows them.

broker: Annotated[str | None, option("--broker, -b NAME", "Only this broker.")] = None
topic: Annotated[str, argument("TOPIC", "The topic.")]
"""

from typing import Annotated, Any

import typer


def option(flags: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - what typer.Option accepts
    """An option: its flags, the name of its value if it has one, and its help."""
    names, _, metavar = flags.replace(", ", ",").partition(" ")
    return typer.Option(*names.split(","), metavar=metavar or None, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:  # noqa: ANN401 - what typer.Argument accepts
    """An argument: its name and its help."""
    return typer.Argument(metavar=metavar, help=text, **more)


AsJson = Annotated[bool, option("--json", "Print JSON.")]
DryRun = Annotated[bool, option("--dry-run", "Print what would be done, change nothing.")]
Yes = Annotated[bool, option("--yes, -y", "Skip the confirmation.")]
