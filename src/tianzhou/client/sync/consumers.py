"""Blocking consumers; see `tianzhou.client.consumer` and `tianzhou.client.pop`."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import ClassVar, TypeVar, Unpack

from tianzhou.client import replier
from tianzhou.client.consumer import group_member, lite_pull, push
from tianzhou.client.group import membership
from tianzhou.client.group.settings import LitePullOptions, PushOptions, SimpleOptions
from tianzhou.client.loop_thread import loop_thread
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.pop import simple
from tianzhou.client.pop.messages import PoppedMessage
from tianzhou.client.queues import Queue
from tianzhou.client.settings import ClientOptions, ClientSettings
from tianzhou.client.sync.base import (
    BlockingClient,
    blocking,
    in_background,
    on_loop,
    subscribing,
    unchanged,
)

M_co = TypeVar("M_co", bound=membership.Membership, covariant=True)
G_co = TypeVar("G_co", bound=group_member.GroupMember, covariant=True)


class BlockingMember(BlockingClient[M_co]):
    """What all consumers but the queue reader have."""

    @property
    def client_id(self) -> str:
        """The id under which brokers know this consumer."""
        return self._local_client().client_id

    running_info = on_loop(membership.Membership.running_info)


class BlockingGroupMember(BlockingMember[G_co]):
    """What consumers with assigned queues have."""

    @property
    def assignment(self) -> frozenset[Queue]:
        """The queues that are consumed now."""
        return self._local_client().assignment


class PushConsumer(BlockingGroupMember[push.PushConsumer]):
    """Calls handlers: functions in threads, coroutine functions on the loop thread.

    Without handlers, `for message in consumer` yields the messages. Keywords are the fields of
    `PushSettings`.
    """

    _kind: ClassVar[type[push.PushConsumer]] = push.PushConsumer

    def __init__(
        self, group: str, *, settings: ClientSettings | None = None, **options: Unpack[PushOptions]
    ) -> None:
        super().__init__(lambda: self._kind(group, settings=settings, **options))

    handler = unchanged(push.PushConsumer.handler)
    batch_handler = unchanged(push.PushConsumer.batch_handler)
    subscribe = subscribing(push.PushConsumer.subscribe)
    subscribe_batches = subscribing(push.PushConsumer.subscribe_batches)
    unsubscribe = subscribing(push.PushConsumer.unsubscribe)
    suspend = on_loop(push.PushConsumer.suspend)
    resume = on_loop(push.PushConsumer.resume)

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until the consumer is closed; False after the time-out."""

        async def wait() -> bool:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._local_client().wait_closed()
            except TimeoutError:
                return False
            return True

        return loop_thread.run(wait())

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """The messages; asking for the next one acknowledges the one before."""
        while (message := self.next_message()) is not None:
            yield message
            self.ack(message)

    next_message = blocking(push.PushConsumer.next_message)
    ack = blocking(push.PushConsumer.ack)
    retry = blocking(push.PushConsumer.retry)


class Replier(PushConsumer):
    """Calls handlers that return the replies to requests."""

    _kind = replier.Replier


class LitePullConsumer(BlockingGroupMember[lite_pull.LitePullConsumer]):
    """A consumer whose messages are fetched by `poll`; keywords are those of `LitePullSettings`."""

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[LitePullOptions],
    ) -> None:
        super().__init__(lambda: lite_pull.LitePullConsumer(group, settings=settings, **options))

    subscribe = blocking(lite_pull.LitePullConsumer.subscribe)
    unsubscribe = blocking(lite_pull.LitePullConsumer.unsubscribe)
    queues = blocking(lite_pull.LitePullConsumer.queues)
    assign = blocking(lite_pull.LitePullConsumer.assign)
    poll = blocking(lite_pull.LitePullConsumer.poll)
    commit = blocking(lite_pull.LitePullConsumer.commit)
    commit_later = in_background(lite_pull.LitePullConsumer.commit_later)
    committed = blocking(lite_pull.LitePullConsumer.committed)
    seek = blocking(lite_pull.LitePullConsumer.seek)
    seek_to_begin = blocking(lite_pull.LitePullConsumer.seek_to_begin)
    seek_to_end = blocking(lite_pull.LitePullConsumer.seek_to_end)
    offset_for_timestamp = blocking(lite_pull.LitePullConsumer.offset_for_timestamp)
    pause = on_loop(lite_pull.LitePullConsumer.pause)
    resume = on_loop(lite_pull.LitePullConsumer.resume)

    def position(self, queue: Queue) -> int | None:
        """The offset of the next message of `poll`, None if the queue is not assigned."""
        return self._local_client().position(queue)


class SimpleConsumer(BlockingMember[simple.SimpleConsumer]):
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
        super().__init__(lambda: simple.SimpleConsumer(group, settings=settings, **options))

    subscribe = subscribing(simple.SimpleConsumer.subscribe)
    unsubscribe = subscribing(simple.SimpleConsumer.unsubscribe)
    receive = blocking(simple.SimpleConsumer.receive)
    ack = blocking(simple.SimpleConsumer.ack)
    ack_many = blocking(simple.SimpleConsumer.ack_many)
    change_invisible = blocking(simple.SimpleConsumer.change_invisible)

    def __iter__(self) -> Iterator[PoppedMessage]:
        """The messages one by one; asking for the next one acknowledges the one before."""
        stream = aiter(self._local_client())
        try:
            while (message := loop_thread.run(_next_or_none(stream))) is not None:
                yield message
        finally:
            loop_thread.run(stream.aclose())


class QueueReader(BlockingClient[lite_pull.QueueReader]):
    """Reads messages and offsets by queue; it does not join the group."""

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(lambda: lite_pull.QueueReader(group, settings=settings, **options))

    queues = blocking(lite_pull.QueueReader.queues)
    pull = blocking(lite_pull.QueueReader.pull)
    min_offset = blocking(lite_pull.QueueReader.min_offset)
    max_offset = blocking(lite_pull.QueueReader.max_offset)
    search_offset = blocking(lite_pull.QueueReader.search_offset)
    earliest_store_time = blocking(lite_pull.QueueReader.earliest_store_time)
    committed = blocking(lite_pull.QueueReader.committed)
    commit = blocking(lite_pull.QueueReader.commit)


async def _next_or_none(stream: AsyncGenerator[PoppedMessage]) -> PoppedMessage | None:
    return await anext(stream, None)
