"""The order of requests when consumers join and leave."""

import asyncio
from pathlib import Path

import pytest
from tests.support.brokers import eventually
from tests.support.recording_server import Recorded, recorded_broker

from tianzhou.client import PushConsumer, ReceivedMessage

TOPIC, RETRIES = "lives", "%RETRY%living"
JOINING = (
    "GET_ROUTEINFO_BY_TOPIC", "HEART_BEAT", "GET_CONSUMER_LIST_BY_GROUP", "QUERY_CONSUMER_OFFSET",
    "PULL_MESSAGE",
)  # fmt: skip
PULL_COUNT = 3
LOCK, UNLOCK, COMMIT = "LOCK_BATCH_MQ", "UNLOCK_BATCH_MQ", "UPDATE_CONSUMER_OFFSET"


class Slow:
    """A handler that ends on request, and the log of events before and after."""

    def __init__(self, it: Recorded) -> None:
        self._it = it
        self.may_end = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self._it.log.append("handler begins")
        await self.may_end.wait()
        self._it.log.append("handler ends")


async def begin_to_close(it: Recorded, consumer: PushConsumer) -> "asyncio.Task[None]":
    """Start a consumer, send it a message, and begin to close it while the handler runs."""
    await consumer.start()
    await it.broker.send(TOPIC, b"one")
    await eventually(lambda: "handler begins" in it.log, "the message")
    # The message, what comes behind it, and retries: what was asked for before is on its way.
    await eventually(lambda: it.log.count("PULL_MESSAGE") >= PULL_COUNT, "every queue is asked")
    it.log.append("close begins")
    return asyncio.create_task(consumer.close())


@pytest.mark.parametrize("ordered", [False, True])
async def test_consumer_joins_before_pulling_and_leaves_after_saving_offsets(
    tmp_path: Path, ordered: bool
) -> None:
    async with recorded_broker(tmp_path, TOPIC, RETRIES) as it:
        consumer = PushConsumer("living", namesrv=it.namesrv, start="first", ordered=ordered)
        handler = Slow(it)
        consumer.subscribe(TOPIC, handler)
        closing = await begin_to_close(it, consumer)
        handler.may_end.set()
        await closing

        joining = [*JOINING[:3], *([LOCK] if ordered else []), *JOINING[3:]]
        places = [it.first(name) for name in joining]
        assert places == sorted(places), it.log
        end = it.log[it.first("close begins") :]
        assert "PULL_MESSAGE" not in end
        assert end.index("handler ends") < end.index(COMMIT) < end.index("UNREGISTER_CLIENT")
        if ordered:
            assert end.index(COMMIT) < end.index(UNLOCK) < end.index("UNREGISTER_CLIENT")
        assert end[-1] == "UNREGISTER_CLIENT"


async def test_a_subscription_by_sql_is_checked_before_the_group_is_joined(tmp_path: Path) -> None:
    async with recorded_broker(tmp_path, TOPIC, RETRIES) as it:
        consumer = PushConsumer("living", namesrv=it.namesrv)
        consumer.subscribe(TOPIC, lambda message: None, sql="a = 1")
        async with consumer:
            pass
        route, check = it.first("GET_ROUTEINFO_BY_TOPIC"), it.first("CHECK_CLIENT_CONFIG")
        assert route < check < it.first("HEART_BEAT")


async def test_locks_are_renewed_while_a_closing_consumer_waits_for_its_handler(
    tmp_path: Path,
) -> None:
    """A lock expires after 60 s; handlers may run longer."""
    async with recorded_broker(tmp_path, TOPIC, RETRIES) as it:
        consumer = PushConsumer(
            "living", namesrv=it.namesrv, start="first", ordered=True, lock_ms=10,
            close_timeout_ms=600_000,
        )  # fmt: skip
        handler = Slow(it)
        consumer.subscribe(TOPIC, handler)
        closing = await begin_to_close(it, consumer)
        began = it.first("close begins")
        # One request may have been on its way when closing began.
        await eventually(lambda: it.log[began:].count(LOCK) >= 3, "renewals after close began")
        assert UNLOCK not in it.log
        handler.may_end.set()
        await closing
        assert LOCK not in it.log[it.first(UNLOCK) :]
