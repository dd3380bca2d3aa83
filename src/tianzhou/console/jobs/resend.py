"""Resending dead letters: chosen ones by their offset ids, or those of ranges of queues.

Ranges are fixed when the job is added, so that letters that die again meanwhile are not resent
without end. The position is stored after every few letters: those that were sent after the last
stored position are sent twice if the console is killed, and consumers recognise them by their id.
"""

from collections.abc import AsyncGenerator

import msgspec

from tianzhou.admin import Admin
from tianzhou.admin.messages import QueueRef, Sent
from tianzhou.admin.redelivery import resendable_dead_letter
from tianzhou.console.jobs.ranges import LetterRange, letters_in
from tianzhou.console.jobs.worker import Running
from tianzhou.console.messages.letters import topic_of
from tianzhou.errors import TianzhouError
from tianzhou.message import StoredMessage
from tianzhou.names import RETRY_TOPIC_PREFIX
from tianzhou.protocol.records.message_id import id_of

STORE_EVERY = 10


class Resend(msgspec.Struct, frozen=True, kw_only=True):
    """What to resend, and where to."""

    group: str
    topic: str = ""
    """Empty: to the group, which gets the letters by its retry topic; no other group does."""
    ids: tuple[str, ...] = ()
    """Offset ids; empty: `ranges`."""
    ranges: tuple[LetterRange, ...] = ()
    begin_ms: int = 0
    end_ms: int = 0
    """Letters stored in [begin_ms, end_ms) of the ranges."""


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where it continues."""

    item: int = 0
    """Of the ids."""
    range: int = 0
    queue_offset: int = 0
    """Of the range; the first offset that is not done."""


def goal_of(body: Resend) -> str:
    """The topic that letters are sent to."""
    return body.topic or RETRY_TOPIC_PREFIX + body.group


async def run(running: Running) -> None:
    """Resend until all are done. Raises JobCancelled, JobLost, TianzhouError."""
    body = msgspec.json.decode(running.body, type=Resend)
    position = Position()
    if running.position:
        position = msgspec.json.decode(running.position, type=Position)
    admin = running.admin
    queues = await admin.messages.write_queues(goal_of(body))
    letters = _chosen(admin, body, position) if body.ids else _ranged(admin, body, position)
    number = 0
    async for subject, letter, after in letters:
        number += 1
        position = after
        if isinstance(letter, TianzhouError):
            running.item(subject, is_ok=False, detail=str(letter))
        elif letter is not None:
            try:
                sent = await _send(admin, body, letter, queues[running.done % len(queues)])
                weak = "" if sent.status == "SEND_OK" else f" ({sent.status})"
                running.item(subject, is_ok=True, detail=f"{sent.message_id}{weak}")
            except TianzhouError as e:
                running.item(subject, is_ok=False, detail=str(e))
        if number % STORE_EVERY == 0:
            await running.store(position)
    running.total = running.done
    await running.store(position)


async def _send(admin: Admin, body: Resend, letter: StoredMessage, queue: QueueRef) -> Sent:
    copy = resendable_dead_letter(letter, goal_of(body), to_group=not body.topic)
    return await admin.messages.send(copy, queue=queue)


Step = tuple[str, StoredMessage | TianzhouError | None, Position]
"""The id of a letter, the letter or why there is none, and the position behind it."""


async def _chosen(admin: Admin, body: Resend, start: Position) -> AsyncGenerator[Step]:
    for item in range(start.item, len(body.ids)):
        offset_id, after = body.ids[item], Position(item=item + 1)
        try:
            letter = await admin.messages.by_offset_id(offset_id)
        except TianzhouError as e:
            yield offset_id, e, after
            continue
        if letter.topic != topic_of(body.group):
            problem = TianzhouError(f"this is not a dead letter of group {body.group}")
            yield offset_id, problem, after
            continue
        yield id_of(letter), letter, after


async def _ranged(admin: Admin, body: Resend, start: Position) -> AsyncGenerator[Step]:
    found = letters_in(
        admin, topic_of(body.group), body.ranges, body.begin_ms, body.end_ms, start.range,
        start.queue_offset,
    )  # fmt: skip
    async for number, message in found:
        after = Position(range=number, queue_offset=message.queue_offset + 1)
        yield id_of(message), message, after
