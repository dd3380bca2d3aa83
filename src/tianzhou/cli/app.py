"""`tianzhou`: the root of the command line and the commands that need no cluster.

Modules of a command are imported when it runs (`command_tree`), so that `tianzhou --help` is fast
and a server loads only what it needs.
"""

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from tianzhou.cli.command_tree import LOCAL, SERVERS, RootGroup
from tianzhou.cli.serve import serve
from tianzhou.cli.shared import terminal
from tianzhou.cli.shared.parameters import AsJson, option

app = typer.Typer(
    cls=RootGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="RocketMQ in Python: servers, and commands to manage Tianzhou and Apache RocketMQ "
    "clusters. `tianzhou up` starts a nameserver and a broker on this machine.",
)
# Servers parse their own options: they start without typer, and have hundreds of settings.
_OWN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
# Exceptions of the click that typer uses: its own copy since 0.26, the package before.
_MISTAKE: Any = typer.BadParameter.__mro__[1]
_CLICK_ERROR: Any = typer.BadParameter.__mro__[2]


_COMPLETE = "_TIANZHOU_COMPLETE"
"""The environment variable by which a shell requests completions."""


class Stoppable(StrEnum):
    """Servers that can be stopped."""

    NAMESRV = "namesrv"
    BROKER = "broker"


class Shell(StrEnum):
    """Shells with completion support."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def _print_version(is_asked: bool) -> None:
    if is_asked:
        version()
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool,
        option("--version", "Show the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    pass


@app.command(add_help_option=False, context_settings=_OWN_OPTIONS, rich_help_panel=SERVERS)
def up(context: typer.Context) -> None:
    """Start a nameserver and a broker in one process; options: `tianzhou up --help`."""
    raise typer.Exit(serve("up", context.args))


@app.command(add_help_option=False, context_settings=_OWN_OPTIONS, rich_help_panel=SERVERS)
def namesrv(context: typer.Context) -> None:
    """Start a nameserver; options: `tianzhou namesrv --help`."""
    raise typer.Exit(serve("namesrv", context.args))


@app.command(add_help_option=False, context_settings=_OWN_OPTIONS, rich_help_panel=SERVERS)
def broker(context: typer.Context) -> None:
    """Start a broker; options: `tianzhou broker --help`."""
    raise typer.Exit(serve("broker", context.args))


@app.command(add_help_option=False, context_settings=_OWN_OPTIONS, rich_help_panel=SERVERS)
def console(context: typer.Context) -> None:
    """Start the web console, or manage its accounts; options: `tianzhou console --help`."""
    raise typer.Exit(serve("console", context.args))


@app.command(rich_help_panel=SERVERS)
def stop(
    program: Annotated[Stoppable, typer.Argument(help="The server to stop.")],
    wait_s: Annotated[
        float, option("--wait", "Seconds to wait for the exit; 0 does not wait.", min=0)
    ] = 10.0,
) -> None:
    """Stop the Tianzhou servers that you run on this machine (not Apache's)."""
    from tianzhou.cli.serve.stop import stop_all

    raise typer.Exit(stop_all("tianzhou stop", program.value, wait_s))


@app.command(rich_help_panel=LOCAL)
def completion(
    shell: Annotated[Shell, typer.Argument(help="Your shell.")],
) -> None:
    """Print the completion script of a shell: eval "$(tianzhou completion bash)"."""
    from typer import completion as scripts

    # Every release of typer has this function, none declares it in its types.
    make = getattr(scripts, "get_completion_script")  # noqa: B009
    terminal.print_line(make(prog_name="tianzhou", complete_var=_COMPLETE, shell=shell.value))


@app.command(rich_help_panel=LOCAL)
def version(as_json: AsJson = False) -> None:
    """Show the version, Python's version, and whether the compiled kernel is in use."""
    import json
    import platform

    import tianzhou
    from tianzhou.protocol import kernel

    implementation = "compiled" if kernel.WHY_PURE is None else "pure"
    if as_json:
        info = {
            "version": tianzhou.__version__,
            "kernel": implementation,
            "why_pure": kernel.WHY_PURE,
            "python": platform.python_version(),
        }
        terminal.print_line(json.dumps(info))
        return
    in_use = "compiled" if kernel.WHY_PURE is None else f"pure Python ({kernel.WHY_PURE})"
    terminal.print_line(f"tianzhou {tianzhou.__version__}")
    terminal.print_line(f"kernel: {in_use}")
    terminal.print_line(f"python: {platform.python_version()}")


def _suggestion(context: Any, message: str) -> str:  # noqa: ANN401 - typer's click or click's
    """A suggestion for an unknown command that resembles a known one."""
    if context is None or not message.startswith("No such command"):
        return ""
    from difflib import get_close_matches

    known: list[str] = context.command.list_commands(context)
    near = get_close_matches(message.split("'")[1], known, 1, 0.5)
    return f", did you mean {near[0]}?" if near else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Errors are one line on standard error."""
    command = typer.main.get_command(app)
    if _COMPLETE in os.environ:
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()  # It registers the shells; nothing else does.
    try:
        ended = command.main(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name="tianzhou",
            standalone_mode=False,
        )
    except _MISTAKE as e:
        where = e.ctx.command_path if e.ctx is not None else "tianzhou"
        if not str(e.format_message()).strip():
            # Called without arguments: the help was printed instead of an error.
            return terminal.USAGE_ERROR
        message = e.format_message().partition(" Did you mean")[0].strip().rstrip(".")
        message = message.replace("Value error, ", "")
        terminal.print_error(where, f"{message}{_suggestion(e.ctx, message)}; see `{where} --help`")
        return terminal.USAGE_ERROR
    except _CLICK_ERROR as e:
        terminal.print_error("tianzhou", e.format_message())
        return int(e.exit_code)
    except typer.Abort:
        terminal.print_error("tianzhou", "cancelled, nothing was changed")
        return terminal.FAILED
    return ended if isinstance(ended, int) else terminal.OK
