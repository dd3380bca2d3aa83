"""Heartbeats over real sockets: members of a group, and notices when they change."""

import logging
from pathlib import Path

import pytest
from tests.support.brokers import Peer, cluster, eventually, peer_of

from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.clients import (
    CheckClientBody,
    ConsumerConnection,
    ConsumerIdList,
    ProducerConnection,
)
from tianzhou.protocol.bodies.subscription import SubscriptionData
from tianzhou.protocol.codes import RequestCode, ResponseCode


async def members(peer: Peer, group: str) -> list[str]:
    answer = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code != ResponseCode.SUCCESS:
        return []
    return sorted(decode(ConsumerIdList, answer.body).consumer_ids or [])


async def test_members_are_notified_when_a_consumer_joins(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as second:
        await it.peer.heartbeat("c1", "g", {"t": "*"})
        assert await members(it.peer, "g") == ["c1"]
        before = it.peer.notices("g")
        await second.heartbeat("c2", "g", {"t": "*"})
        assert await members(it.peer, "g") == ["c1", "c2"]
        await eventually(lambda: it.peer.notices("g") == before + 1, "a notice for c1")
        await eventually(lambda: second.notices("g") == 1, "a notice for c2")
        await it.peer.heartbeat("c1", "g", {"t": "*"})
        await second.heartbeat("c2", "g", {"t": "*"})
        assert (it.peer.notices("g"), second.notices("g")) == (before + 1, 1), "nothing changed"
        assert it.broker.topics.get("%RETRY%g") is not None


async def test_members_are_notified_when_a_consumer_disconnects(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.heartbeat("c1", "g", {"t": "*"})
        async with peer_of(it.broker.address) as second:
            await second.heartbeat("c2", "g", {"t": "*"})
            notices = it.peer.notices("g")
        await eventually(lambda: it.peer.notices("g") > notices, "a notice at disconnect")
        assert await members(it.peer, "g") == ["c1"]


async def test_unregistering_leaves_the_group(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as second:
        await it.peer.heartbeat("c1", "g", {"t": "*"}, producer="p")
        await second.heartbeat("c2", "g", {"t": "*"})
        goodbye = {"clientID": "c1", "consumerGroup": "g", "producerGroup": "p"}
        notices = second.notices("g")
        await it.peer.expect(RequestCode.UNREGISTER_CLIENT, goodbye)
        await eventually(lambda: second.notices("g") == notices + 1, "a notice for c2")
        assert await members(second, "g") == ["c2"]
        assert not it.broker.producers.groups
        await it.peer.expect(RequestCode.UNREGISTER_CLIENT, goodbye)


async def test_silent_clients_are_dropped(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, channelExpiredTimeout=300) as it,
        peer_of(it.broker.address) as silent,
    ):
        await silent.heartbeat("c1", "g", {"t": "*"}, producer="p")
        assert it.broker.consumers.get("g") is not None
        await eventually(lambda: it.broker.consumers.get("g") is None, "dropped")
        await eventually(lambda: not it.broker.producers.groups, "dropped")


async def test_members_of_a_broadcasting_group_are_not_notified(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as second:
        await it.peer.heartbeat("c1", "b", {"t": "*"}, model="BROADCASTING")
        await second.heartbeat("c2", "b", {"t": "*"}, model="BROADCASTING")
        assert await members(it.peer, "b") == ["c1", "c2"]
        assert (it.peer.notices("b"), second.notices("b")) == (0, 0)


async def test_members_with_different_subscriptions_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as second:
        await it.peer.heartbeat("c1", "g", {"t": "a"})
        with caplog.at_level(logging.WARNING, "tianzhou.broker"):
            await second.heartbeat("c2", "g", {"t": "b"})
            await second.heartbeat("c2", "g", {"t": "b"})
        logged = [record.getMessage() for record in caplog.records]
        warnings = [text for text in logged if "differently" in text]
        assert len(warnings) == 1
        assert "c1 by TAG 'a'" in warnings[0]
        assert "c2 by TAG 'b'" in warnings[0]
        group = it.broker.consumers.get("g")
        assert group is not None
        assert len(group.differences) == 1


async def test_group_bound_to_topics_is_refused_other_topics(tmp_path: Path) -> None:
    async with cluster(
        tmp_path, groupTopicBindingEnable="true", groupTopicBindings="g=t,u; h = v"
    ) as it:
        assert (await it.peer.heartbeat("c1", "g", {"t": "*", "%RETRY%g": "*"})).code == 0
        refused = await it.peer.heartbeat("c1", "g", {"v": "*"})
        assert refused.code == ResponseCode.NO_PERMISSION
        assert refused.remark is not None
        assert "topic v is not granted to consumer group g" in refused.remark
        assert (await it.peer.heartbeat("c2", "stranger", {"t": "*"})).code == 16
        assert it.broker.consumers.get("stranger") is None


async def test_filters_are_checked_before_a_consumer_starts(tmp_path: Path) -> None:
    async with cluster(tmp_path, enablePropertyFilter="true") as it:
        for expression, kind, code in (
            ("a > 5", "SQL92", ResponseCode.SUCCESS),
            ("a >", "SQL92", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            ("x", "XPATH", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            ("a || b", "TAG", ResponseCode.SUCCESS),
        ):
            body = CheckClientBody(
                client_id="c", group="g",
                subscription_data=SubscriptionData(
                    topic="t", expression=expression, expression_type=kind
                ),
            )  # fmt: skip
            answer = await it.peer.ask(RequestCode.CHECK_CLIENT_CONFIG, None, encode(body))
            assert answer.code == code, expression


async def test_connections_are_listed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.heartbeat("c1", "g", {"t": "a || b"}, producer="p")
        answer = await it.peer.expect(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}
        )
        consumer = decode(ConsumerConnection, answer.body)
        (connection,) = consumer.connections
        assert (connection.client_id, connection.language) == ("c1", "PYTHON")
        assert sorted(consumer.subscriptions["t"].tags) == ["a", "b"]
        assert (consumer.message_model, consumer.consume_type) == (
            "CLUSTERING", "CONSUME_PASSIVELY",
        )  # fmt: skip
        answer = await it.peer.expect(
            RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"}
        )
        assert len(decode(ProducerConnection, answer.body).connections) == 1
        for code, field in (
            (RequestCode.GET_CONSUMER_CONNECTION_LIST, "consumerGroup"),
            (RequestCode.GET_PRODUCER_CONNECTION_LIST, "producerGroup"),
            (RequestCode.GET_CONSUMER_LIST_BY_GROUP, "consumerGroup"),
        ):
            missing = await it.peer.ask(code, {field: "nobody"})
            assert missing.code != ResponseCode.SUCCESS
            assert "nobody" in (missing.remark or "")
