"""Queue selectors, for `Producer.send(..., select=...)`.

A selector gets the writable queues of the topic, in an order that only changes with the topic or
its brokers, and the message; it returns one of the queues.
"""

import random
from collections.abc import Callable, Collection, Sequence

from tianzhou.client.message import Message
from tianzhou.client.queues import Queue
from tianzhou.errors import MessageRefused, RouteNotFound
from tianzhou.protocol.properties import java_hash

Selector = Callable[[Sequence[Queue], Message], Queue]


def by_hash(key: str | int) -> Selector:
    """Equal keys select the same queue, the one that the Java client selects."""
    number = _java_hash(key)

    def select(queues: Sequence[Queue], _: Message) -> Queue:
        # Java's remainder has the sign of the number; its absolute value is what counts.
        return queues[abs(number) % len(queues)]

    return select


def by_shard(queues: Sequence[Queue], message: Message) -> Queue:
    """Messages of one shard select the same queue. Raises MessageRefused without a shard."""
    if message.shard is None:
        raise MessageRefused(f"topic {message.topic}: an ordered message needs a shard")
    return by_hash(message.shard)(queues, message)


def at_random(queues: Sequence[Queue], _: Message) -> Queue:
    """A random queue."""
    return random.choice(queues)  # noqa: S311 - spreads load


def by_machine_room(rooms: Collection[str]) -> Selector:
    """A random queue in one of these machine rooms; brokers are named `room@broker`.

    The selector raises RouteNotFound if none of the rooms has a queue.
    """

    def select(queues: Sequence[Queue], message: Message) -> Queue:
        near = [queue for queue in queues if _room(queue) in rooms]
        if not near:
            raise RouteNotFound(
                f"topic {message.topic}: no queue in the machine rooms {', '.join(sorted(rooms))}"
            )
        return at_random(near, message)

    return select


def _room(queue: Queue) -> str | None:
    room, at, _ = queue.broker_name.partition("@")
    return room if at else None


def _java_hash(key: str | int) -> int:
    """`hashCode` of a String, an Integer, or a Long that no Integer holds."""
    if isinstance(key, str):
        return java_hash(key)
    if -(2**31) <= key < 2**31:
        return key
    folded = (key ^ (key >> 32)) & 0xFFFFFFFF
    return folded - 2**32 if folded & 0x80000000 else folded
