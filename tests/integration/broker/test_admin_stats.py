"""Statistics and maintenance of the store over real sockets, as mqadmin requests them."""

import asyncio
import struct
from pathlib import Path

import pytest
from tests.integration.broker.test_admin import create
from tests.support.brokers import Peer, cluster, eventually, peer_of, running_broker
from tests.support.pop import ack, pop

from tianzhou.broker.server import Broker
from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.clients import ConsumerConnection, ProducerTableInfo
from tianzhou.protocol.bodies.groups import (
    GroupForbidden,
    QuerySubscriptionBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from tianzhou.protocol.bodies.ha import HARuntimeInfo
from tianzhou.protocol.bodies.offsets import DelayOffsetTable, QueryCorrectionOffsetBody
from tianzhou.protocol.bodies.queues import MessageQueue, QueryConsumeQueueBody
from tianzhou.protocol.bodies.stats import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
)
from tianzhou.protocol.bodies.topics import CreateTopicListBody, KVTable, TopicConfig, TopicList
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.remoting.scheduler import at_once

INT64_MAX = 2**63 - 1


async def commit(peer: Peer, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
    await peer.expect(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {
            "consumerGroup": group, "topic": topic, "queueId": str(queue_id),
            "commitOffset": str(queue_offset),
        },
    )  # fmt: skip


async def view(peer: Peer, name: str, key: str) -> BrokerStatsData:
    fields = {"statsName": name, "statsKey": key}
    return decode(
        BrokerStatsData, (await peer.expect(RequestCode.VIEW_BROKER_STATS_DATA, fields)).body
    )


# -- rates and sums --------------------------------------------------------------------------------


async def test_statistics_are_counted_by_topic_queue_and_group(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for number in range(3):
            await it.peer.send("t", b"x" * 10, queue_id=number % 2)
        await it.peer.pull("g", "t", 0, 0)
        for name, key, total in (
            ("TOPIC_PUT_NUMS", "t", 3), ("QUEUE_PUT_NUMS", "t@0", 2), ("QUEUE_PUT_NUMS", "t@1", 1),
            ("GROUP_GET_NUMS", "t@g", 2), ("QUEUE_GET_NUMS", "t@0@g", 2),
            ("BROKER_PUT_NUMS", "DefaultCluster", 3), ("BROKER_GET_NUMS", "DefaultCluster", 2),
        ):  # fmt: skip
            seen = await view(it.peer, name, key)
            for item in (seen.minute, seen.hour, seen.day):
                assert item is not None
                assert item.sum == total, (name, key)
                assert item.tps > 0
        put = (await view(it.peer, "TOPIC_PUT_SIZE", "t")).day
        got = (await view(it.peer, "GROUP_GET_NUMS", "t@g")).minute
        assert put is not None
        assert got is not None
        assert put.sum == await log_end(it.broker), "the size is that of the records"
        assert (put.average, got.average) == (put.sum / 3, 2), "by request"
        for name, key in (("TOPIC_PUT_NUMS", "unknown"), ("NONE", "t"), ("QUEUE_GET_NUMS", "t@g")):
            answer = await it.peer.ask(
                RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key}
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == f"The stats <{name}> <{key}> not exist"


async def test_a_scheduled_message_counts_for_its_topic_when_it_is_delivered(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, messageDelayLevel="1s 1h") as it:
        for props in ({"DELAY": "2"}, {"DELAY": "2"}, {"TIMER_DELAY_SEC": "3600"}):
            await it.peer.send("later", b"x", props=props)
        for props in ({"DELAY": "1"}, {"TIMER_DELAY_MS": "200"}):
            await it.peer.send("soon", b"x", queue_id=1, props=props)
        waits = {"SCHEDULE_TOPIC_XXXX": 3, "rmq_sys_wheel_timer": 2}
        for topic, total in waits.items():
            minute = (await view(it.peer, "TOPIC_PUT_NUMS", topic)).minute
            assert minute is not None
            assert minute.sum == total, topic

        async def all_are_delivered() -> bool:
            fields = {"statsName": "QUEUE_PUT_NUMS", "statsKey": "soon@1"}
            answer = await it.peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields)
            minute = decode(BrokerStatsData, answer.body).minute if answer.body else None
            return minute is not None and minute.sum == 2

        await eventually(all_are_delivered, "both are counted")
        fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "later"}
        answer = await it.peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR, "nothing of it is delivered yet"


async def test_pops_latencies_and_connections_are_counted_under_rocketmqs_keys(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as it:
        for number in range(4):
            await it.peer.send("t", b"x" * 10, queue_id=number % 2)
        popped = await pop(it.peer)
        assert len(popped) == 4
        for one in popped[:3]:
            assert (await ack(it.peer, one)).code == ResponseCode.SUCCESS
        for name, key, total in (
            ("GROUP_CK_NUMS", "t@g", 2), ("GROUP_ACK_NUMS", "t@g", 3),
            ("BROKER_CK_NUMS", "DefaultCluster", 2), ("BROKER_ACK_NUMS", "DefaultCluster", 3),
            ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", "DefaultCluster", 4),
        ):  # fmt: skip
            minute = (await view(it.peer, name, key)).minute
            assert minute is not None
            assert minute.sum == total, (name, key)
        for name, key in (
            ("GROUP_GET_LATENCY", "0@t@g"), ("GROUP_GET_LATENCY", "t@g"),
            ("TOPIC_PUT_LATENCY", "0@t"), ("CHANNEL_ACTIVITY", "CONNECT"),
        ):  # fmt: skip
            assert (await view(it.peer, name, key)).day is not None, (name, key)


async def test_queues_are_not_counted_without_detail(tmp_path: Path) -> None:
    async with cluster(tmp_path, enableDetailStat="false") as it:
        await it.peer.send("t", b"x")
        await view(it.peer, "TOPIC_PUT_NUMS", "t")
        answer = await it.peer.ask(
            RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "QUEUE_PUT_NUMS", "statsKey": "t@0"}
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def runtime(broker: Broker) -> dict[str, str]:
    async with peer_of(broker.address) as peer:
        answer = await peer.expect(RequestCode.GET_BROKER_RUNTIME_INFO)
    return decode(KVTable, answer.body).table


async def log_end(broker: Broker) -> int:
    return int((await runtime(broker))["commitLogMaxOffset"])


async def test_totals_survive_restarts(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "store") as broker, peer_of(broker.address) as peer:
        for _ in range(3):
            await peer.send("t", b"x")
        await peer.pull("g", "t", 0, 0)
        seen = await runtime(broker)
        assert (seen["msgPutTotalTodayNow"], seen["msgGetTotalTodayNow"]) == ("3", "3")
        assert len(seen["putTps"].split()) == 3
        assert all(float(rate) > 0 for rate in seen["putTps"].split())
    assert (tmp_path / "store" / "config" / "statistics.json").exists()
    async with running_broker(tmp_path / "store") as broker, peer_of(broker.address) as peer:
        await peer.send("t", b"x")
        seen = await runtime(broker)
        assert (seen["msgPutTotalTodayNow"], seen["msgGetTotalTodayNow"]) == ("4", "3")
        assert seen["putMessageTimesTotal"] == "1", "since the start"
        assert seen["msgPutTotalTodayMorning"] == "0"


async def test_unreadable_totals_do_not_prevent_the_start(tmp_path: Path) -> None:
    path = tmp_path / "store" / "config" / "statistics.json"
    path.parent.mkdir(parents=True)
    path.write_text("no JSON at all")
    async with running_broker(tmp_path / "store") as broker:
        assert (await runtime(broker))["msgPutTotalTodayNow"] == "0"


# -- how far groups are ----------------------------------------------------------------------------


async def test_offsets_and_lag_of_every_group(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create(it.peer, "t", 2, 2)
        for _ in range(3):
            await it.peer.send("t", b"x", queue_id=0)
        await it.peer.expect(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=encode(SubscriptionGroupConfig(group_name="g")),
        )
        await commit(it.peer, "g", "t", 0, 1)
        answer = await it.peer.expect(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        body = decode(ConsumeStatsList, answer.body)
        assert (body.broker_addr, body.total_diff) == (it.broker.address, 2)
        [stats] = next(each["g"] for each in body.stats if "g" in each)
        queue = MessageQueue(topic="t", broker_name="broker-a", queue_id=0)
        assert stats.offsets[queue].consumer_offset == 1
        answer = await it.peer.expect(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
        assert decode(ConsumeStatsList, answer.body).total_diff == 0, "no topic is ordered"
        await it.peer.pull("g", "t", 0, 0)
        fields = {"consumerGroup": "g"}
        answer = await it.peer.expect(RequestCode.GET_CONSUME_STATS, fields)
        assert decode(ConsumeStats, answer.body).consume_tps > 0
        # The group is online without a subscription to the topic, so the topic is not listed.
        await it.peer.heartbeat("c", "g", {"other": "*"})
        answer = await it.peer.expect(RequestCode.GET_CONSUME_STATS, fields)
        assert decode(ConsumeStats, answer.body).offsets == {}
        answer = await it.peer.expect(
            RequestCode.GET_CONSUME_STATS, {"consumerGroup": "none", "topicList": "t;;unknown"}
        )
        assert len(decode(ConsumeStats, answer.body).offsets) == 2


async def group_offsets(peer: Peer, group: str, queue_id: int = 0) -> tuple[int, int]:
    """consumerOffset and pullOffset of a group in topic t."""
    fields = {"consumerGroup": group, "topic": "t"}
    answer = await peer.expect(RequestCode.GET_CONSUME_STATS, fields)
    table = decode(ConsumeStats, answer.body).offsets
    found = table[MessageQueue(topic="t", broker_name="broker-a", queue_id=queue_id)]
    assert found.pull_offset is not None
    return found.consumer_offset, found.pull_offset


async def test_pulled_and_uncommitted_messages_are_in_flight(tmp_path: Path) -> None:
    """The pull is answered by a handler, by the kernel, or when a message arrives."""
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as other:
        for number in range(10):
            await it.peer.send("t", b"%d" % number)
        assert await group_offsets(it.peer, "g") == (0, 0)
        for at in (0, 2, 4):
            await it.peer.pull("g", "t", 0, at, count=2)
        assert await group_offsets(it.peer, "g") == (0, 6)
        await commit(it.peer, "g", "t", 0, 3)
        assert await group_offsets(it.peer, "g") == (3, 6)
        await commit(it.peer, "g", "t", 0, 8)
        assert await group_offsets(it.peer, "g") == (8, 8), "never less than what is done"
        held = asyncio.create_task(other.pull("g", "t", 0, 10, sys_flag=6, suspend_ms=30_000))
        await eventually(lambda: len(it.broker.parked) == 1, "parked")
        assert await group_offsets(it.peer, "g") == (8, 10)
        await it.peer.send("t", b"10")
        assert (await held).code == ResponseCode.SUCCESS
        assert await group_offsets(it.peer, "g") == (8, 11)
        await it.peer.pull("g", "t", 0, 8, count=1)
        assert await group_offsets(it.peer, "g") == (8, 9), "pulled again from further back"
        answer = await it.peer.expect(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        assert decode(ConsumeStatsList, answer.body).total_inflight_diff == 1
        it.broker.offsets.reset("g", "t", 0, 1)
        assert await group_offsets(it.peer, "g") == (1, 1)


@pytest.mark.parametrize("order", [False, True])
async def test_popped_and_unacknowledged_messages_are_in_flight(
    tmp_path: Path, *, order: bool
) -> None:
    async with cluster(tmp_path) as it:
        for number in range(5):
            await it.peer.send("t", b"%d" % number)
        first, second, _ = await pop(it.peer, count=3, queue_id=0, order=order)
        assert await group_offsets(it.peer, "g") == (0, 3)
        await ack(it.peer, first)
        await ack(it.peer, second)
        assert await group_offsets(it.peer, "g") == (2, 3)


async def test_client_without_subscriptions_keeps_the_topics_of_its_group(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create(it.peer, "t", 2, 2)
        await create(it.peer, "u", 1, 1)
        for topic in ("t", "u"):
            await commit(it.peer, "g", topic, 0, 0)

        async def topics_in_stats(**fields: str) -> set[str | None]:
            asked = {"consumerGroup": "g", **fields}
            answer = await it.peer.expect(RequestCode.GET_CONSUME_STATS, asked)
            return {queue.topic for queue in decode(ConsumeStats, answer.body).offsets}

        await it.peer.heartbeat("c", "g", {})
        assert await topics_in_stats() == {"t", "u"}
        clone = {"srcGroup": "g", "destGroup": "h", "topic": "t", "offline": "false"}
        await it.peer.expect(RequestCode.CLONE_GROUP_OFFSET, clone)
        assert at_once(it.broker.offsets.topics_of("h")) == {"t"}
        await it.peer.heartbeat("c", "g", {"u": "*"})
        assert await topics_in_stats() == {"u"}
        assert await topics_in_stats(topic="t") == set()
        assert await topics_in_stats(topicList="t", topic="u") == {"t"}, "a list is not checked"


async def test_age_of_the_backlog_of_a_group(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create(it.peer, "t", 2, 2)
        await it.peer.send("t", b"x", queue_id=0)
        await it.peer.send("t", b"x", queue_id=0)
        await commit(it.peer, "g", "t", 0, 1)
        fields = {"topic": "t", "group": "g"}
        answer = await it.peer.expect(RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
        full, empty = decode(QueryConsumeTimeSpanBody, answer.body).spans
        assert full.queue is not None
        assert 0 < full.min_timestamp == full.consume_timestamp <= full.max_timestamp
        assert full.delay_time_ms >= 0
        assert full.min_timestamp_text is not None
        assert "#" in full.min_timestamp_text
        assert (empty.min_timestamp, empty.max_timestamp, empty.delay_time_ms) == (-1, -1, 0)
        answer = await it.peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, fields | {"topic": "none"})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_offsets_are_copied_between_groups(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for topic in ("t", "u"):
            await it.peer.send(topic, b"x")
            await commit(it.peer, "a", topic, 0, 1)
        fields = {"srcGroup": "a", "destGroup": "b", "topic": "t", "offline": "false"}
        await it.peer.expect(RequestCode.CLONE_GROUP_OFFSET, fields)
        assert at_once(it.broker.offsets.topics_of("b")) == {"t"}
        assert it.broker.groups.get("b") is not None, "a group that has offsets exists"
        await it.peer.expect(
            RequestCode.CLONE_GROUP_OFFSET, fields | {"destGroup": "c", "topic": ""}
        )
        assert at_once(it.broker.offsets.topics_of("c")) == {"t", "u"}
        await it.peer.heartbeat("client", "a", {"u": "*"})
        await it.peer.expect(RequestCode.CLONE_GROUP_OFFSET, fields | {"destGroup": "d"})
        assert at_once(it.broker.offsets.topics_of("d")) == set(), "the group has left the topic"
        offline = fields | {"destGroup": "d", "offline": "true"}
        await it.peer.expect(RequestCode.CLONE_GROUP_OFFSET, offline)
        assert at_once(it.broker.offsets.topics_of("d")) == {"t"}
        answer = await it.peer.ask(RequestCode.CLONE_GROUP_OFFSET, fields | {"destGroup": "a b"})
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_the_lowest_offset_of_all_groups(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for _ in range(5):
            await it.peer.send("t", b"x")
        for group, queue_offset in (("a", 2), ("b", 4), ("low", 1)):
            await commit(it.peer, group, "t", 0, queue_offset)

        async def correction_offsets(compare: str, without: str) -> dict[int, int]:
            fields = {"topic": "t", "compareGroup": compare, "filterGroups": without}
            answer = await it.peer.expect(RequestCode.QUERY_CORRECTION_OFFSET, fields)
            return decode(QueryCorrectionOffsetBody, answer.body).offsets

        assert await correction_offsets("b", "") == {0: 1}
        assert await correction_offsets("b", "low") == {0: 2}
        assert await correction_offsets("low", "low") == {0: INT64_MAX}, "it is behind all others"
        assert await correction_offsets("nobody", "low,a") == {0: 4}
        assert it.broker.offsets.find("low", "t", 0) == 1, "asking changes nothing"


# -- lists, and who may read -----------------------------------------------------------------------


async def test_lists_of_topics_and_groups_are_created_atomically(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        topics = [
            TopicConfig(topic_name="a", read_queue_count=3, attributes={"+message.type": "FIFO"}),
            TopicConfig(topic_name="b", perm=4),
        ]
        body = encode(CreateTopicListBody(topics=topics))
        await it.peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        made = it.broker.topics.get("a")
        assert made is not None
        assert (made.read_queue_count, made.attributes) == (3, {"message.type": "FIFO"})
        for wrong in (
            TopicConfig(topic_name="bad name"),
            TopicConfig(topic_name="TBW102"),
            TopicConfig(topic_name="x", perm=9),
            TopicConfig(topic_name="x", read_queue_count=0),
            TopicConfig(topic_name="x", filter_type="ANY"),
            TopicConfig(topic_name="x", attributes={"unsigned": "1"}),
        ):
            body = encode(CreateTopicListBody(topics=[TopicConfig(topic_name="c"), wrong]))
            answer = await it.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR, wrong
            assert it.broker.topics.get("c") is None
        groups = [SubscriptionGroupConfig(group_name=name) for name in ("g", "h")]
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        await it.peer.expect(code, body=encode(SubscriptionGroupList(groups=groups)))
        assert it.broker.groups.get("h") is not None
        groups = [SubscriptionGroupConfig(group_name=name) for name in ("i", "")]
        answer = await it.peer.ask(code, {}, encode(SubscriptionGroupList(groups=groups)))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert it.broker.groups.get("i") is None


async def test_a_group_is_forbidden_to_read_a_topic_also_after_a_restart(tmp_path: Path) -> None:
    fields = {"group": "g", "topic": "t"}
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    async def readable(peer: Peer, **change: str) -> bool | None:
        answer = await peer.expect(code, fields | change)
        return decode(GroupForbidden, answer.body).readable

    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"x")
        await it.peer.send("u", b"x")
        assert await readable(it.peer)
        assert await readable(it.peer, readable="false") is False
        answer = await it.peer.pull("g", "t", 0, 0)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "forbidden" in (answer.remark or "")
        assert (await it.peer.pull("g", "u", 0, 0)).code == ResponseCode.SUCCESS
        assert (await it.peer.pull("h", "t", 0, 0)).code == ResponseCode.SUCCESS
    async with cluster(tmp_path) as it:
        assert await readable(it.peer) is False
        assert await readable(it.peer, readable="true")
        assert (await it.peer.pull("g", "t", 0, 0)).code == ResponseCode.SUCCESS
        answer = await it.peer.ask(code, {"group": "a b", "topic": "t", "readable": "false"})
        assert answer.code == ResponseCode.SYSTEM_ERROR


# -- clients ---------------------------------------------------------------------------------------


async def test_connections_and_different_subscriptions_of_members(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as other:
        await it.peer.heartbeat("one", "g", {"t": "a"}, producer="p")
        answer = await it.peer.expect(RequestCode.GET_ALL_PRODUCER_INFO)
        data = decode(ProducerTableInfo, answer.body).data
        assert data is not None
        assert [each.client_id for each in data["p"]] == ["one"]
        fields = {"consumerGroup": "g"}
        answer = await it.peer.expect(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
        assert b"ifferences" not in answer.body, "stock tools see what they know"
        await other.heartbeat("two", "g", {"t": "b"}, version=2)
        answer = await it.peer.expect(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
        differences = decode(ConsumerConnection, answer.body).differences
        assert differences is not None
        [difference] = differences
        assert (difference.topic, difference.client_id, difference.other_client_id) == (
            "t", "one", "two",
        )  # fmt: skip
        assert (difference.subscribes, difference.other_subscribes) == (
            "by TAG 'a'", "by TAG 'b'",
        )  # fmt: skip
        fields = {"group": "g", "topic": "t"}
        answer = await it.peer.expect(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields)
        found = decode(QuerySubscriptionBody, answer.body).subscription_data
        assert found is not None
        assert found.expression == "b", "the newest heartbeat decides for the group"
        answer = await it.peer.expect(
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields | {"topic": "u"}
        )
        assert decode(QuerySubscriptionBody, answer.body).subscription_data is None
        await it.peer.send("t", b"x")
        await commit(it.peer, "g", "t", 0, 1)
        answer = await it.peer.expect(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"})
        assert decode(TopicList, answer.body).topics == ["t"]


# -- the store -------------------------------------------------------------------------------------


async def test_entries_of_a_queue_are_shown(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for tag in ("a", "b", "a"):
            await it.peer.send("t", b"x", props={"TAGS": tag})
        await it.peer.heartbeat("c", "g", {"t": "a"})

        async def queue_entries(**more: str) -> QueryConsumeQueueBody:
            fields = {"topic": "t", "queueId": "0", "index": "0", "count": "10"} | more
            answer = await it.peer.expect(RequestCode.QUERY_CONSUME_QUEUE, fields)
            return decode(QueryConsumeQueueBody, answer.body)

        body = await queue_entries(consumerGroup="g")
        assert (body.min_queue_index, body.max_queue_index) == (0, 3)
        assert body.entries is not None
        assert [each.matches for each in body.entries] == [True, False, True]
        assert body.entries[0].log_offset == 0
        assert body.subscription_data is not None
        assert body.filter_data == "null"
        offline = await queue_entries(consumerGroup="nobody")
        assert offline.filter_data == "nobody@t is not online!"
        assert (await queue_entries(index="1", count="1")).entries == [
            body.entries[1].__class__(
                log_offset=body.entries[1].log_offset,
                size_bytes=body.entries[1].size_bytes,
                tags_code=body.entries[1].tags_code,
            )
        ]
        for index in ("3", "-1", "9000000000"):
            assert (await queue_entries(index=index)).entries == []
        assert (await queue_entries(count="-5")).entries == []
        fields = {"topic": "t", "queueId": "7", "index": "0", "count": "1"}
        answer = await it.peer.ask(RequestCode.QUERY_CONSUME_QUEUE, fields)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "7@t is not exist!")


async def test_an_expression_is_shown_with_the_queue(tmp_path: Path) -> None:
    async with cluster(tmp_path, enablePropertyFilter="true") as it:
        await it.peer.send("t", b"x")
        await it.peer.heartbeat("c", "g", {"t": "a > 5"}, kind="SQL92")
        fields = {"topic": "t", "queueId": "0", "index": "0", "count": "1", "consumerGroup": "g"}
        answer = await it.peer.expect(RequestCode.QUERY_CONSUME_QUEUE, fields)
        filter_data = decode(QueryConsumeQueueBody, answer.body).filter_data
        assert filter_data is not None
        assert '"expression":"a > 5"' in filter_data


async def test_cleaning_deletes_only_unused_queues(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("kept", b"x")
        await it.peer.send("gone", b"x")
        # A crash between saving the topics and deleting the queues leaves such queues behind.
        it.broker.topics.remove("gone")
        for code in (
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.DELETE_EXPIRED_COMMITLOG,
        ):
            await it.peer.expect(code)
        entry = {"topic": "gone", "queueId": "0", "index": "0", "count": "1"}
        await it.peer.expect(RequestCode.QUERY_CONSUME_QUEUE, entry)
        await it.peer.expect(RequestCode.CLEAN_UNUSED_TOPIC)
        answer = await it.peer.ask(RequestCode.QUERY_CONSUME_QUEUE, entry)
        assert answer.remark == "0@gone is not exist!"
        assert (await it.peer.pull("g", "kept", 0, 0)).code == ResponseCode.SUCCESS


async def test_an_expired_queue_is_deleted_only_if_it_is_unused(tmp_path: Path) -> None:
    small = {"mappedFileSizeCommitLog": 65_536, "fileReservedTime": 0}
    async with cluster(tmp_path, **small) as it:
        for topic in ("gone", "quiet"):
            await it.peer.send(topic, b"x")
        while await log_end(it.broker) < 2 * 65_536:
            await it.peer.send("busy", b"x" * 10_000)
        it.broker.topics.remove("gone")
        await it.peer.expect(RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert (await it.peer.pull("g", "quiet", 0, 0)).code == ResponseCode.PULL_OFFSET_MOVED
        entry = {"topic": "gone", "queueId": "0", "index": "0", "count": "1"}
        await it.peer.expect(RequestCode.QUERY_CONSUME_QUEUE, entry)
        await it.peer.expect(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        answer = await it.peer.ask(RequestCode.QUERY_CONSUME_QUEUE, entry)
        assert answer.remark == "0@gone is not exist!"
        answer = await it.peer.send("quiet", b"y")
        assert answer.fields["queueOffset"] == "1", "offsets go on where groups left them"


async def test_master_without_slaves_reports_none(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"x")
        answer = await it.peer.expect(RequestCode.GET_BROKER_HA_STATUS)
        info = decode(HARuntimeInfo, answer.body)
        assert (info.master, info.in_sync_slave_count, info.connections) == (True, 0, [])
        assert info.master_max_offset == await log_end(it.broker)
        await it.peer.expect(RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "0"})


async def test_progress_of_the_delay_levels_is_returned(tmp_path: Path) -> None:
    async with cluster(tmp_path, messageDelayLevel="1s 2s", flushDelayOffsetInterval=10) as it:
        await it.peer.send("t", b"x", props={"DELAY": "1"})

        async def delay_offsets() -> dict[int, int]:
            answer = await it.peer.expect(RequestCode.GET_ALL_DELAY_OFFSET)
            return decode(DelayOffsetTable, answer.body).offsets

        await eventually(delay_offsets, "a delivery in the response")
        assert await delay_offsets() == {1: 1}


async def test_progress_of_the_timer_is_returned(tmp_path: Path) -> None:
    async with cluster(tmp_path, timerFlushIntervalMs=10) as it:
        await it.peer.send("t", b"x", props={"TIMER_DELAY_SEC": "3600"})

        async def checkpoint() -> tuple[int, ...]:
            body = (await it.peer.expect(RequestCode.GET_TIMER_CHECK_POINT)).body
            return struct.unpack(">7q", body)

        async def is_indexed() -> bool:
            return (await checkpoint())[2] > 0

        await eventually(is_indexed, "an indexed message")
        read_ms, timer_log, queue_offset, first_waiting, _, changed_ms, _ = await checkpoint()
        assert (timer_log, queue_offset, first_waiting) == (0, 1, 0)
        assert 0 < read_ms == changed_ms
    async with cluster(tmp_path / "other", timerWheelEnable="false") as it:
        answer = await it.peer.ask(RequestCode.GET_TIMER_CHECK_POINT)
        assert (answer.code, "timerWheelEnable" in (answer.remark or "")) == (1, True)


async def test_a_topic_of_mixed_kinds_must_be_allowed(tmp_path: Path) -> None:
    for allowed in ("false", "true"):
        async with cluster(tmp_path / allowed, enableMixedMessageType=allowed) as it:
            topic = TopicConfig(topic_name="m", attributes={"+message.type": "MIXED"})
            body = encode(CreateTopicListBody(topics=[topic]))
            answer = await it.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
            wanted = ResponseCode.SUCCESS if allowed == "true" else ResponseCode.INVALID_PARAMETER
            assert answer.code == wanted, answer.remark
            assert (it.broker.topics.get("m") is not None) is (allowed == "true")
