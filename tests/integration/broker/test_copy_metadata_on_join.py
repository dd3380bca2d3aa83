"""A broker that joins a cluster copies its topics and groups before it registers."""

import logging
from pathlib import Path

import pytest
from tests.integration.broker.test_admin import create
from tests.support.brokers import cluster, peer_of, running_broker, running_namesrv

from tianzhou.broker.cluster import copy_metadata_on_join
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.topics import TopicTable
from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from tianzhou.protocol.bodies.route import BrokerData, ClusterInfo, TopicRouteData
from tianzhou.protocol.bodies.topics import TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import RequestCode


async def test_topics_and_groups_are_copied_before_registration(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create(it.peer, "orders", 3, 5, perm=4)
        await it.peer.expect(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=encode(SubscriptionGroupConfig(group_name="readers", retry_max_times=3)),
        )
        await it.peer.heartbeat("c", "readers", {"orders": "*"})
        settings = {
            "namesrvAddr": it.namesrv, "brokerName": "broker-b", "copyMetadataOnJoin": "true",
        }  # fmt: skip
        async with running_broker(tmp_path / "b", **settings) as joined:
            topic, group = joined.topics.get("orders"), joined.groups.get("readers")
            assert topic is not None
            assert (topic.read_queue_count, topic.write_queue_count, topic.perm) == (3, 5, 4)
            assert group is not None
            assert group.retry_max_times == 3
            assert joined.topics.get("broker-a") is None, "that one is the other broker's own"
            assert joined.topics.get("%RETRY%readers") is None
            # Changes are registered with a short delay; on a busy machine it takes longer.
            for broker in (it.broker, joined):
                await broker.register()
            async with peer_of(it.namesrv) as peer:
                answer = await peer.expect(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
            names = {queue.broker_name for queue in decode(TopicRouteData, answer.body).queues}
            assert names == {"broker-a", "broker-b"}
        await create(it.peer, "later", 1, 1)
        async with running_broker(tmp_path / "b", **settings) as joined:
            assert joined.topics.get("orders") is not None, "it was saved"
            assert joined.topics.get("later") is None, "only the first start takes over"


async def test_nothing_is_copied_unless_enabled(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create(it.peer, "orders", 1, 1)
        settings = {"namesrvAddr": it.namesrv, "brokerName": "broker-b"}
        async with running_broker(tmp_path / "b", **settings) as joined:
            assert joined.topics.get("orders") is None
        other = settings | {"brokerClusterName": "other", "copyMetadataOnJoin": "true"}
        async with running_broker(tmp_path / "c", **other) as joined:
            assert joined.topics.get("orders") is None, "another cluster is no peer"


async def test_peers_with_access_control_are_read_with_an_account(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(
        "accounts: [{accessKey: brokers, secretKey: '12345678', admin: true}]"
    )
    secured = {"aclEnable": "true", "rocketmqHome": tmp_path}
    account = '{"accessKey":"brokers","secretKey":"%s"}'
    async with (
        running_namesrv(tmp_path) as namesrv,
        running_broker(tmp_path / "a", namesrvAddr=namesrv, **secured) as first,
    ):
        first.topics.put(TopicConfig(topic_name="orders", read_queue_count=1))
        for number, secret in enumerate(("12345678", "wrong-one")):
            async with running_broker(
                tmp_path / f"joined-{number}", namesrvAddr=namesrv, copyMetadataOnJoin="true",
                brokerName=f"broker-{number}",
                innerClientAuthenticationCredentials=account % secret,
            ) as joined:  # fmt: skip
                was_taken = joined.topics.get("orders") is not None
                assert was_taken is (secret == "12345678"), number  # noqa: S105 - made up
    assert "its topics and groups are not copied" in caplog.text
    assert "wrong-one" not in caplog.text


@pytest.mark.parametrize("namesrv", ["", "127.0.0.1:1"])
async def test_unreachable_cluster_causes_a_warning(
    tmp_path: Path, namesrv: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"namesrvAddr": namesrv} if namesrv else {}
    with caplog.at_level(logging.WARNING, logger="tianzhou.broker.cluster.copy_metadata_on_join"):
        async with running_broker(tmp_path, copyMetadataOnJoin="true", **settings) as broker:
            assert copy_metadata_on_join.is_new(broker.topics)
    assert any("joining DefaultCluster" in record.message for record in caplog.records)


async def test_unreachable_peer_is_skipped(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, peer_of(it.namesrv) as ghost:
        await create(it.peer, "orders", 1, 1)
        # A nameserver lists a crashed broker until it expires.
        await ghost.expect(
            RequestCode.REGISTER_BROKER,
            {
                "brokerName": "broker-0", "brokerAddr": "127.0.0.1:1", "haServerAddr": "",
                "clusterName": "DefaultCluster", "brokerId": "0", "compressed": "false",
                "bodyCrc32": "0",
            },
        )  # fmt: skip
        async with running_broker(
            tmp_path / "b", namesrvAddr=it.namesrv, brokerName="broker-b", copyMetadataOnJoin="true"
        ) as joined:
            assert joined.topics.get("orders") is not None


def test_peers_are_the_masters_of_other_broker_names() -> None:
    brokers = {
        "a": BrokerData(broker_name="a", addresses={1: "slave:1", 0: "master:1"}),
        "b": BrokerData(broker_name="b", addresses={0: "own:1"}),
        "c": BrokerData(broker_name="c", addresses={}),
    }
    info = ClusterInfo(clusters={"C": ["a", "b", "c", "gone"], "D": []}, brokers=brokers)
    found = copy_metadata_on_join.read_cluster(info, "C", "b")
    assert found.peers == {"a": "master:1"}
    assert found.own_names == {"C", "D", "a", "b", "c"}
    assert copy_metadata_on_join.read_cluster(info, "none", "b").peers == {}


def test_system_topics_and_groups_are_not_copied() -> None:
    topics, groups = TopicTable([], lambda: 0), GroupTable(lambda: 0)
    names = (
        "orders", "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "C", "a",
        "C_REPLY_TOPIC", "bad name",
    )  # fmt: skip
    theirs = TopicConfigTable(topics={name: TopicConfig(perm=2) for name in names})
    assert copy_metadata_on_join.add_topics(theirs, frozenset(("C", "a")), topics) == 1
    assert copy_metadata_on_join.add_topics(theirs, frozenset(("C", "a")), topics) == 0
    assert topics.topics == {"orders": TopicConfig(topic_name="orders", perm=2)}
    made = SubscriptionGroupConfig(retry_max_times=1)
    table = SubscriptionGroupTable(groups={"g": made, "TOOLS_CONSUMER": made})
    assert copy_metadata_on_join.add_groups(table, groups) == 1
    found = groups.get("g")
    assert found is not None
    assert (found.group_name, found.retry_max_times) == ("g", 1)
