"""Places in queues: how users write them, how streams keep them, what lies between two of them.

Pure functions of values. On paper an offset is `{topic: {broker: {queue: n}}}`; -2 there means
earliest and -1 latest. A stream keeps the same form in its checkpoint, sorted, because Spark
compares offsets as texts. Its very first offset is a mark, `{"start": "latest"}`: Spark asks for it
several times, and again when it repeats batch 0, and must get the same answer every time. The mark
becomes places when batch 0 ends; that batch is empty and only pins them down in the checkpoint.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, cast

from tianzhou.client.queues import Queue
from tianzhou.errors import ConfigError
from tianzhou.spark.options import ReadingOptions

Positions = dict[Queue, int]
"""A queue offset for each queue."""

START = "start"
_EARLIEST, _LATEST = -2, -1
_OFFSET_MAX = 2**63 - 1
_PARTITIONS_AIM = 16
_PARTITION_COUNT_MIN = 32_768
"""Messages of a partition that are not worth dividing any more."""
_SHARE_MIN = 1 / 32
"""Looking at a message that is not read costs about so much of reading it."""


class NamedOffset(Enum):
    """A place that only the cluster can tell."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message stored at that time or later."""

    time_ms: int


OffsetSpec = NamedOffset | AtTime | int
"""Where to begin or end in a queue."""


@dataclass(frozen=True, slots=True)
class OffsetSpecs:
    """Where to begin or end: some queues by name, all others alike."""

    others: OffsetSpec
    named: Mapping[Queue, OffsetSpec]
    option: str = field(default="", compare=False)
    """Which says so."""

    def of(self, queue: Queue) -> OffsetSpec:
        return self.named.get(queue, self.others)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a queue holds now: from `low` to before `high`."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of a queue from `first` to before `stop`."""

    queue: Queue
    first: int
    stop: int

    @property
    def count(self) -> int:
        return max(self.stop - self.first, 0)


@dataclass(frozen=True, slots=True)
class LostRange:
    """Messages that should be read and are not there any more, or never were."""

    queue: Queue
    first: int
    stop: int
    why: str

    def __str__(self) -> str:
        if self.stop - self.first == 1:
            return f"queue {self.queue}: the message at offset {self.first} {self.why}"
        return (
            f"queue {self.queue}: {self.stop - self.first} messages from {self.first} to before "
            f"{self.stop} {self.why}"
        )


# -- on paper --------------------------------------------------------------------------------------


def starting(options: ReadingOptions, default: NamedOffset) -> OffsetSpecs:
    """Where reading begins. Raises ConfigError."""
    if options.starting_timestamp is not None:
        return OffsetSpecs(AtTime(options.starting_timestamp), {})
    if options.starting_offsets_by_timestamp:
        return _by_time(
            "startingOffsetsByTimestamp",
            options.starting_offsets_by_timestamp,
            NamedOffset.EARLIEST,
        )
    return _offset_specs(
        "startingOffsets", options.starting_offsets or default.value, NamedOffset.EARLIEST
    )


def ending(options: ReadingOptions) -> OffsetSpecs:
    """Where reading ends. Raises ConfigError."""
    if options.ending_timestamp is not None:
        return OffsetSpecs(AtTime(options.ending_timestamp), {})
    if options.ending_offsets_by_timestamp:
        return _by_time(
            "endingOffsetsByTimestamp", options.ending_offsets_by_timestamp, NamedOffset.LATEST
        )
    return _offset_specs("endingOffsets", options.ending_offsets, NamedOffset.LATEST)


def _offset_specs(name: str, text: str, others: NamedOffset) -> OffsetSpecs:
    for edge in NamedOffset:
        if text.strip().lower() == edge.value:
            return OffsetSpecs(edge, {})
    numbers = _read(name, text)
    specs = {queue: _offset_spec(name, number) for queue, number in numbers.items()}
    return OffsetSpecs(others, specs, name)


def _offset_spec(name: str, number: int) -> OffsetSpec:
    if number == _EARLIEST:
        return NamedOffset.EARLIEST
    if number == _LATEST:
        return NamedOffset.LATEST
    if number < 0:
        raise ConfigError(f"option {name}: {number} is no offset; -2 is earliest, -1 latest")
    return number


def _by_time(name: str, text: str, others: NamedOffset) -> OffsetSpecs:
    specs: dict[Queue, OffsetSpec] = {
        queue: AtTime(time) for queue, time in _read(name, text).items()
    }
    return OffsetSpecs(others, specs, name)


def _read(name: str, text: str) -> Positions:
    expected = 'earliest, latest, committed or {"topic": {"broker": {"0": 17}}}'
    try:
        return positions_of(json.loads(text))
    except (ValueError, ConfigError) as e:
        raise ConfigError(f"option {name}: {text!r} cannot be used, {expected} expected") from e


def check_named(specs: OffsetSpecs, queues: Iterable[Queue]) -> None:
    """Places in queues that nobody reads are a slip of the pen. Raises ConfigError."""
    for queue in sorted(specs.named.keys() - set(queues)):
        raise ConfigError(f"option {specs.option}: queue {queue} is none of those that are read")


def beyond(specs: OffsetSpecs, bounds: Mapping[Queue, Bounds]) -> list[LostRange]:
    """What lies between the ends of queues and numbers that name places behind them."""
    return [
        LostRange(queue, held.high, spec, "are not there yet")
        for queue, held in sorted(bounds.items())
        if isinstance(spec := specs.of(queue), int) and spec > held.high
    ]


def assigned(text: str) -> frozenset[Queue]:
    """The queues that `{"topic": {"broker": [0, 1]}}` names. Raises ConfigError."""
    wrong = f'option assign: {text!r} cannot be used, {{"topic": {{"broker": [0, 1]}}}} expected'
    try:
        document = json.loads(text)
    except ValueError as e:
        raise ConfigError(wrong) from e
    queues: set[Queue] = set()
    for topic, brokers in _items(document, wrong):
        for broker, numbers in _items(brokers, wrong):
            if not isinstance(numbers, list):
                raise ConfigError(wrong)
            for number in cast(list[object], numbers):
                if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                    raise ConfigError(wrong)
                queues.add(Queue(topic, broker, number))
    if not queues:
        raise ConfigError(wrong)
    return frozenset(queues)


def _items(document: object, wrong: str) -> Iterable[tuple[str, object]]:
    if not isinstance(document, dict):
        raise ConfigError(wrong)
    return cast(dict[str, object], document).items()


# -- in checkpoints --------------------------------------------------------------------------------


def document_of(places: Mapping[Queue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """The form that Spark keeps, always in the same order."""
    document: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(places):
        brokers = document.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = places[queue]
    return document


def positions_of(document: object) -> Positions:
    """The way back. Raises ConfigError for anything else."""
    wrong = f"{str(document)[:200]} is no offset of queues"
    places: Positions = {}
    for topic, brokers in _items(document, wrong):
        for broker, numbers in _items(brokers, wrong):
            for queue_id, number in _items(numbers, wrong):
                if not (queue_id.isascii() and queue_id.isdigit()):
                    raise ConfigError(wrong)
                if not isinstance(number, int) or isinstance(number, bool):
                    raise ConfigError(wrong)
                if not _EARLIEST <= number <= _OFFSET_MAX:
                    raise ConfigError(wrong)
                places[Queue(topic, broker, int(queue_id))] = number
    return places


def start_mark(text: str) -> dict[str, str]:
    """The first offset of every stream."""
    return {START: text}


def is_start(document: Mapping[str, Any]) -> bool:
    """Whether an offset is that mark; a topic of that name has a map behind it."""
    return isinstance(document.get(START), str)


# -- ranges ----------------------------------------------------------------------------------------


def ranges_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> list[Range]:
    """What a batch reads: queues of `end` from where `start` left them; empty ones left out.

    A queue that `start` does not know has come since, and is read from its beginning.
    """
    found = [Range(queue, start.get(queue, 0), stop) for queue, stop in sorted(end.items())]
    return [each for each in found if each.count]


def clip(
    ranges: Iterable[Range], bounds: Mapping[Queue, Bounds], known: Mapping[Queue, int]
) -> tuple[list[Range], list[LostRange]]:
    """The parts of ranges that exist, and what is lost.

    Nobody waits for the beginning of a queue that is not among the `known`: it is new to us.
    """
    kept: list[Range] = []
    lost: list[LostRange] = []
    for each in ranges:
        held = bounds.get(each.queue)
        if held is None:
            kept.append(each)  # its broker is away: reading it will tell
            continue
        first, stop = max(each.first, held.low), min(each.stop, held.high)
        if each.first < held.low and each.queue in known:
            until = min(held.low, each.stop)
            lost.append(LostRange(each.queue, each.first, until, "have been deleted by the broker"))
        if each.stop > held.high:
            since = max(held.high, each.first)
            lost.append(
                LostRange(each.queue, since, each.stop, "are not there, the queue ends before")
            )
        if stop > first:
            kept.append(Range(each.queue, first, stop))
    return kept, lost


def split(
    ranges: list[Range],
    min_partitions: int | None,
    max_records: int | None,
    read_share: float = 1.0,
) -> list[Range]:
    """Ranges cut so that there are enough of them and none is too long; order is kept.

    Unless it is said how, long ranges are cut so that a few cores find work in one queue; they may
    be the longer the fewer of their messages will be read.
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
    """Where everything that is there ends.

    Queues without bounds, whose broker is away, stay where they are. No queue goes back: one that
    was emptied and made anew is the business of `clip`.
    """
    latest = {queue: max(held.high, start.get(queue, 0)) for queue, held in bounds.items()}
    return dict(start) | latest


def resume_positions(start: Mapping[Queue, int], bounds: Mapping[Queue, Bounds]) -> Positions:
    """Where each queue goes on, new ones at their beginning."""
    return {queue: start.get(queue, held.low) for queue, held in bounds.items()} | dict(start)


def count_between(start: Mapping[Queue, int], end: Mapping[Queue, int]) -> int:
    return sum(each.count for each in ranges_between(start, end))


def limited(start: Mapping[Queue, int], end: Mapping[Queue, int], max_count: int) -> Positions:
    """An end that at most `max_count` messages lead to, each queue by its share.

    Something is always left to do if there is something to do.
    """
    ranges = ranges_between(start, end)
    total = sum(each.count for each in ranges)
    places = dict(end)
    if total <= max_count:
        return places
    left = max_count
    for each in ranges:
        # Shares are rounded down and what is left over goes to the first queues that can take it.
        share = each.count * max_count // total
        places[each.queue] = each.first + share
        left -= share
    for each in ranges:
        more = min(left, each.stop - places[each.queue])
        places[each.queue] += more
        left -= more
    return places


def is_batch_due(
    waiting_count: int, min_count: int | None, waited_ms: int, max_delay_ms: int
) -> bool:
    """Whether a batch may begin: enough has come, or it was waited for long enough."""
    return min_count is None or waiting_count >= min_count or waited_ms >= max_delay_ms
