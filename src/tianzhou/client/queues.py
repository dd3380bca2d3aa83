"""The name of a queue in a cluster, and the order in which RocketMQ's clients list queues.

Every member of a consumer group computes the allocation by itself, so all of them must put queues
and client ids into the same order. Java compares texts by UTF-16 code units, which is not the order
of Python's `str` beyond the basic plane; `java_text` gives a key that sorts as Java does.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tianzhou.protocol.bodies.queues import MessageQueue


class Queue(NamedTuple):
    """One queue of one topic on one broker group."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

    def to_wire(self) -> MessageQueue:
        return MessageQueue(topic=self.topic, broker_name=self.broker_name, queue_id=self.queue_id)


def from_wire(queue: MessageQueue) -> Queue:
    return Queue(queue.topic or "", queue.broker_name or "", queue.queue_id)


def java_text(text: str) -> bytes:
    """A sort key: `String.compareTo` of Java."""
    return text.encode("utf-16-be", "surrogatepass")


def java_order(queues: Iterable[Queue]) -> list[Queue]:
    """Queues as Java sorts them: by topic, broker name, queue id."""
    return sorted(
        queues, key=lambda each: (java_text(each.topic), java_text(each.broker_name), each.queue_id)
    )
