"""The one-time link of the first start, which makes the first administrator."""

import secrets
import string

from sqlalchemy import Connection, delete, select, update

from tianzhou.console.accounts.sessions import hash_of
from tianzhou.console.tables import setup_codes

LENGTH = 24
_CHARACTERS = string.ascii_letters + string.digits


def make(connection: Connection, now_ms: int, life_ms: int) -> str:
    """A new code; earlier ones end."""
    code = "".join(secrets.choice(_CHARACTERS) for _ in range(LENGTH))
    connection.execute(delete(setup_codes))
    connection.execute(setup_codes.insert().values(hash=hash_of(code), until_ms=now_ms + life_ms))
    return code


def is_valid(connection: Connection, code: str, now_ms: int) -> bool:
    """Whether a code can still be used."""
    row = connection.execute(select(setup_codes).where(setup_codes.c.hash == hash_of(code))).first()
    return row is not None and row.used_ms is None and now_ms < row.until_ms


def use(connection: Connection, code: str, now_ms: int) -> bool:
    """Use a code; False if it is not valid, or another request has used it."""
    done = connection.execute(
        update(setup_codes)
        .where(
            setup_codes.c.hash == hash_of(code),
            setup_codes.c.used_ms.is_(None),
            setup_codes.c.until_ms > now_ms,
        )
        .values(used_ms=now_ms)
    )
    return done.rowcount == 1


def is_expired(connection: Connection, now_ms: int) -> bool:
    """Whether the last code was never used, and its time is over."""
    row = connection.execute(select(setup_codes)).first()
    return row is not None and row.used_ms is None and now_ms >= row.until_ms
