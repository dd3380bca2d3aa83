"""The tree of commands; the module of a command group is imported on first use.

`tianzhou --help` lists every group without importing any, and `tianzhou topic list` imports only
the topic commands. `broker` and `namesrv` are both: followed by a command they manage running
servers; otherwise they start a server, which parses its own options.
"""

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tianzhou.cli.shared.arguments import is_admin_command

SERVERS, CLUSTER, LOCAL = "Servers", "Manage a cluster", "On this machine"


class CommandSpec(NamedTuple):
    """The module of a command or command group, its help line, and its panel."""

    module: str
    help: str
    panel: str


def _commands(panel: str, **helps: str) -> dict[str, CommandSpec]:
    return {name: CommandSpec(f"commands.{name}", text, panel) for name, text in helps.items()}


COMMAND_GROUPS = {
    **_commands(
        CLUSTER,
        cluster="Clusters: list, show, live rates (top), export.",
        topic="Topics: list, show, create, update, delete, copy.",
        group="Consumer groups: members, lag, subscriptions, settings.",
        offset="Consumer offsets: show, reset, clone, skip.",
        message="Messages: send, show, query, tail, trace.",
        dlq="Dead letters: list, resend, export.",
        doctor="Diagnose a cluster: find common faults and how to fix them.",
        acl="Access control (ACL): accounts and white lists.",
        bench="Measure throughput and latency: send, receive.",
        pipeline="Spark jobs over topics: list, run, status.",
    ),
    "mqadmin": CommandSpec("mqadmin.command", "Run a subcommand of RocketMQ's mqadmin.", CLUSTER),
    **_commands(
        LOCAL,
        context="Named clusters: add, use, list, remove.",
        tls="Certificates for development: init.",
        store="Inspect, verify and repair a store directory.",
    ),
}
SINGLE_COMMANDS = ("doctor", "mqadmin")
"""Commands without subcommands."""
SERVER_COMMANDS = _commands(
    SERVERS,
    broker="Start a broker, or manage running ones: list, show, config, clean.",
    namesrv="Start a nameserver, or manage running ones: config, kv.",
)


class LazyGroup(TyperGroup):
    """A command group whose module is imported on first use."""

    def __init__(self, name: str, spec: CommandSpec) -> None:
        super().__init__(
            name=name, help=spec.help, rich_help_panel=spec.panel, no_args_is_help=True
        )
        self._module = spec.module
        self._loaded: Any = None

    def _group(self) -> Any:  # noqa: ANN401 - typer's own group class differs between releases
        if self._loaded is None:
            module = importlib.import_module(f"tianzhou.cli.{self._module}")
            self._loaded = typer.main.get_command(module.app)
        return self._loaded

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        return list(self._group().list_commands(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        return self._group().get_command(ctx, cmd_name)


class LazyCommand(TyperCommand):
    """A command that is imported when it runs."""

    def __init__(self, name: str, spec: CommandSpec) -> None:
        super().__init__(name=name, help=spec.help, rich_help_panel=spec.panel)
        self._module = spec.module

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401
        return self.loaded().make_context(info_name, args, parent, **extra)

    def loaded(self) -> Any:  # noqa: ANN401
        """The command itself."""
        return typer.main.get_command(importlib.import_module(f"tianzhou.cli.{self._module}").app)


class RootGroup(TyperGroup):
    """The root: the commands declared in `app`, and the command groups."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        declared = [name for name in super().list_commands(ctx) if name not in SERVER_COMMANDS]
        servers = [name for name in declared if name in ("up", "console", "stop")]
        others = [name for name in declared if name not in servers]
        return [*servers[:1], *SERVER_COMMANDS, *servers[1:], *COMMAND_GROUPS, *others]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        spec = COMMAND_GROUPS.get(cmd_name) or SERVER_COMMANDS.get(cmd_name)
        if spec is None:
            return super().get_command(ctx, cmd_name)
        return (
            LazyCommand(cmd_name, spec)
            if cmd_name in SINGLE_COMMANDS
            else LazyGroup(cmd_name, spec)
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        # For shell completion the command after `broker` is not typed yet.
        serves = args and args[0] in SERVER_COMMANDS and not is_admin_command(args[0], args[1:])
        if serves and not ctx.resilient_parsing:
            return args[0], super().get_command(ctx, args[0]), args[1:]
        return super().resolve_command(ctx, args)
