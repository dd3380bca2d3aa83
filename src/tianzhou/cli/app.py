"""`tianzhou`: the command line, one subcommand per noun.

What a subcommand needs is imported when it runs, so that `tianzhou --help` is quick and a server
does not carry the rest.
"""

from enum import StrEnum
from typing import Annotated

import typer

from tianzhou.cli import serving, store

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="RocketMQ in Python. `tianzhou up` starts a nameserver and a broker here.",
)
app.add_typer(store.app, name="store")
# Servers parse their own options: they start without typer, and have hundreds of settings.
_OWN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}


class Stoppable(StrEnum):
    """Servers that can be stopped."""

    NAMESRV = "namesrv"
    BROKER = "broker"


@app.command(add_help_option=False, context_settings=_OWN_OPTIONS)
def up(context: typer.Context) -> None:
    """Start a nameserver and a broker in one process; `tianzhou up --help` shows its options."""
    from tianzhou.cli import up as command

    raise typer.Exit(command.main(context.args))


@app.command(add_help_option=False, context_settings=_OWN_OPTIONS)
def namesrv(context: typer.Context) -> None:
    """Start a nameserver; `tianzhou namesrv --help` shows its options."""
    from tianzhou.cli import namesrv as command

    raise typer.Exit(command.main(context.args))


@app.command(add_help_option=False, context_settings=_OWN_OPTIONS)
def broker(context: typer.Context) -> None:
    """Start a broker; `tianzhou broker --help` shows its options."""
    from tianzhou.cli import broker as command

    raise typer.Exit(command.main(context.args))


@app.command()
def stop(
    program: Annotated[Stoppable, typer.Argument(help="What to stop.")],
    wait_s: Annotated[
        float,
        typer.Option("--wait", help="Seconds to wait until they have ended; 0 only asks.", min=0),
    ] = 10.0,
) -> None:
    """Stop the servers that you run on this machine. Apache's own are left alone."""
    from tianzhou.cli.stopping import stop_all

    raise typer.Exit(stop_all("tianzhou stop", program.value, wait_s))


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Tell the version, and whether the compiled kernel or its pure twin serves."""
    import json
    import platform

    import tianzhou
    from tianzhou.protocol import kernel

    serves = "compiled" if kernel.WHY_PURE is None else "pure"
    if as_json:
        told = {
            "version": tianzhou.__version__,
            "kernel": serves,
            "why_pure": kernel.WHY_PURE,
            "python": platform.python_version(),
        }
        serving.say(json.dumps(told))
        return
    why = "" if kernel.WHY_PURE is None else f" ({kernel.WHY_PURE})"
    serving.say(f"tianzhou {tianzhou.__version__}")
    serving.say(f"kernel: {serves}{why}")
    serving.say(f"python: {platform.python_version()}")
