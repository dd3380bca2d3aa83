"""Names too long for a folder are refused before anything is stored and block nothing later."""

import json
from pathlib import Path

import pytest
from tests.support.brokers import Peer, bodies_in, peer_of, running_broker
from tests.support.pop import pop_fields

from tianzhou.broker.server import Broker
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode

LONGEST = "g" * 248
"""With %RETRY% before it, 255 bytes."""
TOO_LONG = "g" * 255


async def make_group(peer: Peer, name: str) -> int:
    body = encode_body(SubscriptionGroupConfig(group_name=name))
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    return answer.code


async def send_to_dead_letters(peer: Peer, group: str, log_offset: str) -> int:
    fields = {"offset": log_offset, "group": group, "delayLevel": "-1"}
    return (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code


async def log_offset_of(peer: Peer) -> str:
    stored = await peer.send("t", b"bad", queue_count=1)
    return str(int(stored.fields["msgId"][16:], 16))


async def assert_stores(broker: Broker, peer: Peer, body: bytes) -> None:
    """Sends are stored, and earlier messages are still there."""
    answer = await peer.send("t", body, queue_count=1)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    store = broker.store
    assert store is not None
    store.flush()
    found = await peer.pull("plain", "t", 0, int(answer.fields["queueOffset"]))
    assert bodies_in(found) == [body]


async def test_group_with_too_long_topic_names_is_not_created(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        assert await make_group(peer, "g" * 249) == ResponseCode.SYSTEM_ERROR
        assert broker.groups.get("g" * 249) is None
        beat = await peer.heartbeat("c", TOO_LONG, {"t": "*"})
        assert beat.code != ResponseCode.SUCCESS
        assert await make_group(peer, LONGEST) == ResponseCode.SUCCESS
        log_offset = await log_offset_of(peer)
        assert await send_to_dead_letters(peer, TOO_LONG, log_offset) != ResponseCode.SUCCESS
        assert await send_to_dead_letters(peer, LONGEST, log_offset) == ResponseCode.SUCCESS
        await assert_stores(broker, peer, b"1")
        assert broker.topics.get(f"%DLQ%{TOO_LONG}") is None
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        found = await peer.pull("plain", f"%DLQ%{LONGEST}", 0, 0)
        assert bodies_in(found) == [b"bad"]


async def test_existing_group_with_a_long_name_consumes_and_its_dead_letters_are_refused(
    tmp_path: Path,
) -> None:
    tables = tmp_path / "config"
    tables.mkdir()
    group = {"groupName": TOO_LONG, "consumeEnable": True, "retryMaxTimes": 1}
    (tables / "subscriptionGroup.json").write_text(
        json.dumps({"subscriptionGroupTable": {TOO_LONG: group}, "dataVersion": {}})
    )
    topic = f"%DLQ%{TOO_LONG}"
    config = {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    (tables / "topics.json").write_text(
        json.dumps({"topicConfigTable": {topic: config}, "dataVersion": {}})
    )
    for body in (b"1", b"2"):
        async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
            beat = await peer.heartbeat("c", TOO_LONG, {"t": "*"})
            assert beat.code == ResponseCode.SUCCESS, beat.remark
            log_offset = await log_offset_of(peer)
            assert (
                await send_to_dead_letters(peer, TOO_LONG, log_offset)
                == ResponseCode.MESSAGE_ILLEGAL
            )
            await assert_stores(broker, peer, body)


@pytest.mark.parametrize("v2", ["true", "false"])
async def test_pop_is_refused_if_the_name_of_the_retry_topic_is_too_long(
    tmp_path: Path, v2: str
) -> None:
    topic, group = "t" * 127, "g" * 121
    async with (
        running_broker(tmp_path, enableRetryTopicV2=v2) as broker,
        peer_of(broker.address) as peer,
    ):
        await peer.send(topic, b"x", queue_count=1)
        answer = await peer.ask(RequestCode.POP_MESSAGE, pop_fields(group=group, topic=topic))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "256 bytes" in (answer.remark or "")
        answer = await peer.ask(RequestCode.POP_MESSAGE, pop_fields(group="g" * 120, topic=topic))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await assert_stores(broker, peer, b"1")
