"""Pulls over real sockets: filters, offsets, long polls."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from tests.support.brokers import (
    Peer,
    bodies_in,
    cluster,
    eventually,
    messages_in,
    peer_of,
    pull_fields,
)

from tianzhou.broker.storing import disk_prefetch
from tianzhou.protocol import kernel
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.store.message_store import MessageStore

HOLD = 6
"""An inline subscription, and the pull may be parked."""


# -- filters ---------------------------------------------------------------------------------------


async def test_tags_are_filtered_by_the_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for number, tag in enumerate(("a", "b", "a", "c", "")):
            await it.peer.send("t", b"%d" % number, props={"TAGS": tag} if tag else {})
        for expression, expected in (
            ("*", [b"0", b"1", b"2", b"3", b"4"]),
            ("a", [b"0", b"2"]),
            ("b || c", [b"1", b"3"]),
        ):
            answer = await it.peer.pull("g", "t", 0, 0, subscription=expression)
            assert bodies_in(answer) == expected
            assert answer.fields["nextBeginOffset"] == "5"
        nothing = await it.peer.pull("g", "t", 0, 0, subscription="z")
        assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert nothing.fields["nextBeginOffset"] == "5"


async def test_sql_is_filtered_by_the_broker(tmp_path: Path) -> None:
    async with cluster(tmp_path, enablePropertyFilter="true") as it:
        for age in (5, 15, 25):
            await it.peer.send("t", b"%d" % age, props={"age": str(age), "name": "it's"})
        await it.peer.send("t", b"none")
        for expression, expected in (
            ("age BETWEEN 10 AND 20", [b"15"]),
            ("age > 10 AND name = 'it''s'", [b"15", b"25"]),
            ("age IS NULL", [b"none"]),
        ):
            answer = await it.peer.pull(
                "g", "t", 0, 0, subscription=expression, expression_type="SQL92"
            )
            assert bodies_in(answer) == expected


async def test_pull_without_subscription_uses_that_of_the_heartbeat(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"a", props={"TAGS": "a"})
        await it.peer.send("t", b"b", props={"TAGS": "b"})
        await it.peer.heartbeat("c1", "g", {"t": "b"})
        answer = await it.peer.pull("g", "t", 0, 0, sys_flag=0, subscription=None)
        assert bodies_in(answer) == [b"b"]
        newer = await it.peer.pull("g", "t", 0, 0, sys_flag=0, subscription=None, version=2)
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


# -- the disk --------------------------------------------------------------------------------------


async def test_uncached_messages_are_prefetched_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[int, bool]] = []
    fetch, loop_thread = disk_prefetch.prefetch_next, threading.get_ident()

    def fetching(
        store: MessageStore, topic: str, queue_id: int, queue_offset: int, count: int, *_: object
    ) -> bool:
        fetched.append((queue_offset, threading.get_ident() == loop_thread))
        return fetch(store, topic, queue_id, queue_offset, count)

    monkeypatch.setattr(disk_prefetch, "HOT_BYTES", 100_000)
    monkeypatch.setattr(disk_prefetch, "prefetch_next", fetching)
    monkeypatch.setattr(disk_prefetch, "_NEXT_COUNT", 8)
    async with cluster(tmp_path, mappedFileSizeCommitLog=4 << 20) as it:
        store = it.broker.store
        assert store is not None
        for number in range(300):
            await it.peer.send("t", b"%4000d" % number)
        found: list[bytes] = []
        while len(found) < 300:
            # Before each pull, because the system reads ahead.
            if not drop_log_from_cache(store):
                pytest.skip("this file system keeps everything in memory")
            answer = await it.peer.pull("g", "t", 0, len(found), count=8)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            found += bodies_in(answer)
    assert [int(body) for body in found] == list(range(300))
    assert {in_loop for _, in_loop in fetched} == {False}
    # The first pull goes to a handler, later ones would use the fast path.
    queue_offsets = [queue_offset for queue_offset, _ in fetched]
    assert queue_offsets == list(range(0, 8 * len(queue_offsets), 8))
    assert 160 < queue_offsets[-1] < 276, "what came last is hot"


@pytest.mark.parametrize("pure", [False, True])
async def test_limits_depend_on_what_is_in_memory_and_not_on_its_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pure: bool
) -> None:
    monkeypatch.setattr(disk_prefetch, "HOT_BYTES", 0)
    if pure:
        monkeypatch.setattr(kernel, "new_feed", lambda: None)
    # By RocketMQ's rule every message of this broker is too old to be in memory.
    async with cluster(tmp_path, accessMessageInMemoryMaxRatio=0) as it:
        store = it.broker.store
        assert store is not None
        for number in range(120):
            await it.peer.send("small", b"%500d" % number)
        for number in range(20):
            await it.peer.send("large", b"%40000d" % number)
        assert await pulled_counts(it.peer, "small", 120) == [32, 32, 32, 24]
        assert await pulled_counts(it.peer, "large", 20) == [6, 6, 6, 2], "256 KiB"
        # The fast path serves these.
        assert await pulled_counts(it.peer, "small", 120) == [32, 32, 32, 24]
        assert await pulled_counts(it.peer, "large", 20) == [6, 6, 6, 2]
        if not drop_log_from_cache(store):
            pytest.skip("this file system keeps everything in memory")
        # A thread reads them from the disk, and more than the first pull returns.
        assert await pulled_counts(it.peer, "small", 120) == [8, 32, 32, 32, 16]
        assert drop_log_from_cache(store)
        assert await pulled_counts(it.peer, "large", 20) == [1, 6, 6, 6, 1], "64 KiB"


async def pulled_counts(peer: Peer, topic: str, count: int) -> list[int]:
    """How many messages each pull returns, from the start of a queue."""
    counts: list[int] = []
    while sum(counts) < count:
        answer = await peer.pull("g", topic, 0, sum(counts))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        counts.append(len(bodies_in(answer)))
    return counts


def drop_log_from_cache(store: MessageStore) -> bool:
    """Drop the log from the page cache; returns whether that worked."""
    store.flush()
    file = store.log.segments.files[0]
    file.release(0, file.size_bytes)
    with file.path.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return not file.is_cached(0, store.end_log_offset)


# -- offsets ---------------------------------------------------------------------------------------


async def test_invalid_offsets_are_corrected(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for _ in range(3):
            await it.peer.send("t", b"x")
        for asked, code, remark, following in (
            (0, ResponseCode.SUCCESS, "FOUND", "3"),
            (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", "3"),
            (99, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", "3"),
            (-5, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", "0"),
        ):
            answer = await it.peer.pull("g", "t", 0, asked)
            assert (answer.code, answer.remark) == (code, remark)
            assert answer.fields["nextBeginOffset"] == following
            assert (answer.fields["minOffset"], answer.fields["maxOffset"]) == ("0", "3")
            assert answer.fields["suggestWhichBrokerId"] == "0"
        empty = await it.peer.pull("g", "t", 1, 0)
        assert empty.code == ResponseCode.PULL_NOT_FOUND
        moved = await it.peer.pull("g", "t", 1, 7)
        assert (moved.code, moved.fields["nextBeginOffset"]) == (
            ResponseCode.PULL_OFFSET_MOVED, "0",
        )  # fmt: skip


async def test_offsets_committed_by_pulls_are_returned_by_queries(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for _ in range(3):
            await it.peer.send("t", b"x")
        await it.peer.pull("g", "t", 0, 3, sys_flag=5, commit_offset=2)
        where = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
        found = await it.peer.expect(RequestCode.QUERY_CONSUMER_OFFSET, where)
        assert found.fields["offset"] == "2"
        update = where | {"commitOffset": "1"}
        await it.peer.expect(RequestCode.UPDATE_CONSUMER_OFFSET, update)
        found = await it.peer.expect(RequestCode.QUERY_CONSUMER_OFFSET, where)
        assert found.fields["offset"] == "1"
        fresh = await it.peer.expect(
            RequestCode.QUERY_CONSUMER_OFFSET, where | {"consumerGroup": "new"}
        )
        assert fresh.fields["offset"] == "0", "a new group begins a short queue at its beginning"
        strict = where | {"consumerGroup": "new", "setZeroIfNotFound": "false"}
        answer = await it.peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, strict)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_min_and_max_offsets_and_search_by_time(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for _ in range(3):
            await it.peer.send("t", b"x")
        messages = messages_in(await it.peer.pull("g", "t", 0, 0))
        queue = {"topic": "t", "queueId": "0"}
        asked = (
            (RequestCode.GET_MIN_OFFSET, queue, "offset", 0),
            (RequestCode.GET_MAX_OFFSET, queue, "offset", 3),
            (RequestCode.GET_EARLIEST_MSG_STORETIME, queue, "timestamp", messages[0].store_time_ms),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": "0"}, "offset", 0),
            (
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                queue | {"timestamp": str(messages[-1].store_time_ms + 1)},
                "offset",
                3,
            ),
            (RequestCode.GET_MAX_OFFSET, {"topic": "none", "queueId": "0"}, "offset", 0),
            (
                RequestCode.GET_EARLIEST_MSG_STORETIME,
                {"topic": "none", "queueId": "0"},
                "timestamp",
                -1,
            ),
        )
        for code, fields, name, expected in asked:
            answer = await it.peer.expect(code, fields)
            assert answer.fields[name] == str(expected), RequestCode(code).name


async def test_offsets_topics_and_groups_survive_a_restart(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("kept", b"1")
        await it.peer.heartbeat("c1", "g", {"kept": "*"})
        update = {"consumerGroup": "g", "topic": "kept", "queueId": "0", "commitOffset": "1"}
        await it.peer.expect(RequestCode.UPDATE_CONSUMER_OFFSET, update)
    async with cluster(tmp_path, autoCreateTopicEnable="false") as it:
        assert it.broker.offsets.find("g", "kept", 0) == 1
        assert it.broker.groups.get("g") is not None
        assert it.broker.topics.get("%RETRY%g") is not None
        assert (await it.peer.send("kept", b"2")).fields["queueOffset"] == "1"
        assert bodies_in(await it.peer.pull("g", "kept", 0, 0)) == [b"1", b"2"]


# -- waiting ---------------------------------------------------------------------------------------


async def test_parked_pull_gets_the_message_when_it_arrives(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as sender:
        await sender.send("t", b"0")
        for number in range(1, 4):
            held = asyncio.create_task(
                it.peer.pull("g", "t", 0, number, sys_flag=HOLD, suspend_ms=15_000)
            )
            await eventually(lambda: len(it.broker.parked) == 1, "parked")
            await sender.send("t", b"%d" % number)
            answer = await held
            assert bodies_in(answer) == [b"%d" % number]
            assert answer.fields["nextBeginOffset"] == str(number + 1)
        assert len(it.broker.parked) == 0


async def test_parked_pull_is_answered_at_its_timeout(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"0")
        started = time.monotonic()
        answer = await it.peer.pull("g", "t", 0, 1, sys_flag=HOLD, suspend_ms=300)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        # The event loop rounds to milliseconds.
        assert time.monotonic() - started >= 0.29


async def test_parked_pull_ignores_messages_that_its_filter_rejects(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as sender:
        await sender.send("t", b"0")
        held = asyncio.create_task(
            it.peer.pull("g", "t", 0, 1, sys_flag=HOLD, suspend_ms=15_000, subscription="wanted")
        )
        await eventually(lambda: len(it.broker.parked) == 1, "parked")
        (parked,) = it.broker.parked.waiting(("t", 0))
        for _ in range(3):
            await sender.send("t", b"no", props={"TAGS": "unwanted"})
        await eventually(lambda: parked.queue_offset == 4, "moved on")
        assert not held.done()
        await sender.send("t", b"yes", props={"TAGS": "wanted"})
        answer = await held
        assert bodies_in(answer) == [b"yes"]
        assert answer.fields["nextBeginOffset"] == "5"


@pytest.mark.parametrize("count", [20, 600])
async def test_several_pulls_are_parked_for_one_queue(tmp_path: Path, count: int) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as sender:
        await sender.send("t", b"0")
        held = [
            asyncio.create_task(
                it.peer.pull(f"g{number}", "t", 0, 1, sys_flag=HOLD, suspend_ms=15_000)
            )
            for number in range(count)
        ]
        await eventually(lambda: len(it.broker.parked) == count, "parked")
        await sender.send("t", b"1")
        assert [bodies_in(answer) for answer in await asyncio.gather(*held)] == [[b"1"]] * count
        assert len(it.broker.parked) == 0


async def test_without_long_polling_pulls_are_parked_for_the_short_time(tmp_path: Path) -> None:
    async with cluster(tmp_path, longPollingEnable="false", shortPollingTimeMills=100) as it:
        await it.peer.send("t", b"0")
        answer = await it.peer.pull(
            "g", "t", 0, 1, sys_flag=HOLD, suspend_ms=60_000, timeout_ms=10_000
        )
        assert answer.code == ResponseCode.PULL_NOT_FOUND


async def test_without_long_polling_messages_are_delivered_after_the_short_time(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, longPollingEnable="false", shortPollingTimeMills=1_000) as it:
        await it.peer.send("t", b"0")
        async with peer_of(it.broker.address) as other:
            held = asyncio.create_task(
                other.pull("g", "t", 0, 1, sys_flag=HOLD, suspend_ms=600_000)
            )
            await eventually(lambda: len(it.broker.parked) == 1, "parked")
            await it.peer.send("t", b"1")
            await it.peer.pull("h", "t", 0, 0)
            assert len(it.broker.parked) == 1, "the message has not ended its time"
            assert bodies_in(await held) == [b"1"]


async def test_pulls_above_the_limit_are_answered_instead_of_parked(tmp_path: Path) -> None:
    async with cluster(tmp_path, maxParkedPulls=1) as it:
        await it.peer.send("t", b"0")
        held = asyncio.create_task(it.peer.pull("g", "t", 0, 1, sys_flag=HOLD, suspend_ms=15_000))
        await eventually(lambda: len(it.broker.parked) == 1, "parked")
        answer = await it.peer.pull("h", "t", 0, 1, sys_flag=HOLD, suspend_ms=15_000)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        await it.peer.send("t", b"1")
        assert bodies_in(await held) == [b"1"]


async def test_closed_connection_removes_its_parked_pulls(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"0")
        async with peer_of(it.broker.address) as short_lived:
            fields = pull_fields("g", "t", 0, 1, sys_flag=HOLD, suspend_ms=15_000)
            connection = await short_lived.client.connect(it.broker.address)
            connection.send(Command(code=RequestCode.PULL_MESSAGE, opaque=9, ext_fields=fields))
            await eventually(lambda: len(it.broker.parked) == 1, "parked")
        await eventually(lambda: len(it.broker.parked) == 0, "gone with its connection")


async def test_stop_answers_parked_pulls(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await it.peer.send("t", b"0")
        held = asyncio.create_task(it.peer.pull("g", "t", 0, 1, sys_flag=HOLD, suspend_ms=60_000))
        await eventually(lambda: len(it.broker.parked) == 1, "parked")
        stop = asyncio.create_task(it.broker.stop())
        assert (await held).code == ResponseCode.PULL_NOT_FOUND
        await stop


@pytest.mark.parametrize("enabled", ["true", "false"])
async def test_lite_pulls_can_be_switched_off(tmp_path: Path, enabled: str) -> None:
    async with cluster(tmp_path, litePullMessageEnable=enabled) as it:
        await it.peer.send("t", b"0")
        answer = await it.peer.ask(RequestCode.LITE_PULL_MESSAGE, pull_fields("g", "t", 0, 0))
        if enabled == "true":
            assert bodies_in(answer) == [b"0"]
        else:
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "litePullMessageEnable" in (answer.remark or "")
