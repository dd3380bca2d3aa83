"""A crash table of pop consumption: `kill -9` between every two steps, then a restart.

A message is delivered until it is acknowledged, and never again afterwards; order holds; no
dead letter is lost.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.test_kill_delay import Scenario, killed_broker
from tests.support.brokers import eventually
from tests.support.gate import some_of
from tests.support.pop import GROUP, TOPIC, Popped, ack, batch_ack, change, pop
from tianzhou.protocol.bodies import encode
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command

SOON_MS = 10_000
"""A moment, on a clock that runs a hundred times as fast as ours."""
NEVER_MS = 24 * 3600 * 1000
RETRY = f"%RETRY%{GROUP}_{TOPIC}"

BEFORE_NOTED, NOTED = "pop: before it is noted", "pop: it is noted"
BEFORE_REVIVED, REVIVED = "pop: before it is revived", "pop: it is revived"
ON_DISK = "pop: the revived are on disk"


@dataclass
class RetryingClient:
    """A client that repeats a request until it gets a response."""

    scenario: Scenario

    async def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 10_000,
    ) -> Command:
        del timeout_ms  # the scenario has its own
        return await self.scenario.retry(code, fields or {}, body)


async def sent(scenario: Scenario, *bodies: bytes) -> RetryingClient:
    for body in bodies:
        await scenario.send(body, {})
    return RetryingClient(scenario)


async def all_popped(client: RetryingClient, bodies: set[bytes], invisible_ms: int) -> list[Popped]:
    """Pop until each body was delivered; duplicates are included."""
    popped_messages: list[Popped] = []

    async def poll() -> bool:
        popped_messages.extend(await pop(client, invisible_ms=invisible_ms))
        return {each.body for each in popped_messages} >= bodies

    await eventually(poll, f"{bodies} popped")
    assert {each.body for each in popped_messages} == bodies
    return popped_messages


async def all_done(client: RetryingClient, topic: str) -> None:
    """Wait until the group has consumed a topic, acknowledging redelivered messages."""

    async def poll() -> bool:
        for each in await pop(client, invisible_ms=NEVER_MS):
            await ack(client, each)
        queue = {"topic": topic, "queueId": "0"}
        end = await client.ask(RequestCode.GET_MAX_OFFSET, queue)
        done = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue | {"consumerGroup": GROUP})
        return done.fields.get("offset") == end.fields["offset"]

    await eventually(poll, f"{topic} done with")


# -- the ways --------------------------------------------------------------------------------------


async def popped(scenario: Scenario) -> None:
    client = await sent(scenario, b"a", b"b", b"c")
    await all_popped(client, {b"a", b"b", b"c"}, SOON_MS)
    await scenario.wait_for_kill()
    await all_done(client, TOPIC)


async def acknowledged(scenario: Scenario) -> None:
    client = await sent(scenario, b"a", b"b", b"c")
    a, b, c = await pop(client, invisible_ms=NEVER_MS)
    assert (await batch_ack(client, a, c)).code == ResponseCode.SUCCESS
    await scenario.wait_for_kill()
    assert await pop(client) == [], "b is still with its consumer"
    assert (await change(client, b, 0)).code == ResponseCode.SUCCESS
    again = await all_popped(client, {b"b"}, NEVER_MS)
    for each in again:
        await ack(client, each)
    await all_done(client, TOPIC)
    assert await pop(client) == [], "what was acknowledged stays so"


async def prolonged(scenario: Scenario) -> None:
    client = await sent(scenario, b"a")
    (a,) = await pop(client, invisible_ms=NEVER_MS)
    answer = await change(client, a, SOON_MS)
    # A broker killed after storing the change gets the request again with an outdated handle.
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE)
    await scenario.wait_for_kill()
    again = await all_popped(client, {b"a"}, NEVER_MS)
    assert {each.message.reconsume_count for each in again} == {1}


async def revived(scenario: Scenario) -> None:
    client = await sent(scenario, b"a")
    (a,) = await pop(client, invisible_ms=SOON_MS)
    assert a.message.reconsume_count == 0
    await scenario.wait_for_kill()
    again = await all_popped(client, {b"a"}, NEVER_MS)
    assert {each.message.reconsume_count for each in again} == {1}
    for each in again:
        await ack(client, each)
    await all_done(client, TOPIC)
    await all_done(client, RETRY)


async def dead(scenario: Scenario) -> None:
    client = await sent(scenario, b"a")
    group = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=0)
    await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(group))
    assert len(await pop(client, invisible_ms=SOON_MS)) == 1
    await scenario.wait_for_kill()
    await scenario.arrived(f"%DLQ%{GROUP}", {b"a"})
    await all_done(client, TOPIC)


async def ordered(scenario: Scenario) -> None:
    client = await sent(scenario, b"a", b"b", b"c")
    a, b = await pop(client, order=True, count=2, invisible_ms=NEVER_MS)
    assert (await ack(client, a)).code == ResponseCode.SUCCESS
    await scenario.wait_for_kill()
    assert await pop(client, order=True) == [], "b is still with its consumer"
    assert (await ack(client, b)).code == ResponseCode.SUCCESS
    (c,) = await pop(client, order=True, invisible_ms=NEVER_MS)
    assert c.body == b"c"
    await ack(client, c)
    queue = {"topic": TOPIC, "queueId": "0", "consumerGroup": GROUP}
    done = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue)
    assert done.fields["offset"] == "3"


FIRST, SECOND = 1, 2
NOTING = [BEFORE_NOTED, NOTED]
REVIVING = [(step, FIRST) for step in (BEFORE_REVIVED, REVIVED, ON_DISK)]
# The pop itself is recorded first, then what the scenario is about.
TABLE: dict[Callable[[Scenario], Awaitable[None]], list[tuple[str, int]]] = {
    popped: [(step, FIRST) for step in NOTING],
    acknowledged: [(step, SECOND) for step in NOTING],
    prolonged: [(step, SECOND) for step in NOTING],
    revived: [*REVIVING, *((step, SECOND) for step in NOTING)],
    dead: [*REVIVING, *((step, SECOND) for step in NOTING)],
    ordered: [(step, SECOND) for step in NOTING],
}
ROWS = [
    pytest.param(way, step, count, id=f"{way.__name__}: {step}")
    for way, steps in TABLE.items()
    for step, count in steps
]


@pytest.mark.parametrize(("way", "step", "count"), some_of(ROWS, 3))
async def test_kill_at_any_step_loses_nothing(
    tmp_path: Path, way: Callable[[Scenario], Awaitable[None]], step: str, count: int
) -> None:
    async with killed_broker(tmp_path, step, count) as scenario:
        await way(scenario)
        assert scenario.broker.kills == 1, f"it never came to {step!r} for the {count}. time"


@pytest.mark.parametrize("way", TABLE)
async def test_all_steps_are_in_the_table(
    tmp_path: Path, way: Callable[[Scenario], Awaitable[None]]
) -> None:
    async with killed_broker(tmp_path, "", 1) as scenario:
        await way(scenario)
    known = {step for steps in TABLE.values() for step, _ in steps}
    assert {step for step in scenario.broker.passed if step.startswith("pop")} <= known
