"""Limits routes to the zone of a client (5.x, zone mode).

A group without a master stays in the route, in any zone: its slaves serve the remaining messages.
"""

import msgspec

from tianzhou.names import MASTER_ID
from tianzhou.protocol.bodies.route import BrokerData, TopicRouteData


def only_zone(route: TopicRouteData, zone_name: str) -> TopicRouteData:
    """`route` without the groups of other zones."""
    kept = [broker for broker in route.brokers if _is_wanted(broker, zone_name)]
    removed = [broker for broker in route.brokers if broker not in kept]
    removed_names = {broker.broker_name for broker in removed}
    removed_addrs = {addr for broker in removed for addr in (broker.addresses or {}).values()}
    return msgspec.structs.replace(
        route,
        brokers=kept,
        queues=[queue for queue in route.queues if queue.broker_name not in removed_names],
        filter_servers={
            addr: servers
            for addr, servers in route.filter_servers.items()
            if addr not in removed_addrs
        },
    )


def _is_wanted(broker: BrokerData, zone_name: str) -> bool:
    if MASTER_ID not in (broker.addresses or {}):
        return True
    return (broker.zone_name or "").lower() == zone_name.lower()
