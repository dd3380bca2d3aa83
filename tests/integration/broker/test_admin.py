"""Administration over real sockets: topics, groups, settings, run-time information."""

from pathlib import Path

from tests.support.brokers import (
    Peer,
    bodies_in,
    cluster,
    eventually,
    peer_of,
    running_broker,
    running_namesrv,
)

from tianzhou.config.properties import parse_properties
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.groups import (
    GroupList,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
)
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import ConsumeStats, TopicStatsTable
from tianzhou.protocol.bodies.topics import KVTable, TopicConfig, TopicConfigTable, TopicList
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.scheduler import at_once


def topic_fields(topic: str, reads: int, writes: int, perm: int = 6) -> dict[str, str]:
    return {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(reads),
        "writeQueueNums": str(writes), "perm": str(perm), "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false",
    }  # fmt: skip


async def create(peer: Peer, topic: str, reads: int, writes: int, perm: int = 6) -> None:
    await peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, reads, writes, perm))


# -- topics ----------------------------------------------------------------------------------------


async def test_a_topic_shrinks_without_losing_messages(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create(it.peer, "t", 4, 4)
        for queue_id in range(4):
            await it.peer.send("t", b"%d" % queue_id, queue_id=queue_id)
        await create(it.peer, "t", 4, 2)
        assert (await it.peer.send("t", b"late", queue_id=3)).code == ResponseCode.SUCCESS, (
            "a producer with the old route still reaches a queue that is read"
        )
        assert bodies_in(await it.peer.pull("g", "t", 3, 0)) == [b"3", b"late"]
        await create(it.peer, "t", 2, 2)
        assert (await it.peer.send("t", b"x", queue_id=3)).code == ResponseCode.SYSTEM_ERROR
        assert (await it.peer.pull("g", "t", 3, 0)).code == ResponseCode.SYSTEM_ERROR
        await create(it.peer, "t", 4, 4)
        assert bodies_in(await it.peer.pull("g", "t", 3, 0)) == [b"3", b"late"]


async def test_topics_are_listed_changed_and_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create(it.peer, "t", 2, 2)
        await it.peer.send("t", b"x")
        await it.peer.pull("g", "t", 0, 1, sys_flag=5, commit_offset=1)
        answer = await it.peer.expect(RequestCode.GET_ALL_TOPIC_CONFIG)
        table = decode(TopicConfigTable, answer.body)
        assert table.topics["t"].read_queue_count == 2
        assert table.data_version.counter == it.broker.topics.data_version.counter
        answer = await it.peer.expect(RequestCode.GET_TOPIC_CONFIG, {"topic": "t"})
        assert decode(TopicConfig, answer.body).topic_name == "t"
        answer = await it.peer.expect(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "t"})
        assert decode(GroupList, answer.body).groups == ["g"]
        answer = await it.peer.expect(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
        assert {"TBW102", "broker-a"} <= set(decode(TopicList, answer.body).topics)
        await it.peer.expect(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"})
        assert it.broker.topics.get("t") is None
        assert at_once(it.broker.offsets.groups_of("t")) == set()
        assert (await it.peer.pull("g", "t", 0, 0)).code == ResponseCode.TOPIC_NOT_EXIST
        assert '"t"' not in (tmp_path / "store" / "config" / "topics.json").read_text()
        await create(it.peer, "t", 2, 2)
        assert (await it.peer.send("t", b"y")).fields["queueOffset"] == "0"
        assert bodies_in(await it.peer.pull("g", "t", 0, 0)) == [b"y"]


async def test_invalid_topics_are_refused(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        refused = (
            topic_fields("a b", 1, 1), topic_fields("", 1, 1), topic_fields("t", 0, 1),
            topic_fields("t", 1, 70_000), topic_fields("t", 1, 1, perm=99),
            topic_fields("TBW102", 1, 1), topic_fields("broker-a", 1, 1),
            topic_fields("t", 1, 1) | {"topicFilterType": "NO_TAG"},
            topic_fields("t", 1, 1) | {"attributes": "message.type=FIFO"},
        )  # fmt: skip
        for fields in refused:
            answer = await it.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR, fields
            assert answer.remark
        for topic in ("TBW102", "broker-a", ""):
            answer = await it.peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert it.broker.topics.get("t") is None


async def test_attributes_of_5x_are_changed_and_stored(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        fields = topic_fields("t", 1, 1)
        for change in ("+message.type=FIFO,+queue.type=SimpleCQ", "-queue.type"):
            await it.peer.expect(
                RequestCode.UPDATE_AND_CREATE_TOPIC, fields | {"attributes": change}
            )
        await it.peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | {"perm": "4"})
        topic = it.broker.topics.topics["t"]
        assert (topic.attributes, topic.perm) == ({"message.type": "FIFO"}, 4)


async def test_statistics_of_topics_and_groups(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create(it.peer, "t", 2, 2)
        for _ in range(3):
            await it.peer.send("t", b"x")
        await it.peer.pull("g", "t", 0, 1, sys_flag=5, commit_offset=1)
        answer = await it.peer.expect(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t"})
        stats = decode(TopicStatsTable, answer.body).offsets
        first = MessageQueue(topic="t", broker_name="broker-a", queue_id=0)
        assert len(stats) == 2
        assert (stats[first].min_offset, stats[first].max_offset) == (0, 3)
        assert stats[first].last_update_timestamp > 0
        answer = await it.peer.expect(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
        offsets = decode(ConsumeStats, answer.body).offsets
        assert (offsets[first].broker_offset, offsets[first].consumer_offset) == (3, 1)
        answer = await it.peer.expect(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert decode(ConsumerOffsetTable, answer.body).offsets == {"t@g": {0: 1}}
        missing = await it.peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"})
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST


# -- groups ----------------------------------------------------------------------------------------


async def test_groups_are_created_disabled_and_deleted(tmp_path: Path) -> None:
    async with cluster(tmp_path, autoCreateSubscriptionGroup="false") as it:
        await create(it.peer, "t", 1, 1)
        unknown = await it.peer.pull("g", "t", 0, 0)
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        group = SubscriptionGroupConfig(group_name="g", consume_enable=False)
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await it.peer.expect(code, None, encode(group))
        forbidden = await it.peer.pull("g", "t", 0, 0)
        assert forbidden.code == ResponseCode.NO_PERMISSION
        assert "consumeEnable" in (forbidden.remark or "")
        await it.peer.expect(code, None, encode(SubscriptionGroupConfig(group_name="g")))
        assert (await it.peer.pull("g", "t", 0, 0)).code == ResponseCode.PULL_NOT_FOUND
        answer = await it.peer.expect(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert {"g", "TOOLS_CONSUMER"} <= set(decode(SubscriptionGroupTable, answer.body).groups)
        await it.peer.expect(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
        it.broker.offsets.commit("g", "t", 0, 5)
        gone = {"groupName": "g", "cleanOffset": "true"}
        await it.peer.expect(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)
        assert it.broker.groups.get("g") is None
        assert at_once(it.broker.offsets.topics_of("g")) == set()
        for name in ("", "a b"):
            bad = encode(SubscriptionGroupConfig(group_name=name))
            assert (await it.peer.ask(code, None, bad)).code == ResponseCode.SYSTEM_ERROR


# -- the broker ------------------------------------------------------------------------------------


async def test_settings_change_at_run_time_and_are_saved(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        answer = await it.peer.expect(RequestCode.GET_BROKER_CONFIG)
        shown = {each.key: each.value for each in parse_properties(answer.body.decode(), "answer")}
        assert (shown["brokerName"], shown["maxMessageSize"]) == ("broker-a", "1048576")
        assert '"timestamp"' in answer.fields["version"]
        await it.peer.expect(
            RequestCode.UPDATE_BROKER_CONFIG,
            None,
            b"maxMessageSize=10\nautoCreateTopicEnable=false\n",
        )
        saved = (tmp_path / "store" / "b.properties").read_text()
        assert "maxMessageSize=10" in saved
        assert (await it.peer.send("unknown", b"x")).code == ResponseCode.TOPIC_NOT_EXIST
        await create(it.peer, "t", 1, 1)
        too_large = await it.peer.send("t", b"x" * 11)
        assert too_large.code == ResponseCode.MESSAGE_ILLEGAL
        await it.peer.expect(RequestCode.UPDATE_BROKER_CONFIG, None, b"maxMessageSize=2000000\n")
        assert (await it.peer.send("t", b"x" * 1_500_000)).code == ResponseCode.SUCCESS


async def test_invalid_settings_change_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for body, code, complaint in (
            (b"maxMessageSize=many", ResponseCode.SYSTEM_ERROR, "maxMessageSize"),
            (b"brokerConfigPath=/etc/x", ResponseCode.NO_PERMISSION, "brokerConfigPath"),
            (b"namesrvAddr=nowhere:1", ResponseCode.NO_PERMISSION, "namesrvAddr"),
            (b"aclEnable=perhaps", ResponseCode.SYSTEM_ERROR, "aclEnable"),
            (b"mappedFileSizeCommitLog=8192", ResponseCode.SYSTEM_ERROR, "fixed"),
            (b"x=\\u12", ResponseCode.SYSTEM_ERROR, "four hexadecimal"),
        ):
            answer = await it.peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, body)
            assert answer.code == code
            assert complaint in (answer.remark or "")
        assert not (tmp_path / "store" / "b.properties").exists()


async def test_a_broker_without_permission_registers_its_topics_without_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create(it.peer, "t", 1, 1)
        await it.peer.expect(RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=4")
        refused = await it.peer.send("t", b"x")
        assert refused.code == ResponseCode.NO_PERMISSION

        async def routed_perm() -> bool:
            command = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "t"})
            answer = await it.peer.client.request(it.namesrv, command)
            return b'"perm":4' in answer.body

        await eventually(routed_perm, "the route shows the permission")


async def test_runtime_information(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"12345")
        await it.peer.pull("g", "t", 0, 0)
        answer = await it.peer.expect(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = decode(KVTable, answer.body).table
        assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("1", "1")
        assert table["brokerVersionDesc"] == "V4_9_7"
        assert int(table["commitLogMaxOffset"]) > 5
        assert float(table["commitLogDiskRatio"]) > 0


async def test_runtime_information_counts_pending_messages(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for _ in range(2):
            await it.peer.send("t", b"delayed", props={"DELAY": "3"})
        await it.peer.send("t", b"timed", props={"TIMER_DELAY_SEC": "600"})

        async def table() -> dict[str, str]:
            answer = await it.peer.expect(RequestCode.GET_BROKER_RUNTIME_INFO)
            return decode(KVTable, answer.body).table

        async def is_indexed() -> bool:
            return (await table())["timerOffsetBehind"] == "0"

        await eventually(is_indexed, "the timed message is indexed")
        seen = await table()
        levels = {key: value for key, value in seen.items() if key.startswith("scheduleMessage")}
        assert levels == {"scheduleMessageOffset_3": "0,2"}
        assert (seen["timerCongestNum"], seen["timerReadBehind"]) == ("1", "0")
        assert float(seen["timerEnqueueTps"]) > 0
        assert float(seen["timerDequeueTps"]) == 0


# -- nameservers -----------------------------------------------------------------------------------


async def test_the_broker_registers_and_unregisters_with_every_nameserver(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with (
        running_namesrv(tmp_path / "one") as one,
        running_namesrv(tmp_path / "two") as two,
    ):
        dead = "127.0.0.1:1"
        async with running_broker(tmp_path / "store", namesrvAddr=f"{one};{dead};{two}") as broker:
            await eventually(lambda: sorted(broker.registered_with) == sorted((one, two)), "both")
            async with peer_of(one) as asked:
                answer = await asked.expect(RequestCode.GET_BROKER_CLUSTER_INFO)
                assert broker.address.encode() in answer.body
        for namesrv in (one, two):
            async with peer_of(namesrv) as asked:
                answer = await asked.expect(RequestCode.GET_BROKER_CLUSTER_INFO)
                assert b"broker-a" not in answer.body, "unregistered when the broker stops"


async def test_the_broker_registers_with_a_nameserver_added_later(tmp_path: Path) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / "acl.yml").write_text(
        "accounts: [{accessKey: operations, secretKey: 12345678, admin: true}]"
    )
    secured = {"aclEnable": "true", "aclFile": tmp_path / "acl.yml"}
    async with (
        running_namesrv(tmp_path / "late") as late,
        running_broker(tmp_path / "store", **secured) as broker,
        peer_of(broker.address, credentials=Credentials("operations", "12345678")) as peer,
    ):
        assert not broker.registered_with
        nowhere = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"namesrvAddr=nowhere")
        assert nowhere.code == ResponseCode.SYSTEM_ERROR
        change = f"namesrvAddr={late}".encode()
        await peer.expect(RequestCode.UPDATE_BROKER_CONFIG, None, change)
        await eventually(lambda: sorted(broker.registered_with) == [late], "registered")
