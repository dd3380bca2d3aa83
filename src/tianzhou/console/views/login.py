"""Pages for strangers: login, logout, the set-up of the first start, language and theme."""

import secrets
from http import HTTPStatus
from typing import Any

from sqlalchemy import Connection
from starlette.responses import RedirectResponse, Response

from tianzhou.console.accounts import passwords, people, sessions, setup_codes
from tianzhou.console.text import Text
from tianzhou.console.web import body, gate, render
from tianzhou.console.web.ask import Ask, Caller
from tianzhou.console.web.refusals import NotFound, Refusal
from tianzhou.console.web.responses import own_path, record, see_other, set_cookie
from tianzhou.console.web.words import LANGUAGES

_YEAR_S = 365 * 24 * 3600
_FIELD_MAX = 512


def shown(ask: Ask, template: str, *, status: int = 200, **more: object) -> Response:
    """A page without navigation."""
    inner = render.content(ask, template, None, **more)
    text = render.outside_page(ask, inner, ask.route.title)
    return Response(text, status_code=status, media_type="text/html")


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name, "")
    return value[:_FIELD_MAX] if isinstance(value, str) else ""


def _fields(ask: Ask) -> dict[str, object]:
    return body.fields_of(ask.body, ask.headers.get("content-type", ""))


# -- login -----------------------------------------------------------------------------------------


async def log_in(ask: Ask) -> Response:
    """The form, and what it sends."""
    fields = _fields(ask) if ask.method == "POST" else {}
    back = own_path(_text(fields, "next") or ask.query.get("next", "/"))
    login = _text(fields, "login").strip()
    oidc = ask.console.settings.oidc
    more: dict[str, Any] = {"back": back, "login": login, "oidc": oidc}
    if ask.method != "POST":
        if ask.caller.person is not None:
            return see_other(ask, back)
        return shown(ask, "login.html", problem=None, **more)
    try:
        is_right = await gate.is_password(ask, login, _text(fields, "password"))
    except Refusal as e:
        refused = shown(ask, "login.html", status=e.status, problem=e.text, **more)
        refused.headers["Retry-After"] = str(e.retry_s)
        return refused
    if not is_right:
        problem = Text("Login or password is wrong.")
        return shown(
            ask, "login.html", status=HTTPStatus.UNPROCESSABLE_ENTITY, problem=problem, **more
        )  # fmt: skip
    return await begin_session(ask, login, back)


async def begin_session(ask: Ask, login: str, back: str) -> Response:
    """Log a person in, and go on. The session of the browser before ends."""
    now_ms = ask.now_ms
    old = ask.caller.session

    def begin(connection: Connection) -> str:
        person = people.by_login(connection, login)
        if person is None or not person.is_enabled:
            raise NotFound
        if old is not None:
            sessions.end(connection, old.hash)
        people.change(connection, person.id, now_ms, last_ms=now_ms)
        return sessions.begin(connection, person.id, ask.ip, ask.agent, now_ms)

    secret = await ask.database.write(begin)
    ask.new_cookies.append(session_cookie(ask, secret))
    return see_other(ask, back)


def session_cookie(ask: Ask, secret: str) -> str:
    """The cookie with the secret of a session; empty: the cookie ends."""
    name = gate.cookie_name(ask.console.settings)
    return set_cookie(ask, name, secret, max_age_s=sessions.LIFE_MS // 1000 if secret else 0)


async def log_out(ask: Ask) -> Response:
    """End the session of this browser."""
    session = ask.caller.session
    if session is not None:
        await ask.database.write(lambda each: sessions.end(each, session.hash))
    ask.new_cookies.append(session_cookie(ask, ""))
    return see_other(ask, "/login")


# -- the first start -------------------------------------------------------------------------------


async def set_up(ask: Ask) -> Response:
    """The one-time link: makes the first administrator."""
    code, now_ms = ask.path["code"], ask.now_ms
    if not await ask.database.read(lambda each: setup_codes.is_valid(each, code, now_ms)):
        text = Text("This link is not valid any more. Restart the console for a new one.")
        raise NotFound(text)
    if ask.method != "POST":
        return shown(ask, "setup.html", problem=None, login="", name="")
    fields = _fields(ask)
    login, name = _text(fields, "login").strip(), _text(fields, "name").strip()
    password = _text(fields, "password")
    problem = login_problem(login) or name_problem(name)
    problem = problem or passwords.problem_of(password, login)
    if problem is None and password != _text(fields, "again"):
        problem = Text("The two passwords differ.")
    if problem is not None:
        return shown(
            ask, "setup.html", status=HTTPStatus.UNPROCESSABLE_ENTITY, problem=problem,
            login=login, name=name,
        )  # fmt: skip
    hashed = await ask.console.passwords.hashed(password)

    def make(connection: Connection) -> None:
        if people.count(connection) or not setup_codes.use(connection, code, now_ms):
            raise NotFound(Text("Another administrator has been set up meanwhile."))
        people.add(connection, login, now_ms, name=name, password=hashed, is_admin=1)

    await ask.database.write(make)
    person = await ask.database.read(lambda each: people.by_login(each, login))
    ask.caller = Caller(person=person)
    await record(ask, "set-up", login, result="ok", after=person)
    return await begin_session(ask, login, "/")


def login_problem(login: str) -> Text | None:
    """Why a login is refused; None if it is accepted."""
    if not 1 <= len(login) <= people.LOGIN_MAX:
        return Text("A login has 1 to {n} characters.", n=people.LOGIN_MAX)
    if not all(each.isalnum() or each in "._@+-" for each in login):
        return Text("A login has letters, digits and . _ @ + - only.")
    return None


def name_problem(name: str) -> Text | None:
    """Why a name of a person is refused; None if it is accepted."""
    if len(name) > people.NAME_MAX:
        return Text("A name has at most {n} characters.", n=people.NAME_MAX)
    if not name.isprintable():
        return Text("A name has no line breaks or control characters.")
    return None


# -- language and theme ----------------------------------------------------------------------------


async def display(ask: Ask) -> Response:
    """Language and theme of this browser, from the forms in the frame of every page."""
    fields = _fields(ask)
    language, theme = _text(fields, "language"), _text(fields, "theme")
    if language in LANGUAGES:
        ask.new_cookies.append(set_cookie(ask, "tianzhou_language", language, max_age_s=_YEAR_S))
        person = ask.caller.person
        if person is not None:
            now_ms = ask.now_ms
            await ask.database.write(
                lambda each: people.change(each, person.id, now_ms, language=language)
            )
    if theme in ("light", "dark", "system"):
        chosen = "" if theme == "system" else theme
        age_s = _YEAR_S if chosen else 0
        ask.new_cookies.append(set_cookie(ask, "tianzhou_theme", chosen, max_age_s=age_s))
    return see_other(ask, own_path(_text(fields, "next")))


def new_secret() -> str:
    """256 bits for a cookie or a parameter of OIDC."""
    return secrets.token_urlsafe(32)


def redirect_outside(where: str) -> Response:
    """To the OpenID provider."""
    return RedirectResponse(where, status_code=HTTPStatus.SEE_OTHER)
