"""Blocking clients: the same names and types as `tianzhou.client`, without `await`.

    from tianzhou.client.sync import Producer

    with Producer("billing", namesrv="127.0.0.1:9876") as producer:
        producer.send("orders", b"paid", keys="4711")

The asynchronous clients do the work, on one event loop in a thread (`loop_thread`). Blocking
clients may be used from any thread. A forked child that uses a client of its parent gets its own,
started at that moment.
"""

from tianzhou.client.sync.consumers import (
    LitePullConsumer,
    PushConsumer,
    QueueReader,
    Replier,
    SimpleConsumer,
)
from tianzhou.client.sync.producers import Producer, TransactionProducer

__all__ = [
    "LitePullConsumer",
    "Producer",
    "PushConsumer",
    "QueueReader",
    "Replier",
    "SimpleConsumer",
    "TransactionProducer",
]
