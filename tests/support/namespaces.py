"""Hosts with a network of their own: namespaces of Linux, a switch, and cuts between them.

    with network(("a", "b")) as net:
        subprocess.run([*net["a"].prefix, "curl", net["b"].address])
        net.cut(("a",), ("b", OUTSIDE))     # no packet either way, and no error either
        net.heal()

The test itself is the host `OUTSIDE`. Everything is made by `ip` of iproute2, and removed at the
end. A cut sends packets to a hardware address that no host has: they vanish, as with a broken
cable behind the next switch. Only root may do this; elsewhere the test is skipped.
"""

import ipaddress
import os
import shutil
import subprocess
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from tests.support import packages

OUTSIDE = "outside"
_SUBNETS = ipaddress.IPv4Network("198.18.0.0/16")
"""For tests of networks (RFC 2544)."""
_NO_HOST = "02:00:00:00:00:01"
_IP_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class NetworkHost:
    """A namespace with one address."""

    namespace: str
    """Empty: that of the test."""
    device: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command that is to run there."""
        return ("ip", "netns", "exec", self.namespace) if self.namespace else ()

    @property
    def _ip(self) -> list[str]:
        return ["ip", "-n", self.namespace] if self.namespace else ["ip"]

    def block(self, address: str) -> None:
        """Send nothing to an address any more."""
        _run([*self._ip, "neigh", "replace", address, "lladdr", _NO_HOST, "dev", self.device,
              "nud", "permanent"])  # fmt: skip

    def allow(self, address: str) -> None:
        """The end of `block`."""
        _run([*self._ip, "neigh", "del", address, "dev", self.device])


@dataclass(slots=True)
class Network:
    """The hosts by name."""

    hosts: Mapping[str, NetworkHost]
    _cuts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def __getitem__(self, name: str) -> NetworkHost:
        return self.hosts[name]

    def others(self, *names: str) -> list[str]:
        """All hosts but these."""
        return [name for name in self.hosts if name not in names]

    def cut(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Let no packet pass between the two groups of hosts."""
        others = list(others)
        for pair in ((one, other) for one in some for other in others):
            for source, target in (pair, pair[::-1]):
                self.hosts[source].block(self.hosts[target].address)
                self._cuts.add((source, target))

    def heal(self) -> None:
        """End all cuts."""
        for source, target in self._cuts:
            self.hosts[source].allow(self.hosts[target].address)
        self._cuts.clear()


@contextmanager
def network(names: Sequence[str]) -> Generator[Network]:
    """Hosts with these names, and the test's own."""
    _require_ip()
    tag = f"tz{os.getpid()}"
    switch = f"{tag}-switch"
    made = [switch]
    done = subprocess.run(
        ["ip", "netns", "add", switch], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
    own = f"{tag}o"
    try:
        subnet = _free_subnet()
        _run(["ip", "-n", switch, "link", "add", "br0", "type", "bridge"])
        _run(["ip", "-n", switch, "link", "set", "br0", "up"])
        hosts = {OUTSIDE: NetworkHost("", own, str(subnet[1]))}
        for number, name in enumerate(names, 11):
            namespace = f"{tag}-{name}"
            _run(["ip", "netns", "add", namespace])
            made.append(namespace)
            _run(["ip", "-n", namespace, "link", "set", "lo", "up"])
            hosts[name] = NetworkHost(namespace, "eth0", str(subnet[number]))
        for number, host in enumerate(hosts.values()):
            _plug(host, switch, f"p{number}")
        yield Network(hosts)
    finally:
        subprocess.run(["ip", "link", "del", own], capture_output=True, check=False)
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _plug(host: NetworkHost, switch: str, port: str) -> None:
    """Connect a host to the switch."""
    there = ["netns", host.namespace] if host.namespace else []
    _run(["ip", "link", "add", "name", host.device, *there, "type", "veth",
          "peer", "name", port, "netns", switch])  # fmt: skip
    _run(["ip", "-n", switch, "link", "set", port, "master", "br0", "up"])
    own = ["-n", host.namespace] if host.namespace else []
    _run(["ip", *own, "addr", "add", f"{host.address}/24", "dev", host.device])
    _run(["ip", *own, "link", "set", host.device, "up"])


def _require_ip() -> None:
    if shutil.which("ip") is None and packages.may_install():
        packages.install("iproute2")
    if shutil.which("ip") is None:
        pytest.skip("ip is not on the PATH (Debian package iproute2)")
    if os.geteuid() != 0:
        pytest.skip("only root may make network namespaces")


def _free_subnet() -> ipaddress.IPv4Network:
    used = _run(["ip", "-4", "route", "show", "table", "all"])
    return next(each for each in _SUBNETS.subnets(new_prefix=24) if str(each) not in used)


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_IP_TIMEOUT_S
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout
