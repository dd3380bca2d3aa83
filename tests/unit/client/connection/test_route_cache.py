"""How often routes are fetched after failures."""

import asyncio
from typing import cast

from tianzhou.client.connection.nameservers import Nameservers
from tianzhou.client.connection.route_cache import RouteCache
from tianzhou.protocol.bodies.route import TopicRouteData

WATCHED_S = 0.8
FETCHES_MAX = 5
"""At 0, 50, 150, 350 and 750 ms."""


class CountingNameservers:
    """Returns the same route, and counts."""

    def __init__(self) -> None:
        self.count = 0

    async def route(self, topic: str) -> TopicRouteData:
        self.count += 1
        return TopicRouteData()


async def test_routes_are_renewed_at_once_after_a_failure_and_then_less_often() -> None:
    namesrvs = CountingNameservers()
    cache = RouteCache(
        cast("Nameservers", namesrvs), check_open=lambda: None,
        on_failure=lambda topic, error: None, on_route=lambda route: None,
        on_new_broker=lambda: None,
    )  # fmt: skip
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WATCHED_S
    while loop.time() < until_s:
        await cache.renew("orders")
        await asyncio.sleep(0.001)
    # A switch of the master takes a fraction of a second: one fetch a second would come too late.
    assert 2 <= namesrvs.count <= FETCHES_MAX
