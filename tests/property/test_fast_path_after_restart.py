"""Messages from before a restart: the fast path serves them after checking them.

Damaged messages are passed to the handlers, which leave them out of the response and log it.
"""

import asyncio

import pytest
from tests.property.test_fast_path import (
    Side,
    fed_side,
    feed_bytes,
    frames_of,
    pull_frame,
    send_frame,
)

from tianzhou.protocol import kernel
from tianzhou.protocol.command import decode
from tianzhou.protocol.records.record import decode_records

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}"),
]

BODIES = [b"first", *(b"body %d" % number * 9 for number in range(5))]
DAMAGED = 3

POSITIONS = {
    "size": 3,
    "magic number": 4,
    "checksum": 11,
    "queue id": 15,
    "queue offset": 27,
    "log offset": 35,
    "length of the body": 87,
    "body": 90,
}
"""The position of the changed byte in a record with IPv4 addresses."""
POSITIONS_FROM_TOPIC = {
    "length of the topic": -1,
    "topic": 2,
    "length of the properties": len("orders") + 1,
}
"""The same, from the start of the topic, which follows the body."""


async def restarted_side() -> Side:
    """A broker that was restarted after all messages were stored."""
    side = await fed_side()
    for number, body in enumerate(BODIES[1:]):
        await side.arrive(send_frame(10 + number, body), [])
    side.store.checked_from = side.store.end_log_offset  # as recovery leaves it
    side.update("maxMessageSize", "9001")
    side.transport.written.clear()
    return side


async def pulled(side: Side) -> tuple[list[bytes], bool]:
    """The bodies that a pull returns, and whether a handler served it."""
    handled = side.pull_count
    side.transport.written.clear()
    feed_bytes(side.connection, pull_frame(50, 0))
    await asyncio.sleep(0)
    (answer,) = [decode(frame) for frame in frames_of(bytes(side.transport.written))]
    messages = decode_records(bytes(answer.body))
    return [message.body for message in messages], side.pull_count != handled


async def test_intact_messages_are_served_by_the_fast_path() -> None:
    side = await restarted_side()
    assert side.store.checked_from == side.store.end_log_offset
    assert await pulled(side) == (BODIES, False)
    side.close()


@pytest.mark.parametrize("name", [*POSITIONS, *POSITIONS_FROM_TOPIC])
async def test_damaged_messages_are_left_out_by_the_handlers(name: str) -> None:
    side = await restarted_side()
    record = bytes(side.store.read("orders", 0, DAMAGED, 1).records[0])
    if name in POSITIONS:
        position = POSITIONS[name]
    else:
        position = record.rindex(b"orders") + POSITIONS_FROM_TOPIC[name]
    log_offset = int.from_bytes(record[28:36], "big")
    file = side.store.log.segments.find(log_offset)
    assert file is not None
    at = log_offset - file.first + position
    file.view()[at] ^= 1
    sound = [body for number, body in enumerate(BODIES) if number != DAMAGED]
    assert await pulled(side) == (sound, True)
    file.view()[at] ^= 1
    assert await pulled(side) == (BODIES, False)
    side.close()
