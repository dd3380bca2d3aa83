"""Messages of an earlier life of the broker: the feed gives them away once it has checked them.

What is damaged it leaves to the handlers, which leave it out of the answer and say so.
"""

import asyncio

import pytest
from tests.property.test_feed_twin import Side, fed_side, frames_of, lay, pull_frame, send_frame

from tianzhou.protocol import kernel
from tianzhou.protocol.command import decode
from tianzhou.protocol.records.record import decode_records

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}"),
]

BODIES = [b"first", *(b"body %d" % number * 9 for number in range(5))]
DAMAGED = 3

PLACES = {
    "size": 3,
    "magic number": 4,
    "checksum": 11,
    "queue id": 15,
    "queue offset": 27,
    "log offset": 35,
    "length of the body": 87,
    "body": 90,
}
"""Where a byte is changed in a record with IPv4 addresses."""
BEHIND = {"length of the topic": -1, "topic": 2, "length of the properties": len("orders") + 1}
"""The same from the topic on, which follows the body."""


async def restarted_side() -> Side:
    """A broker whose messages were all there before it."""
    side = await fed_side()
    for number, body in enumerate(BODIES[1:]):
        await side.arrive(send_frame(10 + number, body), [])
    side.store.checked_from = side.store.end_log_offset  # as recovery leaves it
    side.update("maxMessageSize", "9001")
    side.transport.written.clear()
    return side


async def pulled(side: Side) -> tuple[list[bytes], bool]:
    """The bodies that a pull brings, and whether the handlers were asked."""
    handled = side.pull_count
    side.transport.written.clear()
    lay(side.connection, pull_frame(50, 0))
    await asyncio.sleep(0)
    (answer,) = [decode(frame) for frame in frames_of(bytes(side.transport.written))]
    messages = decode_records(bytes(answer.body))
    return [message.body for message in messages], side.pull_count != handled


async def test_what_is_sound_is_given_by_the_feed() -> None:
    side = await restarted_side()
    assert side.store.checked_from == side.store.end_log_offset
    assert await pulled(side) == (BODIES, False)
    side.close()


@pytest.mark.parametrize("name", [*PLACES, *BEHIND])
async def test_what_is_damaged_is_left_out_by_the_handlers(name: str) -> None:
    side = await restarted_side()
    record = bytes(side.store.read("orders", 0, DAMAGED, 1).records[0])
    place = PLACES[name] if name in PLACES else record.rindex(b"orders") + BEHIND[name]
    log_offset = int.from_bytes(record[28:36], "big")
    file = side.store.log.segments.find(log_offset)
    assert file is not None
    at = log_offset - file.first + place
    file.view()[at] ^= 1
    sound = [body for number, body in enumerate(BODIES) if number != DAMAGED]
    assert await pulled(side) == (sound, True)
    file.view()[at] ^= 1
    assert await pulled(side) == (BODIES, False)
    side.close()
