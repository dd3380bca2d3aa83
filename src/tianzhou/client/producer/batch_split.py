"""Splits many messages into requests, and merges their outcomes.

Messages of one topic with the same `wait_stored` share a batch, up to a size; messages that cannot
be batched are sent alone. If the program chose queues, a batch is for one queue, and the requests
for a queue form a sequence: they are sent one after another, which keeps the order. Sans-IO.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from tianzhou.client.identity import unique_ids
from tianzhou.client.message import Message
from tianzhou.client.queues import Queue
from tianzhou.client.sending import send_request
from tianzhou.client.sending.send_request import Outgoing, SendResult
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.errors import SendManyError, TianzhouError


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """The messages of one request."""

    indexes: Sequence[int]
    """Indexes of the messages."""
    batch: Outgoing | None = None
    """None for a single message, which is sent by itself."""
    queue: Queue | None = None
    """The chosen queue, with the topic's name on the wire."""


SendOutcome = SendResult | BaseException
"""The result or the error of one message."""
_Kind = tuple[str, bool, Queue | None]


def split_into_requests(
    messages: Sequence[Message],
    wire_topic: Callable[[str], str],
    settings: ProducerSettings,
    queues: Sequence[Queue] | None = None,
) -> list[SplitRequest]:
    """The requests for messages; `queues` has the chosen queue of each. Raises MessageRefused."""
    kinds, alone = _kinds(messages, queues)
    requests = [SplitRequest((at,), queue=queues[at] if queues else None) for at in alone]
    for (name, wait_stored, queue), indexes in kinds.items():
        topic = wire_topic(name)
        ids = unique_ids.next_many(len(indexes))
        items = [
            send_request.item_pieces(messages[at], unique_id, settings.namespace)
            for at, unique_id in zip(indexes, ids, strict=True)
        ]
        sizes_bytes = [len(head) + len(body) + len(tail) for head, body, tail in items]
        for stretch in send_request.split(sizes_bytes, settings.batch_bytes, settings.batch_count):
            own = slice(stretch.start, stretch.stop)
            if len(stretch) == 1:
                requests.append(
                    SplitRequest(indexes[own], queue=queue)
                )  # sent alone it may be compressed
                continue
            batch = send_request.outgoing_batch(
                topic, chain.from_iterable(items[own]), ids[own], settings, wait_stored=wait_stored
            )
            requests.append(SplitRequest(indexes[own], batch, queue))
    return requests


def _kinds(
    messages: Sequence[Message], queues: Sequence[Queue] | None
) -> tuple[dict[_Kind, list[int]], list[int]]:
    """Indexes of messages that may share a batch, by topic, wait_stored and queue; and the rest."""
    kinds: dict[_Kind, list[int]] = {}
    alone: list[int] = []
    last: _Kind = ("", False, None)
    indexes = alone
    for at, message in enumerate(messages):
        if not send_request.may_batch(message):
            alone.append(at)
            continue
        kind = (message.topic, message.wait_stored, queues[at] if queues else None)
        if kind != last:
            last, indexes = kind, kinds.setdefault(kind, [])
        indexes.append(at)
    return kinds, alone


def request_sequences(requests: Sequence[SplitRequest]) -> list[list[int]]:
    """Indexes of requests to send one after another: those of one queue. Others run in parallel."""
    by_queue: dict[Queue, list[int]] = {}
    free: list[list[int]] = []
    for number in sorted(range(len(requests)), key=lambda at: requests[at].indexes[0]):
        queue = requests[number].queue
        if queue is None:
            free.append([number])
        else:
            by_queue.setdefault(queue, []).append(number)
    return [*free, *by_queue.values()]


def merge_outcomes(
    group: str,
    count: int,
    requests: Sequence[SplitRequest],
    outcomes: Sequence[Sequence[SendOutcome]],
) -> list[SendResult]:
    """Results in the order of the messages. Raises SendManyError if one is missing."""
    merged: list[SendOutcome | None] = [None] * count
    for request, own in zip(requests, outcomes, strict=True):
        for at, outcome in zip(request.indexes, own, strict=True):
            merged[at] = outcome
    results = [each for each in merged if isinstance(each, SendResult)]
    if len(results) == count:
        return results
    errors = [each for each in merged if isinstance(each, BaseException)]
    raise SendManyError(
        f"group {group}: {len(errors)} of {count} messages are not stored, the first because: "
        f"{errors[0]}",
        outcomes=list[object](merged),
        retriable=all(isinstance(each, TianzhouError) and each.retriable for each in errors),
    ) from errors[0]
