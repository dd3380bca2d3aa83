r"""Message traces: parsing the records that clients write into the trace topic.

A record of the trace topic holds lines that end with \x02; the fields of a line are separated by
\x01, the first names its kind. Clients of other versions add fields at the end.
"""

from dataclasses import dataclass

from tianzhou.admin.messages import FOREVER_MS, Messages, body_of
from tianzhou.names import TRACE_TOPIC

_FIELD, _LINE = "\x01", "\x02"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event in the life of a message."""

    kind: str
    """Pub, SubBefore, SubAfter, EndTransaction or Recall."""
    time_ms: int
    group: str
    client: str
    """Address of the client that wrote it."""
    message_id: str
    topic: str | None = None
    tags: str | None = None
    keys: str | None = None
    cost_ms: int | None = None
    success: bool | None = None
    retries: int | None = None
    detail: str | None = None
    """The state of a transaction, or the code with which a consumer ended."""
    request: str | None = None
    """The same in SubBefore and SubAfter of one try."""


def parse_trace(text: str, client: str) -> list[TraceEvent]:
    """The events of one trace record; malformed lines are skipped."""
    events = (_parse_line(line.split(_FIELD), client) for line in text.split(_LINE))
    return [event for event in events if event is not None]


def _parse_line(fields: list[str], client: str) -> TraceEvent | None:
    kind = fields[0]
    try:
        if kind == "Pub":
            return TraceEvent(
                kind, int(fields[1]), fields[3], client, fields[5], topic=fields[4],
                tags=_known(fields[6]), keys=_known(fields[7]), cost_ms=int(fields[10]),
                success=_true(fields, 13), detail=fields[8],
            )  # fmt: skip
        if kind == "SubBefore":
            return TraceEvent(
                kind, int(fields[1]), fields[3], client, fields[5], keys=_known(fields[7]),
                retries=int(fields[6]), detail=fields[4], request=fields[4],
            )  # fmt: skip
        if kind == "SubAfter":
            code = _known(fields[6]) if len(fields) > 6 else None
            return TraceEvent(
                kind, int(fields[7]) if len(fields) > 7 and fields[7] else 0,
                fields[8] if len(fields) > 8 else "", client, fields[2], keys=_known(fields[5]),
                cost_ms=int(fields[3]), success=fields[4] == "true", detail=code,
                request=fields[1],
            )  # fmt: skip
        if kind == "EndTransaction":
            return TraceEvent(
                kind, int(fields[1]), fields[3], client, fields[5], topic=fields[4],
                tags=_known(fields[6]), keys=_known(fields[7]), detail=fields[11],
            )  # fmt: skip
        if kind == "Recall":
            return TraceEvent(
                kind, int(fields[1]), fields[3], client, fields[5], topic=fields[4],
                success=_true(fields, 6),
            )  # fmt: skip
    except (IndexError, ValueError):
        return None
    return None


def _true(fields: list[str], at: int) -> bool | None:
    return fields[at] == "true" if len(fields) > at else None


def _known(text: str) -> str | None:
    return None if text in ("", "null") else text


async def trace(
    messages: Messages,
    message_id: str,
    *,
    topic: str = TRACE_TOPIC,
    max_count: int = 64,
    begin_ms: int = 0,
    end_ms: int = FOREVER_MS,
) -> list[TraceEvent]:
    """The events of a message from trace records of a time range, by time.

    Raises TargetError if the trace topic does not exist.
    """
    found = await messages.by_key(
        topic, message_id, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms
    )
    events = [
        event
        for record in found.messages
        for event in parse_trace(body_of(record).decode(errors="replace"), record.born_host[0])
        if event.message_id == message_id
    ]
    return sorted(events, key=lambda event: event.time_ms)
