"""Typed bodies: the JSON (and the one binary) payloads of requests and responses.

One frozen struct per body of RocketMQ 4.9 and 5.x, grouped by subject:

    route         routes, brokers and clusters; static topic mappings
    topics        topic configuration, data versions, topic lists, KV tables
    registration  what a broker tells the nameserver, JSON or binary
    subscription  what a consumer wants of a topic
    clients       heartbeats, connections, what clients tell of themselves
    queues        queues as keys, queue entries, queue locks, assignment, pop
    groups        subscription groups
    offsets       offset tables and their reset
    stats         statistics
    auth          access control of 4.9 and of 5.3
    ha            replication and the controller of 5.x
    lite          lite topics of 5.5

What only 5.x knows is optional and None by default; None is never written, so a body made without
it reads like one of 4.9.
"""

from tianzhou.protocol.bodies.codec import (
    Body,
    decode,
    decode_request,
    decode_request_steps,
    encode,
    encode_steps,
)

__all__ = [
    "Body",
    "decode",
    "decode_request",
    "decode_request_steps",
    "encode",
    "encode_steps",
]
