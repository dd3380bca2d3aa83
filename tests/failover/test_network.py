"""The network of the scenarios: a cut lets nothing pass, and leaves everything else as it is."""

import socket
import subprocess
import sys

from tests.support.namespaces import OUTSIDE, Network, NetworkHost, network

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.3)"


def reaches(net: Network, source: str, target: NetworkHost, port: int) -> bool:
    """Whether a connection from a host can be made."""
    command = [*net[source].prefix, sys.executable, "-c", CONNECT, target.address, str(port)]
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


def test_a_cut_lets_nothing_pass_until_it_is_healed() -> None:
    with network(("a", "b")) as net, socket.socket() as server:
        outside = net[OUTSIDE]
        server.bind((outside.address, 0))
        server.listen()
        port = server.getsockname()[1]
        assert reaches(net, "a", outside, port)
        net.cut(("a",), net.others("a"))
        assert not reaches(net, "a", outside, port)
        assert reaches(net, "b", outside, port)
        net.heal()
        assert reaches(net, "a", outside, port)
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert net["a"].namespace not in left.stdout
