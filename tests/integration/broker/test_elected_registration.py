"""Elected masters and a nameserver that knows another master of the same name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import eventually, peer_of
from tests.support.elected_brokers import Group, failover, group_of, send_until
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.registration import encode as encode_registration

from tianzhou.protocol.bodies.registration import RegisterBrokerBody
from tianzhou.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers import encode
from tianzhou.protocol.headers.namesrv import RegisterBrokerRequest
from tianzhou.protocol.version import CURRENT_VERSION

AHEAD = 6


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def registration(group: Group, epoch: int) -> tuple[dict[str, str], bytes]:
    """Of another master of the group."""
    header = RegisterBrokerRequest(
        broker_name=group.name, broker_addr="127.0.0.1:1", cluster_name="DefaultCluster",
        broker_id=0, ha_server_addr="127.0.0.1:2", compressed=False, body_crc32=0,
    )  # fmt: skip
    topics = TopicConfigTable(
        data_version=DataVersion(state_version=epoch),
        topics={name: TopicConfig(topic_name=name) for name in ("a", "b")},
    )
    body = encode_registration(
        RegisterBrokerBody(topic_config=topics), compressed=False, broker_version=CURRENT_VERSION
    )
    return encode(header), body


@pytest.mark.parametrize("ahead", [AHEAD, 1 << 40], ids=["higher", "absurd"])
async def test_a_master_that_a_nameserver_ignores_asks_the_authority(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        master = await group.master()
        driver = failover(master)
        session = driver.role.session
        assert session is not None
        reads: list[int] = []
        read = driver.link.read

        def recorded() -> None:
            reads.append(driver.role.epoch_heard)
            read()

        namesrv = str(group.settings["namesrvAddr"])
        async with peer_of(namesrv) as other, peer_of(master.address) as client:
            fields, body = registration(group, session.epoch + ahead)
            await other.expect(RequestCode.REGISTER_BROKER, fields, body)
            monkeypatch.setattr(driver.link, "read", recorded)
            await master.register()
            await eventually(lambda: reads, "a read of the authority")
            assert not master.registered_with
            named = f"nameserver {namesrv} names epoch {session.epoch + ahead}"
            is_named = any(each.text.startswith(named) for each in driver.role.reasons)
            if ahead == AHEAD:
                # The next election takes a higher one, which the nameserver accepts.
                assert driver.role.epoch_heard == session.epoch + ahead
                assert is_named
            else:
                assert driver.role.epoch_heard < session.epoch + ahead
                assert not is_named
            assert driver.role.session is session, "the authority decides"
            await send_until(client, ResponseCode.SLAVE_NOT_AVAILABLE)
        await eventually(lambda: namesrv in master.registered_with, "the registration")
