"""Exactly once without Spark: crashes of driver, task or broker at every step.

On SQLite and on PostgreSQL alike.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.support.spark.reading import stored_at
from tianzhou.errors import TianzhouError
from tianzhou.spark.sink import exactly_once, tasks
from tianzhou.spark.sink.exactly_once import Batch, Ledger
from tianzhou.spark.sink.options import SinkOptions
from tianzhou.spark.sink.tasks import Half
from tianzhou.testing import Cluster

QUERY = "q"


@pytest.fixture(scope="module")
def small() -> Generator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def options(small: Cluster, database_url: str, request: pytest.FixtureRequest) -> SinkOptions:
    # The suffix of the name has the parameters.
    topic = request.node.name.replace("[", "-").replace("]", "")[-60:]
    small.create_topic(topic, 2)
    return SinkOptions(
        name_server=small.namesrv_address,
        topic=topic,
        exactly_once=True,
        ledger=database_url,
        retry_for=30_000,
    )


def send(options: SinkOptions, bodies: Iterable[str]) -> list[Half]:
    """Send half messages as a task does."""
    batch = pa.RecordBatch.from_pydict({"body": list(bodies)})
    return tasks.write(iter([batch]), options).halves


def seen(options: SinkOptions) -> Counter[str]:
    """The messages of the topic that consumers see."""

    messages = stored_at(options.name_server, options.topic)
    return Counter(message.body.decode() for message in messages)


BODIES = [f"row {number}" for number in range(20)]
ONCE = Counter(BODIES)


def test_half_messages_are_invisible_until_the_batch_is_committed(options: SinkOptions) -> None:
    halves = send(options, BODIES)
    assert len({half.msg_id for half in halves}) == len(BODIES)
    assert not seen(options)
    assert exactly_once.commit(Batch(QUERY, 0), halves, options)
    assert seen(options) == ONCE
    ledger = Ledger(options.ledger)
    assert ledger.unfinished(QUERY) == []
    ledger.close()


def test_a_repeated_batch_is_dropped(options: SinkOptions) -> None:
    assert exactly_once.commit(Batch(QUERY, 0), send(options, BODIES), options)
    assert not exactly_once.commit(Batch(QUERY, 0), send(options, BODIES), options)
    assert exactly_once.commit(Batch("other", 0), send(options, ["of another query"]), options)
    assert seen(options) == ONCE + Counter(["of another query"])


def test_half_messages_of_a_crashed_task_stay_invisible(options: SinkOptions) -> None:
    send(options, BODIES[:7])
    exactly_once.commit(Batch(QUERY, 0), send(options, BODIES), options)
    assert seen(options) == ONCE


@pytest.mark.parametrize("ended_count", [0, 1, 13, 20])
def test_a_batch_is_finished_after_a_crash_of_the_driver(
    options: SinkOptions, ended_count: int
) -> None:
    halves = send(options, BODIES)
    ledger = Ledger(options.ledger)
    assert ledger.decide(Batch(QUERY, 3), halves)
    ledger.close()
    _end(halves[:ended_count], options)
    assert sum(seen(options).values()) == ended_count
    # Spark repeats the batch; the next driver finishes the decided one and drops the repetition.
    assert not exactly_once.commit(Batch(QUERY, 3), send(options, BODIES), options)
    assert seen(options) == ONCE


def _end(halves: list[Half], options: SinkOptions) -> None:
    end = exactly_once._end  # pyright: ignore[reportPrivateUsage] - a driver that dies on its way
    commit = exactly_once._commit  # pyright: ignore[reportPrivateUsage] - as above
    asyncio.run(end(halves, options, commit))


def test_a_decided_batch_survives_a_restart_of_the_brokers(
    small: Cluster, options: SinkOptions
) -> None:
    halves = send(options, BODIES)
    ledger = Ledger(options.ledger)
    ledger.decide(Batch(QUERY, 0), halves)
    ledger.close()
    _end(halves[:10], options)
    for name in small.broker_names:
        small.stop_broker(name)
        small.start_broker(name)
    assert exactly_once.commit(Batch(QUERY, 1), send(options, ["next"]), options)
    assert seen(options) == ONCE + Counter(["next"])


def test_unavailable_brokers_fail_the_commit_and_nothing_is_lost(
    small: Cluster, options: SinkOptions
) -> None:
    halves = send(options, BODIES)
    for name in small.broker_names:
        small.stop_broker(name)
    impatient = SinkOptions(
        name_server=options.name_server, topic=options.topic, exactly_once=True,
        ledger=options.ledger, retry_for=300, request_timeout=500,
    )  # fmt: skip
    with pytest.raises(TianzhouError):
        exactly_once.commit(Batch(QUERY, 0), halves, impatient)
    for name in small.broker_names:
        small.start_broker(name)
    # Spark aborts what failed to commit; the batch is decided, so that must not undo it.
    exactly_once.abort(Batch(QUERY, 0), halves, options)
    assert not exactly_once.commit(Batch(QUERY, 0), send(options, BODIES), options)
    assert seen(options) == ONCE


def test_an_aborted_batch_can_be_written_again(options: SinkOptions) -> None:
    halves = send(options, BODIES)
    exactly_once.abort(Batch(QUERY, 0), halves, options)
    assert exactly_once.commit(Batch(QUERY, 0), send(options, BODIES), options)
    assert seen(options) == ONCE


def test_a_commit_whose_response_was_lost_is_not_executed_twice(
    options: SinkOptions,
) -> None:
    halves = send(options, BODIES)
    ledger = Ledger(options.ledger)
    ledger.decide(Batch(QUERY, 0), halves)
    # As if the responses were lost: every half is ended, and the ledger records none.
    _end(halves, options)
    assert [len(left) for _, left in ledger.unfinished(QUERY)] == [len(BODIES)]
    ledger.close()
    exactly_once.commit(Batch(QUERY, 1), [], options)
    assert seen(options) == ONCE


def test_one_of_several_concurrent_decisions_succeeds(database_url: str) -> None:
    """Several drivers run the same query: all half messages of exactly one are committed."""
    count = 6
    gate = threading.Barrier(count)

    def decide(driver: int) -> bool:
        halves = [Half("b", "t", number, driver, f"{number}") for number in range(15_000)]
        gate.wait()
        # This includes opening: the tables do not exist yet.
        ledger = Ledger(database_url)
        try:
            return ledger.decide(Batch(QUERY, 4), halves)
        finally:
            ledger.close()

    with ThreadPoolExecutor(count) as drivers:
        decided = list(drivers.map(decide, range(count)))
    assert sum(decided) == 1
    ledger = Ledger(database_url)
    ((_, kept),) = ledger.unfinished(QUERY)
    ledger.close()
    assert {half.log_offset for half in kept} == {decided.index(True)}
    assert sorted(half.queue_offset for half in kept) == list(range(15_000))


def test_half_messages_of_a_large_batch_are_stored_in_several_rows(database_url: str) -> None:
    ledger = Ledger(database_url)
    halves = [Half("b", "t", number, number, f"{number}") for number in range(25_000)]
    assert ledger.decide(Batch(QUERY, 7), halves)
    assert not ledger.decide(Batch(QUERY, 7), halves)
    assert ledger.is_decided(Batch(QUERY, 7))
    ((batch, kept),) = ledger.unfinished(QUERY)
    assert batch == Batch(QUERY, 7)
    assert sorted(half.queue_offset for half in kept) == list(range(25_000))
    ledger.finish(batch)
    assert ledger.unfinished(QUERY) == []
    assert ledger.is_decided(batch)
    ledger.close()
