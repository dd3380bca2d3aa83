"""Every attribute, setting and flag of topics, groups and messages of RocketMQ 5.5.

Each value works here, or the request is refused with the reason. Tables that RocketMQ has written
are loaded with a warning.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.test_admin import topic_fields
from tests.support.brokers import (
    Peer,
    cluster,
    eventually,
    peer_of,
    running_broker,
    send_fields,
)

from tianzhou.broker.tables.supported_attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command

# -- topics ----------------------------------------------------------------------------------------

TOPIC_WORKS: list[dict[str, str]] = [
    {"attributes": "+queue.type=SimpleCQ"},
    {"attributes": "+cleanup.policy=DELETE"},
    {"attributes": "+reserve.time=-1"},
    {"attributes": "+lite.topic.expiration=-1"},
    *(
        {"attributes": f"+message.type={kind}"}
        for kind in ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION")
    ),
    *({"perm": str(perm)} for perm in range(8)),
    *({"topicSysFlag": str(flag)} for flag in range(4)),
    {"order": "true"},
    {"topicFilterType": "MULTI_TAG"},
]
TOPIC_REFUSED: list[tuple[dict[str, str], str]] = [
    ({"attributes": "+queue.type=BatchCQ"}, "inner batches"),
    ({"attributes": "+queue.type=RocksDBCQ"}, "no RocksDB"),
    ({"attributes": "+queue.type=x"}, "SimpleCQ are possible"),
    ({"attributes": "+cleanup.policy=COMPACTION"}, "no compacted topics"),
    ({"attributes": "+message.type=PRIORITY"}, "no priority topics"),
    ({"attributes": "+message.type=LITE"}, "no lite topics"),
    ({"attributes": "+message.type=x"}, "NORMAL, FIFO"),
    ({"attributes": "+message.type=MIXED"}, "enableMixedMessageType"),
    ({"attributes": "+reserve.time=3600000"}, "fileReservedTime"),
    ({"attributes": "+lite.topic.expiration=5"}, "no lite topics"),
    ({"attributes": "+made.up=1"}, "not known"),
    ({"perm": "8"}, "priorities"),
    ({"perm": "14"}, "priorities"),
    ({"perm": "-1"}, "perm is -1"),
    ({"topicSysFlag": "4"}, "topicSysFlag is 4"),
    ({"topicFilterType": "x"}, "topicFilterType is x"),
]


def test_each_attribute_of_a_topic_has_a_case() -> None:
    works = {
        case["attributes"][1:].partition("=")[0] for case in TOPIC_WORKS if "attributes" in case
    }
    assert works == set(TOPIC_ATTRIBUTES)
    assert works == {
        "queue.type", "cleanup.policy", "message.type", "reserve.time", "lite.topic.expiration",
    }  # fmt: skip


async def test_supported_settings_of_topics_are_stored_and_returned(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for number, changed in enumerate(TOPIC_WORKS):
            name = f"t{number}"
            fields = topic_fields(name, 2, 2) | changed
            await it.peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            answer = await it.peer.expect(RequestCode.GET_TOPIC_CONFIG, {"topic": name})
            decoded = decode(TopicConfig, answer.body)
            assert decoded.perm == int(fields["perm"])
            assert decoded.topic_sys_flag == int(fields.get("topicSysFlag", "0"))
            assert decoded.order == (fields["order"] == "true")
            assert decoded.filter_type == fields["topicFilterType"]
            key, _, value = fields.get("attributes", "+").partition("=")
            assert (decoded.attributes or {}) == ({key[1:]: value} if value else {})


async def test_settings_of_topics_without_effect_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as it:
        for changed, why in TOPIC_REFUSED:
            fields = topic_fields("t", 2, 2) | changed
            answer = await it.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
            assert answer.code != ResponseCode.SUCCESS, changed
            assert why in (answer.remark or ""), (changed, answer.remark)
        listed = {"topicConfigList": [{"topicName": "t", "attributes": {"+queue.type": "BatchCQ"}}]}
        answer = await it.peer.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, json.dumps(listed).encode()
        )
        assert "inner batches" in (answer.remark or "")
        assert it.broker.topics.get("t") is None


async def test_template_topic_is_used_for_new_topics(tmp_path: Path) -> None:
    """Permission INHERIT."""
    async with cluster(tmp_path) as it:
        fields = topic_fields("template", 3, 3) | {"perm": "7"}
        await it.peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        sent = await it.peer.send("made", b"x", template="template", queue_count=8)
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        made = it.broker.topics.topics["made"]
        assert (made.write_queue_count, made.perm) == (3, 6)


# -- groups ----------------------------------------------------------------------------------------

GROUP_WORKS: list[dict[str, Any]] = [
    {"groupName": "g"},
    {"consumeEnable": False},
    {"consumeFromMinEnable": False},
    {"consumeBroadcastEnable": False},
    {"consumeMessageOrderly": True},
    {"retryQueueNums": 0},
    {"retryQueueNums": 2_048},
    {"retryMaxTimes": -1},
    {"retryMaxTimes": 3},
    {"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2]}}},
    {"groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 7}}},
    {"brokerId": 1},
    {"whichBrokerWhenConsumeSlowly": 2},
    {"notifyConsumerIdsChangedEnable": False},
    {"groupSysFlag": 0},
    {"consumeTimeoutMinute": 15},
    {"subscriptionDataSet": []},
    {"attributes": {"+priority.factor": "100"}},
]
GROUP_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"retryQueueNums": -1}, "retryQueueNums is -1"),
    ({"retryQueueNums": 65_537}, "retryQueueNums is 65537"),
    ({"retryMaxTimes": -2}, "retryMaxTimes is -2"),
    ({"groupRetryPolicy": {"type": "RANDOM"}}, "EXPONENTIAL and CUSTOMIZED"),
    ({"groupRetryPolicy": {"exponentialRetryPolicy": {"initial": -1}}}, "initial -1"),
    ({"groupRetryPolicy": {"exponentialRetryPolicy": {"multiplier": 0}}}, "multiplier 0"),
    ({"groupRetryPolicy": {"customizedRetryPolicy": {"next": [-5]}}}, "below 0"),
    ({"brokerId": -1}, "brokerId is -1"),
    ({"whichBrokerWhenConsumeSlowly": -1}, "whichBrokerWhenConsumeSlowly is -1"),
    ({"groupSysFlag": 1}, "groupSysFlag is 1"),
    ({"consumeTimeoutMinute": 5}, "consumeTimeoutMinute is 5"),
    ({"subscriptionDataSet": [{"topic": "t"}]}, "subscriptionDataSet"),
    ({"attributes": {"+priority.factor": "50"}}, "no priority topics"),
    *(
        ({"attributes": {f"+{name}": "1"}}, "no lite topics")
        for name in (
            "lite.bind.topic", "lite.sub.model", "lite.sub.reset.offset.exclusive",
            "lite.sub.reset.offset.unsubscribe", "lite.sub.client.quota",
            "lite.sub.client.max.event.cnt", "lite.sub.wildcard",
        )
    ),
    ({"attributes": {"+made.up": "1"}}, "not known"),
    ({"attributes": {"unsigned": "1"}}, "neither +name=value nor -name"),
]  # fmt: skip


def test_each_setting_and_attribute_of_a_group_has_a_case() -> None:
    works = {name for case in GROUP_WORKS for name in case}
    assert works == set(SubscriptionGroupConfig.__struct_encode_fields__)
    refused = {
        name[1:]
        for case, _ in GROUP_REFUSED
        for name in case.get("attributes", {})
        if name[0] == "+"
    }
    assert refused - {"made.up"} == set(GROUP_ATTRIBUTES)


async def put_group(peer: Peer, **settings: object) -> Command:
    body = json.dumps({"groupName": "g", **settings}).encode()
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


async def test_supported_settings_of_groups_are_stored_and_returned(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for changed in GROUP_WORKS:
            answer = await put_group(it.peer, **changed)
            assert answer.code == ResponseCode.SUCCESS, (changed, answer.remark)
            answer = await it.peer.expect(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
            decoded = json.loads(answer.body)
            for name, value in changed.items():
                if name == "attributes":
                    assert decoded[name] == {"priority.factor": "100"}
                elif name == "groupRetryPolicy":
                    assert decoded[name]["type"] == value["type"]
                else:
                    assert decoded.get(name) in (value, value or None), name


async def test_settings_of_groups_without_effect_are_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as it:
        for changed, why in GROUP_REFUSED:
            answer = await put_group(it.peer, **changed)
            assert answer.code != ResponseCode.SUCCESS, changed
            assert why in (answer.remark or ""), (changed, answer.remark)
            listed = json.dumps({"groupConfigList": [{"groupName": "g", **changed}]}).encode()
            answer = await it.peer.ask(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, listed
            )
            assert why in (answer.remark or ""), (changed, answer.remark)
        assert it.broker.groups.get("g") is None


async def test_settings_of_groups_take_effect(tmp_path: Path) -> None:
    async with cluster(tmp_path, slaveReadEnable="true") as it:
        sent = await it.peer.send("t", b"x")
        back = {
            "offset": str(int(sent.fields["msgId"][16:], 16)), "group": "g", "delayLevel": "0",
            "originMsgId": "0A", "originTopic": "t", "unitMode": "false",
        }  # fmt: skip

        await put_group(it.peer, consumeEnable=False)
        assert (await it.peer.pull("g", "t", 0, 0)).code == ResponseCode.NO_PERMISSION

        await put_group(it.peer, brokerId=7)
        answer = await it.peer.pull("g", "t", 0, 0)
        assert answer.fields["suggestWhichBrokerId"] == "7"

        await put_group(it.peer, retryQueueNums=0)
        await it.peer.expect(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert it.broker.topics.get("%RETRY%g") is None
        await put_group(it.peer, retryQueueNums=3, groupRetryPolicy={
            "type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, 10_000]},
        })  # fmt: skip
        await it.peer.expect(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert it.broker.topics.topics["%RETRY%g"].write_queue_count == 3
        level_3 = {"topic": "SCHEDULE_TOPIC_XXXX", "queueId": "2"}
        answer = await it.peer.expect(RequestCode.GET_MAX_OFFSET, level_3)
        assert answer.fields["offset"] == "1", "the first retry takes the third delay, 10 s"
        await put_group(it.peer, retryMaxTimes=0)
        await it.peer.expect(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        dead = {"topic": "%DLQ%g", "queueId": "0"}
        answer = await it.peer.expect(RequestCode.GET_MAX_OFFSET, dead)
        assert answer.fields["offset"] == "1"

        await put_group(it.peer, consumeBroadcastEnable=False)
        await it.peer.heartbeat("c", "g", {"t": "*"}, model="BROADCASTING")
        refused = await it.peer.pull("g", "t", 0, 0, sys_flag=0)
        assert "consumeBroadcastEnable" in (refused.remark or "")


async def test_members_are_notified_of_changes_unless_the_group_disables_it(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as member:
        for name, wanted in (("quiet", False), ("g", True)):
            body = {"groupName": name, "notifyConsumerIdsChangedEnable": wanted}
            await it.peer.expect(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(body).encode()
            )
            await member.heartbeat("first", name, {"t": "*"})
            await it.peer.heartbeat("second", name, {"t": "*"})
        await eventually(lambda: member.notices("g"), "a notice")
        assert member.notices("quiet") == 0


# -- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_flags_of_messages_work_or_are_refused(tmp_path: Path, way: int) -> None:
    reply = way == RequestCode.SEND_REPLY_MESSAGE_V2
    topic = "DefaultCluster_REPLY_TOPIC" if reply else "t"
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"first")
        for flag in (0, 1, 2, 16, 32, 48, 1 | 1 << 8, 1 | 2 << 8, 1 | 3 << 8):
            sent = await it.peer.send("t", b"x", sys_flag=flag)
            assert sent.code == ResponseCode.SUCCESS, (flag, sent.remark)
        end = {"topic": topic, "queueId": "0"}
        before = (await it.peer.expect(RequestCode.GET_MAX_OFFSET, end)).fields["offset"]
        for flag, why in (
            (64, "inner batch"), (128, "inner batch"), (192 | 1, "inner batch"),
            (4, "transactional"), (8, "transactional"), (12, "transactional"),
            (1 | 4 << 8, "does not have"), (1 << 11, "does not have"), (1 << 30, "does not have"),
            (-1, "inner batch"),
        ):  # fmt: skip
            fields = send_fields(topic, sys_flag=flag)
            answer = await it.peer.ask(way, fields, b"x")
            assert answer.code != ResponseCode.SUCCESS, flag
            if not reply:
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert why in (answer.remark or ""), (flag, answer.remark)
        after = (await it.peer.expect(RequestCode.GET_MAX_OFFSET, end)).fields["offset"]
        assert after == before


# -- tables that RocketMQ has written --------------------------------------------------------------


async def test_values_without_effect_in_the_tables_are_retained_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = {
        "topicName": "t", "perm": 14, "readQueueNums": 1, "writeQueueNums": 1,
        "attributes": {"queue.type": "BatchCQ", "message.type": "PRIORITY"},
    }  # fmt: skip
    group = {"groupName": "g", "groupSysFlag": 5, "attributes": {"lite.bind.topic": "x"}}
    version = {"counter": 1, "timestamp": 1}
    (tmp_path / "config").mkdir()
    for file, key, name, value in (
        ("topics.json", "topicConfigTable", "t", topic),
        ("subscriptionGroup.json", "subscriptionGroupTable", "g", group),
    ):
        table = {key: {name: value}, "dataVersion": version}
        (tmp_path / "config" / file).write_text(json.dumps(table))
    async with running_broker(tmp_path) as broker:
        loaded = broker.topics.topics["t"]
        assert (loaded.perm, loaded.attributes) == (14, topic["attributes"])
        assert broker.groups.groups["g"].attributes == group["attributes"]
    messages = [record.getMessage() for record in caplog.records]
    logged = [each for each in messages if "loaded unchanged" in each]
    assert len(logged) == 5
    for text in ("BatchCQ", "PRIORITY", "perm is 14", "groupSysFlag is 5", "lite.bind.topic"):
        assert any(text in line for line in logged), text
