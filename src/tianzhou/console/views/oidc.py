"""Login by the OpenID provider: to it, and back."""

import base64

import msgspec
from sqlalchemy import Connection
from starlette.responses import Response

from tianzhou.console.accounts import oidc, people
from tianzhou.console.accounts.oidc import Claims, Flow, OidcError, Provider
from tianzhou.console.accounts.people import Person
from tianzhou.console.text import Text
from tianzhou.console.views.login import begin_session, login_problem, redirect_outside
from tianzhou.console.web.ask import Ask, Caller
from tianzhou.console.web.refusals import Forbidden, NotFound, Unavailable
from tianzhou.console.web.responses import own_path, record, set_cookie

_FLOW_S = 600
_COOKIE_MAX = 4000


def _cookie(ask: Ask) -> str:
    return "__Host-tianzhou-oidc" if ask.console.settings.is_https else "tianzhou-oidc"


def _provider(ask: Ask) -> Provider:
    if ask.console.provider is None:
        raise NotFound
    return ask.console.provider


def _callback(ask: Ask) -> str:
    return f"{ask.origin}{ask.url('/oidc/callback')}"


async def start(ask: Ask) -> Response:
    """Go to the provider."""
    flow = oidc.begin(own_path(ask.query.get("next", "/")))
    try:
        where = await _provider(ask).login_address(flow, _callback(ask))
    except OidcError as e:
        text = Text("The OpenID provider does not answer as it should: {why}", why=str(e))
        raise Unavailable(text, retry_s=30) from e
    value = base64.urlsafe_b64encode(msgspec.json.encode(flow)).decode()
    ask.new_cookies.append(set_cookie(ask, _cookie(ask), value, max_age_s=_FLOW_S))
    return redirect_outside(where)


async def callback(ask: Ask) -> Response:
    """Come back from the provider, logged in there."""
    provider = _provider(ask)
    ask.new_cookies.append(set_cookie(ask, _cookie(ask), "", max_age_s=0))
    flow = _flow(ask)
    if "code" not in ask.query:
        why = ask.query.get("error_description") or ask.query.get("error") or "?"
        raise Forbidden(Text("The OpenID provider refused the login: {why}", why=why[:300]))
    try:
        claims = await provider.claims(
            flow, state=ask.query.get("state", ""), code=ask.query["code"],
            issuer=ask.query.get("iss", ""), callback=_callback(ask),
        )  # fmt: skip
    except OidcError as e:
        raise Forbidden(Text("The login failed: {why}", why=str(e))) from e
    person = await _person(ask, claims)
    return await begin_session(ask, person.login, flow.back)


def _flow(ask: Ask) -> Flow:
    value = ask.cookies.get(_cookie(ask), "")
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(value[:_COOKIE_MAX]), type=Flow)
    except (ValueError, msgspec.DecodeError) as e:
        text = Text("The login was begun in another browser, or too long ago; begin it again.")
        raise Forbidden(text) from e


async def _person(ask: Ask, claims: Claims) -> Person:
    """The person of an account of the provider; made at the first login, if a rule allows it."""
    is_admin = oidc.is_admin(claims, _provider(ask).settings)
    now_ms = ask.now_ms
    refused = Forbidden(Text("{login} may not use this console.", login=claims.login))
    made = False

    def write(connection: Connection) -> Person:
        nonlocal made
        person = people.by_oidc_subject(connection, claims.subject)
        if is_admin is None or (person is not None and not person.is_enabled):
            raise refused
        if person is None:
            if login_problem(claims.login) is not None:
                raise refused
            if people.by_login(connection, claims.login) is not None:
                # A name at the provider must not open the account of that name here.
                raise Forbidden(
                    Text("There is a person {login} with a password already.", login=claims.login)
                )
            made = True
            number = people.add(
                connection, claims.login, now_ms, name=claims.name, mail=claims.mail,
                oidc_subject=claims.subject, is_admin=int(is_admin),
            )  # fmt: skip
        else:
            number = person.id
            if person.is_admin != is_admin:
                people.change(connection, number, now_ms, is_admin=int(is_admin))
        found = people.by_id(connection, number)
        if found is None:
            raise refused
        return found

    person = await ask.database.write(write)
    if made:
        ask.caller = Caller(person=person)
        await record(ask, "first OpenID login", person.login, result="ok", after=person)
    return person
