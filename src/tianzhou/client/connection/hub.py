"""The hub: what all clients of one cluster share within one process and event loop.

    connections   one per broker and nameserver, opened when needed, with back-off
    routes        cached (`route_cache`), refreshed every 30 s, on request and after errors
    heartbeats    every 30 s to all brokers of the routes, and immediately when a member joins, a
                  broker appears or a connection is lost
    requests      of brokers (transaction checks, rebalance notices, offset resets, replies), passed
                  to the member of the group

`shared_hubs.acquire` returns the hub for some settings. Names of topics and groups are those on the
wire, with their namespace.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.dead_connections import DeadConnectionDetector
from tianzhou.client.connection.dial_backoff import DialBackoff
from tianzhou.client.connection.nameservers import Nameservers
from tianzhou.client.connection.retry_policy import NO_RETRY, FailureKind, RetryPauses, failure_kind
from tianzhou.client.connection.route_cache import RouteCache
from tianzhou.client.connection.routes import TopicRoute
from tianzhou.client.identity import new_client_id
from tianzhou.client.settings import ClientSettings
from tianzhou.errors import (
    ClientClosed,
    ConfigError,
    ConnectError,
    NameserverUnavailable,
    NotANameserver,
    RecordError,
    RequestTimeout,
    RouteNotFound,
    TianzhouError,
)
from tianzhou.names import MASTER_ID, RETRY_TOPIC_PREFIX
from tianzhou.protocol import bodies, headers, properties
from tianzhou.protocol.acl import sign
from tianzhou.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.clients import UnregisterClientRequest
from tianzhou.protocol.records.record import decode_record
from tianzhou.remoting import error_responses
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.pending_requests import Waiter
from tianzhou.remoting.repeated_failures import RepeatedFailures

log = logging.getLogger(__name__)

R = TypeVar("R")
Reply = Command | Awaitable[Command | None] | None

_HEARTBEAT_RETRY_MS = 500


class Member(Protocol):
    """A producer or consumer that has joined a hub."""

    @property
    def group(self) -> str:
        """The group on the wire."""
        ...

    def heartbeat(self) -> ProducerData | ConsumerData:
        """The entry of this member in the heartbeat."""
        ...

    def topics(self) -> Iterable[str]:
        """Topics whose routes it needs; they are refreshed periodically."""
        ...

    def on_route(self, route: TopicRoute) -> None:
        """The route of a topic has changed; called for every topic of the hub."""
        ...

    def on_request(self, connection: Connection, request: Command) -> Reply:
        """Handle a broker's request to the group; an exception becomes an error response."""
        ...


class Hub:
    """Connections, routes and heartbeats of the clients of one cluster."""

    def __init__(self, settings: ClientSettings, on_stopped: "Callable[[Hub], None]") -> None:
        """Use `shared_hubs.acquire`. The last release calls `on_stopped`. Raises ConfigError."""
        self._on_stopped = on_stopped
        self.settings = settings
        self.client_id = new_client_id(settings)
        self.broker_versions: dict[str, int] = {}
        """Version ordinals of brokers by address, from their responses to heartbeats."""
        self.replies: dict[str, asyncio.Future[Command]] = {}
        """Requests that wait for PUSH_REPLY_MESSAGE_TO_CLIENT, by correlation id."""
        self._pid = os.getpid()
        self.loop = asyncio.get_running_loop()
        self._heartbeat_wanted = asyncio.Event()
        self.namesrvs = Nameservers(
            settings.namesrv_addresses(), self.request, self._warn, settings.api_timeout_ms
        )
        self._client = Client(tls=settings.tls, handle=self._on_request, on_closed=self._on_closed)
        self.routes = RouteCache(
            self.namesrvs,
            check_open=self._check_open,
            on_failure=self._warn_of_route,
            on_route=self._on_route,
            on_new_broker=self._heartbeat_wanted.set,
        )
        self._backoff = DialBackoff(settings.reconnect_min_ms, settings.reconnect_max_ms)
        self._producers: list[Member] = []
        self._consumers: dict[str, Member] = {}
        self.user_count = 0
        """The number of users, maintained by `acquire` and `release`."""
        self.reserved_groups: set[str] = set()
        """Groups whose consumer uses this hub."""
        self._dead_connections = DeadConnectionDetector()
        self._repeats = RepeatedFailures()
        self.closed = False
        self._tasks = (
            self.loop.create_task(self._poll_routes(), name=f"routes {self.client_id}"),
            self.loop.create_task(self._heartbeat_loop(), name=f"heartbeats {self.client_id}"),
        )

    def __repr__(self) -> str:
        return f"<Hub {self.client_id} of {self.namesrvs}>"

    # -- requests ----------------------------------------------------------------------------------

    async def request(self, address: str, command: Command, timeout_ms: int) -> Command:
        """Send a signed request; returns the response, whatever its code. Raises RemotingError.

        During the back-off after a failed connection it raises ConnectError.
        """
        self._backoff.check(address, self.loop.time())
        self._prepare(command)
        before = self._client.opened(address)
        received_bytes = before.received_bytes if before else 0
        try:
            return await self._client.request(address, command, timeout_ms)
        except ConnectError as error:
            self._backoff.failed(address, self.loop.time(), error)
            raise
        except RequestTimeout:
            now = self._client.opened(address)
            if now is not None and before in (now, None):
                now_s = self.loop.time()
                reason = self._dead_connections.reason_to_give_up(
                    address, now, received_bytes, timeout_ms, now_s
                )
                if reason is not None:
                    now.abort(reason)
            raise

    async def call(
        self, address: str, command: Command, timeout_ms: int | None = None, *, subject: str = ""
    ) -> Command:
        """The response to a request that must succeed. Raises RemotingError and BrokerError.

        `subject` names the request in the text of the error.
        """
        answer = await self.request(address, command, timeout_ms or self.settings.api_timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer, subject or f"request {command.code} to {address}")
        return answer

    async def retry_unsent(
        self, attempt: Callable[[], Awaitable[R]], topic: str, deadline_s: float
    ) -> R:
        """The result of `attempt`, retried until the deadline while nothing was sent.

        For requests to the broker of one queue of a topic, which may restart.
        """
        pauses = RetryPauses()
        while True:
            try:
                return await attempt()
            except TianzhouError as error:
                left_s = deadline_s - self.loop.time()
                if (
                    failure_kind(error, NO_RETRY, has_other_broker=False)
                    is not FailureKind.NOT_SENT
                    or left_s <= 0
                ):
                    raise
                self.routes.refresh_in_background(topic)
                await asyncio.sleep(min(pauses.after_failure(1), left_s))

    async def oneway(self, address: str, command: Command, timeout_ms: int | None = None) -> None:
        """Send a signed request without a response. Raises RemotingError."""
        self._backoff.check(address, self.loop.time())
        self._prepare(command)
        try:
            await self._client.oneway(address, command, timeout_ms or self.settings.api_timeout_ms)
        except ConnectError as error:
            self._backoff.failed(address, self.loop.time(), error)
            raise

    def oneway_on(self, connection: Connection, command: Command) -> None:
        """Send a signed request without a response on the connection of another request.

        Raises RemotingError.
        """
        self._prepare(command)
        connection.oneway(command)

    def post(
        self, address: str, command: Command, waiter: Waiter, timeout_ms: int, deadline_s: float
    ) -> bool:
        """Send a signed request without a task; see `Connection.post`. False: use `request`."""
        connection = self._client.opened(address)
        if connection is None:
            return False
        self._prepare(command)
        return connection.post(command, waiter, timeout_ms, deadline_s)

    def probe(self, broker_name: str) -> None:
        """A posted request timed out: send a heartbeat to check the connection."""
        address = self.routes.master_address(broker_name)
        if address is not None and self._client.opened(address) is not None:
            self._heartbeat_wanted.set()

    def dial_pause_s(self, broker_name: str) -> float:
        """The remaining back-off of a broker's master."""
        address = self.routes.master_address(broker_name)
        return self._backoff.remaining_s(address, self.loop.time()) if address else 0.0

    def _prepare(self, command: Command) -> None:
        command.encoding = self.settings.header_encoding
        if self.settings.credentials is not None:
            sign(command, self.settings.credentials)

    # -- routes ------------------------------------------------------------------------------------

    async def _poll_routes(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll_namesrv_ms / 1000)
            wanted = {topic for member in self._members() for topic in member.topics()}
            self.routes.retain(wanted)
            await self.routes.refresh(sorted(wanted))
            self.routes.forget_brokers()

    def _on_route(self, route: TopicRoute) -> None:
        for member in self._members():
            member.on_route(route)

    def _members(self) -> tuple[Member, ...]:
        return (*self._producers, *self._consumers.values())

    def _warn_of_route(self, topic: str, error: TianzhouError) -> None:
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return  # brokers create retry topics with the first failed message
        text = f"topic {topic}: the nameserver cannot be asked for its route: {error}"
        if isinstance(error, RouteNotFound):
            interval_s = self.settings.poll_namesrv_ms / 1000
            text = f"topic {topic} does not exist yet; it is looked up every {interval_s:g} s"
        self._warn(f"route of topic {topic}", text)

    # -- members -----------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        """Include a member in heartbeats, and pass requests of brokers to it.

        Raises ConfigError for a second consumer of one group.
        """
        self._check_open()
        if isinstance(member.heartbeat(), ProducerData):
            self._producers.append(member)
        elif member.group in self._consumers:
            raise ConfigError(
                f"group {member.group}: the client {self.client_id} has a consumer of it already; "
                "give the second one another instance_name"
            )
        else:
            self._consumers[member.group] = member
        self._heartbeat_wanted.set()

    async def leave(self, member: Member) -> None:
        """Unregister a member from all brokers. Failures are logged: it will expire there."""
        if member in self._producers:
            self._producers.remove(member)
            if any(other.group == member.group for other in self._producers):
                return
            header = UnregisterClientRequest(client_id=self.client_id, producer_group=member.group)
        elif self._consumers.get(member.group) is member:
            del self._consumers[member.group]
            header = UnregisterClientRequest(client_id=self.client_id, consumer_group=member.group)
        else:
            return
        fields = headers.encode(header)

        async def unregister(address: str) -> None:
            command = Command(code=RequestCode.UNREGISTER_CLIENT, ext_fields=dict(fields))
            try:
                await self.call(address, command)
            except TianzhouError as error:
                log.info(
                    "group %s: not unregistered from broker %s: %s", member.group, address, error
                )

        # Only brokers that accepted a heartbeat know the member.
        registered = self.routes.all_addresses() & self.broker_versions.keys()
        await asyncio.gather(*map(unregister, registered))

    # -- heartbeats --------------------------------------------------------------------------------

    async def heartbeat(self) -> list[TianzhouError]:
        """Send heartbeats to all brokers of the routes; to slaves only for consumers.

        Returns the errors of brokers that did not accept it.
        """
        entries = [member.heartbeat() for member in self._members()]
        producers = {each.group_name: each for each in entries if isinstance(each, ProducerData)}
        data = HeartbeatData(
            client_id=self.client_id,
            producers=list(producers.values()),
            consumers=[each for each in entries if isinstance(each, ConsumerData)],
        )
        if not data.producers and not data.consumers:
            return []
        body = bodies.encode(data)
        targets = [
            (name, address)
            for name, addresses in self.routes.brokers.items()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or data.consumers
        ]
        results = await asyncio.gather(*(self._send_heartbeat(*each, body) for each in targets))
        return [result for result in results if result is not None]

    async def ensure_registered(self, topic: str) -> None:
        """Send a heartbeat unless all brokers of a topic have accepted one."""
        if not all(each in self.broker_versions for each in self.routes.topic_addresses(topic)):
            await self.heartbeat()

    async def _send_heartbeat(self, name: str, address: str, body: bytes) -> TianzhouError | None:
        command = Command(code=RequestCode.HEART_BEAT, body=body)
        try:
            answer = await self.call(address, command, subject=f"heartbeat to {name} ({address})")
        except TianzhouError as error:
            self.broker_versions.pop(address, None)
            self._warn(f"heartbeat to {address}", f"broker {name}: heartbeat failed: {error}")
            return error
        self.broker_versions[address] = answer.version
        return None

    async def _heartbeat_loop(self) -> None:
        """Send heartbeats: periodically, on request, and with back-off after a failure."""
        pause_ms = self.settings.heartbeat_ms
        while True:
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._heartbeat_wanted.wait()
            except TimeoutError:
                pass
            self._heartbeat_wanted.clear()
            failures = await self.heartbeat()
            if not failures:
                pause_ms = self.settings.heartbeat_ms
            elif pause_ms >= self.settings.heartbeat_ms:
                pause_ms = min(_HEARTBEAT_RETRY_MS, pause_ms)
            else:
                pause_ms = min(pause_ms * 2, self.settings.heartbeat_ms)

    def _on_closed(self, connection: Connection) -> None:
        # A broker removes the members of a closed connection; it needs a new heartbeat.
        if not self.closed:
            log.info("connection to %s: %s", connection.peer, connection.reason)
            self._heartbeat_wanted.set()

    # -- requests of brokers -----------------------------------------------------------------------

    def _on_request(self, connection: Connection, request: Command) -> Reply:
        code = request.code
        if code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self._on_reply(request)
        if code == RequestCode.CHECK_TRANSACTION_STATE:
            return self._on_check(connection, request)
        field = _GROUP_FIELDS.get(code)
        if field is None:
            return error_responses.not_supported(request)
        group = request.fields.get(field, "")
        member = self._consumers.get(group)
        if member is None:
            return Command(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"The Consumer Group <{group}> not exist in this consumer",
            )
        return member.on_request(connection, request)

    def _on_reply(self, request: Command) -> Command:
        decoded = properties.decode(request.fields.get("properties", ""))
        correlation_id = decoded.get(properties.CORRELATION_ID, "")
        waiter = self.replies.get(correlation_id)
        if waiter is None or waiter.done():
            log.info(
                "the reply %s is dropped: it arrived after the time-out of its request",
                correlation_id or "without a correlation id",
            )
        else:
            waiter.set_result(request)
        return Command(code=ResponseCode.SUCCESS)

    def _on_check(self, connection: Connection, request: Command) -> Reply:
        try:
            half = decode_record(request.body, read_body=False)
        except RecordError as error:
            log.warning(
                "broker %s: its transaction check cannot be decoded: %s", connection.peer, error
            )
            return None
        group = half.properties.get(properties.PRODUCER_GROUP, "")
        for member in self._producers:
            if member.group == group:
                return member.on_request(connection, request)
        log.info("group %s: transaction check, but there is no producer", group)
        return None

    # -- life --------------------------------------------------------------------------------------

    async def release(self, consumer_group: str | None = None) -> None:
        """Release the hub; the last release stops it. Pass the group given to `acquire`."""
        if consumer_group is not None:
            self.reserved_groups.discard(consumer_group)
        self.user_count -= 1
        if self.user_count == 0:
            self._on_stopped(self)
            await self._close()

    async def _close(self) -> None:
        self.closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.wait((*self._tasks, *self.routes.close()))
        for waiter in self.replies.values():
            waiter.cancel()
        await self._client.close()
        for kind, count in self._repeats.pop_unlogged():
            log.info("%s: %d more warnings were suppressed", kind, count)

    def _check_open(self) -> None:
        if self.closed:
            raise ClientClosed("the client is closed")
        if self._pid != os.getpid():
            raise ClientClosed(
                "this client was started before the process forked; start another one in the child"
            )

    def _warn(self, kind: str, text: str) -> None:
        if (ending := self._repeats.ending(kind, self.loop.time())) is not None:
            log.warning("%s%s", text, ending)


def is_logged_by_hub(error: TianzhouError) -> bool:
    """Whether `RouteCache.refresh` has logged such an error."""
    return isinstance(error, RouteNotFound | NameserverUnavailable | NotANameserver)


_GROUP_FIELDS: dict[int, str] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "consumerGroup",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "group",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "group",
}
"""The header field with the group, by request code."""
