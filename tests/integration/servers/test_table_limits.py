"""Tables that requests can grow have limits.

New entries are refused with the values and the setting, existing ones continue to work.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from tests.integration.servers.test_web_peers import ask as ask_page
from tests.support.brokers import (
    LOOPBACK,
    Peer,
    cluster,
    eventually,
    peer_of,
    running_broker,
    running_namesrv,
)
from tests.support.namesrv import Asker
from tests.support.namesrv import Broker as Registered
from tests.support.pop import pop_fields

from tianzhou.limits import GROUPS_OF_CONNECTION_MAX, STRAY_LOCKS_MAX
from tianzhou.protocol.bodies import decode_request as decode_body
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.clients import ConsumerData, HeartbeatData, ProducerData
from tianzhou.protocol.bodies.queues import LockBatchResponseBody, MessageQueue, QueueLockBody
from tianzhou.protocol.bodies.subscription import SubscriptionData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.client import Client
from tianzhou.remoting.scheduler import at_once


def is_refused(answer: Command, setting: str, limit: int) -> bool:
    """Refused by a limit; the remark names it and its setting."""
    remark = answer.remark or ""
    return (
        answer.code == ResponseCode.SYSTEM_ERROR
        and setting in remark
        and re.search(rf"\b{limit}\b", remark) is not None
    )


def topic_fields(name: str) -> dict[str, str]:
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip


async def commit(peer: Peer, group: str, topic: str, queue_id: int, offset: int = 1) -> Command:
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id),
        "commitOffset": str(offset),
    }  # fmt: skip
    return await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


async def lock(peer: Peer, group: str, topic: str, *queue_ids: int) -> Command:
    queues = [
        MessageQueue(topic=topic, broker_name="broker-a", queue_id=each) for each in queue_ids
    ]
    body = QueueLockBody(consumer_group=group, client_id="c", queues=queues)
    return await peer.ask(RequestCode.LOCK_BATCH_MQ, None, encode_body(body))


# -- topics and groups -----------------------------------------------------------------------------


async def test_topics_are_limited_for_every_kind_of_creation(tmp_path: Path) -> None:
    async with cluster(tmp_path, maxTopics=20) as it:
        answers = [await it.peer.send(f"t{number}", b"a") for number in range(20)]
        assert answers[0].code == ResponseCode.SUCCESS, answers[0].remark
        assert is_refused(answers[-1], "maxTopics", 20), answers[-1].remark
        assert len(it.broker.topics.topics) == 20
        made = await it.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("made"))
        assert is_refused(made, "maxTopics", 20), made.remark
        assert it.broker.topics.get("made") is None
        changed = await it.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("t0"))
        assert changed.code == ResponseCode.SUCCESS, changed.remark
        assert (await it.peer.send("t0", b"b")).code == ResponseCode.SUCCESS
        # A group still gets its retry topic.
        assert (await it.peer.heartbeat("c", "g", {"t0": "*"})).code == ResponseCode.SUCCESS
        assert it.broker.topics.get("%RETRY%g") is not None
        codes = [each.code for each in answers]
        refused_count = codes.count(ResponseCode.SYSTEM_ERROR) + 1
        assert it.broker.table_limits.refused == {"maxTopics": refused_count}


async def make_group(peer: Peer, name: str) -> Command:
    body = f'{{"groupName":"{name}"}}'.encode()
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)


async def test_groups_are_limited_for_every_kind_of_creation(tmp_path: Path) -> None:
    async with cluster(tmp_path, maxSubscriptionGroups=12) as it:
        await it.peer.send("t", b"a", queue_id=0)
        names = [f"g{number}" for number in range(12 - len(it.broker.groups.groups))]
        for name in names:
            assert (await make_group(it.peer, name)).code == ResponseCode.SUCCESS
        makers: list[Callable[[str], Awaitable[Command]]] = [
            lambda group: make_group(it.peer, group),
            lambda group: it.peer.heartbeat("c", group, {"t": "*"}),
            lambda group: it.peer.pull(group, "t", 0, 0),
            lambda group: commit(it.peer, group, "t", 0),
            lambda group: it.peer.ask(RequestCode.POP_MESSAGE, pop_fields(group=group, topic="t")),
        ]
        for make in makers:
            for group in ("new", "CID_RMQ_SYS_new"):
                answer = await make(group)
                assert is_refused(answer, "maxSubscriptionGroups", 12), (group, answer)
        assert len(it.broker.groups.groups) == 12
        # A full table does not affect existing groups, even in the same heartbeat.
        body = HeartbeatData(
            client_id="c", consumers=[ConsumerData(group_name=each) for each in ("new", names[0])]
        )
        answer = await it.peer.ask(RequestCode.HEART_BEAT, None, encode_body(body))
        assert is_refused(answer, "maxSubscriptionGroups", 12)
        assert names[0] in it.broker.consumers.groups


# -- offsets ---------------------------------------------------------------------------------------


async def test_offsets_are_committed_only_for_existing_queues(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"a", queue_id=0, queue_count=4)
        assert (await commit(it.peer, "g", "t", 3)).code == ResponseCode.SUCCESS
        for queue_id in (4, 65_535, 2**31 - 1, -1):
            answer = await commit(it.peer, "g", "t", queue_id)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "4 queues" in (answer.remark or "")
        answer = await commit(it.peer, "g", "no-topic", 0)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert it.broker.offsets.count == 1


async def test_removed_queue_retains_its_offsets(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("t"))
        await it.peer.send("t", b"a", queue_id=3)
        less = topic_fields("t") | {"readQueueNums": "2", "writeQueueNums": "2"}
        await it.peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, less)
        assert (await commit(it.peer, "g", "t", 3)).code == ResponseCode.SUCCESS
        assert (await commit(it.peer, "g", "t", 2)).code == ResponseCode.SYSTEM_ERROR


async def test_offsets_are_limited(tmp_path: Path) -> None:
    async with cluster(tmp_path, maxConsumerOffsets=6) as it:
        await it.peer.send("t", b"a", queue_id=0, queue_count=4)
        answers = [
            await commit(it.peer, group, "t", queue_id) for group in "gh" for queue_id in range(4)
        ]
        assert is_refused(answers[-1], "maxConsumerOffsets", 6), answers[-1].remark
        assert it.broker.offsets.count == 6
        assert (await commit(it.peer, "g", "t", 0, 5)).code == ResponseCode.SUCCESS
        assert it.broker.offsets.find("g", "t", 0) == 5
        pulled = await it.peer.pull("i", "t", 0, 0, sys_flag=5, commit_offset=1)
        assert pulled.code == ResponseCode.SUCCESS, "the pull counts, its commit does not"
        assert it.broker.offsets.count == 6
        at_once(it.broker.offsets.remove_group("h"))
        assert it.broker.offsets.count == 4
        assert (await commit(it.peer, "i", "t", 1)).code == ResponseCode.SUCCESS


# -- clients ---------------------------------------------------------------------------------------


async def producers(peer: Peer, client_id: str, *groups: str) -> Command:
    body = HeartbeatData(
        client_id=client_id, producers=[ProducerData(group_name=each) for each in groups]
    )
    return await peer.ask(RequestCode.HEART_BEAT, None, encode_body(body))


async def test_producer_groups_are_limited(tmp_path: Path) -> None:
    async with cluster(tmp_path, maxProducerGroups=3) as it:
        answer = await producers(it.peer, "c", "a", "b", "c", "d", "e")
        assert is_refused(answer, "maxProducerGroups", 3), answer.remark
        assert sorted(it.broker.producers.groups) == ["a", "b", "c"]
        assert (await producers(it.peer, "c", "a", "b", "c")).code == ResponseCode.SUCCESS


async def test_groups_of_one_connection_are_limited(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        names = [f"p{number}" for number in range(GROUPS_OF_CONNECTION_MAX + 1)]
        answer = await producers(it.peer, "c", *names)
        assert is_refused(answer, "groups of a connection", GROUPS_OF_CONNECTION_MAX)
        assert len(it.broker.producers.groups) == GROUPS_OF_CONNECTION_MAX
        async with peer_of(it.broker.address) as other:
            assert (await producers(other, "d", "one-more")).code == ResponseCode.SUCCESS


async def test_client_that_changes_its_id_has_one_entry(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for number in range(50):
            assert (await producers(it.peer, f"id-{number}", "p")).code == ResponseCode.SUCCESS
        known_ids = [number for number in range(50) if it.broker.producers.find(f"id-{number}")]
        assert known_ids == [49]


@pytest.mark.parametrize("long", [False, True], ids=["many", "long"])
async def test_subscriptions_are_limited(tmp_path: Path, long: bool) -> None:
    async with cluster(tmp_path, maxSubscriptions=50) as it:
        expression = "||".join(f"tag-{number}" for number in range(500)) if long else "*"
        data = ConsumerData(
            group_name="g",
            subscriptions=[
                SubscriptionData(topic=f"t{number}", expression=expression, expression_type="TAG")
                for number in range(2 if long else 51)
            ],
        )
        body = encode_body(HeartbeatData(client_id="c", consumers=[data]))
        answer = await it.peer.ask(RequestCode.HEART_BEAT, None, body)
        assert is_refused(answer, "maxSubscriptions", 50), answer.remark
        for _ in range(3):  # repeated ones do not count again
            assert (await it.peer.heartbeat("c", "g", {"t0": "*"})).code == ResponseCode.SUCCESS
        assert it.broker.consumers.subscription_count == 1
    assert it.broker.consumers.subscription_count == 0, "they are gone with their connection"


@pytest.mark.parametrize("pops", [False, True], ids=["pull", "pop"])
async def test_parked_requests_with_long_expressions_count_several_times(
    tmp_path: Path, pops: bool
) -> None:
    async with cluster(tmp_path, maxParkedPulls=10, maxPopPollingSize=10) as it:
        await it.peer.send("t", b"a", queue_id=0)
        tags = "||".join(f"tag-{number}" for number in range(200))

        async def wait(expression: str) -> Command:
            if not pops:
                return await it.peer.pull(
                    "g", "t", 0, 1, subscription=expression, suspend_ms=60_000, sys_flag=6
                )
            fields = pop_fields(topic="t", queue_id=1, poll_ms=60_000, tags=expression)
            return await it.peer.ask(RequestCode.POP_MESSAGE, fields, timeout_ms=60_000)

        answer = await wait(tags)
        full = ResponseCode.POLLING_FULL if pops else ResponseCode.PULL_NOT_FOUND
        assert answer.code == full, "answered at once: it counts as more than 10"
        waiting = asyncio.ensure_future(wait("a"))
        done, _ = await asyncio.wait((waiting,), timeout=0.2)
        assert not done, "a short one waits"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


# -- locks, popping, rules -------------------------------------------------------------------------


async def test_queue_locks_are_limited(tmp_path: Path) -> None:
    async with cluster(tmp_path, maxQueueLocks=3) as it:
        await it.peer.send("t", b"a", queue_count=4)
        await it.peer.heartbeat("c", "g", {"t": "*"})
        answer = await lock(it.peer, "g", "t", 0, 1, 2, 3)
        assert is_refused(answer, "maxQueueLocks", 3), answer.remark
        for _ in range(2):
            answer = await lock(it.peer, "g", "t", 0, 1, 2)
            assert len(decode_body(LockBatchResponseBody, answer.body).locked) == 3


async def test_locks_of_missing_queues_do_not_use_the_limit(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"a", queue_count=4)
        await it.peer.heartbeat("c", "g", {"t": "*"})
        answers = [
            await lock(it.peer, "g", "t", *range(4 + start, 4 + start + 5_000))
            for start in range(0, STRAY_LOCKS_MAX + 1, 5_000)
        ]
        assert is_refused(answers[-1], "unknown queues", STRAY_LOCKS_MAX), answers[-1].remark
        answer = await lock(it.peer, "g", "t", 0, 1, 2, 3)
        assert len(decode_body(LockBatchResponseBody, answer.body).locked) == 4


async def test_popped_queues_are_limited(tmp_path: Path) -> None:
    async with cluster(tmp_path, maxPoppedQueues=2) as it:
        for queue_id in range(3):
            await it.peer.send("t", b"a", queue_id=queue_id, queue_count=4)
        codes = [
            await it.peer.ask(
                RequestCode.POP_MESSAGE, pop_fields(topic="t", queue_id=queue_id, init_mode=0)
            )
            for queue_id in range(3)
        ]
        assert [each.code for each in codes[:2]] == [ResponseCode.SUCCESS] * 2
        assert is_refused(codes[2], "maxPoppedQueues", 2), codes[2].remark


async def test_modes_and_forbidden_topics_are_limited(tmp_path: Path) -> None:
    async with cluster(tmp_path, maxGroupRules=2) as it:
        await it.peer.send("t", b"a")
        for group in ("a", "b", "c"):
            fields = {"group": group, "topic": "t", "readable": "false"}
            forbidden = await it.peer.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)
            body = f'{{"topic":"t","consumerGroup":"{group}","mode":"POP"}}'.encode()
            set_mode = await it.peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, body)
            for answer in (forbidden, set_mode):
                assert is_refused(answer, "maxGroupRules", 2) == (group == "c"), answer.remark


async def test_refusals_are_counted_in_the_metrics(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "maxProducerGroups": 1, "metricsExporterType": "PROM", "metricsPromExporterPort": 0,
        "metricsPromExporterHost": LOOPBACK,
    }  # fmt: skip
    async with running_broker(tmp_path, **settings) as broker, peer_of(broker.address) as peer:
        await producers(peer, "c", "a", "b", "d")
        page = (await ask_page(broker.web_port, "/metrics")).decode()
        (line,) = re.findall(r"^tianzhou_table_refusals_total\{.*\} .*$", page, re.MULTILINE)
        assert 'limit="maxProducerGroups"' in line
        assert line.endswith(" 2.0")


# -- the nameserver --------------------------------------------------------------------------------


async def test_brokers_and_topics_of_a_nameserver_are_limited(tmp_path: Path) -> None:
    settings = {"maxBrokers": 3, "maxTopics": 5, "maxRoutes": 9}
    client = Client()
    async with running_namesrv(tmp_path, **settings) as address:
        asker = Asker(address, client)
        topics = dict.fromkeys(("a", "b", "c"), 4)

        def broker(number: int, **more: int) -> Registered:
            return Registered(name=f"b{number}", addr=f"127.0.0.1:{number}", topics=topics | more)

        for number in range(1, 4):
            answer = await broker(number).register(asker)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        answer = await broker(4).register(asker)
        assert is_refused(answer, "maxBrokers", 3), answer.remark
        answer = await broker(1, d=4).register(asker)
        assert is_refused(answer, "maxRoutes", 9), answer.remark
        answer = await broker(1, d=4, e=4, f=4).register(asker)
        assert is_refused(answer, "maxTopics", 5), answer.remark
        for number in range(1, 4):
            answer = await broker(number).register(asker)
            assert answer.code == ResponseCode.SUCCESS, "those that are known stay registered"
        await client.close()


async def test_the_kv_configuration_of_a_nameserver_is_limited(tmp_path: Path) -> None:
    client = Client()

    async def put(asker_address: str, namespace: str, key: str, value: str) -> Command:
        fields = {"namespace": namespace, "key": key, "value": value}
        command = Command(code=RequestCode.PUT_KV_CONFIG, ext_fields=fields)
        return await client.request(asker_address, command, 30_000)

    try:
        async with running_namesrv(tmp_path, maxKVBytes=280) as address:
            answers = [await put(address, f"n{number}", "k", "v") for number in range(5)]
            assert [each.code for each in answers[:4]] == [ResponseCode.SUCCESS] * 4
            assert is_refused(answers[4], "maxKVBytes", 280), answers[4].remark
            assert (await put(address, "n0", "k", "w")).code == ResponseCode.SUCCESS
            # An empty namespace still exists and counts.
            for number in range(3):
                fields = {"namespace": f"n{number}", "key": "k"}
                command = Command(code=RequestCode.DELETE_KV_CONFIG, ext_fields=fields)
                await client.request(address, command, 30_000)
            assert (await put(address, "n0", "l", "v")).code == ResponseCode.SUCCESS
            answer = await put(address, "n0", "m", "v" * 300)
            assert is_refused(answer, "maxKVBytes", 280)
    finally:
        await client.close()


async def test_a_broker_with_more_topics_than_a_frame_holds_is_registered(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        topic = it.broker.topics.get("TBW102")
        assert topic is not None
        names = [f"{number:0>120}" for number in range(60_000)]
        it.broker.topics.topics.update(
            {name: msgspec.structs.replace(topic, topic_name=name) for name in names}
        )
        it.broker.topics.touch()
        await asyncio.wait_for(it.broker.register(), 60)
        await eventually(lambda: it.broker.registered_with, "registration")
        client = Client()
        try:
            command = Command(
                code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": names[-1]}
            )
            answer = await client.request(it.namesrv, command, 30_000)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
        finally:
            await client.close()
