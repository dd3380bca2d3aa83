"""Errors of commands are one line with cause and remedy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import Cli, run_words
from tests.support.ports import free_port

from tianzhou.testing import Cluster

OF_A_CLUSTER = [
    "topic list", "cluster show", "cluster top --once", "group list", "broker list", "acl list",
    "message send orders x", "message tail orders", "message query orders --key k",
    "message show C000020232E7A10A308A59EB58B70000", "offset show g", "dlq list", "topic create t",
    "bench send orders --count 1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIANZHOU_CONFIG_DIR", str(tmp_path))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics={"orders": 2}) as it:
        yield it


@pytest.fixture(scope="module")
def deserted() -> Iterator[Cluster]:
    """A nameserver without a broker."""
    with Cluster(topics={"orders": 2}) as it:
        it.stop_broker()
        yield it


def refused(words: str, namesrv: str) -> str:
    """The one line of a command that fails."""
    ran = run_words([*words.split(), "--namesrv", namesrv])
    assert ran.code in (1, 2), ran
    assert ran.out == "", ran
    assert ran.err.count("\n") == 1, ran
    return ran.err


@pytest.mark.parametrize("words", OF_A_CLUSTER)
def test_no_nameserver_reachable(words: str) -> None:
    line = refused(words, f"127.0.0.1:{free_port()}")
    assert "no nameserver responds" in line
    assert "refused" in line
    assert "`tianzhou up`" in line


@pytest.mark.parametrize("words", OF_A_CLUSTER)
def test_broker_address_given_as_nameserver(cluster: Cluster, words: str) -> None:
    (address,) = cluster.broker_addresses.values()
    line = refused(words, address)
    assert f"{address} is not a nameserver" in line
    assert "9876" in line


@pytest.mark.parametrize("words", [each for each in OF_A_CLUSTER if "bench" not in each])
def test_no_broker_registered(deserted: Cluster, words: str) -> None:
    line = refused(words, deserted.namesrv_address)
    assert "no broker is registered" in line, line


@pytest.mark.parametrize(
    ("namesrv", "says"),
    [
        ("a:9876,b:9876", "separate them by ';'"),
        ("http://a:9876", "leave out http://"),
        ("127.0.0.1", "has no port"),
        (":9876", "has no host"),
    ],
)
def test_invalid_address(namesrv: str, says: str) -> None:
    assert says in refused("topic list", namesrv)


def test_message_id_of_producer_needs_topic(cluster: Cluster) -> None:
    cli = Cli(cluster.namesrv_address)
    (sent,) = cli("message", "send", "orders", "x", "--json").json
    line = refused(f"message show {sent['message_id']}", cluster.namesrv_address)
    assert "also pass --topic TOPIC" in line
    cli("message", "show", sent["message_id"], "--topic", "orders")
    cli("message", "show", sent["offset_id"])


def test_unknown_topic(cluster: Cluster) -> None:
    line = refused("message send nope x", cluster.namesrv_address)
    assert "there is no topic 'nope'" in line
    assert "create it with `tianzhou topic create`" in line
