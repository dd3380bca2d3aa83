"""Decodes a route: the queues that a producer may write to and a consumer may read from.

Sans-IO. Queues to write lie on masters that may be written to, sorted by broker
name and queue id; a topic with an order configuration ("broker-a:4;broker-b:4") has exactly the
queues that it names. Queues to read lie on brokers that may be read from, whether or not a master
is there: slaves serve reads.
"""

from dataclasses import dataclass

import msgspec

from tianzhou.client.queues import Queue, java_text
from tianzhou.errors import MessageRefused, RouteNotFound
from tianzhou.names import MASTER_ID, PERM_READ, PERM_WRITE
from tianzhou.protocol.bodies.route import QueueData, TopicRouteData

_QUEUES_MAX = 65_536
"""Limit of the queues of a topic on one broker; a route with more is cut."""

Addresses = dict[int, str]
"""Addresses of one broker name by broker id."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where the queues of a topic are. Names are those on the wire, with their namespace."""

    topic: str
    data: TopicRouteData
    writable: tuple[Queue, ...]
    """Queues for producers, in round-robin order."""
    readable: tuple[Queue, ...]
    """Queues for consumers, sorted by broker name and queue id."""
    is_ordered: bool = False
    """True if the queues come from an order configuration."""
    is_template: bool = False
    """True if the topic does not exist yet and these are the queues it would have."""


def route_of(topic: str, data: TopicRouteData, *, is_template: bool = False) -> TopicRoute:
    """The route in the response of a nameserver.

    Raises RouteNotFound if it is invalid, MessageRefused if the topic is not supported.
    """
    if data.mappings:
        # Its queues are not those of the brokers: messages written to them would be lost. Not
        # RouteNotFound, after which a producer would create the topic from a template.
        raise MessageRefused(
            f"topic {topic}: it is a static topic, whose queues are mapped to those of brokers; "
            "this client does not support mappings"
        )
    order_conf = data.order_conf
    return TopicRoute(
        topic=topic,
        data=data,
        writable=_ordered_queues(topic, order_conf) if order_conf else _writable(topic, data),
        readable=tuple(
            each
            for queue in _by_broker(data)
            if queue.perm & PERM_READ
            for each in _queues(topic, queue.broker_name, queue.read_queue_count)
        ),
        is_ordered=bool(order_conf),
        is_template=is_template,
    )


def template_route(topic: str, template: TopicRouteData, queue_count: int) -> TopicRoute:
    """The route of a topic that brokers will create from a template topic on its first message.

    It gets at most `queue_count` queues on each broker, and no more than the template has.
    """
    queues = [_limited(queue, queue_count) for queue in template.queues]
    return route_of(topic, msgspec.structs.replace(template, queues=queues), is_template=True)


def broker_addresses(data: TopicRouteData) -> dict[str, Addresses]:
    """Addresses by broker name and broker id."""
    return {
        broker.broker_name: dict(broker.addresses)
        for broker in data.brokers
        if broker.broker_name and broker.addresses
    }


def addresses_for_reading(addresses: Addresses, broker_id: int) -> list[tuple[str, bool]]:
    """The addresses to read from, best first, each with whether it is a slave's.

    That is the address of the broker id. A missing slave is replaced by the next one; all others
    follow, the master first.
    """
    order = sorted(addresses)
    for first in (broker_id, broker_id + 1 if broker_id != MASTER_ID else MASTER_ID):
        if first in addresses:
            order.remove(first)
            order.insert(0, first)
            break
    return [(addresses[each], each != MASTER_ID) for each in order]


def vip_address(address: str) -> str:
    """The port two below, which serves producers only."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 2}"


# -- inside ----------------------------------------------------------------------------------------


def _limited(queue: QueueData, queue_count: int) -> QueueData:
    count = min(queue_count, queue.read_queue_count)
    return msgspec.structs.replace(queue, read_queue_count=count, write_queue_count=count)


def _ordered_queues(topic: str, order_conf: str) -> tuple[Queue, ...]:
    queues: list[Queue] = []
    for part in order_conf.split(";"):
        if not part.strip():
            continue
        name, _, count = part.strip().partition(":")
        if not name or not (count.isascii() and count.isdigit()):
            raise RouteNotFound(
                f"topic {topic}: its order configuration {order_conf!r} cannot be read, "
                "broker:count;broker:count is expected"
            )
        queues += _queues(topic, name, int(count))
    return tuple(queues)


def _writable(topic: str, data: TopicRouteData) -> tuple[Queue, ...]:
    masters = {
        broker.broker_name for broker in data.brokers if MASTER_ID in (broker.addresses or {})
    }
    return tuple(
        each
        for queue in _by_broker(data)
        if queue.perm & PERM_WRITE and queue.broker_name in masters
        for each in _queues(topic, queue.broker_name, queue.write_queue_count)
    )


def _by_broker(data: TopicRouteData) -> list[QueueData]:
    return sorted(data.queues, key=lambda queue: java_text(queue.broker_name or ""))


def _queues(topic: str, broker_name: str | None, count: int) -> list[Queue]:
    return [
        Queue(topic, broker_name or "", queue_id) for queue_id in range(min(count, _QUEUES_MAX))
    ]
