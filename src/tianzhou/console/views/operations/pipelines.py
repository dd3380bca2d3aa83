"""Runs of Spark's pipelines, and the newest of their results, from the shared tables."""

import msgspec
from sqlalchemy import Connection, inspect, select

from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing
from tianzhou.monitor import tables

RUNS_MAX = 2000


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a pipeline."""

    id: int
    pipeline: str
    state: str
    started_ms: int
    ended_ms: int | None
    row_count: int
    options: str
    note: str


class Pipelines(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of all pipelines that write to the database of this console."""

    runs: Listing[Run]


async def pipelines(ask: Ask) -> Pipelines:
    """The runs of pipelines, the newest first."""
    runs = await ask.database.read(_runs)
    return Pipelines(
        runs=listing(
            ask,
            runs,
            find=lambda row: (row.pipeline, row.state, row.note),
            sort={
                "started": lambda row: row.started_ms,
                "pipeline": lambda row: row.pipeline,
                "rows": lambda row: row.row_count,
            },
            first="-started",
        )
    )


def _runs(connection: Connection) -> list[Run]:
    if not inspect(connection).has_table(tables.runs.name):
        return []
    newest = select(tables.runs).order_by(tables.runs.c.id.desc()).limit(RUNS_MAX)
    return [
        Run(
            id=row.id,
            pipeline=row.pipeline,
            state=row.state,
            started_ms=row.started_ms,
            ended_ms=row.ended_ms,
            row_count=row.row_count,
            options=row.options,
            note=row.note or "",
        )
        for row in connection.execute(newest)
    ]
