"""The transactional producer: a message is delivered if, and only if, local work succeeds.

    half message sent  ->  local work  ->  commit or rollback
                                       ->  unknown: the broker sends a check, and any producer of
                                           the group answers it with its listener's `check`

The half message is stored where consumers do not see it. The commit or rollback is sent oneway; if
it is lost, or the program dies, the broker's check decides. So `check` must be able to derive the
outcome of the local work from what that work left behind.

The listener's methods may be `async def`, or plain functions, which run in a thread.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, Unpack, cast

from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.observe import trace
from tianzhou.client.producer.producer import Producer
from tianzhou.client.sending.send_request import SendResult, SendStatus
from tianzhou.client.sending.settings import ProducerOptions
from tianzhou.client.settings import ClientSettings
from tianzhou.clock import wall_ms
from tianzhou.errors import MessageRefused, RecordError, RemotingError, RouteNotFound, SendError
from tianzhou.protocol import headers, properties, sysflag
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.send import CheckTransactionStateRequest, EndTransactionRequest
from tianzhou.protocol.records.message_id import decode_offset_id
from tianzhou.protocol.records.record import decode_record
from tianzhou.remoting.connection import Connection

log = logging.getLogger(__name__)


class TransactionState(Enum):
    """The outcome of the local work."""

    COMMIT = sysflag.TRANSACTION_COMMIT
    ROLLBACK = sysflag.TRANSACTION_ROLLBACK
    UNKNOWN = sysflag.TRANSACTION_NONE
    """Not known yet: the broker checks again later."""


StateOrLater = TransactionState | Awaitable[TransactionState]


class TransactionListener(Protocol):
    """The program's part of transactions."""

    def execute(self, message: Message, transaction_id: str) -> StateOrLater:
        """Do the local work; the half message is stored.

        An exception leaves the transaction open: `check` will be called.
        """
        ...

    def check(self, message: ReceivedMessage) -> StateOrLater:
        """Return the outcome of the local work of a message that was sent before."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Where the half message was stored, and the state of its transaction."""

    sent: SendResult
    state: TransactionState


@dataclass(slots=True)
class Transaction:
    """An open transaction, see `TransactionProducer.transaction`."""

    id: str
    sent: SendResult
    state: TransactionState = TransactionState.COMMIT
    """Sent to the broker at the end of the block, unless it raises."""


class TransactionProducer(Producer):
    """A producer whose messages can take part in local transactions."""

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(group, settings=settings, **options)
        self._listener = listener
        self._sender.on_check = self._check

    async def send_in_transaction(
        self, message: Message, /, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Send a half message, call the listener's `execute`, then commit or roll back.

        Raises what `send` raises for the half message; `execute` has not been called then.
        """
        sent = await self._send_half(message, timeout_ms)
        if sent.status is not SendStatus.SEND_OK:
            return TransactionResult(sent, TransactionState.ROLLBACK)
        try:
            state = await _call(self._listener.execute, message, sent.msg_id)
        except Exception:
            log.exception(
                "topic %s, group %s: local work of transaction %s failed, the broker will check",
                message.topic, self._group, sent.msg_id,
            )  # fmt: skip
            state = TransactionState.UNKNOWN
        await self._end(message, sent, state)
        return TransactionResult(sent, state)

    @asynccontextmanager
    async def transaction(
        self, message: Message, /, *, timeout_ms: int | None = None
    ) -> AsyncGenerator[Transaction]:
        """The local work as an `async with` block: its end commits, an exception rolls back.

        Set `state` of the yielded transaction to decide otherwise. Raises SendError if the half
        message is stored with weaker durability; it is rolled back before the block begins.
        """
        sent = await self._send_half(message, timeout_ms)
        if sent.status is not SendStatus.SEND_OK:
            raise SendError(
                f"topic {message.topic}, group {self._group}: the half message is stored with "
                f"status {sent.status}, the transaction is rolled back",
                try_count=1, retriable=True,
            )  # fmt: skip
        transaction = Transaction(sent.msg_id, sent)
        try:
            yield transaction
        except BaseException:
            await self._end(message, sent, TransactionState.ROLLBACK)
            raise
        await self._end(message, sent, transaction.state)

    async def _send_half(self, message: Message, timeout_ms: int | None) -> SendResult:
        """Send a half message; it is rolled back if it is stored with weaker durability."""
        if message.is_delayed:
            raise MessageRefused(f"topic {message.topic}: a transaction cannot be delayed")
        extra = {
            properties.TRANSACTION_PREPARED: "true",
            properties.PRODUCER_GROUP: self._group,
        }
        sent = await self._send(message, self._limit(timeout_ms), extra=extra)
        if sent.status is not SendStatus.SEND_OK:
            await self._end(message, sent, TransactionState.ROLLBACK)
        return sent

    async def _end(self, message: Message, sent: SendResult, state: TransactionState) -> None:
        """Commit or roll back."""
        _, log_offset = decode_offset_id(sent.offset_msg_id)
        queue = sent.queue._replace(topic=self._wire_topic(message.topic))
        limit = self._limit(None)
        header = EndTransactionRequest(
            topic=queue.topic,
            producer_group=self._group,
            queue_offset=sent.queue_offset,
            log_offset=log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=False,
            msg_id=sent.msg_id,
            transaction_id=sent.transaction_id,
            target_broker=queue.broker_name,
        )

        def send(command: Command) -> Awaitable[str]:
            return self._sender.hub.retry_unsent(
                lambda: self._sender.send_oneway(queue, command, limit),
                queue.topic,
                limit.deadline_s,
            )

        await self._send_end(header, message.topic, message.tags, message.keys, send)

    async def _send_end(
        self,
        header: EndTransactionRequest,
        topic: str,
        tags: str | None,
        keys: str | Sequence[str],
        send: Callable[[Command], Awaitable[str]],
    ) -> None:
        """Send the state of a transaction. A failure is logged: the broker will check (again)."""
        command = Command(code=RequestCode.END_TRANSACTION, ext_fields=headers.encode(header))
        try:
            address = await send(command)
        except (RemotingError, RouteNotFound) as error:
            log.warning(
                "topic %s, group %s: transaction %s: state not sent, the broker will check: %s",
                topic, self._group, header.msg_id, error,
            )  # fmt: skip
            return
        if self._tracer is not None:
            group = self._tracer.plain_group
            self._tracer.add(
                trace.transaction_ended(header, group, topic, tags, keys, address, wall_ms())
            )

    # -- checks ------------------------------------------------------------------------------------

    async def _check(self, connection: Connection, request: Command) -> None:
        """CHECK_TRANSACTION_STATE, answered by END_TRANSACTION."""
        header = headers.decode(CheckTransactionStateRequest, request.fields)
        try:
            half = decode_record(request.body)
        except RecordError as error:
            log.warning("group %s: a half message cannot be decoded: %s", self._group, error)
            return
        message = ReceivedMessage(
            half,
            broker_name=header.target_broker or "",
            namespace=self.settings.namespace,
            unpacked_bytes_max=self.settings.unpacked_bytes_max,
        )
        state = await self._state_by_check(message)
        end = EndTransactionRequest(
            topic=half.topic,
            producer_group=self._group,
            queue_offset=header.queue_offset,
            log_offset=header.log_offset,
            commit_or_rollback=state.value,
            from_transaction_check=True,
            msg_id=message.msg_id,
            transaction_id=header.transaction_id,
            target_broker=header.target_broker,
        )

        async def send(command: Command) -> str:
            self._sender.hub.oneway_on(connection, command)
            return connection.peer

        await self._send_end(end, message.topic, message.tags, message.keys, send)

    async def _state_by_check(self, message: ReceivedMessage) -> TransactionState:
        try:
            return await _call(self._listener.check, message)
        except Exception:
            log.exception(
                "topic %s, group %s: the check of transaction %s failed, the broker will repeat it",
                message.topic, self._group, message.msg_id,
            )  # fmt: skip
            return TransactionState.UNKNOWN


async def _call(call: Callable[..., StateOrLater], *arguments: Any) -> TransactionState:  # noqa: ANN401 - the parameters of the listener's method
    """Call a listener's method, in a thread unless it is a coroutine function."""
    if inspect.iscoroutinefunction(call):
        state: object = await cast("Awaitable[object]", call(*arguments))
    else:
        state = await asyncio.to_thread(call, *arguments)
        if inspect.isawaitable(state):
            state = cast("object", await state)
    if isinstance(state, TransactionState):
        return state
    raise TypeError(f"a TransactionState is expected, {state!r} was returned")
