"""Consumer tests for any broker: the same functions run against ours and against Apache's.

A scenario gets a `Site`, a cluster whose delay levels are all one second, and makes topics and
groups of its own in it. It waits for conditions and checks the state of consumers and brokers.
"""

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import CoroutineType
from typing import Unpack

import pytest

from tests.support.brokers import DEADLINE_S, Peer, eventually
from tianzhou.client.consumer.callbacks import Decision, Later
from tianzhou.client.consumer.lite_pull import LitePullConsumer, QueueReader
from tianzhou.client.consumer.push import PushConsumer
from tianzhou.client.group.settings import PushOptions
from tianzhou.client.message import ReceivedMessage
from tianzhou.client.queues import Queue
from tianzhou.errors import BrokerError, ClientClosed, ConfigError
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.clients import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from tianzhou.protocol.bodies.offsets import ConsumerStatusBody
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command

Scenario = Callable[["Site"], Awaitable[None]]

_numbers = itertools.count()


@dataclass(slots=True)
class Site:
    """A cluster with one broker."""

    namesrv: str
    peer: Peer
    folder: Path
    broker_name: str
    tells_unknown_groups: bool = True
    """4.9 returns offset 0 for an unknown group, for any request."""

    def name(self, kind: str) -> str:
        """A unique name."""
        return f"{kind}-{os.getpid()}-{next(_numbers)}"

    async def topic(self, queue_count: int = 4) -> str:
        """A new topic."""
        topic = self.name("topic")
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queue_count),
            "writeQueueNums": str(queue_count), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        await self.peer.expect(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        await eventually(lambda: self.has_route(topic), f"route of {topic}")
        return topic

    async def has_route(self, topic: str) -> bool:
        answer = await self.peer.client.request(
            self.namesrv, _command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        )
        return answer.code == 0

    async def send(self, topic: str, count: int, *, start: int = 0, queues: int = 4) -> list[str]:
        """Send numbered messages to the queues round robin; returns the bodies."""
        bodies_sent = [f"{topic}/{number}" for number in range(start, start + count)]
        for number, body in enumerate(bodies_sent, start):
            await self.send_one(topic, body, number % queues)
        return bodies_sent

    async def dispatched(self, topic: str, counts: list[int]) -> None:
        """Wait until the queues have these counts; Apache's brokers add messages a bit later."""

        async def is_so() -> bool:
            async with QueueReader("readers", namesrv=self.namesrv) as reader:
                queues = [Queue(topic, self.broker_name, each) for each in range(len(counts))]
                return [await reader.max_offset(each) for each in queues] == counts

        await eventually(is_so, f"{counts} messages in the queues of {topic}")

    async def send_one(self, topic: str, body: str, queue_id: int = 0, **props: str) -> None:
        answer = await self.peer.send(topic, body.encode(), queue_id=queue_id, props=props)
        assert answer.code == 0, (answer.code, answer.remark)

    async def committed(self, group: str, topic: str, queues: int = 4) -> list[int | None]:
        """The committed offsets of a group."""
        async with QueueReader(group, namesrv=self.namesrv) as reader:
            return [
                await reader.committed(Queue(topic, self.broker_name, queue_id))
                for queue_id in range(queues)
            ]

    async def read_all(self, topic: str, queues: int = 1) -> list[ReceivedMessage]:
        """The current messages of a topic."""
        found: list[ReceivedMessage] = []
        async with QueueReader("readers", namesrv=self.namesrv) as reader:
            for queue_id in range(queues):
                queue = Queue(topic, self.broker_name, queue_id)
                found += (await reader.pull(queue, await reader.min_offset(queue))).messages
        return found

    async def dead_letters(self, group: str) -> list[ReceivedMessage]:
        """Wait until a group has some."""
        found: list[ReceivedMessage] = []

        async def has_dead_letter() -> bool:
            if await self.has_route(f"%DLQ%{group}"):
                found[:] = await self.read_all(f"%DLQ%{group}")
            return bool(found)

        await eventually(has_dead_letter, "a dead letter")
        return found


def _command(code: int, fields: dict[str, str]) -> Command:
    return Command(code=code, ext_fields=fields)


@dataclass(slots=True)
class Inbox:
    """The messages that handlers received."""

    messages: list[ReceivedMessage] = field(default_factory=list[ReceivedMessage])

    @property
    def texts(self) -> list[str]:
        return [each.text for each in self.messages]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.texts)

    async def holds(self, expected: list[str]) -> None:
        """Wait until exactly these were received, each once."""
        await eventually(
            lambda: len(self.messages) >= len(expected),
            f"{len(expected)} messages",
        )
        assert self.counts == Counter(expected)


@asynccontextmanager
async def consuming(
    site: Site, group: str, topic: str, inbox: Inbox, **options: Unpack[PushOptions]
) -> AsyncGenerator[PushConsumer]:
    """A consumer whose async handler records all messages."""
    options.setdefault("start", "first")
    options["namesrv"] = site.namesrv
    consumer = PushConsumer(group, **options)

    @consumer.handler(topic)
    async def keep(message: ReceivedMessage) -> None:
        inbox.messages.append(message)

    async with consumer:
        yield consumer


# -- in any order ----------------------------------------------------------------------------------


async def both_kinds_of_handlers_get_every_message_once(site: Site) -> None:
    first, second, group = await site.topic(), await site.topic(), site.name("group")
    sent = await site.send(first, 20) + await site.send(second, 20)
    inbox = Inbox()
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first")

    @consumer.handler(first)
    async def keep_async(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        inbox.messages.append(message)

    @consumer.handler(second)
    def keep_sync(message: ReceivedMessage) -> bool:
        inbox.messages.append(message)
        return True

    async with consumer:
        await inbox.holds(sent)
        more = await site.send(first, 4, start=20)
        await inbox.holds(sent + more)
    assert await site.committed(group, first) == [6] * 4
    assert await site.committed(group, second) == [5] * 4
    assert inbox.messages[0].topic in (first, second)


async def a_second_start_goes_on_where_the_first_ended(site: Site) -> None:
    topic, group, inbox = await site.topic(), site.name("group"), Inbox()
    async with consuming(site, group, topic, inbox):
        await inbox.holds(await site.send(topic, 8))
    more = await site.send(topic, 8, start=8)
    later = Inbox()
    async with consuming(site, group, topic, later, start="last"):
        await later.holds(more)


async def the_start_is_the_first_or_a_time(site: Site) -> None:
    topic = await site.topic(1)
    old = await site.send(topic, 3, queues=1)
    await asyncio.sleep(0.05)
    moment = datetime.now(UTC)
    await asyncio.sleep(0.05)
    middle = await site.send(topic, 3, start=3, queues=1)
    await site.dispatched(topic, [6])
    first, timed = Inbox(), Inbox()
    async with (
        consuming(site, site.name("group"), topic, first, start="first"),
        consuming(site, site.name("group"), topic, timed, start=moment),
    ):
        await first.holds(old + middle)
        await timed.holds(middle if site.tells_unknown_groups else old + middle)


async def tags_are_compared_by_their_text(site: Site) -> None:
    topic, inbox = await site.topic(1), Inbox()
    # The Java hash of these two is the same, so the broker returns both.
    for number, tag in enumerate(["Aa", "BB", "c", "d", "Aa"]):
        await site.send_one(topic, f"{tag}{number}", TAGS=tag)
    group = site.name("group")
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first")
    consumer.subscribe(topic, lambda message: inbox.messages.append(message), tags="Aa || d")
    async with consumer:
        await inbox.holds(["Aa0", "d3", "Aa4"])
        await eventually(lambda: consumer.assignment, "an assignment")
    assert await site.committed(group, topic, 1) == [5]


async def sql_filters_are_the_brokers(site: Site) -> None:
    topic, inbox = await site.topic(1), Inbox()
    consumer = PushConsumer(site.name("group"), namesrv=site.namesrv, start="first")
    consumer.subscribe(topic, lambda message: inbox.messages.append(message), sql="n > 2")
    async with consumer:
        for number in range(5):
            await site.send_one(topic, f"m{number}", n=str(number))
        await inbox.holds(["m3", "m4"])


async def a_wrong_sql_filter_fails_the_start(site: Site) -> None:
    topic = await site.topic(1)
    consumer = PushConsumer(site.name("group"), namesrv=site.namesrv)
    consumer.subscribe(topic, lambda _: None, sql="n >")
    with pytest.raises(BrokerError, match="filter"):
        await consumer.start()
    await consumer.close()


async def what_fails_comes_again_and_ends_as_a_dead_letter(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    tries: dict[str, list[int]] = {}
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first", max_reconsume_times=2)

    @consumer.handler(topic)
    async def fail(message: ReceivedMessage) -> object:
        assert message.topic == topic
        seen = tries.setdefault(message.text, [])
        seen.append(message.reconsume_times)
        if message.text == "bad":
            raise ValueError("this one never works")
        if message.text == "once" and len(seen) == 1:
            return False
        if message.text == "level" and len(seen) == 1:
            return Later(delay_level=1)
        return None

    async with consumer:
        for body in ("good", "once", "level", "bad"):
            await site.send_one(topic, body, TAGS="t", KEYS=f"key-{body}")
        await eventually(lambda: len(tries.get("bad", [])) == 3, "three tries")
        await eventually(lambda: len(tries.get("once", [])) == 2, "a second try")
        await eventually(lambda: len(tries.get("level", [])) == 2, "a second try by level")
        dead = await site.dead_letters(group)
    assert tries == {"good": [0], "once": [0, 1], "level": [0, 1], "bad": [0, 1, 2]}
    assert [(each.text, each.tags, each.keys) for each in dead] == [("bad", "t", ("key-bad",))]
    assert await site.committed(group, topic, 1) == [4]


async def a_message_can_be_a_dead_letter_at_once(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first")
    consumer.subscribe(topic, lambda _: Later(delay_level=-1))
    async with consumer:
        await site.send_one(topic, "poison")
        dead = await site.dead_letters(group)
    assert [each.text for each in dead] == ["poison"]


async def batches_may_be_done_in_part(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    sent = await site.send(topic, 10, queues=1)
    sizes: list[int] = []
    inbox = Inbox()
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first")

    @consumer.batch_handler(topic, size=4)
    def keep(messages: list[ReceivedMessage]) -> object:
        sizes.append(len(messages))
        if messages[0].reconsume_times == 0 and len(messages) == 4:
            inbox.messages.extend(messages[:3])
            return Later(done_count=3)
        inbox.messages.extend(messages)
        return None

    async with consumer:
        await inbox.holds(sent)
    assert max(sizes) <= 4
    assert await site.committed(group, topic, 1) == [10]


async def members_share_queues_and_take_over(site: Site) -> None:
    topic, group = await site.topic(4), site.name("group")
    one, two = Inbox(), Inbox()
    async with consuming(site, group, topic, one) as first:
        await eventually(lambda: len(_of(first, topic)) == 4, "all queues")
        async with consuming(site, group, topic, two) as second:
            await eventually(
                lambda: len(_of(first, topic)) == len(_of(second, topic)) == 2, "two queues each"
            )
            assert not first.assignment & second.assignment
            ids = sorted([first.client_id, second.client_id])
            lower = first if ids[0] == first.client_id else second
            assert _of(lower, topic) == {Queue(topic, site.broker_name, each) for each in (0, 1)}
            sent = await site.send(topic, 12)
            await eventually(
                lambda: len(one.messages) + len(two.messages) >= 12, "all messages at both"
            )
            assert one.counts + two.counts == Counter(sent)
            assert len(two.messages) == 6
        await eventually(lambda: len(_of(first, topic)) == 4, "all queues again")
        more = await site.send(topic, 8, start=12)
        await eventually(lambda: set(more) <= set(one.texts), "the rest at the one that is left")
        assert one.counts + two.counts == Counter(sent + more)


def _of(consumer: PushConsumer, topic: str) -> set[Queue]:
    return {queue for queue in consumer.assignment if queue.topic == topic}


async def broadcasting_gives_everybody_everything(site: Site) -> None:
    topic, group = await site.topic(2), site.name("group")
    boxes = [Inbox(), Inbox()]
    options: list[PushOptions] = [
        {"broadcasting": True, "offsets_dir": str(site.folder), "instance_name": name}
        for name in (site.name("one"), site.name("two"))
    ]
    async with (
        consuming(site, group, topic, boxes[0], **options[0]) as first,
        consuming(site, group, topic, boxes[1], **options[1]),
    ):
        sent = await site.send(topic, 6, queues=2)
        for box in boxes:
            await box.holds(sent)
        client_id = first.client_id
    assert (site.folder / client_id / group / "offsets.json").exists()
    more = await site.send(topic, 4, start=6, queues=2)
    again = Inbox()
    async with consuming(site, group, topic, again, **options[0]):
        await again.holds(more)


async def closing_waits_for_handlers_and_calls_no_more(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    await site.send(topic, 50, queues=1)
    started, release = asyncio.Event(), asyncio.Event()
    called: list[str] = []
    ended: list[str] = []
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first", consume_threads=2)

    @consumer.handler(topic)
    async def slow(message: ReceivedMessage) -> None:
        called.append(message.text)
        started.set()
        await release.wait()
        ended.append(message.text)

    await consumer.start()
    await started.wait()
    await eventually(lambda: len(called) == 2, "two handlers at the same time")
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    release.set()
    await closing
    assert sorted(ended) == sorted(called)
    assert len(called) == 2
    assert await site.committed(group, topic, 1) == [2]
    with pytest.raises(ClientClosed):
        await consumer.start()


async def a_handler_may_close_its_consumer(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first")
    seen: list[str] = []

    @consumer.handler(topic)
    async def close_after_this(message: ReceivedMessage) -> None:
        seen.append(message.text)
        await consumer.close()

    await site.send_one(topic, "one")
    await consumer.start()
    async with asyncio.timeout(DEADLINE_S):
        await consumer.wait_closed()
    await site.send_one(topic, "two")
    assert seen == ["one"]
    assert await site.committed(group, topic, 1) == [1]


async def a_stream_of_messages_acknowledges_by_going_on(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    sent = await site.send(topic, 5, queues=1)
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first")
    consumer.subscribe(topic)
    got: list[str] = []
    async with consumer:
        async for message in consumer:
            got.append(message.text)
            if message.text == sent[1] and message.reconsume_times == 0:
                await consumer.retry(message, delay_level=1)
            if len(got) == 6:
                await consumer.ack(message)
                break
    assert sorted(got) == sorted([*sent, sent[1]])
    assert await site.committed(group, topic, 1) == [5]


async def suspended_consumers_pull_nothing(site: Site) -> None:
    topic, group, inbox = await site.topic(1), site.name("group"), Inbox()
    async with consuming(site, group, topic, inbox) as consumer:
        sent = await site.send(topic, 1, queues=1)
        await inbox.holds(sent)
        consumer.suspend()
        # The pull in flight may still return messages. Once it has ended and those are handled,
        # no more messages arrive.
        sent += await site.send(topic, 1, start=1, queues=1)
        queue = Queue(topic, site.broker_name, 0).to_wire()
        await eventually(
            lambda: _pauses(topic) and not consumer.running_info().queues[queue].cached_count,
            "a pause instead of a pull",
        )
        before = len(inbox.messages)
        sent += await site.send(topic, 3, start=2, queues=1)
        await asyncio.sleep(0.3)
        assert len(inbox.messages) == before
        consumer.resume()
        await inbox.holds(sent)


def _pauses(topic: str) -> bool:
    """Whether the only pull of a topic waits to be woken, and not for a broker."""
    (pull,) = (task for task in asyncio.all_tasks() if f" {topic}@" in task.get_name())
    inner: object = pull.get_coro()
    while isinstance(inner, CoroutineType):
        if inner.__name__ == "_wait_for_capacity":
            return True
        inner = inner.cr_await
    return False


async def a_handler_that_takes_too_long_is_overtaken(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    release = asyncio.Event()
    tries: list[int] = []
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first", consume_timeout_ms=300)

    @consumer.handler(topic)
    async def hang(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if message.reconsume_times == 0:
            await release.wait()

    async with consumer:
        await site.send(topic, 1, queues=1)
        await eventually(lambda: tries == [0, 1], "a second try while the first still runs")
        release.set()
    assert await site.committed(group, topic, 1) == [1]


# -- in order --------------------------------------------------------------------------------------


async def order_is_kept_through_failures(site: Site) -> None:
    topic, group = await site.topic(2), site.name("group")
    seen: dict[int, list[str]] = {0: [], 1: []}
    failures: list[int] = []
    consumer = PushConsumer(group, namesrv=site.namesrv, start="first", ordered=True, suspend_ms=20)

    @consumer.handler(topic)
    def keep(message: ReceivedMessage) -> object:
        if message.text.endswith("/7") and message.reconsume_times < 2:
            failures.append(message.reconsume_times)
            return False
        seen[message.queue_id].append(message.text)
        return None

    async with consumer:
        sent = await site.send(topic, 30, queues=2)
        await eventually(lambda: sum(map(len, seen.values())) == 30, "all messages")
    assert seen == {0: sent[::2], 1: sent[1::2]}
    assert failures == [0, 1]
    assert await site.committed(group, topic, 2) == [15, 15]


async def an_ordered_message_that_never_works_is_a_dead_letter(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    tries: list[int] = []
    seen: list[str] = []
    consumer = PushConsumer(
        group,
        namesrv=site.namesrv,
        start="first",
        ordered=True,
        suspend_ms=20,
        max_reconsume_times=2,
    )

    @consumer.handler(topic)
    async def keep(message: ReceivedMessage) -> None:
        if message.text == "bad":
            tries.append(message.reconsume_times)
            raise ValueError("never")
        seen.append(message.text)

    async with consumer:
        for body in ("a", "bad", "b"):
            await site.send_one(topic, body)
        await eventually(lambda: seen == ["a", "b"], "the others, in order")
        dead = await site.dead_letters(group)
    assert tries == [0, 1, 2]
    assert [each.text for each in dead] == ["bad"]


async def locks_move_with_the_queues(site: Site) -> None:
    topic, group = await site.topic(2), site.name("group")
    one: list[str] = []
    two: list[str] = []

    def consumer_into(seen: list[str]) -> PushConsumer:
        consumer = PushConsumer(group, namesrv=site.namesrv, start="first", ordered=True)

        @consumer.handler(topic)
        async def keep(message: ReceivedMessage) -> None:
            await asyncio.sleep(0.01)
            seen.append(message.text)

        return consumer

    async with consumer_into(one) as first:
        await eventually(lambda: len(_of(first, topic)) == 2, "all queues")
        sent = await site.send(topic, 20, queues=2)
        async with consumer_into(two) as second:
            await eventually(lambda: len(_of(second, topic)) == 1, "a queue for the second")
            sent += await site.send(topic, 20, start=20, queues=2)
            await eventually(lambda: len(one) + len(two) >= 40, "all messages")
        await eventually(lambda: len(_of(first, topic)) == 2, "all queues again")
        sent += await site.send(topic, 4, start=40, queues=2)
        await eventually(lambda: len(one) + len(two) >= 44, "the rest")
    assert Counter(one + two) == Counter(sent)
    for seen in (one, two):
        for queue_id in range(2):
            own = [each for each in seen if int(each.rpartition("/")[2]) % 2 == queue_id]
            assert own == sorted(own, key=lambda each: int(each.rpartition("/")[2]))


async def ordered_handlers_may_commit_by_themselves(site: Site) -> None:
    topic, group = await site.topic(1), site.name("group")
    seen: list[str] = []
    consumer = PushConsumer(
        group, namesrv=site.namesrv, start="first", ordered=True, auto_commit=False, suspend_ms=20
    )

    @consumer.handler(topic)
    async def keep(message: ReceivedMessage) -> object:
        seen.append(message.text.rpartition("/")[2])
        if len(seen) == 3:
            return Decision.ROLLBACK
        return Decision.COMMIT if len(seen) == 6 else None

    async with consumer:
        await site.send(topic, 4, queues=1)
        await eventually(lambda: len(seen) >= 7, "all and three again")
    assert seen == ["0", "1", "2", "0", "1", "2", "3"]
    assert await site.committed(group, topic, 1) == [3]


# -- lite pull -------------------------------------------------------------------------------------


async def poll_all(consumer: LitePullConsumer, count: int) -> list[str]:
    """Poll until `count` messages were received."""
    found: list[str] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"only {found} of {count}"
        found += [each.text for each in await consumer.poll(500)]
    return found


async def lite_pull_subscribes_and_commits(site: Site) -> None:
    topic, group = await site.topic(2), site.name("group")
    sent = await site.send(topic, 10, queues=2)
    async with LitePullConsumer(group, namesrv=site.namesrv, start="first") as consumer:
        await consumer.subscribe(topic)
        assert sorted(await poll_all(consumer, 10)) == sorted(sent)
        assert await consumer.poll(0) == []
        await consumer.commit()
        queue = Queue(topic, site.broker_name, 0)
        assert await consumer.committed(queue) == 5
        assert consumer.position(queue) == 5
    async with LitePullConsumer(group, namesrv=site.namesrv, auto_commit=False) as consumer:
        await consumer.subscribe(topic)
        more = await site.send(topic, 4, start=10, queues=2)
        assert sorted(await poll_all(consumer, 4)) == sorted(more)
    assert await site.committed(group, topic, 2) == [5, 5]


async def lite_pull_is_assigned_and_seeks(site: Site) -> None:
    topic, group = await site.topic(2), site.name("group")
    sent = await site.send(topic, 10, queues=2)
    low, high = sent[::2], sent[1::2]
    async with LitePullConsumer(group, namesrv=site.namesrv, start="first") as consumer:
        queues = await consumer.queues(topic)
        assert queues == [Queue(topic, site.broker_name, each) for each in (0, 1)]
        await consumer.assign(queues[:1])
        assert await poll_all(consumer, 5) == low
        await consumer.seek(queues[0], 3)
        assert await poll_all(consumer, 2) == low[3:]
        await consumer.seek_to_begin(queues[0])
        assert await poll_all(consumer, 5) == low
        await consumer.seek_to_end(queues[0])
        with pytest.raises(ConfigError, match="offset 6 is not between 0 and 5"):
            await consumer.seek(queues[0], 6)
        with pytest.raises(ConfigError, match="not assigned"):
            await consumer.seek(queues[1], 0)
        consumer.pause(queues)
        await consumer.assign(queues)
        await consumer.seek_to_begin(queues[1])
        assert await consumer.poll(300) == []
        consumer.resume(queues)
        assert await poll_all(consumer, 5) == high
        assert await consumer.offset_for_timestamp(queues[0], datetime(2020, 1, 1, tzinfo=UTC)) == 0
        with pytest.raises(ConfigError, match="assigned"):
            await consumer.subscribe(topic)
        await consumer.commit_later({queues[0]: 2})
        assert await consumer.committed(queues[0]) == 2


async def a_reader_reads_by_offset(site: Site) -> None:
    topic = await site.topic(1)
    sent = await site.send(topic, 10, queues=1)
    await site.send_one(topic, "tagged", TAGS="x")
    await site.dispatched(topic, [11])
    queue = Queue(topic, site.broker_name, 0)
    async with QueueReader(site.name("group"), namesrv=site.namesrv) as reader:
        assert (await reader.min_offset(queue), await reader.max_offset(queue)) == (0, 11)
        pulled = await reader.pull(queue, 4, message_count=3)
        assert [each.text for each in pulled.messages] == sent[4:7]
        assert pulled.next_offset == 7
        first = (await reader.pull(queue, 0, message_count=1)).messages[0]
        assert await reader.earliest_store_time(queue) == first.store_time
        end = await reader.pull(queue, 11)
        assert (end.messages, end.next_offset) == ([], 11)
        tagged = await reader.pull(queue, 0, tags="x")
        assert [each.text for each in tagged.messages] == ["tagged"]


# -- requests of brokers ---------------------------------------------------------------------------


async def _is_committed(site: Site, group: str, topic: str, queue_offset: int) -> bool:
    return await site.committed(group, topic, 1) == [queue_offset]


async def brokers_can_ask_and_reset_a_consumer(site: Site) -> None:
    topic, group, inbox = await site.topic(1), site.name("group"), Inbox()
    sent = await site.send(topic, 4, queues=1)
    # 5.x reports a reset in the response to the next pull, so pulls must not be held for long.
    options: PushOptions = {"persist_offsets_ms": 100, "pull_suspend_ms": 500}
    async with consuming(site, group, topic, inbox, **options) as consumer:
        await inbox.holds(sent)
        await eventually(lambda: _is_committed(site, group, topic, 4), "a saved offset")
        answer = await site.peer.expect(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": group, "clientId": consumer.client_id, "jstackEnable": "true"},
        )
        info = bodies.decode(ConsumerRunningInfo, answer.body)
        assert Queue(topic, site.broker_name, 0).to_wire() in info.queues
        assert "task pull" in (info.jstack or "")
        answer = await site.peer.expect(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": topic, "group": group}
        )
        status = bodies.decode(ConsumerStatusBody, answer.body)
        offsets = status.offsets_by_client[consumer.client_id]
        assert offsets == {Queue(topic, site.broker_name, 0).to_wire(): 4}
        message = inbox.messages[0]
        answer = await site.peer.expect(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            {
                "consumerGroup": group,
                "clientId": consumer.client_id,
                "msgId": message.offset_msg_id,
                "brokerName": site.broker_name,
                "topic": topic,
            },
        )
        result = bodies.decode(ConsumeMessageDirectlyResult, answer.body)
        assert result.consume_result == "CR_SUCCESS"
        assert inbox.texts[4:] == [message.text]
        await site.peer.expect(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"},
        )
        await inbox.holds([*sent, message.text, *sent])


SCENARIOS: list[Scenario] = [
    both_kinds_of_handlers_get_every_message_once,
    a_second_start_goes_on_where_the_first_ended,
    the_start_is_the_first_or_a_time,
    tags_are_compared_by_their_text,
    sql_filters_are_the_brokers,
    a_wrong_sql_filter_fails_the_start,
    what_fails_comes_again_and_ends_as_a_dead_letter,
    a_message_can_be_a_dead_letter_at_once,
    batches_may_be_done_in_part,
    members_share_queues_and_take_over,
    broadcasting_gives_everybody_everything,
    closing_waits_for_handlers_and_calls_no_more,
    a_handler_may_close_its_consumer,
    a_stream_of_messages_acknowledges_by_going_on,
    suspended_consumers_pull_nothing,
    a_handler_that_takes_too_long_is_overtaken,
    order_is_kept_through_failures,
    an_ordered_message_that_never_works_is_a_dead_letter,
    locks_move_with_the_queues,
    ordered_handlers_may_commit_by_themselves,
    lite_pull_subscribes_and_commits,
    lite_pull_is_assigned_and_seeks,
    a_reader_reads_by_offset,
    brokers_can_ask_and_reset_a_consumer,
]
