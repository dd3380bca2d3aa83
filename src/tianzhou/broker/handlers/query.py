"""Looking for messages: by key, by unique key, and by the place that an offset id names."""

import asyncio
from dataclasses import dataclass

from tianzhou.errors import RequestError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode, encode
from tianzhou.protocol.headers.pull import (
    QueryMessageRequest,
    QueryMessageResponse,
    ViewMessageRequest,
)
from tianzhou.remoting.connection import Connection
from tianzhou.store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class QueryParts:
    """What these requests need of a broker."""

    store: MessageStore


async def query_message(parts: QueryParts, _: Connection, request: Command) -> Command:
    """QUERY_MESSAGE: the records of a topic that have a key, within a range of store times.

    The index and the messages may be old, so they are read beside the event loop.
    """
    header = decode(QueryMessageRequest, request.fields)
    records = await asyncio.to_thread(
        parts.store.query,
        header.topic,
        header.key,
        header.begin_timestamp,
        header.end_timestamp,
        max(header.max_count, 1),
    )
    if not records:
        raise RequestError(
            ResponseCode.QUERY_NOT_FOUND,
            f"no message of topic {header.topic[:80]} with key {header.key[:80]} in that time",
        )
    found = QueryMessageResponse(
        index_last_update_timestamp=header.end_timestamp,
        index_last_update_log_offset=parts.store.end_log_offset,
    )
    return Command(code=ResponseCode.SUCCESS, ext_fields=encode(found), body=b"".join(records))


def view_message_by_id(parts: QueryParts, _: Connection, request: Command) -> Command:
    """VIEW_MESSAGE_BY_ID: the record at one place of the log."""
    header = decode(ViewMessageRequest, request.fields)
    record = parts.store.record_at(header.log_offset)
    if record is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"no message begins at log offset {header.log_offset} of this broker",
        )
    return Command(code=ResponseCode.SUCCESS, body=bytes(record))
