"""Reads the unique ids that producers give to messages; see `protocol/records/message_id.py`."""

import struct

from tianzhou.protocol import host
from tianzhou.protocol.records.message_id import UniqueId

_TAIL = struct.Struct(">HIIH")


def decode_unique_id(text: str) -> UniqueId:
    raw = bytes.fromhex(text)
    address, _ = host.unpack(raw[: -_TAIL.size] + bytes(4))
    return UniqueId(address, *_TAIL.unpack_from(raw, len(raw) - _TAIL.size))
