"""TLS between brokers: the slave and the master agree on it in the hello."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.support.brokers import LOOPBACK, Peer, eventually, peer_of, running_broker
from tests.support.elected_brokers import failover, group_of
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.ports import free_port
from tests.support.replication import SLAVE
from tests.support.store import draft

from tianzhou.broker.server import Broker
from tianzhou.ha.roles.events import Switch
from tianzhou.protocol.codes import ResponseCode
from tianzhou.remoting.tls import tls_socket
from tianzhou.remoting.tls.contexts import Tls


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, good.pem and expired.pem of it, and stranger.pem, another authority."""
    folder, authority = tmp_path_factory.mktemp("certificates"), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "stranger.pem"))
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    for name, certificate in (
        ("good", authority.issue_cert(LOOPBACK)),
        ("expired", authority.issue_cert(LOOPBACK, not_before=past, not_after=past)),
    ):
        certificate.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.pem"))
    return folder


@pytest.fixture
def opened_ports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports of the HA connections that began with TLS."""
    ports: list[int] = []
    real = tls_socket.opened

    async def opened(sock: Any, *rest: Any) -> tls_socket.TlsSocket:  # noqa: ANN401 - passed on
        ports.append(sock.getpeername()[1])
        return await real(sock, *rest)

    monkeypatch.setattr(tls_socket, "opened", opened)
    return ports


def port_tls(folder: Path, mode: str, certificate: str = "good.pem") -> dict[str, object]:
    return {"tls.server.mode": mode, "tls.server.certPath": folder / certificate}


def client_tls(folder: Path, trusted: str = "ca.pem") -> dict[str, object]:
    return {
        "useTLS": "true", "tls.client.authServer": "true", "tls.client.checkName": "true",
        "tls.client.trustCertPath": folder / trusted,
    }  # fmt: skip


def problem_of(slave: Broker) -> str:
    assert slave.replication is not None
    row = slave.replication.status().master
    return (row.problem or "") if row else ""


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_a_slave_with_tls_copies_over_tls(
    tmp_path: Path, folder: Path, opened_ports: list[int], mode: str
) -> None:
    settings = port_tls(folder, mode) | client_tls(folder) | {"listenPort": free_port()}
    async with running_broker(tmp_path / "master", **settings) as master:
        for _ in range(30):
            master.store.append(draft("t", 0, b"x" * 100_000))
        assert master.replication is not None
        address = master.replication.advertised_address
        follows = SLAVE | client_tls(folder) | {"haMasterAddress": address}
        async with running_broker(tmp_path / "slave", **follows) as slave:
            end = master.store.end_log_offset
            await eventually(lambda: slave.store.end_log_offset == end, "the copy")
            assert int(address.rpartition(":")[2]) in opened_ports


async def test_a_plain_slave_copies_where_tls_is_optional(
    tmp_path: Path, folder: Path, opened_ports: list[int]
) -> None:
    settings = port_tls(folder, "permissive") | {"listenPort": free_port()}
    async with running_broker(tmp_path / "master", **settings) as master:
        master.store.append(draft("t", 0, b"x"))
        assert master.replication is not None
        follows = SLAVE | {"haMasterAddress": master.replication.advertised_address}
        async with running_broker(tmp_path / "slave", **follows) as slave:
            end = master.store.end_log_offset
            await eventually(lambda: slave.store.end_log_offset == end, "the copy")
    assert not opened_ports


@pytest.mark.parametrize(
    ("certificate", "trusted"), [("good.pem", "stranger.pem"), ("expired.pem", "ca.pem")]
)
async def test_a_master_that_is_not_trusted_is_not_followed(
    tmp_path: Path, folder: Path, certificate: str, trusted: str
) -> None:
    settings = port_tls(folder, "enforcing", certificate) | {
        "useTLS": "false", "listenPort": free_port(),
    }  # fmt: skip
    async with running_broker(tmp_path / "master", **settings) as master:
        master.store.append(draft("t", 0, b"x"))
        assert master.replication is not None
        address = master.replication.advertised_address
        follows = SLAVE | client_tls(folder, trusted) | {"haMasterAddress": address}
        async with running_broker(tmp_path / "slave", **follows) as slave:
            await eventually(lambda: "certificate" in problem_of(slave), "the reason")
            assert slave.store.end_log_offset == 0


async def test_elected_brokers_replicate_over_tls_also_after_a_switch(
    tmp_path: Path, folder: Path, etcd: EtcdCluster, opened_ports: list[int]
) -> None:
    port = port_tls(folder, "enforcing")
    settings = port | client_tls(folder)
    async with group_of(tmp_path, etcd, 2, settings, port) as group:
        master = await group.master()
        await group.in_sync(master, 2)
        assert set(opened_ports) == {ha_port_of(master)}
        tls = Tls(trusted=folder / "ca.pem")
        async with peer_of(master.address, tls) as peer:
            await eventually(lambda: sent(peer), "an acknowledged message")
        end = master.store.end_log_offset
        await failover(master).ask(Switch(), "a test")
        successor = await group.master(other_than=master)
        assert successor.store.end_log_offset >= end
        both = {ha_port_of(master), ha_port_of(successor)}
        await eventually(lambda: set(opened_ports) == both, "a connection to the new master")
        await group.in_sync(successor, 2)


async def sent(peer: Peer) -> bool:
    return (await peer.send("t", b"body")).code == ResponseCode.SUCCESS


def ha_port_of(broker: Broker) -> int:
    return broker.settings.config.ha_listen_port or int(broker.address.rpartition(":")[2]) + 1
