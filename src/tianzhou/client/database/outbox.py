"""Transactional outbox: messages are sent if, and only if, a database transaction commits.

The message is written as a row in the business transaction. A relay sends committed rows, marks
those that were sent and retries the others: at-least-once delivery.

    outbox = Outbox()
    with engine.begin() as transaction:
        transaction.execute(...)                                     # the business
        outbox.put(transaction, Message("orders", b"...", keys="42"))

    async with OutboxRelay(outbox, engine.begin, producer):          # in one process or in many
        ...

    new --sent--> sent        --after keep--> deleted
     |  ^
     |  '-- not sent: retried after 1, 2, 4 ... 60 s
     '--after tries_max--> failed: reported, stays until `retry` or `delete`

A broker may store a message with weaker durability than it is configured for (a late flush or
replica). Such a row is sent again: consumers handle a duplicate better than a lost message. After
`weak_tries_max` attempts it counts as sent and keeps the status as its error, so that a cluster
that lacks a replica for hours does not get every message repeatedly.

Rows of one shard are sent in the order of their ids, one after another. Each message carries the id
of its row as property OUTBOX_ID, by which a consumer can recognise a duplicate.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

import msgspec

from tianzhou.client.database import sql
from tianzhou.client.message import Message, duration_ms, time_of
from tianzhou.client.sending.send_request import SendResult, SendStatus
from tianzhou.clock import Clock
from tianzhou.errors import MessageRefused

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TABLE = "tianzhou_outbox"
OUTBOX_ID = "OUTBOX_ID"
"""The property that names the row of a message."""
NEW, SENT, FAILED = "new", "sent", "failed"
_PAUSE_MAX_MS = 60_000
_PURGE_ROWS = 10_000
_SELECT = "SELECT id, message, body, state, try_count, created_ms, error FROM {table} r "
_IDS = {
    sql.SQLITE: "INTEGER PRIMARY KEY AUTOINCREMENT",
    sql.POSTGRESQL: "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}
_BYTES = {sql.SQLITE: "BLOB", sql.POSTGRESQL: "BYTEA"}
_SKIP_LOCKED = {sql.SQLITE: "", sql.POSTGRESQL: "FOR UPDATE SKIP LOCKED"}


class _Saved(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message without its body, as the row stores it."""

    topic: str
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = {}
    delay_level: int = 0
    delay_ms: int | None = None
    deliver_at: datetime | None = None
    shard: str | None = None
    wait_stored: bool = True
    flag: int = 0


_SAME_FIELDS = ("topic", "tags", "delay_level", "shard", "wait_stored", "flag")
"""Fields that a row stores as the message has them."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One row, with the message that it holds."""

    row_id: int
    message: Message
    state: str
    try_count: int
    created_ms: int
    error: str | None


class Outbox(sql.Table):
    """The outbox table. Every method runs in the transaction of the given connection."""

    def __init__(self, name: str = TABLE, *, clock: Clock | None = None) -> None:
        """Times are those of the database, unless a clock is given. Raises ConfigError."""
        super().__init__(name, clock)

    def create(self, connection: sql.Connection) -> None:
        """Create the table and its index if they are missing."""
        dialect = sql.dialect_of(connection)
        self.run(
            connection,
            f"CREATE TABLE IF NOT EXISTS {{table}} (id {_IDS[dialect]}, "
            f"message TEXT NOT NULL, body {_BYTES[dialect]} NOT NULL, shard VARCHAR(255), "
            "state VARCHAR(8) NOT NULL, try_count INTEGER NOT NULL, due_ms BIGINT NOT NULL, "
            "created_ms BIGINT NOT NULL, sent_ms BIGINT, msg_id VARCHAR(64), error TEXT)",
        )
        index = f"{self.name.replace('.', '_')}_due"
        self.run(connection, f"CREATE INDEX IF NOT EXISTS {index} ON {{table}} (state, due_ms, id)")

    def put(self, connection: sql.Connection, *messages: Message) -> None:
        """Write messages into the caller's transaction; they are sent after its commit."""
        for message in messages:
            if OUTBOX_ID in message.properties:
                raise MessageRefused(f"property {OUTBOX_ID} is reserved for the outbox")
            self.run(
                connection,
                "INSERT INTO {table} (message, body, shard, state, try_count, due_ms, created_ms) "
                "VALUES (:message, :body, :shard, 'new', 0, {now}, {now})",
                message=_save(message),
                body=message.payload,
                shard=message.shard,
            )

    # -- for the relay -----------------------------------------------------------------------------

    def lease(self, connection: sql.Connection, row_max: int, lease_ms: int) -> list[OutboxRow]:
        """Lease the rows to send now: other relays skip them for `lease_ms`."""
        # Of a shard only rows without an unsent one before them, and of those the first is enough.
        result = self.run(
            connection,
            _SELECT  # noqa: S608 - constants
            + "WHERE state = 'new' AND due_ms <= {now} AND (shard IS NULL OR NOT EXISTS "
            "(SELECT 1 FROM {table} b WHERE b.shard = r.shard AND b.id < r.id "
            "AND b.state <> 'sent')) "
            "ORDER BY id LIMIT :row_max " + _SKIP_LOCKED[sql.dialect_of(connection)],
            row_max=row_max,
        )
        rows = [_row(each) for each in result.rows]
        statement = "UPDATE {table} SET due_ms = {now} + :lease_ms WHERE id = :row_id"
        for row in rows:
            self.run(connection, statement, lease_ms=lease_ms, row_id=row.row_id)
        return rows

    def mark_sent(
        self, connection: sql.Connection, row_id: int, msg_id: str, weak_status: str | None = None
    ) -> None:
        """The row was stored; `weak_status` is the send status if it was not SEND_OK."""
        self.run(
            connection,
            "UPDATE {table} SET state = 'sent', sent_ms = {now}, msg_id = :msg_id, "
            "error = :weak_status, try_count = try_count + 1 WHERE id = :row_id",
            msg_id=msg_id,
            weak_status=weak_status,
            row_id=row_id,
        )

    def mark_unsent(
        self, connection: sql.Connection, row: OutboxRow, error: str, tries_max: int
    ) -> bool:
        """The row could not be sent; returns whether it has failed for good."""
        has_failed = row.try_count + 1 >= tries_max
        self.run(
            connection,
            "UPDATE {table} SET state = :state, try_count = :try_count, error = :error, "
            "due_ms = {now} + :pause_ms WHERE id = :row_id",
            state=FAILED if has_failed else NEW,
            try_count=row.try_count + 1,
            error=error[:1000],
            pause_ms=min(1000 << min(row.try_count, 16), _PAUSE_MAX_MS),
            row_id=row.row_id,
        )
        return has_failed

    # -- for operators -----------------------------------------------------------------------------

    def counts(self, connection: sql.Connection) -> dict[str, int]:
        """How many rows are in each state."""
        result = self.run(connection, "SELECT state, COUNT(*) FROM {table} GROUP BY state")
        return {str(state): int(count) for state, count in result.rows}

    def failed(self, connection: sql.Connection, row_max: int = 1000) -> list[OutboxRow]:
        """Rows that failed for good, oldest first."""
        statement = _SELECT + "WHERE state = 'failed' ORDER BY id LIMIT :row_max"
        return [_row(each) for each in self.run(connection, statement, row_max=row_max).rows]

    def retry(self, connection: sql.Connection, row_ids: Iterable[int]) -> int:
        """Reset failed rows to new; returns how many there were."""
        return self._change_failed(
            connection, "UPDATE {table} SET state = 'new', try_count = 0, due_ms = {now}", row_ids
        )

    def delete(self, connection: sql.Connection, row_ids: Iterable[int]) -> int:
        """Delete failed rows, which unblocks their shards; returns how many there were."""
        return self._change_failed(connection, "DELETE FROM {table}", row_ids)

    def _change_failed(
        self, connection: sql.Connection, change: str, row_ids: Iterable[int]
    ) -> int:
        statement = f"{change} WHERE id = :row_id AND state = 'failed'"
        return sum(self.run(connection, statement, row_id=each).row_count for each in row_ids)

    def purge(self, connection: sql.Connection, before_ms: int, row_max: int = _PURGE_ROWS) -> int:
        """Delete rows sent before a time, at most `row_max`; returns how many."""
        result = self.run(
            connection,
            "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} "
            "WHERE state = 'sent' AND sent_ms < :before_ms LIMIT :row_max)",
            before_ms=before_ms,
            row_max=row_max,
        )
        return max(result.row_count, 0)


def _save(message: Message) -> str:
    saved = _Saved(
        keys=(message.keys,) if isinstance(message.keys, str) else tuple(message.keys),
        properties=dict(message.properties),
        delay_ms=None if message.delay is None else duration_ms(message.delay),
        deliver_at=message.deliver_at,
        **{name: getattr(message, name) for name in _SAME_FIELDS},
    )
    return msgspec.json.encode(saved).decode()


def _row(columns: Any) -> OutboxRow:  # noqa: ANN401 - a row of any driver
    row_id, saved_text, body, state, try_count, created_ms, error = columns
    saved = msgspec.json.decode(saved_text, type=_Saved)
    deliver_at = saved.deliver_at
    if saved.delay_ms is not None:
        # A delay counts from the business transaction, not from the send.
        deliver_at = time_of(int(created_ms) + saved.delay_ms)
    message = Message(
        body=bytes(body),
        keys=saved.keys,
        properties=saved.properties | {OUTBOX_ID: str(row_id)},
        deliver_at=deliver_at,
        **{name: getattr(saved, name) for name in _SAME_FIELDS},
    )
    return OutboxRow(int(row_id), message, str(state), int(try_count), int(created_ms), error)


class MessageSender(Protocol):
    """The methods of a producer that the relay uses."""

    async def send(self, message: Message, /) -> SendResult: ...

    async def send_ordered(self, message: Message, /) -> SendResult: ...


Failed = Callable[[OutboxRow, str], None]


class OutboxRelay:
    """Sends the rows of an outbox while it runs (`async with`).

    `begin` is as for `Once`; it is called in a thread, so use a blocking driver. Several relays may
    share a table: each row is leased to one of them. A row fails after `tries_max` attempts:
    `on_failed` gets it with the last error, and the failure is logged. A row stored with weaker
    durability is sent at most `weak_tries_max` times. Sent rows are deleted after `keep`.
    """

    def __init__(
        self,
        outbox: Outbox,
        begin: Callable[[], AbstractContextManager[sql.Connection]],
        producer: MessageSender,
        *,
        interval: timedelta = timedelta(seconds=1),
        batch: int = 100,
        lease: timedelta = timedelta(seconds=30),
        tries_max: int = 16,
        weak_tries_max: int = 3,
        keep: timedelta = timedelta(days=3),
        on_failed: Failed | None = None,
    ) -> None:
        if min(batch, tries_max, weak_tries_max) < 1:
            raise ValueError("batch, tries_max and weak_tries_max are at least 1")
        self._outbox = outbox
        self._begin = begin
        self._producer = producer
        self._interval_s = interval.total_seconds()
        self._batch = batch
        self._lease_ms = duration_ms(lease)
        self._tries_max = tries_max
        self._weak_tries_max = min(weak_tries_max, tries_max)
        self._keep_ms = duration_ms(keep)
        self._on_failed = on_failed
        self._wanted = asyncio.Event()
        self._is_stopping = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._is_stopping = False
        self._task = asyncio.create_task(self._run(), name="outbox relay")
        return self

    async def __aexit__(self, *_: object) -> None:
        # The current round is finished: an interrupted send would be sent twice.
        self._is_stopping = True
        self.wake()
        if self._task is not None:
            await self._task

    def wake(self) -> None:
        """Poll the table now; call it after a commit."""
        self._wanted.set()

    async def run_once(self) -> int:
        """Send one batch of due rows; returns how many there were."""
        rows = await self._transact(self._outbox.lease, self._batch, self._lease_ms)
        # Rows of different shards do not wait for each other.
        await asyncio.gather(*(self._send(row) for row in rows))
        return len(rows)

    async def _run(self) -> None:
        while not self._is_stopping:
            count = 0
            try:
                count = await self.run_once()
                if count == 0:
                    await self._transact(self._purge)
            except Exception:  # a database that is away now may be back later
                log.exception("outbox %s: a round failed", self._outbox.name)
            if count == 0:
                await self._pause()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._interval_s):
                await self._wanted.wait()
        self._wanted.clear()

    async def _send(self, row: OutboxRow) -> None:
        send = self._producer.send if row.message.shard is None else self._producer.send_ordered
        try:
            result = await send(row.message)
        except Exception as e:  # noqa: BLE001 - whatever a producer raises, the row is not sent
            # A message that every broker rejects is not retried.
            tries_max = 1 if isinstance(e, MessageRefused) else self._tries_max
            await self._mark_unsent(row, str(e), tries_max)
            return
        weak_status = (
            None if result.status is SendStatus.SEND_OK else f"stored with {result.status}"
        )
        if weak_status is not None and row.try_count + 1 < self._weak_tries_max:
            await self._mark_unsent(row, weak_status, self._tries_max)
            return
        await self._transact(self._outbox.mark_sent, row.row_id, result.msg_id, weak_status)
        if weak_status is not None:
            log.warning(
                "outbox %s: row %d counts as sent: %s", self._outbox.name, row.row_id, weak_status
            )

    async def _mark_unsent(self, row: OutboxRow, error: str, tries_max: int) -> None:
        if not await self._transact(self._outbox.mark_unsent, row, error, tries_max):
            log.warning("outbox %s: row %d not sent yet: %s", self._outbox.name, row.row_id, error)
            return
        log.error(
            "outbox %s: row %d of topic %s given up after %d attempts: %s",
            self._outbox.name, row.row_id, row.message.topic, row.try_count + 1, error,
        )  # fmt: skip
        if self._on_failed is not None:
            await asyncio.to_thread(self._on_failed, row, error)

    def _purge(self, connection: sql.Connection) -> None:
        self._outbox.purge(connection, self._outbox.now_ms(connection) - self._keep_ms)

    async def _transact(
        self,
        act: Callable[Concatenate[sql.Connection, P], T],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Call `act` in a thread, with a connection in a transaction."""

        def run() -> T:
            with sql.transaction(self._begin) as connection:
                return act(connection, *arguments, **options)

        return await asyncio.to_thread(run)
