"""`tianzhou acl`: accounts and white lists of brokers whose access control is plain_acl.yml."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
import typer

from tianzhou.admin.fanout import BrokerRef, gather
from tianzhou.cli.shared.command import Session, command
from tianzhou.cli.shared.common_options import EVERYWHERE, Where
from tianzhou.cli.shared.output import CommandResult, format_time, plural, table_of
from tianzhou.cli.shared.parameters import argument, option
from tianzhou.errors import RequestError
from tianzhou.protocol.headers.auth import CreateAccessConfigRequest

app = typer.Typer(name="acl", no_args_is_help=True, help="Manage ACL accounts and white lists.")

Account = Annotated[str, argument("ACCOUNT", "Access key of the account.")]


@command(app, "list", reads=True, examples=["tianzhou acl list", "tianzhou acl list -b broker-a"])
async def list_accounts(session: Session, where: Where = EVERYWHERE) -> CommandResult:
    """List the accounts of each broker and their permissions; secrets are not shown."""
    gathered = await gather(await where.masters(session), session.admin.acl.config)
    accounts = {
        at.name: [
            {
                "account": each.access_key, "admin": each.admin,
                "white_address": each.white_remote_address,
                "default_topic": each.default_topic_perm,
                "default_group": each.default_group_perm,
                "topics": each.topic_perms or [], "groups": each.group_perms or [],
            }
            for each in config.accounts or ()
        ]
        for at, config in gathered.responses.items()
    }  # fmt: skip
    data = {
        at.name: {"white_list": config.global_white_addrs or [], "accounts": accounts[at.name]}
        for at, config in gathered.responses.items()
    }
    rows = (
        each | {
            "broker": name,
            "default": f"{each['default_topic'] or '-'} / {each['default_group'] or '-'}",
        }
        for name, few in accounts.items() for each in few
    )  # fmt: skip
    shown = table_of(
        rows, "!broker, account, admin, white_address=address, default, topics, groups"
    )
    notes = [
        f"{at.name} needs no account from: {', '.join(config.global_white_addrs)}"
        for at, config in gathered.responses.items()
        if config.global_white_addrs
    ]
    return CommandResult(data, [shown], gathered.warnings, notes=notes)


@command(app, "versions", reads=True, examples=["tianzhou acl versions"])
async def show_versions(session: Session, where: Where = EVERYWHERE) -> CommandResult:
    """Show when the accounts of each broker last changed; brokers should agree."""
    gathered = await gather(await where.masters(session), session.admin.acl.versions)
    data = [
        {
            "broker": at.name, "file": file or None, "counter": version.counter,
            "changed_ms": version.timestamp,
        }
        for at, files in gathered.responses.items()
        for file, version in sorted(files.items())
    ]  # fmt: skip
    columns = "!broker, file, >counter=changes, changed_ms=last change"
    shown = table_of(data, columns, changed_ms=format_time)
    return CommandResult(data, [shown], gathered.warnings)


@command(
    app, "put", destroys=True,
    examples=[
        "tianzhou acl put billing --secret 12345678 --topic orders=SUB --group billing=SUB --yes",
        "tianzhou acl put operations --secret 12345678 --admin --yes",
    ],
)  # fmt: skip
async def put_account(
    session: Session,
    account: Account,
    secret: Annotated[
        str | None, option("--secret KEY", "Secret key, at least 7 characters.")
    ] = None,
    white_address: Annotated[
        str | None, option("--white-address IP", "Address that needs no signature.")
    ] = None,
    admin: Annotated[
        bool | None, option("--admin/--no-admin", "Whether it is an administrator.")
    ] = None,
    default_topic: Annotated[
        str | None, option("--default-topic PERM", "DENY, PUB, SUB, PUB|SUB.")
    ] = None,
    default_group: Annotated[str | None, option("--default-group PERM", "DENY or SUB.")] = None,
    topic: Annotated[
        list[str] | None, option("--topic NAME=PERM", "Permission on a topic; may be repeated.")
    ] = None,
    group: Annotated[
        list[str] | None, option("--group NAME=PERM", "Permission on a group; may be repeated.")
    ] = None,
    where: Where = EVERYWHERE,
) -> None:
    """Create or change an account; options that are not given stay as they are."""
    wanted = CreateAccessConfigRequest(
        access_key=account,
        secret_key=secret,
        white_remote_address=white_address,
        admin=bool(admin),
        default_topic_perm=default_topic,
        default_group_perm=default_group,
        topic_perms=",".join(topic) if topic else None,
        group_perms=",".join(group) if group else None,
    )
    acl = session.admin.acl

    async def put(at: BrokerRef) -> None:
        # The request always carries the administrator flag, so the current one is read first.
        was_admin = admin is None and await _is_admin(session, at, account)
        await acl.put(at, msgspec.structs.replace(wanted, admin=True) if was_admin else wanted)

    await _do(session, f"put account {account}", where, put)


async def _is_admin(session: Session, at: BrokerRef, account: str) -> bool:
    try:
        known = (await session.admin.acl.config(at)).accounts or ()
    except RequestError:
        return False  # Apache's brokers refuse this since 4.9.8; then it is as with `mqadmin`.
    return any(each.access_key == account and each.admin for each in known)


@command(app, "delete", destroys=True, examples=["tianzhou acl delete billing --yes"])
async def delete_account(session: Session, account: Account, where: Where = EVERYWHERE) -> None:
    """Delete an account."""
    acl = session.admin.acl
    await _do(session, f"delete account {account}", where, lambda at: acl.delete(at, account))


@command(
    app, "white-list", destroys=True,
    examples=["tianzhou acl white-list '10.10.1.*,192.168.0.0/24' --yes"],
)  # fmt: skip
async def set_white_list(
    session: Session,
    addresses: Annotated[str, argument("ADDRESSES", "Separated by commas.")],
    file: Annotated[str | None, option("--file FILE", "ACL file on the broker.")] = None,
    where: Where = EVERYWHERE,
) -> None:
    """Set the addresses whose requests need no account."""
    acl = session.admin.acl
    what = f"set the white list to {addresses}"
    await _do(session, what, where, lambda at: acl.set_white_addresses(at, addresses, file))


async def _do(
    session: Session, what: str, where: Where, ask: Callable[[BrokerRef], Awaitable[None]]
) -> None:
    brokers = await where.masters(session)
    if not session.confirm(f"{what} on {', '.join(at.name for at in brokers)}"):
        return
    done = await gather(brokers, ask)
    session.warn_all(done.warnings)
    session.print(f"{what}: done on {plural(len(done.responses), 'broker')}")
