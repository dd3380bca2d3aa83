"""Declaring and running commands: options, connection to the cluster, result, errors.

    @command(app, "list", reads=True, examples=["tianzhou topic list"])
    async def list_topics(session: Session, pattern: Pattern = None) -> CommandResult: ...

Options that several commands share are fields of one dataclass, a parameter of each command:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class TopicOptions(OptionGroup):
        queues: Annotated[int | None, typer.Option(help="Queues per broker.")] = None

Every command gets the options that select the cluster. One that reads also gets --json; one whose
result can be refreshed gets --watch, or --once if it refreshes by default; one that destroys data
gets --dry-run and --yes. Exit codes: 0 success, 1 failure, 2 usage error. An error is one line on
standard error that says what to do next.
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_type_hints

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from typer.core import TyperCommand

from tianzhou.admin import Admin
from tianzhou.cli.shared.context_file import Context, contexts_path, load_contexts, resolve
from tianzhou.cli.shared.output import CommandResult, console
from tianzhou.cli.shared.parameters import option
from tianzhou.cli.shared.terminal import FAILED, OK, USAGE_ERROR, print_error
from tianzhou.clock import wall_ms
from tianzhou.errors import (
    AddressError,
    ConfigError,
    ConnectError,
    FilterError,
    RequestError,
    RequestTimeout,
    TargetError,
    TianzhouError,
)
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.codes import ResponseCode
from tianzhou.remoting import event_loop
from tianzhou.remoting.tls.contexts import Tls

if TYPE_CHECKING:
    from tianzhou.client import ClientSettings

_CLUSTER = "Cluster"
_OUTPUT = "Output"
_SAFETY = "Safety"

Result = CommandResult | None
T = TypeVar("T")


def _complete_context(incomplete: str) -> list[str]:
    with suppress(ConfigError):
        known = load_contexts(contexts_path()).contexts
        return sorted(name for name in known if name.startswith(incomplete))
    return []


@dataclass(frozen=True, slots=True)
class Options:
    """Options common to commands; `command` says which command has which."""

    namesrv: Annotated[
        str | None,
        option("--namesrv, -n ADDR", "Nameservers, separated by ';'. Default: --context, "
               "NAMESRV_ADDR, the current context, 127.0.0.1:9876.", rich_help_panel=_CLUSTER),
    ] = None  # fmt: skip
    context: Annotated[
        str | None,
        option("--context, -C NAME", "A named cluster, see `tianzhou context list`.",
               rich_help_panel=_CLUSTER, autocompletion=_complete_context),
    ] = None  # fmt: skip
    access_key: Annotated[
        str | None,
        option("--access-key KEY", "Access key, for access control.", rich_help_panel=_CLUSTER,
               envvar="TIANZHOU_ACCESS_KEY", show_envvar=True),
    ] = None  # fmt: skip
    secret_key: Annotated[
        str | None,
        option("--secret-key KEY", "Secret key; prefer the environment variable.",
               rich_help_panel=_CLUSTER, envvar="TIANZHOU_SECRET_KEY", show_envvar=True),
    ] = None  # fmt: skip
    timeout_s: Annotated[
        float,
        option("--timeout SECONDS", "Time-out of each request.", rich_help_panel=_CLUSTER, min=0.1),
    ] = 5.0
    as_json: Annotated[bool, option("--json", "Print JSON.", rich_help_panel=_OUTPUT)] = False
    watch: Annotated[
        bool, option("--watch, -w", "Refresh until Ctrl-C.", rich_help_panel=_OUTPUT)
    ] = False
    once: Annotated[
        bool | None, option("--once", "Print once and exit.", rich_help_panel=_OUTPUT)
    ] = None
    """None for a command that does not refresh by default."""
    every_s: Annotated[
        float, option("--every SECONDS", "Refresh interval.", rich_help_panel=_OUTPUT, min=0.2)
    ] = 2.0
    dry_run: Annotated[
        bool,
        option("--dry-run", "Print what would be done, change nothing.", rich_help_panel=_SAFETY),
    ] = False
    yes: Annotated[bool, option("--yes, -y", "Skip the confirmation.", rich_help_panel=_SAFETY)] = (
        False
    )
    as_lines: bool = False
    """Print each refresh below the last one instead of redrawing the screen."""

    @property
    def is_refreshing(self) -> bool:
        """Whether the result is refreshed until Ctrl-C."""
        return self.watch or self.once is False


class Session:
    """What a command works with: the cluster, the terminal, and the user's confirmation."""

    def __init__(self, command: str, options: Options, admin: Admin, target: Context) -> None:
        self.command = command
        self.target = target
        self.options = options
        self.admin = admin
        self.out = console()
        self.err = console(stderr=True)
        self._states: dict[type, object] = {}

    def state_of(self, kind: type[T]) -> T:
        """State that a refreshing command keeps between refreshes; created by `kind()`."""
        return cast("T", self._states.setdefault(kind, kind()))

    @property
    def now_ms(self) -> int:
        return wall_ms()

    def client_settings(self) -> "ClientSettings":
        """Settings of a client of the same cluster, for commands that send or consume."""
        from tianzhou.client import ClientSettings  # Few commands need a client.

        return ClientSettings(
            namesrv=self.target.namesrv,
            credentials=credentials_of(self.target, self.options),
            tls=tls_of(self.target),
        )

    def print(self, text: str) -> None:
        """Print a line; nothing with --json."""
        if not self.options.as_json:
            self.out.print(Text(text), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a line on standard error."""
        self.err.print(Text(f"{self.command}: {text}", style="yellow"), soft_wrap=True)

    def warn_all(self, warnings: Iterable[str]) -> None:
        """Print warnings on standard error."""
        for warning in warnings:
            self.warn(f"warning: {warning}")

    def confirm(self, what: str) -> bool:
        """Whether to go on with a destructive change: asks, unless --yes or --dry-run is given.

        `what` begins with a verb: "delete topic t on 2 brokers". Raises ConfigError if standard
        input is not a terminal, so that no question can be asked.
        """
        if self.options.dry_run:
            self.print(f"would {what}; nothing was changed")
            return False
        if self.options.yes:
            return True
        if not sys.stdin.isatty():
            raise ConfigError(
                f"confirmation needed to {what}: pass --yes, or --dry-run to preview the change"
            )
        if typer.confirm(f"{what[0].upper()}{what[1:]}?", err=True):
            return True
        self.print("cancelled, nothing was changed")
        return False


# -- declaring commands ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """Options that several commands share; each field is an option with a default."""


def _is_bundle(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, OptionGroup)


def _fields(kind: type[OptionGroup | Options]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=each.default,
            annotation=hints[each.name],
        )
        for each in fields(kind)
    ]


class CommandWithExamples(TyperCommand):
    """A command whose help ends with examples."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer's click or click's
        super().format_help(ctx, formatter)
        examples: Sequence[str] = getattr(self.callback, "examples", ())
        if examples:
            screen = console()
            screen.print(Text("Examples", style="bold"))
            for example in examples:
                screen.print(Text(f"  {example}"), soft_wrap=True)
            screen.print()


_CLUSTER_OPTIONS = ("namesrv", "context", "access_key", "secret_key", "timeout_s")


def command(
    app: typer.Typer,
    name: str,
    *,
    reads: bool = False,
    watches: bool = False,
    live: bool = False,
    destroys: bool = False,
    endless: bool = False,
    examples: Sequence[str] = (),
) -> Callable[[Callable[..., Awaitable[Result]]], Callable[..., Awaitable[Result]]]:
    """Declare an async function as a command of `app`; its first parameter is the session.

    An endless command is ended by Ctrl-C, which is then no failure.
    """

    def declare(action: Callable[..., Awaitable[Result]]) -> Callable[..., Awaitable[Result]]:
        signature = inspect.signature(action, eval_str=True)
        taken = list(signature.parameters.values())[1:]
        bundles = {each.name: each.annotation for each in taken if _is_bundle(each.annotation)}
        own = [
            part.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in taken
            for part in (_fields(bundles[each.name]) if each.name in bundles else [each])
        ]
        names = {
            *_CLUSTER_OPTIONS,
            *(("as_json",) if reads else ()),
            *(("watch", "every_s") if watches else ()),
            *(("once", "every_s") if live else ()),
            *(("dry_run", "yes") if destroys else ()),
        }
        more = [
            each.replace(default=False) if each.name == "once" else each
            for each in _fields(Options)
            if each.name in names
        ]

        def command(**given: Any) -> None:  # noqa: ANN401 - typer has checked each of them
            options = Options(
                **{key: given.pop(key) for key in names}, as_lines=given.get("as_lines", False)
            )
            for bundle, kind in bundles.items():
                given[bundle] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
            command_line = f"tianzhou {app.info.name} {name}".rstrip()
            call = partial(action, **given)
            raise typer.Exit(run(command_line, options, call, endless=endless))

        command.__doc__ = action.__doc__
        command.__name__ = action.__name__
        parameters = [*own, *more]
        vars(command)["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        vars(command)["examples"] = tuple(examples)
        app.command(name or str(app.info.name), cls=CommandWithExamples)(command)
        return action

    return declare


# -- running commands ------------------------------------------------------------------------------


def run(
    command: str,
    options: Options,
    action: Callable[[Session], Awaitable[Result]],
    *,
    endless: bool = False,
) -> int:
    """Run a command; returns the exit code."""
    try:
        return event_loop.run(_run(command, options, action))
    except (ConfigError, AddressError, FilterError) as e:
        print_error(command, e)
        return USAGE_ERROR
    except TianzhouError as e:
        print_error(command, f"{e}{hint(e)}")
        return FAILED
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return OK if options.is_refreshing or endless else FAILED


async def _run(
    command: str, options: Options, action: Callable[[Session], Awaitable[Result]]
) -> int:
    target = resolve(options.namesrv, options.context, os.environ, load_contexts(contexts_path()))
    async with open_admin(target, options) as admin:
        session = Session(command, options, admin, target)
        if options.is_refreshing:
            return await _watch(session, action)
        return print_result(session, await action(session))


def open_admin(target: Context, options: Options) -> Admin:
    """An admin client of a cluster. Raises AddressError, ConfigError."""
    return Admin(
        target.namesrv,
        timeout_ms=int(options.timeout_s * 1000),
        credentials=credentials_of(target, options),
        tls=tls_of(target),
    )


def tls_of(target: Context) -> Tls | None:
    """TLS of the connections; None for plain TCP."""
    if not target.tls:
        return None
    return Tls(
        certificate=Path(target.tls_cert) if target.tls_cert else None,
        key=Path(target.tls_key) if target.tls_key else None,
        trusted=Path(target.tls_ca) if target.tls_ca else None,
    )


def credentials_of(target: Context, options: Options) -> Credentials | None:
    """The account to sign requests with. Raises ConfigError if one of the two keys is missing."""
    access_key = options.access_key or target.access_key
    secret_key = options.secret_key or target.secret_key
    if access_key is None and secret_key is None:
        return None
    if access_key is None or secret_key is None:
        raise ConfigError("an account needs both --access-key and --secret-key")
    return Credentials(access_key, secret_key)


def print_result(session: Session, shown: Result) -> int:
    """Print a result; returns the exit code."""
    if shown is None:
        return OK
    session.warn_all(shown.warnings)
    if session.options.as_json:
        print_json(shown.data)
        return shown.exit_code
    for number, part in enumerate(shown.sections):
        if number:
            session.out.print()
        session.out.print(part)
    for note in shown.notes:
        session.out.print(Text(note), soft_wrap=True)
    return shown.exit_code


def print_json(data: object, *, lines: bool = False) -> None:
    """Print a value as JSON: indented, or one line each for JSON lines."""
    plain = msgspec.to_builtins(data, str_keys=True)
    sys.stdout.write(json.dumps(plain, indent=None if lines else 2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


async def pause(seconds: float) -> None:
    """Wait for the next refresh."""
    await asyncio.sleep(seconds)


async def _watch(session: Session, action: Callable[[Session], Awaitable[Result]]) -> int:
    """Refresh a result until Ctrl-C; into a pipe or as JSON, one after the other."""
    options = session.options
    if options.as_json or options.as_lines or not session.out.is_terminal:
        while True:
            print_result(session, await action(session))
            await pause(session.options.every_s)
    with Live(console=session.out, screen=True, auto_refresh=False) as live:
        while True:
            try:
                live.update(_screen(session, await action(session)), refresh=True)
            except TianzhouError as e:
                # A watch survives a restart of the cluster.
                live.update(Text(f"{session.command}: {e}", style="red"), refresh=True)
            await pause(session.options.every_s)


def _screen(session: Session, shown: Result) -> Group:
    every = f"every {session.options.every_s:g} s, Ctrl-C to stop"
    head = Text(f"{session.command}   {every}", style="dim")
    if shown is None:
        return Group(head)
    warnings = (Text(f"warning: {each}", style="yellow") for each in shown.warnings)
    sections = (each for part in shown.sections for each in (Text(), part))
    return Group(head, *sections, *(Text(note) for note in shown.notes), *warnings)


def hint(error: TianzhouError) -> str:
    """What to do next, if the error text does not say it."""
    if isinstance(error, ConnectError) and "nameserver" in str(error):
        return ". Start one with `tianzhou up`, or set --namesrv or --context"
    if isinstance(error, RequestTimeout):
        return ". Try a longer --timeout"
    if isinstance(error, TargetError) and str(error).startswith("there is no topic"):
        if ";" in str(error):
            return ""
        return "; see `tianzhou topic list`, create it with `tianzhou topic create`"
    if isinstance(error, TargetError) and str(error).startswith("there is no consumer group"):
        return "; see `tianzhou group list`"
    if isinstance(error, RequestError) and error.code == ResponseCode.NO_PERMISSION:
        # No account may change a setting that needs a restart of the server.
        is_setting = "restart the server" in error.remark
        return (
            ""
            if is_setting
            else ". Pass an account with this permission: --access-key and --secret-key"
        )
    return ""
