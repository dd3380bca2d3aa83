"""`tianzhou context`: named clusters, so that nobody has to remember addresses."""

import json
from pathlib import Path
from typing import Annotated

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
from tianzhou.cli.shared.terminal import OK, USAGE_ERROR, print_error, print_line
from tianzhou.errors import AddressError, ConfigError
from tianzhou.remoting.address import parse_addresses

app = typer.Typer(name="context", no_args_is_help=True, help="Named clusters.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


def _change(command: str, contexts: Contexts, done: str) -> None:
    try:
        save_contexts(contexts_path(), contexts)
    except ConfigError as e:
        print_error(command, e)
        raise typer.Exit(1) from e
    print_line(done)


def _load(command: str) -> Contexts:
    try:
        return load_contexts(contexts_path())
    except ConfigError as e:
        print_error(command, e)
        raise typer.Exit(USAGE_ERROR) from e


def _check(command: str, contexts: Contexts, name: str) -> Context:
    try:
        return find_context(contexts, name)
    except ConfigError as e:
        print_error(command, e)
        raise typer.Exit(1) from e


@app.command("add", cls=CommandWithExamples)
def add(
    name: Name,
    namesrv: Annotated[
        str, typer.Option("--namesrv", "-n", metavar="ADDR", help="Nameservers, separated by ';'.")
    ],
    access_key: Annotated[
        str | None, typer.Option("--access-key", metavar="KEY", help="Account to use there.")
    ] = None,
    secret_key: Annotated[
        str | None, typer.Option("--secret-key", metavar="KEY", help="Its secret.")
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Connect with TLS.")] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option("--tls-ca", metavar="FILE", help="Authorities to trust, PEM; implies --tls."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert", metavar="FILE", help="Certificate to show, PEM, where servers want one."
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key", metavar="FILE", help="Its key, PEM, if it is in a file of its own."
        ),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
) -> None:
    """Add a context, or change one of that name: tianzhou context add prod -n ns1:9876 --use."""
    command = "tianzhou context add"
    contexts = _load(command)
    try:
        parse_addresses(namesrv)
    except AddressError as e:
        print_error(command, e)
        raise typer.Exit(USAGE_ERROR) from e
    if (access_key is None) != (secret_key is None):
        print_error(command, "an account needs both --access-key and --secret-key")
        raise typer.Exit(USAGE_ERROR)
    papers = [_absolute(command, path) for path in (tls_ca, tls_cert, tls_key)]
    if tls_key is not None and tls_cert is None:
        print_error(command, "--tls-key needs --tls-cert")
        raise typer.Exit(USAGE_ERROR)
    context = Context(
        namesrv=namesrv,
        access_key=access_key,
        secret_key=secret_key,
        tls=tls or any(papers),
        tls_ca=papers[0],
        tls_cert=papers[1],
        tls_key=papers[2],
    )
    chosen = name if use or not contexts.contexts else contexts.current
    changed = Contexts(current=chosen, contexts=contexts.contexts | {name: context})
    in_use = "; it is in use" if chosen == name else f"; `tianzhou context use {name}` uses it"
    _change(command, changed, f"context {name}: {namesrv}{in_use}")


def _absolute(command: str, path: Path | None) -> str | None:
    if path is not None and not path.is_file():
        print_error(command, f"{path}: there is no such file")
        raise typer.Exit(USAGE_ERROR)
    return None if path is None else str(path.absolute())


@app.command("use", cls=CommandWithExamples)
def use(name: Name) -> None:
    """Use a context from now on, wherever neither --namesrv nor NAMESRV_ADDR says otherwise."""
    contexts = _load("tianzhou context use")
    context = _check("tianzhou context use", contexts, name)
    changed = Contexts(current=name, contexts=contexts.contexts)
    _change("tianzhou context use", changed, f"context {name}: in use, {context.namesrv}")


@app.command("remove", cls=CommandWithExamples)
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
) -> None:
    """Forget a context."""
    contexts = _load("tianzhou context remove")
    _check("tianzhou context remove", contexts, name)
    if dry_run:
        print_line(f"would forget context {name}; nothing was changed")
        raise typer.Exit(OK)
    if not yes:
        typer.confirm(f"Forget context {name}?", abort=True, err=True)
    rest = {key: value for key, value in contexts.contexts.items() if key != name}
    current = None if contexts.current == name else contexts.current
    _change(
        "tianzhou context remove", Contexts(current=current, contexts=rest), f"context {name}: gone"
    )


@app.command("list", cls=CommandWithExamples)
def list_contexts(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """List the contexts, and which one is in use."""
    contexts = _load("tianzhou context list")
    if as_json:
        shown = {name: each.without_secret() for name, each in contexts.contexts.items()}
        data = {"current": contexts.current, "contexts": msgspec.to_builtins(shown)}
        print_line(json.dumps(data, indent=2, ensure_ascii=False))
        return
    if not contexts.contexts:
        print_line("no context yet; `tianzhou context add NAME --namesrv ADDR` makes one")
        return
    rows = (
        ("*" if name == contexts.current else "", name, each.namesrv, each.access_key, each.tls)
        for name, each in sorted(contexts.contexts.items())
    )
    console().print(table(["", "name", "nameservers", "account", "TLS"], rows))
