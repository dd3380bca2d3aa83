"""For programs: health, metrics, and the description of the API."""

from starlette.responses import Response

from tianzhou.console.web import responses
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.openapi import description
from tianzhou.errors import DatabaseUnavailable

_FIRST_ROUND_MS = 180_000
"""After the start the first round is waited for."""


async def healthz(ask: Ask) -> Response:
    """200 if the database answers and no cluster's snapshot is older than three intervals.

    Strangers learn nothing else.
    """
    problems = await _problems(ask)
    status = 503 if problems else 200
    if ask.caller.person is None:
        return Response("failing\n" if problems else "ok\n", status, media_type="text/plain")
    text = "".join(f"{each}\n" for each in problems) or "ok\n"
    return Response(text, status, media_type="text/plain")


async def _problems(ask: Ask) -> list[str]:
    try:
        await ask.database.read(lambda each: each.exec_driver_sql("SELECT 1"))
    except DatabaseUnavailable as e:
        return [str(e)]
    begun_ms = ask.now_ms - ask.console.started_ms
    return [
        f"cluster {each.name}: no round for three intervals"
        for each in ask.console.clusters.values()
        if each.collector is not None
        and not each.collector.is_fresh
        and (each.snapshot is not None or begun_ms > _FIRST_ROUND_MS)
    ]


async def metrics(ask: Ask) -> Response:
    """The console's own metrics."""
    text = ask.console.metrics.text(
        {
            each.name: (each.snapshot, each.collector is not None and each.collector.is_fresh)
            for each in ask.console.clusters.values()
        }
    )
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def openapi(ask: Ask) -> Response:
    """The description of all routes."""
    document = description(ask.console.routes, ask.console.settings.root_path)
    return Response(responses.encode(document), media_type="application/json")
