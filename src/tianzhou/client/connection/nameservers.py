"""Requests to the nameservers of a cluster, with failover.

The one that responded is used until it fails; then the next one of the list. The meaning of a
response for a topic is decided here, too: its route, that it does not exist, that no broker is
registered, or that the address is not a nameserver's.
"""

import random
from collections.abc import Awaitable, Callable, Sequence

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.errors import (
    AddressError,
    BrokersUnavailable,
    ConnectError,
    NameserverUnavailable,
    NotANameserver,
    RemotingError,
    RouteNotFound,
)
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.route import ClusterInfo, TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.namesrv import GetRouteInfoRequest

Request = Callable[[str, Command, int], Awaitable[Command]]
Warn = Callable[[str, str], None]


class Nameservers:
    """The nameservers of one hub."""

    __slots__ = ("_addresses", "_current", "_request", "_timeout_ms", "_warn")

    def __init__(
        self, addresses: Sequence[str], request: Request, warn: Warn, timeout_ms: int
    ) -> None:
        """`request` sends to an address, `warn` logs a failure that the next one makes good."""
        self._addresses = tuple(addresses)
        self._current = random.randrange(len(self._addresses))  # noqa: S311 - spreads load
        self._request = request
        self._warn = warn
        self._timeout_ms = timeout_ms

    def __str__(self) -> str:
        return ";".join(self._addresses)

    async def request(self, command: Command) -> Command:
        """The response of the current nameserver, or of the next one that responds.

        Raises RemotingError if none responds.
        """
        for left in reversed(range(len(self._addresses))):
            address = self._addresses[self._current]
            try:
                return await self._request(address, command, self._timeout_ms)
            except RemotingError as error:
                self._current = (self._current + 1) % len(self._addresses)
                if not left:
                    raise self._unavailable(error) from error
                self._warn(f"nameserver {address}", f"nameserver {address}: {error}")
        raise AssertionError("settings have at least one nameserver")

    def _unavailable(self, error: RemotingError) -> RemotingError:
        if isinstance(error, ConnectError) and not isinstance(error, AddressError):
            advice = "check that one runs there and that namesrv is its address"
            return NameserverUnavailable(f"no nameserver answers: {error}; {advice}")
        return type(error)(f"nameserver: {error}")

    async def route(self, topic: str) -> TopicRouteData:
        """The route of a topic. Raises RouteNotFound, RemotingError, BrokerError."""
        header = GetRouteInfoRequest(topic=topic, accept_standard_json_only=True)
        command = Command(
            code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=headers.encode(header)
        )
        address = self._addresses[self._current]
        answer = await self.request(command)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotANameserver(
                f"{address} is not a nameserver but another server, such as a broker; give the "
                "nameserver's address (port 9876 by default) as namesrv"
            )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST or not answer.body:
            raise RouteNotFound(
                f"topic {topic}: no nameserver of {self} has its route; create it, or allow "
                "brokers to (autoCreateTopicEnable)"
            )
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer, f"topic {topic}: the nameserver refuses its route")
        return bodies.decode(TopicRouteData, answer.body)

    async def template_route(self, topic: str, template: str) -> TopicRouteData:
        """The route of the template that a topic will be created from; raises as `route` does."""
        try:
            return await self.route(template)
        except RouteNotFound:
            await self._check_brokers(topic)
            raise RouteNotFound(
                f"topic {topic}: no nameserver of {self} has its route, and no broker creates "
                f"topics from {template}; create the topic, or set autoCreateTopicEnable"
            ) from None

    async def _check_brokers(self, topic: str) -> None:
        """Raises BrokersUnavailable if no broker is registered."""
        answer = await self.request(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return
        if not bodies.decode(ClusterInfo, answer.body).brokers:
            raise BrokersUnavailable(
                f"topic {topic}: no broker is registered with nameserver {self}; start one with "
                "this nameserver's address"
            )
