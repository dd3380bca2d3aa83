"""A crash table: `kill -9` between every two steps of messages that wait, are retried or dead.

Each way of a message is walked once with nobody dying, which tells its steps; then once for each
step, with the broker dying there. After the restart every acknowledged message arrives, none before
its time, and what was recalled does not.
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import scheduled_driver
from tests.support.brokers import (
    DEADLINE_S,
    LOOPBACK,
    Peer,
    eventually,
    messages_in,
    peer_of,
    send_fields,
)
from tests.support.gate import some_of
from tests.support.ports import free_port
from tests.support.scheduled_driver import fast_ms
from tianzhou.errors import RemotingError
from tianzhou.message import StoredMessage
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.groups import (
    CustomizedRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from tianzhou.protocol.bodies.queues import MessageQueue, QueueLockBody
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command

SECOND_MS = 1000
# Processes are forked from one that has imported everything and does nothing else.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([scheduled_driver.__name__])


class Dying:
    """A broker process that may die at a step and is then started again, to live."""

    def __init__(self, folder: Path, step: str, count: int) -> None:
        self.port = free_port()
        self.folder = folder
        self.step = step
        self.count = count
        self.passed: list[str] = []
        self.deaths = 0
        self.held_ms = CONTEXT.Value("q", 0)
        """Where its clock stands; 0 while it runs."""

    async def start(self) -> None:
        step = self.step if self.deaths == 0 else ""
        self.told, teller = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(
            target=scheduled_driver.main,
            args=(self.port, self.folder, step, self.count, teller, self.held_ms),
        )
        self.process.start()
        teller.close()
        # A death before it is ready counts as well.
        await eventually(lambda: "ready" in self.drained() or not self.process.is_alive(), "start")
        if "ready" in self.passed:
            self.passed.remove("ready")

    def drained(self) -> list[str]:
        with contextlib.suppress(EOFError):
            while self.told.poll():
                self.passed.append(self.told.recv())
        return self.passed

    async def revive(self) -> None:
        """Start it again if it is dead."""
        if self.process.is_alive():
            return
        assert self.process.exitcode == -signal.SIGKILL, "it ended by itself"
        self.deaths += 1
        assert self.deaths == 1, "it died again"
        self.drained()
        self.told.close()
        await self.start()

    def stop(self) -> None:
        self.process.kill()
        self.process.join(DEADLINE_S)
        self.drained()
        self.told.close()


@asynccontextmanager
async def dying(folder: Path, step: str, count: int) -> AsyncGenerator["Walk"]:
    broker = Dying(folder, step, count)
    async with peer_of(f"{LOOPBACK}:{broker.port}") as peer:
        try:
            await broker.start()
            yield Walk(broker, peer)
        finally:
            broker.stop()


@dataclass(slots=True)
class Walk:
    """What a client does, however often the broker dies under it."""

    broker: Dying
    peer: Peer
    tries: Counter[bytes] = field(default_factory=Counter[bytes])
    """How often each body was sent: again after a death that left the send without an answer."""

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command | None:
        """Ask once; None if that got no answer. Then the broker lives again."""
        try:
            return await self.peer.ask(code, fields, body, 60_000)
        except RemotingError:
            await self.broker.revive()
            await asyncio.sleep(0.01)
            return None

    async def insist(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """Ask until there is an answer."""
        while (answer := await self.ask(code, fields, body)) is None:
            pass
        return answer

    async def succeed(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """Ask until there is an answer, which must be a good one."""
        answer = await self.insist(code, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def send(self, body: bytes, props: dict[str, str]) -> Command:
        fields = send_fields("t", queue_count=1, props=props)
        while True:
            self.tries[body] += 1
            answer = await self.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
            if answer is not None:
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                return answer

    async def everything(self, topic: str) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        fields = {
            "consumerGroup": "g", "topic": topic, "queueId": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
            "subscription": "*",
        }  # fmt: skip
        place = "0"
        while True:
            answer = await self.insist(
                RequestCode.PULL_MESSAGE, fields | {"queueOffset": place}
            )  # fmt: skip
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += messages_in(answer)
            place = answer.fields["nextBeginOffset"]

    async def arrived(self, topic: str, bodies: set[bytes]) -> list[StoredMessage]:
        """Wait until all of them are there; they may be there more than once."""
        seen: list[StoredMessage] = []

        async def all_there() -> bool:
            seen[:] = await self.everything(topic)
            return {each.body for each in seen} >= bodies

        await eventually(all_there, f"{bodies} in {topic}")
        assert {each.body for each in seen} == bodies
        return seen

    async def died(self) -> None:
        """Wait for a death that comes after everything else, and see that it lives again."""

        async def dead() -> bool:
            await self.broker.revive()
            return self.broker.deaths == 1

        if self.broker.step:
            await eventually(dead, f"death at {self.broker.step!r}, passed {self.broker.passed}")


def check_not_early(seen: list[StoredMessage], due_ms: dict[bytes, int]) -> None:
    for message in seen:
        assert message.store_time_ms >= due_ms[message.body], f"{message.body!r} is early"


def check_once(walk: Walk, seen: list[StoredMessage]) -> None:
    """The broker repeats nothing: there are no more copies of a body than sends of it."""
    copies = Counter(each.body for each in seen)
    assert copies <= walk.tries, f"more copies than sends after {walk.broker.step!r}"


# -- the ways --------------------------------------------------------------------------------------


async def delayed(walk: Walk) -> None:
    due_ms: dict[bytes, int] = {}
    for number in range(3):
        body = b"%d" % number
        due_ms[body] = fast_ms() + 5 * SECOND_MS
        await walk.send(body, {"DELAY": "2"})
    check_not_early(await walk.arrived("t", set(due_ms)), due_ms)
    await walk.died()
    seen = await walk.arrived("t", set(due_ms))
    check_not_early(seen, due_ms)
    check_once(walk, seen)


async def timed(walk: Walk) -> None:
    due_ms: dict[bytes, int] = {}
    for number in range(3):
        body = b"%d" % number
        due_ms[body] = fast_ms() + 10 * SECOND_MS
        await walk.send(body, {"TIMER_DELAY_SEC": "10"})
    check_not_early(await walk.arrived("t", set(due_ms)), due_ms)
    await walk.died()
    seen = await walk.arrived("t", set(due_ms))
    check_not_early(seen, due_ms)
    check_once(walk, seen)


async def rolled(walk: Walk) -> None:
    due_ms = {b"far": fast_ms() + 300 * SECOND_MS}
    await walk.send(b"far", {"TIMER_DELIVER_MS": str(due_ms[b"far"])})
    check_not_early(await walk.arrived("t", set(due_ms)), due_ms)
    await walk.died()
    seen = await walk.arrived("t", set(due_ms))
    check_not_early(seen, due_ms)
    check_once(walk, seen)


async def recalled(walk: Walk) -> None:
    # Only what still waits can be recalled, however long the broker needs to live again.
    now_ms = walk.broker.held_ms.value = fast_ms()
    moment_ms = now_ms + 150 * SECOND_MS
    handles: list[str] = []
    for name in ("kept", "taken back"):
        props = {"TIMER_DELIVER_MS": str(moment_ms), "UNIQ_KEY": name.replace(" ", "-")}
        answer = await walk.send(name.encode(), props)
        handles.append(answer.fields["recallHandle"])
    fields = {"topic": "t", "recallHandle": handles[1], "producerGroup": "p"}
    await walk.succeed(RequestCode.RECALL_MESSAGE, fields)
    marker_ms = moment_ms + 5 * SECOND_MS
    await walk.send(b"marker", {"TIMER_DELIVER_MS": str(marker_ms)})
    walk.broker.held_ms.value = 0
    await walk.arrived("t", {b"kept", b"marker"})
    await walk.died()
    await walk.arrived("t", {b"kept", b"marker"})


async def give_back(walk: Walk, message: StoredMessage, level: int = 0) -> None:
    fields = {"offset": str(message.log_offset), "group": "g", "delayLevel": str(level)}
    await walk.succeed(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


async def make_group(walk: Walk, group: SubscriptionGroupConfig) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    await walk.succeed(code, {}, encode_body(group))


async def retried(walk: Walk) -> None:
    await walk.send(b"bad", {})
    (message,) = await walk.everything("t")
    due_ms = fast_ms() + 10 * SECOND_MS
    await give_back(walk, message)
    await walk.died()
    seen = await walk.arrived("%RETRY%g", {b"bad"})
    check_not_early(seen, {b"bad": due_ms})
    assert {each.reconsume_count for each in seen} == {1}


async def retried_by_policy(walk: Walk) -> None:
    """The group wants a delay that no level has, so it waits with the timed messages."""
    delays = CustomizedRetryPolicy(next_ms=[7_777])
    policy = GroupRetryPolicy(kind="CUSTOMIZED", customized=delays)
    await make_group(walk, SubscriptionGroupConfig(group_name="g", retry_policy=policy))
    await walk.send(b"bad", {})
    (message,) = await walk.everything("t")
    due_ms = fast_ms() + 7_777
    await give_back(walk, message)
    await walk.arrived("%RETRY%g", {b"bad"})
    await walk.died()
    seen = await walk.arrived("%RETRY%g", {b"bad"})
    check_not_early(seen, {b"bad": due_ms})
    assert {each.reconsume_count for each in seen} == {1}


async def dead(walk: Walk) -> None:
    await walk.send(b"bad", {})
    (message,) = await walk.everything("t")
    await give_back(walk, message, -1)
    await walk.died()
    await walk.arrived("%DLQ%g", {b"bad"})


async def dead_after_retries(walk: Walk) -> None:
    await make_group(walk, SubscriptionGroupConfig(group_name="g", retry_max_times=1))
    await walk.send(b"bad", {})
    (message,) = await walk.everything("t")
    await give_back(walk, message)
    retries = await walk.arrived("%RETRY%g", {b"bad"})
    await give_back(walk, retries[0])
    await walk.died()
    seen = await walk.arrived("%DLQ%g", {b"bad"})
    assert {each.reconsume_count for each in seen} == {2}


# -- the other form: the client sends to the retry topic itself ------------------------------------


def sent_by_consumer(times: int, times_max: int) -> dict[str, str]:
    """What stock clients send if they could not have a message sent back."""
    props = {"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "0" * 32, "DELAY": "3"}
    fields = send_fields("%RETRY%g", queue_count=1, props=props)
    return fields | {"j": str(times), "l": str(times_max)}


async def retried_by_sending(walk: Walk) -> None:
    due_ms = fast_ms() + 10 * SECOND_MS
    await walk.succeed(RequestCode.SEND_MESSAGE_V2, sent_by_consumer(1, 16), b"bad")
    await walk.died()
    seen = await walk.arrived("%RETRY%g", {b"bad"})
    check_not_early(seen, {b"bad": due_ms})
    assert {each.reconsume_count for each in seen} == {1}
    assert await walk.everything("%DLQ%g") == []


async def dead_by_sending(walk: Walk) -> None:
    await walk.succeed(RequestCode.SEND_MESSAGE_V2, sent_by_consumer(17, 16), b"bad")
    await walk.died()
    await walk.arrived("%DLQ%g", {b"bad"})


async def dead_in_order(walk: Walk) -> None:
    """A consumer that holds its queue gives up; after a crash it has to lock again first."""
    queue = MessageQueue(topic="t", broker_name="broker-a", queue_id=0)
    body = encode_body(QueueLockBody(consumer_group="g", client_id="c", queues=[queue]))
    answer: Command | None = None
    while answer is None:
        await walk.succeed(RequestCode.LOCK_BATCH_MQ, {}, body)
        answer = await walk.ask(RequestCode.SEND_MESSAGE_V2, sent_by_consumer(16, 16), b"bad")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await walk.died()
    await walk.arrived("%DLQ%g", {b"bad"})
    assert await walk.everything("%RETRY%g") == []


GIVEN_BACK = ["retry: before the message is stored", "retry: the message is stored"]
INDEXED = ["timer: before new messages are in the index", "timer: new messages are in the index"]
FIRED = [
    "timer: before a due message is stored",
    "timer: a due message is stored",
    "timer: before delivered messages leave the index",
    "timer: delivered messages have left the index",
]
TABLE: dict[Callable[[Walk], Awaitable[None]], list[str]] = {
    delayed: [
        "delay: before the message waits",
        "delay: before a due message is stored",
        "delay: a due message is stored",
        "delay: the progress is saved",
    ],
    timed: ["timer: before the message waits", *INDEXED, *FIRED, "timer: the progress is saved"],
    rolled: [
        "timer: before an old message is stored again",
        "timer: an old message is stored again",
        "timer: old messages have left the index",
    ],
    recalled: ["timer: before the message waits", *INDEXED],
    retried: [GIVEN_BACK[0], "delay: before the message waits", GIVEN_BACK[1]],
    retried_by_policy: [
        GIVEN_BACK[0], "timer: before the message waits", GIVEN_BACK[1], *INDEXED, *FIRED,
    ],
    dead: GIVEN_BACK,
    dead_after_retries: GIVEN_BACK,
    retried_by_sending: [GIVEN_BACK[0], "delay: before the message waits", GIVEN_BACK[1]],
    dead_by_sending: GIVEN_BACK,
    dead_in_order: GIVEN_BACK,
}  # fmt: skip
RECALL_IS = 3
"""The recall is the third message that the timer is given; the index may take several at once."""
LAST_TIME_IS = 2
"""The message is given back twice, the second time once too often."""


def death_at(way: Callable[[Walk], Awaitable[None]], step: str) -> int:
    """At which passing of a step the broker dies."""
    if way is dead_after_retries:
        return LAST_TIME_IS
    return RECALL_IS if way is recalled and step not in INDEXED else 1


ROWS = [
    pytest.param(way, step, death_at(way, step), id=f"{way.__name__}: {step}")
    for way, steps in TABLE.items()
    for step in steps
]


@pytest.mark.parametrize(("way", "step", "count"), some_of(ROWS, 3))
async def test_a_death_at_any_step_loses_nothing(
    tmp_path: Path, way: Callable[[Walk], Awaitable[None]], step: str, count: int
) -> None:
    async with dying(tmp_path, step, count) as walk:
        await way(walk)
        assert walk.broker.deaths == 1, f"it never came to {step!r} for the {count}. time"


async def test_the_table_knows_every_step(tmp_path: Path) -> None:
    passed: set[str] = set()
    for number, way in enumerate(TABLE):
        folder = tmp_path / str(number)
        async with dying(folder, "", 1) as walk:
            await way(walk)
            # Progress is saved some time after the message has arrived.
            if way in (delayed, timed):
                kind = "delay" if way is delayed else "timer"
                await eventually(
                    lambda w=walk, k=kind: f"{k}: the progress is saved" in w.broker.drained(),  # type: ignore[misc]
                    f"progress of {kind}",
                )
        passed.update(walk.broker.passed)
    assert passed == {step for steps in TABLE.values() for step in steps}
