"""Failed logins: five, then a minute's wait that doubles up to an hour; per login and address.

Logins that do not exist are counted, too, so that the answer does not tell which ones do.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, delete, select

from tianzhou.console.accounts.sessions import hash_of
from tianzhou.console.tables import failures
from tianzhou.monitor.database import upsert

FREE = 5
WAIT_MS = 60_000
WAIT_MS_MAX = 3600_000
FORGOTTEN_MS = 24 * 3600_000


def subjects_of(login: str, ip: str) -> tuple[str, str]:
    """What failures are counted by."""
    return hash_of(f"login:{login.casefold()}"), hash_of(f"ip:{ip}")


def locked_until_ms(connection: Connection, subjects: Iterable[str], now_ms: int) -> int | None:
    """Until when logins are refused; None if they are not."""
    wanted = select(failures.c.locked_until_ms).where(failures.c.subject.in_(list(subjects)))
    until = max(connection.execute(wanted).scalars().all(), default=0)
    return until if until > now_ms else None


def record(connection: Connection, subjects: Iterable[str], now_ms: int) -> None:
    """Count a failure."""
    connection.execute(delete(failures).where(failures.c.last_ms < now_ms - FORGOTTEN_MS))
    for subject in subjects:
        wanted = select(failures.c.count).where(failures.c.subject == subject)
        count = (connection.execute(wanted).scalar() or 0) + 1
        wait_ms = min(WAIT_MS << min(count - FREE, 10), WAIT_MS_MAX) if count >= FREE else 0
        row = {
            "subject": subject, "count": count, "last_ms": now_ms,
            "locked_until_ms": now_ms + wait_ms,
        }  # fmt: skip
        upsert(connection, failures, [row])


def forget(connection: Connection, subjects: Iterable[str]) -> None:
    """After a login: failures start at zero again."""
    connection.execute(delete(failures).where(failures.c.subject.in_(list(subjects))))
