"""The tree of commands, with nouns that are loaded when they are used.

`tianzhou --help` shows every noun without importing one of them, and `tianzhou topic list` imports
only what topics need. `broker` and `namesrv` are both: with a verb behind them they look after
running servers, without one they are a server, which parses its own options.
"""

import importlib
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tianzhou.cli.shared.arguments import is_admin_command

SERVERS, CLUSTER, LOCAL = "Servers", "Look after a cluster", "On this machine"


class CommandSpec(NamedTuple):
    """Where a noun is, and its line in the help."""

    module: str
    help: str
    panel: str


COMMAND_GROUPS = {
    "cluster": CommandSpec(
        "commands.cluster", "Clusters: list, show, live rates (top), export.", CLUSTER
    ),
    "topic": CommandSpec(
        "commands.topic", "Topics: list, show, create, update, delete, copy.", CLUSTER
    ),
    "group": CommandSpec(
        "commands.group", "Consumer groups: members, lag, subscriptions, settings.", CLUSTER
    ),
    "offset": CommandSpec(
        "commands.offset", "Consumer offsets: show, reset, clone, skip.", CLUSTER
    ),
    "message": CommandSpec(
        "commands.message", "Messages: send, show, query, tail, trace.", CLUSTER
    ),
    "dlq": CommandSpec("commands.dlq", "Dead letters: list, resend, export.", CLUSTER),
    "doctor": CommandSpec(
        "commands.doctor", "Find the usual faults of a cluster; say what to do.", CLUSTER
    ),
    "acl": CommandSpec(
        "commands.acl", "Accounts and white lists, where brokers check access.", CLUSTER
    ),
    "bench": CommandSpec(
        "commands.bench", "Measure a cluster: bench send, bench receive.", CLUSTER
    ),
    "pipeline": CommandSpec(
        "commands.pipeline", "Spark jobs over topics: list, run, status.", CLUSTER
    ),
    "mqadmin": CommandSpec("mqadmin.command", "The sub commands of RocketMQ's mqadmin.", CLUSTER),
    "context": CommandSpec("commands.context", "Named clusters: add, use, list, remove.", LOCAL),
    "tls": CommandSpec("commands.tls", "Certificates for development: init.", LOCAL),
    "store": CommandSpec(
        "commands.store", "Look into a store directory, check it, mend it.", LOCAL
    ),
}
SINGLE_COMMANDS = ("doctor", "mqadmin")
"""Nouns that have no verbs."""
SERVER_COMMANDS = {
    "broker": CommandSpec(
        "commands.broker", "Start a broker; or list, show, config, clean running ones.", SERVERS
    ),
    "namesrv": CommandSpec(
        "commands.namesrv", "Start a nameserver; or its config, kv, write permission.", SERVERS
    ),
}


class LazyGroup(TyperGroup):
    """A noun whose verbs are imported when somebody asks for them."""

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
    """All of `tianzhou`: the commands declared in `app`, and the nouns."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
        declared = [name for name in super().list_commands(ctx) if name not in SERVER_COMMANDS]
        servers = [name for name in declared if name in ("up", "stop")]
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
        # A shell that completes words asks for the verbs, which are not written yet.
        serves = args and args[0] in SERVER_COMMANDS and not is_admin_command(args[0], args[1:])
        if serves and not ctx.resilient_parsing:
            return args[0], super().get_command(ctx, args[0]), args[1:]
        return super().resolve_command(ctx, args)
