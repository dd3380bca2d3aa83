"""Whatever a broker does at a time follows the clock of the testing kit.

All times here are longer than any test lasts: what comes, comes because the clock was put forward.
"""

import asyncio
from datetime import timedelta

from tests.support.brokers import eventually, peer_of

from tianzhou.client import (
    Later,
    Message,
    PushConsumer,
    QueueReader,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.testing import Cluster

LEVEL_OF_AN_HOUR = 17
HOURS_LATER_S = 3 * 3600


class Undecided:
    """Leaves a transaction open until the broker asks."""

    def execute(self, message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


async def test_what_waits_for_its_time_comes_when_the_clock_is_put_forward() -> None:
    seen: list[str] = []

    def handle(message: ReceivedMessage) -> Later | None:
        seen.append(message.text)
        is_first = message.text == "retried" and not message.reconsume_times
        return Later(LEVEL_OF_AN_HOUR) if is_first else None

    async with Cluster(topics={"t": 1}, transactionCheckInterval=600_000) as cluster:
        namesrv = cluster.namesrv_address
        consumer = PushConsumer("g", namesrv=namesrv, start="first", persist_offsets_ms=20)
        consumer.subscribe("t", handle)
        async with (
            TransactionProducer("p", Undecided(), namesrv=namesrv) as producer,
            QueueReader("g", namesrv=namesrv) as reader,
            consumer,
            peer_of(cluster.broker_addresses["broker-0"]) as broker,
        ):
            retried = await producer.send("t", b"retried")
            await producer.send("t", b"delayed", delay_level=LEVEL_OF_AN_HOUR)
            await producer.send("t", b"timed", delay=timedelta(hours=2).total_seconds())
            await producer.send_in_transaction(Message("t", b"checked"))

            async def is_sent_back() -> bool:
                return await reader.committed(retried.queue) == 1

            async def producer_is_known() -> bool:
                answer = await broker.ask(
                    RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p", "topic": "t"}
                )
                return answer.code == ResponseCode.SUCCESS

            await eventually(is_sent_back, "the offset behind the message that is sent back")
            await eventually(producer_is_known, "a producer that can be asked")
            assert seen == ["retried"]
            await asyncio.to_thread(cluster.advance, seconds=HOURS_LATER_S)
            expected = ["checked", "delayed", "retried", "retried", "timed"]
            await eventually(lambda: sorted(seen) == expected, f"all of them, not {seen}")
