"""Rows of jobs: added by changes, run by one worker, shown by pages.

    queued -> running -> done | failed | cancelled
    running -> queued        the console stopped, or the worker's claim ran out

`position` is the kind's own: where a job continues. A worker owns a job until `until_ms`, which
each stored position moves on; no other console writes the job meanwhile.
"""

from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import Connection, Row, and_, delete, func, insert, or_, select, update

from tianzhou.console import tables
from tianzhou.console.text import Text

CLAIM_MS = 30_000
"""After this long without a stored position a job of a killed console is taken over."""
KEPT_MS = 7 * 24 * 3600_000
"""Ended jobs, their results and their output are deleted after this time."""
ENDED = ("done", "failed", "cancelled")
JOBS_MAX = 20
"""Jobs that may wait or run at a time."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job."""

    id: int
    kind: str
    cluster: str
    title: Text
    person: str
    """Login of the person who began it."""
    state: str
    done: int
    """Items done, failed ones included."""
    failed: int
    total: int
    """As far as it is known."""
    is_cancelled: bool
    """Whether a person has asked it to end."""
    reason: str
    """Why it failed; empty if it did not."""
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    output_name: str
    """File name of what can be downloaded; empty: there is nothing."""
    output_bytes: int

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker runs."""

    job: Job
    body: bytes
    position: bytes
    """Empty at the first start."""


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one item of a job."""

    number: int
    subject: str
    is_ok: bool
    detail: str


_table, _items, _output = tables.jobs, tables.job_items, tables.job_output


def _job(row: Row[tuple[object, ...]]) -> Job:
    values = tables.values_of(row)
    key, filled = msgspec.json.decode(values["title"], type=tuple[str, dict[str, str | int]])
    values["title"] = Text(key, **filled)
    values["is_cancelled"] = bool(values["is_cancelled"])
    return Job(**{name: values[name] for name in Job.__struct_fields__})


def add(
    connection: Connection, now_ms: int, *, kind: str, cluster: str, person: str, title: Text,
    body: msgspec.Struct, total: int, output_name: str = "",
) -> int:  # fmt: skip
    """Add a job; returns its id, or 0 if too many wait."""
    waiting = select(func.count()).where(_table.c.state.not_in(ENDED))
    if (connection.execute(waiting).scalar() or 0) >= JOBS_MAX:
        return 0
    values = {
        name: each if isinstance(each, int) else str(each) for name, each in title.values.items()
    }
    added = connection.execute(
        insert(_table).values(
            kind=kind, cluster=cluster, person=person, state="queued", total=total,
            title=msgspec.json.encode((title.key, values)).decode(),
            body=msgspec.json.encode(body).decode(), created_ms=now_ms, output_name=output_name,
        ).returning(_table.c.id)
    )  # fmt: skip
    return int(added.scalar_one())


def by_id(connection: Connection, cluster: str, number: int) -> Job | None:
    """The job of a cluster with this id."""
    wanted = and_(_table.c.id == number, _table.c.cluster == cluster)
    row = connection.execute(select(_table).where(wanted)).first()
    return _job(row) if row is not None else None


def listed(connection: Connection, cluster: str) -> list[Job]:
    """The jobs of a cluster, the newest first."""
    found = select(_table).where(_table.c.cluster == cluster).order_by(_table.c.id.desc())
    return [_job(row) for row in connection.execute(found)]


def items(
    connection: Connection, number: int, *, offset: int, limit: int, failed_only: bool = False
) -> list[Item]:
    """Results of a job, in order."""
    wanted = _items.c.job == number
    if failed_only:
        wanted = and_(wanted, _items.c.is_ok == 0)
    found = select(_items).where(wanted).order_by(_items.c.number).offset(offset).limit(limit)
    return [
        Item(number=row.number, subject=row.subject, is_ok=bool(row.is_ok), detail=row.detail)
        for row in connection.execute(found)
    ]


def item_count(connection: Connection, number: int, *, failed_only: bool = False) -> int:
    """How many results a job has; an export has none."""
    wanted = _items.c.job == number
    if failed_only:
        wanted = and_(wanted, _items.c.is_ok == 0)
    return int(connection.execute(select(func.count()).where(wanted)).scalar() or 0)


def output(connection: Connection, number: int, part: int) -> bytes | None:
    """One part of the output of a job; None behind the last one."""
    wanted = and_(_output.c.job == number, _output.c.number == part)
    content = connection.execute(select(_output.c.content).where(wanted)).scalar_one_or_none()
    return bytes(content) if content is not None else None


def cancel(connection: Connection, number: int, now_ms: int) -> None:
    """Ask a job to end; one that has not begun ends at once."""
    connection.execute(update(_table).where(_table.c.id == number).values(is_cancelled=1))
    waits = and_(_table.c.id == number, _table.c.state == "queued")
    connection.execute(update(_table).where(waits).values(state="cancelled", ended_ms=now_ms))


# -- by the worker ---------------------------------------------------------------------------------


def claim(connection: Connection, holder: str, now_ms: int) -> Claimed | None:
    """Begin the oldest job that waits, or one whose worker is gone; None if another one runs."""
    lost = and_(_table.c.state == "running", _table.c.until_ms <= now_ms)
    running = and_(_table.c.state == "running", _table.c.until_ms > now_ms)
    if connection.execute(select(_table.c.id).where(running)).first() is not None:
        return None
    free = or_(_table.c.state == "queued", lost)
    number = connection.execute(
        select(_table.c.id).where(free).order_by(_table.c.id).limit(1)
    ).scalar_one_or_none()
    if number is None:
        return None
    taken = connection.execute(
        update(_table).where(_table.c.id == number, free).values(
            state="running", holder=holder, until_ms=now_ms + CLAIM_MS,
            started_ms=func.coalesce(_table.c.started_ms, now_ms),
        )
    )  # fmt: skip
    if not taken.rowcount:
        return None
    row = connection.execute(select(_table).where(_table.c.id == number)).one()
    return Claimed(job=_job(row), body=row.body.encode(), position=row.position.encode())


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is."""

    position: bytes
    done: int
    failed: int
    total: int


def store(
    connection: Connection, number: int, holder: str, now_ms: int, progress: Progress,
    results: Iterable[Item] = (), content: bytes = b"",
) -> bool | None:  # fmt: skip
    """Store how far a job is; returns whether it is cancelled, None if another worker has it."""
    mine = and_(_table.c.id == number, _table.c.holder == holder, _table.c.state == "running")
    written = connection.execute(
        update(_table).where(mine).values(
            position=progress.position.decode(), done=progress.done, failed=progress.failed,
            total=progress.total, until_ms=now_ms + CLAIM_MS,
            output_bytes=_table.c.output_bytes + len(content),
        )
    )  # fmt: skip
    if not written.rowcount:
        return None
    rows = [msgspec.structs.asdict(each) | {"job": number} for each in results]
    for row in rows:
        row["is_ok"] = int(row["is_ok"])
    if rows:
        connection.execute(insert(_items), rows)
    if content:
        count = select(func.count()).where(_output.c.job == number)
        part = connection.execute(count).scalar() or 0
        connection.execute(insert(_output).values(job=number, number=part, content=content))
    is_cancelled = select(_table.c.is_cancelled).where(_table.c.id == number)
    return bool(connection.execute(is_cancelled).scalar())


def finish(
    connection: Connection, number: int, holder: str, now_ms: int, state: str, reason: str = ""
) -> bool:
    """End a job; returns whether it was this worker's."""
    mine = and_(_table.c.id == number, _table.c.holder == holder, _table.c.state == "running")
    values = {"state": state, "reason": reason, "ended_ms": now_ms, "holder": "", "until_ms": 0}
    return bool(connection.execute(update(_table).where(mine).values(**values)).rowcount)


def release(connection: Connection, number: int, holder: str) -> None:
    """Let the next start of a console go on with a job."""
    mine = and_(_table.c.id == number, _table.c.holder == holder, _table.c.state == "running")
    connection.execute(update(_table).where(mine).values(state="queued", holder="", until_ms=0))


def release_all(connection: Connection) -> None:
    """Let this console go on with all jobs: it has just locked the database for itself."""
    running = _table.c.state == "running"
    values = {"state": "queued", "holder": "", "until_ms": 0}
    connection.execute(update(_table).where(running).values(**values))


def prune(connection: Connection, now_ms: int) -> Sequence[int]:
    """Delete jobs that ended long ago; returns their ids."""
    over = and_(_table.c.state.in_(ENDED), _table.c.ended_ms < now_ms - KEPT_MS)
    old = list(connection.execute(select(_table.c.id).where(over)).scalars())
    for each in (_items, _output):
        connection.execute(delete(each).where(each.c.job.in_(old)))
    connection.execute(delete(_table).where(_table.c.id.in_(old)))
    return old
