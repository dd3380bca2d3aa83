"""A crash table of pop consumption: `kill -9` between every two steps, then a restart.

Whatever was sent is delivered until it is acknowledged; what was acknowledged does not come back;
order holds; a dead letter is not lost.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.test_kinds_delay import Walk, dying
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
class Insisting:
    """A client that asks until there is an answer."""

    walk: Walk

    async def ask(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        timeout_ms: int = 10_000,
    ) -> Command:
        del timeout_ms  # the walk has its own
        return await self.walk.insist(code, fields or {}, body)


async def sent(walk: Walk, *bodies: bytes) -> Insisting:
    for body in bodies:
        await walk.send(body, {})
    return Insisting(walk)


async def all_popped(client: Insisting, bodies: set[bytes], invisible_ms: int) -> list[Popped]:
    """Pop until each body has come; what comes twice is there twice."""
    found: list[Popped] = []

    async def look() -> bool:
        found.extend(await pop(client, invisible_ms=invisible_ms))
        return {each.body for each in found} >= bodies

    await eventually(look, f"{bodies} popped")
    assert {each.body for each in found} == bodies
    return found


async def all_done(client: Insisting, topic: str) -> None:
    """See that the group has nothing more to do in a topic, acknowledging what comes again."""

    async def look() -> bool:
        for each in await pop(client, invisible_ms=NEVER_MS):
            await ack(client, each)
        place = {"topic": topic, "queueId": "0"}
        end = await client.ask(RequestCode.GET_MAX_OFFSET, place)
        done = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, place | {"consumerGroup": GROUP})
        return done.fields.get("offset") == end.fields["offset"]

    await eventually(look, f"{topic} done with")


# -- the ways --------------------------------------------------------------------------------------


async def popped(walk: Walk) -> None:
    client = await sent(walk, b"a", b"b", b"c")
    await all_popped(client, {b"a", b"b", b"c"}, SOON_MS)
    await walk.died()
    await all_done(client, TOPIC)


async def acknowledged(walk: Walk) -> None:
    client = await sent(walk, b"a", b"b", b"c")
    a, b, c = await pop(client, invisible_ms=NEVER_MS)
    assert (await batch_ack(client, a, c)).code == ResponseCode.SUCCESS
    await walk.died()
    assert await pop(client) == [], "b is still with its consumer"
    assert (await change(client, b, 0)).code == ResponseCode.SUCCESS
    again = await all_popped(client, {b"b"}, NEVER_MS)
    for each in again:
        await ack(client, each)
    await all_done(client, TOPIC)
    assert await pop(client) == [], "what was acknowledged stays so"


async def prolonged(walk: Walk) -> None:
    client = await sent(walk, b"a")
    (a,) = await pop(client, invisible_ms=NEVER_MS)
    answer = await change(client, a, SOON_MS)
    # One that died after it had noted the change is asked again with a handle that is old now.
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.NO_MESSAGE)
    await walk.died()
    again = await all_popped(client, {b"a"}, NEVER_MS)
    assert {each.message.reconsume_count for each in again} == {1}


async def revived(walk: Walk) -> None:
    client = await sent(walk, b"a")
    (a,) = await pop(client, invisible_ms=SOON_MS)
    assert a.message.reconsume_count == 0
    await walk.died()
    again = await all_popped(client, {b"a"}, NEVER_MS)
    assert {each.message.reconsume_count for each in again} == {1}
    for each in again:
        await ack(client, each)
    await all_done(client, TOPIC)
    await all_done(client, RETRY)


async def dead(walk: Walk) -> None:
    client = await sent(walk, b"a")
    group = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=0)
    await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode(group))
    assert len(await pop(client, invisible_ms=SOON_MS)) == 1
    await walk.died()
    await walk.arrived(f"%DLQ%{GROUP}", {b"a"})
    await all_done(client, TOPIC)


async def ordered(walk: Walk) -> None:
    client = await sent(walk, b"a", b"b", b"c")
    a, b = await pop(client, order=True, count=2, invisible_ms=NEVER_MS)
    assert (await ack(client, a)).code == ResponseCode.SUCCESS
    await walk.died()
    assert await pop(client, order=True) == [], "b is still with its consumer"
    assert (await ack(client, b)).code == ResponseCode.SUCCESS
    (c,) = await pop(client, order=True, invisible_ms=NEVER_MS)
    assert c.body == b"c"
    await ack(client, c)
    place = {"topic": TOPIC, "queueId": "0", "consumerGroup": GROUP}
    done = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
    assert done.fields["offset"] == "3"


FIRST, SECOND = 1, 2
NOTING = [BEFORE_NOTED, NOTED]
REVIVING = [(step, FIRST) for step in (BEFORE_REVIVED, REVIVED, ON_DISK)]
# What is noted first is the pop itself, then what the way is about.
TABLE: dict[Callable[[Walk], Awaitable[None]], list[tuple[str, int]]] = {
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
async def test_a_death_at_any_step_loses_nothing(
    tmp_path: Path, way: Callable[[Walk], Awaitable[None]], step: str, count: int
) -> None:
    async with dying(tmp_path, step, count) as walk:
        await way(walk)
        assert walk.broker.deaths == 1, f"it never came to {step!r} for the {count}. time"


@pytest.mark.parametrize("way", TABLE)
async def test_the_table_knows_every_step(
    tmp_path: Path, way: Callable[[Walk], Awaitable[None]]
) -> None:
    async with dying(tmp_path, "", 1) as walk:
        await way(walk)
    known = {step for steps in TABLE.values() for step, _ in steps}
    assert {step for step in walk.broker.passed if step.startswith("pop")} <= known
