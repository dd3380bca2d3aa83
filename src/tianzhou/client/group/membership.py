"""Membership of a consumer group: names, subscriptions, heartbeats, start and close.

The base of every consumer that joins a group: those that divide the queues and pull
(`group_member`), and those that share the queues and pop (`simple`). A subscription takes effect
once a heartbeat with it was sent, so there are two tables: `_subscriptions` and `_announced`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any

from tianzhou.client import namespaces
from tianzhou.client.connection.hub import Hub, Reply
from tianzhou.client.connection.routes import TopicRoute
from tianzhou.client.connection.shared_hubs import acquire
from tianzhou.client.group.broker_calls import BrokerCalls
from tianzhou.client.group.settings import Start
from tianzhou.client.group.subscriptions import Subscription, subscription_of
from tianzhou.client.lifetime import Lifetime
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.observe.telemetry import telemetry_of
from tianzhou.client.observe.trace import ConsumeReturn, Tracer
from tianzhou.client.sending import send_request
from tianzhou.client.settings import ClientSettings
from tianzhou.clock import wall_ms
from tianzhou.errors import BrokerError, ClientClosed, ConfigError, MessageRefused, TianzhouError
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.clients import ConsumerData, ConsumerRunningInfo
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting import error_responses
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.repeated_failures import RepeatedFailures

log = logging.getLogger(__name__)


class Membership(Lifetime):
    """The base of all consumers that join a group; see the module."""

    consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self, group: str, settings: ClientSettings, start: Start, *, broadcasting: bool = False
    ) -> None:
        if not isinstance(group, str):  # pyright: ignore[reportUnnecessaryIsInstance] - not all programs are checked
            raise ConfigError(f"the group is {group!r}; it must be a string, the name of the group")
        self._name = group
        self._own_settings = settings
        self._start_from = start
        self._model = "BROADCASTING" if broadcasting else "CLUSTERING"
        self._wire_group = namespaces.wrap(settings.namespace, group)
        self._subscriptions: dict[str, Subscription] = {}
        self._announced: dict[str, Subscription] = {}
        """Those of the last heartbeat; brokers reject a pull with a newer version."""
        self._hub: Hub | None = None
        self._calls_or_none: BrokerCalls | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._repeats = RepeatedFailures()
        self._telemetry = telemetry_of(settings, group)
        self._tracer: Tracer | None = None
        self._closing = False
        self._closed = False
        self._close_done = asyncio.Event()
        self._started_ms = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self._hub else "new"
        return f"<{type(self).__name__} {self._name}, {state}, {len(self._subscriptions)} topics>"

    # -- overridden by consumers -------------------------------------------------------------------

    def _new_calls(self, hub: Hub) -> BrokerCalls:
        """Prepare, before the first heartbeat. Raises ConfigError."""
        return BrokerCalls(hub, self._wire_group, self._own_settings)

    def _begin(self) -> None:
        """Start the tasks of the consumer, which is a member now."""

    async def _stop(self) -> None:
        """Stop the tasks of the consumer, which is still a member."""

    def _on_subscriptions(self) -> None:
        """Queues or subscriptions have changed."""

    # -- names -------------------------------------------------------------------------------------

    @property
    def group(self) -> str:
        """The group on the wire."""
        return self._wire_group

    @property
    def client_id(self) -> str:
        """The client id of this consumer. Raises ClientClosed before the start."""
        return self._calls.hub.client_id

    def _wire_topic(self, topic: str) -> str:
        return namespaces.wrap(self._own_settings.namespace, topic)

    @property
    def _calls(self) -> BrokerCalls:
        if self._calls_or_none is None or self._closed:
            state = "has been closed" if self._closed else "was not started"
            raise ClientClosed(f"group {self._name}: the consumer {state}")
        return self._calls_or_none

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group. Raises ConfigError, RemotingError, BrokerError; then nothing is left."""
        if self._closed or self._hub is not None:
            raise ClientClosed(f"group {self._name}: a consumer can be started only once")
        if not self._name:
            raise ConfigError("a consumer needs the name of its group")
        _check_name(send_request.check_group, self._name)
        self._hub = hub = acquire(self._own_settings, self._wire_group)
        try:
            self._calls_or_none = self._new_calls(hub)
            # An unreachable nameserver may come back; a wrong address stays wrong.
            refreshed = await hub.routes.refresh(self.topics())
            _raise_first(each for each in refreshed if isinstance(each, ConfigError))
            for subscription in tuple(self._subscriptions.values()):
                await self._calls.check_subscription(subscription)
            hub.join(self)
            errors = await self._send_heartbeat()
            _raise_first(e for e in errors if isinstance(e, BrokerError) and not e.retriable)
            self._started_ms = wall_ms()
            if self._own_settings.trace:
                self._tracer = Tracer(self._wire_group, "CONSUME", self._own_settings)
                self._tracer.start(hub)
            self._begin()
        except BaseException:
            self._closed = True
            await hub.leave(self)
            await hub.release(self._wire_group)
            raise
        log.info("group %s: consumer %s has joined", self._name, hub.client_id)

    async def close(self) -> None:
        """Leave the group."""
        if self._closing:
            await self._close_done.wait()
            return
        self._closing = True
        try:
            if self._hub is not None and not self._closed:
                await self._stop()
                if self._tracer is not None:
                    await self._tracer.close()
                await self._leave()
        finally:
            self._closed = True
            self._close_done.set()

    async def _leave(self) -> None:
        """Leave the group and release the hub."""
        assert self._hub is not None
        hub, self._hub = self._hub, None
        await hub.leave(self)
        await hub.release(self._wire_group)
        log.info("group %s: consumer %s has left", self._name, hub.client_id)

    def _observe(self, messages: Sequence[ReceivedMessage], began_s: float) -> None:
        """Record received messages in telemetry and trace."""
        if self._telemetry is not None:
            self._telemetry.received(messages, began_s)
        if self._tracer is not None:
            self._tracer.begin(messages).end(ConsumeReturn.SUCCESS)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task that ends with the consumer at the latest."""
        task = asyncio.get_running_loop().create_task(work, name=f"{name} {self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("group %s: task %s failed", self._name, task.get_name(), exc_info=error)

    def _warn(self, kind: tuple[str, object], text: str) -> None:
        """Log a warning, rate limited by kind."""
        ending = self._repeats.ending(kind, asyncio.get_running_loop().time())
        if ending is not None:
            log.warning("group %s, %s%s", self._name, text, ending)

    # -- subscriptions -----------------------------------------------------------------------------

    def _add_subscription(self, topic: str, tags: str, sql: str | None) -> Subscription:
        _check_name(send_request.check_name_of_topic, topic)
        wire_topic = self._wire_topic(topic)
        subscription = subscription_of(wire_topic, tags, sql, wall_ms())
        self._subscriptions[wire_topic] = subscription
        if self._hub is not None:
            self._run(self._announce(wire_topic), "announce")
        return subscription

    def _remove_subscription(self, topic: str) -> None:
        self._subscriptions.pop(self._wire_topic(topic), None)
        if self._hub is not None:
            self._run(self._announce(None), "announce")

    async def _announce(self, topic: str | None) -> None:
        """Send the changed subscriptions to the brokers, then apply them."""
        hub = self._calls.hub
        if topic is not None:
            await hub.routes.refresh([topic])
        await self._send_heartbeat()
        self._on_subscriptions()

    async def _send_heartbeat(self) -> list[TianzhouError]:
        sent = dict(self._subscriptions)
        failures = await self._calls.hub.heartbeat()
        self._announced = sent
        return failures

    # -- for the hub -------------------------------------------------------------------------------

    def heartbeat(self) -> ConsumerData:
        """The entry of this member in the heartbeat."""
        start = self._start_from
        where = "TIMESTAMP" if isinstance(start, datetime) else f"{start.upper()}_OFFSET"
        return ConsumerData(
            group_name=self._wire_group,
            consume_type=self.consume_type,
            message_model=self._model,
            consume_from_where=f"CONSUME_FROM_{where}",
            subscriptions=[each.to_wire() for each in self._subscriptions.values()],
            unit_mode=self._own_settings.unit_mode,
        )

    def topics(self) -> Iterable[str]:
        """Topics whose routes are needed."""
        return tuple(self._subscriptions)

    def on_route(self, route: TopicRoute) -> None:
        """The queues of a topic have changed."""
        if route.topic in self._subscriptions:
            self._on_subscriptions()

    def on_request(self, connection: Connection, request: Command) -> Reply:
        """Handle a request of a broker."""
        del connection
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            return success(bodies.encode(self.running_info()))
        return error_responses.not_supported(request)

    def running_info(self) -> ConsumerRunningInfo:
        """The state of this consumer, as `mqadmin consumerStatus` shows it."""
        return ConsumerRunningInfo(
            properties=self._info_properties(),
            subscriptions=[each.to_wire() for each in self._subscriptions.values()],
        )

    def _info_properties(self) -> dict[str, str]:
        return {
            "PROP_NAMESERVER_ADDR": ";".join(self._own_settings.namesrv_addresses()),
            "PROP_CONSUME_TYPE": self.consume_type,
            "PROP_CLIENT_VERSION": "V4_9_7",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
        }


def _check_name(check: Callable[[str], None], name: str) -> None:
    """Raises ConfigError for a name that every broker rejects."""
    try:
        check(name)
    except MessageRefused as e:
        raise ConfigError(str(e)) from None


def success(body: bytes) -> Command:
    """The response to a successful request of a broker."""
    return Command(code=ResponseCode.SUCCESS, body=body)


def _raise_first(errors: Iterable[TianzhouError]) -> None:
    for error in errors:
        raise error
