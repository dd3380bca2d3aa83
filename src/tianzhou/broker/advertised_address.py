"""The address that a broker advertises, and whether clients can reach it.

Clients connect not to the address a broker listens on but to the one that the nameserver returns,
so a wrong one looks like a network failure elsewhere. It is checked at the start, and a warning
names the setting to change.
"""

import ipaddress
import logging
import socket
from collections.abc import Iterable

from tianzhou.broker.config import BrokerConfig
from tianzhou.errors import ConfigError
from tianzhou.remoting.address import format_address, is_every_interface, parse_addresses

log = logging.getLogger(__name__)

_DISCARD_PORT = 9


def advertised_host(config: BrokerConfig, port: int) -> str:
    """The host that a broker which listens on `port` advertises; logs what is wrong with it."""
    namesrvs = [host for host, _ in parse_addresses(config.namesrv_addr or "")]
    host = choose_address(config.broker_ip1, config.bind_address, namesrvs)
    for problem in problems(host, port, config.bind_address, namesrvs):
        log.warning("%s", problem)
    return host


def choose_address(configured: str | None, bind_address: str, namesrvs: Iterable[str]) -> str:
    """The address to advertise: the configured one, the one listened on, or a detected one."""
    if configured:
        return configured
    if not is_every_interface(bind_address):
        return bind_address.strip("[]")
    return find_own_address(namesrvs)


def find_own_address(peers: Iterable[str]) -> str:
    """The address of this host that reaches the peers; loopback if there is no network.

    `peers` are hosts. Nothing is sent: connecting a datagram socket only picks the route.
    """
    for peer in (*peers, "192.0.2.1", "2001:db8::1"):
        family = socket.AF_INET6 if ":" in peer else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((peer, _DISCARD_PORT))
                address: str = probe.getsockname()[0]
        except OSError:
            continue
        if not is_every_interface(address):
            return address
    return "127.0.0.1"


def resolve(host: str) -> str:
    """The IP address of an advertised host, as records store it. Raises ConfigError."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as e:
        raise ConfigError(f"brokerIP1={host}: the name cannot be resolved: {e}") from e
    address: str = str(infos[0][4][0])
    return address.partition("%")[0]


def is_own_address(address: str) -> bool:
    """Whether an IP address belongs to this host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def problems(host: str, port: int, bind_address: str, namesrvs: Iterable[str]) -> list[str]:
    """Likely mistakes in an advertised address, each with the setting to change."""
    shown = format_address(host, port)
    try:
        address = resolve(host)
    except ConfigError as e:
        return [str(e)]
    is_loopback = ipaddress.ip_address(address).is_loopback
    texts: list[str] = []
    far_namesrvs = [peer for peer in namesrvs if not _is_loopback(peer)]
    if is_loopback and (is_every_interface(bind_address) or far_namesrvs):
        reason = (
            f"registered with the nameserver at {far_namesrvs[0]}"
            if far_namesrvs
            else f"listening on every interface ({bind_address})"
        )
        texts.append(
            f"clients on other hosts get the address {shown}, which is their own host, while "
            f"this broker is {reason}; set brokerIP1 to an address of this host that they can reach"
        )
    if not is_loopback and not is_own_address(address):
        texts.append(
            f"clients get the address {shown}, but {address} is no address of this host; unless "
            f"something forwards it here, set brokerIP1 to an address of this host"
        )
    if is_loopback is False and not is_every_interface(bind_address) and _is_loopback(bind_address):
        texts.append(
            f"clients get the address {shown}, but this broker listens on {bind_address} only; "
            f"set bindAddress to {address} or 0.0.0.0"
        )
    return texts


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
