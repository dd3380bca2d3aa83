"""Queue offsets: their form in options and checkpoints, and the ranges between two sets of them.

Functions of values, without I/O. In options an offset is `{topic: {broker: {queue: n}}}` with -2
for earliest and -1 for latest. A stream keeps the same form in its checkpoint, sorted, because
Spark compares offsets as texts. Its initial offset is a marker, `{"start": "latest"}`: Spark asks
for it several times, and again when it repeats batch 0, and must get the same result every time.
Batch 0 is empty; at its end the marker is resolved to positions, which go into the checkpoint.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from tianzhou.client.queues import Queue
from tianzhou.errors import ConfigError, DataLost
from tianzhou.spark.options import ReadingOptions

log = logging.getLogger(__name__)

Positions = dict[Queue, int]
"""A queue offset for each queue."""

START = "start"
DELETED = "have been deleted by the broker"
BEYOND_END = "are not there, the queue ends before"
NOT_YET = "are not there yet"
_PARTITIONS_AIM = 16
_PARTITION_COUNT_MIN = 32_768
"""Ranges of fewer messages are not split unless the options require it."""
_SHARE_MIN = 1 / 32
"""Cost of a message that a filter rejects, relative to one that is read."""


class NamedOffset(Enum):
    """An offset that the cluster has to resolve."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The offset of the first message stored at that time or later."""

    time_ms: int


OffsetSpec = NamedOffset | AtTime | int
"""Where to begin or end in a queue, before it is resolved to a queue offset."""

_NAMED = {each.value: each for each in NamedOffset}
_NUMBERED = {-2: NamedOffset.EARLIEST, -1: NamedOffset.LATEST}
_Offset = Annotated[int, msgspec.Meta(ge=min(_NUMBERED), le=2**63 - 1)]
_DOCUMENT = dict[str, dict[str, dict[Annotated[str, msgspec.Meta(pattern=r"\A[0-9]+\Z")], _Offset]]]
"""Queue offsets by topic, broker and queue id, as in options and checkpoints."""


@dataclass(frozen=True, slots=True)
class OffsetSpecs:
    """Where to begin or end: a default for all queues, and specs of single queues."""

    default: OffsetSpec
    named: Mapping[Queue, OffsetSpec]
    option: str = field(default="", compare=False)
    """The option that they come from, for errors."""

    def of(self, queue: Queue) -> OffsetSpec:
        return self.named.get(queue, self.default)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets that a queue holds now: `low` inclusive, `high` exclusive."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of a queue: `first` inclusive, `stop` exclusive."""

    queue: Queue
    first: int
    stop: int

    @property
    def count(self) -> int:
        return max(self.stop - self.first, 0)


@dataclass(frozen=True, slots=True)
class LostRange(Range):
    """Offsets that should be read but have no messages: deleted, damaged or not written yet."""

    why: str

    def __str__(self) -> str:
        if self.count == 1:
            return f"queue {self.queue}: the message at offset {self.first} {self.why}"
        return (
            f"queue {self.queue}: {self.count} messages from {self.first} to before {self.stop} "
            f"{self.why}"
        )


def report_loss(lost: Sequence[LostRange | str], *, fail: bool) -> None:
    """Raise DataLost if `fail`, else log the losses: an error, or a warning and a gap."""
    if not lost:
        return
    text = "; ".join(map(str, lost))
    if fail:
        raise DataLost(f"{text}. The option failOnDataLoss=false skips lost messages")
    log.warning("lost: %s", text)


# -- options ---------------------------------------------------------------------------------------


def starting_specs(options: ReadingOptions, default: NamedOffset) -> OffsetSpecs:
    """Where reading begins. Raises ConfigError."""
    return _specs(
        "starting",
        options.starting_offsets or default.value,
        options.starting_timestamp,
        options.starting_offsets_by_timestamp,
        NamedOffset.EARLIEST,
    )


def ending_specs(options: ReadingOptions) -> OffsetSpecs:
    """Where reading ends. Raises ConfigError."""
    return _specs(
        "ending",
        options.ending_offsets,
        options.ending_timestamp,
        options.ending_offsets_by_timestamp,
        NamedOffset.LATEST,
    )


def _specs(
    edge: str, text: str, time_ms: int | None, times: str, default: NamedOffset
) -> OffsetSpecs:
    specs: dict[Queue, OffsetSpec]
    if time_ms is not None:
        return OffsetSpecs(AtTime(time_ms), {})
    if times:
        name = f"{edge}OffsetsByTimestamp"
        specs = {queue: AtTime(time) for queue, time in _read(name, times).items()}
        return OffsetSpecs(default, specs, name)
    if text in _NAMED:
        return OffsetSpecs(_NAMED[text], {})
    name = f"{edge}Offsets"
    specs = {queue: _NUMBERED.get(number, number) for queue, number in _read(name, text).items()}
    return OffsetSpecs(default, specs, name)


def _read(name: str, text: str) -> Positions:
    expected = 'earliest, latest, committed or {"topic": {"broker": {"0": 17}}}'
    try:
        return positions_of(json.loads(text))
    except (ValueError, ConfigError) as e:
        raise ConfigError(f"option {name}: {text!r} cannot be used, {expected} expected") from e


def check_named(specs: OffsetSpecs, queues: Iterable[Queue]) -> None:
    """Raises ConfigError for a spec of a queue that is not read: a likely typo."""
    for queue in sorted(specs.named.keys() - set(queues)):
        raise ConfigError(f"option {specs.option}: queue {queue} is none of those that are read")


def beyond_end(specs: OffsetSpecs, bounds: Mapping[Queue, Bounds]) -> list[LostRange]:
    """The ranges between the ends of queues and specified offsets beyond them."""
    return [
        LostRange(queue, held.high, spec, NOT_YET)
        for queue, held in sorted(bounds.items())
        if isinstance(spec := specs.of(queue), int) and spec > held.high
    ]


# -- checkpoints -----------------------------------------------------------------------------------


def document_of(positions: Mapping[Queue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Positions in the form of the checkpoint, sorted."""
    document: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(positions):
        brokers = document.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = positions[queue]
    return document


def positions_of(document: object) -> Positions:
    """The inverse of `document_of`. Raises ConfigError for anything else."""
    try:
        positions = msgspec.convert(document, _DOCUMENT)
    except msgspec.ValidationError as e:
        raise ConfigError(f"{str(document)[:200]} is not a map of queue offsets: {e}") from e
    return {
        Queue(topic, broker, int(queue_id)): number
        for topic, brokers in positions.items()
        for broker, numbers in brokers.items()
        for queue_id, number in numbers.items()
    }


def is_start(document: Mapping[str, Any]) -> bool:
    """Whether an offset is the initial marker; a topic of that name has a map as its value."""
    return isinstance(document.get(START), str)


# -- ranges ----------------------------------------------------------------------------------------


def ranges_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[Range]:
    """The non-empty ranges from `start` to `end`.

    A queue that is not in `start` is new and is read from its beginning.
    """
    found = [Range(queue, start.get(queue, 0), stop) for queue, stop in sorted(end.items())]
    return [each for each in found if each.count]


def clip(
    ranges: Iterable[Range], bounds: Mapping[Queue, Bounds], known: Mapping[Queue, int]
) -> tuple[list[Range], list[LostRange]]:
    """The parts of ranges that exist, and the lost parts.

    The missing beginning of a queue that is not in `known` is no loss: the queue is new.
    """
    existing: list[Range] = []
    lost: list[LostRange] = []
    for each in ranges:
        held = bounds.get(each.queue)
        if held is None:
            existing.append(each)  # its broker is unavailable: reading it will show
            continue
        first, stop = max(each.first, held.low), min(each.stop, held.high)
        if each.first < held.low and each.queue in known:
            until = min(held.low, each.stop)
            lost.append(LostRange(each.queue, each.first, until, DELETED))
        if each.stop > held.high:
            since = max(held.high, each.first)
            lost.append(LostRange(each.queue, since, each.stop, BEYOND_END))
        if stop > first:
            existing.append(Range(each.queue, first, stop))
    return existing, lost


def split(
    ranges: list[Range],
    min_partitions: int | None,
    max_records: int | None,
    read_share: float = 1.0,
) -> list[Range]:
    """Split ranges into at least `min_partitions` parts of at most `max_records`, in order.

    Without these limits, long ranges are split so that several cores share one queue; the smaller
    the share of messages that will be read, the longer the parts.
    """
    total = sum(each.count for each in ranges)
    min_count = int(_PARTITION_COUNT_MIN / max(read_share, _SHARE_MIN))
    limit = max_records or max(total // _PARTITIONS_AIM, min_count)
    if min_partitions and total:
        limit = min(limit, max(total // min_partitions, 1))
    parts: list[Range] = []
    for each in ranges:
        pieces = max(-(-each.count // limit), 1)
        edges = [each.first + each.count * number // pieces for number in range(pieces + 1)]
        parts += [Range(each.queue, first, stop) for first, stop in pairwise(edges) if stop > first]
    return parts


# -- streams ---------------------------------------------------------------------------------------


def advance(start: Mapping[Queue, int], bounds: Mapping[Queue, Bounds]) -> Positions:
    """The end positions of everything that the queues hold.

    Queues without bounds, whose broker is unavailable, stay at their position. No position goes
    back: `clip` handles a queue that was deleted and created again.
    """
    latest = {queue: max(held.high, start.get(queue, 0)) for queue, held in bounds.items()}
    return dict(start) | latest


def resume_positions(start: Mapping[Queue, int], bounds: Mapping[Queue, Bounds]) -> Positions:
    """The start positions of the next batch; new queues start at their beginning."""
    return {queue: start.get(queue, held.low) for queue, held in bounds.items()} | dict(start)


def count_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> int:
    return sum(each.count for each in ranges_between(start, end))


def limit_count(start: Mapping[Queue, int], end: Mapping[Queue, int], max_count: int) -> Positions:
    """The end of a batch of at most `max_count` messages, in proportion to what each queue has.

    It is beyond `start` if `end` is.
    """
    ranges = ranges_between(start, end)
    total = sum(each.count for each in ranges)
    positions = dict(end)
    if total <= max_count:
        return positions
    left = max_count
    for each in ranges:
        # Shares are rounded down; the first queues that have more get the rest.
        share = each.count * max_count // total
        positions[each.queue] = each.first + share
        left -= share
    for each in ranges:
        more = min(left, each.stop - positions[each.queue])
        positions[each.queue] += more
        left -= more
    return positions


def is_batch_due(
    waiting_count: int, min_count: int | None, waited_ms: int, max_delay_ms: int
) -> bool:
    """Whether a batch may begin: enough messages are available, or the maximum delay has passed."""
    return min_count is None or waiting_count >= min_count or waited_ms >= max_delay_ms
