"""Our consumers with a master of Apache's and its slave: they follow the suggested broker id.

The master treats all messages as cold, so it redirects pulls to the slave; and when
the master is stopped, only the slave serves.
"""

import asyncio
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import pytest

from tests.support.apache.backends import until
from tests.support.apache.servers import Server, apache_broker, tianzhou_namesrv
from tests.support.brokers import Peer, peer_of
from tianzhou.client import Message, Producer, PushConsumer, Queue, QueueReader, ReceivedMessage
from tianzhou.names import MASTER_ID
from tianzhou.protocol.codes import RequestCode, ResponseCode

VERSION = "5.5.0"
TOPIC = "Copied"
GROUP = "pair-consumers"
COUNT = 400
SLAVE_ID = 1


@dataclass(slots=True)
class Pair:
    """A master with its slave."""

    namesrv: str
    slave: Server
    master: ExitStack
    """Closing it kills the master."""


@pytest.fixture(scope="module")
def pair() -> Generator[Pair]:
    with (
        ExitStack() as master,
        tianzhou_namesrv() as namesrv,
    ):
        master.enter_context(broker_of(namesrv.address, "ASYNC_MASTER", MASTER_ID))
        with broker_of(namesrv.address, "SLAVE", SLAVE_ID) as slave:
            yield Pair(namesrv.address, slave, master)


def broker_of(namesrv: str, role: str, broker_id: int) -> AbstractContextManager[Server]:
    return apache_broker(
        VERSION, namesrv, graceful=False, brokerRole=role, brokerId=broker_id,
        slaveReadEnable="true", accessMessageInMemoryMaxRatio=0,
    )  # fmt: skip


class Slow:
    """Handles messages one by one, and pauses after some until it is released."""

    def __init__(self, count: int) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.stop_count = count
        self.stopped, self.go_on = asyncio.Event(), asyncio.Event()

    async def take(self, message: ReceivedMessage) -> None:
        self.seen.add((message.queue_id, message.queue_offset))
        if len(self.seen) >= self.stop_count:
            self.stopped.set()
            await self.go_on.wait()


async def test_pulls_are_redirected_to_the_slave(pair: Pair) -> None:
    async with Producer("to-pair", namesrv=pair.namesrv) as producer:
        await producer.send(TOPIC, b"first")
        futures = [await producer.submit(Message(TOPIC, f"{at}")) for at in range(COUNT - 1)]
        results = await asyncio.gather(*futures)
        queue: Queue = results[0].queue
    async with QueueReader("readers", namesrv=pair.namesrv) as reader:

        async def suggested() -> int:
            return (await reader.pull(queue, 0, message_count=1)).suggested_broker_id

        # The master suggests the slave to lagging consumers; so does the slave, once in sync.
        await until(suggested, lambda broker_id: broker_id == SLAVE_ID)
        slow = Slow(COUNT // 4)
        consumer = PushConsumer(
            GROUP, namesrv=pair.namesrv, start="first", pull_batch_size=4,
            queue_messages_max=8, consume_threads=1, rebalance_ms=1_000, poll_namesrv_ms=1_000,
            persist_offsets_ms=500, pull_error_pause_ms=500, api_timeout_ms=10_000,
        )  # fmt: skip
        consumer.subscribe(TOPIC, slow.take)
        async with consumer:
            await asyncio.wait_for(slow.stopped.wait(), 120)
            queues = await reader.queues(TOPIC)
            async with peer_of(pair.slave.address) as slave:
                await until(lambda: copied_count(slave, queues), lambda count: count == COUNT)
            await asyncio.to_thread(pair.master.close)
            slow.go_on.set()

            async def seen_count() -> int:
                return len(slow.seen)

            await until(seen_count, lambda count: count == COUNT)
            pulled = await reader.pull(queue, 0)
            assert pulled.messages[0].queue_offset == 0
            # Offsets are committed to the slave when the new route is known; the next consumer
            # would start there.
            async with QueueReader(GROUP, namesrv=pair.namesrv) as of_group:

                async def committed_count() -> int:
                    return sum([await of_group.committed(each) or 0 for each in queues])

                await until(committed_count, lambda count: count == COUNT)


async def copied_count(slave: Peer, queues: list[Queue]) -> int:
    """The number of messages on the slave; -1 while it does not have the topic."""
    known = await slave.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})
    if known.code != ResponseCode.SUCCESS:
        return -1
    count = 0
    for queue in queues:
        fields = {"topic": TOPIC, "queueId": str(queue.queue_id)}
        answer = await slave.ask(RequestCode.GET_MAX_OFFSET, fields)
        count += int(answer.fields["offset"])
    return count
