"""Logged-in browsers. A cookie holds 256 random bits, the database only their hash."""

import hashlib
import secrets
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, select, update

from tianzhou.console.tables import sessions, values_of

IDLE_MS = 12 * 3600_000
LIFE_MS = 7 * 24 * 3600_000
SEEN_EVERY_MS = 60_000
"""The time of the last request is written at most this often."""
CONFIRMED_MS = 5 * 60_000
"""How long after entering the password it is not asked for again."""
OF_ONE_PERSON_MAX = 50
"""The oldest ones end."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A logged-in browser."""

    hash: str
    person: int
    created_ms: int
    seen_ms: int
    until_ms: int
    confirmed_ms: int
    ip: str = ""
    agent: str = ""

    def is_over(self, now_ms: int) -> bool:
        """Whether it has ended, by age or by idle time."""
        return now_ms >= self.until_ms or now_ms >= self.seen_ms + IDLE_MS

    def is_confirmed(self, now_ms: int) -> bool:
        """Whether the password was entered a short while ago."""
        return self.confirmed_ms <= now_ms < self.confirmed_ms + CONFIRMED_MS


def hash_of(secret: str) -> str:
    """What the database holds of a secret with 200 bits or more, which needs no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def begin(connection: Connection, person: int, ip: str, agent: str, now_ms: int) -> str:
    """Log in; returns the secret for the cookie."""
    secret = secrets.token_urlsafe(32)
    connection.execute(
        sessions.insert().values(
            hash=hash_of(secret), person=person, created_ms=now_ms, seen_ms=now_ms,
            until_ms=now_ms + LIFE_MS, confirmed_ms=now_ms, ip=ip[:64], agent=agent[:255],
        )
    )  # fmt: skip
    mine = select(sessions.c.hash).where(sessions.c.person == person)
    newest = connection.execute(mine.order_by(sessions.c.seen_ms.desc())).scalars().all()
    for each in newest[OF_ONE_PERSON_MAX:]:
        end(connection, each)
    connection.execute(
        delete(sessions).where(
            (sessions.c.until_ms <= now_ms) | (sessions.c.seen_ms <= now_ms - IDLE_MS)
        )
    )
    return secret


def find(connection: Connection, secret: str, now_ms: int) -> Session | None:
    """The session of a cookie, unless it is over."""
    row = connection.execute(select(sessions).where(sessions.c.hash == hash_of(secret))).first()
    session = _session(row) if row is not None else None
    return None if session is None or session.is_over(now_ms) else session


def of_person(connection: Connection, person: int, now_ms: int) -> list[Session]:
    """The sessions of a person, the last used first."""
    rows = connection.execute(
        select(sessions).where(sessions.c.person == person).order_by(sessions.c.seen_ms.desc())
    )
    return [each for each in map(_session, rows) if not each.is_over(now_ms)]


def seen(connection: Connection, session: str, now_ms: int) -> None:
    """Record a request."""
    connection.execute(
        update(sessions).where(sessions.c.hash == session).values(seen_ms=now_ms)
    )  # fmt: skip


def confirmed(connection: Connection, session: str, now_ms: int) -> None:
    """Record that the password was entered again."""
    connection.execute(
        update(sessions).where(sessions.c.hash == session).values(confirmed_ms=now_ms)
    )


def end(connection: Connection, session: str) -> None:
    """Log out."""
    connection.execute(delete(sessions).where(sessions.c.hash == session))


def end_all(connection: Connection, person: int, but: str = "") -> None:
    """End the sessions of a person, except one."""
    connection.execute(
        delete(sessions).where(sessions.c.person == person, sessions.c.hash != but)
    )  # fmt: skip


def _session(row: Any) -> Session:  # noqa: ANN401 - a row of SQLAlchemy
    return msgspec.convert(values_of(row), Session)
