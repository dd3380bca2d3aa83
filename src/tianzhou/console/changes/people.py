"""Changes of people: add, rights, disable and enable, new password."""

import msgspec
from sqlalchemy import Connection

from tianzhou.console.accounts import passwords, people
from tianzhou.console.accounts.people import Person
from tianzhou.console.text import Text
from tianzhou.console.views.login import login_problem, name_problem
from tianzhou.console.views.people import person_of
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, Invalid
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared

ROLES = ("reader", "administrator")


class AddPerson(msgspec.Struct, frozen=True, kw_only=True):
    """A new person."""

    login: str
    password: str
    name: str = ""
    mail: str = ""
    role: str = "reader"


class ChangePerson(msgspec.Struct, frozen=True, kw_only=True):
    """Name, mail and role."""

    name: str = ""
    mail: str = ""
    role: str = "reader"


class SetPassword(msgspec.Struct, frozen=True, kw_only=True):
    """A new password for another person."""

    password: str


class Nothing(msgspec.Struct, frozen=True, kw_only=True):
    """A change without fields."""


def role_of(person: Person) -> str:
    return "administrator" if person.is_admin else "reader"


async def add(ask: Ask, given: AddPerson) -> Prepared:
    """Add a person, who logs in with a password."""
    login = given.login.strip()
    check(login_problem(login), "login")
    check(name_problem(given.name), "name")
    check(mail_problem(given.mail), "mail")
    _check_role(given.role)
    check(passwords.problem_of(given.password, login), "password")
    if await ask.database.read(lambda each: people.by_login(each, login)) is not None:
        raise Invalid(Text("There is a person {login} already.", login=login), "login")
    rows = [
        PlanRow(subject=login, what=Text("Person"), after=given.name or login),
        PlanRow(subject=login, what=Text("Role"), after=given.role),
    ]
    plan = Plan(
        title=Text("Add the person {login}", login=login), rows=tuple(rows),
        button=Text("Add person"),
    )  # fmt: skip

    async def execute() -> Done:
        hashed = await ask.console.passwords.hashed(given.password)
        now_ms = ask.now_ms

        def insert(connection: Connection) -> Person | None:
            if people.by_login(connection, login) is not None:
                raise Conflict(Text("There is a person {login} already.", login=login))
            number = people.add(
                connection, login, now_ms, name=given.name, mail=given.mail, password=hashed,
                is_admin=int(given.role == "administrator"),
            )  # fmt: skip
            return people.by_id(connection, number)

        added = await ask.database.write(insert)
        return Done(
            subject=login, notice=Text("{login} was added.", login=login), location="/people",
            after=added,
        )  # fmt: skip

    return Prepared(plan, execute)


async def change(ask: Ask, given: ChangePerson) -> Prepared:
    """Change name, mail and role."""
    person = await person_of(ask)
    check(name_problem(given.name), "name")
    check(mail_problem(given.mail), "mail")
    _check_role(given.role)
    rows = [
        PlanRow(subject=person.login, what=what, before=before, after=after)
        for what, before, after in (
            (Text("Name"), person.name, given.name),
            (Text("E-mail"), person.mail, given.mail),
            (Text("Role"), role_of(person), given.role),
        )
        if before != after
    ]
    is_other_role = role_of(person) != given.role
    warnings = [Text("{login} has to log in again.", login=person.login)] if is_other_role else []
    plan = Plan(
        title=Text("Change {login}", login=person.login), rows=tuple(rows),
        warnings=tuple(warnings), button=Text("Change"),
    )  # fmt: skip
    values: dict[str, object] = {"name": given.name, "mail": given.mail}
    if is_other_role:
        values["is_admin"] = int(given.role == "administrator")
    notice = Text("{login} was changed.", login=person.login)
    return _changing(ask, person, plan, values, notice)


async def disable(ask: Ask, given: Nothing) -> Prepared:
    """Lock a person out: sessions and tokens end at once."""
    person = await person_of(ask)
    plan = Plan(
        title=Text("Disable {login}", login=person.login),
        rows=(
            PlanRow(subject=person.login, what=Text("Access"), before="enabled", after="disabled"),
        ),
        warnings=(Text("Sessions and tokens of {login} end at once.", login=person.login),),
        is_dangerous=True,
        button=Text("Disable"),
    )
    notice = Text("{login} was disabled.", login=person.login)
    return _changing(ask, person, plan, {"is_enabled": 0}, notice)


async def enable(ask: Ask, given: Nothing) -> Prepared:
    """Let a person log in again."""
    person = await person_of(ask)
    plan = Plan(
        title=Text("Enable {login}", login=person.login),
        rows=(
            PlanRow(subject=person.login, what=Text("Access"), before="disabled", after="enabled"),
        ),
        button=Text("Enable"),
    )
    notice = Text("{login} was enabled.", login=person.login)
    return _changing(ask, person, plan, {"is_enabled": 1}, notice)


async def set_password(ask: Ask, given: SetPassword) -> Prepared:
    """Give a person a new password, which ends their sessions."""
    person = await person_of(ask)
    check(passwords.problem_of(given.password, person.login), "password")
    plan = Plan(
        title=Text("Set a new password for {login}", login=person.login),
        rows=(PlanRow(subject=person.login, what=Text("Password"), before="***", after="***"),),
        warnings=(Text("{login} has to log in again.", login=person.login),),
        button=Text("Set password"),
    )

    async def execute() -> Done:
        hashed = await ask.console.passwords.hashed(given.password)
        now_ms = ask.now_ms
        await ask.database.write(
            lambda each: people.change(each, person.id, now_ms, password=hashed)
        )
        notice = Text("{login} has a new password.", login=person.login)
        return Done(subject=person.login, notice=notice, location=f"/people/{person.id}")

    return Prepared(plan, execute)


def _changing(
    ask: Ask, person: Person, plan: Plan, values: dict[str, object], notice: Text
) -> Prepared:
    """Change columns of a person; the last administrator stays one."""

    async def execute() -> Done:
        now_ms = ask.now_ms

        def write(connection: Connection) -> Person | None:
            people.change(connection, person.id, now_ms, **values)
            if not people.administrators(connection):
                raise Conflict(Text("This is the last administrator; add another one first."))
            return people.by_id(connection, person.id)

        after = await ask.database.write(write)
        return Done(
            subject=person.login, notice=notice, location=f"/people/{person.id}", before=person,
            after=after,
        )  # fmt: skip

    return Prepared(plan, execute)


def mail_problem(mail: str) -> Text | None:
    """Why an address is refused; None if it is accepted."""
    if not mail:
        return None
    is_plain = mail.isprintable() and " " not in mail and len(mail) <= people.MAIL_MAX
    if not is_plain or mail.count("@") != 1 or mail.startswith("@") or mail.endswith("@"):
        return Text("This is not an e-mail address.")
    return None


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise Invalid(Text("A role is one of: {roles}.", roles=", ".join(ROLES)), "role")


def check(problem: Text | None, field: str) -> None:
    """Raises Invalid if there is a problem."""
    if problem is not None:
        raise Invalid(problem, field)
