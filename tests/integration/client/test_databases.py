"""Idempotent consumption and the outbox, on SQLite, PostgreSQL and Redis."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import sqlalchemy
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from tests.support.brokers import eventually
from tests.support.databases import postgresql, redis_server

from tianzhou.client import Message, Producer, Queue, ReceivedMessage, SendResult, SendStatus
from tianzhou.client.database.idempotence import (
    AsyncOnce,
    Once,
    RecentTokens,
    RedisOnce,
    RedisTokens,
    TokenTable,
)
from tianzhou.client.database.outbox import (
    FAILED,
    NEW,
    OUTBOX_ID,
    SENT,
    Outbox,
    OutboxRelay,
    OutboxRow,
)
from tianzhou.client.database.sql import Connection, run
from tianzhou.errors import ConfigError, MessageRefused, RemotingError, TokenBusy
from tianzhou.message import StoredMessage
from tianzhou.protocol import properties
from tianzhou.testing import Cluster

Begin = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def postgresql_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgresql(tmp_path_factory.mktemp("pg")) as url:
        yield url


def begin_with(connect: Callable[[], Any]) -> Begin:
    """A connection for each transaction, as threads need it."""

    @contextmanager
    def begin() -> Generator[Any]:
        connection = connect()
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    return begin


def sqlite_begin(folder: Path) -> Begin:
    return begin_with(lambda: sqlite3.connect(folder / "test.db", timeout=30))


DATABASES = ["sqlite3", "psycopg", "psycopg2", "sqlalchemy-sqlite", "sqlalchemy-postgresql"]


@pytest.fixture(params=DATABASES)
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Begin]:
    """A function that begins transactions on an empty database."""
    if request.param == "sqlite3":
        yield sqlite_begin(tmp_path)
        return
    if request.param == "sqlalchemy-sqlite":
        engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/test.db")
        yield engine.begin
        engine.dispose()
        return
    url: str = request.getfixturevalue("postgresql_url")
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE IF EXISTS tianzhou_tokens, tianzhou_outbox, work")
    if request.param == "psycopg":
        yield lambda: psycopg.connect(url)
        return
    if request.param == "psycopg2":
        psycopg2: Any = pytest.importorskip("psycopg2")
        yield begin_with(lambda: psycopg2.connect(url))
        return
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    yield engine.begin
    engine.dispose()


def message(key: str | None = "order-1", msg_id: str = "0A") -> ReceivedMessage:
    told = {properties.UNIQUE_KEY: msg_id} | ({properties.KEYS: key} if key else {})
    return ReceivedMessage(
        StoredMessage(
            topic="orders", queue_id=0, queue_offset=0, log_offset=0, flag=0, sys_flag=0,
            born_time_ms=0, born_host=("127.0.0.1", 1), store_time_ms=0,
            store_host=("127.0.0.1", 2), reconsume_count=0, prepared_log_offset=0, body=b"{}",
            properties=told, body_crc=0, size_bytes=0,
        )
    )  # fmt: skip


def make_work_table(begin: Begin) -> None:
    with begin() as connection:
        run(connection, "CREATE TABLE work (done TEXT)")


def work_count(begin: Begin) -> int:
    with begin() as connection:
        return int(run(connection, "SELECT COUNT(*) FROM work").rows[0][0])


def do_work(connection: Connection) -> None:
    run(connection, "INSERT INTO work (done) VALUES (:done)", {"done": "yes"})


# -- once ------------------------------------------------------------------------------------------


def test_work_is_done_once_across_caches_and_processes(begin: Begin) -> None:
    make_work_table(begin)
    once = Once("clerks", begin)
    once.create_table()
    once.create_table()
    assert once.run(message(), do_work)
    assert not once.run(message(msg_id="0B"), do_work)
    # Another process has another cache and sees the row.
    assert not Once("clerks", begin).run(message(), do_work)
    assert Once("others", begin).run(message(), do_work)
    assert once.run(message("order-2"), do_work)
    assert work_count(begin) == 3


def test_failed_work_leaves_no_token_and_can_be_retried(begin: Begin) -> None:
    make_work_table(begin)
    once = Once("clerks", begin)
    once.create_table()

    def fail(connection: Connection) -> None:
        do_work(connection)
        raise RuntimeError("no paper")

    with pytest.raises(RuntimeError, match="no paper"):
        once.run(message(), fail)
    assert work_count(begin) == 0
    assert once.run(message(), do_work)
    assert work_count(begin) == 1


@pytest.mark.parametrize("driver", ["sqlite3", "psycopg2"])
def test_threads_use_one_connection_one_at_a_time(
    driver: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if driver == "sqlite3":
        shared = sqlite3.connect(tmp_path / "shared.db", check_same_thread=False)
    else:
        psycopg2: Any = pytest.importorskip("psycopg2")
        shared = psycopg2.connect(request.getfixturevalue("postgresql_url"))
        with shared:
            run(shared, "DROP TABLE IF EXISTS tianzhou_tokens, work")

    def begin() -> AbstractContextManager[Any]:
        return shared

    make_work_table(begin)
    once = Once("clerks", begin)
    once.create_table()
    failed: list[str] = []

    def handle(number: int) -> None:
        """Every second call fails after half of its work."""

        def work(connection: Connection) -> None:
            do_work(connection)
            if number % 2:
                raise RuntimeError("no paper")

        try:
            once.run(message(f"order-{number}"), work)
        except RuntimeError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=handle, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == ["no paper"] * 10
    assert work_count(begin) == 10
    with shared:
        claimed = {row[0] for row in run(shared, "SELECT token FROM tianzhou_tokens").rows}
    assert claimed == {f"order-{number}" for number in range(0, 20, 2)}
    shared.close()


def test_one_of_many_threads_handles_a_message(begin: Begin) -> None:
    make_work_table(begin)
    Once("clerks", begin).create_table()
    outcomes: list[bool] = []

    def handle() -> None:
        outcomes.append(Once("clerks", begin).run(message(), do_work))

    threads = [threading.Thread(target=handle) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False] * 7 + [True]
    assert work_count(begin) == 1


def test_purge_deletes_only_old_tokens(begin: Begin) -> None:
    now_ms = 1_000_000
    once = Once("clerks", begin, keep=timedelta(seconds=100), clock=lambda: now_ms)
    once.create_table()
    once.run(message("old"), lambda _: None)
    now_ms += 60_000
    once.run(message("young"), lambda _: None)
    assert once.purge() == 0
    now_ms += 60_000
    assert once.purge() == 1
    fresh = Once("clerks", begin, clock=lambda: now_ms)
    assert not fresh.run(message("young"), lambda _: None)
    assert fresh.run(message("old"), lambda _: None)


def test_tokens_are_purged_automatically(tmp_path: Path) -> None:
    begin = sqlite_begin(tmp_path)
    now_ms = 1_000_000
    once = Once("clerks", begin, keep=timedelta(seconds=1), clock=lambda: now_ms)
    once.create_table()
    once.run(message("old"), lambda _: None)
    now_ms += 3_600_000
    once.run(message("new"), lambda _: None)
    with begin() as connection:
        rows = run(connection, "SELECT token FROM tianzhou_tokens").rows
    assert [row[0] for row in rows] == ["new"]


def test_a_handler_gets_the_message_and_the_transaction(tmp_path: Path) -> None:
    begin = sqlite_begin(tmp_path)
    once = Once("clerks", begin, token=lambda m: f"{m.topic}/{m.msg_id}")
    once.create_table()
    seen: list[str] = []

    @once.handler
    def handle(received: ReceivedMessage, transaction: sqlite3.Connection) -> None:
        seen.append(f"{received.key} {transaction.in_transaction}")

    for msg_id in ("0A", "0A", "0B"):
        handle(message(msg_id=msg_id))
    assert seen == ["order-1 True", "order-1 True"]


def test_message_id_replaces_a_missing_key_and_empty_tokens_are_rejected(
    tmp_path: Path,
) -> None:
    once = Once("clerks", sqlite_begin(tmp_path))
    once.create_table()
    assert once.run(message(None, "0A"), lambda _: None)
    assert not once.run(message(None, "0A"), lambda _: None)
    empty = Once("clerks", sqlite_begin(tmp_path), token=lambda _: "")
    with pytest.raises(ValueError, match="has no token"):
        empty.run(message(), lambda _: None)


async def test_once_on_an_asynchronous_engine(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/test.db")
    once = AsyncOnce[AsyncConnection]("clerks", engine.begin)
    await once.create_table()
    seen: list[str | None] = []

    @once.handler
    async def handle(received: ReceivedMessage, connection: AsyncConnection) -> None:
        await connection.execute(sqlalchemy.text("SELECT 1"))
        seen.append(received.key)

    await handle(message())
    await handle(message())
    assert seen == ["order-1"]
    assert await once.purge() == 0
    await engine.dispose()


def test_cache_evicts_the_oldest_token() -> None:
    cache = RecentTokens(2)
    for token in ("a", "b", "a", "c"):
        cache.add(token)
    assert [cache.has(token) for token in ("a", "b", "c")] == [True, False, True]
    with pytest.raises(ValueError, match="at least 1"):
        RecentTokens(0)


def test_unsupported_connections_and_table_names_are_rejected() -> None:
    with pytest.raises(ConfigError, match="is not supported"):
        TokenTable().create(object())
    with pytest.raises(ConfigError, match="not a valid table name"):
        TokenTable("tokens; DROP TABLE work")


@pytest.mark.parametrize("driver", ["sqlite3", "psycopg", "psycopg2"])
def test_autocommit_connection_is_rejected(
    driver: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    def begin() -> Any:  # noqa: ANN401 - the drivers have no type in common
        if driver == "sqlite3":
            return sqlite3.connect(tmp_path / "test.db", isolation_level=None)
        url: str = request.getfixturevalue("postgresql_url")
        if driver == "psycopg":
            return psycopg.connect(url, autocommit=True)
        psycopg2: Any = pytest.importorskip("psycopg2")
        connection = psycopg2.connect(url)
        connection.autocommit = True
        return connection

    done: list[object] = []
    with pytest.raises(ConfigError, match="autocommit"):
        Once("g", begin).run(message(), done.append)
    assert done == []


def test_explicit_transaction_is_accepted_with_autocommit(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "test.db", isolation_level=None)

    @contextmanager
    def begin() -> Generator[sqlite3.Connection]:
        connection.execute("BEGIN")
        with connection:
            yield connection

    with begin() as given:
        TokenTable().create(given)
    done: list[object] = []
    assert Once("g", begin).run(message(), done.append)
    assert done == [connection]
    assert not Once("g", begin).run(message(), done.append)
    connection.close()


# -- Redis -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    with redis_server(tmp_path_factory.mktemp("redis")) as port:
        client = redis.Redis(port=port)
        yield client
        client.close()


def test_redis_once_does_work_once(redis_client: redis.Redis) -> None:
    once = RedisOnce("clerks", redis_client)
    done: list[str] = []
    handle = once.handler(lambda received: done.append(received.msg_id))
    handle(message(msg_id="0A"))
    handle(message(msg_id="0B"))
    assert done == ["0A"]
    assert not once.run(message(msg_id="0C"), lambda: done.append("0C"))


def test_redis_once_retries_failed_work_and_reports_busy_tokens(
    redis_client: redis.Redis,
) -> None:
    once = RedisOnce("failing", redis_client)

    def fail() -> None:
        with pytest.raises(TokenBusy, match="handled elsewhere") as busy:
            once.run(message(), lambda: None)
        assert busy.value.retriable
        raise RuntimeError("no paper")

    with pytest.raises(RuntimeError, match="no paper"):
        once.run(message(), fail)
    assert once.run(message(), lambda: None)


def test_redis_cache_is_shared_and_may_be_unreachable(
    redis_client: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin = sqlite_begin(tmp_path)
    once = Once("clerks", begin, cache=RedisTokens(redis_client, "cached:"))
    once.create_table()
    assert once.run(message(), lambda _: None)

    def no_database() -> AbstractContextManager[Any]:
        raise AssertionError("the cache knows it")

    other = Once("clerks", no_database, cache=RedisTokens(redis_client, "cached:"))
    assert not other.run(message(), lambda _: None)
    away = redis.Redis(port=1, retry=Retry(NoBackoff(), 0))
    assert not Once("clerks", begin, cache=RedisTokens(away)).run(message(), lambda _: None)
    assert "Redis read failed" in caplog.text


# -- the outbox ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(topics={"orders": 2}) as running:
        yield running


def producer_of(cluster: Cluster, group: str) -> Producer:
    return Producer(group, namesrv=cluster.namesrv_address)


class Recorder:
    """A producer that records messages, and fails while `failure` is set."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.failure: Exception | None = None
        self.status = SendStatus.SEND_OK

    async def send(self, message: Message, /) -> SendResult:
        if self.failure is not None:
            raise self.failure
        self.sent.append(message)
        queue = Queue(message.topic, "broker-0", 0)
        return SendResult(self.status, f"id-{len(self.sent)}", "", queue, len(self.sent) - 1)

    send_ordered = send


def make_outbox(begin: Begin, clock: Callable[[], int] | None = None) -> Outbox:
    outbox = Outbox(clock=clock) if clock else Outbox()
    with begin() as connection:
        outbox.create(connection)
        outbox.create(connection)
    return outbox


async def test_only_committed_rows_are_sent(begin: Begin, cluster: Cluster) -> None:
    outbox = make_outbox(begin)
    with begin() as connection:
        outbox.put(
            connection,
            Message("orders", b"\x00\xff", tags="paid", keys=("1", "2"), properties={"a": "b"}),
            Message("orders", "two", shard="s"),
        )

    def roll_back() -> None:
        with begin() as connection:
            outbox.put(connection, Message("orders", b"never"))
            raise RuntimeError("business failed")

    with pytest.raises(RuntimeError, match="business failed"):
        roll_back()

    def counts() -> dict[str, int]:
        with begin() as connection:
            return outbox.counts(connection)

    async with (
        producer_of(cluster, "outbox") as producer,
        OutboxRelay(outbox, begin, producer, interval=timedelta(milliseconds=50)) as relay,
    ):
        relay.wake()
        await eventually(lambda: counts() == {SENT: 2}, "both to be sent")
    with begin() as connection:
        rows = run(connection, "SELECT msg_id, try_count FROM tianzhou_outbox ORDER BY id").rows
        assert [len(row[0]) for row in rows] == [32, 32]
        assert [row[1] for row in rows] == [1, 1]
        assert outbox.purge(connection, 1) == 0
        assert outbox.purge(connection, 1 << 60) == 2


async def test_row_is_retried_with_back_off_and_reported_after_the_last_attempt(
    begin: Begin,
) -> None:
    now_ms = 1_000_000
    outbox = make_outbox(begin, lambda: now_ms)
    recorder = Recorder()
    reported: list[tuple[int, str]] = []

    def report(row: OutboxRow, error: str) -> None:
        reported.append((row.row_id, error))

    relay = OutboxRelay(outbox, begin, recorder, tries_max=3, on_failed=report)
    with begin() as connection:
        outbox.put(connection, Message("orders", b"one"))
    recorder.failure = RemotingError("the broker is away")
    for pause_ms in (1000, 2000, 4000):
        assert await relay.run_once() == 1
        assert await relay.run_once() == 0
        now_ms += pause_ms
    assert reported == [(1, "the broker is away")]
    with begin() as connection:
        (failed,) = outbox.failed(connection)
        assert (failed.try_count, failed.error) == (3, "the broker is away")
        assert outbox.counts(connection) == {FAILED: 1}
        assert outbox.retry(connection, [failed.row_id, 77]) == 1
    recorder.failure = None
    assert await relay.run_once() == 1
    assert [each.payload for each in recorder.sent] == [b"one"]
    assert recorder.sent[0].properties[OUTBOX_ID] == str(failed.row_id)


@pytest.mark.parametrize("is_settled", [False, True])
async def test_row_stored_with_weaker_durability_is_sent_again(
    begin: Begin, is_settled: bool
) -> None:
    """Until it is stored with SEND_OK, or has been sent three times."""
    now_ms = 1_000_000
    outbox = make_outbox(begin, lambda: now_ms)
    recorder = Recorder()
    recorder.status = SendStatus.FLUSH_DISK_TIMEOUT
    relay = OutboxRelay(outbox, begin, recorder)
    with begin() as connection:
        outbox.put(
            connection, Message("orders", "a1", shard="a"), Message("orders", "a2", shard="a")
        )
    bodies: list[bytes] = []
    for pause_ms in (1000, 2000, 4000):
        assert await relay.run_once() == 1  # a2 waits for the end of the doubt
        now_ms += pause_ms
        if is_settled:
            recorder.status = SendStatus.SEND_OK
        bodies = [each.payload for each in recorder.sent]
    with begin() as connection:
        statement = "SELECT state, try_count, msg_id, error FROM tianzhou_outbox ORDER BY id"
        first, second = (tuple(row) for row in run(connection, statement).rows)
    if is_settled:
        assert bodies == [b"a1", b"a1", b"a2"]
        assert (first, second) == ((SENT, 2, "id-2", None), (SENT, 1, "id-3", None))
    else:
        assert bodies == [b"a1", b"a1", b"a1"]
        assert first == (SENT, 3, "id-3", "stored with FLUSH_DISK_TIMEOUT")
        assert second == (NEW, 0, None, None)
    assert {each.properties[OUTBOX_ID] for each in recorder.sent if each.payload == b"a1"} == {"1"}


async def test_rows_of_a_shard_are_ordered_and_do_not_block_others(begin: Begin) -> None:
    outbox = make_outbox(begin)
    recorder = Recorder()
    relay = OutboxRelay(outbox, begin, recorder, tries_max=1)
    with begin() as connection:
        for body in ("a1", "a2", "b1"):
            outbox.put(connection, Message("orders", body, shard=body[0]))
        outbox.put(connection, Message("orders", "free"))
    recorder.failure = RemotingError("away")
    assert await relay.run_once() == 3
    recorder.failure = None
    with begin() as connection:
        failed = outbox.failed(connection)
        assert [row.message.payload for row in failed] == [b"a1", b"b1", b"free"]
        assert outbox.retry(connection, [row.row_id for row in failed[1:]]) == 2
    while await relay.run_once():
        pass
    # a2 waits for a1, which was given up, until someone decides.
    assert [each.payload for each in recorder.sent] == [b"b1", b"free"]
    with begin() as connection:
        assert outbox.delete(connection, [failed[0].row_id]) == 1
    assert await relay.run_once() == 1
    assert recorder.sent[-1].payload == b"a2"


async def test_two_relays_share_a_table_without_sending_twice(begin: Begin) -> None:
    outbox = make_outbox(begin)
    with begin() as connection:
        for number in range(20):
            outbox.put(connection, Message("orders", str(number)))
    recorder = Recorder()
    first = OutboxRelay(outbox, begin, recorder, batch=5)
    second = OutboxRelay(outbox, begin, recorder, batch=5)
    while await first.run_once() + await second.run_once():
        pass
    assert sorted(int(each.payload) for each in recorder.sent) == list(range(20))


async def test_rejected_message_fails_without_retry(tmp_path: Path) -> None:
    begin = sqlite_begin(tmp_path)
    outbox = make_outbox(begin)
    recorder = Recorder()
    recorder.failure = MessageRefused("too large")
    with begin() as connection:
        outbox.put(connection, Message("orders", b"x"))
        with pytest.raises(MessageRefused, match="reserved for the outbox"):
            outbox.put(connection, Message("orders", b"x", properties={OUTBOX_ID: "1"}))
        assert outbox.counts(connection) == {NEW: 1}
    assert await OutboxRelay(outbox, begin, recorder).run_once() == 1
    with begin() as connection:
        assert outbox.counts(connection) == {FAILED: 1}


async def test_relay_survives_a_database_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right = sqlite_begin(tmp_path)
    outbox = make_outbox(right)
    with right() as connection:
        outbox.put(connection, Message("orders", b"x"))
    calls = 0

    def begin() -> AbstractContextManager[Any]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise sqlite3.OperationalError("no such server")
        return right()

    recorder = Recorder()
    async with OutboxRelay(outbox, begin, recorder, interval=timedelta(milliseconds=10)):
        await eventually(lambda: recorder.sent, "the message")
        await asyncio.sleep(0)
    assert "a round failed" in caplog.text


async def test_delay_counts_from_the_business_transaction(tmp_path: Path) -> None:
    begin = sqlite_begin(tmp_path)
    now_ms = 1_700_000_000_000
    outbox = make_outbox(begin, lambda: now_ms)
    with begin() as connection:
        outbox.put(connection, Message("orders", b"x", delay=timedelta(minutes=1)))
    now_ms += 30_000
    recorder = Recorder()
    await OutboxRelay(outbox, begin, recorder).run_once()
    deliver_at = recorder.sent[0].deliver_at
    assert deliver_at is not None
    assert deliver_at.timestamp() * 1000 == 1_700_000_060_000
