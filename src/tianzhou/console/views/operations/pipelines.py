"""Runs of Spark's pipelines and their results, from the shared tables of the database."""

import msgspec
from sqlalchemy import Connection, Table, inspect, select

from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing
from tianzhou.monitor import tables

ROWS_MAX = 2000
"""The newest rows of a table that are read."""

RESULTS: dict[str, tuple[Table, str]] = {
    "latency": (tables.trace_latency, "day"),
    "slow": (tables.slow_messages, "day"),
    "duplicates": (tables.duplicates, "day"),
    "reconciliation": (tables.reconciliation, "found_ms"),
}
"""By the name of the tab: the table, and the column of its newest rows."""


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


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a result; the columns are those of the table."""

    cluster: str
    values: dict[str, str | int | float | None]


class Pipelines(msgspec.Struct, frozen=True, kw_only=True):
    """The pipelines that write to the database of this console."""

    tab: str
    """runs, or the name of a result."""
    columns: tuple[str, ...]
    """Of the result."""
    runs: Listing[Run]
    results: Listing[Result]


async def pipelines(ask: Ask) -> Pipelines:
    """The runs of pipelines, or one of their results, the newest first."""
    tab = ask.query.get("tab", "runs")
    if tab not in RESULTS:
        tab = "runs"
    runs = await ask.database.read(_runs) if tab == "runs" else []
    results: list[Result] = []
    columns: tuple[str, ...] = ()
    if tab != "runs":
        table, newest = RESULTS[tab]
        columns = tuple(each.name for each in table.columns if each.name != "cluster")
        results = await ask.database.read(lambda each: _results(each, table, newest))
    return Pipelines(
        tab=tab,
        columns=columns,
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
        ),
        results=listing(
            ask,
            results,
            find=lambda row: (row.cluster, *map(str, row.values.values())),
            sort={"cluster": lambda row: row.cluster},
            first="cluster",
        ),
    )


def _runs(connection: Connection) -> list[Run]:
    if not inspect(connection).has_table(tables.runs.name):
        return []
    newest = select(tables.runs).order_by(tables.runs.c.id.desc()).limit(ROWS_MAX)
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


def _results(connection: Connection, table: Table, newest: str) -> list[Result]:
    if not inspect(connection).has_table(table.name):
        return []
    rows = connection.execute(select(table).order_by(table.c[newest].desc()).limit(ROWS_MAX))
    results: list[Result] = []
    for row in rows.mappings():
        values = {str(name): value for name, value in row.items()}
        results.append(Result(cluster=str(values.pop("cluster")), values=values))
    return results
