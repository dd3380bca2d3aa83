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
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.hub import Hub
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
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.pending_requests import Waiter

_TEMPLATES_MAX = 65_536


class TimeLimit(NamedTuple):
    """The time-out of a send, and its deadline on the loop's clock."""

    timeout_ms: int
    deadline_s: float

    def left_ms(self, now_s: float) -> float:
        return (self.deadline_s - now_s) * 1000


@dataclass(frozen=True, slots=True)
class FirstAttempt:
    """A first attempt that is retried: it failed, or stored with weaker durability."""

    broker_name: str
    error: TianzhouError | None = None
    stored_weakly: "StoredResponse | None" = None


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response to a message that a broker stored."""

    answer: Command
    queue: Queue


class _SendProgress:
    """The state of one send between its attempts."""

    __slots__ = ("last_broker", "maybe_stored_count", "pauses", "route_refreshed", "try_count")

    def __init__(self, first: FirstAttempt | None) -> None:
        self.try_count = 1 if first else 0
        self.last_broker = first.broker_name if first else None
        self.maybe_stored_count = 1 if first is not None and first.stored_weakly is not None else 0
        """Attempts after which the message may be stored."""
        self.route_refreshed = False
        """Whether the route was refreshed because a queue does not exist."""
        self.pauses = RetryPauses()


class RetryingSender:
    """Sends the messages of one producer."""

    __slots__ = ("_group", "_headers", "_hub", "_picker", "_settings", "_topics")

    def __init__(self, group: str, settings: ProducerSettings) -> None:
        self._group = group
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
            raise ClientClosed(f"group {self._group}: the producer is not started, or closed")
        return self._hub

    @property
    def is_running(self) -> bool:
        return self._hub is not None

    def start(self, hub: Hub) -> None:
        self._hub = hub

    def stop(self) -> None:
        self._hub = None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that messages were sent to."""
        return tuple(self._topics)

    # -- sending -----------------------------------------------------------------------------------

    def post(
        self, out: Outgoing, queue: Queue | None, waiter: Waiter, timeout_ms: int, deadline_s: float
    ) -> Queue | None:
        """Make the first attempt without a task; returns its queue.

        None if that needs to wait, or to be measured: then `send` makes all attempts.
        """
        hub, settings = self.hub, self._settings
        route = hub.routes.cached(out.topic)
        if route is None or route.is_template or not route.writable or self._picker.faults:
            return None
        if out.topic not in self._topics:
            self._topics[out.topic] = None
        chosen = queue or self._picker.pick(out.topic, route.writable, 0)
        address = hub.routes.master_address(chosen.broker_name)
        if address is None:
            return None
        if settings.vip_channel:
            address = vip_address(address)
        if settings.try_timeout_ms:
            return None
        command = self._command(out, chosen)
        return chosen if hub.post(address, command, waiter, timeout_ms, deadline_s) else None

    async def send(
        self,
        out: Outgoing,
        rule: RetryRule,
        *,
        timeout_ms: int,
        deadline_s: float,
        queue: Queue | None = None,
        first: FirstAttempt | None = None,
    ) -> StoredResponse:
        """Send a message; see the module. `first` is the first attempt, if it was made.

        Raises RouteNotFound, BrokerError for an error response that is not retried, SendTimeout
        after the deadline, SendError when the retries are used up.
        """
        limit = TimeLimit(timeout_ms, deadline_s)
        progress = _SendProgress(first)
        error = first.error if first else None
        stored_weakly = first.stored_weakly if first else None
        if error is not None and not await self._continue_after(
            progress, out, queue, rule, error, limit
        ):
            raise self._failure(out.topic, error, progress, limit)
        route = await self.route_within(out.topic, limit)
        while (left_ms := limit.left_ms(self.hub.loop.time())) > 0:
            route = self._newest_route(route)
            chosen = queue or self._picker.pick(
                out.topic, route.writable, steady_ms(), progress.last_broker
            )
            progress.try_count += 1
            attempt_ms = self._attempt_ms(
                left_ms, last=progress.maybe_stored_count >= rule.retry_count
            )
            try:
                stored = await self._attempt(self.hub, out, chosen, attempt_ms)
            except (RemotingError, RouteNotFound, BrokerError) as failure:
                error = failure
                progress.last_broker = chosen.broker_name
                if not await self._continue_after(progress, out, queue, rule, failure, limit):
                    break
            else:
                if stored.answer.code == ResponseCode.SUCCESS or not rule.until_ok:
                    return stored
                stored_weakly = stored
                progress.last_broker = chosen.broker_name
                progress.maybe_stored_count += 1
                if progress.maybe_stored_count > rule.retry_count:
                    break
        if stored_weakly is not None:
            return stored_weakly
        raise self._failure(out.topic, error, progress, limit)

    def _newest_route(self, route: TopicRoute) -> TopicRoute:
        """The cached route if it has writable queues, else the older one."""
        newest = self.hub.routes.cached(route.topic)
        return newest if newest is not None and newest.writable else route

    async def _continue_after(
        self,
        progress: _SendProgress,
        out: Outgoing,
        queue: Queue | None,
        rule: RetryRule,
        error: TianzhouError,
        limit: TimeLimit,
    ) -> bool:
        """Wait for the next attempt; False if there is none after this failure."""
        hub = self.hub
        if queue is None and not progress.route_refreshed and isinstance(error, QueueNotFound):
            progress.route_refreshed = True
            await self.refresh_route(out.topic, limit.deadline_s)
            return True
        if error.stale_route:
            hub.routes.refresh_in_background(out.topic)
        broker_count = 1 if queue else self._broker_count(out.topic)
        verdict = failure_kind(error, rule, has_other_broker=broker_count > 1)
        if verdict is FailureKind.MAYBE_STORED:
            progress.maybe_stored_count += 1
        if verdict is FailureKind.FINAL or progress.maybe_stored_count > rule.retry_count:
            return False
        pause_s = progress.pauses.after_failure(broker_count)
        if pause_s and progress.last_broker is not None:
            pause_s = max(pause_s, hub.dial_pause_s(progress.last_broker))
        await self._pause(pause_s, limit)
        return True

    async def _pause(self, pause_s: float, limit: TimeLimit) -> None:
        """Wait, but not past the deadline."""
        if pause_s:
            left_s = limit.left_ms(self.hub.loop.time()) / 1000
            await asyncio.sleep(max(min(pause_s, left_s), 0))

    def _broker_count(self, topic: str) -> int:
        route = self.hub.routes.cached(topic)
        return len({queue.broker_name for queue in route.writable}) if route else 1

    def _attempt_ms(self, left_ms: float, *, last: bool) -> int:
        limit_ms = self._settings.try_timeout_ms
        if limit_ms and not last:
            left_ms = min(left_ms, limit_ms)
        return max(int(left_ms), 1)

    async def _attempt(
        self, hub: Hub, out: Outgoing, queue: Queue, timeout_ms: int
    ) -> StoredResponse:
        faults = self._picker.faults
        began_s = hub.loop.time()
        address = await self._address_within(queue, began_s + timeout_ms / 1000)
        # The look-up counts against the same time-out.
        timeout_ms = max(int(timeout_ms - (hub.loop.time() - began_s) * 1000), 1)
        command = self._command(out, queue)
        if faults is None:
            answer = await hub.request(address, command, timeout_ms)
        else:
            answer = await self._timed(hub, address, command, timeout_ms, queue.broker_name)
        if answer.code in STATUSES:
            return StoredResponse(answer, queue)
        raise self.response_error(answer, queue)

    def response_error(self, answer: Command, queue: Queue) -> BrokerError:
        """The error of a response whose code is not in STATUSES."""
        address = self._hub.routes.master_address(queue.broker_name) if self._hub else "?"
        return broker_error(
            answer,
            f"topic {queue.topic}, group {self._group}: broker {queue.broker_name} ({address})",
        )

    async def _timed(
        self, hub: Hub, address: str, command: Command, timeout_ms: int, broker_name: str
    ) -> Command:
        """A request whose latency is recorded in the fault table."""
        faults = self._picker.faults
        assert faults is not None
        began_ms = steady_ms()
        failed = True
        try:
            answer = await hub.request(address, command, timeout_ms)
            failed = answer.code not in STATUSES
        finally:
            now_ms = steady_ms()
            faults.note(broker_name, now_ms - began_ms, now_ms, failed=failed)
        return answer

    async def oneway(self, out: Outgoing, limit: TimeLimit, queue: Queue | None = None) -> Queue:
        """Send without a response; returns the queue.

        Raises RouteNotFound, RemotingError, and SendTimeout after the deadline.
        """
        route = await self.route_within(out.topic, limit)
        progress = _SendProgress(None)
        while True:
            route = self._newest_route(route)
            chosen = queue or self._picker.pick(
                out.topic, route.writable, steady_ms(), progress.last_broker
            )
            progress.try_count += 1
            try:
                await self.send_oneway(chosen, self._command(out, chosen), limit)
            except (RemotingError, RouteNotFound) as error:
                progress.last_broker = chosen.broker_name
                if not await self._continue_after(progress, out, queue, NO_RETRY, error, limit):
                    if isinstance(error, RequestTimeout):
                        raise self._failure(out.topic, error, progress, limit) from error
                    raise
                if limit.left_ms(self.hub.loop.time()) <= 0:
                    raise self._failure(out.topic, error, progress, limit) from error
            else:
                return chosen

    async def send_oneway(self, queue: Queue, command: Command, limit: TimeLimit) -> str:
        """One request without a response to the master of a queue; returns its address.

        Raises RouteNotFound and RemotingError.
        """
        address = await self._address_within(queue, limit.deadline_s)
        left_ms = max(int(limit.left_ms(self.hub.loop.time())), 1)
        await self.hub.oneway(address, command, left_ms)
        return address

    def _failure(
        self, topic: str, error: TianzhouError | None, progress: _SendProgress, limit: TimeLimit
    ) -> TianzhouError:
        if isinstance(error, BrokerError):
            return error
        stored_weakly = self.hub.loop.time() >= limit.deadline_s
        subject = f"topic {topic}, group {self._group}"
        last = f", the last one: {error}" if error else ""
        count = progress.try_count
        failure: SendError
        if stored_weakly or isinstance(error, RequestTimeout):
            what = "not stored" if progress.maybe_stored_count else "not sent"
            failure = SendTimeout(
                f"{subject}: {what} within {limit.timeout_ms} ms in {count} tries{last}",
                try_count=count, retriable=True,
            )  # fmt: skip
        else:
            failure = SendError(
                f"{subject}: not stored in {count} tries{last}",
                try_count=count, retriable=error is None or error.retriable,
            )  # fmt: skip
        failure.__cause__ = error
        return failure

    def probe(self, queue: Queue) -> None:
        """A first attempt timed out: check the connection."""
        address = self.hub.routes.master_address(queue.broker_name)
        if address is not None:
            self.hub.probe(address)

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
                f"topic {topic}, group {self._group}: no nameserver returned its route within "
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
            await hub.routes.get(queue.topic, refresh=True)
            address = hub.routes.master_address(queue.broker_name)
        if address is None:
            raise BrokersUnavailable(
                f"topic {queue.topic}, group {self._group}: no master of broker "
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
            template = self._new_template(queue)
        fields = send_request.fields_of(template, out, wall_ms())
        return Command(code=out.code, ext_fields=fields, body=out.body)

    def _new_template(self, queue: Queue) -> dict[str, str]:
        settings = self._settings
        template = send_request.header_template(
            self._group,
            queue,
            settings.template_topic,
            settings.template_queue_count,
            unit_mode=settings.unit_mode,
        )
        if len(self._headers) >= _TEMPLATES_MAX:
            self._headers.clear()
        self._headers[queue] = template
        return template
