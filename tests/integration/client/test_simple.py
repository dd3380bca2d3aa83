"""The simple consumer with our broker: sharing, redelivery, filters, many targets, close.

Tests move the clock of the cluster (`advance`): unacknowledged messages are redelivered when the
test ends their invisible time.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any, Unpack

import pytest
from tests.support.brokers import Peer, eventually, peer_of

from tianzhou.broker.handlers import Answer
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.requests.table import HANDLERS
from tianzhou.client import (
    Message,
    PoppedMessage,
    Producer,
    Queue,
    QueueReader,
    SimpleConsumer,
)
from tianzhou.client.group.settings import SimpleOptions
from tianzhou.errors import (
    AckManyError,
    BrokerError,
    ClientClosed,
    ConfigError,
    HandleExpired,
    RemotingError,
    TianzhouError,
)
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection
from tianzhou.testing import Cluster

TOPIC, GROUP = "orders", "billing"
FOREVER_S = 600
"""Far longer than a test takes: who is not woken fails."""
DEADLINE_S = 60


@asynccontextmanager
async def consuming(
    cluster: Cluster, *topics: str, group: str = GROUP, **options: Unpack[SimpleOptions]
) -> AsyncGenerator[SimpleConsumer]:
    options.setdefault("start", "first")
    options["namesrv"] = cluster.namesrv_address
    async with SimpleConsumer(group, **options) as consumer:
        for topic in topics or (TOPIC,):
            await consumer.subscribe(topic)
        yield consumer


async def send(cluster: Cluster, *texts: str, topic: str = TOPIC, tags: str | None = None) -> None:
    async with Producer("shop", namesrv=cluster.namesrv_address) as producer:
        for text in texts:
            await producer.send(topic, text, tags=tags)


async def committed(cluster: Cluster, topic: str = TOPIC) -> list[int | None]:
    async with QueueReader(GROUP, namesrv=cluster.namesrv_address) as reader:
        return [await reader.committed(queue) for queue in await reader.queues(topic)]


async def until_committed(cluster: Cluster, offsets: list[int]) -> None:
    async def look() -> bool:
        return await committed(cluster) == offsets

    await eventually(look, f"{offsets} committed")


async def again(consumer: SimpleConsumer, count: int = 1) -> list[PoppedMessage]:
    """The next redelivered messages."""
    found: list[PoppedMessage] = []

    async def look() -> bool:
        found.extend(await consumer.receive(wait=0))
        return len(found) >= count

    await eventually(look, f"{count} messages that come back")
    return found


def texts(messages: list[PoppedMessage]) -> list[str]:
    return [each.text for each in messages]


async def listening(peer: Peer, topic: str = TOPIC, group: str = GROUP) -> int:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "-1"}
    answer = await peer.expect(RequestCode.POLLING_INFO, fields)
    return int(answer.fields["pollingNum"])


# -- sharing ---------------------------------------------------------------------------------------


async def test_consumers_share_one_queue_and_each_message_is_delivered_once() -> None:
    sent = [f"{number}" for number in range(200)]
    seen: list[list[str]] = []
    async with Cluster(topics={TOPIC: 1}) as cluster:
        await send(cluster, *sent)

        async def work() -> None:
            own: list[str] = []
            seen.append(own)
            async with consuming(cluster) as consumer:
                async with asyncio.timeout(DEADLINE_S):
                    while sum(map(len, seen)) < len(sent):
                        messages = await consumer.receive(3, wait=0.2)
                        own += texts(messages)
                        await consumer.ack_many(messages)

        await asyncio.gather(*(work() for _ in range(5)))
        assert Counter(text for own in seen for text in own) == Counter(sent)
        assert all(seen), "everybody had some"
        assert await committed(cluster) == [len(sent)]
        cluster.advance(seconds=3_600)
        async with consuming(cluster) as consumer:
            assert await consumer.receive(wait=0) == []


async def test_two_consumers_alternate_on_a_queue() -> None:
    async with (
        Cluster(topics={TOPIC: 1}) as cluster,
        consuming(cluster) as first,
        consuming(cluster) as second,
    ):
        await send(cluster, *"abcdef")
        got = [texts(await each.receive(2)) for each in (first, second, first)]
        assert got == [["a", "b"], ["c", "d"], ["e", "f"]]
        assert await second.receive(wait=0) == []
        assert first.client_id != second.client_id


async def test_new_message_wakes_waiting_receivers_and_one_gets_it() -> None:
    async with (
        Cluster(topics={TOPIC: 1}) as cluster,
        consuming(cluster) as first,
        consuming(cluster) as second,
        peer_of(cluster.broker_addresses["broker-0"]) as peer,
    ):
        waiting = [
            asyncio.create_task(consumer.receive(wait=FOREVER_S))
            for consumer in (first, second, second)
        ]

        async def both_listen() -> bool:
            return await listening(peer) == 2

        await eventually(both_listen, "one listener of each consumer")
        for text in "abc":
            await send(cluster, text)
            async with asyncio.timeout(DEADLINE_S):
                done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert [texts(each.result()) for each in done] == [[text]]
            waiting = list(left)


# -- coming back -----------------------------------------------------------------------------------


async def test_unacknowledged_message_is_redelivered_with_its_count() -> None:
    async with (
        Cluster(topics={TOPIC: 1}) as cluster,
        consuming(cluster) as first,
        consuming(cluster) as second,
    ):
        await send(cluster, "a", "b")
        a, b = await first.receive(invisible=timedelta(minutes=1))
        assert [each.reconsume_times for each in (a, b)] == [0, 0]
        await first.ack(b)
        cluster.advance(seconds=59)
        assert await second.receive(wait=0) == []
        cluster.advance(seconds=2)
        (twice,) = await again(second)
        assert (twice.text, twice.msg_id, twice.topic) == ("a", a.msg_id, TOPIC)
        assert twice.reconsume_times == 1
        assert twice.handle != a.handle
        cluster.advance(seconds=61)
        (thrice,) = await again(first)
        assert thrice.reconsume_times == 2
        await first.ack(thrice)
        cluster.advance(seconds=3_600)
        assert await first.receive(wait=0) == []


@pytest.mark.parametrize("second_form", ["false", "true"])
@pytest.mark.parametrize("own_names", ["false", "true"])
async def test_redelivered_message_has_the_subscribed_topic(
    own_names: str, second_form: str
) -> None:
    """With both forms of retry topics, and brokers that return or hide their names."""
    settings: dict[str, Any] = {
        "popResponseReturnActualRetryTopic": own_names,
        "enableRetryTopicV2": second_form,
    }
    async with (
        Cluster(topics={TOPIC: 1}, **settings) as cluster,
        consuming(cluster) as consumer,
    ):
        await send(cluster, "a", "b")
        await consumer.receive(invisible=1)
        cluster.advance(seconds=2)
        back = await again(consumer, 2)
        assert {each.topic for each in back} == {TOPIC}
        await consumer.ack_many(back)
        cluster.advance(seconds=3_600)
        assert await consumer.receive(wait=0) == []


async def test_redelivery_wakes_a_waiting_receiver() -> None:
    async with (
        Cluster(topics={TOPIC: 1}) as cluster,
        consuming(cluster) as consumer,
        peer_of(cluster.broker_addresses["broker-0"]) as peer,
    ):
        await send(cluster, "a")
        await consumer.receive(invisible=60)
        waiting = asyncio.create_task(consumer.receive(wait=FOREVER_S))
        await eventually(lambda: listening(peer), "a listener")
        cluster.advance(seconds=61)
        async with asyncio.timeout(DEADLINE_S):
            assert texts(await waiting) == ["a"]


async def test_handle_expires_after_the_invisible_time() -> None:
    async with Cluster(topics={TOPIC: 1}) as cluster, consuming(cluster) as consumer:
        await send(cluster, "late", "good")
        (late,) = await consumer.receive(1, invisible=0.05)
        (good,) = await consumer.receive(1)
        assert not good.is_expired
        await eventually(lambda: late.is_expired, "the end of its time")
        for refused in (consumer.ack(late), consumer.change_invisible(late, 60)):
            with pytest.raises(HandleExpired, match=f"{late.msg_id} of topic {TOPIC}") as told:
                await refused
            assert not told.value.retriable
        with pytest.raises(AckManyError, match="1 of 2 messages") as some:
            await consumer.ack_many([late, good])
        assert isinstance(some.value.outcomes[0], HandleExpired)
        assert some.value.outcomes[1] is None
        assert not some.value.retriable
        (back,) = await again(consumer)
        assert back.text == "late"
        await consumer.ack(back)
        cluster.advance(seconds=3_600)
        assert await consumer.receive(wait=0) == [], "both are done"


async def test_expired_handle_does_not_affect_a_redelivered_message() -> None:
    """Expired by the clock of the broker, not by the local one."""
    async with Cluster(topics={TOPIC: 1}) as cluster, consuming(cluster) as consumer:
        await send(cluster, "a")
        (old,) = await consumer.receive(invisible=60)
        cluster.advance(seconds=61)
        (new,) = await again(consumer)
        await until_committed(cluster, [1])  # the copy is on disk, and the old place done with
        with pytest.raises(HandleExpired):
            await consumer.change_invisible(old, 10)
        await consumer.ack(old)
        cluster.advance(seconds=61)
        (newest,) = await again(consumer)
        assert (new.reconsume_times, newest.reconsume_times) == (1, 2)


async def test_changed_invisible_time_changes_the_handle() -> None:
    async with Cluster(topics={TOPIC: 1}) as cluster, consuming(cluster) as consumer:
        await send(cluster, "a", "b")
        a, b = await consumer.receive(invisible=60)
        old = a.handle
        new = await consumer.change_invisible(a, timedelta(minutes=5))
        assert new == a.handle != old
        assert a.visible_at > b.visible_at
        cluster.advance(seconds=61)
        assert texts(await again(consumer)) == ["b"]
        cluster.advance(seconds=200)
        await consumer.ack(a)
        cluster.advance(seconds=3_600)
        assert texts(await again(consumer)) == ["b"]
        assert await consumer.receive(wait=0) == []


async def test_invisible_time_of_zero_releases_a_message() -> None:
    async with (
        Cluster(topics={TOPIC: 1}) as cluster,
        consuming(cluster) as first,
        consuming(cluster) as second,
    ):
        await send(cluster, "a")
        (a,) = await first.receive()
        await first.change_invisible(a, 0)
        (back,) = await again(second)
        assert back.reconsume_times == 1


# -- acknowledging ---------------------------------------------------------------------------------


def not_known(_: Deps, __: Connection, request: Command) -> Command:
    remark = f"request type {request.code} not supported"
    return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)


async def test_batch_acknowledgement_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: Counter[int] = Counter()

    def counted(
        handle: Callable[[Deps, Connection, Command], Answer],
    ) -> Callable[[Deps, Connection, Command], Answer]:
        def count(deps: Deps, connection: Connection, request: Command) -> Answer:
            requested[request.code] += 1
            return handle(deps, connection, request)

        return count

    for code in (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE):
        monkeypatch.setitem(HANDLERS, code, counted(HANDLERS[code]))
    async with Cluster(topics={TOPIC: 4}) as cluster, consuming(cluster) as consumer:
        await send(cluster, *(f"{number}" for number in range(20)))
        messages = await consumer.receive() + await consumer.receive(wait=0)
        assert len(messages) == 20
        await consumer.ack_many(messages)
        await consumer.ack_many([])
        assert requested == {RequestCode.BATCH_ACK_MESSAGE: 1}
        assert await committed(cluster) == [5] * 4
        await consumer.ack_many(messages[:1])
        assert requested[RequestCode.ACK_MESSAGE] == 1, "one alone needs no batch"


async def test_broker_without_batch_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(HANDLERS, RequestCode.BATCH_ACK_MESSAGE, not_known)
    async with Cluster(topics={TOPIC: 1}) as cluster, consuming(cluster) as consumer:
        for _ in range(2):
            await send(cluster, *"abcd")
            await consumer.ack_many(await consumer.receive())
        assert await committed(cluster) == [8]


async def test_broker_without_pop_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HANDLERS, RequestCode.POP_MESSAGE, not_known)
    async with Cluster(topics={TOPIC: 1}) as cluster, consuming(cluster) as consumer:
        for wait_s in (0, FOREVER_S):
            with pytest.raises(BrokerError, match=r"broker broker-0.*does not support pop") as told:
                await consumer.receive(wait=wait_s)
            assert not told.value.retriable


# -- filters and topics ----------------------------------------------------------------------------


async def test_filters_by_tags_and_by_sql() -> None:
    topics = {"by-tags": 2, "by-sql": 2}
    async with Cluster(topics=topics) as cluster, consuming(cluster, "by-tags") as consumer:
        await consumer.subscribe("by-tags", tags="paid || refunded")
        await consumer.subscribe("by-sql", sql="amount > 10 AND currency = 'EUR'")
        async with Producer("shop", namesrv=cluster.namesrv_address) as producer:
            for tags in ("paid", "sent", "refunded"):
                await producer.send("by-tags", tags, tags=tags)
            for amount in (5, 15):
                await producer.send(
                    "by-sql", f"{amount}", properties={"amount": f"{amount}", "currency": "EUR"}
                )
        found = await again(consumer, 3)
        assert sorted(texts(found)) == ["15", "paid", "refunded"]
        await consumer.ack_many(found)
        assert await consumer.receive(wait=0) == []
        with pytest.raises(BrokerError, match="filter"):
            await consumer.subscribe("by-sql", sql="amount >")


async def test_message_with_a_tag_of_the_same_hash_is_acknowledged() -> None:
    async with Cluster(topics={TOPIC: 1}) as cluster, consuming(cluster) as consumer:
        await consumer.subscribe(TOPIC, tags="Aa")
        await send(cluster, "a stranger", tags="BB")
        await send(cluster, "ours", tags="Aa")
        (ours,) = await consumer.receive(invisible=60)
        assert ours.text == "ours"
        await consumer.ack(ours)
        await until_committed(cluster, [2])  # the stranger is done with, too


async def test_empty_topic_does_not_block_another() -> None:
    topics = {f"topic-{number}": 2 for number in range(5)}
    async with (
        Cluster(topics=topics) as cluster,
        consuming(cluster, *topics) as consumer,
        peer_of(cluster.broker_addresses["broker-0"]) as peer,
    ):

        async def everywhere() -> bool:
            return all([await listening(peer, topic) for topic in topics])

        for topic in topics:
            waiting = asyncio.create_task(consumer.receive(wait=FOREVER_S))
            await eventually(everywhere, "a listener for each topic")
            await send(cluster, topic, topic=topic)
            async with asyncio.timeout(DEADLINE_S):
                (message,) = await waiting
            assert message.text == message.topic == topic
            await consumer.ack(message)
        await consumer.unsubscribe("topic-0")
        await send(cluster, "not wanted", topic="topic-0")
        assert await consumer.receive(wait=0) == []


async def test_topic_created_after_the_subscription() -> None:
    async with Cluster() as cluster, consuming(cluster, "unborn") as consumer:
        waiting = asyncio.create_task(consumer.receive(wait=FOREVER_S))
        await send(cluster, "born", topic="unborn")
        async with asyncio.timeout(DEADLINE_S):
            assert texts(await waiting) == ["born"]


# -- several brokers -------------------------------------------------------------------------------


async def test_brokers_and_queues_are_polled_round_robin() -> None:
    async with Cluster(brokers=2, topics={TOPIC: 2}) as cluster, consuming(cluster) as consumer:
        async with Producer("shop", namesrv=cluster.namesrv_address) as producer:
            for queue in await producer.queues(TOPIC):
                for number in range(10):
                    await producer.send(Message(TOPIC, f"{queue} {number}"), queue=queue)
        taken = [message.queue for _ in range(20) for message in await consumer.receive(1)]
        assert Counter(taken[:8]) == Counter(
            {Queue(TOPIC, name, queue): 2 for name in cluster.broker_names for queue in (0, 1)}
        )
        names = [queue.broker_name for queue in taken]
        assert all(one != other for one, other in pairwise(names))


async def test_stopped_broker_does_not_block_the_others() -> None:
    async with (
        Cluster(brokers=2, topics={TOPIC: 1}) as cluster,
        consuming(cluster, reconnect_max_ms=100, poll_namesrv_ms=500) as consumer,
    ):
        cluster.stop_broker("broker-1")
        async with Producer("shop", namesrv=cluster.namesrv_address) as producer:
            (queue, *_) = [
                each for each in await producer.queues(TOPIC) if each.broker_name == "broker-0"
            ]
            for text in "abc":
                await producer.send(Message(TOPIC, text), queue=queue)
                (message,) = await consumer.receive(1, wait=FOREVER_S)
                assert message.text == text
                await consumer.ack(message)
        cluster.stop_broker("broker-0")
        with pytest.raises(TianzhouError) as told:
            await consumer.receive(wait=0)
        assert isinstance(told.value, RemotingError)
        assert told.value.retriable
        cluster.start_broker("broker-0")
        await send(cluster, "back")
        async with asyncio.timeout(DEADLINE_S):
            found: list[PoppedMessage] = []
            while not found:
                try:
                    found = await consumer.receive(wait=1)
                except RemotingError:
                    continue
        assert texts(found) == ["back"]


# -- the end ---------------------------------------------------------------------------------------


async def test_close_ends_pending_receives_and_leaves_the_group() -> None:
    async with (
        Cluster(topics={TOPIC: 1}) as cluster,
        peer_of(cluster.broker_addresses["broker-0"]) as peer,
    ):

        async def members() -> bytes:
            fields = {"consumerGroup": GROUP}
            return (await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)).body

        async with consuming(cluster) as consumer:
            assert consumer.client_id.encode() in await members()
            waiting = [asyncio.create_task(consumer.receive(wait=FOREVER_S)) for _ in range(3)]
            await eventually(lambda: listening(peer), "a listener")
        for each in waiting:
            with pytest.raises(ClientClosed):
                await each
        assert not await members()
        with pytest.raises(ClientClosed):
            await consumer.receive()
        await consumer.close()


async def test_cancelled_receive_releases_its_messages() -> None:
    async with (
        Cluster(topics={TOPIC: 1}) as cluster,
        consuming(cluster) as first,
        consuming(cluster) as second,
        peer_of(cluster.broker_addresses["broker-0"]) as peer,
    ):
        waiting = asyncio.create_task(first.receive(wait=FOREVER_S))
        await eventually(lambda: listening(peer), "a listener")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await send(cluster, "a")
        (a,) = await second.receive(wait=FOREVER_S)
        assert a.reconsume_times == 0


async def test_stream_acknowledges_the_previous_message() -> None:
    async with Cluster(topics={TOPIC: 1}) as cluster:
        await send(cluster, *"abc")
        async with consuming(cluster, invisible_ms=60_000) as consumer:
            async for message in consumer:
                if message.text == "c":
                    break
            assert await committed(cluster) == [2]
            cluster.advance(seconds=61)
            assert texts(await again(consumer)) == ["c"]


async def test_a_stream_ends_with_its_consumer() -> None:
    async with Cluster(topics={TOPIC: 1}) as cluster:
        await send(cluster, "a")
        seen: list[str] = []
        async with consuming(cluster) as consumer:

            async def follow() -> None:
                seen.extend([message.text async for message in consumer])

            following = asyncio.create_task(follow())
            await until_committed(cluster, [1])
        async with asyncio.timeout(DEADLINE_S):
            await following
        assert seen == ["a"]


# -- what cannot be --------------------------------------------------------------------------------


async def test_invalid_arguments_are_rejected() -> None:
    async with Cluster(topics={TOPIC: 1}) as cluster:
        lonely = SimpleConsumer(GROUP, namesrv=cluster.namesrv_address)
        with pytest.raises(ConfigError, match="no topic is subscribed"):
            await lonely.receive()
        await lonely.subscribe(TOPIC)
        with pytest.raises(ClientClosed, match="not started"):
            await lonely.receive()
        async with consuming(cluster) as consumer:
            for count in (0, 33):
                with pytest.raises(ConfigError, match="1 to 32"):
                    await consumer.receive(count)
            with pytest.raises(ConfigError, match="invisible"):
                await consumer.receive(invisible=0)
            with pytest.raises(ConfigError, match="wait"):
                await consumer.receive(wait=-1)
            with pytest.raises(ConfigError, match="tags or sql"):
                await consumer.subscribe(TOPIC, tags="a", sql="b = 1")
            await send(cluster, "a")
            (a,) = await consumer.receive()
            with pytest.raises(ConfigError, match="negative"):
                await consumer.change_invisible(a, -1)


async def test_broker_can_query_the_running_info() -> None:
    async with (
        Cluster(topics={TOPIC: 1}) as cluster,
        consuming(cluster) as consumer,
        peer_of(cluster.broker_addresses["broker-0"]) as peer,
    ):
        fields = {"consumerGroup": GROUP, "clientId": consumer.client_id, "jstackEnable": "false"}
        answer = await peer.expect(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        assert f'"topic":"{TOPIC}"'.encode() in answer.body
