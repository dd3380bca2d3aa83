"""Many messages cut into requests, and their results put together again.

Messages of one topic that wait in the same way share a batch, up to a size; what no batch takes
goes alone. Values in, values out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from tianzhou.client import sending
from tianzhou.client.identity import unique_ids
from tianzhou.client.message import Message
from tianzhou.client.sending import Outgoing, Packing, SendResult
from tianzhou.errors import SendManyError, TianzhouError


@dataclass(frozen=True, slots=True)
class Part:
    """What one request carries."""

    places: Sequence[int]
    """Which of the messages."""
    batch: Outgoing | None = None
    """None: it is one message, sent like any other."""


def cut(
    messages: Sequence[Message],
    wire_topic: Callable[[str], str],
    packing: Packing,
    *,
    namespace: str,
    batch_bytes: int,
    batch_count: int,
) -> list[Part]:
    """The requests that messages take. Raises MessageRefused."""
    kinds, alone = _kinds(messages)
    parts = [Part((at,)) for at in alone]
    for (name, wait_stored), places in kinds.items():
        topic = wire_topic(name)
        ids = unique_ids.take(len(places))
        items = [
            sending.item_pieces(messages[at], unique_id, namespace)
            for at, unique_id in zip(places, ids, strict=True)
        ]
        sizes_bytes = [len(head) + len(body) + len(tail) for head, body, tail in items]
        for stretch in sending.split(sizes_bytes, batch_bytes, batch_count):
            own = slice(stretch.start, stretch.stop)
            if len(stretch) == 1:
                parts.append(Part(places[own]))  # alone it may be compressed
                continue
            batch = sending.outgoing_batch(
                topic, chain.from_iterable(items[own]), ids[own], packing, wait_stored=wait_stored
            )
            parts.append(Part(places[own], batch))
    return parts


def _kinds(messages: Sequence[Message]) -> tuple[dict[tuple[str, bool], list[int]], list[int]]:
    """Which messages may share a batch, by topic and way of waiting; and which go alone."""
    kinds: dict[tuple[str, bool], list[int]] = {}
    alone: list[int] = []
    last, places = ("", False), alone
    for at, message in enumerate(messages):
        if not sending.may_batch(message):
            alone.append(at)
            continue
        kind = (message.topic, message.wait_stored)
        if kind != last:
            last, places = kind, kinds.setdefault(kind, [])
        places.append(at)
    return kinds, alone


def merged(
    group: str,
    count: int,
    parts: Sequence[Part],
    outcomes: Sequence[list[SendResult] | BaseException],
) -> list[SendResult]:
    """Results in the order of the messages. Raises SendManyError if one is missing."""
    if len(parts) == 1 and not isinstance(outcomes[0], BaseException):
        return outcomes[0]
    found: list[SendResult | BaseException | None] = [None] * count
    errors: list[BaseException] = []
    for part, outcome in zip(parts, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            errors.append(outcome)
        for number, at in enumerate(part.places):
            found[at] = outcome if isinstance(outcome, BaseException) else outcome[number]
    results = [each for each in found if isinstance(each, SendResult)]
    if not errors:
        return results
    raise SendManyError(
        f"group {group}: {count - len(results)} of {count} messages are not stored, the first "
        f"because: {errors[0]}",
        outcomes=list[object](found),
        retriable=all(isinstance(each, TianzhouError) and each.retriable for each in errors),
    ) from errors[0]
