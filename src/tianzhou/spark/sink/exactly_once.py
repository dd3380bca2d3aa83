"""Exactly-once writes: a ledger of batches in a database, and the commit of their half messages.

    tasks     send half messages, invisible to consumers    undecided
    driver    inserts (query, batch) with its halves        decided: the batch must become visible
    driver    commits each half message at its broker       visible
    driver    marks the batch                               done

A crash before the insert leaves half messages that are never committed. A crash after it leaves a
decided batch, which the next commit of the query finishes first. Spark repeats a batch that it does
not know to be committed; the row shows that it is, and the repeated half messages are rolled back.

A commit without a response may have succeeded. Apache's brokers execute a second commit, too, which
would duplicate the message, so a retry first queries the topic for the id of the message.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from typing import NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    update,
)

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.hub import Hub
from tianzhou.client.connection.shared_hubs import acquire
from tianzhou.clock import wall_ms
from tianzhou.errors import RemotingError, RouteNotFound, TianzhouError
from tianzhou.monitor import database
from tianzhou.protocol import headers, sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.pull import QueryMessageRequest
from tianzhou.protocol.headers.send import EndTransactionRequest
from tianzhou.protocol.records.message_id import id_of
from tianzhou.protocol.records.record import decode_records
from tianzhou.spark.sink.options import SinkOptions
from tianzhou.spark.sink.tasks import Half, retry

log = logging.getLogger(__name__)

DECIDED, DONE = "decided", "done"
_HALVES_A_ROW = 10_000
_ENDS_MAX = 64
_TIME_MAX_MS = (1 << 63) - 1
_LOST_RESPONSE_DELAY_S = 1.0
"""Wait after a lost response: the broker finishes the request and indexes the message."""


metadata = MetaData()

versions = Table("tianzhou_sink_schema", metadata, Column("version", Integer, primary_key=True))

sink_batches = Table(
    "tianzhou_sink_batches",
    metadata,
    Column("query", String(200), primary_key=True),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    # "decided": its messages must become visible; "done": they are visible.
    Column("state", String(8), nullable=False),
    Column("decided_ms", BigInteger, nullable=False),
)

sink_halves = Table(
    "tianzhou_sink_halves",
    metadata,
    Column("query", String(200), primary_key=True),
    Column("batch", BigInteger, primary_key=True, autoincrement=False),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("halves", LargeBinary, nullable=False),
)


class Batch(NamedTuple):
    """A batch of a query."""

    query: str
    batch: int


# -- ledger ----------------------------------------------------------------------------------------


class Ledger:
    """The tables of batches and half messages. Every method is one transaction."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError."""
        self._engine: Engine = database.open_database(url, metadata, versions)

    def close(self) -> None:
        self._engine.dispose()

    def decide(self, batch: Batch, halves: list[Half]) -> bool:
        """Record that a batch must become visible; False if that was decided before."""
        with self._engine.begin() as connection:
            row = batch._asdict() | {"state": DECIDED, "decided_ms": wall_ms()}
            if not database.insert_new(connection, sink_batches, row):
                return False
            for part, start in enumerate(range(0, len(halves), _HALVES_A_ROW)):
                packed = msgspec.msgpack.encode(halves[start : start + _HALVES_A_ROW])
                more = {"part": part, "halves": packed}
                database.insert_new(connection, sink_halves, batch._asdict() | more)
        return True

    def is_decided(self, batch: Batch) -> bool:
        """Whether a batch is decided or done."""
        with self._engine.connect() as connection:
            return bool(database.rows_of(connection, sink_batches, **batch._asdict()))

    def unfinished(self, query: str) -> list[tuple[Batch, list[Half]]]:
        """Decided batches of a query that may not be visible yet, the oldest first."""
        with self._engine.connect() as connection:
            decided = database.rows_of(connection, sink_batches, query=query, state=DECIDED)
            batches = sorted(Batch(query, row.batch) for row in decided)
            return [(batch, _halves(connection, batch)) for batch in batches]

    def finish(self, batch: Batch) -> None:
        """Record that a batch is visible, and delete its half messages from the ledger."""
        with self._engine.begin() as connection:
            done = update(sink_batches).where(_rows_of(sink_batches, batch)).values(state=DONE)
            connection.execute(done)
            connection.execute(delete(sink_halves).where(_rows_of(sink_halves, batch)))


def _halves(connection: Connection, batch: Batch) -> list[Half]:
    rows = database.rows_of(connection, sink_halves, **batch._asdict())
    decode = msgspec.msgpack.Decoder(list[Half]).decode
    return [half for row in rows for half in decode(row.halves)]


def _rows_of(table: Table, batch: Batch) -> ColumnElement[bool]:
    return (table.c.query == batch.query) & (table.c.batch == batch.batch)


# -- commit and abort, on the driver ---------------------------------------------------------------


def commit(batch: Batch, halves: list[Half], options: SinkOptions) -> bool:
    """Make a batch visible; False if it was decided before and these halves are a repetition.

    Raises TianzhouError if brokers are unavailable; a repeated call resumes where it ended.
    """
    with closing(Ledger(options.ledger)) as ledger:
        for before, left in ledger.unfinished(batch.query):
            log.warning(
                "query %s: batch %d was decided and not finished, checking its %d messages",
                before.query, before.batch, len(left),
            )  # fmt: skip
            asyncio.run(_end(left, options, _commit_if_not_visible))
            ledger.finish(before)
        if not ledger.decide(batch, halves):
            log.warning("query %s: batch %d was repeated by Spark and is dropped", *batch)
            roll_back(halves, options)
            return False
        asyncio.run(_end(halves, options, _commit))
        ledger.finish(batch)
    return True


def abort(batch: Batch, halves: list[Half], options: SinkOptions) -> None:
    """Roll back the half messages of a failed batch.

    Spark also aborts a batch whose commit failed. If that was after the decision, the half messages
    are retained: the next commit finishes them.
    """
    with closing(Ledger(options.ledger)) as ledger:
        decided = ledger.is_decided(batch)
    if not decided:
        roll_back(halves, options)


def roll_back(halves: list[Half], options: SinkOptions) -> None:
    """Roll back half messages. A failure is logged only: they never become visible anyway."""
    try:
        asyncio.run(_end(halves, options, _roll_back))
    except TianzhouError as e:
        log.warning(
            "%d half messages not rolled back, brokers will discard them: %s", len(halves), e
        )


_End = Callable[[Hub, SinkOptions, Half], Awaitable[None]]


async def _end(halves: Iterable[Half], options: SinkOptions, end: _End) -> None:
    hub = acquire(options.client_settings())
    waiting = iter(halves)

    async def work() -> None:
        for half in waiting:
            await end(hub, options, half)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_ENDS_MAX):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        await hub.release()


async def _commit(hub: Hub, options: SinkOptions, half: Half) -> None:
    try:
        await _end_transaction(hub, options, half, sysflag.TRANSACTION_COMMIT)
    except (RemotingError, RouteNotFound):
        await asyncio.sleep(_LOST_RESPONSE_DELAY_S)
        await _commit_if_not_visible(hub, options, half)


async def _commit_if_not_visible(hub: Hub, options: SinkOptions, half: Half) -> None:
    async def once() -> None:
        try:
            if not await _is_visible(hub, options, half):
                await _end_transaction(hub, options, half, sysflag.TRANSACTION_COMMIT)
        except (RemotingError, RouteNotFound):
            await asyncio.sleep(_LOST_RESPONSE_DELAY_S)
            raise

    await retry(once, options.retry_for)


async def _roll_back(hub: Hub, options: SinkOptions, half: Half) -> None:
    await _end_transaction(hub, options, half, sysflag.TRANSACTION_ROLLBACK)


async def _is_visible(hub: Hub, options: SinkOptions, half: Half) -> bool:
    """Whether the message of a half is in its topic, queried at the broker of the half."""
    header = QueryMessageRequest(
        topic=half.topic, key=half.msg_id, max_count=32, begin_timestamp=0,
        end_timestamp=_TIME_MAX_MS, unique_key=True,
    )  # fmt: skip
    command = Command(code=RequestCode.QUERY_MESSAGE, ext_fields=headers.encode(header))
    address = await _address(hub, half)
    response = await hub.request(address, command, options.request_timeout)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return False
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(response, f"topic {half.topic}: query of message {half.msg_id}")
    return any(id_of(message) == half.msg_id for message in decode_records(response.body))


async def _address(hub: Hub, half: Half) -> str:
    # The address of the broker may have changed since the half was stored.
    for refresh in (hub.routes.cached(half.topic) is None, True):
        await hub.routes.get(half.topic, refresh=refresh)
        address = hub.routes.master_address(half.broker_name)
        if address is not None:
            return address
    raise RouteNotFound(f"topic {half.topic}: broker {half.broker_name} has no master now")


async def _end_transaction(hub: Hub, options: SinkOptions, half: Half, state: int) -> None:
    """Send END_TRANSACTION and await the response. Raises BrokerError, RemotingError."""
    header = EndTransactionRequest(
        topic=half.topic,
        producer_group=options.group,
        queue_offset=half.queue_offset,
        log_offset=half.log_offset,
        commit_or_rollback=state,
        from_transaction_check=False,
        msg_id=half.msg_id,
        transaction_id=half.transaction_id,
        target_broker=half.broker_name,
    )
    command = Command(code=RequestCode.END_TRANSACTION, ext_fields=headers.encode(header))
    try:
        await hub.call(
            await _address(hub, half),
            command,
            options.request_timeout,
            subject=f"topic {half.topic}: the end of transaction {half.msg_id}",
        )
    except RemotingError:
        hub.routes.refresh_in_background(half.topic)
        raise
