"""Ranges of dead letters, fixed when a job is added, and walking through them."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

import msgspec

from tianzhou.admin import Admin
from tianzhou.admin.message_search import QueueRange
from tianzhou.admin.messages import QueueRef
from tianzhou.errors import TargetError
from tianzhou.message import StoredMessage


class LetterRange(msgspec.Struct, frozen=True):
    """The offsets [begin, end) of one queue of a dead-letter topic."""

    broker: str
    queue: int
    begin: int
    end: int


def as_ranges(found: Iterable[QueueRange]) -> tuple[LetterRange, ...]:
    """Ranges as the body of a job has them; empty ones are left out."""
    return tuple(
        LetterRange(each.queue.broker.name, each.queue.queue_id, each.begin, each.end)
        for each in found
        if each.begin < each.end
    )


async def letters_in(
    admin: Admin, topic: str, ranges: Sequence[LetterRange], begin_ms: int, end_ms: int,
    first_range: int = 0, first_offset: int = 0,
) -> AsyncGenerator[tuple[int, StoredMessage]]:  # fmt: skip
    """The letters of ranges stored in [begin_ms, end_ms), with the number of their range.

    Raises TargetError if a broker is not there any more.
    """
    queues = await admin.messages.read_queues(topic)
    for number in range(first_range, len(ranges)):
        each = ranges[number]
        at = _queue(queues, each)
        begin = max(each.begin, first_offset if number == first_range else 0)
        async with aclosing(admin.messages.walk(at, begin, each.end)) as messages:
            async for message in messages:
                if begin_ms <= message.store_time_ms < end_ms:
                    yield number, message


def _queue(queues: Iterable[QueueRef], wanted: LetterRange) -> QueueRef:
    for at in queues:
        if (at.broker.name, at.queue_id) == (wanted.broker, wanted.queue):
            return at
    raise TargetError(
        f"no nameserver lists queue {wanted.queue} on {wanted.broker} any more: its dead letters "
        "cannot be read"
    )
