"""A crash table: `kill -9` at each step of delayed, retried and dead-lettered messages.

Each scenario runs once without a kill, which records its steps; then once for each step, with the
broker killed there. After the restart every acknowledged message arrives, none before its time,
and no recalled one.
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


class KilledBroker:
    """A broker process that is killed at a step and then restarted without another kill."""

    def __init__(self, folder: Path, step: str, count: int) -> None:
        self.port = free_port()
        self.folder = folder
        self.step = step
        self.count = count
        self.passed: list[str] = []
        self.kills = 0
        self.held_ms = CONTEXT.Value("q", 0)
        """The time at which its clock is stopped; 0 while it runs."""

    async def start(self) -> None:
        step = self.step if self.kills == 0 else ""
        self.steps, step_sender = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(
            target=scheduled_driver.main,
            args=(self.port, self.folder, step, self.count, step_sender, self.held_ms),
        )
        self.process.start()
        step_sender.close()
        # A kill before it is ready counts as well.
        await eventually(lambda: "ready" in self.drained() or not self.process.is_alive(), "start")
        if "ready" in self.passed:
            self.passed.remove("ready")

    def drained(self) -> list[str]:
        with contextlib.suppress(EOFError):
            while self.steps.poll():
                self.passed.append(self.steps.recv())
        return self.passed

    async def restart(self) -> None:
        """Restart the broker if it was killed."""
        if self.process.is_alive():
            return
        assert self.process.exitcode == -signal.SIGKILL, "ended without a kill"
        self.kills += 1
        assert self.kills == 1, "killed twice"
        self.drained()
        self.steps.close()
        await self.start()

    def stop(self) -> None:
        self.process.kill()
        self.process.join(DEADLINE_S)
        self.drained()
        self.steps.close()


@asynccontextmanager
async def killed_broker(folder: Path, step: str, count: int) -> AsyncGenerator["Scenario"]:
    broker = KilledBroker(folder, step, count)
    async with peer_of(f"{LOOPBACK}:{broker.port}") as peer:
        try:
            await broker.start()
            yield Scenario(broker, peer)
        finally:
            broker.stop()


@dataclass(slots=True)
class Scenario:
    """A client that continues across kills of the broker."""

    broker: KilledBroker
    peer: Peer
    tries: Counter[bytes] = field(default_factory=Counter[bytes])
    """How often each body was sent: again after a kill that left the send without a response."""

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command | None:
        """Send a request once; None without a response, after the broker is restarted."""
        try:
            return await self.peer.ask(code, fields, body, 60_000)
        except RemotingError:
            await self.broker.restart()
            await asyncio.sleep(0.01)
            return None

    async def retry(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """Repeat a request until it gets a response."""
        while (answer := await self.ask(code, fields, body)) is None:
            pass
        return answer

    async def succeed(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """Repeat a request until it gets a response, which must be SUCCESS."""
        answer = await self.retry(code, fields, body)
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

    async def visible_messages(self, topic: str) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        fields = {
            "consumerGroup": "g", "topic": topic, "queueId": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
            "subscription": "*",
        }  # fmt: skip
        offset = "0"
        while True:
            answer = await self.retry(
                RequestCode.PULL_MESSAGE, fields | {"queueOffset": offset}
            )  # fmt: skip
            if answer.code != ResponseCode.SUCCESS:
                return messages
            messages += messages_in(answer)
            offset = answer.fields["nextBeginOffset"]

    async def arrived(self, topic: str, bodies: set[bytes]) -> list[StoredMessage]:
        """Wait until all of them are visible; duplicates are allowed."""
        seen: list[StoredMessage] = []

        async def all_visible() -> bool:
            seen[:] = await self.visible_messages(topic)
            return {each.body for each in seen} >= bodies

        await eventually(all_visible, f"{bodies} in {topic}")
        assert {each.body for each in seen} == bodies
        return seen

    async def wait_for_kill(self) -> None:
        """Wait for a kill at a late step, and restart the broker."""

        async def is_killed() -> bool:
            await self.broker.restart()
            return self.broker.kills == 1

        if self.broker.step:
            await eventually(
                is_killed, f"kill at {self.broker.step!r}, passed {self.broker.passed}"
            )


def check_not_early(seen: list[StoredMessage], due_ms: dict[bytes, int]) -> None:
    for message in seen:
        assert message.store_time_ms >= due_ms[message.body], f"{message.body!r} is early"


def check_once(scenario: Scenario, seen: list[StoredMessage]) -> None:
    """The broker duplicates nothing: there are no more copies of a body than sends of it."""
    copies = Counter(each.body for each in seen)
    assert copies <= scenario.tries, f"more copies than sends after {scenario.broker.step!r}"


# -- scenarios -------------------------------------------------------------------------------------


async def delayed(scenario: Scenario) -> None:
    due_ms: dict[bytes, int] = {}
    for number in range(3):
        body = b"%d" % number
        due_ms[body] = fast_ms() + 5 * SECOND_MS
        await scenario.send(body, {"DELAY": "2"})
    check_not_early(await scenario.arrived("t", set(due_ms)), due_ms)
    await scenario.wait_for_kill()
    seen = await scenario.arrived("t", set(due_ms))
    check_not_early(seen, due_ms)
    check_once(scenario, seen)


async def timed(scenario: Scenario) -> None:
    due_ms: dict[bytes, int] = {}
    for number in range(3):
        body = b"%d" % number
        due_ms[body] = fast_ms() + 10 * SECOND_MS
        await scenario.send(body, {"TIMER_DELAY_SEC": "10"})
    check_not_early(await scenario.arrived("t", set(due_ms)), due_ms)
    await scenario.wait_for_kill()
    seen = await scenario.arrived("t", set(due_ms))
    check_not_early(seen, due_ms)
    check_once(scenario, seen)


async def rolled(scenario: Scenario) -> None:
    due_ms = {b"far": fast_ms() + 300 * SECOND_MS}
    await scenario.send(b"far", {"TIMER_DELIVER_MS": str(due_ms[b"far"])})
    check_not_early(await scenario.arrived("t", set(due_ms)), due_ms)
    await scenario.wait_for_kill()
    seen = await scenario.arrived("t", set(due_ms))
    check_not_early(seen, due_ms)
    check_once(scenario, seen)


async def recalled(scenario: Scenario) -> None:
    # Only a pending message can be recalled, so the clock is stopped during the restart.
    now_ms = scenario.broker.held_ms.value = fast_ms()
    moment_ms = now_ms + 150 * SECOND_MS
    handles: list[str] = []
    for name in ("kept", "taken back"):
        props = {"TIMER_DELIVER_MS": str(moment_ms), "UNIQ_KEY": name.replace(" ", "-")}
        answer = await scenario.send(name.encode(), props)
        handles.append(answer.fields["recallHandle"])
    fields = {"topic": "t", "recallHandle": handles[1], "producerGroup": "p"}
    await scenario.succeed(RequestCode.RECALL_MESSAGE, fields)
    marker_ms = moment_ms + 5 * SECOND_MS
    await scenario.send(b"marker", {"TIMER_DELIVER_MS": str(marker_ms)})
    scenario.broker.held_ms.value = 0
    await scenario.arrived("t", {b"kept", b"marker"})
    await scenario.wait_for_kill()
    await scenario.arrived("t", {b"kept", b"marker"})


async def send_back(scenario: Scenario, message: StoredMessage, level: int = 0) -> None:
    fields = {"offset": str(message.log_offset), "group": "g", "delayLevel": str(level)}
    await scenario.succeed(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


async def make_group(scenario: Scenario, group: SubscriptionGroupConfig) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    await scenario.succeed(code, {}, encode_body(group))


async def retried(scenario: Scenario) -> None:
    await scenario.send(b"bad", {})
    (message,) = await scenario.visible_messages("t")
    due_ms = fast_ms() + 10 * SECOND_MS
    await send_back(scenario, message)
    await scenario.wait_for_kill()
    seen = await scenario.arrived("%RETRY%g", {b"bad"})
    check_not_early(seen, {b"bad": due_ms})
    assert {each.reconsume_count for each in seen} == {1}


async def retried_by_policy(scenario: Scenario) -> None:
    """The retry delay of the group matches no level, so the message is a timed one."""
    delays = CustomizedRetryPolicy(next_ms=[7_777])
    policy = GroupRetryPolicy(kind="CUSTOMIZED", customized=delays)
    await make_group(scenario, SubscriptionGroupConfig(group_name="g", retry_policy=policy))
    await scenario.send(b"bad", {})
    (message,) = await scenario.visible_messages("t")
    due_ms = fast_ms() + 7_777
    await send_back(scenario, message)
    await scenario.arrived("%RETRY%g", {b"bad"})
    await scenario.wait_for_kill()
    seen = await scenario.arrived("%RETRY%g", {b"bad"})
    check_not_early(seen, {b"bad": due_ms})
    assert {each.reconsume_count for each in seen} == {1}


async def dead(scenario: Scenario) -> None:
    await scenario.send(b"bad", {})
    (message,) = await scenario.visible_messages("t")
    await send_back(scenario, message, -1)
    await scenario.wait_for_kill()
    await scenario.arrived("%DLQ%g", {b"bad"})


async def dead_after_retries(scenario: Scenario) -> None:
    await make_group(scenario, SubscriptionGroupConfig(group_name="g", retry_max_times=1))
    await scenario.send(b"bad", {})
    (message,) = await scenario.visible_messages("t")
    await send_back(scenario, message)
    retries = await scenario.arrived("%RETRY%g", {b"bad"})
    await send_back(scenario, retries[0])
    await scenario.wait_for_kill()
    seen = await scenario.arrived("%DLQ%g", {b"bad"})
    assert {each.reconsume_count for each in seen} == {2}


# -- the other form: the client sends to the retry topic itself ------------------------------------


def sent_by_consumer(times: int, times_max: int) -> dict[str, str]:
    """What stock clients send if sending back failed."""
    props = {"RETRY_TOPIC": "t", "ORIGIN_MESSAGE_ID": "0" * 32, "DELAY": "3"}
    fields = send_fields("%RETRY%g", queue_count=1, props=props)
    return fields | {"j": str(times), "l": str(times_max)}


async def retried_by_sending(scenario: Scenario) -> None:
    due_ms = fast_ms() + 10 * SECOND_MS
    await scenario.succeed(RequestCode.SEND_MESSAGE_V2, sent_by_consumer(1, 16), b"bad")
    await scenario.wait_for_kill()
    seen = await scenario.arrived("%RETRY%g", {b"bad"})
    check_not_early(seen, {b"bad": due_ms})
    assert {each.reconsume_count for each in seen} == {1}
    assert await scenario.visible_messages("%DLQ%g") == []


async def dead_by_sending(scenario: Scenario) -> None:
    await scenario.succeed(RequestCode.SEND_MESSAGE_V2, sent_by_consumer(17, 16), b"bad")
    await scenario.wait_for_kill()
    await scenario.arrived("%DLQ%g", {b"bad"})


async def dead_in_order(scenario: Scenario) -> None:
    """An orderly consumer gives up a message; after a crash it must lock the queue again first."""
    queue = MessageQueue(topic="t", broker_name="broker-a", queue_id=0)
    body = encode_body(QueueLockBody(consumer_group="g", client_id="c", queues=[queue]))
    answer: Command | None = None
    while answer is None:
        await scenario.succeed(RequestCode.LOCK_BATCH_MQ, {}, body)
        answer = await scenario.ask(RequestCode.SEND_MESSAGE_V2, sent_by_consumer(16, 16), b"bad")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await scenario.wait_for_kill()
    await scenario.arrived("%DLQ%g", {b"bad"})
    assert await scenario.visible_messages("%RETRY%g") == []


GIVEN_BACK = ["retry: before the message is stored", "retry: the message is stored"]
INDEXED = ["timer: before new messages are in the index", "timer: new messages are in the index"]
FIRED = [
    "timer: before a due message is stored",
    "timer: a due message is stored",
    "timer: before delivered messages leave the index",
    "timer: delivered messages have left the index",
]
TABLE: dict[Callable[[Scenario], Awaitable[None]], list[str]] = {
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
"""The recall is the third message of the timer; the index may store several at once."""
LAST_TIME_IS = 2
"""The message is sent back twice, which exceeds the retry limit."""


def kill_at(way: Callable[[Scenario], Awaitable[None]], step: str) -> int:
    """At which pass of a step the broker is killed."""
    if way is dead_after_retries:
        return LAST_TIME_IS
    return RECALL_IS if way is recalled and step not in INDEXED else 1


ROWS = [
    pytest.param(way, step, kill_at(way, step), id=f"{way.__name__}: {step}")
    for way, steps in TABLE.items()
    for step in steps
]


@pytest.mark.parametrize(("way", "step", "count"), some_of(ROWS, 3))
async def test_kill_at_any_step_loses_nothing(
    tmp_path: Path, way: Callable[[Scenario], Awaitable[None]], step: str, count: int
) -> None:
    async with killed_broker(tmp_path, step, count) as scenario:
        await way(scenario)
        assert scenario.broker.kills == 1, f"it never came to {step!r} for the {count}. time"


async def test_all_steps_are_in_the_table(tmp_path: Path) -> None:
    passed: set[str] = set()
    for number, way in enumerate(TABLE):
        folder = tmp_path / str(number)
        async with killed_broker(folder, "", 1) as scenario:
            await way(scenario)
            # Progress is saved some time after the message has arrived.
            if way in (delayed, timed):
                kind = "delay" if way is delayed else "timer"
                await eventually(
                    lambda w=scenario, k=kind: f"{k}: the progress is saved" in w.broker.drained(),  # type: ignore[misc]
                    f"progress of {kind}",
                )
        passed.update(scenario.broker.passed)
    assert passed == {step for steps in TABLE.values() for step in steps}
