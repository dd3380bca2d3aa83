"""A search for messages of one topic, from the query of an address.

    from, to     2026-11-19T20:15 in the zone of the person, or milliseconds; or `last=15m|1h|...`
    tag          paid, or paid || sent
    text         in the body or a property, as it stands there
    sort         old: the oldest first
    show         how many; at most 200
    after        where the page before ended

Bounds: 7 days, 10,000 messages looked at, 200 shown, 5 s. A page says which one ended it.
"""

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from tianzhou.admin.message_search import Cursor, Limits, SearchPage, search_page
from tianzhou.admin.messages import Matches, QueueRef, body_of
from tianzhou.console.text import Text
from tianzhou.console.web import figures
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Invalid
from tianzhou.errors import BodyError
from tianzhou.message import StoredMessage
from tianzhou.protocol.filter import SUBSCRIBE_ALL

DAYS_MAX = 7
RANGE_MAX_MS = DAYS_MAX * 24 * 3600_000
SHOWN, SHOWN_MAX = 50, 200
LOOKED_AT_MAX = 10_000
TIME_S = 5.0
LASTS = {"15m": 900_000, "1h": 3600_000, "6h": 21_600_000, "1d": 86_400_000, "7d": RANGE_MAX_MS}
_CLOCK_SKEW_MS = 60_000
"""Clocks of brokers may be ahead of ours."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXT_MAX = 200
_AFTER_MAX = 32_768
_TIME_DIGITS = 13


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for; what a form shows again."""

    begin_ms: int
    end_ms: int
    last: str
    """One of LASTS; empty: from and to are given."""
    begin: str
    end: str
    """As fields of a form show them; empty: not given."""
    tag: str
    text: str
    newest_first: bool
    shown_max: int
    is_shortened: bool
    """Whether more than 7 days were asked for."""
    goes_on: bool
    """Whether it continues an earlier page."""


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """How far a search has come."""

    looked_at: int
    left: int
    """Messages of the range that were not looked at."""
    stop: str
    """end, shown, looked_at or time: what ended the page."""
    reached_ms: int | None
    next: str
    """`after` of the next page; empty: there is none."""
    failures: tuple[tuple[str, str], ...]
    """Brokers that did not answer, and why."""
    took_ms: int


def wanted_of(ask: Ask, *, last: str = "7d") -> Wanted:
    """The search in a query. Raises Invalid."""
    query, now_ms = ask.query, ask.now_ms
    begin = time_of(query.get("from", ""), ask.zone, "from")
    end = time_of(query.get("to", ""), ask.zone, "to")
    chosen = query.get("last", "")
    if chosen not in LASTS:
        chosen = "" if begin is not None or end is not None else last
    end_ms = now_ms + _CLOCK_SKEW_MS if end is None else end
    if chosen:
        begin_ms, end_ms = now_ms - LASTS[chosen], now_ms + _CLOCK_SKEW_MS
    else:
        begin_ms = end_ms - RANGE_MAX_MS if begin is None else begin
    if begin_ms > end_ms:
        raise Invalid(Text("The search ends before it begins."), "to")
    shortest_ms = end_ms - RANGE_MAX_MS - _CLOCK_SKEW_MS
    is_newest_first = query.get("sort", "") != "old"
    is_shortened = begin_ms < shortest_ms
    if is_shortened and is_newest_first:
        begin_ms = shortest_ms
    elif is_shortened:
        end_ms = begin_ms + RANGE_MAX_MS
    return Wanted(
        begin_ms=begin_ms, end_ms=end_ms, last=chosen,
        begin=field_of(begin, ask.zone) if not chosen else "",
        end=field_of(end, ask.zone) if not chosen else "",
        tag=query.get("tag", "").strip()[:_TEXT_MAX], text=query.get("text", "")[:_TEXT_MAX],
        newest_first=is_newest_first,
        shown_max=SHOWN_MAX if ask.form == "csv" else _shown(query.get("show", "")),
        is_shortened=is_shortened, goes_on="after" in query,
    )  # fmt: skip


async def search(
    ask: Ask, queues: list[QueueRef], wanted: Wanted
) -> tuple[list[tuple[QueueRef, StoredMessage]], Searched]:
    """The messages of one page. Raises TooMany, Invalid, TianzhouError."""
    limits = Limits(shown_max=wanted.shown_max, looked_at_max=LOOKED_AT_MAX, time_s=TIME_S)
    cursor, started_ms = cursor_of(ask.query.get("after", "")), ask.now_ms
    page: SearchPage = await ask.console.searches.run(
        ask.person.login,
        lambda: search_page(
            ask.cluster.admin, queues, wanted.begin_ms, wanted.end_ms,
            tags=wanted.tag or SUBSCRIBE_ALL, matches=containing(wanted.text),
            newest_first=wanted.newest_first, cursor=cursor,
            limits=limits,
        ),
    )  # fmt: skip
    goes_on = page.stop != "end"
    return page.messages, Searched(
        looked_at=page.looked_at, left=page.left, stop=str(page.stop), reached_ms=page.reached_ms,
        next=packed(page.cursor) if goes_on else "", failures=tuple(page.failures.items()),
        took_ms=max(ask.now_ms - started_ms, 0),
    )  # fmt: skip


def containing(text: str) -> Matches | None:
    """A filter: the body or a property contains the text. None for an empty text."""
    if not text:
        return None
    wanted = text.encode()

    def matches(message: StoredMessage) -> bool:
        try:
            body = body_of(message)
        except BodyError:
            body = message.body
        return wanted in body or any(text in value for value in message.properties.values())

    return matches


# -- times -----------------------------------------------------------------------------------------


def time_of(text: str, zone: str, field: str) -> int | None:
    """A time in a query in milliseconds; None if there is none. Raises Invalid."""
    text = text.strip()
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) <= _TIME_DIGITS:
        return int(text)
    try:
        given = datetime.fromisoformat(text)
        if given.tzinfo is None:
            given = given.replace(tzinfo=figures.zone_of(zone))
        # In UTC: a difference within one zone ignores that its clocks are changed.
        return max((given.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1), 0)
    except (ValueError, OverflowError) as e:
        problem = Text("{text} is not a time; write it as 2026-01-31T08:00.", text=text[:40])
        raise Invalid(problem, field) from e


def field_of(ms: int | None, zone: str) -> str:
    """A time as a field of a form has it."""
    if ms is None:
        return ""
    return figures.moment(ms, zone).replace(" ", "T")


def _shown(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        return SHOWN
    return min(max(int(text), 1), SHOWN_MAX)


# -- where a search continues ----------------------------------------------------------------------


def packed(cursor: Cursor) -> str:
    """A cursor as part of an address."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(cursor)).decode().rstrip("=")


def cursor_of(text: str) -> Cursor | None:
    """The cursor in an address; None if there is none. Raises Invalid."""
    if not text:
        return None
    try:
        padded = text[:_AFTER_MAX] + "=" * (-len(text) % 4)
        data = base64.b64decode(padded, altchars=b"-_", validate=True)
        found: Mapping[str, Mapping[int, int]] = msgspec.msgpack.decode(
            data, type=dict[str, dict[int, int]]
        )
    except (binascii.Error, ValueError, msgspec.DecodeError) as e:
        raise Invalid(Text("This address continues no search; start it again."), "after") from e
    return found
