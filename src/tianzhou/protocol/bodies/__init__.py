"""Typed bodies: the JSON (and the one binary) payloads of requests and responses.

Each is a frozen struct, grouped by subject:

    route         routes, brokers and clusters; static topic mappings
    topics        topic configuration, data versions, topic lists, KV tables
    registration  registration of a broker with the nameserver, JSON or binary
    subscription  subscriptions of consumers
    clients       heartbeats, connections, status reports of clients
    queues        queues as map keys, queue entries, queue locks, assignment, pop
    groups        subscription groups
    offsets       offset tables, offset resets
    stats         statistics
    auth          access control of 4.9 and of 5.3
    ha            replication, sets of in-sync replicas
    ha_group      groups whose master is elected

Fields that only 5.x knows are optional and None by default. None is never written, so a body
without them is one of 4.9.
"""

from tianzhou.protocol.bodies.codec import Body, decode, decode_request, decode_request_steps
from tianzhou.protocol.fastjson import dumps as encode
from tianzhou.protocol.fastjson import dumps_steps as encode_steps

__all__ = [
    "Body",
    "decode",
    "decode_request",
    "decode_request_steps",
    "encode",
    "encode_steps",
]
