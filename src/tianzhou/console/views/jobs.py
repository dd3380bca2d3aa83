"""Jobs: what runs, how far it is, the result of each item, the output."""

from collections.abc import AsyncIterator
from functools import partial

import msgspec
from sqlalchemy import Connection
from starlette.responses import Response, StreamingResponse

from tianzhou.console.jobs import rows
from tianzhou.console.jobs.rows import Item, Job
from tianzhou.console.text import Text
from tianzhou.console.web import listing as listings
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing
from tianzhou.console.web.refusals import NotFound


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a cluster."""

    jobs: Listing[Job]
    kept_days: int


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """One job."""

    job: Job
    items: Listing[Item]
    failed_only: bool


async def jobs(ask: Ask) -> Jobs:
    """The jobs of a cluster, the newest first."""
    cluster = ask.cluster.name
    everything = await ask.database.read(lambda each: rows.listed(each, cluster))
    return Jobs(
        jobs=listing(
            ask,
            everything,
            find=lambda each: (str(each.title), each.person, each.state),
            sort={
                "created": lambda each: each.created_ms,
                "state": lambda each: each.state,
                "person": lambda each: each.person,
            },
            first="-created",
        ),
        kept_days=rows.KEPT_MS // (24 * 3600_000),
    )


async def job(ask: Ask) -> JobPage:
    """One job: progress, and the result of each item."""
    found = await job_of(ask)
    failed_only = ask.query.get("only") == "failed"
    total = await ask.database.read(
        lambda each: rows.item_count(each, found.id, failed_only=failed_only)
    )
    size = listings.EXPORT_ROWS if ask.form == "csv" else listings.PAGE_ROWS
    number, pages = listings.page_of(ask, total, size)
    items = await ask.database.read(
        lambda each: rows.items(
            each, found.id, offset=(number - 1) * size, limit=size, failed_only=failed_only
        )
    )
    return JobPage(
        job=found, failed_only=failed_only,
        items=listings.cut(
            items, size, matching=total, total=total, page=number, pages=pages, sort="number",
            find="",
        ),
    )  # fmt: skip


async def job_of(ask: Ask) -> Job:
    """The job in the address. Raises NotFound."""
    text, cluster = ask.path["job"], ask.cluster.name
    found = None
    if text.isascii() and text.isdigit() and len(text) < 10:
        found = await ask.database.read(lambda each: rows.by_id(each, cluster, int(text)))
    if found is None:
        raise NotFound(Text("There is no job {id}; ended jobs are deleted after 7 days.", id=text))
    return found


async def job_output(ask: Ask) -> Response:
    """The file that a job has written."""
    found = await job_of(ask)
    if not found.is_ended or not found.output_name or not found.output_bytes:
        raise NotFound(Text("The job {id} has no output yet.", id=found.id))

    async def parts() -> AsyncIterator[bytes]:
        number = 0
        while True:
            part = await ask.database.read(partial(_part, job=found.id, number=number))
            if part is None:
                return
            yield part
            number += 1

    kind = "text/csv" if found.output_name.endswith(".csv") else "text/plain"
    return StreamingResponse(
        parts(),
        media_type=kind,
        headers={
            "Content-Disposition": f'attachment; filename="{found.output_name}"',
            "Content-Length": str(found.output_bytes),
        },
    )


def _part(connection: Connection, *, job: int, number: int) -> bytes | None:
    return rows.output(connection, job, number)
