"""Addresses as records and message ids hold them: 4 or 16 bytes, then the port as a 32-bit number.

An IPv4 address mapped into IPv6 (what a dual-stack socket reports) is the IPv4 address, as in Java.
Ports are not checked against 65,535: a record is worth reading even where its port makes no sense.
"""

import struct
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from tianzhou.errors import RecordError
from tianzhou.message import Host

PACKED_V4_BYTES = 8
PACKED_V6_BYTES = 20

_PORT = struct.Struct(">i")


@lru_cache(maxsize=4096)
def pack(host: Host) -> bytes:
    """8 bytes for IPv4, 20 for IPv6. Raises RecordError for what is not an address and a port."""
    text, port = host
    try:
        return _unmapped(ip_address(text)).packed + _PORT.pack(port)
    except (ValueError, struct.error) as e:
        raise RecordError(f"{text!r} port {port!r} is not a numeric address and port: {e}") from e


@lru_cache(maxsize=4096)
def unpack(packed: bytes) -> Host:
    """The address in 8 or 20 bytes; the caller has checked that there are so many."""
    (port,) = _PORT.unpack_from(packed, len(packed) - 4)
    if len(packed) == PACKED_V4_BYTES:
        return "{}.{}.{}.{}".format(*packed[:4]), port
    return str(_unmapped(IPv6Address(packed[:-4]))), port


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or address
    return address
