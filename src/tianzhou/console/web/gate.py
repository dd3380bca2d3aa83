"""The only module that decides who may do what. Every request passes it; without a rule it refuses.

host        a name that is ours (DNS rebinding)
caller      the person of a session cookie or of an API token; else a stranger
page        whether the caller may see it; what a reader may not see does not exist
change      same origin, the role, the scope of the token, the password entered again
"""

import ipaddress
from http import HTTPStatus
from urllib.parse import urlsplit

from sqlalchemy import Connection
from starlette.requests import Request

from tianzhou.console.accounts import failures, people, sessions, tokens
from tianzhou.console.accounts.passwords import Busy
from tianzhou.console.accounts.people import Person
from tianzhou.console.accounts.sessions import Session
from tianzhou.console.accounts.tokens import Token
from tianzhou.console.settings import ConsoleSettings
from tianzhou.console.text import Text
from tianzhou.console.web.ask import Ask, Caller, Console
from tianzhou.console.web.refusals import Forbidden, LoginNeeded, NotFound, Refusal, TooMany
from tianzhou.console.web.route import Change, Route, Who

_BEARER = "bearer "
_LOGIN_MAX = 256


class PasswordNeeded(Exception):
    """The change asks for the password again; `text` says what was wrong with the one given."""

    def __init__(self, text: Text | None = None) -> None:
        super().__init__(str(text or ""))
        self.text = text


def cookie_name(settings: ConsoleSettings) -> str:
    """The name of the session cookie; browsers accept `__Host-` over TLS only."""
    return "__Host-tianzhou" if settings.is_https else "tianzhou"


# -- where a request comes from --------------------------------------------------------------------


def check_host(settings: ConsoleSettings, host: str) -> None:
    """Refuse names that are not ours: a foreign site may resolve its own name to our address."""
    name = host_name(host)
    if name in ("localhost", *(each.lower() for each in settings.host_names)):
        return
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        pass
    else:
        # Only a name can be made to point here by a foreign site.
        if address.is_loopback or not settings.is_loopback:
            return
    text = Text(
        "This console is not called {name}. If it is, start it with --host-name {name}.",
        name=name[:100] or "?",
    )
    raise Refusal(text, status=HTTPStatus.MISDIRECTED_REQUEST)


def host_name(host: str) -> str:
    """The name in a `Host` header."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def check_same_origin(request: Request) -> None:
    """Refuse changes that another site sends in the name of a person."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_ours = site in ("same-origin", "none")
    else:
        origin = request.headers.get("origin", "")
        is_ours = urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() != ""
    if not is_ours:
        raise Forbidden(Text("This change was sent by another site, and is refused."))


# -- who sends it ----------------------------------------------------------------------------------


async def caller_of(console: Console, request: Request) -> Caller:
    """Who sends a request. Raises Refusal for a token that is not valid."""
    now_ms = console.now_ms()
    given = request.headers.get("authorization", "")
    if given:
        return await _by_token(console, given, now_ms)
    secret = request.cookies.get(cookie_name(console.settings), "")
    if not secret:
        return Caller()

    def find(connection: Connection) -> tuple[Session, Person] | None:
        session = sessions.find(connection, secret, now_ms)
        person = people.by_id(connection, session.person) if session is not None else None
        if session is None or person is None or not person.is_enabled:
            return None
        return session, person

    found = await console.database.read(find)
    if found is None:
        return Caller()
    session, person = found
    if now_ms >= session.seen_ms + sessions.SEEN_EVERY_MS:
        await console.database.write(lambda each: sessions.seen(each, session.hash, now_ms))
    return Caller(person=person, session=session)


async def _by_token(console: Console, given: str, now_ms: int) -> Caller:
    secret = given[len(_BEARER) :].strip()
    is_token = given.lower().startswith(_BEARER) and secret.startswith(tokens.PREFIX)

    def find(connection: Connection) -> tuple[Token, Person] | None:
        token = tokens.find(connection, secret, now_ms)
        person = people.by_id(connection, token.person) if token is not None else None
        if token is None or person is None or not person.is_enabled:
            return None
        return token, person

    found = await console.database.read(find) if is_token and len(secret) <= _LOGIN_MAX else None
    if found is None:
        raise Refusal(Text("The token is not valid."), status=HTTPStatus.UNAUTHORIZED)
    token, person = found
    if not tokens.is_use_recorded(token, now_ms):
        await console.database.write(lambda each: tokens.used(each, token.id, now_ms))
    return Caller(person=person, token=token)


# -- what the caller may do ------------------------------------------------------------------------


def check_page(caller: Caller, route: Route | None) -> Route:
    """The route, if the caller may see it. Raises LoginNeeded, NotFound, Forbidden."""
    if route is not None and route.who == Who.STRANGER:
        return route
    if caller.person is None:
        # Also for addresses that do not exist: strangers learn nothing about them.
        raise LoginNeeded
    if route is None or caller.who < route.who:
        raise NotFound
    if caller.token is not None:
        _check_scope(caller.token, route.scope)
    return route


def check_change(ask: Ask, change: Change) -> None:
    """Whether the caller may do it. Raises Forbidden, LoginNeeded."""
    if change.who == Who.STRANGER:
        return
    if ask.caller.person is None:
        raise LoginNeeded
    if ask.caller.who < change.who:
        raise Forbidden(Text("Only administrators may do this."))
    if ask.caller.token is not None:
        _check_scope(ask.caller.token, change.scope)


def _check_scope(token: Token, scope: str) -> None:
    if not scope:
        raise Forbidden(Text("This cannot be done with a token; log in with a browser."))
    if scope not in token.scopes:
        raise Forbidden(Text("The token lacks the scope {scope}.", scope=scope))


async def check_password(ask: Ask, password: str) -> None:
    """Whether the password was entered a short while ago, or is given. Raises PasswordNeeded."""
    session, person = ask.caller.session, ask.person
    if session is None or session.is_confirmed(ask.now_ms):
        return
    if not person.has_password:
        text = Text("Log out and in again first: this needs a login of the last five minutes.")
        raise Forbidden(text)
    if not password:
        raise PasswordNeeded
    if not await is_password(ask, person.login, password):
        raise PasswordNeeded(Text("The password is wrong."))
    await ask.database.write(lambda each: sessions.confirmed(each, session.hash, ask.now_ms))


async def is_password(ask: Ask, login: str, password: str) -> bool:
    """Whether this is the password of a login; failures are counted. Raises TooMany.

    The answer takes as long for a login that does not exist.
    """
    subjects = failures.subjects_of(login, ask.ip)
    now_ms = ask.now_ms

    def stored(connection: Connection) -> tuple[int | None, str]:
        until = failures.locked_until_ms(connection, subjects, now_ms)
        person = people.by_login(connection, login[:_LOGIN_MAX])
        usable = person is not None and person.is_enabled
        return until, people.password_hash(connection, person.id) if person and usable else ""

    until, password_hash = await ask.database.read(stored)
    if until is not None:
        raise TooMany(
            Text("Too many failed logins. Try again later."), retry_s=(until - now_ms) // 1000 + 1
        )
    try:
        is_right = await ask.console.passwords.matches(password_hash, password)
    except Busy:
        raise TooMany(Text("Too many logins at once. Try again in a moment."), retry_s=5) from None
    if is_right:
        await ask.database.write(lambda each: failures.forget(each, subjects[:1]))
    else:
        await ask.database.write(lambda each: failures.record(each, subjects, now_ms))
    return is_right
