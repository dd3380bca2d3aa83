"""Sends one message, retrying until it is stored, the retries are used up, or the deadline passes.

    queue chosen by the picker    every attempt picks a queue, not on the broker that just failed
    queue chosen by the program   every attempt goes there

The deadline covers all attempts. `connection.retry_policy` decides which failures are retried, and
after which pause: what was certainly not sent is retried until the deadline, so a broker that
restarts costs time and no error. A message stored with weaker durability (a late flush or replica)
is a result like any other, unless `retry_when_not_stored` is set.

A broker that does not have the queue shows that the route is outdated: the topic was created with
fewer queues than its template has, or has shrunk. Nothing is stored then, so the route is refreshed
and the send gets one more attempt, whatever its rule.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.hub import Hub, Reply
from tianzhou.client.connection.retry_policy import (
    NO_RETRY,
    FailureKind,
    RetryPauses,
    RetryRule,
    failure_kind,
)
from tianzhou.client.connection.routes import TopicRoute, vip_address
from tianzhou.client.queues import Queue
from tianzhou.client.sending import send_request
from tianzhou.client.sending.picker import Picker
from tianzhou.client.sending.send_request import STATUSES, Outgoing
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.errors import (
    AddressError,
    BrokerError,
    BrokersUnavailable,
    ClientClosed,
    QueueNotFound,
    RemotingError,
    RequestTimeout,
    RouteNotFound,
    SendError,
    SendTimeout,
    TianzhouError,
)
from tianzhou.protocol.bodies.clients import ProducerData
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting import error_responses
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.pending_requests import Waiter

log = logging.getLogger(__name__)

_TEMPLATES_MAX = 65_536


class TimeLimit(NamedTuple):
    """The time-out of a send, and its deadline on the loop's clock."""

    timeout_ms: int
    deadline_s: float

    def left_ms(self, now_s: float) -> float:
        return (self.deadline_s - now_s) * 1000


class StoredResponse(NamedTuple):
    """The response to a message that a broker stored."""

    answer: Command
    queue: Queue


class FirstAttempt(NamedTuple):
    """A first attempt that is retried."""

    queue: Queue
    outcome: TianzhouError | Command
    """The error, or the response of a broker that stored the message with weaker durability."""


@dataclass(slots=True)
class _Send:
    """The state of one send between its attempts."""

    out: Outgoing
    rule: RetryRule
    limit: TimeLimit
    queue: Queue | None
    """The queue that the program chose."""
    try_count: int = 0
    last_broker: str | None = None
    maybe_stored_count: int = 0
    """Attempts after which the message may be stored."""
    route_refreshed: bool = False
    """Whether the route was refreshed because a queue does not exist."""
    pauses: RetryPauses = field(default_factory=RetryPauses)


class RetryingSender:
    """Sends the messages of one producer, and represents it in the hub (`hub.Member`)."""

    __slots__ = ("_headers", "_hub", "_picker", "_settings", "_topics", "group", "on_check")

    def __init__(self, group: str, settings: ProducerSettings) -> None:
        self.group = group
        """The group on the wire."""
        self.on_check: Callable[[Connection, Command], Reply] | None = None
        """Handles transaction checks; None for producers without transactions."""
        self._settings = settings
        self._hub: Hub | None = None
        self._picker = Picker(
            use_faults=settings.send_latency_fault,
            first_index=random.randrange(1 << 16),  # noqa: S311 - spreads load
        )
        self._headers: dict[Queue, dict[str, str]] = {}
        self._topics: dict[str, None] = {}

    # -- life --------------------------------------------------------------------------------------

    @property
    def hub(self) -> Hub:
        """Raises ClientClosed while the producer is not running."""
        if self._hub is None:
            raise ClientClosed(f"group {self.group}: the producer is not started, or closed")
        return self._hub

    @property
    def is_running(self) -> bool:
        return self._hub is not None

    def start(self, hub: Hub) -> None:
        """Join a hub, which must be held until `Hub.leave`."""
        hub.join(self)
        self._hub = hub

    def stop(self) -> Hub:
        """Send nothing more; returns the hub, for the caller to leave."""
        hub, self._hub = self.hub, None
        return hub

    # -- for the hub -------------------------------------------------------------------------------

    def heartbeat(self) -> ProducerData:
        """See `hub.Member`."""
        return ProducerData(group_name=self.group)

    def topics(self) -> Iterable[str]:
        """The topics that messages were sent to."""
        return tuple(self._topics)

    def on_route(self, route: TopicRoute) -> None:
        """See `hub.Member`. Nothing to do: each send reads the current route."""

    def on_request(self, connection: Connection, request: Command) -> Reply:
        """See `hub.Member`: a transaction check."""
        if self.on_check is not None:
            return self.on_check(connection, request)
        log.info("group %s: asked about a transaction by %s", self.group, connection.peer)
        return error_responses.not_supported(request)

    # -- sending -----------------------------------------------------------------------------------

    def post(
        self, out: Outgoing, queue: Queue | None, waiter: Waiter, limit: TimeLimit
    ) -> Queue | None:
        """Make the first attempt without a task; returns its queue.

        None if that needs to wait, or to be measured: then `send` makes all attempts.
        """
        hub, settings = self.hub, self._settings
        route = hub.routes.cached(out.topic)
        if (
            route is None or route.is_template or not route.writable
            or self._picker.faults or settings.try_timeout_ms
        ):  # fmt: skip
            return None
        if out.topic not in self._topics:
            self._topics[out.topic] = None
        chosen = queue or self._picker.pick(out.topic, route.writable, 0)
        address = hub.routes.master_address(chosen.broker_name)
        if address is None:
            return None
        if settings.vip_channel:
            address = vip_address(address)
        timeout_ms, deadline_s = limit
        command = self._command(out, chosen)
        return chosen if hub.post(address, command, waiter, timeout_ms, deadline_s) else None

    async def send(
        self,
        out: Outgoing,
        rule: RetryRule,
        limit: TimeLimit,
        queue: Queue | None = None,
        first: FirstAttempt | None = None,
    ) -> StoredResponse:
        """Send a message; see the module. `first` is the first attempt, if it was made.

        Raises RouteNotFound, BrokerError for an error response that is not retried, SendTimeout
        after the deadline, SendError when the retries are used up.
        """
        send = _Send(out, rule, limit, queue)
        error: TianzhouError | None = None
        stored_weakly: StoredResponse | None = None
        if first is not None:
            send.try_count, send.last_broker = 1, first.queue.broker_name
            if isinstance(first.outcome, Command):
                send.maybe_stored_count = 1
                stored_weakly = StoredResponse(first.outcome, first.queue)
            else:
                error = first.outcome
                if not await self._continue_after(send, error):
                    raise self._failure(send, error)
        route = await self.route_within(out.topic, limit)
        while (left_ms := limit.left_ms(self.hub.loop.time())) > 0:
            chosen = self._next_queue(send, route)
            if self._settings.try_timeout_ms and send.maybe_stored_count < rule.retry_count:
                left_ms = min(left_ms, self._settings.try_timeout_ms)
            try:
                stored = await self._attempt(out, chosen, max(int(left_ms), 1))
            except (RemotingError, RouteNotFound, BrokerError) as failure:
                error = failure
                if not await self._continue_after(send, failure):
                    break
            else:
                if stored.answer.code == ResponseCode.SUCCESS or not rule.until_ok:
                    return stored
                stored_weakly = stored
                send.maybe_stored_count += 1
                if send.maybe_stored_count > rule.retry_count:
                    break
        if stored_weakly is not None:
            return stored_weakly
        raise self._failure(send, error)

    def _next_queue(self, send: _Send, route: TopicRoute) -> Queue:
        """The queue of the next attempt: of the cached route, or of `route` if that has none."""
        newest = self.hub.routes.cached(route.topic)
        if newest is not None and newest.writable:
            route = newest
        chosen = send.queue or self._picker.pick(
            route.topic, route.writable, steady_ms(), send.last_broker
        )
        send.try_count += 1
        send.last_broker = chosen.broker_name
        return chosen

    async def _continue_after(self, send: _Send, error: TianzhouError) -> bool:
        """Wait for the next attempt; False if there is none after this failure."""
        hub, topic, rule = self.hub, send.out.topic, send.rule
        if send.queue is None and not send.route_refreshed and isinstance(error, QueueNotFound):
            send.route_refreshed = True
            await self.refresh_route(topic, send.limit.deadline_s)
            return True
        if error.stale_route:
            hub.routes.refresh_in_background(topic)
        broker_count = 1 if send.queue else self._broker_count(topic)
        kind = failure_kind(error, rule, has_other_broker=broker_count > 1)
        if kind is FailureKind.MAYBE_STORED:
            send.maybe_stored_count += 1
        if kind is FailureKind.FINAL or send.maybe_stored_count > rule.retry_count:
            return False
        pause_s = send.pauses.after_failure(broker_count)
        if pause_s:
            if send.last_broker is not None:
                pause_s = max(pause_s, hub.dial_pause_s(send.last_broker))
            left_s = send.limit.left_ms(hub.loop.time()) / 1000
            await asyncio.sleep(max(min(pause_s, left_s), 0))
        return True

    def _broker_count(self, topic: str) -> int:
        route = self.hub.routes.cached(topic)
        return len({queue.broker_name for queue in route.writable}) if route else 1

    async def _attempt(self, out: Outgoing, queue: Queue, timeout_ms: int) -> StoredResponse:
        hub, faults = self.hub, self._picker.faults
        began_s = hub.loop.time()
        address = await self._address_within(queue, began_s + timeout_ms / 1000)
        # Fetching the route counts against the same time-out.
        timeout_ms = max(int(timeout_ms - (hub.loop.time() - began_s) * 1000), 1)
        began_ms, failed = steady_ms(), True
        try:
            answer = await hub.request(address, self._command(out, queue), timeout_ms)
            failed = answer.code not in STATUSES
        finally:
            if faults is not None:
                now_ms = steady_ms()
                faults.note(queue.broker_name, now_ms - began_ms, now_ms, failed=failed)
        if failed:
            raise self.response_error(answer, queue)
        return StoredResponse(answer, queue)

    def response_error(self, answer: Command, queue: Queue) -> BrokerError:
        """The error of a response whose code is not in STATUSES."""
        address = self._hub.routes.master_address(queue.broker_name) if self._hub else "?"
        return broker_error(
            answer,
            f"topic {queue.topic}, group {self.group}: broker {queue.broker_name} ({address})",
        )

    async def oneway(self, out: Outgoing, limit: TimeLimit, queue: Queue | None = None) -> None:
        """Send without a response.

        Raises RouteNotFound, RemotingError, and SendTimeout after the deadline.
        """
        send = _Send(out, NO_RETRY, limit, queue)
        route = await self.route_within(out.topic, limit)
        while True:
            chosen = self._next_queue(send, route)
            try:
                await self.send_oneway(chosen, self._command(out, chosen), limit)
            except (RemotingError, RouteNotFound) as error:
                if not await self._continue_after(send, error):
                    if isinstance(error, RequestTimeout):
                        raise self._failure(send, error) from error
                    raise
                if limit.left_ms(self.hub.loop.time()) <= 0:
                    raise self._failure(send, error) from error
            else:
                return

    async def send_oneway(self, queue: Queue, command: Command, limit: TimeLimit) -> str:
        """One request without a response to the master of a queue; returns its address.

        Raises RouteNotFound and RemotingError.
        """
        address = await self._address_within(queue, limit.deadline_s)
        left_ms = max(int(limit.left_ms(self.hub.loop.time())), 1)
        await self.hub.oneway(address, command, left_ms)
        return address

    def _failure(self, send: _Send, error: TianzhouError | None) -> TianzhouError:
        if isinstance(error, BrokerError):
            return error
        is_late = self.hub.loop.time() >= send.limit.deadline_s
        subject = f"topic {send.out.topic}, group {self.group}"
        last = f", the last one: {error}" if error else ""
        count = send.try_count
        failure: SendError
        unsure = "not acknowledged, and perhaps stored," if send.maybe_stored_count else None
        if is_late or isinstance(error, RequestTimeout):
            what = unsure or "not sent"
            failure = SendTimeout(
                f"{subject}: {what} within {send.limit.timeout_ms} ms in {count} tries{last}",
                try_count=count, retriable=True,
            )  # fmt: skip
        else:
            failure = SendError(
                f"{subject}: {unsure or 'not stored'} in {count} tries{last}",
                try_count=count, retriable=error is None or error.retriable,
            )  # fmt: skip
        failure.__cause__ = error
        return failure

    # -- routes ------------------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRoute:
        """The route to send to. Raises RouteNotFound and RemotingError."""
        self._topics[topic] = None
        settings = self._settings
        return await self.hub.routes.for_publishing(
            topic, template=settings.template_topic, queue_count=settings.template_queue_count
        )

    async def route_within(self, topic: str, limit: TimeLimit) -> TopicRoute:
        """The route to send to; retried while no nameserver or no broker is available.

        Raises RouteNotFound, RemotingError, and SendTimeout after the deadline.
        """
        route = self.hub.routes.cached(topic)
        if route is not None and route.writable and not route.is_template:
            self._topics[topic] = None
            return route
        pauses = RetryPauses()
        failure: TianzhouError | None = None
        try:
            async with asyncio.timeout_at(limit.deadline_s):
                while True:
                    try:
                        return await self.route(topic)
                    except (RemotingError, BrokersUnavailable) as error:
                        if isinstance(error, AddressError):
                            raise
                        failure = error
                    await asyncio.sleep(pauses.after_failure(1))
        except TimeoutError:
            if failure is not None:
                raise failure from None
            raise SendTimeout(
                f"topic {topic}, group {self.group}: no nameserver returned its route within "
                f"{limit.timeout_ms} ms, nothing was sent",
                try_count=0, retriable=True,
            ) from None  # fmt: skip

    async def refresh_route(self, topic: str, deadline_s: float) -> None:
        """Refresh an outdated route; it stays cached if no nameserver responds."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                await self.hub.routes.refresh((topic,))

    async def address(self, queue: Queue) -> str:
        """The address of a queue's master. Raises RouteNotFound if there is none."""
        hub = self.hub
        address = hub.routes.master_address(queue.broker_name)
        if address is None:
            failures = await hub.routes.renew(queue.topic)
            address = hub.routes.master_address(queue.broker_name)
            if address is None and failures:
                raise failures[0]
        if address is None:
            raise BrokersUnavailable(
                f"topic {queue.topic}, group {self.group}: no master of broker "
                f"{queue.broker_name} is known to the nameserver"
            )
        return vip_address(address) if self._settings.vip_channel else address

    async def _address_within(self, queue: Queue, deadline_s: float) -> str:
        """The same until a deadline. Raises RequestTimeout, too."""
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self.address(queue)
        except TimeoutError:
            raise RequestTimeout(
                f"no nameserver returned the address of broker {queue.broker_name} in time"
            ) from None

    def _command(self, out: Outgoing, queue: Queue) -> Command:
        template = self._headers.get(queue)
        if template is None:
            settings = self._settings
            template = send_request.header_template(
                self.group, queue, settings.template_topic, settings.template_queue_count,
                unit_mode=settings.unit_mode,
            )  # fmt: skip
            if len(self._headers) >= _TEMPLATES_MAX:
                self._headers.clear()
            self._headers[queue] = template
        fields = send_request.fields_of(template, out, wall_ms())
        return Command(code=out.code, ext_fields=fields, body=out.body)
