"""Brokers that elect their master in an etcd with TLS and users."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.support.brokers import eventually, peer_of
from tests.support.elected_brokers import failover, group_of, send_until
from tests.support.etcd import EtcdCluster, EtcdTls, etcd_cluster

from tianzhou.ha.roles.events import Switch
from tianzhou.protocol.codes import ResponseCode

USER, PASSWORD = "broker", "broker-password"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem, etcd.pem and etcd.key."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "etcd.key")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(folder / "etcd.pem", append=True)
    return folder


@pytest.fixture(scope="module")
def etcd(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    tls = EtcdTls(files / "ca.pem", files / "etcd.pem", files / "etcd.key")
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), 3, tls=tls) as cluster:
        cluster.enable_users(USER, PASSWORD, "/tianzhou/")
        yield cluster


async def test_they_elect_switch_and_acknowledge(
    tmp_path: Path, etcd: EtcdCluster, files: Path
) -> None:
    settings: dict[str, Any] = {
        "haEtcdUser": USER, "haEtcdPassword": PASSWORD, "haEtcdCaFile": str(files / "ca.pem"),
    }  # fmt: skip
    async with group_of(tmp_path, etcd, 3, **settings) as group:
        first = await group.master()
        await group.in_sync(first, 3)
        is_done, reason = await failover(first).ask(Switch(), "a test")
        assert is_done, reason
        second = await group.master(other_than=first)
        await group.in_sync(second, 3)
        async with peer_of(second.address) as peer:
            await send_until(peer, ResponseCode.SUCCESS)


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"haEtcdPassword": "wrong"}, "correct haEtcdUser and haEtcdPassword"),
        ({"haEtcdUser": "", "haEtcdPassword": ""}, "set haEtcdUser and haEtcdPassword"),
    ],
)
async def test_a_broker_that_may_not_use_it_says_why_and_serves_nobody(
    tmp_path: Path, etcd: EtcdCluster, files: Path, wrong: dict[str, str], advice: str
) -> None:
    settings: dict[str, Any] = {
        "haEtcdUser": USER, "haEtcdPassword": PASSWORD, "haEtcdCaFile": str(files / "ca.pem"),
    } | wrong  # fmt: skip
    async with group_of(tmp_path, etcd, 1, **settings) as group:
        (broker,) = group.brokers
        await eventually(
            lambda: advice in (failover(broker).link.problem or ""), f"the advice {advice!r}"
        )
        async with peer_of(broker.address) as peer:
            refused = await peer.send("t", b"x")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not broker.registered_with
