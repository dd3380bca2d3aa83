"""The trace of a message as a timeline: sent, stored, consumed by each group in each try."""

import asyncio

import msgspec

from tianzhou.admin import Admin
from tianzhou.admin.message_search import ranges
from tianzhou.admin.trace import TraceEvent
from tianzhou.admin.trace import trace as trace_events
from tianzhou.console.text import Text
from tianzhou.console.views.messages import QUESTION_S, bounded, broker_of, message_of, topic_in
from tianzhou.console.web.ask import Ask
from tianzhou.errors import TargetError, TianzhouError
from tianzhou.message import StoredMessage
from tianzhou.names import TRACE_TOPIC
from tianzhou.protocol.records.message_id import id_of, offset_id_of
from tianzhou.remoting.address import format_address

RECORDS_MAX = 256
"""Trace records of one message that are read."""
_SCALE = 1000
"""Width of the timeline."""
_LEAST = 4


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the timeline."""

    kind: str
    """sent, stored, consumed, transaction or recalled."""
    who: str
    """Group, or broker."""
    client: str
    begin_ms: int
    took_ms: int | None
    """None: it did not end, or its end was not traced."""
    is_ok: bool | None
    retries: int
    detail: str
    at: int
    width: int
    """Where it is drawn, of 1000."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The trace of a message."""

    id: str
    topic: str
    stored_ms: int | None
    spans: tuple[Span, ...]
    notes: tuple[Text, ...]
    """What is missing in the timeline, and why."""
    problem: Text | None
    """Why there is no trace at all."""
    total_ms: int


async def trace(ask: Ask) -> Trace:
    """The events of a message in the order of time, and why some are missing."""
    admin, topic = ask.cluster.admin, topic_in(ask)
    found = await message_of(ask)
    message_id = id_of(found) if found is not None else ask.path["id"]
    problem: Text | None = None
    events: list[TraceEvent] = []
    try:
        events = await bounded(trace_events(admin.messages, message_id, max_count=RECORDS_MAX))
    except TargetError as e:
        problem = Text("Traces could not be read: {why}", why=str(e))
        if "there is no topic" in str(e):
            problem = Text(
                "No broker stores traces: the topic {topic} does not exist. Set "
                "traceTopicEnable=true on one broker, and tracing on in the clients.",
                topic=TRACE_TOPIC,
            )
    except TianzhouError as e:
        problem = Text("Traces could not be read: {why}", why=str(e))
    if not events and problem is None:
        problem = await _why_none(admin, found)
    name = ""
    if found is not None:
        broker = await broker_of(admin, found)
        name = broker.name if broker is not None else format_address(*found.store_host)
    spans = timeline(events, found, name)
    end_ms = max((each.begin_ms + (each.took_ms or 0) for each in spans), default=0)
    return Trace(
        id=offset_id_of(found) if found is not None else message_id,
        topic=found.topic if found is not None else topic,
        stored_ms=found.store_time_ms if found is not None else None,
        spans=spans,
        notes=_notes(events),
        problem=problem,
        total_ms=end_ms - min((each.begin_ms for each in spans), default=0),
    )


async def _why_none(admin: Admin, found: StoredMessage | None) -> Text:
    """Whether the traces are deleted already, or the clients write none."""
    oldest_ms = await _oldest_trace_ms(admin)
    if found is not None and oldest_ms is not None and found.store_time_ms < oldest_ms:
        return Text(
            "The message is older than the oldest trace that the brokers still hold: its traces, "
            "if there were any, have been deleted."
        )
    if oldest_ms is None:
        return Text(
            "The producer does not trace: no broker holds the trace of any message. Turn tracing "
            "on in the clients."
        )
    return Text(
        "The producer and the consumers of this message do not trace, or their traces are not "
        "written yet; the brokers hold traces of its time."
    )


async def _oldest_trace_ms(admin: Admin) -> int | None:
    """Store time of the oldest trace; None: there is none, or the brokers do not answer."""
    oldest: int | None = None
    try:
        async with asyncio.timeout(QUESTION_S):
            queues = await admin.messages.read_queues(TRACE_TOPIC)
            found, _ = await ranges(admin, queues, 0, 2**62)
            for each in found:
                if each.begin < each.end:
                    first = await admin.messages.at(each.queue, each.begin)
                    oldest = min(first.store_time_ms, oldest or first.store_time_ms)
    except (TianzhouError, TimeoutError):
        return oldest
    return oldest


def timeline(
    events: list[TraceEvent], found: StoredMessage | None, broker: str
) -> tuple[Span, ...]:
    """The lines of the timeline, by time; a start without its end is one that did not end."""
    spans: list[Span] = []
    if found is not None:
        spans.append(_span("stored", broker, "", found.store_time_ms, 0, is_ok=True))
    ends = [each for each in events if each.kind == "SubAfter"]
    for event in events:
        if event.kind == "Pub":
            spans.append(
                _span("sent", event.group, event.client, event.time_ms, event.cost_ms,
                      is_ok=event.success, detail=event.detail or "")
            )  # fmt: skip
        elif event.kind == "SubBefore":
            end = _end_of(event, ends)
            if end is not None:
                ends.remove(end)
            spans.append(
                _span(
                    "consumed", event.group, event.client, event.time_ms,
                    end.cost_ms if end is not None else None,
                    is_ok=end.success if end is not None else None,
                    retries=event.retries or 0,
                    detail=(end.detail or "") if end is not None else "",
                )
            )  # fmt: skip
        elif event.kind in ("EndTransaction", "Recall"):
            kind = "transaction" if event.kind == "EndTransaction" else "recalled"
            spans.append(
                _span(kind, event.group, event.client, event.time_ms, 0, is_ok=event.success,
                      detail=event.detail or "")
            )  # fmt: skip
    for end in ends:
        # Its start was not traced, or is not written yet.
        cost_ms = end.cost_ms or 0
        if end.time_ms:
            spans.append(
                _span("consumed", end.group, end.client, end.time_ms - cost_ms, cost_ms,
                      is_ok=end.success, detail=end.detail or "")
            )  # fmt: skip
    # Sent and stored are often of one millisecond.
    return _drawn(sorted(spans, key=lambda each: (each.begin_ms, each.kind != "sent")))


def _end_of(start: TraceEvent, ends: list[TraceEvent]) -> TraceEvent | None:
    for end in ends:
        if end.request == start.request and end.group in ("", start.group):
            return end
    return None


def _span(
    kind: str, who: str, client: str, begin_ms: int, took_ms: int | None, *, is_ok: bool | None,
    retries: int = 0, detail: str = "",
) -> Span:  # fmt: skip
    return Span(
        kind=kind, who=who, client=client, begin_ms=begin_ms, took_ms=took_ms, is_ok=is_ok,
        retries=retries, detail=detail, at=0, width=0,
    )  # fmt: skip


def _drawn(spans: list[Span]) -> tuple[Span, ...]:
    """The lines with their place in the drawing."""
    if not spans:
        return ()
    first = spans[0].begin_ms
    length = max(each.begin_ms + (each.took_ms or 0) for each in spans) - first or 1
    drawn: list[Span] = []
    for each in spans:
        width = max((each.took_ms or 0) * _SCALE // length, _LEAST)
        at = min((each.begin_ms - first) * _SCALE // length, _SCALE - _LEAST)
        drawn.append(msgspec.structs.replace(each, at=at, width=min(width, _SCALE - at)))
    return tuple(drawn)


def _notes(events: list[TraceEvent]) -> tuple[Text, ...]:
    kinds = {each.kind for each in events}
    notes: list[Text] = []
    if events and "Pub" not in kinds:
        notes.append(Text("The producer does not trace: only consumers have written traces."))
    if events and not kinds & {"SubBefore", "SubAfter"}:
        notes.append(
            Text("No consumer has traced this message: it was not delivered, or they do not trace.")
        )
    return tuple(notes)
