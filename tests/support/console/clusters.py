"""A console that shows a real cluster, and messages on it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.console.clients import ConsoleUnderTest
from tianzhou.admin import Admin
from tianzhou.admin.message_search import Limits, search_page
from tianzhou.clock import wall_ms
from tianzhou.console.jobs.kinds import KINDS
from tianzhou.console.jobs.worker import Worker
from tianzhou.console.messages.letters import topic_of
from tianzhou.console.settings import ClusterSettings, ConsoleSettings
from tianzhou.message import Message
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.headers.send import ConsumerSendMsgBackRequest
from tianzhou.protocol.records.message_id import decode_offset_id, offset_id_of

_DEADLINE_S = 60.0


@asynccontextmanager
async def console_of(folder: Path, namesrv: str) -> AsyncGenerator[ConsoleUnderTest]:
    """A console of one cluster, "main", with an administrator and a reader."""
    settings = ConsoleSettings(clusters=(ClusterSettings(name="main", namesrv=namesrv),))
    console = ConsoleUnderTest(folder, settings)
    console.now_ms = wall_ms()
    await console.add("ada", is_admin=True)
    await console.add("rita")
    try:
        yield console
    finally:
        await console.close()


def admin_of(console: ConsoleUnderTest) -> Admin:
    return console.console.clusters["main"].admin


async def run_jobs(console: ConsoleUnderTest) -> None:
    """Run the jobs that wait, as the worker of a running console does."""
    worker = Worker(console.console, KINDS)
    while await worker.run_one():
        pass


async def add_dead_letters(
    admin: Admin, group: str, bodies: list[bytes], *, origin: str = "orders", retry_max: int = 16
) -> list[str]:
    """Have the broker make dead letters of new messages, as a consumer does that gives up.

    Returns their offset ids, the oldest first.
    """
    (broker,) = await admin.clusters.brokers(masters=True)
    await admin.groups.put(
        broker, SubscriptionGroupConfig(group_name=group, retry_max_times=retry_max)
    )
    retry = f"%RETRY%{group}"
    await admin.topics.put(
        broker, TopicConfig(topic_name=retry, read_queue_count=1, write_queue_count=1)
    )
    for number, body in enumerate(bodies):
        message = Message(origin, body, tags="paid", keys=(f"key-{number}",))
        sent = await admin.messages.send(message)
        _, log_offset = decode_offset_id(sent.offset_id)
        header = ConsumerSendMsgBackRequest(
            log_offset=log_offset, group=group, delay_level=-1, origin_topic=origin,
            origin_msg_id=sent.message_id, max_reconsume_times=retry_max,
        )  # fmt: skip
        await admin.requests.request(broker, RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert not await admin.topics.await_route(retry, [broker])
    if not bodies:
        return []
    assert not await admin.topics.await_route(topic_of(group), [broker])
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            ids = await _letters(admin, group)
            # Apache's brokers write the queue after the message.
            if len(ids) >= len(bodies):
                return ids
            await asyncio.sleep(0.1)


async def _letters(admin: Admin, group: str) -> list[str]:
    queues = await admin.messages.read_queues(topic_of(group))
    found = await search_page(
        admin, queues, 0, 2**62, newest_first=False, limits=Limits(shown_max=10_000)
    )
    return [offset_id_of(message) for _, message in found.messages]
