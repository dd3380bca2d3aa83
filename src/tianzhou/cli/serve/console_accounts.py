"""`tianzhou console user | token`: accounts of the console, in its database.

For when no one can log in. With SQLite the console must be stopped first: one program at a time
uses the file.
"""

import getpass
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tianzhou.cli.serve.console import COMMAND, MISSING, PASSWORD, add_database
from tianzhou.cli.shared.arguments import Arguments
from tianzhou.cli.shared.terminal import FAILED, OK, print_error, print_line
from tianzhou.clock import wall_ms
from tianzhou.errors import ConfigError, TianzhouError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tianzhou.console.accounts.people import Person


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        from tianzhou.console.settings import ConsoleSettings
        from tianzhou.console.tables import ConsoleDatabase

        settings = ConsoleSettings(data=options.data, database=options.database or "")
        database = ConsoleDatabase(settings.database_url)
        try:
            with database.engine.begin() as connection:
                print_line(_run(options.action, connection, options))
        finally:
            database.close()
    except ImportError as e:
        print_error(COMMAND, f"{MISSING} ({e})")
        return FAILED
    except TianzhouError as e:
        print_error(COMMAND, e)
        return FAILED
    return OK


def _run(action: str, connection: "Connection", options: "object") -> str:
    given = vars(options)
    if action == "revoke":
        return _revoke(connection, int(given["id"]))
    login = str(given["login"])
    if action == "add":
        return _add(connection, login, is_admin=bool(given["admin"]))
    if action == "password":
        return _password(connection, login)
    return _disable(connection, login)


def _add(connection: "Connection", login: str, *, is_admin: bool) -> str:
    from tianzhou.console.accounts import people
    from tianzhou.console.views.login import login_problem

    problem = login_problem(login)
    if problem is not None:
        raise ConfigError(str(problem))
    if people.by_login(connection, login) is not None:
        raise ConfigError(f"there is a person {login} already; use `{COMMAND} user password`")
    people.add(connection, login, wall_ms(), password=_hash(login), is_admin=int(is_admin))
    _record(connection, "user add", login)
    return f"{login} was added as {'administrator' if is_admin else 'reader'}"


def _password(connection: "Connection", login: str) -> str:
    from tianzhou.console.accounts import people

    person = _person(connection, login)
    people.change(connection, person.id, wall_ms(), password=_hash(login), is_enabled=1)
    _record(connection, "user password", login)
    return f"{login} has a new password and can log in"


def _disable(connection: "Connection", login: str) -> str:
    from tianzhou.console.accounts import people

    people.change(connection, _person(connection, login).id, wall_ms(), is_enabled=0)
    _record(connection, "user disable", login)
    return f"{login} was disabled; sessions and tokens have ended"


def _revoke(connection: "Connection", number: int) -> str:
    from tianzhou.console.accounts import tokens

    if tokens.by_id(connection, number) is None:
        raise ConfigError(f"there is no token {number}; the page of its person lists them")
    tokens.revoke(connection, number, wall_ms())
    _record(connection, "token revoke", str(number))
    return f"token {number} was revoked"


def _person(connection: "Connection", login: str) -> "Person":
    from tianzhou.console.accounts import people

    person = people.by_login(connection, login)
    if person is None:
        known = ", ".join(each.login for each in people.listed(connection)[:20]) or "none"
        raise ConfigError(f"there is no person {login}; known: {known}")
    return person


def _hash(login: str) -> str:
    from tianzhou.console.accounts import passwords

    password = os.environ.get(PASSWORD) or _typed()
    problem = passwords.problem_of(password, login)
    if problem is not None:
        raise ConfigError(str(problem))
    return passwords.hash_of(password)


def _typed() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("New password: ")
    return sys.stdin.readline().rstrip("\n")


def _record(connection: "Connection", verb: str, subject: str) -> None:
    from tianzhou.console.accounts import audit

    person = f"{getpass.getuser()} (command line)"
    audit.record(connection, wall_ms(), person=person, verb=verb, subject=subject, result="ok")


def _parser() -> Arguments:
    parser = Arguments(
        COMMAND,
        "Accounts of the web console, in its database. A password is read from "
        f"{PASSWORD}, or typed.",
    )
    nouns = parser.add_subparsers(dest="noun", required=True, parser_class=_Sub)
    user = nouns.add_parser("user", help="people").add_subparsers(
        dest="action", required=True, parser_class=_Sub
    )
    add = user.add_parser("add", help="add a person")
    add.add_argument("--admin", action="store_true", help="as administrator, not as reader")
    password = user.add_parser("password", help="set a new password, and enable the person")
    disable = user.add_parser("disable", help="end sessions and tokens, and refuse logins")
    for each in (add, password, disable):
        each.add_argument("login", metavar="LOGIN")
        add_database(each)
    token = nouns.add_parser("token", help="API tokens").add_subparsers(
        dest="action", required=True, parser_class=_Sub
    )
    revoke = token.add_parser("revoke", help="end a token at once")
    revoke.add_argument("id", metavar="ID", type=int)
    add_database(revoke)
    return parser


class _Sub(Arguments):
    """A parser of a command below another one."""

    def __init__(self, **more: object) -> None:
        super().__init__(str(more["prog"]), str(more.get("help", "")))
