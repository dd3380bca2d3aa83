"""Transactions interrupted by `kill -9` between any two of their steps.

Each row is a scenario. It runs once without a kill, to record its steps, and then once for each of
them. After the restart a producer responds to checks as it would have before: committed messages
are delivered at least once, rolled back ones are not, and no half is ever visible. Steps are
records in the log and saves of the progress of the checks.
"""

import asyncio
import contextlib
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.broker.test_transactions import (
    COMMIT,
    PREPARED,
    ROLLBACK,
    UNKNOWN,
    end_fields,
    end_of_check,
    is_settled,
)
from tests.support.brokers import (
    LOOPBACK,
    Peer,
    bodies_in,
    eventually,
    messages_in,
    peer_of,
)
from tests.support.crash_steps import Child, stepping_broker
from tests.support.gate import EACH_CODEC
from tests.support.ports import free_port
from tianzhou.errors import RemotingError
from tianzhou.names import CHECK_MAX_TOPIC
from tianzhou.protocol import sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.message_id import encode_offset_id
from tianzhou.protocol.records.record import decode_record
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection

END = "append RMQ_SYS_TRANS_OP_HALF_TOPIC"
PROGRESS = "save consumerOffset.json"
"""The progress of the checks; nothing else changes this table here."""
STEPS = f"^append|^{PROGRESS}"
NEVER_GIVEN_UP = 100_000
"""Checks without a response: the producer may be slow, and checks are frequent."""
QUICK: dict[str, object] = {
    "transactionTimeOut": 1, "transactionCheckInterval": 40, "transactionCheckMax": NEVER_GIVEN_UP,
    "flushConsumerOffsetInterval": 50, "flushIntervalCommitLog": 20,
    "flushCommitLogLeastPages": 0,
}  # fmt: skip
OF_SCENARIO: dict[str, dict[str, object]] = {
    "end_at_once": {"transactionCheckInterval": 600_000},
    # Longer than a response takes, so that a run has few steps.
    "end_by_checks": {"transactionCheckInterval": 400},
    "leave_open": {"transactionCheckMax": 1},
}
FIRST = b"first"
"""A plain message, which makes the topic."""


@dataclass
class Producer:
    """Sends halves, and knows the result of each of its transactions."""

    peer: Peer
    fates: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """What its checks answer, by body."""
    acknowledged: set[bytes] = field(default_factory=set[bytes])

    async def send(self, body: bytes, fate: int, topic: str = "Orders") -> Command:
        self.fates[body] = fate
        answer = await self.peer.send(
            topic, body, props=PREPARED | {"UNIQ_KEY": body.decode()},
            sys_flag=sysflag.TRANSACTION_PREPARED, timeout_ms=60_000,
        )  # fmt: skip
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.acknowledged.add(body)
        return answer

    async def end(self, sent: Command, state: int) -> None:
        fields = end_fields(sent, state)
        answer = await self.peer.ask(RequestCode.END_TRANSACTION, fields, timeout_ms=60_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def answer_check(self, connection: Connection, asked: Command) -> None:
        if asked.code == RequestCode.CHECK_TRANSACTION_STATE:
            fate = self.fates[decode_record(asked.body).body]
            reply = Command(code=RequestCode.END_TRANSACTION, ext_fields=end_of_check(asked, fate))
            with contextlib.suppress(RemotingError):
                connection.oneway(reply)


async def end_at_once(producer: Producer, _: Child) -> None:
    first = await producer.send(b"committed", COMMIT)
    second = await producer.send(b"rolled back", ROLLBACK)
    await producer.end(second, ROLLBACK)
    await producer.end(first, COMMIT)


async def end_by_checks(producer: Producer, child: Child) -> None:
    await producer.send(b"rolled back", ROLLBACK)
    await producer.send(b"committed", COMMIT)
    await see(child, "append Orders", 2)
    # Ends may share a record: one of the checked halves, one of the answers.
    await see(child, END, 2)
    await see_progress(child)


async def leave_open(producer: Producer, child: Child) -> None:
    """No check gets a response, so the half is discarded."""
    await producer.send(b"open", UNKNOWN)
    await see(child, f"append {CHECK_MAX_TOPIC}")
    await see(child, END, 2)
    await see_progress(child)


async def see(child: Child, step: str, count: int = 1) -> None:
    await eventually(
        lambda: child.steps().count(step) >= count or child.process.returncode is not None, step
    )


async def see_progress(child: Child) -> None:
    """Wait until the progress of ended halves is saved."""
    await eventually(
        lambda: PROGRESS in after_last_end(child.steps()) or child.process.returncode is not None,
        PROGRESS,
    )


def after_last_end(steps: list[str]) -> list[str]:
    last_end = max((at for at, step in enumerate(steps) if step == END), default=len(steps))
    return steps[last_end + 1 :]


Scenario = Callable[[Producer, Child], Awaitable[None]]
SCENARIOS: list[Scenario] = [end_at_once, end_by_checks, leave_open]


async def connected(port: int) -> tuple[Producer, Client]:
    producer: Producer
    client = Client(handle=lambda connection, asked: producer.answer_check(connection, asked))
    producer = Producer(Peer(client, f"{LOOPBACK}:{port}", []))
    return producer, client


async def play(
    scenario: Scenario, store: Path, kill_at: int, *, pure: bool = True
) -> tuple[Producer, list[str]]:
    """Run a scenario, interrupted or not; returns the steps it took."""
    port = free_port()
    producer, client = await connected(port)
    settings = QUICK | OF_SCENARIO.get(scenario.__name__, {})
    async with stepping_broker(
        port, store, settings, kill_at=kill_at, only=STEPS, pure=pure
    ) as child:
        try:
            await producer.peer.heartbeat("p1", producer="producers")
            await producer.peer.send("Orders", FIRST, timeout_ms=60_000)
            await scenario(producer, child)
            # A step that this run did not reach equals a kill after its last one.
        except RemotingError:
            assert kill_at, "only a kill cuts connections"
            await child.died()
        finally:
            await client.close()
        return producer, child.steps()


async def messages_after_restart(
    producer: Producer, store: Path, committed: set[bytes], given_up: set[bytes], *, pure: bool
) -> dict[str, list[bytes]]:
    """Restart, respond to checks until no half is open; returns what consumers see then."""
    port = free_port()
    async with peer_of(f"{LOOPBACK}:{port}") as reader:
        again, client = await connected(port)
        again.fates = producer.fates
        is_left_open = UNKNOWN in producer.fates.values()
        settings = QUICK | {"transactionCheckMax": 1 if is_left_open else NEVER_GIVEN_UP}
        async with stepping_broker(port, store, settings, pure=pure):
            try:
                await again.peer.heartbeat("p1", producer="producers")

                async def settled() -> bool:
                    return (
                        await is_settled(reader)
                        and committed <= set(await seen(reader))
                        and given_up <= set(await seen(reader, CHECK_MAX_TOPIC))
                    )

                try:
                    await eventually(settled, f"no open half, {committed} there, {given_up} not")
                except AssertionError as e:
                    e.add_note(f"settled {await is_settled(reader)}, {await seen(reader)}")
                    e.add_note(f"given up {await seen(reader, CHECK_MAX_TOPIC)}")
                    raise
                return {topic: await seen(reader, topic) for topic in ("Orders", CHECK_MAX_TOPIC)}
            finally:
                await client.close()


async def seen(reader: Peer, topic: str = "Orders") -> list[bytes]:
    answer = await reader.pull("g", topic, 0, 0)
    return bodies_in(answer) if answer.code == ResponseCode.SUCCESS else []


@pytest.mark.parametrize("codec", EACH_CODEC, indirect=True)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_killed_between_any_two_steps(tmp_path: Path, codec: str, scenario: Scenario) -> None:
    pure = codec == "pure"
    _, steps = await play(scenario, tmp_path / "whole", 0, pure=pure)
    step_count = sum(re.search(STEPS, step) is not None for step in steps)
    assert step_count >= 5, steps
    await at_each_step(
        range(2, step_count + 1),
        lambda kill_at: kill_and_check(
            scenario, tmp_path / f"killed-{kill_at}", kill_at, pure=pure
        ),
    )


async def at_each_step(numbers: range, killed: Callable[[int], Awaitable[None]]) -> None:
    """Run with a kill at each of these steps, two at a time."""
    two_at_a_time = asyncio.Semaphore(2)

    async def one(kill_at: int) -> None:
        async with two_at_a_time:
            await killed(kill_at)

    async with asyncio.TaskGroup() as group:
        for kill_at in numbers:
            group.create_task(one(kill_at))


async def kill_and_check(scenario: Scenario, store: Path, kill_at: int, *, pure: bool) -> None:
    producer, steps = await play(scenario, store, kill_at, pure=pure)
    committed = {body for body in producer.acknowledged if producer.fates[body] == COMMIT}
    given_up = {body for body in producer.acknowledged if producer.fates[body] == UNKNOWN}
    found = await messages_after_restart(producer, store, committed, given_up, pure=pure)
    where = f"killed after step {kill_at}, {steps[-1]}: {found}"
    assert set(found["Orders"]) <= {FIRST, b"committed"}, where
    assert set(found[CHECK_MAX_TOPIC]) <= {b"open"}, where


async def test_process_is_killed_at_the_given_step(tmp_path: Path) -> None:
    _, steps = await play(end_at_once, tmp_path / "store", 5)
    appends = [step for step in steps if step.startswith("append")]
    half = "append RMQ_SYS_TRANS_HALF_TOPIC"
    assert appends == ["append Orders", half, half, END, "append Orders"]


# -- a topic that nobody knows yet -----------------------------------------------------------------

NEW = "Fresh"
"""A topic that its first half creates."""
STEPS_OF_NEW = "^append|topics"


async def run_until_kill(store: Path, kill_at: int) -> list[str]:
    """Start a broker with a half of a forgotten topic, whose producer commits it when asked.

    Returns the steps to where it died, or to where a consumer had the message.
    """
    port = free_port()
    producer, client = await connected(port)
    producer.fates[b"half"] = COMMIT
    settings = QUICK | OF_SCENARIO["end_by_checks"]
    async with (
        peer_of(f"{LOOPBACK}:{port}") as reader,
        stepping_broker(port, store, settings, kill_at=kill_at, only=STEPS_OF_NEW) as child,
    ):

        async def is_delivered() -> bool:
            return await is_settled(reader) and set(await seen(reader, NEW)) == {b"half"}

        try:
            await producer.peer.heartbeat("p1", producer="producers")
            await eventually(is_delivered, f"the half, after {child.steps()}")
        except RemotingError:
            assert kill_at, "only a kill cuts connections"
            await child.died()
        finally:
            await client.close()
        return [each for each in child.steps() if re.search(STEPS_OF_NEW, each)]


async def test_half_outlives_the_topic_that_it_created(tmp_path: Path) -> None:
    """The broker dies before the topic is saved, and again between any two steps after that."""
    only_half = tmp_path / "half"
    port = free_port()
    producer, client = await connected(port)
    async with stepping_broker(port, only_half, QUICK, kill_at=1, only="^append") as child:
        with pytest.raises(RemotingError):
            await producer.send(b"half", COMMIT, NEW)
        await child.died()
        assert child.steps()[-1:] == ["append RMQ_SYS_TRANS_HALF_TOPIC"]
        assert "save topics.json" not in child.steps()
    await client.close()
    shutil.copytree(only_half, tmp_path / "whole")
    steps = await run_until_kill(tmp_path / "whole", 0)
    assert steps.index("save topics.json") < steps.index(f"append {NEW}"), steps
    assert END in steps[steps.index(f"append {NEW}") :], steps

    async def killed(kill_at: int) -> None:
        store = tmp_path / f"killed-{kill_at}"
        shutil.copytree(only_half, store)
        await run_until_kill(store, kill_at)
        await run_until_kill(store, 0)

    await at_each_step(range(1, len(steps) + 1), killed)


# -- a half that was given up ----------------------------------------------------------------------


async def given_up_half(store: Path) -> str:
    """A store with a half that was given up; returns the id by which it can be resumed."""
    port = free_port()
    producer, client = await connected(port)
    settings = QUICK | OF_SCENARIO["leave_open"]
    async with stepping_broker(port, store, settings) as child:
        try:
            await producer.peer.heartbeat("p1", producer="producers")
            await producer.peer.send("Orders", FIRST, timeout_ms=60_000)
            await leave_open(producer, child)
            (discarded,) = messages_in(await producer.peer.pull("g", CHECK_MAX_TOPIC, 0, 0))
        finally:
            await client.close()
    return encode_offset_id(discarded.store_host, discarded.log_offset)


async def resume(store: Path, msg_id: str, kill_at: int, *, is_resumed: bool) -> tuple[bool, int]:
    """Resume a half, whose producer commits it at a check, until a consumer has it.

    Returns whether the resumption was answered, in this run or before, and the number of steps.
    """
    port = free_port()
    producer, client = await connected(port)
    producer.fates[b"open"] = COMMIT
    settings = QUICK | OF_SCENARIO["end_by_checks"]
    async with (
        peer_of(f"{LOOPBACK}:{port}") as reader,
        stepping_broker(port, store, settings, kill_at=kill_at, only=STEPS) as child,
    ):

        async def is_delivered() -> bool:
            return await is_settled(reader) and set(await seen(reader)) == {FIRST, b"open"}

        try:
            await producer.peer.heartbeat("p1", producer="producers")
            if not is_resumed:
                code = RequestCode.RESUME_CHECK_HALF_MESSAGE
                await producer.peer.expect(code, {"msgId": msg_id})
                is_resumed = True
            await eventually(is_delivered, f"the half, after {child.steps()}")
        except RemotingError:
            assert kill_at, "only a kill cuts connections"
            await child.died()
        finally:
            await client.close()
        return is_resumed, sum(re.search(STEPS, step) is not None for step in child.steps())


async def test_resumed_half_is_not_lost(tmp_path: Path) -> None:
    given_up = tmp_path / "given-up"
    msg_id = await given_up_half(given_up)
    shutil.copytree(given_up, tmp_path / "whole")
    _, step_count = await resume(tmp_path / "whole", msg_id, 0, is_resumed=False)
    assert step_count >= 4, "the half twice, the message, an end"

    async def killed(kill_at: int) -> None:
        store = tmp_path / f"killed-{kill_at}"
        shutil.copytree(given_up, store)
        is_resumed, _ = await resume(store, msg_id, kill_at, is_resumed=False)
        # A request without a response is repeated.
        await resume(store, msg_id, 0, is_resumed=is_resumed)

    await at_each_step(range(1, step_count + 1), killed)
