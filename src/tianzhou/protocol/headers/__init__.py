"""Typed headers: the custom fields of requests and responses.

On the wire a header is a map of strings (`Command.ext_fields`). Here each one is a frozen struct
with typed fields, grouped by subject:

    send        sending, batches, replies, transactions
    pull        pulling, queue locks, message queries
    pop         pop consumption, acknowledgement
    offsets     consumer and queue offsets
    clients     heartbeats, and requests of brokers to clients
    namesrv     routes, brokers, KV configuration
    topics      topic configuration
    groups      subscription groups
    admin       broker configuration and statistics
    auth        access control of 4.9 and of 5.3
    ha          broker groups, replication, election of masters

Fields that only some releases know are optional.
"""

from tianzhou.protocol.headers.codec import Header, decode, encode

__all__ = ["Header", "decode", "encode"]
