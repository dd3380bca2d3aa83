"""Reads the tables of a master, and decides which of them may be applied (rule R11).

    topics    GET_ALL_TOPIC_CONFIG               in pages
    groups    GET_ALL_SUBSCRIPTIONGROUP_CONFIG   in pages
    offsets   GET_ALL_CONSUMER_OFFSET            from a master of Tianzhou: the changes, in pages
    delays    GET_ALL_DELAY_OFFSET
    modes     GET_ALL_MESSAGE_REQUEST_MODE       RocketMQ 5.x
    timer     GET_TIMER_CHECK_POINT              RocketMQ 5.x

A table may claim what the log of the slave lacks yet: that a delayed message is delivered, or that
a group has consumed. If the slave became the master then, these messages would be lost. So a table
is applied only when the slave's log has reached the end that the master's log had when the table
was read. Until then it waits, and no newer version is requested, which would wait for longer.

Between brokers of Tianzhou a request has the field `knownVersion`, and the response `tableVersion`
and `masterEndOffset`; the body is empty if the versions are equal. Brokers of RocketMQ ignore the
field; their log's end is asked for by GET_BROKER_RUNTIME_INFO after the table was read.

Topics and groups that are created or replaced are also announced on the HA connection, before the
messages that are stored after it (`TableChange`, `frames.CHANGES_STATE`): a slave that acknowledges
a message knows the attributes of its topic.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from tianzhou.errors import BodyError, ReplicationError, RequestError
from tianzhou.protocol import fastjson
from tianzhou.protocol.bodies import Body, decode, encode
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable
from tianzhou.protocol.bodies.pieces import decode_pieces
from tianzhou.protocol.bodies.queues import MessageRequestModeTable
from tianzhou.protocol.bodies.topics import KVTable, TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import Header
from tianzhou.protocol.headers import decode as decode_header
from tianzhou.protocol.headers import encode as encode_header
from tianzhou.protocol.headers.groups import (
    GetAllSubscriptionGroupRequest,
    GetAllSubscriptionGroupResponse,
)
from tianzhou.protocol.headers.ha import TableRequest, TableResponse
from tianzhou.protocol.headers.topics import GetAllTopicConfigRequest, GetAllTopicConfigResponse
from tianzhou.protocol.integers import Int32, Int64
from tianzhou.remoting import scheduler
from tianzhou.remoting.client import Client
from tianzhou.remoting.scheduler import Steps

PAGE_ENTRIES = 1000
"""Topics or groups in a page; decoding it takes about a millisecond."""
_PAGES_MAX = 10_000
"""A master whose table changes all the time is asked again later."""
_TIMEOUT_MS = 30_000
"""As in RocketMQ 5.5 for a page."""
_LOG_END = "commitLogMaxOffset"
INTERVAL_S = 1.0
"""Between two reads of a table of a master of Tianzhou."""
APACHE_INTERVAL_S = 10.0
RETRY_S = 1.0
_SHARE_OF_TIME = 10
"""A table that takes long to read is read so many times more rarely: it costs the master time."""


class Table(StrEnum):
    """The tables that a slave copies, in the order in which they are read."""

    TOPICS = "topics"
    GROUPS = "groups"
    OFFSETS = "offsets"
    DELAYS = "delays"
    MODES = "modes"
    TIMER = "timer"


_CODES = {
    Table.TOPICS: RequestCode.GET_ALL_TOPIC_CONFIG,
    Table.GROUPS: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Table.OFFSETS: RequestCode.GET_ALL_CONSUMER_OFFSET,
    Table.DELAYS: RequestCode.GET_ALL_DELAY_OFFSET,
    Table.MODES: RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    Table.TIMER: RequestCode.GET_TIMER_CHECK_POINT,
}

Content = (
    TopicConfigTable
    | SubscriptionGroupTable
    | ConsumerOffsetTable
    | MessageRequestModeTable
    | dict[str, object]
    | bytes
)
"""By table; the delay offsets are the content of `delayOffset.json`, the timer's are 56 bytes."""


class Master(NamedTuple):
    """Where tables are read."""

    address: str
    is_ours: bool
    """Whether it is a broker of Tianzhou."""


class TableCopy(NamedTuple):
    """A table as it was when the master's log ended at an offset."""

    table: Table
    content: Content
    end_offset: int
    version: str = ""
    """The version to name in the next request; empty if the master is RocketMQ's."""


class TableMissing(RequestError):
    """The master does not have this table: it is too old, or runs without a timer."""


# -- announced changes -----------------------------------------------------------------------------


class TableChange(Body, frozen=True, kw_only=True):
    """A line of a frame: an entry was created or replaced, or something else changed."""

    table: str
    counter: Int64
    """That of the table's version with the change."""
    topic: TopicConfig | None = None
    group: SubscriptionGroupConfig | None = None
    """None in both: the whole table has to be read."""


def encode_change(change: TableChange) -> bytes:
    """A line without its end."""
    return encode(change)


def decode_changes(lines: bytes) -> Iterator[TableChange]:
    """The lines of a frame; those about tables of later versions are skipped.

    Raises ReplicationError.
    """
    for line in lines.splitlines():
        try:
            change = decode(TableChange, line)
        except BodyError as error:
            raise ReplicationError(
                f"the master announced a change that cannot be read: {error}"
            ) from error
        if change.table in (Table.TOPICS, Table.GROUPS):
            yield change


# -- when ------------------------------------------------------------------------------------------


def rest_s(took_s: float) -> float:
    """How long to wait after a read that took so long, if the table is known to have changed."""
    return min(took_s * _SHARE_OF_TIME, APACHE_INTERVAL_S)


def next_read_s(master: Master, took_s: float) -> float:
    """How long to wait after a read that took so long."""
    if not master.is_ours:
        return APACHE_INTERVAL_S
    return max(INTERVAL_S, rest_s(took_s))


class PendingTables:
    """Copies that wait until the slave's log has reached their end; at most one of each table."""

    def __init__(self) -> None:
        self._copies: dict[Table, TableCopy] = {}

    def __contains__(self, table: Table) -> bool:
        return table in self._copies

    def __len__(self) -> int:
        return len(self._copies)

    def put(self, copy: TableCopy) -> None:
        self._copies[copy.table] = copy

    def ready(self, end_log_offset: int) -> list[TableCopy]:
        """The copies that a slave may apply whose log ends here; `remove` them when it has."""
        return [copy for copy in self._copies.values() if copy.end_offset <= end_log_offset]

    def remove(self, copy: TableCopy) -> None:
        """A copy is applied. Another one of the same table stays."""
        if self._copies.get(copy.table) is copy:
            del self._copies[copy.table]

    def end_offset(self, table: Table) -> int | None:
        """The log offset that a table waits for."""
        copy = self._copies.get(table)
        return None if copy is None else copy.end_offset

    def clear(self) -> None:
        self._copies.clear()


# -- reading ---------------------------------------------------------------------------------------


async def read_table(client: Client, master: Master, table: Table, known: str) -> TableCopy | None:
    """A table of a master; None if its version is still the known one.

    Raises TableMissing, and what `Client.request` raises, RequestError, BodyError.
    """
    reader = _Reader(client, master, table)
    content = await _READERS[table](reader, known)
    if content is None:
        return None
    end_offset = reader.end_offset if master.is_ours else await _log_end(client, master)
    return TableCopy(table, content, end_offset, reader.version)


async def _log_end(client: Client, master: Master) -> int:
    command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO)
    response = await client.request(master.address, command, _TIMEOUT_MS)
    _check(response, master)
    text = decode(KVTable, response.body).table.get(_LOG_END, "")
    if not (text.isascii() and text.isdecimal()):
        raise BodyError(f"{master.address}: {_LOG_END} is {text[:80]!r}, not a log offset")
    return int(text)


def _check(response: Command, master: Master) -> None:
    if response.code != ResponseCode.SUCCESS:
        raise RequestError(response.code, f"{master.address}: {response.remark}")


class _Reader:
    """Sends the requests for one table, and collects what the responses say of it."""

    def __init__(self, client: Client, master: Master, table: Table) -> None:
        self._client = client
        self.master = master
        self.table = table
        self.version = ""
        self.end_offset = 0
        self.has_more = False

    async def request(self, known: str, fields: dict[str, str] | None = None) -> Command:
        """A response of the master, which has a body unless the known version is the current."""
        fields = dict(fields or {})
        if self.master.is_ours:
            fields |= encode_header(TableRequest(known_version=known))
        command = Command(code=_CODES[self.table], ext_fields=fields or None)
        response = await self._client.request(self.master.address, command, _TIMEOUT_MS)
        self._check(response)
        return response

    def _check(self, response: Command) -> None:
        address, table = self.master.address, self.table
        is_missing = response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        # A broker of 5.x without a timer.
        is_missing |= table is Table.TIMER and response.code == ResponseCode.SYSTEM_ERROR
        if is_missing:
            raise TableMissing(response.code, f"{address}: no {table}: {response.remark}")
        _check(response, self.master)
        if self.master.is_ours:
            header = decode_header(TableResponse, response.fields)
            if header.table_version is None or header.master_end_offset is None:
                raise BodyError(f"{address}: the {table} have no version and no end of the log")
            self.version = header.table_version
            self.end_offset = header.master_end_offset
            self.has_more = bool(header.has_more)


# -- topics and groups -----------------------------------------------------------------------------

_topic_decoder = msgspec.json.Decoder(dict[str, TopicConfig], strict=False)
_group_decoder = msgspec.json.Decoder(dict[str, SubscriptionGroupConfig], strict=False)
_offset_decoder = msgspec.json.Decoder(dict[str, dict[Int32, Int64]], strict=False)
P = TypeVar("P", TopicConfigTable, SubscriptionGroupTable)


class _Page(NamedTuple, Generic[P]):
    """A page of a table, or all of it."""

    table: P
    entries: dict[str, Any]
    """The same dictionary as in the table."""
    total: int | None
    """How many entries all pages have together; None if the page is the whole table."""


async def _read_pages(
    reader: "_Reader",
    known: str,
    header: Callable[[int, str], Header],
    decode_page: Callable[[Command], Steps[_Page[P]]],
    add: Callable[[P, P], None],
) -> P | None:
    """All pages of a table. `header` gets the number of entries so far, and the version's text."""
    whole: _Page[P] | None = None
    text = ""
    for _ in range(_PAGES_MAX):
        count = 0 if whole is None else len(whole.entries)
        fields = encode_header(header(count, text))
        response = await reader.request(known if whole is None else "", fields)
        if whole is None and known and not response.body:
            return None
        page = await scheduler.finish(decode_page(response))
        # A master whose table has changed begins again with the first page.
        if whole is None or _version(whole.table) != _version(page.table):
            whole = page
        else:
            add(whole.table, page.table)
        if page.total is None or len(whole.entries) >= page.total or not page.entries:
            return whole.table
        text = encode(page.table.data_version).decode()
    raise BodyError(f"{reader.master.address}: the {reader.table} change with every page")


def _version(table: TopicConfigTable | SubscriptionGroupTable) -> tuple[int, int, int]:
    version = table.data_version
    return version.state_version or 0, version.timestamp, version.counter


async def _read_topics(reader: "_Reader", known: str) -> Content | None:
    def header(count: int, version: str) -> Header:
        return GetAllTopicConfigRequest(
            topic_seq=count, data_version=version, max_topic_count=PAGE_ENTRIES
        )

    def add(whole: TopicConfigTable, page: TopicConfigTable) -> None:
        whole.topics.update(page.topics)

    return await _read_pages(reader, known, header, _topic_page, add)


def _topic_page(response: Command) -> Steps[_Page[TopicConfigTable]]:
    topics, rest = yield from decode_pieces(response.body, "topicConfigTable", _topic_decoder)
    table = decode(TopicConfigTable, rest)
    table.topics.update(topics)
    total = decode_header(GetAllTopicConfigResponse, response.fields).total_topic_count
    return _Page(table, table.topics, total)


async def _read_groups(reader: "_Reader", known: str) -> Content | None:
    def header(count: int, version: str) -> Header:
        return GetAllSubscriptionGroupRequest(
            group_seq=count, data_version=version, max_group_count=PAGE_ENTRIES
        )

    def add(whole: SubscriptionGroupTable, page: SubscriptionGroupTable) -> None:
        whole.groups.update(page.groups)
        assert whole.forbidden is not None
        whole.forbidden.update(page.forbidden or {})

    return await _read_pages(reader, known, header, _group_page, add)


def _group_page(response: Command) -> Steps[_Page[SubscriptionGroupTable]]:
    name = "subscriptionGroupTable"
    groups, rest = yield from decode_pieces(response.body, name, _group_decoder)
    table = decode(SubscriptionGroupTable, rest)
    table.groups.update(groups)
    total = decode_header(GetAllSubscriptionGroupResponse, response.fields).total_group_count
    table = msgspec.structs.replace(table, forbidden=table.forbidden or {})
    return _Page(table, table.groups, total)


# -- the other tables ------------------------------------------------------------------------------


async def _read_offsets(reader: "_Reader", known: str) -> Content | None:
    offsets: dict[str, dict[int, int]] = {}
    is_changed = False
    for _ in range(_PAGES_MAX):
        response = await reader.request(known)
        if response.body:
            is_changed = True
            offsets.update(await scheduler.finish(_decode_offsets(response.body)))
        if not reader.has_more:
            break
        known = reader.version
    return ConsumerOffsetTable(offsets=offsets) if is_changed else None


def _decode_offsets(body: bytes) -> Steps[dict[str, dict[int, int]]]:
    offsets, rest = yield from decode_pieces(body, "offsetTable", _offset_decoder)
    yield
    return offsets | decode(ConsumerOffsetTable, rest).offsets


async def _read_delays(reader: "_Reader", known: str) -> Content | None:
    response = await reader.request(known)
    if known and not response.body:
        return None
    content = fastjson.loads(response.body)
    if not fastjson.is_object(content):
        raise BodyError(f"{reader.master.address}: the delay offsets are no JSON object")
    return {str(name): value for name, value in content.items()}


async def _read_modes(reader: "_Reader", known: str) -> Content | None:
    response = await reader.request(known)
    if known and not response.body:
        return None
    return decode(MessageRequestModeTable, response.body)


async def _read_timer(reader: "_Reader", known: str) -> Content | None:
    response = await reader.request(known)
    return response.body or None


_READERS = {
    Table.TOPICS: _read_topics,
    Table.GROUPS: _read_groups,
    Table.OFFSETS: _read_offsets,
    Table.DELAYS: _read_delays,
    Table.MODES: _read_modes,
    Table.TIMER: _read_timer,
}
