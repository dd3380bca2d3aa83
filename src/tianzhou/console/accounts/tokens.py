"""API tokens: `tzc_` and 40 characters, shown once; the database has only the hash.

A token acts for its person, restricted to its scopes:

    read       pages that show names, figures and settings
    bodies     contents of messages
    change     create, change and delete topics and groups, offsets, resend
    platform   what only administrators do: brokers, nameservers, settings; for administrators

No token makes tokens or changes people.
"""

import secrets
import string
from typing import Any

import msgspec
from sqlalchemy import Connection, select, update

from tianzhou.console.accounts.sessions import hash_of
from tianzhou.console.tables import tokens, values_of

PREFIX = "tzc_"
LENGTH = 40
SCOPES = ("read", "bodies", "change", "platform")
LIFE_MS_MAX = 366 * 24 * 3600_000
OF_ONE_PERSON_MAX = 50
_CHARACTERS = string.ascii_letters + string.digits
_USED_EVERY_MS = 60_000


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """An API token without its secret."""

    id: int
    person: int
    name: str
    scopes: tuple[str, ...]
    created_ms: int
    until_ms: int
    used_ms: int | None = None
    revoked_ms: int | None = None

    def is_valid(self, now_ms: int) -> bool:
        """Whether it can be used."""
        return self.revoked_ms is None and now_ms < self.until_ms


def make(
    connection: Connection,
    person: int,
    name: str,
    scopes: tuple[str, ...],
    now_ms: int,
    until_ms: int,
) -> tuple[int, str]:
    """Make a token; returns its id and its secret, which nothing shows again."""
    secret = PREFIX + "".join(secrets.choice(_CHARACTERS) for _ in range(LENGTH))
    made = connection.execute(
        tokens.insert().values(
            hash=hash_of(secret), person=person, name=name, scopes=" ".join(scopes),
            created_ms=now_ms, until_ms=min(until_ms, now_ms + LIFE_MS_MAX),
        )
    )  # fmt: skip
    return int(made.inserted_primary_key[0]), secret  # type: ignore[index]


def find(connection: Connection, secret: str, now_ms: int) -> Token | None:
    """The valid token with this secret."""
    row = connection.execute(select(tokens).where(tokens.c.hash == hash_of(secret))).first()
    token = _token(row) if row is not None else None
    return token if token is not None and token.is_valid(now_ms) else None


def is_use_recorded(token: Token, now_ms: int) -> bool:
    """Whether its last use was recorded a short while ago."""
    return token.used_ms is not None and now_ms < token.used_ms + _USED_EVERY_MS


def used(connection: Connection, token: int, now_ms: int) -> None:
    """Record a use."""
    connection.execute(update(tokens).where(tokens.c.id == token).values(used_ms=now_ms))


def of_person(connection: Connection, person: int) -> list[Token]:
    """The tokens of a person, the newest first."""
    wanted = select(tokens).where(tokens.c.person == person).order_by(tokens.c.id.desc())
    return [_token(row) for row in connection.execute(wanted)]


def by_id(connection: Connection, token: int) -> Token | None:
    """The token with an id."""
    row = connection.execute(select(tokens).where(tokens.c.id == token)).first()
    return _token(row) if row is not None else None


def revoke(connection: Connection, token: int, now_ms: int) -> None:
    """End a token at once."""
    connection.execute(update(tokens).where(tokens.c.id == token).values(revoked_ms=now_ms))


def _token(row: Any) -> Token:  # noqa: ANN401 - a row of SQLAlchemy
    values = values_of(row)
    return msgspec.convert(values | {"scopes": values["scopes"].split()}, Token)
