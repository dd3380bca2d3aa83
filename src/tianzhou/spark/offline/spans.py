"""Which ranges of queues are read together: those whose messages lie beside each other in the log.

Messages of many queues lie mixed in the log. Read queue by queue, every page of it would be looked
at once for each queue; so a partition takes a stretch of the log and of each queue what lies there.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tianzhou.spark.offline.store_files import StoreFiles
from tianzhou.spark.offsets import Range
from tianzhou.store.config import ENTRY_BYTES

# A task costs Spark some 50 ms of CPU, whatever it does; in that time a core reads some 20 MiB.
_SPAN_BYTES_MIN, _SPAN_BYTES_MAX = 64 * 1024 * 1024, 256 * 1024 * 1024
_SPANS_AIM = 16
_SAMPLES = 64

_Entry = tuple[int, int]
"""Where a message lies in the log, and its size."""


def spans(
    files: StoreFiles, ranges: list[Range], read_share: float = 1.0
) -> list[tuple[Range, ...]]:
    """Ranges cut at places of the log that divide their messages about evenly.

    Every message of the ranges is in exactly one span, wherever it lies. `read_share` is how much
    of the bytes will be read, about: there are fewer spans where little is.
    """
    lookups = [(each, _entries(files, each)) for each in ranges]
    edges = _edges(lookups, read_share)
    found: list[list[Range]] = [[] for _ in range(len(edges) + 1)]
    for each, entry_at in lookups:

        def log_offset_at(queue_offset: int, entry_at: Callable[[int], _Entry] = entry_at) -> int:
            return entry_at(queue_offset)[0]

        places = range(each.first, each.stop)
        cuts = [each.first + bisect_left(places, edge, key=log_offset_at) for edge in edges]
        # Entries may be out of order where a queue was repaired; a cut never goes back.
        cuts = np.maximum.accumulate([each.first, *cuts, each.stop]).tolist()
        for number, (first, stop) in enumerate(pairwise(cuts)):
            if stop > first:
                found[number].append(Range(each.queue, first, stop))
    return [tuple(each) for each in found if each]


def _entries(files: StoreFiles, part: Range) -> Callable[[int], _Entry]:
    """Looks up the entry of a queue offset; zeros where there is none."""
    parts = files.queue_files(part.queue.topic, part.queue.queue_id)
    begins = [begin for begin, _ in parts]

    def entry_at(queue_offset: int) -> _Entry:
        number = bisect_right(begins, queue_offset) - 1
        if number < 0:
            return 0, 0
        begin, entries = parts[number]
        if queue_offset - begin >= len(entries):
            return 0, 0
        entry = entries[queue_offset - begin]
        return int(entry["log"]), int(entry["size"])

    return entry_at


def _edges(lookups: list[tuple[Range, Callable[[int], _Entry]]], read_share: float) -> list[int]:
    """Places of the log between spans, by a few messages of each range."""
    samples: list[tuple[int, int, float]] = []
    for each, entry_at in lookups:
        count = min(_SAMPLES, each.count)
        for number in range(count):
            log_offset, size = entry_at(each.first + each.count * number // count)
            samples.append((log_offset, min(size, _SPAN_BYTES_MIN), each.count / count))
    read_bytes = sum((size * read_share + ENTRY_BYTES) * weight for _, size, weight in samples)
    aim = min(max(read_bytes / _SPANS_AIM, _SPAN_BYTES_MIN), _SPAN_BYTES_MAX)
    # An even number, as machines have of cores.
    span_count = 2 * round(read_bytes / aim / 2 + 0.25)
    if span_count < 2:
        return []
    samples.sort()
    passed = np.cumsum([weight for _, _, weight in samples])
    wanted = [float(passed[-1]) * number / span_count for number in range(1, span_count)]
    return sorted({samples[int(np.searchsorted(passed, each))][0] for each in wanted})
