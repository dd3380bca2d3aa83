"""Typed headers: what a request or response carries beside its body.

On the wire a header is a map of strings (`Command.ext_fields`). Here each one is a frozen struct
with real names and types, one per header of RocketMQ 4.9 and 5.x, grouped by subject:

    send        sending, batches, replies, transactions
    pull        pulling, queue locks, message queries
    pop         pop consumption, acknowledgement, lite topics
    offsets     consumer and queue offsets
    clients     heartbeats, and what brokers ask of clients
    namesrv     routes, brokers, KV configuration
    topics      topic configuration
    groups      subscription groups
    admin       broker configuration and statistics
    auth        access control of 4.9 and of 5.3
    ha          broker groups and replication
    controller  the controller of 5.x

`table` says which struct belongs to which code. Fields that only some releases know are optional.
"""

from tianzhou.protocol.headers.codec import Header, decode, encode

__all__ = ["Header", "decode", "encode"]
