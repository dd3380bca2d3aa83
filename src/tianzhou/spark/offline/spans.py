"""Partitions of a store directory by section of the log.

The log interleaves the messages of all queues. Reading queue by queue would read every page of the
log once per queue; so a partition is a section of the log with the queue ranges inside it.
"""

from bisect import bisect_left
from functools import partial
from itertools import pairwise

import numpy as np

from tianzhou.spark.offline.store_files import Entries, StoreFiles, entry_at
from tianzhou.spark.offsets import Range
from tianzhou.store.config import ENTRY_BYTES

# An empty task costs about 50 ms of CPU; in that time a core reads about 20 MiB.
_SPAN_BYTES_MIN, _SPAN_BYTES_MAX = 64 * 1024 * 1024, 256 * 1024 * 1024
_SPANS_AIM = 16
_SAMPLES = 64
_SIZE_MIN = -(2**31)


def spans(
    files: StoreFiles, ranges: list[Range], read_share: float = 1.0
) -> list[tuple[Range, ...]]:
    """Split ranges at log offsets that divide their messages about evenly.

    Every message of the ranges is in exactly one span. `read_share` is the estimated share of bytes
    that will be read: a smaller share gives fewer spans.
    """
    lookups = [(each, files.queue_files(each.queue)) for each in ranges]
    edges = _edges(lookups, read_share)
    found: list[list[Range]] = [[] for _ in range(len(edges) + 1)]
    for each, queue_files in lookups:
        queue_offsets = range(each.first, each.stop)
        before, key = [(edge, _SIZE_MIN) for edge in edges], partial(entry_at, queue_files)
        cuts = [each.first + bisect_left(queue_offsets, edge, key=key) for edge in before]
        # Entries may be out of order where a queue was repaired; cuts must not decrease.
        cuts = np.maximum.accumulate([each.first, *cuts, each.stop]).tolist()
        for number, (first, stop) in enumerate(pairwise(cuts)):
            if stop > first:
                found[number].append(Range(each.queue, first, stop))
    return [tuple(each) for each in found if each]


def _edges(lookups: list[tuple[Range, list[tuple[int, Entries]]]], read_share: float) -> list[int]:
    """Log offsets between spans, estimated from samples of each range."""
    samples: list[tuple[int, int, float]] = []
    for each, queue_files in lookups:
        count = min(_SAMPLES, each.count)
        for number in range(count):
            log_offset, size = entry_at(queue_files, each.first + each.count * number // count)
            samples.append((log_offset, min(size, _SPAN_BYTES_MIN), each.count / count))
    read_bytes = sum((size * read_share + ENTRY_BYTES) * weight for _, size, weight in samples)
    aim = min(max(read_bytes / _SPANS_AIM, _SPAN_BYTES_MIN), _SPAN_BYTES_MAX)
    # An even number of spans fits the usual core counts.
    span_count = 2 * round(read_bytes / aim / 2 + 0.25)
    if span_count < 2:
        return []
    samples.sort()
    passed = np.cumsum([weight for _, _, weight in samples])
    wanted = [float(passed[-1]) * number / span_count for number in range(1, span_count)]
    return sorted({samples[int(np.searchsorted(passed, each))][0] for each in wanted})
