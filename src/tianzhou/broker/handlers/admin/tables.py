"""The tables of a master, as its slaves copy them: topics, groups, offsets, modes, the timer.

Slaves of RocketMQ ask every few seconds for all of each table; from 5.5 on they read topics and
groups in pages. Slaves of Tianzhou send the version that they have, and get an empty body if it is
still the current one, or only the offsets that have changed since (`tianzhou/ha/tables.py`). They
also get the end of the log, and apply a table only when they have the log up to there: a table must
not claim what a slave lacks, such as a delivered message. With automatic failover they get it only
when the log is confirmed up to there (rule R11): what a table claims is then in the log of every
later master.
"""

from collections.abc import Awaitable, Callable
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec

from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.tables.saver import encode_table_steps
from tianzhou.broker.tables.versioned import same_version, version_text
from tianzhou.errors import RequestError
from tianzhou.protocol.bodies import decode_request, encode_steps
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable
from tianzhou.protocol.bodies.stats import TimerMetricsTable
from tianzhou.protocol.bodies.topics import DataVersion
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode, encode
from tianzhou.protocol.headers.groups import (
    GetAllSubscriptionGroupRequest,
    GetAllSubscriptionGroupResponse,
)
from tianzhou.protocol.headers.ha import TableRequest, TableResponse
from tianzhou.protocol.headers.topics import GetAllTopicConfigRequest, GetAllTopicConfigResponse
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps, one_step, sliced

V = TypeVar("V")

PAGE_ENTRIES_MAX = 2000
"""Topics or groups in a page at most; the default of splitMetadataSize in 5.5."""
OFFSETS_PER_RESPONSE = 10_000
"""Offsets in one response to a slave of ours; another follows."""


_CONFIRMED_S = 5.0
"""How long a table waits for the confirm offset; then the slave asks again."""
_END_FIELD = "masterEndOffset"

Handler = Callable[[Deps, Connection, Command], Steps[Command]]
AsyncHandler = Callable[[Deps, Connection, Command], Command | Awaitable[Command]]


def _handed_out(handle: Handler) -> AsyncHandler:
    """A handler that hands a table out when it claims nothing that a switch can remove."""
    start = sliced(handle)

    def answer(
        deps: Deps, connection: Connection, request: Command
    ) -> Command | Awaitable[Command]:
        answered = start(deps, connection, request)
        return _confirmed(deps, answered) if deps.store.shows_confirmed else answered

    answer.__doc__ = handle.__doc__
    return answer


async def _confirmed(deps: Deps, answered: Command | Awaitable[Command]) -> Command:
    response = answered if isinstance(answered, Command) else await answered
    # Only slaves of ours can become the master; others get no end of the log.
    end = int((response.ext_fields or {}).get(_END_FIELD, "0"))
    if not await deps.durability.is_confirmed(end, _CONFIRMED_S):
        raise RequestError(
            ResponseCode.SYSTEM_BUSY,
            f"the log is not confirmed up to {end} yet, where it ended when the table was read: "
            "in-sync replicas are missing or slow; ask again",
        )
    return response


def _table(
    deps: Deps,
    request: Command,
    version: str,
    encoded: Callable[[], Steps[bytes]],
    fields: dict[str, str] | None = None,
) -> Steps[Command]:
    """The response with a table; without a body for a slave of ours that has this version."""
    header = decode(TableRequest, request.fields)
    body = b"" if header.known_version == version else (yield from encoded())
    response = Command(code=ResponseCode.SUCCESS, ext_fields=fields, body=body)
    if header.known_version is not None:
        response.ext_fields = (fields or {}) | encode(_copied(deps, version))
    return response


def _copied(deps: Deps, version: str, *, has_more: bool | None = None) -> TableResponse:
    """To be called after the table was read: what happened before is below the end of the log."""
    return TableResponse(
        table_version=version, master_end_offset=deps.store.end_log_offset, has_more=has_more
    )


# -- topics and groups -----------------------------------------------------------------------------


class _PageRequest(NamedTuple):
    """The fields of a request for a page."""

    before: int | None
    count_max: int | None
    data_version: str | None

    @property
    def is_for_all(self) -> bool:
        """Brokers before 5.5 have no pages."""
        return self.before is None and self.count_max is None and self.data_version is None


def _page(table: dict[str, V], version: DataVersion, request: _PageRequest) -> dict[str, V]:
    """The page of a table; the first one if the table has changed since the last."""
    start = max(request.before or 0, 0)
    if not request.data_version or not same_version(
        decode_request(DataVersion, request.data_version.encode()), version
    ):
        start = 0
    count = max(min(request.count_max or PAGE_ENTRIES_MAX, PAGE_ENTRIES_MAX), 1)
    if start + count == len(table) - 1:
        count += 1  # slaves of 5.5.0 stop when one entry is missing
    return dict(islice(table.items(), start, start + count))


@_handed_out
def get_all_topics(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_ALL_TOPIC_CONFIG."""
    header = decode(GetAllTopicConfigRequest, request.fields)
    asked = _PageRequest(header.topic_seq, header.max_topic_count, header.data_version)
    table, fields = deps.topics.as_body(), None
    if not asked.is_for_all:
        fields = encode(GetAllTopicConfigResponse(total_topic_count=len(table.topics)))
        page = _page(table.topics, table.data_version, asked)
        table = msgspec.structs.replace(table, topics=page)
    version = version_text(table.data_version)
    return (yield from _table(deps, request, version, lambda: encode_steps(table), fields))


@_handed_out
def get_all_groups(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    header = decode(GetAllSubscriptionGroupRequest, request.fields)
    asked = _PageRequest(header.group_seq, header.max_group_count, header.data_version)
    table, fields = deps.groups.as_body(), None
    if not asked.is_for_all:
        fields = encode(GetAllSubscriptionGroupResponse(total_group_count=len(table.groups)))
        page = _page(table.groups, table.data_version, asked)
        forbidden = {
            group: bits
            for group, bits in (table.forbidden or {}).items()
            # Those of groups that do not exist are on every page.
            if group in page or group not in table.groups
        }
        table = msgspec.structs.replace(table, groups=page, forbidden=forbidden or None)
    version = version_text(table.data_version)
    return (yield from _table(deps, request, version, lambda: encode_steps(table), fields))


# -- offsets and modes -----------------------------------------------------------------------------


@_handed_out
def get_all_offsets(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_ALL_CONSUMER_OFFSET; slaves of ours get the changes since the version that they have."""
    header = decode(TableRequest, request.fields)
    if header.known_version is None:
        # Slaves of 5.x fail without a version.
        version = DataVersion(
            timestamp=deps.stats.started_ms, counter=deps.offsets.change_count, state_version=0
        )
        table = ConsumerOffsetTable(offsets=deps.offsets.by_key, data_version=version)
        return Command(code=ResponseCode.SUCCESS, body=(yield from encode_steps(table)))
    known = _known_change(header.known_version, deps.stats.started_ms)
    changes = yield from deps.offsets.changes_after(known or 0, OFFSETS_PER_RESPONSE)
    body = b""
    if known is None or changes.offsets:
        yield
        # With integer keys in quotes, which is faster on both sides.
        body = msgspec.json.encode(ConsumerOffsetTable(offsets=changes.offsets))
    version_now = _text_of_change(deps.stats.started_ms, changes.last)
    copied = _copied(deps, version_now, has_more=changes.has_more)
    return Command(code=ResponseCode.SUCCESS, ext_fields=encode(copied), body=body)


def _text_of_change(started_ms: int, change: int) -> str:
    return f"{started_ms}.{change}"


def _known_change(text: str, started_ms: int) -> int | None:
    """The number of the last change that a slave has; None if it is of another run."""
    run, _, change = text.partition(".")
    if run != str(started_ms) or not (change.isascii() and change.isdecimal()):
        return None
    return int(change[:19])


@_handed_out
def get_all_modes(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_ALL_MESSAGE_REQUEST_MODE."""
    version = _text_of_change(deps.stats.started_ms, deps.modes.change_count)
    return (yield from _table(deps, request, version, lambda: encode_steps(deps.modes.as_body())))


# -- delayed and timed messages --------------------------------------------------------------------


@_handed_out
def get_delay_offsets(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_ALL_DELAY_OFFSET."""
    delays = deps.scheduled.delays
    version = version_text(delays.data_version)
    return (yield from _table(deps, request, version, lambda: encode_table_steps(delays.as_file())))


@_handed_out
def get_timer_check(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_TIMER_CHECK_POINT."""
    check = deps.scheduled.timer_checkpoint()
    if check is None:
        raise _no_timer("The checkpoint is null")
    return (yield from _table(deps, request, check.hex(), lambda: one_step(lambda: check)))


def get_timer_metrics(deps: Deps, _: Connection, __: Command) -> Command:
    """GET_TIMER_METRICS (5.x): no topic, because timed messages are counted all together."""
    if deps.scheduled.timer_checkpoint() is None:
        raise _no_timer("The timer message store is null")
    version = DataVersion(timestamp=deps.stats.started_ms, state_version=0)
    body = msgspec.json.encode(TimerMetricsTable(data_version=version))
    return Command(code=ResponseCode.SUCCESS, body=body)


def _no_timer(text: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, f"{text}, timerWheelEnable is false")
