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
    """The methods of both producers."""

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
        """Send a message and wait until the broker has stored it.

        Give a `Message`, or a topic and a body with the fields of `Message` as keywords. `queue` or
        `select` choose the queue; such a send is not retried on another one. Raises MessageRefused,
        RouteNotFound, BrokerError, SendError and SendTimeout.
        """
        ready = producer.message_of(message, body, options)
        return self._run(
            self._here().send(ready, queue=queue, select=select, timeout_ms=timeout_ms)
        )

    def send_ordered(
        self, message: Message, /, *, select: Selector = by_shard, timeout_ms: int | None = None
    ) -> SendResult:
        """Send a message to the queue of its shard, without retries."""
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
        """Send a message without waiting for the response; the future gives the result.

        Waits only while too many messages are in flight, or for the route. `on_done` is called on
        the loop thread and must not block.
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
        """Send a message without a response: the broker does not confirm that it is stored."""
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
        """Send messages in as few requests as their sizes allow; results are in the same order."""
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
        """Send a request and wait for the reply of its consumer. Raises ReplyTimeout."""
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
        """Reply to a request that was consumed; None if its sender stopped waiting."""
        return self._run(self._here().reply(to, body, timeout_ms=timeout_ms, **options))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel a delayed message before its delivery; returns its id."""
        return self._run(self._here().recall(topic, recall_handle))

    def queues(self, topic: str) -> tuple[Queue, ...]:
        """The queues of a topic that messages can be sent to."""
        return self._run(self._here().queues(topic))


class Producer(BlockingProducer[producer.Producer]):
    """Sends messages; use it as `with Producer(group, namesrv=...)`, from any thread.

    Keywords are the fields of `ProducerSettings`.
    """

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
        """Send a half message, call the listener's `execute`, then commit or roll back."""
        return self._run(self._here().send_in_transaction(message, timeout_ms=timeout_ms))

    @contextmanager
    def transaction(
        self, message: Message, /, *, timeout_ms: int | None = None
    ) -> Generator[Transaction]:
        """The local work as a `with` block: its end commits, an exception rolls back."""
        block = self._here().transaction(message, timeout_ms=timeout_ms)
        begun = self._run(block.__aenter__())
        try:
            yield begun
        except BaseException as error:
            self._run(block.__aexit__(type(error), error, error.__traceback__))
            raise
        self._run(block.__aexit__(None, None, None))
