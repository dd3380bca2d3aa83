"""People: who may log in, as administrator or reader."""

from typing import Any

import msgspec
from sqlalchemy import Connection, func, select, update

from tianzhou.console.accounts import sessions
from tianzhou.console.tables import people, tokens, values_of

LOGIN_MAX = 64
NAME_MAX = 100
MAIL_MAX = 200


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """A person, without the password."""

    id: int
    login: str
    """Case-folded."""
    name: str = ""
    mail: str = ""
    is_admin: bool = False
    language: str = ""
    zone: str = ""
    is_enabled: bool = True
    has_password: bool = False
    """False: only OIDC."""
    created_ms: int = 0
    last_ms: int | None = None
    """Time of the last login."""

    @property
    def shown(self) -> str:
        return self.name or self.login


_COLUMNS = [
    *(people.c[name] for name in ("id", "login", "name", "mail", "language", "zone")),
    *(people.c[name] for name in ("is_admin", "is_enabled", "created_ms", "last_ms")),
    (people.c.password != "").label("has_password"),
]


def _person(row: Any) -> Person:  # noqa: ANN401 - a row of SQLAlchemy
    return msgspec.convert(values_of(row), Person, strict=False)


def by_id(connection: Connection, person: int) -> Person | None:
    """The person with an id."""
    row = connection.execute(select(*_COLUMNS).where(people.c.id == person)).first()
    return _person(row) if row is not None else None


def by_login(connection: Connection, login: str) -> Person | None:
    """The person with a login, in any case."""
    row = connection.execute(select(*_COLUMNS).where(people.c.login == login.casefold())).first()
    return _person(row) if row is not None else None


def by_oidc_subject(connection: Connection, subject: str) -> Person | None:
    """The person linked with an account of the OpenID provider."""
    row = connection.execute(select(*_COLUMNS).where(people.c.oidc_subject == subject)).first()
    return _person(row) if row is not None else None


def listed(connection: Connection) -> list[Person]:
    """Everyone, by login."""
    return [_person(row) for row in connection.execute(select(*_COLUMNS).order_by(people.c.login))]


def count(connection: Connection) -> int:
    """How many people there are."""
    return int(connection.execute(select(func.count()).select_from(people)).scalar_one())


def administrators(connection: Connection) -> int:
    """How many can log in as administrators."""
    wanted = select(func.count()).where(people.c.is_admin == 1, people.c.is_enabled == 1)
    return int(connection.execute(wanted).scalar_one())


def password_hash(connection: Connection, person: int) -> str:
    """The hash of the password; empty if there is none."""
    found = connection.execute(select(people.c.password).where(people.c.id == person)).scalar()
    return str(found or "")


def add(connection: Connection, login: str, now_ms: int, **values: object) -> int:
    """Add a person; returns the id. Raises IntegrityError if the login exists."""
    row = {"login": login.casefold(), "created_ms": now_ms, **values}
    return int(connection.execute(people.insert().values(**row)).inserted_primary_key[0])  # type: ignore[index]


def change(connection: Connection, person: int, now_ms: int, **values: object) -> None:
    """Change columns. A change of rights, of the password or of access ends all sessions."""
    connection.execute(update(people).where(people.c.id == person).values(**values))
    if values.keys() & {"is_admin", "is_enabled", "password", "oidc_subject"}:
        sessions.end_all(connection, person)
    if values.get("is_enabled") == 0:
        mine = update(tokens).where(tokens.c.person == person, tokens.c.revoked_ms.is_(None))
        connection.execute(mine.values(revoked_ms=now_ms))
