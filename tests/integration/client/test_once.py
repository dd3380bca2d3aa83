"""Idempotent handlers in consumers: duplicates count as consumed and are not redelivered."""

import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import redis
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from tests.support.brokers import eventually, peer_of
from tests.support.databases import redis_server

from tianzhou.client import Message, Producer, PushConsumer, Queue, QueueReader, ReceivedMessage
from tianzhou.client.consumer.callbacks import Handler
from tianzhou.client.database.idempotence import AsyncOnce, Once, RedisOnce
from tianzhou.names import DLQ_TOPIC_PREFIX
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.testing import Cluster

SENT = ("order-1", "order-1", "order-2", "order-1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as it:
        yield it


async def consume_all(cluster: Cluster, group: str, handler: Handler) -> None:
    """Send orders with duplicates, and let a consumer handle them until all are committed.

    A redelivered message would be a dead letter immediately: it has no retries.
    """
    namesrv = cluster.namesrv_address
    queue = Queue(group, "broker-0", 0)
    consumer = PushConsumer(
        group, namesrv=namesrv, start="first", consume_threads=1, max_reconsume_times=0,
        persist_offsets_ms=50,
    )  # fmt: skip
    consumer.subscribe(group, handler)
    async with (
        Producer(group, namesrv=namesrv) as producer,
        QueueReader(group, namesrv=namesrv) as reader,
        consumer,
    ):
        for key in SENT:
            await producer.send(Message(group, b"12 EUR", keys=key), queue=queue)

        async def all_committed() -> bool:
            return await reader.committed(queue) == len(SENT)

        await eventually(all_committed, "the offset behind the last message")


async def dead_letter_count(cluster: Cluster, group: str) -> int:
    """As stored by the broker, which creates their topic for the first one."""
    async with peer_of(cluster.broker_addresses["broker-0"]) as broker:
        topic = DLQ_TOPIC_PREFIX + group
        answer = await broker.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0


Kind = Callable[[Path, list[str]], AbstractAsyncContextManager[Handler]]


@asynccontextmanager
async def once_by_sqlite(folder: Path, done: list[str]) -> AsyncGenerator[Handler]:
    connection = sqlite3.connect(folder / "once.db", check_same_thread=False)
    once = Once("once", lambda: connection)
    once.create_table()

    @once.handler
    def handle(message: ReceivedMessage, transaction: sqlite3.Connection) -> bool:
        assert transaction.in_transaction
        done.append(str(message.key))
        return False  # what the work returns is nothing to the consumer

    yield handle
    connection.close()


@asynccontextmanager
async def once_by_async_engine(folder: Path, done: list[str]) -> AsyncGenerator[Handler]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/once.db")
    once = AsyncOnce[AsyncConnection]("once", engine.begin)
    await once.create_table()

    @once.handler
    async def handle(message: ReceivedMessage, transaction: AsyncConnection) -> None:
        await transaction.execute(sqlalchemy.text("SELECT 1"))
        done.append(str(message.key))

    yield handle
    await engine.dispose()


@asynccontextmanager
async def once_by_redis(folder: Path, done: list[str]) -> AsyncGenerator[Handler]:
    with redis_server(folder) as port:
        client = redis.Redis(port=port)
        yield RedisOnce("once", client).handler(lambda message: done.append(str(message.key)))
        client.close()


@pytest.mark.parametrize("kind", [once_by_sqlite, once_by_async_engine, once_by_redis])
async def test_duplicate_counts_as_consumed(kind: Kind, cluster: Cluster, tmp_path: Path) -> None:
    group = getattr(kind, "__name__", "once").replace("_", "-")
    cluster.create_topic(group, 1)
    done: list[str] = []
    async with kind(tmp_path, done) as handler:
        await consume_all(cluster, group, handler)
    assert done == ["order-1", "order-2"]
    assert await dead_letter_count(cluster, group) == 0


async def test_handler_that_returns_false_makes_dead_letters(cluster: Cluster) -> None:
    """The counterpart of the test above: dead letters are detected."""
    cluster.create_topic("never-happy", 1)
    await consume_all(cluster, "never-happy", lambda message: False)
    assert await dead_letter_count(cluster, "never-happy") == len(SENT)
