"""The Spark sink without Spark, on our broker and on Apache's."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

import pyarrow as pa

from tests.support.apache.backends import Backend
from tianzhou.spark.sink import exactly_once as sink_ledger
from tianzhou.spark.sink import tasks
from tianzhou.spark.sink.exactly_once import Batch, Ledger
from tianzhou.spark.sink.options import SinkOptions
from tianzhou.spark.sink.tasks import Half

BODIES = [f"row {number}" for number in range(20)]
CHECKS_S = 2.5
"""Longer than two rounds of transaction checks, which brokers send every second."""


def send(options: SinkOptions, bodies: Iterable[str]) -> list[Half]:
    batch = pa.RecordBatch.from_pydict({"body": list(bodies)})
    return tasks.write(iter([batch]), options).halves


def seen(backend: Backend, topic: str) -> Counter[str]:
    return Counter(message.body.decode() for message in asyncio.run(backend.stored(topic)))


def end(halves: list[Half], options: SinkOptions) -> None:
    """The steps of a driver up to its crash."""
    ends = sink_ledger._end  # pyright: ignore[reportPrivateUsage] - a driver that dies on its way
    commit = sink_ledger._commit  # pyright: ignore[reportPrivateUsage] - as above
    asyncio.run(ends(halves, options, commit))


def test_batches_and_ordered_rows_arrive(backend: Backend) -> None:
    topic = backend.name("sink")
    options = SinkOptions(name_server=backend.namesrv, topic=topic, batch_count=7)
    send(options, BODIES)
    rows = {"body": [f"{n}" for n in range(100)], "orderKey": [f"k{n % 5}" for n in range(100)]}
    tasks.write(iter([pa.RecordBatch.from_pydict(rows)]), options)
    asyncio.run(backend.await_stored(topic, 120))
    found = asyncio.run(backend.stored(topic))
    assert Counter(message.body.decode() for message in found) == Counter(BODIES + rows["body"])
    ordered = [int(message.body) for message in found if message.body.isdigit()]
    for key in range(5):
        mine = [number for number in ordered if number % 5 == key]
        assert mine == sorted(mine)


def test_a_decided_batch_is_visible_once_after_lost_responses(
    backend: Backend, tmp_path: Path
) -> None:
    topic = backend.name("sink")
    send(SinkOptions(name_server=backend.namesrv, topic=topic), ["first"])
    options = SinkOptions(
        name_server=backend.namesrv,
        topic=topic,
        group=backend.name("sinks"),
        exactly_once=True,
        ledger=f"sqlite:///{tmp_path / 'ledger.db'}",
    )
    dead = send(options, BODIES[:5])
    halves = send(options, BODIES)
    time.sleep(CHECKS_S)
    assert seen(backend, topic) == Counter(["first"])
    ledger = Ledger(options.ledger)
    assert ledger.decide(Batch("q", 0), halves)
    ledger.close()
    end(halves[:13], options)
    asyncio.run(backend.await_stored(topic, 14))
    # The driver crashed here. The next one finishes the batch, and drops its repetition.
    assert not sink_ledger.commit(Batch("q", 0), send(options, BODIES), options)
    asyncio.run(backend.await_stored(topic, 21))
    sink_ledger.roll_back(dead, options)
    assert sink_ledger.commit(Batch("q", 1), send(options, ["last"]), options)
    asyncio.run(backend.await_stored(topic, 22))
    time.sleep(CHECKS_S)
    assert seen(backend, topic) == Counter([*BODIES, "first", "last"])
