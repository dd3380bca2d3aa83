"""The own account: language, zone, password, API tokens, sessions."""

import zoneinfo

import msgspec
from sqlalchemy import Connection

from tianzhou.console.accounts import sessions, tokens
from tianzhou.console.accounts.people import Person
from tianzhou.console.accounts.tokens import SCOPES, Token
from tianzhou.console.web.ask import Ask

ID_LENGTH = 16


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A browser in which the person is logged in."""

    id: str
    created_ms: int
    seen_ms: int
    ip: str
    agent: str
    is_this: bool


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """An API token."""

    id: int
    name: str
    scopes: tuple[str, ...]
    created_ms: int
    until_ms: int
    used_ms: int | None
    state: str
    """valid, revoked or over."""


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The own account."""

    person: Person
    sessions: tuple[SessionRow, ...]
    tokens: tuple[TokenRow, ...]
    scopes: tuple[str, ...]
    """Those that a new token may get."""


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was just made; its secret is shown here only."""

    id: int
    name: str
    secret: str
    until_ms: int


async def me(ask: Ask) -> Me:
    """The own account."""
    person, now_ms = ask.person, ask.now_ms
    this = ask.caller.session

    def find(connection: Connection) -> tuple[list[sessions.Session], list[Token]]:
        return (
            sessions.of_person(connection, person.id, now_ms),
            tokens.of_person(connection, person.id),
        )

    open_sessions, made = await ask.database.read(find)
    return Me(
        person=person,
        sessions=tuple(
            SessionRow(
                id=each.hash[:ID_LENGTH], created_ms=each.created_ms, seen_ms=each.seen_ms,
                ip=each.ip, agent=each.agent, is_this=this is not None and each.hash == this.hash,
            )
            for each in open_sessions
        ),
        tokens=tuple(_token(each, now_ms) for each in made),
        scopes=tuple(each for each in SCOPES if person.is_admin or each != "platform"),
    )  # fmt: skip


def _token(token: Token, now_ms: int) -> TokenRow:
    state = "revoked" if token.revoked_ms is not None else "valid"
    if state == "valid" and not token.is_valid(now_ms):
        state = "over"
    return TokenRow(
        id=token.id, name=token.name, scopes=token.scopes, created_ms=token.created_ms,
        until_ms=token.until_ms, used_ms=token.used_ms, state=state,
    )  # fmt: skip


def zones() -> list[str]:
    """The names of all time zones."""
    return sorted(zoneinfo.available_timezones())
