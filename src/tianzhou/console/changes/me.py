"""Changes of the own account."""

import msgspec
from sqlalchemy import Connection

from tianzhou.console.accounts import passwords, people, sessions, tokens
from tianzhou.console.accounts.people import NAME_MAX
from tianzhou.console.accounts.tokens import SCOPES
from tianzhou.console.changes.people import Nothing, check, mail_problem
from tianzhou.console.text import Text
from tianzhou.console.views.login import name_problem, session_cookie
from tianzhou.console.views.me import ID_LENGTH, NewToken
from tianzhou.console.web import figures
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Conflict, Invalid, NotFound
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared
from tianzhou.console.web.words import LANGUAGES

_DAY_MS = 24 * 3600_000
_DAYS_MAX = 365


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """How the console looks to the person."""

    name: str = ""
    mail: str = ""
    language: str = ""
    zone: str = ""


class OwnPassword(msgspec.Struct, frozen=True, kw_only=True):
    """A new password, twice."""

    password: str
    again: str


class MakeToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new API token."""

    name: str
    scopes: tuple[str, ...] = ("read",)
    days: int = 90


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True):
    """One of the own tokens."""

    token: int


class EndSession(msgspec.Struct, frozen=True, kw_only=True):
    """One of the own sessions."""

    session: str


async def profile(ask: Ask, given: Profile) -> Prepared:
    """Change name, e-mail, language and time zone."""
    person = ask.person
    check(name_problem(given.name), "name")
    check(mail_problem(given.mail), "mail")
    if given.language and given.language not in LANGUAGES:
        raise Invalid(Text("There is no language {name}.", name=given.language), "language")
    if given.zone and not figures.is_zone(given.zone):
        raise Invalid(Text("There is no time zone {name}.", name=given.zone), "zone")
    after = msgspec.structs.asdict(given)
    before = {name: getattr(person, name) for name in after}

    async def execute() -> Done:
        now_ms = ask.now_ms
        await ask.database.write(lambda each: people.change(each, person.id, now_ms, **after))
        notice = Text("Your settings were saved.")
        return Done(subject=person.login, notice=notice, before=before, after=after)

    return Prepared(Plan(title=Text("Save settings")), execute)


async def password(ask: Ask, given: OwnPassword) -> Prepared:
    """Change the own password; all other sessions end."""
    person = ask.person
    check(passwords.problem_of(given.password, person.login), "password")
    if given.password != given.again:
        raise Invalid(Text("The two passwords differ."), "again")
    plan = Plan(
        title=Text("Change your password"),
        rows=(PlanRow(subject=person.login, what=Text("Password"), before="***", after="***"),),
        warnings=(Text("All other browsers have to log in again."),),
        button=Text("Change password"),
    )

    async def execute() -> Done:
        hashed = await ask.console.passwords.hashed(given.password)
        now_ms = ask.now_ms

        def write(connection: Connection) -> str:
            people.change(connection, person.id, now_ms, password=hashed)
            return sessions.begin(connection, person.id, ask.ip, ask.agent, now_ms)

        ask.new_cookies.append(session_cookie(ask, await ask.database.write(write)))
        return Done(subject=person.login, notice=Text("Your password was changed."))

    return Prepared(plan, execute)


async def make_token(ask: Ask, given: MakeToken) -> Prepared:
    """Make an API token; its secret is shown once."""
    person, name = ask.person, given.name.strip()
    if not name or len(name) > NAME_MAX or not name.isprintable():
        raise Invalid(Text("A token needs a name of at most {n} characters.", n=NAME_MAX), "name")
    scopes = tuple(each for each in SCOPES if each in given.scopes)
    if not scopes or set(given.scopes) - set(SCOPES):
        raise Invalid(Text("Scopes are: {scopes}.", scopes=", ".join(SCOPES)), "scopes")
    if "platform" in scopes and not person.is_admin:
        raise Invalid(Text("Only administrators may give the scope platform."), "scopes")
    if not 1 <= given.days <= _DAYS_MAX:
        raise Invalid(Text("A token is valid for 1 to {n} days.", n=_DAYS_MAX), "days")
    plan = Plan(
        title=Text("Make the token {name}", name=name),
        rows=(
            PlanRow(subject=name, what=Text("Scopes"), after=", ".join(scopes)),
            PlanRow(subject=name, what=Text("Days"), after=str(given.days)),
        ),
        button=Text("Make token"),
    )

    async def execute() -> Done:
        now_ms = ask.now_ms
        until_ms = now_ms + given.days * _DAY_MS

        def write(connection: Connection) -> tuple[int, str]:
            valid = [
                each for each in tokens.of_person(connection, person.id) if each.is_valid(now_ms)
            ]
            if len(valid) >= tokens.OF_ONE_PERSON_MAX:
                raise Conflict(Text("You have too many tokens; revoke some first."))
            return tokens.make(connection, person.id, name, scopes, now_ms, until_ms)

        number, secret = await ask.database.write(write)
        made = NewToken(id=number, name=name, secret=secret, until_ms=until_ms)
        return Done(
            subject=f"token {number} {name}", notice=Text("New token"), result=made,
            template="token.html", after={"scopes": scopes, "until_ms": until_ms},
        )  # fmt: skip

    return Prepared(plan, execute)


async def revoke_token(ask: Ask, given: RevokeToken) -> Prepared:
    """End one of the own tokens."""
    person = ask.person
    token = await ask.database.read(lambda each: tokens.by_id(each, given.token))
    if token is None or token.person != person.id:
        raise NotFound
    plan = Plan(
        title=Text("Revoke the token {name}", name=token.name),
        rows=(PlanRow(subject=token.name, what=Text("Token"), before=" ".join(token.scopes)),),
        warnings=(Text("Programs that use it are refused at once."),),
        is_dangerous=True,
        button=Text("Revoke"),
    )

    async def execute() -> Done:
        now_ms = ask.now_ms
        await ask.database.write(lambda each: tokens.revoke(each, token.id, now_ms))
        notice = Text("The token {name} was revoked.", name=token.name)
        return Done(subject=f"token {token.id} {token.name}", notice=notice)

    return Prepared(plan, execute)


async def end_session(ask: Ask, given: EndSession) -> Prepared:
    """Log one of the own browsers out."""
    person, now_ms = ask.person, ask.now_ms
    mine = await ask.database.read(lambda each: sessions.of_person(each, person.id, now_ms))
    ended = [each for each in mine if each.hash[:ID_LENGTH] == given.session]
    if len(ended) != 1:
        raise NotFound

    async def execute() -> Done:
        await ask.database.write(lambda each: sessions.end(each, ended[0].hash))
        return Done(subject=person.login, notice=Text("The session has ended."))

    return Prepared(Plan(title=Text("End a session")), execute)


async def end_other_sessions(ask: Ask, given: Nothing) -> Prepared:
    """Log all other own browsers out."""
    person, this = ask.person, ask.caller.session

    async def execute() -> Done:
        but = this.hash if this is not None else ""
        await ask.database.write(lambda each: sessions.end_all(each, person.id, but))
        return Done(subject=person.login, notice=Text("All other sessions have ended."))

    return Prepared(Plan(title=Text("End all other sessions")), execute)
