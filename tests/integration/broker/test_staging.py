"""A broker with a staging pool: messages are delivered once they are committed."""

import asyncio
from pathlib import Path

from tests.support.brokers import Cluster, bodies_in, cluster, eventually

from tianzhou.protocol.codes import RequestCode

HOLD = 6


async def max_offset(it: Cluster) -> int:
    answer = await it.peer.expect(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"})
    return int(answer.fields["offset"])


async def test_parked_pull_gets_committed_messages(tmp_path: Path) -> None:
    settings = {"transientStorePoolEnable": "true", "transientStorePoolSize": 2}
    async with cluster(tmp_path, commitIntervalCommitLog=20, **settings) as it:
        await it.peer.send("t", b"0")

        async def is_committed() -> bool:
            return await max_offset(it) == 1

        await eventually(is_committed, "the commit of the first message")
        held = asyncio.create_task(it.peer.pull("g", "t", 0, 1, sys_flag=HOLD, suspend_ms=15_000))
        await eventually(lambda: len(it.broker.parked) == 1, "parked")
        await it.peer.send("t", b"1")
        assert bodies_in(await held) == [b"1"]
        for number in range(2, 50):
            await it.peer.send("t", b"%d" % number)
    async with cluster(tmp_path, **settings) as it:
        assert await max_offset(it) == 50
        bodies = bodies_in(await it.peer.pull("g", "t", 0, 20, count=30))
        assert bodies == [b"%d" % number for number in range(20, 50)]
