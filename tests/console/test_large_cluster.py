"""Lists of 1,000 topics and 2,300 groups: server time, size, and 50 rows a page."""

import random
import statistics
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from tests.support.console.collected import CollectedConsole, collected
from tianzhou.console.collect import history
from tianzhou.console.collect.history import GROUP, TOPIC, History, Sample, SeriesName
from tianzhou.console.collect.snapshot import (
    Group,
    GroupTopic,
    Member,
    Snapshot,
    Topic,
    TopicQueues,
)

TOPICS, GROUPS, BROKERS = 1_000, 2_300, 4
SERVER_S = 0.3
PAGE_BYTES = 100_000

PAGES = [
    "/c/main", "/c/main/topics", "/c/main/topics?kinds=all&sort=-today&page=9",
    "/c/main/groups", "/c/main/groups?find=team-1", "/c/main/groups?sort=name&page=46",
    "/c/main/groups?only=behind", "/c/main/topics/topic-0007-of-the-shop",
    "/c/main/groups/team-0042-consumers", "/c/main/statistics", "/",
]  # fmt: skip


def _snapshot(snapshot: Snapshot) -> Snapshot:
    """The snapshot of a real cluster without topics, with many of them."""
    chance = random.Random(7)
    brokers = [f"broker-{number}" for number in range(BROKERS)]
    topics = tuple(
        Topic(
            name=f"topic-{number:04}-of-the-shop",
            queues=tuple(
                TopicQueues(broker=name, read=8, write=8, perm=6, produced=9, stored=9)
                for name in brokers
            ),
            as_of_ms=snapshot.as_of_ms, in_per_s=chance.random() * 100,
            today=chance.randrange(10**7), yesterday=chance.randrange(10**7),
            stored=chance.randrange(10**9), last_message_ms=snapshot.as_of_ms - 1000,
            groups=(f"team-{number:04}-consumers",),
        )
        for number in range(TOPICS)
    )  # fmt: skip
    groups = tuple(
        Group(
            name=f"team-{number:04}-consumers", brokers=tuple(brokers), is_enabled=True,
            retry_max=16, lag=chance.randrange(10**6), consumed_per_s=chance.random() * 100,
            oldest_age_ms=chance.randrange(10**7), consumed_today=chance.randrange(10**6),
            dead_letters=chance.randrange(3), dead_letters_today=0,
            members=tuple(
                Member(client_id=f"10.0.{each}.{number % 250}@{number}#{each}",
                       address=f"10.0.{each}.{number % 250}:4711")
                for each in range(4)
            ),
            topics=tuple(
                GroupTopic(topic=f"topic-{(number + each) % TOPICS:04}-of-the-shop", lag=each)
                for each in range(3)
            ),
            subscriptions=((f"topic-{number % TOPICS:04}-of-the-shop", "*"),),
        )
        for number in range(GROUPS)
    )  # fmt: skip
    totals = replace(snapshot.totals, topics=TOPICS, groups=GROUPS)
    return replace(snapshot, topics=topics, groups=groups, totals=totals)


@pytest.fixture
async def console(tmp_path: Path) -> AsyncGenerator[CollectedConsole]:
    async with collected(tmp_path, rounds=1, main="127.0.0.1:1") as made:
        collector = made.console.clusters["main"].collector
        assert collector is not None
        assert collector.snapshot is not None
        snapshot = _snapshot(replace(collector.snapshot, problem=""))
        await collector._publish(snapshot)  # pyright: ignore[reportPrivateUsage]
        yield made


def _write_history(console: CollectedConsole) -> None:
    snapshot = console.console.clusters["main"].snapshot
    assert snapshot is not None
    written = History("main")
    now_minute = console.now_ms // history.MINUTE_MS
    with console.engine.begin() as connection:
        for minute in range(now_minute - 12, now_minute + 1):
            samples = {SeriesName(history.ROUND): Sample(None, 60)}
            samples |= {
                SeriesName(GROUP, each.name): Sample(minute % 977 + 1, minute % 89)
                for each in snapshot.groups
            }
            samples |= {
                SeriesName(TOPIC, each.name): Sample(0, minute % 83 + 1) for each in snapshot.topics
            }
            written.write(connection, minute, samples)


async def test_pages_are_fast_and_small(console: CollectedConsole) -> None:
    _write_history(console)
    client = await console.browser("rita")
    for path in PAGES:
        times: list[float] = []
        for language in ("en", "zh", "fr"):
            started = time.perf_counter()
            answer = await client.get(path, headers={"Accept-Language": language})
            times.append(time.perf_counter() - started)
            assert answer.status_code == 200, (path, answer.text[:1000])
        assert len(answer.content) < PAGE_BYTES, (path, len(answer.content))
        assert statistics.median(times) < SERVER_S, (path, times)


async def test_a_list_has_fifty_rows_and_its_last_page_the_rest(console: CollectedConsole) -> None:
    client: httpx.AsyncClient = await console.browser("rita")
    found = (await client.get("/c/main/groups.json?sort=name&page=46")).json()["groups"]
    assert (found["total"], found["pages"], len(found["rows"])) == (GROUPS, 46, 50)
    assert found["rows"][-1]["name"] == "team-2299-consumers"
    assert (await client.get("/c/main/groups.csv")).text.count("\n") == GROUPS + 1


async def test_an_unchanged_page_costs_nothing(console: CollectedConsole) -> None:
    client = await console.browser("rita")
    asks = {"HX-Request": "true", "HX-Target": "main#page"}
    first = await client.get("/c/main/groups", headers=asks)
    again = {**asks, "If-None-Match": first.headers["etag"]}
    assert (await client.get("/c/main/groups", headers=again)).status_code == 304
