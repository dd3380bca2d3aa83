"""Blocking consumers that fetch messages on request: lite pull, pop, and the queue reader."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Unpack

from tianzhou.client.consumer import lite_pull as pull
from tianzhou.client.group.broker_calls import PullResult
from tianzhou.client.group.settings import LitePullOptions, SimpleOptions
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.pop import simple
from tianzhou.client.pop.messages import PoppedMessage
from tianzhou.client.queues import Queue
from tianzhou.client.settings import ClientOptions, ClientSettings
from tianzhou.client.sync.base import BlockingClient, call_on_loop, copy_result, next_or_none
from tianzhou.protocol.bodies.clients import ConsumerRunningInfo


class LitePullConsumer(BlockingClient[pull.LitePullConsumer]):
    """A consumer whose messages are fetched by `poll`; keywords are those of `LitePullSettings`."""

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
        """The state of this consumer, as `mqadmin consumerStatus` shows it."""
        return self._run(call_on_loop(pull.LitePullConsumer.running_info, self._here()))

    def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Consume a topic, sharing its queues with the group."""
        self._run(self._here().subscribe(topic, tags=tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic."""
        self._run(self._here().unsubscribe(topic))

    def queues(self, topic: str) -> list[Queue]:
        """All queues of a topic."""
        return self._run(self._here().queues(topic))

    def assign(self, queues: Iterable[Queue], *, tags: str = "*", sql: str | None = None) -> None:
        """Consume exactly these queues."""
        self._run(self._here().assign(queues, tags=tags, sql=sql))

    def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, all of one queue; an empty list after the time-out."""
        return self._run(self._here().poll(timeout_ms))

    def commit(self, offsets: dict[Queue, int] | None = None) -> None:
        """Save the offsets of polled messages, or `offsets`."""
        self._run(self._here().commit(offsets))

    def commit_later(self, offsets: dict[Queue, int] | None = None) -> Future[None]:
        """Commit in the background; returns a future. A failure is logged, too."""
        client = self._here()
        result: Future[None] = Future()
        result.set_running_or_notify_cancel()  # from here on it cannot be cancelled

        async def begin() -> None:
            task = client.commit_later(offsets)
            task.add_done_callback(lambda done: copy_result(done, result))

        self._run(begin())
        return result

    def committed(self, queue: Queue) -> int | None:
        """The committed offset of the group, None if there is none."""
        return self._run(self._here().committed(queue))

    def position(self, queue: Queue) -> int | None:
        """The offset of the next message of `poll`, None if the queue is not assigned."""
        return self._here().position(queue)

    def seek(self, queue: Queue, queue_offset: int) -> None:
        """Continue at another offset. Raises ConfigError if it is out of range."""
        self._run(self._here().seek(queue, queue_offset))

    def seek_to_begin(self, queue: Queue) -> None:
        """Continue at the lowest offset."""
        self._run(self._here().seek_to_begin(queue))

    def seek_to_end(self, queue: Queue) -> None:
        """Continue at the end, with the next new message."""
        self._run(self._here().seek_to_end(queue))

    def offset_for_timestamp(self, queue: Queue, moment: datetime) -> int:
        """The offset of the first message stored at a time or later."""
        return self._run(self._here().offset_for_timestamp(queue, moment))

    def pause(self, queues: Iterable[Queue]) -> None:
        """Return no messages of these queues until `resume`."""
        wanted = tuple(queues)
        self._run(call_on_loop(lambda client: client.pause(wanted), self._here()))

    def resume(self, queues: Iterable[Queue]) -> None:
        """Return messages of these queues again."""
        wanted = tuple(queues)
        self._run(call_on_loop(lambda client: client.resume(wanted), self._here()))


class SimpleConsumer(BlockingClient[simple.SimpleConsumer]):
    """A consumer that pops messages; `for message in consumer` yields them one by one.

    Keywords are the fields of `SimpleSettings`.
    """

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
        """The state of this consumer, as `mqadmin consumerStatus` shows it."""
        return self._run(call_on_loop(simple.SimpleConsumer.running_info, self._here()))

    def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Subscribe to a topic."""
        self._run(self._here().subscribe(topic, tags=tags, sql=sql))
        self._subscribed[topic] = (tags, sql)

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""
        self._run(self._here().unsubscribe(topic))
        self._subscribed.pop(topic, None)

    def receive(
        self,
        max_count: int = 32,
        *,
        invisible: float | timedelta | None = None,
        wait: float | timedelta | None = None,
    ) -> list[PoppedMessage]:
        """The next messages, invisible to others for a while; an empty list after the time-out."""
        return self._run(self._here().receive(max_count, invisible=invisible, wait=wait))

    def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message: it is not delivered again."""
        self._run(self._here().ack(message))

    def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge messages, in one request for each broker."""
        self._run(self._here().ack_many(messages))

    def change_invisible(self, message: PoppedMessage, duration: float | timedelta) -> str:
        """Set the invisible time of a message, from now on; returns its new handle."""
        return self._run(self._here().change_invisible(message, duration))

    def __iter__(self) -> Iterator[PoppedMessage]:
        """The messages one by one; asking for the next one acknowledges the one before."""
        stream = aiter(self._here())
        try:
            while (message := self._run(next_or_none(stream))) is not None:
                yield message
        finally:
            self._run(stream.aclose())


class QueueReader(BlockingClient[pull.QueueReader]):
    """Reads messages and offsets by queue; it does not join the group."""

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
        """Messages from an offset on; continue at `next_offset` of the result."""
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
        """The offset of the first message stored at a time or later."""
        return self._run(self._here().search_offset(queue, moment))

    def earliest_store_time(self, queue: Queue) -> datetime:
        """When the lowest message of a queue was stored, in UTC."""
        return self._run(self._here().earliest_store_time(queue))

    def committed(self, queue: Queue) -> int | None:
        """The committed offset of the group, None if there is none."""
        return self._run(self._here().committed(queue))

    def commit(self, queue: Queue, queue_offset: int) -> None:
        """Commit the offset of the group in a queue."""
        self._run(self._here().commit(queue, queue_offset))
