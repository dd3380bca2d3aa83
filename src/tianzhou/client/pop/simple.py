"""The simple consumer: it pops messages, and any number of consumers share a queue.

    async with SimpleConsumer("billing", namesrv="localhost:9876") as consumer:
        await consumer.subscribe("orders", tags="paid")
        for message in await consumer.receive(16, invisible=30):
            ...
            await consumer.ack(message)

Received messages are invisible to the rest of the group for the invisible time. Those that are not
acknowledged in time are delivered again, to any consumer, with a higher `reconsume_times`. The
broker keeps all offsets; queues are not assigned to consumers, so there is no rebalancing.

Path of a message: `PollScheduler` names a target that may have messages -> `PendingPops` pops there
through `PopCalls` -> `receive` returns it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from typing import Unpack, cast

from tianzhou.client.connection.hub import Hub, Reply
from tianzhou.client.group.broker_calls import BrokerCalls
from tianzhou.client.group.membership import Membership
from tianzhou.client.group.settings import SimpleOptions, SimpleSettings
from tianzhou.client.message import duration_ms
from tianzhou.client.pop.calls import ANY_QUEUE, POP_COUNT_MAX, PopCalls, PopLimits
from tianzhou.client.pop.messages import PoppedMessage
from tianzhou.client.pop.pending import PendingPops
from tianzhou.client.pop.poll_scheduler import PollScheduler
from tianzhou.client.queues import Queue
from tianzhou.client.settings import ClientSettings, settings_from
from tianzhou.errors import (
    AckManyError,
    ClientClosed,
    ConfigError,
    HandleExpired,
    RemotingError,
    RouteNotFound,
    TianzhouError,
)
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

log = logging.getLogger(__name__)

_LISTEN_MS = 5_000
"""Then the target is polled all the same: a notification is only a hint."""
_ROUTE_CHECK_S = 1.0
"""How often a receiver checks whether a topic has a broker."""

_Errors = dict[Queue, TianzhouError]


class SimpleConsumer(Membership):
    """A consumer that pops messages; keywords are the fields of `SimpleSettings`.

    It registers as Java's pop clients do: CONSUME_PASSIVELY.
    """

    def __init__(
        self,
        group: str,
        *,
        settings: ClientSettings | None = None,
        **options: Unpack[SimpleOptions],
    ) -> None:
        """Nothing is connected yet. Raises ConfigError."""
        self._settings = settings_from(SimpleSettings, settings, options)
        super().__init__(group, self._settings, self._settings.start)
        self._pending: PendingPops
        """Set by the start."""
        self._scheduler = PollScheduler(self._listen, group)

    # -- life --------------------------------------------------------------------------------------

    def _new_calls(self, hub: Hub) -> BrokerCalls:
        first = self._settings.start == "first"
        calls = PopCalls(hub, self._wire_group, self._settings, from_first=first)
        self._pending = PendingPops(calls, self._name)
        return calls

    def _begin(self) -> None:
        self._on_subscriptions()

    async def close(self) -> None:
        """Leave the group. Pending calls of `receive` raise ClientClosed, and messages that arrive
        for them are released. Acknowledge received messages before.
        """
        await super().close()

    async def _stop(self) -> None:
        listeners = self._scheduler.close()
        await self._pending.close()
        if ending := [*listeners, *self._tasks]:
            await asyncio.wait(ending)

    @property
    def _pops(self) -> PopCalls:
        if self._closing:
            raise ClientClosed(f"group {self._name}: the consumer has been closed")
        return cast("PopCalls", self._calls)

    # -- subscriptions -----------------------------------------------------------------------------

    async def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Subscribe to a topic. Raises ConfigError, BrokerError.

        `tags` is `*`, or tags joined by `||`; `sql` is an SQL92 condition on properties instead.
        """
        subscription = self._add_subscription(topic, tags, sql)
        if self._hub is not None:
            await self._announce(subscription.topic)
            await self._calls.check_subscription(subscription)
            self._scheduler.renew(subscription.topic)

    async def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""
        self._remove_subscription(topic)
        self._on_subscriptions()

    def _on_subscriptions(self) -> None:
        if self._hub is None or self._closing:
            return
        self._scheduler.update(
            Queue(topic, broker_name, ANY_QUEUE)
            for topic in self._subscriptions
            for broker_name in self._broker_names(self._hub, topic)
        )

    @staticmethod
    def _broker_names(hub: Hub, topic: str) -> set[str]:
        route = hub.routes.cached(topic)
        if route is None or route.is_template:
            return set()
        return {queue.broker_name for queue in route.readable}

    # -- messages ----------------------------------------------------------------------------------

    async def receive(
        self,
        max_count: int = POP_COUNT_MAX,
        *,
        invisible: float | timedelta | None = None,
        wait: float | timedelta | None = None,
    ) -> list[PoppedMessage]:
        """The next messages, all of one topic and broker; an empty list after the time-out.

        They are invisible to others for `invisible` (seconds or a timedelta; default
        `invisible_ms`). `wait` (default `wait_ms`) is how long to wait for the first one; 0 polls
        every broker once. Raises ConfigError, ClientClosed, BrokerError for an error response, and
        RemotingError if no broker responded.
        """
        limits = self._limits(max_count, invisible)
        wait_ms = self._settings.wait_ms if wait is None else duration_ms(wait)
        if wait_ms < 0:
            raise ConfigError(f"wait is {wait}, it cannot be negative")
        began_s = time.monotonic()
        if wait_ms:
            messages = await self._receive_within(limits, wait_ms / 1000)
        else:
            messages = await self._receive_now(limits)
        if messages:
            self._observe(messages, began_s)
        return messages

    def _limits(self, max_count: int, invisible: float | timedelta | None) -> PopLimits:
        invisible_ms = self._settings.invisible_ms if invisible is None else duration_ms(invisible)
        if not 1 <= max_count <= POP_COUNT_MAX:
            raise ConfigError(f"max_count is {max_count}, 1 to {POP_COUNT_MAX} are possible")
        if invisible_ms < 1:
            raise ConfigError(f"invisible is {invisible}, at least a millisecond is needed")
        if not self._subscriptions:
            raise ConfigError(f"group {self._name}: no topic is subscribed")
        return PopLimits(max_count, invisible_ms)

    async def _receive_now(self, limits: PopLimits) -> list[PoppedMessage]:
        errors: _Errors = {}
        self._find_routes()
        for target in self._scheduler.targets:
            if messages := await self._try(target, limits, errors):
                return messages
        self._raise_if_all_failed(errors)
        return []

    async def _receive_within(self, limits: PopLimits, wait_s: float) -> list[PoppedMessage]:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + wait_s
        errors: _Errors = {}
        while (left_s := ends_s - loop.time()) > 0:
            is_complete = self._find_routes()
            target = await self._scheduler.next_target(
                left_s if is_complete else min(left_s, _ROUTE_CHECK_S)
            )
            if target is not None and (messages := await self._try(target, limits, errors)):
                return messages
        self._raise_if_all_failed(errors)
        return []

    def _find_routes(self) -> bool:
        """Whether every topic has a broker; missing routes are fetched."""
        hub = self._pops.hub
        missing = [each for each in self._subscriptions if not self._broker_names(hub, each)]
        for topic in missing:
            hub.routes.refresh_in_background(topic)
        return not missing

    async def _try(
        self, target: Queue, limits: PopLimits, errors: _Errors
    ) -> list[PoppedMessage] | None:
        """Pop at a target; a retriable error is collected. Raises the others."""
        try:
            messages = await self._pop_at(target, limits)
        except TianzhouError as error:
            self._scheduler.on_failure(target)
            if not error.retriable:
                raise
            errors[target] = error
            self._warn(("pop", target), f"topic {target.topic}, {target.broker_name}: {error}")
            if isinstance(error, RemotingError | RouteNotFound):
                self._pops.hub.routes.refresh_in_background(target.topic)
            return None
        errors.pop(target, None)
        return messages

    def _raise_if_all_failed(self, errors: _Errors) -> None:
        """Raise an error if all targets failed."""
        _ = self._pops  # raises ClientClosed
        if errors and all(target in errors for target in self._scheduler.targets):
            raise next(iter(errors.values()))

    async def _pop_at(self, target: Queue, limits: PopLimits) -> list[PoppedMessage]:
        """Pop at a target and report the result to the scheduler."""
        subscription = self._subscriptions.get(target.topic)
        messages = await self._pending.pop(target, subscription, limits) if subscription else []
        if messages:
            self._scheduler.on_messages(target)
        else:
            self._scheduler.on_empty(target)
        return messages

    async def _listen(self, target: Queue) -> bool:
        wanted = self._subscriptions.get(target.topic)
        return wanted is not None and await self._pops.listen(target, wanted, _LISTEN_MS)

    # -- acknowledgement ---------------------------------------------------------------------------

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message: it is not delivered again. Idempotent.

        Raises HandleExpired if its invisible time is over, RemotingError, BrokerError.
        """
        await self._pops.ack(message)

    async def ack_many(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge messages, in one request per broker if it supports that (RocketMQ 5.1).

        Raises AckManyError if some could not be acknowledged; the others are.
        """
        wanted = list(messages)
        outcomes = await self._pops.ack_many(wanted)
        failures = [each for each in outcomes if each is not None]
        if failures:
            raise AckManyError(
                f"group {self._name}: {len(failures)} of {len(wanted)} messages were not "
                f"acknowledged; the first: {failures[0]}",
                outcomes=outcomes,
            ) from failures[0]

    async def change_invisible(self, message: PoppedMessage, duration: float | timedelta) -> str:
        """Set the invisible time of a message, from now on (seconds or a timedelta).

        0 makes it visible immediately. Returns the new handle, which the message keeps; the old one
        is invalid. Raises HandleExpired, ConfigError, RemotingError, BrokerError.
        """
        invisible_ms = duration_ms(duration)
        if invisible_ms < 0:
            raise ConfigError(f"the duration is {duration}, it cannot be negative")
        await self._pops.change_invisible(message, invisible_ms)
        return message.handle

    # -- a stream ----------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncGenerator[PoppedMessage]:
        """The messages one by one; asking for the next one acknowledges the one before.

        A loop that is left does not acknowledge its last message. `close` ends the stream.
        """
        while not self._closing:
            for message in await self._receive_for_stream():
                yield message
                try:
                    await self.ack(message)
                except HandleExpired as error:
                    self._warn(("expired", message.topic), f"acknowledged too late: {error}")

    async def _receive_for_stream(self) -> list[PoppedMessage]:
        try:
            # One at a time: the invisible time of others would run while they wait here.
            return await self.receive(1, wait=max(self._settings.wait_ms / 1000, _ROUTE_CHECK_S))
        except ClientClosed:
            if self._closing:
                return []
            raise
        except TianzhouError as error:
            if not error.retriable:
                raise
            return []  # `receive` has logged it and waited

    # -- for the hub -------------------------------------------------------------------------------

    def on_request(self, connection: Connection, request: Command) -> Reply:
        """Handle a request of a broker; changes of the group do not matter here."""
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return None
        return super().on_request(connection, request)
