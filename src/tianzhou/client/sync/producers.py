"""Blocking producers; see `tianzhou.client.producer`."""

from collections.abc import Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar, Unpack, overload

from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.producer import producer, transaction
from tianzhou.client.producer.producer import MessageOptions, OnDone
from tianzhou.client.producer.selectors import Selector, by_shard
from tianzhou.client.producer.transaction import Transaction, TransactionListener, TransactionResult
from tianzhou.client.queues import Queue
from tianzhou.client.sending.send_request import SendResult
from tianzhou.client.sending.settings import ProducerOptions, ProducerSettings
from tianzhou.client.settings import ClientSettings
from tianzhou.client.sync.base import BlockingClient, copy_result

P = TypeVar("P", bound=producer.Producer)


class BlockingProducer(BlockingClient[P]):
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
            future.add_done_callback(lambda done: copy_result(done, result))

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


class Producer(BlockingProducer[producer.Producer]):
    """Sends messages. Make it, start it (or `with`), close it; from any thread."""

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(lambda: producer.Producer(group, settings=settings, **options))


class TransactionProducer(BlockingProducer[transaction.TransactionProducer]):
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
