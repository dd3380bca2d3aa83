"""Fast path and handlers show the same messages while the confirm offset moves, and none above it.

Two brokers get the same bytes, as in `test_fast_path.py`; between them the confirm offset moves to
any position, within records, too. Both are compared to the byte, and each record that a reader got
must lie wholly below the confirm offset of that moment. Tests at the end take the limit away, in
the kernel or in the handlers, and the comparison must fail.
"""

import asyncio
import random
import struct

import pytest
from tests.property.test_fast_path import (
    LARGER,
    PEERS,
    Now,
    Sender,
    Side,
    change,
    compare,
    fed_side,
    feed_bytes,
    frames_of,
    prepare,
    pull_frame,
    responses,
    send_frame,
)

from tianzhou.broker.background.arrivals import Arrivals
from tianzhou.broker.requests.fast_path import FastPath
from tianzhou.broker.storing.serving import Refusal, Serving
from tianzhou.protocol import kernel
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import decode
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.reading import NO_LIMIT, StoreReader

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}"),
]

_SIZE, _LOG_OFFSET, _LOG_OFFSET_AT = struct.Struct(">i"), struct.Struct(">q"), 28


@pytest.fixture(autouse=True)
def _all_in_one_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tianzhou.remoting.connection._SHARE_S", float("inf"))


def serving_of(side: Side) -> Serving:
    return Serving(side.store, side.deps.durability, Arrivals(), lambda: 1)


def check_confirmed(side: Side, written_before: int) -> int:
    """Each record that was sent lies below the confirm offset; returns how many there were."""
    count = 0
    for frame in frames_of(bytes(side.transport.written[written_before:])):
        answer = decode(frame)
        body = bytes(answer.body)
        if answer.code or "nextBeginOffset" not in answer.fields:
            continue
        while body:
            (size,) = _SIZE.unpack_from(body)
            (log_offset,) = _LOG_OFFSET.unpack_from(body, _LOG_OFFSET_AT)
            assert log_offset + size <= side.store.readable_log_offset, "not confirmed, and read"
            body = body[size:]
            count += 1
    return count


async def run(seed: int, *, steps: int = 100) -> tuple[int, int]:
    """Returns how many pulls the fast path served alone, and how many messages readers got."""
    sender = Sender(seed, pull_percent=50)
    sides = [Side(with_feed, Now(), PEERS[0], LARGER) for with_feed in (True, False)]
    servings = [serving_of(side) for side in sides]
    for side, serving in zip(sides, servings, strict=True):
        serving.show_confirmed(0)
        prepare(side)
        side.subscribe("g", "payments", "b c", 1)
    read_count = 0
    for step in range(steps):
        stream = b"".join(sender.frame() for _ in range(sender.random.choice((1, 2, 5, 12))))
        pieces = sender.pieces(len(stream))
        for side in sides:
            random.seed(step)
            before = len(side.transport.written)
            await side.arrive(stream, pieces)
            read_count += check_confirmed(side, before)
        if sender.chance(60):
            confirmed, end = sides[0].store.readable_log_offset, sides[0].store.end_log_offset
            at = sender.random.choice((end, sender.random.randint(confirmed, end)))
            for serving in servings:
                serving.confirm(at)
        if sender.chance(12):
            change(sender, sides)
        if step % 10 == 9 or sides[0].connection.closed:
            compare(*sides)
            for side in sides:
                if side.connection.closed:
                    side.connect()
    compare(*sides)
    for side in sides:
        side.close()
    fed, plain = sides
    return fed.pull_count - plain.pull_count, read_count


async def run_all() -> None:
    fed_pull_count = read_count = 0
    for seed in range(100, 112):
        fed, read = await run(seed)
        fed_pull_count, read_count = fed_pull_count + fed, read_count + read
    assert fed_pull_count > 50, "the feed took next to no pull"
    assert read_count > 1000, "next to nothing was read"


async def test_pulls_equal_those_of_the_handlers_while_the_confirm_offset_moves() -> None:
    await run_all()


async def test_the_comparison_fails_if_the_kernel_does_not_know_the_confirm_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = FastPath._begin_iteration  # pyright: ignore[reportPrivateUsage]

    def begin_without(self: FastPath) -> bool:
        begun = begin(self)
        self._feed.set_confirmed(NO_LIMIT)  # pyright: ignore[reportPrivateUsage]
        return begun

    monkeypatch.setattr(FastPath, "_begin_iteration", begin_without)
    with pytest.raises(AssertionError, match=r"not confirmed, and read|== b'"):
        await run_all()


async def test_the_comparison_fails_if_nothing_applies_the_confirm_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def whole(_: StoreReader, queue: ConsumeQueue) -> int:
        return queue.next_offset

    monkeypatch.setattr(StoreReader, "max_offset_of", whole)
    with pytest.raises(AssertionError, match="not confirmed, and read"):
        await run_all()


# -- single rules ----------------------------------------------------------------------------------


async def test_a_pull_gets_a_message_in_the_iteration_after_its_confirmation() -> None:
    side = await fed_side()
    serving = serving_of(side)
    serving.show_confirmed(side.store.end_log_offset)
    await side.arrive(pull_frame(1, 0), [])
    handled_count = side.fed_count
    feed_bytes(side.connection, send_frame(2, b"not confirmed") + pull_frame(3, 0))
    await asyncio.sleep(0)
    assert side.fed_count == handled_count, "the handlers were asked"
    serving.confirm(side.store.end_log_offset)
    feed_bytes(side.connection, pull_frame(4, 0))
    await asyncio.sleep(0)
    assert side.fed_count == handled_count, "the handlers were asked"
    answers = [decode(frame) for frame in frames_of(bytes(side.transport.written))]
    seen = [(each.opaque, each.fields["maxOffset"]) for each in answers if each.opaque != 2]
    assert seen == [(1, "1"), (3, "1"), (4, "2")]
    assert bytes(answers[-1].body).count(b"not confirmed") == 1
    side.close()


async def test_a_refusal_is_in_force_within_the_loop_iteration() -> None:
    """What was received before is stored, what comes after it is refused, also on the fast path."""
    side = await fed_side()
    serving = serving_of(side)
    other, transport = side.another()
    end = side.store.end_log_offset
    feed_bytes(side.connection, send_frame(1, b"before"))
    serving.refuse(writes=Refusal(ResponseCode.SYSTEM_ERROR, "too few replicas"), reads=None)
    stored_end = side.store.end_log_offset
    assert stored_end > end, "what the fast path had accepted must be stored"
    feed_bytes(side.connection, send_frame(2, b"after"))
    feed_bytes(other, send_frame(3, b"of another connection") + pull_frame(4, 0))
    await asyncio.sleep(0)
    assert responses(side.transport) == [(1, 0), (2, ResponseCode.SYSTEM_ERROR)]
    assert responses(transport) == [(3, ResponseCode.SYSTEM_ERROR), (4, 0)]
    assert side.store.end_log_offset == stored_end
    serving.refuse(writes=None, reads=None)
    feed_bytes(side.connection, send_frame(5, b"again"))
    await asyncio.sleep(0)
    assert responses(side.transport)[-1] == (5, 0)
    other.connection_lost(None)
    side.close()
