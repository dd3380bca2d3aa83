"""A member of a consumer group: subscriptions, its share of the queues, and pulling.

    start -> heartbeat -> rebalance ──┬─> claim queue ─> pull, pull, pull ... ─> give up queue
                 ^                    │
       every 20 s, on a broker's notice, on a changed route

The base of push and lite pull consumers. `rebalance` decides the division of queues, and a
`ProcessQueue` has the state of a queue. A claimed queue has one task that pulls it, one pull at a
time; a queue that was given up has none, and its offset is saved. The tasks survive all errors
until the member is closed.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial

import msgspec

from tianzhou.client.connection.hub import Hub, Reply, is_logged_by_hub
from tianzhou.client.consumer.held_queue import HeldQueue, queue_info
from tianzhou.client.consumer.offsets import (
    LocalOffsets,
    OffsetStore,
    RemoteOffsets,
    SerializedCommits,
    directory_from,
    reset_offsets,
)
from tianzhou.client.consumer.process_queue import FlowLimits, ProcessQueue, limits_per_queue
from tianzhou.client.consumer.rates import Rates
from tianzhou.client.group.broker_calls import BrokerCalls, PullLimits, PullResult, PullStatus
from tianzhou.client.group.membership import Membership, success
from tianzhou.client.group.rebalance import shares
from tianzhou.client.group.settings import ConsumerSettings
from tianzhou.client.message import ReceivedMessage, ms_of
from tianzhou.client.queues import Queue
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.errors import (
    FlowControlled,
    NotSubscribed,
    RouteNotFound,
    TianzhouError,
)
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.clients import ConsumerRunningInfo
from tianzhou.protocol.bodies.offsets import ConsumerStatusBody
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

log = logging.getLogger(__name__)

_FIRST_ERROR_PAUSE_MS = 100
_FLOW_CONTROL_PAUSE_MS = 20
_REBALANCE_RETRY_MS = 500
"""Pause until the next rebalance if a queue could not be claimed."""
_CHECK_INTERVAL_S = 1.0
"""A pull task that waits for capacity or `resume` checks this often, which shows it alive."""


class GroupMember(Membership):
    """The base of push and lite pull consumers; see the module."""

    _inline_subscription = False

    def __init__(self, group: str, settings: ConsumerSettings) -> None:
        super().__init__(group, settings, settings.start, broadcasting=settings.broadcasting)
        self._base = settings
        self._retry_topic = RETRY_TOPIC_PREFIX + self._wire_group
        self._held: dict[Queue, HeldQueue] = {}
        self._offsets: OffsetStore
        """Set by the start."""
        self._commits = SerializedCommits()
        self._rebalance_wanted = asyncio.Event()
        self._rebalance_lock = asyncio.Lock()
        self._rebalance_retry_ms = 0
        """Pause until the next rebalance if the last one was incomplete, else 0."""
        self._suspended = False
        self._rates = Rates()
        self._pull_limits = PullLimits(
            settings.pull_batch_size,
            settings.pull_batch_bytes,
            settings.pull_suspend_ms,
            settings.pull_timeout_ms,
        )
        self._flow = FlowLimits(
            settings.queue_messages_max, settings.queue_mib_max, settings.queue_span_max
        )

    # -- overridden by consumers -------------------------------------------------------------------

    @abstractmethod
    def _new_state(self, queue_offset: int) -> ProcessQueue:
        """The state of a queue that is consumed from an offset on."""

    @abstractmethod
    def _on_pulled(self, held: HeldQueue, messages: list[ReceivedMessage]) -> None:
        """Accept pulled messages; the next pull continues after them."""

    async def _can_claim(self, queue: Queue) -> bool:
        return True

    async def _can_pull(self, held: HeldQueue) -> bool:
        return True

    async def _wait_for_handler(self, held: HeldQueue) -> None:
        """Wait for a running handler of an ordered queue."""

    async def _on_given_up(self, held: HeldQueue) -> None:
        """The queue was released; its offset is saved."""

    # -- names -------------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[Queue]:
        """The queues that are consumed now; their topics are the names on the wire."""
        return frozenset(self._held)

    # -- life --------------------------------------------------------------------------------------

    def _new_calls(self, hub: Hub) -> BrokerCalls:
        calls = super()._new_calls(hub)
        if self._base.broadcasting:
            directory = directory_from(self._base.offsets_dir)
            self._offsets = LocalOffsets(directory, hub.client_id, self._wire_group)
        else:
            # An explicit time needs the exact answer; otherwise begin as RocketMQ's clients do.
            query = partial(calls.committed, exact=isinstance(self._base.start, datetime))
            self._offsets = RemoteOffsets(self._wire_group, query, self._commit)
        return calls

    def _begin(self) -> None:
        """Start the tasks of the consumer."""
        self._run(self._rebalance_forever(), "rebalance")
        self._run(self._persist_forever(), "offsets")
        self._rebalance_wanted.set()

    async def _commit(self, queue: Queue, queue_offset: int) -> None:
        await self._commits.run(queue, lambda: self._calls.commit(queue, queue_offset))

    async def _stop(self) -> None:
        tasks = [*self._tasks, *(held.task for held in self._held.values() if held.task)]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _leave(self) -> None:
        """Save all offsets, then leave the group."""
        try:
            await self._offsets.persist(self._held)
        finally:
            for held in self._held.values():
                held.state.dropped = True
            self._held.clear()
            await super()._leave()

    # -- for the hub -------------------------------------------------------------------------------

    def _on_subscriptions(self) -> None:
        self._rebalance_wanted.set()

    def on_request(self, connection: Connection, request: Command) -> Reply:
        """Handle a request of a broker."""
        code = request.code
        if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalance_wanted.set()
            return None
        if code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            offsets = self._offsets.of_topic(request.fields.get("topic", "")).items()
            body = ConsumerStatusBody(offsets={queue.to_wire(): at for queue, at in offsets})
            return success(bodies.encode(body))
        if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            return self._on_reset(request)
        return super().on_request(connection, request)

    async def _on_reset(self, request: Command) -> Command | None:
        wanted = reset_offsets(request.body)
        log.info("group %s: a broker resets %d offsets", self._name, len(wanted))
        async with self._rebalance_lock:
            for queue, queue_offset in wanted.items():
                await self._move(queue, queue_offset)
        return None if request.is_oneway else success(b"")

    async def _move(self, queue: Queue, queue_offset: int, *, persist: bool = True) -> None:
        """Continue at another offset; messages in flight of the queue are dropped."""
        held = self._held.get(queue)
        if held is None:
            return
        await self._stop_pulling(held)
        await self._wait_for_handler(held)
        self._offsets.update(queue, queue_offset, may_fall=True)
        if persist:
            await self._offsets.persist((queue,))
        if not self._closed and self._held.get(queue) is held:
            self._hold(queue, queue_offset, locked=held.state.locked)

    def running_info(self) -> ConsumerRunningInfo:
        """The state of this consumer, as `mqadmin consumerStatus` shows it."""
        now_ms = steady_ms()
        return msgspec.structs.replace(
            super().running_info(),
            queues={
                queue.to_wire(): queue_info(held, self._offsets.read(queue))
                for queue, held in self._held.items()
            },
            statuses={topic: self._rates.status(topic, now_ms) for topic in self._subscriptions},
        )

    # -- rebalance ---------------------------------------------------------------------------------

    async def _rebalance_forever(self) -> None:
        while True:
            pause_ms = self._rebalance_retry_ms or self._base.rebalance_ms
            await _wait(self._rebalance_wanted, min(pause_ms, self._base.rebalance_ms) / 1000)
            self._rebalance_wanted.clear()
            try:
                async with self._rebalance_lock:
                    complete_all = await self._rebalance()
            except Exception:  # the loop must go on, whatever a strategy of the user raises
                log.exception("group %s: rebalance failed", self._name)
                complete_all = False
            self._rebalance_retry_ms = (
                0 if complete_all else max(self._rebalance_retry_ms * 3 // 2, _REBALANCE_RETRY_MS)
            )

    async def _rebalance(self) -> bool:
        """Rebalance all topics; returns whether all of them succeeded."""
        complete_all = True
        for held in tuple(self._held.values()):
            if held.queue.topic not in self._subscriptions:
                await self._give_up(held)
        changed = False
        for topic in tuple(self._subscriptions):
            if topic not in self._announced:
                continue  # its route came before the heartbeat; `_announce` rebalances again
            try:
                own, is_listed = await self._own_queues(topic)
                did_change, complete = await self._adjust(topic, own)
            except TianzhouError as error:
                complete_all = False
                if not is_logged_by_hub(error) and not topic.startswith(RETRY_TOPIC_PREFIX):
                    self._warn(("rebalance", topic), f"topic {topic}: rebalance failed: {error}")
                continue
            complete_all = complete_all and complete and is_listed
            if did_change and topic in self._subscriptions:
                changed = True
                self._subscriptions[topic] = self._subscriptions[topic].renewed(wall_ms())
        if changed:
            await self._send_heartbeat()
        return complete_all

    async def _own_queues(self, topic: str) -> tuple[frozenset[Queue], bool]:
        """The queues of this member, and whether the broker lists it as a member.

        Raises TianzhouError if brokers or nameservers do not respond.
        """
        try:
            queues = await self._calls.queues(topic)
        except RouteNotFound:
            if topic == self._retry_topic:
                return frozenset(), False  # brokers create it with the first heartbeat of the group
            raise
        if self._base.broadcasting:
            return frozenset(queues), True
        await self._calls.hub.ensure_registered(topic)
        members = await self._calls.members(topic)
        client_id = self._calls.hub.client_id
        if client_id not in members:
            # The broker lost the connection of the heartbeat and removed this client with it.
            await self._send_heartbeat()
            members = await self._calls.members(topic)
        strategy = self._base.strategy()
        own = shares(strategy, self._wire_group, client_id, queues, members)
        return own, client_id in members

    async def _adjust(self, topic: str, own: frozenset[Queue]) -> tuple[bool, bool]:
        """Release and claim queues of a topic; returns whether any changed, and all are claimed."""
        now_ms = steady_ms()
        released = [
            held
            for held in self._held.values()
            if held.queue.topic == topic and (held.queue not in own or held.state.silent(now_ms))
        ]
        claimed = (await self._exchange(released, own)).values()
        changed = bool(released) or any(claimed)
        if changed:
            count = sum(queue.topic == topic for queue in self._held)
            log.info("group %s, topic %s: %d queues assigned", self._name, topic, count)
        return changed, all(claimed)

    async def _exchange(
        self, released: Iterable[HeldQueue], own: Iterable[Queue]
    ) -> dict[Queue, bool]:
        """Release and claim queues; returns for each new queue whether it was claimed."""
        for held in released:
            await self._give_up(held)
        new = [queue for queue in own if queue not in self._held]
        claimed = await asyncio.gather(*(self._claim(queue) for queue in new))
        return dict(zip(new, claimed, strict=True))

    async def _claim(self, queue: Queue) -> bool:
        try:
            if not await self._can_claim(queue):
                return False
            self._offsets.forget(queue)
            queue_offset = await self._start_offset(queue)
        except TianzhouError as error:
            self._warn(("claim", queue), f"queue {queue}: not claimed: {error}")
            return False
        if self._closed:
            return False
        self._hold(queue, queue_offset, locked=True)
        return True

    def _hold(self, queue: Queue, queue_offset: int, *, locked: bool) -> HeldQueue:
        state = self._new_state(queue_offset)
        state.locked = locked
        held = HeldQueue(queue, state)
        self._held[queue] = held
        held.task = asyncio.create_task(self._pull_forever(held), name=f"pull {self._name} {queue}")
        return held

    async def _give_up(self, held: HeldQueue) -> None:
        """Stop consuming a queue and save its offset."""
        await self._stop_pulling(held)
        if self._held.get(held.queue) is held:
            del self._held[held.queue]
        await self._offsets.persist((held.queue,))
        await self._on_given_up(held)
        self._offsets.forget(held.queue)
        self._calls.forget(held.queue)

    async def _stop_pulling(self, held: HeldQueue) -> None:
        held.state.dropped = True
        held.wake.set()
        if held.task is not None:
            held.task.cancel()
            await asyncio.wait((held.task,))

    async def _start_offset(self, queue: Queue) -> int:
        """The committed offset of the group, or that of the setting `start`."""
        saved = await self._offsets.load(queue)
        if saved is not None:
            return saved
        start = self._base.start
        is_retry = queue.topic == self._retry_topic
        if is_retry and not isinstance(start, datetime):
            return 0
        if start == "first":
            return await self._calls.min_offset(queue)
        if start == "last" or is_retry:
            return await self._calls.max_offset(queue)
        return await self._calls.search_offset(queue, ms_of(start))

    # -- pulling -----------------------------------------------------------------------------------

    async def _pull_forever(self, held: HeldQueue) -> None:
        pause_ms = _FIRST_ERROR_PAUSE_MS
        while not held.state.dropped:
            held.state.last_pull_ms = steady_ms()
            if not await self._wait_for_capacity(held):
                continue
            try:
                if not await self._can_pull(held):
                    continue
                pulled = await self._pull(held)
            except TianzhouError as error:
                pause_ms = await self._pause_after(error, held, pause_ms)
            except Exception:  # a queue must never stop being pulled
                log.exception("group %s, queue %s: pull failed", self._name, held.queue)
                await asyncio.sleep(self._base.pull_error_pause_ms / 1000)
            else:
                pause_ms = _FIRST_ERROR_PAUSE_MS
                if not held.state.dropped:
                    await self._handle_result(held, pulled)

    async def _wait_for_capacity(self, held: HeldQueue) -> bool:
        """Whether the queue may be pulled: not paused, not full; waits a while otherwise."""
        if not self._suspended and not held.paused:
            reason = held.state.full(self._limits())
            if reason is None:
                return True
            if held.full_count % 1000 == 0:
                log.info(
                    "group %s, queue %s: pulling is paused: %s", self._name, held.queue, reason
                )
            held.full_count += 1
        held.wake.clear()
        await _wait(held.wake, _CHECK_INTERVAL_S)
        return False

    def _limits(self) -> FlowLimits:
        base = self._base
        if base.topic_messages_max == -1 and base.topic_mib_max == -1:
            return self._flow
        return limits_per_queue(
            self._flow, base.topic_messages_max, base.topic_mib_max, len(self._held)
        )

    async def _pull(self, held: HeldQueue) -> PullResult:
        queue = held.queue
        # With the subscription inline the program commits, or a timer.
        progress = None if self._inline_subscription else self._offset_to_report(held)
        pull = partial(
            self._calls.pull,
            queue,
            held.state.next_offset,
            self._pull_limits,
            subscription=self._announced.get(queue.topic),
            inline=self._inline_subscription,
            commit_offset=progress,
        )
        started_ms = steady_ms()
        pulled = await (pull() if progress is None else self._commits.run(queue, pull))
        held.reported_offset = progress or held.reported_offset
        held.more_waits = bool(pulled.messages) and pulled.max_offset > pulled.next_offset
        if pulled.messages:
            self._rates.pulled(queue.topic, len(pulled.messages), started_ms, steady_ms())
        return pulled

    def _offset_to_report(self, held: HeldQueue) -> int | None:
        """The offset that the next pull commits, so that a crash repeats few messages.

        Only pulls that return immediately carry one: commits wait for them.
        """
        if self._base.broadcasting or not held.more_waits:
            return None
        progress = self._offsets.read(held.queue)
        if progress == held.reported_offset or not self._commits.is_free(held.queue):
            return None
        return progress or None

    async def _handle_result(self, held: HeldQueue, pulled: PullResult) -> None:
        state = held.state
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            await self._correct(held, pulled)
            return
        state.next_offset = max(pulled.next_offset, state.next_offset)
        if pulled.messages:
            self._on_pulled(held, pulled.messages)
            if self._base.pull_interval_ms:
                await asyncio.sleep(self._base.pull_interval_ms / 1000)
        elif not state.message_count:
            # Messages that the filter skipped count as consumed.
            self._offsets.update(held.queue, state.next_offset)

    async def _correct(self, held: HeldQueue, pulled: PullResult) -> None:
        """Continue where the broker says: the offset is out of the range of the queue."""
        log.warning(
            "group %s, queue %s: offset %d is outside %d to %d, continuing at %d",
            self._name, held.queue, held.state.next_offset, pulled.min_offset, pulled.max_offset,
            pulled.next_offset,
        )  # fmt: skip
        if held.state.message_count:
            # Messages in flight end first; the offset must not move below them.
            held.wake.clear()
            await _wait(held.wake, _CHECK_INTERVAL_S)
            return
        held.state.next_offset = pulled.next_offset
        self._offsets.update(held.queue, pulled.next_offset, may_fall=True)
        await self._offsets.persist((held.queue,))

    async def _pause_after(self, error: TianzhouError, held: HeldQueue, pause_ms: int) -> int:
        """Sleep after a failed pull; returns the next pause."""
        queue = held.queue
        if not queue.topic.startswith(RETRY_TOPIC_PREFIX):
            self._warn(("pull", queue), f"queue {queue}: pull failed: {error}")
        # A slave may lack topics and groups; the next pull goes to the master.
        self._calls.forget(queue)
        if isinstance(error, FlowControlled):
            await asyncio.sleep(_FLOW_CONTROL_PAUSE_MS / 1000)
            return pause_ms
        if isinstance(error, NotSubscribed):
            await self._send_heartbeat()
        elif error.stale_route:
            await self._calls.hub.routes.renew(queue.topic)
        await asyncio.sleep(pause_ms / 1000)
        return min(pause_ms * 2, self._base.pull_error_pause_ms)

    async def _persist_forever(self) -> None:
        while True:
            await asyncio.sleep(self._base.persist_offsets_ms / 1000)
            await self._offsets.persist(tuple(self._held))


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
