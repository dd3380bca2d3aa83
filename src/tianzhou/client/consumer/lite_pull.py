"""Consumers that return messages on request: lite pull, and the reader of queues.

`LitePullConsumer` prefetches messages in the background; `poll` returns them:

    async with LitePullConsumer("audit", namesrv="localhost:9876") as consumer:
        await consumer.subscribe("orders")            # queues are shared with the group, or
        await consumer.assign(queues)                 # exactly these, without rebalancing
        for message in await consumer.poll():
            ...

Polled messages count as consumed; their offsets are saved every five seconds (`auto_commit`) or by
`commit`.

`QueueReader` reads from (queue, offset) and has no state: for programs that keep their own offsets,
such as data pipelines and tools.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Unpack

from tianzhou.client import namespaces
from tianzhou.client.connection.hub import Hub
from tianzhou.client.connection.shared_hubs import acquire
from tianzhou.client.consumer.group_member import GroupMember
from tianzhou.client.consumer.held_queue import HeldQueue
from tianzhou.client.consumer.offsets import commit_all
from tianzhou.client.consumer.process_queue import Batch, ConcurrentQueue, ProcessQueue
from tianzhou.client.group.broker_calls import BrokerCalls, PullLimits, PullResult
from tianzhou.client.group.settings import LitePullOptions, LitePullSettings
from tianzhou.client.group.subscriptions import subscription_of
from tianzhou.client.lifetime import Lifetime
from tianzhou.client.message import ReceivedMessage, ms_of, time_of
from tianzhou.client.observe.telemetry import telemetry_of
from tianzhou.client.queues import Queue
from tianzhou.client.settings import ClientOptions, ClientSettings, settings_from
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.errors import ClientClosed, ConfigError

log = logging.getLogger(__name__)

_Pulled = tuple[HeldQueue, Batch]


class LitePullConsumer(GroupMember):
    """A consumer whose messages are fetched by `poll`; keywords are those of `LitePullSettings`."""

    consume_type = "CONSUME_ACTIVELY"
    _inline_subscription = True

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[LitePullOptions],
    ) -> None:
        """Nothing is connected yet. Raises ConfigError."""
        self._settings = settings_from(LitePullSettings, settings, options)
        super().__init__(group, self._settings)
        self._prefetched: deque[_Pulled] = deque()
        self._arrived = asyncio.Event()
        self._assigned = False
        self._paused: set[Queue] = set()

    # -- life --------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Save the offsets of polled messages (with auto_commit) and leave the group."""
        self._arrived.set()
        await super().close()

    async def _stop(self) -> None:
        await super()._stop()
        if not self._settings.auto_commit:
            for queue in self._held:
                self._offsets.forget(queue)

    # -- which queues ------------------------------------------------------------------------------

    async def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Consume a topic, sharing its queues with the group. Raises ConfigError, BrokerError.

        Returns after the first rebalance, so `assignment` may be read.
        """
        if self._assigned:
            raise ConfigError(f"group {self._name}: its queues are assigned, it cannot subscribe")
        subscription = self._add_subscription(topic, tags, sql)
        if self._hub is not None:
            await self._announce(subscription.topic)
            await self._calls.check_subscription(subscription)
            async with self._rebalance_lock:
                await self._rebalance()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic."""
        self._remove_subscription(topic)
        if self._hub is not None:
            async with self._rebalance_lock:
                await self._rebalance()

    async def queues(self, topic: str) -> list[Queue]:
        """All queues of a topic. Raises RouteNotFound, RemotingError."""
        return await self._calls.queues(self._wire_topic(topic), refresh=True)

    async def assign(
        self, queues: Iterable[Queue], *, tags: str = "*", sql: str | None = None
    ) -> None:
        """Consume exactly these queues, replacing earlier ones. Raises ConfigError."""
        if self._subscriptions and not self._assigned:
            raise ConfigError(f"group {self._name}: it subscribes, queues cannot be assigned")
        wanted = [self._wire_queue(queue) for queue in queues]
        self._assigned = True
        self._subscriptions = {
            queue.topic: subscription_of(queue.topic, tags, sql, wall_ms()) for queue in wanted
        }
        self._announced = dict(self._subscriptions)
        await self._calls.hub.routes.refresh(self.topics())
        await self._send_heartbeat()
        async with self._rebalance_lock:
            released = [held for held in self._held.values() if held.queue not in wanted]
            claimed = await self._exchange(released, dict.fromkeys(wanted))
        for queue, is_claimed in claimed.items():
            if not is_claimed:
                raise ConfigError(
                    f"group {self._name}: queue {queue} cannot be consumed, see the log"
                )

    async def _rebalance(self) -> bool:
        return True if self._assigned else await super()._rebalance()

    def _wire_queue(self, queue: Queue) -> Queue:
        return queue._replace(topic=self._wire_topic(queue.topic))

    # -- messages ----------------------------------------------------------------------------------

    def _new_state(self, queue_offset: int) -> ProcessQueue:
        return ConcurrentQueue(queue_offset, steady_ms())

    def _on_pulled(self, held: HeldQueue, messages: list[ReceivedMessage]) -> None:
        self._prefetched += [
            (held, batch) for batch in held.concurrent.put(messages, len(messages))
        ]
        self._arrived.set()

    async def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, all of one queue; an empty list after the time-out.

        Raises ClientClosed.
        """
        timeout_ms = self._settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                messages = await self._next()
        except TimeoutError:
            return []
        self._observe(messages, began_s)
        return messages

    async def _next(self) -> list[ReceivedMessage]:
        while True:
            if self._closing or self._hub is None:
                raise ClientClosed(f"group {self._name}: the consumer is not running")
            for _ in range(len(self._prefetched)):
                held, batch = self._prefetched.popleft()
                if held.state.dropped or batch.finished:
                    continue
                if held.paused:
                    self._prefetched.append((held, batch))
                    continue
                held.concurrent.finish(batch, steady_ms())
                self._offsets.update(held.queue, held.state.progress)
                held.wake.set()
                return batch.messages
            self._arrived.clear()
            await self._arrived.wait()

    # -- offsets -----------------------------------------------------------------------------------

    async def _persist_forever(self) -> None:
        if self._settings.auto_commit:
            await super()._persist_forever()

    async def _give_up(self, held: HeldQueue) -> None:
        if not self._settings.auto_commit:
            self._offsets.forget(held.queue)
        await super()._give_up(held)

    async def commit(self, offsets: dict[Queue, int] | None = None) -> None:
        """Save the offsets of polled messages, or `offsets`. Raises RemotingError, BrokerError."""
        if offsets is None:
            wanted = {
                queue: at for queue in self._held if (at := self._offsets.read(queue)) is not None
            }
        else:
            wanted = {self._wire_queue(queue): at for queue, at in offsets.items()}
        for queue, queue_offset in wanted.items():
            self._offsets.update(queue, queue_offset, may_fall=True)
        if self._settings.broadcasting:
            await self._offsets.persist(wanted)
            return
        await commit_all(self._commit, wanted)

    def commit_later(self, offsets: dict[Queue, int] | None = None) -> asyncio.Task[None]:
        """Commit in the background; returns the task. A failure is logged, too."""
        return self._run(self.commit(offsets), "commit")

    async def committed(self, queue: Queue) -> int | None:
        """The committed offset of the group, None if there is none."""
        if self._settings.broadcasting:
            return self._offsets.read(self._wire_queue(queue))
        return await self._calls.committed(self._wire_queue(queue))

    def position(self, queue: Queue) -> int | None:
        """The offset of the next message of `poll`, None if the queue is not assigned."""
        held = self._held.get(self._wire_queue(queue))
        return None if held is None else held.state.progress

    async def seek(self, queue: Queue, queue_offset: int) -> None:
        """Continue at another offset. Raises ConfigError if it is out of range."""
        queue = self._wire_queue(queue)
        if queue not in self._held:
            raise ConfigError(f"group {self._name}: queue {queue} is not assigned to it")
        lowest = await self._calls.min_offset(queue)
        highest = await self._calls.max_offset(queue)
        if not lowest <= queue_offset <= highest:
            raise ConfigError(
                f"queue {queue}: offset {queue_offset} is not between {lowest} and {highest}"
            )
        async with self._rebalance_lock:
            await self._move(queue, queue_offset, persist=False)

    async def seek_to_begin(self, queue: Queue) -> None:
        """Continue at the lowest offset."""
        await self.seek(queue, await self._calls.min_offset(self._wire_queue(queue)))

    async def seek_to_end(self, queue: Queue) -> None:
        """Continue at the end, with the next new message."""
        await self.seek(queue, await self._calls.max_offset(self._wire_queue(queue)))

    async def offset_for_timestamp(self, queue: Queue, moment: datetime) -> int:
        """The offset of the first message stored at a time or later."""
        return await self._calls.search_offset(self._wire_queue(queue), ms_of(moment))

    # -- pauses ------------------------------------------------------------------------------------

    def _hold(self, queue: Queue, queue_offset: int, *, locked: bool) -> HeldQueue:
        held = super()._hold(queue, queue_offset, locked=locked)
        held.paused = queue in self._paused
        return held

    def pause(self, queues: Iterable[Queue]) -> None:
        """Return no messages of these queues until `resume`."""
        for queue in map(self._wire_queue, queues):
            self._paused.add(queue)
            if (held := self._held.get(queue)) is not None:
                held.paused = True

    def resume(self, queues: Iterable[Queue]) -> None:
        """Return messages of these queues again."""
        for queue in map(self._wire_queue, queues):
            self._paused.discard(queue)
            if (held := self._held.get(queue)) is not None:
                held.paused = False
                held.wake.set()
        self._arrived.set()


# -- plain reading ---------------------------------------------------------------------------------


class QueueReader(Lifetime):
    """Reads messages and offsets by queue; it does not join the group.

    The group is needed all the same: brokers apply statistics, limits and permissions by group.
    """

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Nothing is connected yet. Raises ConfigError."""
        self._settings = settings_from(ClientSettings, settings, options)
        self._name = group
        self._telemetry = telemetry_of(self._settings, group)
        self._hub: Hub | None = None
        self._calls_or_none: BrokerCalls | None = None

    async def start(self) -> None:
        """Start; connections are opened when needed. Raises ConfigError."""
        if self._hub is not None:
            raise ClientClosed("a reader can be started only once")
        self._hub = acquire(self._settings)
        group = namespaces.wrap(self._settings.namespace, self._name)
        self._calls_or_none = BrokerCalls(self._hub, group, self._settings)

    async def close(self) -> None:
        """Close the connections."""
        self._calls_or_none = None
        if self._hub is not None:
            hub, self._hub = self._hub, None
            await hub.release()

    @property
    def _calls(self) -> BrokerCalls:
        if self._calls_or_none is None:
            raise ClientClosed(f"group {self._name}: the reader is not running")
        return self._calls_or_none

    def _wire(self, queue: Queue) -> Queue:
        return queue._replace(topic=namespaces.wrap(self._settings.namespace, queue.topic))

    async def queues(self, topic: str) -> list[Queue]:
        """All queues of a topic that can be read. Raises RouteNotFound, RemotingError."""
        wire_topic = namespaces.wrap(self._settings.namespace, topic)
        return await self._calls.queues(wire_topic, refresh=True)

    async def pull(
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
        """Messages from an offset on; continue at `next_offset` of the result.

        `wait_ms` is how long the broker waits for a message. Raises RemotingError, BrokerError,
        RouteNotFound, ConfigError, and RecordError for a damaged message.
        """
        wire_queue = self._wire(queue)
        limits = PullLimits(
            message_count, PullLimits().size_bytes, wait_ms, timeout_ms=timeout_ms + wait_ms
        )
        began_s = time.monotonic()
        pulled = await self._calls.pull(
            wire_queue,
            queue_offset,
            limits,
            subscription=subscription_of(wire_queue.topic, tags, sql, wall_ms()),
            inline=True,
            leave_out_damaged=False,
        )
        if self._telemetry is not None and pulled.messages:
            self._telemetry.received(pulled.messages, began_s)
        return pulled

    async def min_offset(self, queue: Queue) -> int:
        """The lowest offset that has a message."""
        return await self._calls.min_offset(self._wire(queue))

    async def max_offset(self, queue: Queue) -> int:
        """The offset that the next message will get."""
        return await self._calls.max_offset(self._wire(queue))

    async def search_offset(self, queue: Queue, moment: datetime) -> int:
        """The offset of the first message stored at that time or later."""
        return await self._calls.search_offset(self._wire(queue), ms_of(moment))

    async def earliest_store_time(self, queue: Queue) -> datetime:
        """When the lowest message of a queue was stored, in UTC."""
        return time_of(await self._calls.earliest_store_time_ms(self._wire(queue)))

    async def committed(self, queue: Queue) -> int | None:
        """The committed offset of the group, None if there is none."""
        return await self._calls.committed(self._wire(queue))

    async def commit(self, queue: Queue, queue_offset: int) -> None:
        """Commit the offset of the group in a queue."""
        await self._calls.commit(self._wire(queue), queue_offset)
