"""`tianzhou context`: named clusters, used instead of nameserver addresses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from tianzhou.cli.shared.command import CommandWithExamples
from tianzhou.cli.shared.context_file import (
    Context,
    Contexts,
    contexts_path,
    find_context,
    load_contexts,
    save_contexts,
)
from tianzhou.cli.shared.output import console, table
from tianzhou.cli.shared.parameters import AsJson, DryRun, Yes, argument, option
from tianzhou.cli.shared.terminal import FAILED, OK, USAGE_ERROR, print_error, print_line
from tianzhou.errors import AddressError, ConfigError
from tianzhou.remoting.address import parse_addresses

app = typer.Typer(name="context", no_args_is_help=True, help="Named clusters.")

T = TypeVar("T")
Name = Annotated[str, argument("NAME", "Name of the context.")]


def _or_exit(command: str, exit_code: int, action: Callable[[], T]) -> T:
    """The result of an action; an error is one line, and ends the command."""
    try:
        return action()
    except (ConfigError, AddressError) as e:
        print_error(command, e)
        raise typer.Exit(exit_code) from e


def _load(command: str) -> Contexts:
    return _or_exit(command, USAGE_ERROR, lambda: load_contexts(contexts_path()))


def _find(command: str, contexts: Contexts, name: str) -> Context:
    return _or_exit(command, FAILED, lambda: find_context(contexts, name))


def _save(command: str, contexts: Contexts, done: str) -> None:
    _or_exit(command, FAILED, lambda: save_contexts(contexts_path(), contexts))
    print_line(done)


@app.command("add", cls=CommandWithExamples)
def add(
    name: Name,
    namesrv: Annotated[str, option("--namesrv, -n ADDR", "Nameservers, separated by ';'.")],
    access_key: Annotated[
        str | None, option("--access-key KEY", "Access key of the account.")
    ] = None,
    secret_key: Annotated[
        str | None, option("--secret-key KEY", "Secret key of the account.")
    ] = None,
    tls: Annotated[bool, option("--tls", "Connect with TLS.")] = False,
    tls_ca: Annotated[
        Path | None, option("--tls-ca FILE", "CA certificates to trust, PEM; implies --tls.")
    ] = None,
    tls_cert: Annotated[
        Path | None,
        option("--tls-cert FILE", "Client certificate, PEM, for servers that require one."),
    ] = None,
    tls_key: Annotated[
        Path | None,
        option("--tls-key FILE", "Key of the client certificate, PEM, if not in the same file."),
    ] = None,
    use: Annotated[bool, option("--use", "Make it the current context.")] = False,
) -> None:
    """Add or replace a context: tianzhou context add prod -n ns1:9876 --use."""
    command = "tianzhou context add"
    contexts = _load(command)

    def checked() -> Context:
        parse_addresses(namesrv)
        if (access_key is None) != (secret_key is None):
            raise ConfigError("an account needs both --access-key and --secret-key")
        ca, cert, key = map(_absolute, (tls_ca, tls_cert, tls_key))
        if key is not None and cert is None:
            raise ConfigError("--tls-key needs --tls-cert")
        return Context(
            namesrv=namesrv, access_key=access_key, secret_key=secret_key,
            tls=tls or bool(ca or cert or key), tls_ca=ca, tls_cert=cert, tls_key=key,
        )  # fmt: skip

    context = _or_exit(command, USAGE_ERROR, checked)
    chosen = name if use or not contexts.contexts else contexts.current
    changed = Contexts(current=chosen, contexts=contexts.contexts | {name: context})
    in_use = "; now current" if chosen == name else f"; switch with `tianzhou context use {name}`"
    _save(command, changed, f"context {name}: {namesrv}{in_use}")


def _absolute(path: Path | None) -> str | None:
    if path is not None and not path.is_file():
        raise ConfigError(f"{path}: no such file")
    return None if path is None else str(path.absolute())


@app.command("use", cls=CommandWithExamples)
def use(name: Name) -> None:
    """Make a context current: used where neither --namesrv nor NAMESRV_ADDR is given."""
    command = "tianzhou context use"
    contexts = _load(command)
    context = _find(command, contexts, name)
    changed = Contexts(current=name, contexts=contexts.contexts)
    _save(command, changed, f"context {name}: now current, {context.namesrv}")


@app.command("remove", cls=CommandWithExamples)
def remove(name: Name, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Remove a context."""
    command = "tianzhou context remove"
    contexts = _load(command)
    _find(command, contexts, name)
    if dry_run:
        print_line(f"would remove context {name}; nothing was changed")
        raise typer.Exit(OK)
    if not yes:
        typer.confirm(f"Remove context {name}?", abort=True, err=True)
    rest = {key: value for key, value in contexts.contexts.items() if key != name}
    current = None if contexts.current == name else contexts.current
    _save(command, Contexts(current=current, contexts=rest), f"context {name}: removed")


@app.command("list", cls=CommandWithExamples)
def list_contexts(as_json: AsJson = False) -> None:
    """List the contexts; * marks the current one."""
    contexts = _load("tianzhou context list")
    if as_json:
        shown = {name: each.without_secret() for name, each in contexts.contexts.items()}
        data = {"current": contexts.current, "contexts": msgspec.to_builtins(shown)}
        print_line(json.dumps(data, indent=2, ensure_ascii=False))
        return
    if not contexts.contexts:
        print_line("no contexts; add one with `tianzhou context add NAME --namesrv ADDR`")
        return
    rows = (
        ("*" if name == contexts.current else "", name, each.namesrv, each.access_key, each.tls)
        for name, each in sorted(contexts.contexts.items())
    )
    console().print(table(["", "name", "nameservers", "account", "TLS"], rows))
