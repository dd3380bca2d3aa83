"""Network addresses as text: "host:port", "[ipv6]:port", and lists of them separated by ';'.

RocketMQ may write IPv6 addresses without brackets ("::1:9876"); the port follows the last colon.
`parse_address` accepts this form if the text before that colon is an IPv6 address.
"""

import ipaddress
import re

from tianzhou.errors import AddressError

_PORT = re.compile("[0-9]{1,5}")
_PORT_MAX = 65_535
_MAPPED = "::ffff:"


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of one address; brackets are removed. Raises AddressError."""
    if "://" in text:
        raise AddressError(
            f"address {text!r}: leave out {text.partition('://')[0]}://; write host:port"
        )
    host, colon, port_text = text.strip().rpartition(":")
    if colon and not host:
        raise AddressError(f"address {text!r} has no host; write host:port or [ipv6]:port")
    if not colon:
        raise AddressError(f"address {text!r} has no port; write host:port or [ipv6]:port")
    if not (_PORT.fullmatch(port_text) and int(port_text) <= _PORT_MAX):
        raise AddressError(f"address {text!r}: {port_text!r} is no port (0 to {_PORT_MAX})")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if (bracketed or ":" in host) and not _is_ipv6(host):
        raise AddressError(f"address {text!r}: {host!r} is no IPv6 address; write [ipv6]:port")
    if any(character.isspace() or character in "/;,[]" for character in host):
        raise AddressError(f"address {text!r}: {host!r} is no host name")
    return host, int(port_text)


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """The distinct addresses of a list separated by ';', in order. Raises AddressError."""
    if "," in text or len(text.replace(";", " ").split()) > len(text.split(";")):
        raise AddressError(f"addresses {text!r}: separate them by ';', as in 'a:9876;b:9876'")
    parts = (part.strip() for part in text.split(";"))
    return list(dict.fromkeys(parse_address(part) for part in parts if part))


def format_address(host: str, port: int) -> str:
    """ "host:port", with brackets where the host is an IPv6 address.

    >>> format_address("::1", 9876)
    '[::1]:9876'
    >>> format_address("::ffff:10.0.0.7", 9876)  # an IPv4 peer on a socket that serves both
    '10.0.0.7:9876'
    """
    if host.startswith(_MAPPED) and "." in host:
        host = host.removeprefix(_MAPPED)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_numeric(host: str) -> bool:
    """True for an IP address, which needs no name resolution."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_every_interface(host: str) -> bool:
    """Whether listening there means every interface of both families: "", "*", 0.0.0.0 and ::.

    In Java, too, 0.0.0.0 means both families.
    """
    host = host.strip("[]")
    return host in ("", "*") or (is_numeric(host) and ipaddress.ip_address(host).is_unspecified)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def host_of(address: str) -> str:
    """The host of "host:port", with its brackets."""
    return address.rpartition(":")[0]


def address_of(name: tuple[str, int] | None) -> str:
    """The text of a socket address that the system returned; "?" for None."""
    return format_address(name[0], name[1]) if name else "?"
