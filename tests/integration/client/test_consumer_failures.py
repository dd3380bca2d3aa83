"""Consumers and failures: stopped brokers, wrong offsets, slow handlers, lost locks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from tests.support.brokers import (
    LOOPBACK,
    Cluster,
    cluster,
    eventually,
    peer_of,
    running_broker,
    running_namesrv,
)
from tests.support.ports import free_port

from tianzhou.client import (
    Later,
    LitePullConsumer,
    Producer,
    PushConsumer,
    Queue,
    QueueReader,
    ReceivedMessage,
)
from tianzhou.client.group.settings import Start
from tianzhou.errors import RecordError, RouteNotFound
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.queues import LockBatchResponseBody, QueueLockBody
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command

TOPIC = "troubled"


@asynccontextmanager
async def broker_at(folder: Path, namesrv: str, port: int) -> AsyncGenerator[None]:
    async with running_broker(folder / "store", namesrvAddr=namesrv, listenPort=port) as broker:
        await eventually(lambda: broker.registered_with, "registration")
        yield


async def create_topic(namesrv: str, address: str, queue_count: int = 1) -> None:
    """A topic that the nameserver knows, too."""
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(queue_count),
        "writeQueueNums": str(queue_count), "perm": "6", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    async with peer_of(address) as peer:
        await peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

        async def has_route() -> bool:
            question = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": TOPIC})
            return (await peer.client.request(namesrv, question)).code == ResponseCode.SUCCESS

        await eventually(has_route, "a route")


async def send(namesrv: str, *texts: str) -> None:
    async with Producer("trouble-makers", namesrv=namesrv) as producer:
        for text in texts:
            await producer.send(TOPIC, text)


async def test_consumer_survives_a_broker_restart(tmp_path: Path) -> None:
    port = free_port()
    seen: list[str] = []
    async with running_namesrv(tmp_path) as namesrv:
        consumer = PushConsumer(
            "survivors", namesrv=namesrv, start="first", pull_error_pause_ms=300,
            heartbeat_ms=500, poll_namesrv_ms=500, rebalance_ms=500,
        )  # fmt: skip
        consumer.subscribe(TOPIC, lambda message: seen.append(message.text))
        async with broker_at(tmp_path, namesrv, port):
            await create_topic(namesrv, f"{LOOPBACK}:{port}")
            await consumer.start()
            await send(namesrv, "before")
            await eventually(lambda: seen == ["before"], "the first message")
        async with broker_at(tmp_path, namesrv, port):
            await send(namesrv, "after")
            await eventually(lambda: "after" in seen, "the message after the restart")
            await consumer.close()
            async with QueueReader("survivors", namesrv=namesrv) as reader:
                assert await reader.committed(Queue(TOPIC, "broker-a", 0)) == 2


async def test_messages_that_cannot_be_sent_back_are_retried_locally(tmp_path: Path) -> None:
    port = free_port()
    tries: list[int] = []
    gone, failed = asyncio.Event(), asyncio.Event()
    async with running_namesrv(tmp_path) as namesrv:
        consumer = PushConsumer(
            "stubborn", namesrv=namesrv, start="first", local_retry_ms=100, api_timeout_ms=5_000
        )

        @consumer.handler(TOPIC)
        async def fail_while_alone(message: ReceivedMessage) -> Later | None:
            tries.append(message.reconsume_times)
            failed.set()
            await gone.wait()
            return Later() if len(tries) < 3 else None

        async with broker_at(tmp_path, namesrv, port):
            await create_topic(namesrv, f"{LOOPBACK}:{port}")
            await consumer.start()
            await send(namesrv, "hello")
            await failed.wait()
        gone.set()
        await eventually(lambda: len(tries) == 3, "three tries without a broker")
        await consumer.close()
    assert tries == [0, 1, 2]


async def test_new_group_begins_at_the_start_setting(tmp_path: Path) -> None:
    # This broker takes no message to be in memory, so it leaves the choice to the client.
    async with cluster(tmp_path, accessMessageInMemoryMaxRatio=0) as it:
        await create_topic(it.namesrv, it.broker.address)
        await send(it.namesrv, "old")
        await asyncio.sleep(0.05)
        moment = datetime.now(UTC)
        await asyncio.sleep(0.05)
        await send(it.namesrv, "middle")
        starts: dict[str, Start] = {"first": "first", "last": "last", "timed": moment}
        seen: dict[str, list[str]] = {name: [] for name in starts}
        async with AsyncExitStack() as stack:
            for name, start in starts.items():
                consumer = PushConsumer(name, namesrv=it.namesrv, start=start)
                keep_into(seen[name], consumer)
                await stack.enter_async_context(consumer)
                await eventually(partial(has_queue, consumer), "an assignment")
            await send(it.namesrv, "new")
            await eventually(lambda: all("new" in each for each in seen.values()), "the new one")
        assert {name: set(texts) for name, texts in seen.items()} == {
            "first": {"old", "middle", "new"}, "last": {"new"}, "timed": {"middle", "new"}
        }  # fmt: skip


def keep_into(texts: list[str], consumer: PushConsumer) -> None:
    consumer.subscribe(TOPIC, lambda message: texts.append(message.text))


def has_queue(consumer: PushConsumer) -> bool:
    return any(queue.topic == TOPIC for queue in consumer.assignment)


async def test_flow_control_pauses_pulls_of_a_slow_handler(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create_topic(it.namesrv, it.broker.address)
        await send(it.namesrv, *map(str, range(200)))
        seen: list[str] = []
        held_counts: list[int] = []
        consumer = PushConsumer(
            "slow", namesrv=it.namesrv, start="first", queue_messages_max=20, consume_threads=2
        )

        @consumer.handler(TOPIC)
        async def dawdle(message: ReceivedMessage) -> None:
            held_counts.append(
                max(each.cached_count for each in consumer.running_info().queues.values())
            )
            await asyncio.sleep(0.001)
            seen.append(message.text)

        async with consumer:
            await eventually(lambda: len(seen) == 200, "all messages")
        assert 20 < max(held_counts) <= 20 + 32
        assert sorted(seen, key=int) == [str(number) for number in range(200)]


async def test_pulls_commit_the_progress_during_a_backlog(tmp_path: Path) -> None:
    """So a crash repeats few messages; without a backlog, only commits save offsets."""
    async with cluster(tmp_path) as it:
        await create_topic(it.namesrv, it.broker.address)
        await send(it.namesrv, *map(str, range(200)))
        queue = Queue(TOPIC, "broker-a", 0)
        seen: list[str] = []
        consumer = PushConsumer(
            "carrying", namesrv=it.namesrv, start="first", queue_messages_max=20,
            persist_offsets_ms=3_600_000,
        )  # fmt: skip
        consumer.subscribe(TOPIC, lambda message: seen.append(message.text))
        async with consumer, QueueReader("carrying", namesrv=it.namesrv) as reader:
            await eventually(lambda: len(seen) == 200, "all messages")
            carried = await reader.committed(queue)
            assert carried is not None
            assert 0 < carried < 200
        assert await is_committed(it, "carrying", queue, 200)


async def test_offset_beyond_the_end_is_corrected(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create_topic(it.namesrv, it.broker.address)
        await send(it.namesrv, "old")
        queue = Queue(TOPIC, "broker-a", 0)
        for group in ("lost-push", "lost-lite"):
            async with QueueReader(group, namesrv=it.namesrv) as reader:
                await reader.commit(queue, 1000)
        seen: list[str] = []
        consumer = PushConsumer("lost-push", namesrv=it.namesrv)
        consumer.subscribe(TOPIC, lambda message: seen.append(message.text))
        async with consumer, LitePullConsumer("lost-lite", namesrv=it.namesrv) as lite:
            await lite.assign([queue])
            await eventually(lambda: lite.position(queue) == 1, "a mended position")
            await eventually(lambda: is_committed(it, "lost-push", queue, 1), "a mended offset")
            await send(it.namesrv, "new")
            await eventually(lambda: seen == ["new"], "the message behind the end")
            assert [each.text for each in await lite.poll(60_000)] == ["new"]


async def is_committed(it: Cluster, group: str, queue: Queue, queue_offset: int) -> bool:
    async with QueueReader(group, namesrv=it.namesrv) as reader:
        return await reader.committed(queue) == queue_offset


async def test_no_handler_is_called_without_the_lock(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create_topic(it.namesrv, it.broker.address)
        queue = Queue(TOPIC, "broker-a", 0)
        seen: list[str] = []
        consumer = PushConsumer(
            "locked", namesrv=it.namesrv, start="first", ordered=True, lock_ms=50
        )
        consumer.subscribe(TOPIC, lambda message: seen.append(message.text))
        async with consumer:
            await send(it.namesrv, "mine")
            await eventually(lambda: seen == ["mine"], "a message with the lock")
            await steal(it, consumer.client_id, queue)
            await eventually(lambda: not is_locked(consumer, queue), "a lost lock")
            await send(it.namesrv, "not mine")
            await asyncio.sleep(0.3)
            assert seen == ["mine"]
            await unlock(it, "thief", queue)
            await eventually(lambda: seen == ["mine", "not mine"], "the rest, with the lock")


def is_locked(consumer: PushConsumer, queue: Queue) -> bool:
    return consumer.running_info().queues[queue.to_wire()].locked


async def steal(it: Cluster, owner: str, queue: Queue) -> None:
    """Lock the queue for another client, before its owner renews the lock."""
    body = QueueLockBody(consumer_group="locked", client_id="thief", queues=[queue.to_wire()])

    async def try_once() -> bool:
        await unlock(it, owner, queue)
        answer = await it.peer.expect(RequestCode.LOCK_BATCH_MQ, None, bodies.encode(body))
        return bool(bodies.decode(LockBatchResponseBody, answer.body).locked)

    await eventually(try_once, "the lock for the thief")


async def unlock(it: Cluster, owner: str, queue: Queue) -> None:
    body = QueueLockBody(consumer_group="locked", client_id=owner, queues=[queue.to_wire()])
    await it.peer.expect(RequestCode.UNLOCK_BATCH_MQ, None, bodies.encode(body))


# -- messages that are damaged where they lie ------------------------------------------------------


def damage(store: Path, text: str) -> None:
    """Change a body in the log file, as a bad disk does."""
    segment = min((store / "commitlog").iterdir())
    with segment.open("r+b") as file:
        found = file.read().index(text.encode())
        file.seek(found)
        file.write(text.upper().encode())


@pytest.mark.parametrize("ordered", [False, True])
async def test_damaged_message_is_skipped(
    tmp_path: Path, ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as it:
        await create_topic(it.namesrv, it.broker.address)
        await send(it.namesrv, "good one", "bad one", "worse one", "good two", "last one")
        for text in ("bad one", "worse one", "last one"):
            damage(tmp_path / "store", text)
        queue = Queue(TOPIC, "broker-a", 0)
        async with QueueReader("careful", namesrv=it.namesrv) as reader:
            pulled = await reader.pull(queue, 0)
            assert [message.text for message in pulled.messages] == ["good one"]
            assert pulled.next_offset == 1
            for _ in range(3):
                with pytest.raises(RecordError, match="offset 1 is damaged"):
                    await reader.pull(queue, 1)
            await reader.pull(queue, 3)
        seen: list[str] = []
        consumer = PushConsumer("unlucky", namesrv=it.namesrv, start="first", ordered=ordered)
        consumer.subscribe(TOPIC, lambda message: seen.append(message.text))
        async with consumer, LitePullConsumer("lite", namesrv=it.namesrv, start="first") as lite:
            await lite.assign([queue])
            polled = await lite.poll(20_000) + await lite.poll(20_000)
            assert [message.text for message in polled] == ["good one", "good two"]
            await send(it.namesrv, "new")
            await eventually(lambda: seen == ["good one", "good two", "new"], "the good ones")
            assert [message.text for message in await lite.poll(20_000)] == ["new"]
        assert await is_committed(it, "unlucky", queue, 6)
    told = [each.getMessage() for each in caplog.records if "is skipped" in each.getMessage()]
    for group in ("unlucky", "lite"):
        places = [text for text in told if f"group {group}" in text]
        assert [f"offset {at} is" in text for at, text in zip((1, 2, 4), places, strict=True)]


async def test_queue_of_a_topic_without_route_is_retried(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, QueueReader("early", namesrv=it.namesrv) as reader:
        early = asyncio.create_task(reader.pull(Queue("new", "broker-a", 0), 0, message_count=1))
        await asyncio.sleep(0)  # it asks the nameserver before the broker does
        await it.peer.send("new", b"first")
        assert [message.body for message in (await early).messages] == [b"first"]
        with pytest.raises(RouteNotFound, match="nobody's"):
            await reader.pull(Queue("nobody's", "broker-b", 0), 0)
