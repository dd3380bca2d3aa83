"""`tianzhou namesrv COMMAND`: settings, KV pairs and write permission of running nameservers.

Without a command `tianzhou namesrv` starts a nameserver (`serve.namesrv`). Nameservers do not
communicate with each other: a change is made on each of the list.
"""

import time
from typing import Annotated

import typer

from tianzhou.cli.shared.command import Session, command
from tianzhou.cli.shared.common_options import Changes, KeyPattern, matching_names, pairs_of
from tianzhou.cli.shared.output import (
    CommandResult,
    key_values,
    plural,
    table,
    table_of,
    up_or_down,
)
from tianzhou.cli.shared.parameters import argument
from tianzhou.errors import ConfigError, TargetError, TianzhouError

app = typer.Typer(name="namesrv", no_args_is_help=True, help="Manage running nameservers.")
kv = typer.Typer(name="namesrv kv", no_args_is_help=True, help="KV pairs of nameservers.")
app.add_typer(kv, name="kv")

Namespace = Annotated[str, argument("NAMESPACE", "The namespace.")]
Key = Annotated[str, argument("KEY", "The key.")]


@command(app, "list", reads=True, examples=["tianzhou namesrv list -n 'ns1:9876;ns2:9876'"])
async def list_namesrvs(session: Session) -> CommandResult:
    """List the nameservers, and whether each responds."""
    data: list[dict[str, object]] = []
    took_ms: list[float | None] = []
    for address in session.admin.namesrv.addresses:
        started_s, why = time.perf_counter(), None
        try:
            await session.admin.namesrv.settings(address)
        except TianzhouError as e:
            why = str(e)
        took_ms.append(None if why else (time.perf_counter() - started_s) * 1000)
        data.append({"address": address, "answers": why is None, "why": why})
    shown = table_of(
        (row | {"ms": ms} for row, ms in zip(data, took_ms, strict=True)),
        "address=nameserver, answers=state, >ms, why=error",
        answers=up_or_down,
    )
    return CommandResult(data, [shown], exit_code=0 if any(each["answers"] for each in data) else 1)


@command(
    app, "config", reads=True, destroys=True,
    examples=["tianzhou namesrv config", "tianzhou namesrv config --set orderMessageEnable=true"],
)  # fmt: skip
async def config(
    session: Session,
    pattern: KeyPattern = None,
    changes: Changes = None,
) -> CommandResult | None:
    """Show the settings of the nameservers, or change some at run time."""
    namesrv = session.admin.namesrv
    if changes:
        wanted = pairs_of(changes)
        names = ", ".join(namesrv.addresses)
        if session.confirm(f"set {', '.join(changes)} on {names}"):
            for address in namesrv.addresses:
                await namesrv.change_settings(address, wanted)
            session.print(f"changed on {names}")
        return None
    data: dict[str, dict[str, str]] = {}
    warnings: list[str] = []
    for address in namesrv.addresses:
        try:
            settings = await namesrv.settings(address)
        except TianzhouError as e:
            warnings.append(f"{address}: {e}")
            continue
        data[address] = {key: settings[key] for key in matching_names(settings, pattern)}
    if not data:
        raise TargetError(f"no nameserver responds: {'; '.join(warnings)}")
    sections = [
        key_values(pairs.items(), title=f"Nameserver {name}") for name, pairs in data.items()
    ]
    return CommandResult(data, sections, warnings)


@command(
    app, "write-permission", destroys=True,
    examples=[
        "tianzhou namesrv write-permission broker-a off --yes   # before removing a broker",
        "tianzhou namesrv write-permission broker-a on --yes",
    ],
)  # fmt: skip
async def write_permission(
    session: Session,
    broker: Annotated[str, argument("BROKER", "Name of the broker.")],
    state: Annotated[str, argument("on|off", "Whether clients may send to it.")],
) -> None:
    """Allow or forbid sending to a broker, through the routes that clients get."""
    if state not in ("on", "off"):
        raise ConfigError(f"{state!r}: write on or off")
    await session.admin.clusters.brokers(broker=broker)
    namesrv = session.admin.namesrv
    doing = "allow sending to" if state == "on" else "forbid sending to"
    if not session.confirm(f"{doing} {broker}"):
        return
    ask = namesrv.add_write_permission if state == "on" else namesrv.wipe_write_permission
    for address in namesrv.addresses:
        count = await ask(address, broker)
        session.print(f"{address}: {plural(count, 'topic')} changed")


@command(kv, "list", reads=True, examples=["tianzhou namesrv kv list ORDER_TOPIC_CONFIG"])
async def list_pairs(session: Session, namespace: Namespace) -> CommandResult:
    """List the KV pairs of a namespace."""
    pairs = await session.admin.namesrv.pairs(namespace)
    notes = [plural(len(pairs), "pair")]
    shown = table(["key", "value"], sorted(pairs.items()))
    return CommandResult(pairs, [shown] if pairs else [], notes=notes)


@command(kv, "get", reads=True, examples=["tianzhou namesrv kv get ORDER_TOPIC_CONFIG orders"])
async def get_pair(session: Session, namespace: Namespace, key: Key) -> CommandResult:
    """Show the value of a key."""
    value = await session.admin.namesrv.value(namespace, key)
    if value is None:
        raise TargetError(f"there is no {key!r} in namespace {namespace!r}")
    return CommandResult({"namespace": namespace, "key": key, "value": value}, notes=[value])


@command(kv, "put", examples=["tianzhou namesrv kv put ORDER_TOPIC_CONFIG orders 'broker-a:4'"])
async def put_pair(
    session: Session,
    namespace: Namespace,
    key: Key,
    value: Annotated[str, argument("VALUE", "The value.")],
) -> None:
    """Set a value on every nameserver."""
    await session.admin.namesrv.put(namespace, key, value)
    session.print(f"{namespace} {key}: {value}")


@command(kv, "delete", destroys=True, examples=["tianzhou namesrv kv delete NS KEY --yes"])
async def delete_pair(session: Session, namespace: Namespace, key: Key) -> None:
    """Delete a value on every nameserver."""
    if session.confirm(f"delete {key} of namespace {namespace}"):
        await session.admin.namesrv.remove(namespace, key)
        session.print(f"{namespace} {key}: deleted")
