"""Offset resets that consumers receive with their next pull, as in RocketMQ 5.x."""

import asyncio
from pathlib import Path

from tests.integration.broker.test_locks_replies_queries import filled, reset
from tests.support.brokers import Cluster, bodies_in, cluster, eventually, peer_of
from tests.support.pop import ack, pop

from tianzhou.protocol.codes import RequestCode, ResponseCode


async def move(it: Cluster, **changes: str) -> None:
    await it.peer.expect(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(**changes))


async def commit(it: Cluster, queue_offset: int) -> str | None:
    answer = await it.peer.expect(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {
            "consumerGroup": "g", "topic": "t", "queueId": "0",
            "commitOffset": str(queue_offset),
        },
    )  # fmt: skip
    return answer.remark


async def test_next_pull_returns_the_new_offset_and_earlier_commits_are_ignored(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as it:
        await filled(it)
        await it.peer.pull("g", "t", 0, 0)  # from now on pulls are answered by the fast path
        await move(it, queueId="0", offset="1")
        assert await commit(it, 3) == "Offset has been previously reset"
        assert it.broker.offsets.find("g", "t", 0) == 1
        # Commits by a pull (sysFlag 1) are ignored, too.
        moved = await it.peer.pull("g", "t", 0, 2, sys_flag=5, commit_offset=2)
        assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        assert moved.fields["nextBeginOffset"] == "1"
        assert it.broker.offsets.find("g", "t", 0) == 1
        again = await it.peer.pull("g", "t", 0, 1)
        assert bodies_in(again) == [b"1", b"2"], "reported once"
        assert await commit(it, 3) is None
        assert it.broker.offsets.find("g", "t", 0) == 3


async def test_reset_is_reported_for_each_queue(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await filled(it)
        for number in range(3):
            await it.peer.send("t", b"%d" % number, queue_id=1)
        for queue_id in (0, 1):
            await it.peer.pull("g", "t", queue_id, 0)
        await move(it)
        response = await it.peer.pull("g", "t", 0, 3)
        assert response.code == ResponseCode.PULL_OFFSET_MOVED
        for _ in range(2):
            assert (await it.peer.pull("g", "t", 0, 0)).code == ResponseCode.SUCCESS
        late = await it.peer.pull("g", "t", 1, 1)
        assert (late.code, late.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "0")


async def test_parked_pull_is_answered_at_a_reset(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as other:
        await filled(it)
        await it.peer.heartbeat("c", "g", {"t": "*"})
        waiting = asyncio.create_task(it.peer.pull("g", "t", 0, 3, sys_flag=6, suspend_ms=30_000))
        await eventually(lambda: len(it.broker.parked) == 1, "a parked pull")
        await other.expect(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset())
        answer = await waiting
        assert (answer.code, answer.fields["nextBeginOffset"]) == (
            ResponseCode.PULL_OFFSET_MOVED, "0",
        )  # fmt: skip


async def test_pull_at_the_new_offset_is_served(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await filled(it)
        await move(it, queueId="0", offset="2")
        assert bodies_in(await it.peer.pull("g", "t", 0, 2)) == [b"2"]
        assert await commit(it, 3) is None


async def test_acknowledgement_does_not_undo_a_reset_for_pops(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for number in range(3):
            await it.peer.send("t", b"%d" % number)
        first = await pop(it.peer, queue_id=0)
        assert [each.body for each in first] == [b"0", b"1", b"2"]
        await move(it, queueId="0", offset="1")
        assert (await ack(it.peer, first[0])).code == ResponseCode.SUCCESS
        again = await pop(it.peer, queue_id=0)
        assert [each.body for each in again] == [b"1", b"2"]


async def test_each_broadcasting_consumer_gets_the_reset(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await filled(it)
        await it.peer.heartbeat("c", "g", {"t": "*"}, model="BROADCASTING")
        await move(it, queueId="0", offset="1")
        await eventually(
            lambda: (
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET in [each.code for each in it.peer.pushed]
            ),
            "the reset",
        )
        assert (await it.peer.pull("g", "t", 0, 2)).code == ResponseCode.SUCCESS
