"""The blocking face of the client: the same names and types, without `await`.

    from tianzhou.client.sync import Producer

    with Producer("billing", namesrv="127.0.0.1:9876") as producer:
        producer.send("orders", b"paid", keys="4711")

The asynchronous clients do the work, on one event loop in a thread (`loop_thread`). They may be
used from any thread. A forked child that uses a client of its parent gets one of its own in its
place, started at that moment.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, Unpack, overload

from tianzhou.client import replier
from tianzhou.client.consumer import lite_pull as pull
from tianzhou.client.consumer import push
from tianzhou.client.consumer.callbacks import BatchHandler, Handler
from tianzhou.client.group.broker_calls import PullResult
from tianzhou.client.group.settings import LitePullOptions, PushOptions, SimpleOptions
from tianzhou.client.loop_thread import loop_thread
from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.pop import simple
from tianzhou.client.pop.messages import PoppedMessage
from tianzhou.client.producer import producer, transaction
from tianzhou.client.producer.producer import MessageOptions, OnDone
from tianzhou.client.producer.selectors import Selector, by_shard
from tianzhou.client.producer.transaction import Transaction, TransactionListener, TransactionResult
from tianzhou.client.queues import Queue
from tianzhou.client.sending.send_request import SendResult
from tianzhou.client.sending.settings import ProducerOptions, ProducerSettings
from tianzhou.client.settings import ClientOptions, ClientSettings
from tianzhou.protocol.bodies.clients import ConsumerRunningInfo

__all__ = [
    "LitePullConsumer",
    "Producer",
    "PushConsumer",
    "QueueReader",
    "Replier",
    "SimpleConsumer",
    "TransactionProducer",
]


class _Client(Protocol):
    """What all asynchronous clients can do."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Client)
P = TypeVar("P", bound=producer.Producer)
H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)
T = TypeVar("T")

_fork_lock = threading.Lock()
"""Held while a forked child replaces a client of its parent."""


def _renew_lock() -> None:
    global _fork_lock  # another thread of the parent may have held it
    _fork_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_lock)


class _Blocking(Generic[C]):
    """An asynchronous client per process, made when needed and started again after a fork."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._pid = os.getpid()
        self._client = make()
        self._running = False

    def start(self) -> None:
        """Start; see the asynchronous client."""
        self._run(self._here().start())
        self._running = True

    def close(self) -> None:
        """Close; see the asynchronous client."""
        client = self._here()
        self._running = False
        self._run(client.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _here(self) -> C:
        """The client of this process."""
        if self._pid == os.getpid():
            return self._client
        with _fork_lock:
            if self._pid != os.getpid():
                self._client = self._make()
                if self._running:
                    self._run(self._client.start())
                self._pid = os.getpid()
        return self._client

    @staticmethod
    def _run(work: Coroutine[Any, Any, T]) -> T:
        return loop_thread.run(work)


class _Sending(_Blocking[P]):
    """What all producers can do."""

    @property
    def settings(self) -> ProducerSettings:
        return self._client.settings

    @overload
    def send(
        self,
        message: Message,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult: ...

    @overload
    def send(
        self,
        topic: str,
        body: bytes | str,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendResult: ...

    def send(
        self,
        message: Message | str,
        body: bytes | str | None = None,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendResult:
        """Send a message and wait until the broker has it; see the asynchronous producer."""
        ready = producer.message_of(message, body, options)
        return self._run(
            self._here().send(ready, queue=queue, select=select, timeout_ms=timeout_ms)
        )

    def send_ordered(
        self, message: Message, /, *, select: Selector = by_shard, timeout_ms: int | None = None
    ) -> SendResult:
        """Send a message to the queue of its shard, once."""
        return self._run(self._here().send_ordered(message, select=select, timeout_ms=timeout_ms))

    def submit(
        self,
        message: Message,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        on_done: OnDone | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendResult]:
        """Put a message on its way; waits only while too much is on its way already.

        `on_done` is called on the client's thread and must not block.
        """
        client = self._here()
        result: Future[SendResult] = Future()
        result.set_running_or_notify_cancel()  # from here on it cannot be cancelled

        async def begin() -> None:
            future = await client.submit(
                message, queue=queue, select=select, on_done=on_done, timeout_ms=timeout_ms
            )
            future.add_done_callback(lambda done: _pass_on(done, result))

        self._run(begin())
        return result

    def oneway(
        self,
        message: Message,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a message without asking what became of it."""
        self._run(self._here().oneway(message, queue=queue, select=select, timeout_ms=timeout_ms))

    def send_many(
        self,
        messages: Iterable[Message],
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages in as few requests as their sizes allow; results in their order."""
        return self._run(
            self._here().send_many(messages, queue=queue, select=select, timeout_ms=timeout_ms)
        )

    def request(
        self,
        message: Message,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> ReceivedMessage:
        """Send a request and wait for the reply of whoever consumes it."""
        return self._run(
            self._here().request(message, queue=queue, select=select, timeout_ms=timeout_ms)
        )

    def reply(
        self,
        to: ReceivedMessage,
        body: bytes | str,
        /,
        *,
        timeout_ms: int | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendResult | None:
        """Answer a request that was consumed."""
        return self._run(self._here().reply(to, body, timeout_ms=timeout_ms, **options))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a message that waits for its time; returns its id."""
        return self._run(self._here().recall(topic, recall_handle))

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """The queues of a topic that messages can be sent to."""
        return self._run(self._here().queues(topic))


class Producer(_Sending[producer.Producer]):
    """Sends messages. Make it, start it (or `with`), close it; from any thread."""

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(lambda: producer.Producer(group, settings=settings, **options))


class TransactionProducer(_Sending[transaction.TransactionProducer]):
    """A producer whose messages can take part in local transactions."""

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(
            lambda: transaction.TransactionProducer(group, listener, settings=settings, **options)
        )

    def send_in_transaction(
        self, message: Message, /, *, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Send a half message, let the listener do the local work, tell the broker how it went."""
        return self._run(self._here().send_in_transaction(message, timeout_ms=timeout_ms))

    @contextmanager
    def transaction(
        self, message: Message, /, *, timeout_ms: int | None = None
    ) -> Generator[Transaction]:
        """Local work as a block: its end commits the message, an exception rolls it back."""
        block = self._here().transaction(message, timeout_ms=timeout_ms)
        begun = self._run(block.__aenter__())
        try:
            yield begun
        except BaseException as error:
            self._run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._run(block.__aexit__(None, None, None))


# -- consumers -------------------------------------------------------------------------------------


class PushConsumer(_Blocking[push.PushConsumer]):
    """Calls handlers: functions in threads, coroutine functions on the client's own loop.

    Without handlers, `for message in consumer` gives the messages.
    """

    _kind: ClassVar[type[push.PushConsumer]] = push.PushConsumer

    def __init__(
        self, group: str, *, settings: ClientSettings | None = None, **options: Unpack[PushOptions]
    ) -> None:
        self._subscribed: list[Callable[[push.PushConsumer], None]] = []

        def make() -> push.PushConsumer:
            made = self._kind(group, settings=settings, **options)
            for apply in self._subscribed:
                apply(made)
            return made

        super().__init__(make)

    def handler(self, topic: str, *, tags: str = "*", sql: str | None = None) -> Callable[[H], H]:
        """Decorate a function that gets the messages of a topic one by one."""

        def register(call: H) -> H:
            self.subscribe(topic, call, tags=tags, sql=sql)
            return call

        return register

    def batch_handler(
        self, topic: str, *, size: int | None = None, tags: str = "*", sql: str | None = None
    ) -> Callable[[B], B]:
        """Decorate a function that gets lists of messages, of at most `size`."""

        def register(call: B) -> B:
            self.subscribe_batches(topic, call, size=size, tags=tags, sql=sql)
            return call

        return register

    def subscribe(
        self, topic: str, handler: Handler | None = None, *, tags: str = "*", sql: str | None = None
    ) -> None:
        """Consume a topic; see the asynchronous consumer."""
        self._apply(lambda client: client.subscribe(topic, handler, tags=tags, sql=sql))

    def subscribe_batches(
        self,
        topic: str,
        handler: BatchHandler,
        *,
        size: int | None = None,
        tags: str = "*",
        sql: str | None = None,
    ) -> None:
        """Consume a topic in lists of messages."""
        self._apply(
            lambda client: client.subscribe_batches(topic, handler, size=size, tags=tags, sql=sql)
        )

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        self._apply(lambda client: client.unsubscribe(topic))

    def _apply(self, change: Callable[[push.PushConsumer], None]) -> None:
        client = self._here()
        self._run(_call(change, client))
        self._subscribed.append(change)  # a forked child does the same

    def suspend(self) -> None:
        """Pull nothing more until `resume`."""
        self._run(_call(push.PushConsumer.suspend, self._here()))

    def resume(self) -> None:
        """Pull again."""
        self._run(_call(push.PushConsumer.resume, self._here()))

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until somebody closes the consumer; False if nobody did in time."""

        async def wait() -> bool:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._here().wait_closed()
            except TimeoutError:
                return False
            return True

        return self._run(wait())

    @property
    def assignment(self) -> frozenset[Queue]:
        """The queues that are consumed now."""
        return self._here().assignment

    @property
    def client_id(self) -> str:
        """The id under which brokers know this consumer."""
        return self._here().client_id

    def running_info(self) -> ConsumerRunningInfo:
        """What this consumer is doing, as `mqadmin consumerStatus` shows it."""
        return self._run(_call(push.PushConsumer.running_info, self._here()))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """The messages; one is done when the next is asked for."""
        while (message := self.next_message()) is not None:
            yield message
            self.ack(message)

    def next_message(self) -> ReceivedMessage | None:
        """The next message, open until `ack` or `retry`; None once the consumer is closed."""
        return self._run(self._here().next_message())

    def ack(self, message: ReceivedMessage) -> None:
        """The message is done."""
        self._run(self._here().ack(message))

    def retry(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """The message shall come again."""
        self._run(self._here().retry(message, delay_level))


class Replier(PushConsumer):
    """Calls handlers that return the replies to requests."""

    _kind = replier.Replier


class LitePullConsumer(_Blocking[pull.LitePullConsumer]):
    """A consumer that is asked for messages."""

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[LitePullOptions],
    ) -> None:
        super().__init__(lambda: pull.LitePullConsumer(group, settings=settings, **options))

    @property
    def assignment(self) -> frozenset[Queue]:
        """The queues that are consumed now."""
        return self._here().assignment

    @property
    def client_id(self) -> str:
        """The id under which brokers know this consumer."""
        return self._here().client_id

    def running_info(self) -> ConsumerRunningInfo:
        """What this consumer is doing, as `mqadmin consumerStatus` shows it."""
        return self._run(_call(pull.LitePullConsumer.running_info, self._here()))

    def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Consume a topic together with the group."""
        self._run(self._here().subscribe(topic, tags=tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        self._run(self._here().unsubscribe(topic))

    def queues(self, topic: str) -> list[Queue]:
        """All queues of a topic."""
        return self._run(self._here().queues(topic))

    def assign(self, queues: Iterable[Queue], *, tags: str = "*", sql: str | None = None) -> None:
        """Consume exactly these queues."""
        self._run(self._here().assign(queues, tags=tags, sql=sql))

    def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, all of one queue; an empty list if none came in time."""
        return self._run(self._here().poll(timeout_ms))

    def commit(self, offsets: dict[Queue, int] | None = None) -> None:
        """Save the offsets of what was polled, or these."""
        self._run(self._here().commit(offsets))

    def commit_later(self, offsets: dict[Queue, int] | None = None) -> Future[None]:
        """Commit in the background; the future tells how it went, and a failure is logged."""
        client = self._here()
        result: Future[None] = Future()
        result.set_running_or_notify_cancel()  # from here on it cannot be cancelled

        async def begin() -> None:
            task = client.commit_later(offsets)
            task.add_done_callback(lambda done: _pass_on(done, result))

        self._run(begin())
        return result

    def committed(self, queue: Queue) -> int | None:
        """The offset that is saved for the group."""
        return self._run(self._here().committed(queue))

    def position(self, queue: Queue) -> int | None:
        """The offset of the next message that `poll` gives."""
        return self._here().position(queue)

    def seek(self, queue: Queue, queue_offset: int) -> None:
        """Go on at another offset."""
        self._run(self._here().seek(queue, queue_offset))

    def seek_to_begin(self, queue: Queue) -> None:
        """Go on with the lowest message."""
        self._run(self._here().seek_to_begin(queue))

    def seek_to_end(self, queue: Queue) -> None:
        """Go on with the next message to come."""
        self._run(self._here().seek_to_end(queue))

    def offset_for_timestamp(self, queue: Queue, moment: datetime) -> int:
        """The offset of the first message stored at that time or later."""
        return self._run(self._here().offset_for_timestamp(queue, moment))

    def pause(self, queues: Iterable[Queue]) -> None:
        """Hand out nothing of these queues until `resume`."""
        wanted = tuple(queues)
        self._run(_call(lambda client: client.pause(wanted), self._here()))

    def resume(self, queues: Iterable[Queue]) -> None:
        """Hand out messages of these queues again."""
        wanted = tuple(queues)
        self._run(_call(lambda client: client.resume(wanted), self._here()))


class SimpleConsumer(_Blocking[simple.SimpleConsumer]):
    """A consumer that pops; `for message in consumer` gives the messages one by one."""

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[SimpleOptions],
    ) -> None:
        self._subscribed: dict[str, tuple[str, str | None]] = {}

        def make() -> simple.SimpleConsumer:
            made = simple.SimpleConsumer(group, settings=settings, **options)
            for topic, (tags, sql) in self._subscribed.items():  # in a forked child
                self._run(made.subscribe(topic, tags=tags, sql=sql))
            return made

        super().__init__(make)

    @property
    def client_id(self) -> str:
        """The id under which brokers know this consumer."""
        return self._here().client_id

    def running_info(self) -> ConsumerRunningInfo:
        """What this consumer is doing, as `mqadmin consumerStatus` shows it."""
        return self._run(_call(simple.SimpleConsumer.running_info, self._here()))

    def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Receive the messages of a topic, too."""
        self._run(self._here().subscribe(topic, tags=tags, sql=sql))
        self._subscribed[topic] = (tags, sql)

    def unsubscribe(self, topic: str) -> None:
        """Receive the messages of a topic no more."""
        self._run(self._here().unsubscribe(topic))
        self._subscribed.pop(topic, None)

    def receive(
        self,
        max_count: int = 32,
        *,
        invisible: float | timedelta | None = None,
        wait: float | timedelta | None = None,
    ) -> list[PoppedMessage]:
        """The next messages, hidden from others for a while; an empty list if none came in time."""
        return self._run(self._here().receive(max_count, invisible=invisible, wait=wait))

    def ack(self, message: PoppedMessage) -> None:
        """The message is done and does not come again."""
        self._run(self._here().ack(message))

    def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """The messages are done, in one request for each broker."""
        self._run(self._here().ack_many(messages))

    def change_invisible(self, message: PoppedMessage, duration: float | timedelta) -> str:
        """The message shall come again so long after now; returns its new handle."""
        return self._run(self._here().change_invisible(message, duration))

    def __iter__(self) -> Iterator[PoppedMessage]:
        """The messages one by one; each is acknowledged when the next one is asked for."""
        stream = aiter(self._here())
        try:
            while (message := self._run(_step(stream))) is not None:
                yield message
        finally:
            self._run(stream.aclose())


class QueueReader(_Blocking[pull.QueueReader]):
    """Reads messages by queue and offset, and tells offsets."""

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(lambda: pull.QueueReader(group, settings=settings, **options))

    def queues(self, topic: str) -> list[Queue]:
        """All queues of a topic that can be read."""
        return self._run(self._here().queues(topic))

    def pull(
        self,
        queue: Queue,
        queue_offset: int,
        *,
        message_count: int = 32,
        tags: str = "*",
        sql: str | None = None,
        wait_ms: int = 0,
        timeout_ms: int = 10_000,
    ) -> PullResult:
        """Messages from an offset on."""
        work = self._here().pull(
            queue,
            queue_offset,
            message_count=message_count,
            tags=tags,
            sql=sql,
            wait_ms=wait_ms,
            timeout_ms=timeout_ms,
        )
        return self._run(work)

    def min_offset(self, queue: Queue) -> int:
        """The lowest offset that has a message."""
        return self._run(self._here().min_offset(queue))

    def max_offset(self, queue: Queue) -> int:
        """The offset that the next message will get."""
        return self._run(self._here().max_offset(queue))

    def search_offset(self, queue: Queue, moment: datetime) -> int:
        """The offset of the first message stored at that time or later."""
        return self._run(self._here().search_offset(queue, moment))

    def earliest_store_time(self, queue: Queue) -> datetime:
        """When the lowest message of a queue was stored, in UTC."""
        return self._run(self._here().earliest_store_time(queue))

    def committed(self, queue: Queue) -> int | None:
        """How far the group is in a queue."""
        return self._run(self._here().committed(queue))

    def commit(self, queue: Queue, queue_offset: int) -> None:
        """Save how far the group is in a queue."""
        self._run(self._here().commit(queue, queue_offset))


async def _call(look: Callable[[C], T], client: C) -> T:
    """Do something short on the client's loop, where its state lives."""
    return look(client)


async def _step(stream: AsyncGenerator[T]) -> T | None:
    """The next of a stream, None at its end."""
    return await anext(stream, None)


def _pass_on(done: asyncio.Future[T], result: Future[T]) -> None:
    """From a future of the loop to one of threads."""
    if done.cancelled():
        result.set_exception(CancelledError())
    elif (error := done.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())
