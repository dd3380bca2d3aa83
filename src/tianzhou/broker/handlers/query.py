"""Message queries: by key, by unique key, and by offset message id."""

import asyncio

from tianzhou.broker.handlers.deps import Deps
from tianzhou.errors import RequestError
from tianzhou.protocol import properties
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode, encode
from tianzhou.protocol.headers.pull import (
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)
from tianzhou.protocol.records.record import decode_record
from tianzhou.remoting.connection import Connection

_UNIQUE_COUNT_MAX = 32
_KEYS = "K"
_UNIQUE_KEYS = "U"


async def query_message(deps: Deps, _: Connection, request: Command) -> Command:
    """QUERY_MESSAGE: the records of a topic that have a key, within a range of store times.

    The index and the messages may be old, so they are read in a thread.
    """
    header = decode(QueryMessageRequest, request.fields)
    records = await asyncio.to_thread(_find, deps, header)
    if not records:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND,
            f"no message of topic {header.topic[:80]} with key {header.key[:80]} in that time",
        )
    response = QueryMessageResponse(
        index_last_update_timestamp=header.end_timestamp,
        index_last_update_log_offset=deps.store.readable_log_offset,
    )
    return Command(code=ResponseCode.SUCCESS, ext_fields=encode(response), body=b"".join(records))


def _find(deps: Deps, header: QueryMessageRequest) -> list[memoryview]:
    # A query for a producer's id returns all of its messages, whatever its count is (5.x).
    count = _UNIQUE_COUNT_MAX if header.unique_key else max(header.max_count, 1)
    records = deps.store.query(
        header.topic, header.key, header.begin_timestamp, header.end_timestamp, count
    )
    return [record for record in records if _is_of_kind(record, header)]


def _is_of_kind(record: memoryview, header: QueryMessageRequest) -> bool:
    """Whether the key is of the type that a query of 5.x names; one index holds all types."""
    if not header.index_type:
        return True
    named = decode_record(record, check_crc=False, read_body=False).properties
    if header.index_type == _UNIQUE_KEYS:
        return named.get(properties.UNIQUE_KEY) == header.key
    if header.index_type == _KEYS:
        return header.key in named.get(properties.KEYS, "").split(properties.KEY_SEPARATOR)
    return False


def view_message_by_id(deps: Deps, _: Connection, request: Command) -> Command:
    """VIEW_MESSAGE_BY_ID: the record at a log offset."""
    header = decode(ViewMessageRequest, request.fields)
    record = deps.store.record_at(header.log_offset)
    if record is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"no message begins at log offset {header.log_offset} of this broker",
        )
    return Command(code=ResponseCode.SUCCESS, body=bytes(record))
