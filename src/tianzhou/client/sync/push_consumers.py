"""Blocking push consumers; see `tianzhou.client.consumer.push`."""

import asyncio
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar, Unpack

from tianzhou.client import replier
from tianzhou.client.consumer import push
from tianzhou.client.consumer.callbacks import BatchHandler, Handler
from tianzhou.client.group.settings import PushOptions
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.queues import Queue
from tianzhou.client.settings import ClientSettings
from tianzhou.client.sync.base import BlockingClient, call_on_loop
from tianzhou.protocol.bodies.clients import ConsumerRunningInfo

H = TypeVar("H", bound=Handler)
B = TypeVar("B", bound=BatchHandler)


class PushConsumer(BlockingClient[push.PushConsumer]):
    """Calls handlers: functions in threads, coroutine functions on the loop thread.

    Without handlers, `for message in consumer` yields the messages. Keywords are the fields of
    `PushSettings`.
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
        """Decorator: subscribe a function to a topic; it is called with one message."""

        def register(call: H) -> H:
            self.subscribe(topic, call, tags=tags, sql=sql)
            return call

        return register

    def batch_handler(
        self, topic: str, *, size: int | None = None, tags: str = "*", sql: str | None = None
    ) -> Callable[[B], B]:
        """Decorator: subscribe a function; it is called with a list of at most `size` messages."""

        def register(call: B) -> B:
            self.subscribe_batches(topic, call, size=size, tags=tags, sql=sql)
            return call

        return register

    def subscribe(
        self, topic: str, handler: Handler | None = None, *, tags: str = "*", sql: str | None = None
    ) -> None:
        """Consume a topic; may be called while running. Raises ConfigError.

        `tags` is `*`, or tags joined by `||`; `sql` is an SQL92 condition on properties instead.
        """
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
        """Stop consuming a topic and release its queues."""
        self._apply(lambda client: client.unsubscribe(topic))

    def _apply(self, change: Callable[[push.PushConsumer], None]) -> None:
        client = self._here()
        self._run(call_on_loop(change, client))
        self._subscribed.append(change)  # repeated in a forked child

    def suspend(self) -> None:
        """Stop pulling until `resume`; pulled messages are still handled."""
        self._run(call_on_loop(push.PushConsumer.suspend, self._here()))

    def resume(self) -> None:
        """Continue pulling."""
        self._run(call_on_loop(push.PushConsumer.resume, self._here()))

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until the consumer is closed; False after the time-out."""

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
        """The state of this consumer, as `mqadmin consumerStatus` shows it."""
        return self._run(call_on_loop(push.PushConsumer.running_info, self._here()))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """The messages; asking for the next one acknowledges the one before."""
        while (message := self.next_message()) is not None:
            yield message
            self.ack(message)

    def next_message(self) -> ReceivedMessage | None:
        """The next message, to be ended by `ack` or `retry`; None once the consumer is closed."""
        return self._run(self._here().next_message())

    def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message."""
        self._run(self._here().ack(message))

    def retry(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have a message delivered again; see `Later` for the delay level."""
        self._run(self._here().retry(message, delay_level))


class Replier(PushConsumer):
    """Calls handlers that return the replies to requests."""

    _kind = replier.Replier
