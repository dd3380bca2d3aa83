"""The routes of a hub: cached, fetched from the nameservers, refreshed on request.

Callers that need the same route at the same time share one request. The broker addresses of all
cached routes are stored by broker name. Topic names are those on the wire, with their namespace.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from tianzhou.client.connection import routes
from tianzhou.client.connection.nameservers import Nameservers
from tianzhou.client.connection.routes import Addresses, TopicRoute
from tianzhou.errors import (
    BrokersUnavailable,
    ClientClosed,
    RemotingError,
    RouteNotFound,
    TianzhouError,
)
from tianzhou.names import AUTO_CREATE_TOPIC, MASTER_ID, PERM_WRITE

log = logging.getLogger(__name__)

_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0
"""Refreshes of one topic after failures are at least so far apart: 50 ms at first, as another
broker becomes the master within fractions of a second; twice as far each time, up to a second."""
_QUIET_S = 5.0
"""After so long without a refresh the pauses begin anew."""


class RouteCache:
    """Routes by topic, and the addresses of their brokers."""

    def __init__(
        self,
        namesrvs: Nameservers,
        *,
        check_open: Callable[[], None],
        on_failure: Callable[[str, TianzhouError], None],
        on_route: Callable[[TopicRoute], None],
        on_new_broker: Callable[[], None],
    ) -> None:
        """`check_open` raises ClientClosed once the hub is closed; the others handle events."""
        self._namesrvs = namesrvs
        self._check_open = check_open
        self._on_failure = on_failure
        self._on_route = on_route
        self._on_new_broker = on_new_broker
        self._loop = asyncio.get_running_loop()
        self._routes: dict[str, TopicRoute] = {}
        self._fetch_times_s: dict[str, float] = {}
        self._pauses_s: dict[str, float] = {}
        self._fetches: dict[str, asyncio.Task[TopicRoute]] = {}
        self._closed = False
        self.brokers: dict[str, Addresses] = {}
        """Addresses by broker name and broker id."""

    # -- addresses ---------------------------------------------------------------------------------

    def master_address(self, broker_name: str) -> str | None:
        """The address of a master, None if no cached route has it."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def read_addresses(self, broker_name: str, broker_id: int) -> list[tuple[str, bool]]:
        """The addresses to read from, best first; see `addresses_for_reading`."""
        return routes.addresses_for_reading(self.brokers.get(broker_name, {}), broker_id)

    def read_address(self, broker_name: str, broker_id: int) -> tuple[str, bool] | None:
        """The best of them; None if no cached route has any."""
        return next(iter(self.read_addresses(broker_name, broker_id)), None)

    def topic_addresses(self, topic: str) -> list[str]:
        """One address of each broker that has the topic, masters before slaves."""
        route = self._routes.get(topic)
        if route is None:
            return []
        tables = routes.broker_addresses(route.data).values()
        return [table[min(table)] for table in tables if table]

    def all_addresses(self) -> set[str]:
        """The addresses of all masters and slaves."""
        return {address for table in self.brokers.values() for address in table.values()}

    # -- routes ------------------------------------------------------------------------------------

    def cached(self, topic: str) -> TopicRoute | None:
        """The cached route, that of a template included; sends no request."""
        return self._routes.get(topic)

    async def get(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """The route of an existing topic, from the cache unless `refresh` is set.

        Raises RouteNotFound if no nameserver knows the topic, RemotingError if none responds.
        """
        route = self._routes.get(topic)
        if route is not None and not refresh and not route.is_template:
            return route
        return await self._fetch(topic)

    async def for_publishing(
        self, topic: str, *, template: str = AUTO_CREATE_TOPIC, queue_count: int = 4
    ) -> TopicRoute:
        """The route to send to: the topic's own, or that of the template it will be created from.

        Raises RouteNotFound if there is no queue to write to, RemotingError.
        """
        route = self._routes.get(topic)
        if route is not None and route.writable:
            if route.is_template:
                self.refresh_in_background(topic)
            return route
        if route is None or self._may_renew(topic):
            try:
                route = await self._fetch(topic)
            except RouteNotFound:
                data = await self._namesrvs.template_route(topic, template)
                route = routes.template_route(topic, data, queue_count)
                self._store(route)
        if not route.writable:
            if any(queue.perm & PERM_WRITE for queue in route.data.queues):
                raise BrokersUnavailable(
                    f"topic {topic}: the master of its broker is not registered"
                )
            raise RouteNotFound(f"topic {topic}: no broker permits writing to it")
        return route

    async def refresh(self, topics: Iterable[str]) -> list[TianzhouError]:
        """Fetch routes again. Failures are reported and returned; cached routes stay."""
        failures: list[TianzhouError] = []
        for topic in topics:
            try:
                await self._fetch(topic)
            except TianzhouError as error:
                failures.append(error)
                self._on_failure(topic, error)
        return failures

    async def renew(self, topic: str) -> list[TianzhouError]:
        """Fetch a route again after an error that may come from an old one; see `refresh`.

        Returns at once if it was fetched a moment before: a broker that is gone fails many
        requests, and nameservers would be asked for each.
        """
        return await self.refresh((topic,)) if self._may_renew(topic) else []

    def refresh_in_background(self, topic: str) -> None:
        """The same, without waiting for the route."""
        if not self._closed and topic not in self._fetches and self._may_renew(topic):
            self._start_fetch(topic)

    def _may_renew(self, topic: str) -> bool:
        """Whether the route is being fetched, or was not fetched a moment before."""
        fetched_s = self._fetch_times_s.get(topic)
        if topic in self._fetches or fetched_s is None:
            return True
        return self._loop.time() - fetched_s >= self._pauses_s.get(topic, _PAUSE_MIN_S)

    def retain(self, topics: set[str]) -> None:
        """Forget the routes of all other topics."""
        for topic in set(self._routes) - topics:
            del self._routes[topic]
        self._fetch_times_s = {
            topic: fetched_s
            for topic, fetched_s in self._fetch_times_s.items()
            if topic in self._routes
        }
        self._pauses_s = {
            topic: pause_s for topic, pause_s in self._pauses_s.items() if topic in self._routes
        }

    def forget_brokers(self) -> None:
        """Forget the brokers that no cached route names."""
        self.brokers = {}
        for route in self._routes.values():
            self.brokers |= routes.broker_addresses(route.data)

    def close(self) -> list[asyncio.Task[TopicRoute]]:
        """Cancel all fetches; returns their tasks, for the caller to await."""
        self._closed = True
        fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.cancel()
        return fetches

    # -- inside ------------------------------------------------------------------------------------

    async def _fetch(self, topic: str) -> TopicRoute:
        self._check_open()
        fetch = self._fetches.get(topic) or self._start_fetch(topic)
        await asyncio.wait((fetch,))
        if fetch.cancelled():
            raise ClientClosed(f"topic {topic}: the client is closed")
        error = fetch.exception()
        if error is None:
            return fetch.result()
        if isinstance(error, RouteNotFound | RemotingError):
            # Each caller gets its own exception: a shared one would collect tracebacks.
            raise type(error)(*error.args) from error.__cause__
        raise error

    def _start_fetch(self, topic: str) -> "asyncio.Task[TopicRoute]":
        now_s, before_s = self._loop.time(), self._fetch_times_s.get(topic)
        is_quiet = before_s is None or now_s - before_s >= _QUIET_S
        pause_s = self._pauses_s.get(topic, _PAUSE_MIN_S)
        self._pauses_s[topic] = _PAUSE_MIN_S if is_quiet else min(2 * pause_s, _PAUSE_MAX_S)
        self._fetch_times_s[topic] = now_s
        fetch = self._loop.create_task(self._query(topic), name=f"route of {topic}")
        self._fetches[topic] = fetch

        def fetched(done: asyncio.Task[TopicRoute]) -> None:
            del self._fetches[topic]
            if not done.cancelled():
                done.exception()  # marked as retrieved, even if all callers were cancelled

        fetch.add_done_callback(fetched)
        return fetch

    async def _query(self, topic: str) -> TopicRoute:
        route = routes.route_of(topic, await self._namesrvs.route(topic))
        self._store(route)
        return route

    def _store(self, route: TopicRoute) -> None:
        self._fetch_times_s[route.topic] = self._loop.time()
        old = self._routes.get(route.topic)
        if old == route:
            return
        self._routes[route.topic] = route
        known = self.all_addresses()
        self.brokers |= routes.broker_addresses(route.data)
        if self.all_addresses() - known:
            self._on_new_broker()
        if old is not None:
            log.info(
                "topic %s: route changed, %d queues to write", route.topic, len(route.writable)
            )
        self._on_route(route)
