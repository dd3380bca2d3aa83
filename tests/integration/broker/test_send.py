"""Sends over real sockets: every form of the request, and what is stored."""

import asyncio
import errno
from pathlib import Path

import pytest
from tests.support.brokers import (
    STAMPS,
    Peer,
    bodies_in,
    cluster,
    eventually,
    messages_in,
    peer_of,
    running_broker,
    send_fields,
)

from tianzhou.limits import BATCH_MESSAGES_MAX
from tianzhou.protocol import sysflag
from tianzhou.protocol.acl import Credentials
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, HeaderEncoding
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.batch import BatchItem
from tianzhou.protocol.records.message_id import decode_offset_id
from tianzhou.store.commit_log import CommitLog

LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "m": "batch",
}  # fmt: skip


async def test_a_message_is_stored_as_it_was_sent(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        answer = await it.peer.send(
            "Orders", b"body", queue_id=1, flag=7, props={"TAGS": "a", "WAIT": "true", "my": "own"}
        )
        assert answer.code == ResponseCode.SUCCESS
        fields = answer.fields
        assert (fields["queueId"], fields["queueOffset"]) == ("1", "0")
        assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")
        host, log_offset = decode_offset_id(fields["msgId"])
        assert host == ("127.0.0.1", int(it.broker.address.rpartition(":")[2]))
        (message,) = messages_in(await it.peer.pull("g", "Orders", 1, 0))
        assert (message.body, message.flag, message.topic) == (b"body", 7, "Orders")
        assert (message.log_offset, message.queue_id) == (log_offset, 1)
        assert message.properties == {"TAGS": "a", "my": "own"} | STAMPS
        assert message.born_host[0] == "127.0.0.1"
        assert message.store_host == host


async def test_broker_properties_sent_by_a_producer_are_replaced(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        claims = [{name: "else"} for name in STAMPS] + [dict.fromkeys(STAMPS, "else")]
        for claim in claims:
            sent = await it.peer.send("t", b"x", props={"my": "own"} | claim)
            assert sent.code == ResponseCode.SUCCESS
        stored = [each.properties for each in messages_in(await it.peer.pull("g", "t", 0, 0))]
        assert stored == [{"my": "own"} | STAMPS] * len(claims)


@pytest.mark.parametrize("encoding", list(HeaderEncoding))
async def test_sends_of_both_versions_in_both_encodings_are_stored(
    tmp_path: Path, encoding: HeaderEncoding
) -> None:
    async with cluster(tmp_path) as it:
        short = send_fields("t")
        long = {LONG_NAMES[key]: value for key, value in short.items()}
        for code, fields in (
            (RequestCode.SEND_MESSAGE_V2, short),
            (RequestCode.SEND_MESSAGE, long),
        ):
            command = Command(code=code, ext_fields=fields, body=b"x", encoding=encoding)
            answer = await it.peer.client.request(it.peer.address, command)
            assert (answer.code, answer.encoding) == (ResponseCode.SUCCESS, encoding)
        pulled = await it.peer.pull("g", "t", 0, 0)
        assert bodies_in(pulled) == [b"x", b"x"]


async def test_unknown_topic_is_created_and_routed(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, defaultTopicQueueNums=3) as it:
        assert (await it.peer.send("fresh", b"1", queue_count=8)).code == ResponseCode.SUCCESS
        saved = (tmp_path / "store" / "config" / "topics.json").read_text()
        assert '"fresh"' in saved, "an acknowledged message has its topic on disk"

        async def route() -> TopicRouteData | None:
            command = Command(
                code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "fresh"}
            )
            answer = await it.peer.client.request(it.namesrv, command)
            return decode(TopicRouteData, answer.body) if answer.code == 0 else None

        found = await eventually(route, "route of the new topic")
        assert isinstance(found, TopicRouteData)
        (queue,) = found.queues
        assert (queue.read_queue_count, queue.write_queue_count, queue.perm) == (3, 3, 6)


async def test_a_batch_is_stored_message_by_message(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        items = [
            BatchItem(b"one", "TAGS\x01a\x02UNIQ_KEY\x01u1\x02", 1),
            BatchItem(b"two", "TAGS\x01b\x02", 2),
        ]
        fields = send_fields("t", batch=True)
        answer = await it.peer.expect(RequestCode.SEND_BATCH_MESSAGE, fields, batch.encode(items))
        ids = answer.fields["msgId"].split(",")
        pulled = messages_in(await it.peer.pull("g", "t", 0, 0))
        assert [decode_offset_id(each)[1] for each in ids] == [each.log_offset for each in pulled]
        assert [(each.body, each.flag, each.tags) for each in pulled] == [
            (b"one", 1, "a"), (b"two", 2, "b"),
        ]  # fmt: skip
        assert [each.queue_offset for each in pulled] == [0, 1]


LARGE_BATCH = batch.encode(
    [BatchItem(b"batch", f"UNIQ_KEY\x01{number:024}\x02KEYS\x01a b c\x02", 0)
     for number in range(BATCH_MESSAGES_MAX)]
)  # fmt: skip


async def test_a_message_sent_after_a_large_batch_is_stored_after_it(tmp_path: Path) -> None:
    # Access control disables the fast path, and the batch is checked first.
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(
        "accounts:\n- {accessKey: administrator, secretKey: secret-of-admin, admin: true}\n"
    )
    credentials = Credentials("administrator", "secret-of-admin")
    async with (
        running_broker(
            tmp_path / "store", aclEnable="true", aclFile=accounts, maxIndexNum=200_000
        ) as broker,
        peer_of(broker.address, credentials=credentials) as peer,
    ):
        await peer.send("t", b"first", queue_id=0)
        fields = send_fields("t", queue_id=0, batch=True)
        large = asyncio.create_task(
            peer.expect(RequestCode.SEND_BATCH_MESSAGE, fields, LARGE_BATCH)
        )
        await asyncio.sleep(0)
        single = await peer.send("t", b"last", queue_id=0)
        stored = await large
        assert stored.fields["queueOffset"] == "1"
        assert single.fields["queueOffset"] == str(1 + BATCH_MESSAGES_MAX)
        offsets = [decode_offset_id(each)[1] for each in stored.fields["msgId"].split(",")]
        assert len(offsets) == BATCH_MESSAGES_MAX
        assert offsets == sorted(offsets)
        (last,) = messages_in(await peer.pull("g", "t", 0, BATCH_MESSAGES_MAX + 1))
        assert last.body == b"last"
        middle = messages_in(await peer.pull("g", "t", 0, BATCH_MESSAGES_MAX // 2, count=1))
        assert middle[0].log_offset == offsets[BATCH_MESSAGES_MAX // 2 - 1]


async def test_batch_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(
        "accounts:\n- {accessKey: administrator, secretKey: secret-of-admin, admin: true}\n"
    )
    credentials = Credentials("administrator", "secret-of-admin")
    async with (
        running_broker(
            tmp_path / "store", aclEnable="true", aclFile=accounts, maxIndexNum=200_000
        ) as broker,
        peer_of(broker.address, credentials=credentials) as peer,
    ):
        await peer.send("t", b"first", queue_id=0)

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "no space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(CommitLog, "allocate", full)
            fields = send_fields("t", queue_id=0, batch=True)
            refused = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, fields, LARGE_BATCH)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await peer.send("t", b"next", queue_id=0)
        first, following = messages_in(await peer.pull("g", "t", 0, 0))
        assert (first.body, following.body) == (b"first", b"next")
        assert following.log_offset - first.log_offset < 1_000, "nothing lies between them"


async def test_broker_chooses_the_queue_for_a_negative_queue_id(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        chosen = {(await it.peer.send("t", b"x", queue_id=-1)).fields["queueId"] for _ in range(40)}
        assert chosen <= {"0", "1", "2", "3"}
        assert len(chosen) > 1


async def test_oneway_sends_are_stored_and_not_answered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"first")
        for number in range(5):
            command = Command(
                code=RequestCode.SEND_MESSAGE_V2, ext_fields=send_fields("t"), body=b"%d" % number
            )
            await it.peer.client.oneway(it.peer.address, command)
        pulled = await it.peer.pull("g", "t", 0, 1, sys_flag=6, suspend_ms=5000)
        await eventually(lambda: it.broker.stats.put.messages == 6, "all stored")
        pulled = await it.peer.pull("g", "t", 0, 1)
        assert bodies_in(pulled) == [b"0", b"1", b"2", b"3", b"4"]


async def test_compressed_bodies_are_stored_unchanged(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"not really zlib", sys_flag=sysflag.COMPRESSED)
        (message,) = messages_in(await it.peer.pull("g", "t", 0, 0))
        assert message.sys_flag == sysflag.COMPRESSED
        assert message.body == b"not really zlib"


async def test_sync_flush_answers_when_the_log_is_on_disk(tmp_path: Path) -> None:
    async with cluster(tmp_path, flushDiskType="SYNC_FLUSH") as it:

        async def send(number: int) -> Command:
            return await it.peer.send("t", b"%d" % number)

        await send(0)
        answers = await asyncio.gather(*(send(number) for number in range(1, 65)))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
        pulled = await it.peer.pull("g", "t", 0, 0, count=160)
        assert len(messages_in(pulled)) == 32, "one pull gives 32 messages at most"


async def test_sync_master_without_a_slave_reports_slave_not_available(tmp_path: Path) -> None:
    async with cluster(tmp_path, brokerRole="SYNC_MASTER") as it:
        assert (await it.peer.send("t", b"x")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        unwaiting = await it.peer.send("t", b"x", props={"WAIT": "false"})
        assert unwaiting.code == ResponseCode.SUCCESS


async def test_sends_of_one_connection_keep_their_order(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"0")

        async def send(peer: Peer, number: int) -> Command:
            return await peer.send("t", b"%d" % number)

        await asyncio.gather(*(send(it.peer, number) for number in range(1, 32)))
        assert bodies_in(await it.peer.pull("g", "t", 0, 0)) == [b"%d" % n for n in range(32)]


async def test_messages_are_found_by_key_and_by_id(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        stored = await it.peer.send("t", b"wanted", props={"KEYS": "k1 k2", "UNIQ_KEY": "U1"})
        await it.peer.send("t", b"other", props={"KEYS": "k3"})
        for key in ("k1", "k2", "U1"):
            query = {
                "topic": "t", "key": key, "maxNum": "10", "beginTimestamp": "0",
                "endTimestamp": str(2**62),
            }  # fmt: skip
            answer = await it.peer.expect(RequestCode.QUERY_MESSAGE, query)
            assert bodies_in(answer) == [b"wanted"]
        _, log_offset = decode_offset_id(stored.fields["msgId"])
        viewed = await it.peer.expect(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(log_offset)})
        assert bodies_in(viewed) == [b"wanted"]
        missing = await it.peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "7"})
        assert missing.code == ResponseCode.SYSTEM_ERROR
        assert "log offset 7" in (missing.remark or "")
