"""Message trace: messages about messages, as RocketMQ's own clients send them.

    entry := field { \\x01 field } \\x02

Entries are combined into messages to the trace topic, with the ids and keys of the messages
they are about as keys, for tools such as `mqadmin queryMsgTraceById`. Kinds of entries:

    Pub             a message was stored              SubBefore   a handler is about to be called
    EndTransaction  a transaction was ended           SubAfter    it has ended
    Recall          a delayed message was cancelled

Tracing never delays sends and handlers: entries wait in a bounded queue; while it is full, new ones
are dropped and counted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tianzhou.client import namespaces
from tianzhou.client.connection.hub import Hub
from tianzhou.client.connection.retry_policy import RetryRule
from tianzhou.client.identity import unique_ids
from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.sending import send_request
from tianzhou.client.sending.retrying import RetryingSender, TimeLimit
from tianzhou.client.sending.send_request import SendResult, SendStatus
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.client.settings import ClientSettings, settings_from
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.errors import TianzhouError
from tianzhou.protocol import properties
from tianzhou.protocol.headers.send import EndTransactionRequest
from tianzhou.protocol.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tianzhou.remoting.repeated_failures import RepeatedFailures

log = logging.getLogger(__name__)

FIELD_SEPARATOR = "\x01"
ENTRY_SEPARATOR = "\x02"
DEFAULT_REGION = "DefaultRegion"
_JAVA_STATES = {
    TRANSACTION_COMMIT: "COMMIT_MESSAGE",
    TRANSACTION_ROLLBACK: "ROLLBACK_MESSAGE",
    TRANSACTION_NONE: "UNKNOW",
}

_GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
_MESSAGE_BYTES_MAX = 128_000
_ENTRIES_PER_MESSAGE = 20
_WAITING_MAX = 2_048
_PAUSE_S = 0.5
_TIMEOUT_MS = 5_000
_CLOSE_S = 5.0


class TracedKind(IntEnum):
    """Kinds of messages, by RocketMQ's numbers."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAYED = 3


class ConsumeReturn(IntEnum):
    """How the call of a handler ended, by RocketMQ's numbers."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """Text that ends with its separator, and the keys of its message."""

    text: str
    keys: tuple[str, ...]


# -- entries ---------------------------------------------------------------------------------------


def published(
    message: Message,
    result: SendResult,
    *,
    group: str,
    store_host: str,
    began_ms: int,
    cost_ms: int,
    kind: TracedKind = TracedKind.NORMAL,
) -> TraceEntry:
    """A message was stored. `group` is its name without namespace."""
    keys = _keys(message.keys)
    return _entry(
        (
            "Pub", began_ms, result.region_id, group, message.topic, result.msg_id,
            message.tags, keys, store_host, len(message.payload), cost_ms, kind.value,
            result.offset_msg_id, result.status is SendStatus.SEND_OK,
        ),
        result.msg_id,
        keys,
    )  # fmt: skip


def traced_kind(message: Message, sys_flag: int) -> TracedKind:
    """The kind of a message that was sent with this system flag."""
    if sys_flag & TRANSACTION_PREPARED:
        return TracedKind.TRANSACTION_HALF
    return TracedKind.DELAYED if message.is_delayed else TracedKind.NORMAL


def transaction_ended(
    end: EndTransactionRequest,
    group: str,
    topic: str,
    tags: str | None,
    keys: str | Sequence[str],
    store_host: str,
    now_ms: int,
) -> TraceEntry:
    """A transaction was committed, rolled back or left open. Names are without namespace."""
    joined = _keys(keys)
    return _entry(
        (
            "EndTransaction", now_ms, DEFAULT_REGION, group, topic, end.msg_id, tags, joined,
            store_host, TracedKind.TRANSACTION_COMMIT.value, end.transaction_id,
            _JAVA_STATES[end.commit_or_rollback], end.from_transaction_check,
        ),
        end.msg_id,
        joined,
    )  # fmt: skip


def recalled(*, group: str, topic: str, msg_id: str, now_ms: int) -> TraceEntry:
    """A delayed message was cancelled."""
    return _entry(("Recall", now_ms, DEFAULT_REGION, group, topic, msg_id, True), msg_id, None)


def consuming(
    messages: Iterable[ReceivedMessage], *, group: str, request_id: str, now_ms: int
) -> list[TraceEntry]:
    """A handler is about to be called; `request_id` links the entry of its end to this one."""
    return _entries(
        messages,
        lambda message, keys: (
            "SubBefore", now_ms, message.properties.get(properties.MSG_REGION, DEFAULT_REGION),
            group, request_id, message.msg_id, message.reconsume_times, keys,
        ),
    )  # fmt: skip


def consumed(
    messages: Sequence[ReceivedMessage],
    *,
    group: str,
    request_id: str,
    cost_ms: int,
    returned: ConsumeReturn,
    now_ms: int,
) -> list[TraceEntry]:
    """A handler has ended; its time is divided by the number of its messages."""
    each_ms = cost_ms // max(len(messages), 1)
    return _entries(
        messages,
        lambda message, keys: (
            "SubAfter", request_id, message.msg_id, each_ms, returned is ConsumeReturn.SUCCESS,
            keys, returned.value, now_ms, group,
        ),
    )  # fmt: skip


def _entries(
    messages: Iterable[ReceivedMessage],
    fields_of: Callable[[ReceivedMessage, str | None], Iterable[object]],
) -> list[TraceEntry]:
    """The entries of messages; a broker may have switched tracing off for some (TRACE_ON)."""
    return [
        _entry(fields_of(message, keys), message.msg_id, keys)
        for message in messages
        if message.properties.get(properties.TRACE_SWITCH) != "false"
        for keys in (message.properties.get(properties.KEYS),)
    ]


def _entry(fields: Iterable[object], msg_id: str, keys: str | None) -> TraceEntry:
    text = FIELD_SEPARATOR.join(map(_text, fields)) + ENTRY_SEPARATOR
    return TraceEntry(text, (msg_id, *(keys or "").split()))


def _text(value: object) -> str:
    """A field as Java prints it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _keys(keys: str | Sequence[str]) -> str | None:
    return (keys if isinstance(keys, str) else " ".join(keys)) or None


def trace_messages(topic: str, entries: Iterable[TraceEntry]) -> list[Message]:
    """Entries combined into messages of limited size."""
    messages: list[Message] = []
    texts: list[str] = []
    keys: dict[str, None] = {}
    size_bytes = 0
    for entry in entries:
        entry_bytes = len(entry.text.encode()) + sum(len(key) + 1 for key in entry.keys)
        full = size_bytes + entry_bytes > _MESSAGE_BYTES_MAX or len(texts) >= _ENTRIES_PER_MESSAGE
        if texts and full:
            messages.append(Message(topic, "".join(texts), keys=tuple(keys)))
            texts, keys, size_bytes = [], {}, 0
        texts.append(entry.text)
        keys |= dict.fromkeys(entry.keys)
        size_bytes += entry_bytes
    if texts:
        messages.append(Message(topic, "".join(texts), keys=tuple(keys)))
    return messages


# -- sending ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Handling:
    """Messages that a program is handling."""

    _tracer: "Tracer"
    _messages: Sequence[ReceivedMessage]
    _request_id: str
    _began_ms: int
    """By a steady clock."""

    def end(self, returned: ConsumeReturn) -> None:
        """The program has handled them."""
        self._tracer.add(
            *consumed(
                self._messages,
                group=self._tracer.plain_group,
                request_id=self._request_id,
                cost_ms=steady_ms() - self._began_ms,
                returned=returned,
                now_ms=wall_ms(),
            )
        )


class Tracer:
    """Sends the entries of one producer or consumer in the background; a member of its hub."""

    def __init__(self, group: str, kind: str, settings: ClientSettings) -> None:
        """`group` is without namespace, `kind` PRODUCE or CONSUME."""
        self.plain_group = namespaces.strip(settings.namespace, group)
        own = {"trace": False, "vip_channel": False, "send_timeout_ms": _TIMEOUT_MS}
        self._settings = settings_from(ProducerSettings, settings, own)
        self._topic = settings.trace_topic
        group = f"{_GROUP_PREFIX}-{self.plain_group}-{kind}-{unique_ids.next()[-12:]}"
        self._sender = RetryingSender(group, self._settings)
        self._waiting: deque[TraceEntry] = deque()
        self._wanted = asyncio.Event()
        self._repeats = RepeatedFailures()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.dropped_count = 0
        """Entries that were dropped because the queue was full."""

    def start(self, hub: Hub) -> None:
        """Begin to send; the hub must be held until `close`."""
        self._sender.start(hub)
        self._task = hub.loop.create_task(self._send_loop(), name=f"trace of {self.plain_group}")

    def add(self, *entries: TraceEntry) -> None:
        """Queue entries to be sent in the background; never waits."""
        for entry in entries:
            if len(self._waiting) >= _WAITING_MAX:
                self.dropped_count += 1
                continue
            self._waiting.append(entry)
        if len(self._waiting) >= _ENTRIES_PER_MESSAGE:
            self._wanted.set()

    def begin(self, messages: Sequence[ReceivedMessage]) -> "Handling":
        """Handling of messages begins; call `end` of the result when it has ended."""
        request_id = unique_ids.next()
        self.add(
            *consuming(messages, group=self.plain_group, request_id=request_id, now_ms=wall_ms())
        )
        return Handling(self, messages, request_id, steady_ms())

    async def close(self) -> None:
        """Send what waits, for a few seconds at most, then leave the hub."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closing = True
        self._wanted.set()
        _, late = await asyncio.wait((task,), timeout=_CLOSE_S)
        if late:
            task.cancel()
            await asyncio.wait((task,))
        if self.dropped_count or self._waiting:
            log.warning(
                "group %s: %d trace entries were dropped",
                self.plain_group, self.dropped_count + len(self._waiting),
            )  # fmt: skip
        hub = self._sender.stop()
        await hub.leave(self._sender)

    async def _send_loop(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_PAUSE_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            closing = self._closing
            while self._waiting:
                count = min(len(self._waiting), _ENTRIES_PER_MESSAGE)
                entries = [self._waiting.popleft() for _ in range(count)]
                for message in trace_messages(self._topic, entries):
                    await self._send(message)
            if closing:
                return

    async def _send(self, message: Message) -> None:
        loop = self._sender.hub.loop
        limit = TimeLimit(_TIMEOUT_MS, loop.time() + _TIMEOUT_MS / 1000)
        try:
            out = send_request.outgoing(message, self._topic, unique_ids.next(), self._settings)
            await self._sender.send(out, RetryRule(self._settings.async_retry_count), limit)
        except TianzhouError as error:
            ending = self._repeats.ending(type(error).__name__, loop.time())
            if ending is not None:
                log.warning("group %s: trace not sent: %s%s", self.plain_group, error, ending)
