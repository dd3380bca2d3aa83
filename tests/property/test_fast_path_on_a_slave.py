"""The fast path of a slave serves copied messages."""

import asyncio
import itertools

import pytest
from tests.property.test_fast_path import (
    Side,
    fed_side,
    feed_bytes,
    frames_of,
    pull_frame,
    send_frame,
)
from tests.support.copied_log import record

from tianzhou.protocol import kernel
from tianzhou.protocol.command import decode
from tianzhou.protocol.pure.record import MAGIC_BLANK, SIZE_AND_MAGIC
from tianzhou.protocol.records.record import decode_records
from tianzhou.store.truncation.record import Truncation

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}"),
]

opaques = itertools.count(100)


async def pulled(side: Side, queue_id: int) -> tuple[list[bytes], bool]:
    """The bodies that a pull returns, and whether a handler served it."""
    handled = side.pull_count
    side.transport.written.clear()
    feed_bytes(side.connection, pull_frame(next(opaques), queue_id))
    await asyncio.sleep(0)
    (answer,) = [decode(frame) for frame in frames_of(bytes(side.transport.written))]
    messages = decode_records(bytes(answer.body))
    return [message.body for message in messages], side.pull_count != handled


def copy(side: Side, queue_id: int, queue_offset: int, body: bytes) -> None:
    store = side.store
    copied = record(store.end_log_offset, "orders", queue_offset, body, queue_id=queue_id)
    assert store.append_copied(memoryview(copied)) == len(copied)


def copy_filler(side: Side) -> None:
    store, size = side.store, side.store.config.mapped_file_size_commit_log
    left = size - store.end_log_offset % size
    filler = SIZE_AND_MAGIC.pack(left, MAGIC_BLANK).ljust(left, b"\xa5")
    assert store.append_copied(memoryview(filler)) == left


async def test_pulls_see_messages_once_they_are_copied() -> None:
    side = await fed_side()
    expected = [b"first"]
    for number in range(1, 7):
        body = b"copied %d" % number
        copy(side, 0, number, body)
        expected.append(body)
        assert await pulled(side, 0) == (expected, False)
    assert await pulled(side, 1) == ([b"first"], False)
    side.close()


async def test_pulls_see_copied_messages_of_several_files() -> None:
    side = await fed_side()
    copy(side, 0, 1, b"second")
    copy_filler(side)
    assert await pulled(side, 0) == ([b"first", b"second"], False)
    copy(side, 0, 2, b"third")
    for _ in range(3):
        assert (await pulled(side, 0))[0] == [b"first", b"second", b"third"]
    side.close()


async def test_pulls_see_nothing_of_a_topic_that_was_created_again() -> None:
    side = await fed_side()
    copy(side, 0, 1, b"old")
    assert await pulled(side, 0) == ([b"first", b"old"], False)
    copy(side, 0, 0, b"new")
    assert (await pulled(side, 0))[0] == [b"new"]
    copy(side, 0, 1, b"newer")
    assert (await pulled(side, 0))[0] == [b"new", b"newer"]
    assert await pulled(side, 0) == ([b"new", b"newer"], False)
    side.close()


async def test_pulls_see_no_older_files_of_a_topic_that_was_created_again() -> None:
    side = await fed_side()
    for number in range(1, 160):
        copy(side, 0, number, b"old %d" % number)
    for _ in range(2):
        assert (await pulled(side, 0))[0] == [b"first", *(b"old %d" % n for n in range(1, 7))]
    for number in range(160):
        copy(side, 0, number, b"new %d" % number)
    for _ in range(2):
        assert (await pulled(side, 0))[0] == [b"new %d" % n for n in range(7)]
    side.close()


async def test_pulls_see_nothing_of_a_log_that_was_cut() -> None:
    """The kernel's grants of queues and of the log end with the cut; it reads other bytes after."""
    side = await fed_side()
    for number in range(1, 120):
        copy(side, 0, number, b"old %d" % number * 50)
    for _ in range(2):
        assert (await pulled(side, 0))[0][:3] == [b"first", b"old 1" * 50, b"old 2" * 50]
    store = side.store
    entry = store.queues.get_or_make("orders", 0).entry(2)
    assert entry is not None
    store.truncation.run(Truncation(to=entry[0]), confirm=0)
    assert (await pulled(side, 0))[0] == [b"first", b"old 1" * 50]
    store.truncation.finish()
    assert (await pulled(side, 0))[0] == [b"first", b"old 1" * 50]
    expected = [b"first", b"old 1" * 50]
    for number in range(2, 6):
        copy(side, 0, number, b"new %d" % number)
        expected.append(b"new %d" % number)
        assert await pulled(side, 0) == (expected, False), "a handler served the pull"
    side.close()


@pytest.mark.parametrize("ends_file", [False, True])
async def test_a_promoted_slave_continues_with_the_fast_path(ends_file: bool) -> None:
    side = await fed_side()
    copy(side, 0, 1, b"copied")
    if ends_file:
        copy_filler(side)
    for number in range(3):
        await side.arrive(send_frame(next(opaques), b"sent %d" % number), [])
    handled = side.fed_count
    await side.arrive(send_frame(next(opaques), b"sent 3"), [])
    assert side.fed_count == handled, "a handler served the last send"
    bodies = (await pulled(side, 0))[0]
    assert bodies == [b"first", b"copied", b"sent 0", b"sent 1", b"sent 2", b"sent 3"]
    side.close()


async def test_sends_of_the_fast_path_report_that_the_end_has_moved() -> None:
    side = await fed_side()
    ends: list[int] = []
    side.store.on_end_moved = lambda: ends.append(side.store.end_log_offset)
    handled = side.fed_count
    await side.arrive(send_frame(next(opaques), b"one") + send_frame(next(opaques), b"two"), [])
    assert side.fed_count == handled, "a handler served a send"
    assert ends == [side.store.end_log_offset]
    side.close()
