"""Positions and ranges: no message is read twice or skipped."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from tianzhou.client.queues import Queue
from tianzhou.spark import offsets
from tianzhou.spark.offsets import Bounds, Range

queues = st.builds(
    Queue, st.sampled_from(["start", "orders", "é"]), st.sampled_from("ab"), st.integers(0, 3)
)
places = st.dictionaries(queues, st.integers(0, 1000), max_size=6)
bounds = st.dictionaries(
    queues,
    st.tuples(st.integers(0, 500), st.integers(0, 500)).map(lambda it: Bounds(it[0], sum(it))),
    max_size=6,
)


def offsets_of(ranges: list[Range]) -> list[tuple[Queue, int]]:
    return [(each.queue, place) for each in ranges for place in range(each.first, each.stop)]


@given(places)
def test_positions_survive_a_checkpoint(given_places: offsets.Positions) -> None:
    document = offsets.document_of(given_places)
    text = json.dumps(document)
    assert offsets.positions_of(json.loads(text)) == given_places
    shuffled = dict(reversed(list(given_places.items())))
    assert json.dumps(offsets.document_of(shuffled)) == text
    assert not offsets.is_start(document)
    assert offsets.is_start({offsets.START: "latest"})


@given(
    places,
    places,
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 400),
    st.floats(0.0, 1.0),
)
def test_partitions_cover_a_range_once_and_in_order(
    start: offsets.Positions,
    end: offsets.Positions,
    least: int | None,
    most: int | None,
    share: float,
) -> None:
    ranges = offsets.ranges_between(start, end)
    parts = offsets.split(ranges, least, most, share)
    assert offsets_of(parts) == offsets_of(ranges)
    assert all(part.count for part in parts)
    if most:
        assert all(part.count <= most for part in parts)
    if least and sum(each.count for each in ranges) >= least:
        assert len(parts) >= least


@given(places, places, st.integers(1, 2000))
def test_a_limit_is_respected_and_used_up(
    start: offsets.Positions, end: offsets.Positions, limit: int
) -> None:
    available = offsets.count_between(start, end)
    limited = offsets.limit_count(start, end, limit)
    assert limited.keys() == end.keys()
    assert offsets.count_between(start, limited) == min(available, limit)
    assert all(limited[queue] <= place for queue, place in end.items())


@given(places, bounds, st.integers(1, 100))
def test_a_stream_reads_every_message_once_with_any_limits(
    known: offsets.Positions, held: dict[Queue, Bounds], limit: int
) -> None:
    start = {queue: min(place, held[queue].high) for queue, place in known.items() if queue in held}
    goal = offsets.advance(start, held)
    read: list[tuple[Queue, int]] = []
    at = start
    while True:
        begin = offsets.resume_positions(at, held)
        end = offsets.limit_count(begin, offsets.advance(at, held), limit)
        kept, lost = offsets.clip(offsets.ranges_between(at, end), held, at)
        read += offsets_of(kept)
        assert all(each.queue in start for each in lost)
        if end == at:
            break
        at = end
    assert at == goal
    wanted = [
        (queue, place)
        for queue, each in held.items()
        for place in range(max(start.get(queue, 0), each.low), each.high)
    ]
    assert sorted(read) == sorted(wanted)


@given(places, places, bounds)
def test_every_wanted_offset_is_kept_or_lost(
    start: offsets.Positions, end: offsets.Positions, held: dict[Queue, Bounds]
) -> None:
    ranges = offsets.ranges_between(start, end)
    kept, lost = offsets.clip(ranges, held, start | dict.fromkeys(end, 0))
    gone = [(each.queue, place) for each in lost for place in range(each.first, each.stop)]
    assert sorted(offsets_of(kept) + gone) == sorted(offsets_of(ranges))
