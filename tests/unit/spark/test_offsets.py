"""Offsets in options: valid forms, and errors."""

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from tianzhou.client.queues import Queue
from tianzhou.errors import ConfigError
from tianzhou.spark import offsets
from tianzhou.spark.offsets import AtTime, Bounds, LostRange, NamedOffset, Range
from tianzhou.spark.options import SourceOptions, read_options

ZERO, ONE = Queue("t", "b", 0), Queue("t", "b", 1)


def options(**given: str) -> SourceOptions:
    return read_options(
        SourceOptions, {"subscribe": "t", "nameServer": "a:1", "group": "g"} | given
    )


def test_starting_offsets_are_names_numbers_or_times() -> None:
    assert offsets.starting_specs(options(), NamedOffset.LATEST).of(ZERO) is NamedOffset.LATEST
    committed = offsets.starting_specs(options(startingOffsets="Committed"), NamedOffset.LATEST)
    assert committed.of(ZERO) is NamedOffset.COMMITTED
    named = offsets.starting_specs(
        options(startingOffsets='{"t": {"b": {"0": 17, "1": -1}}}'), NamedOffset.LATEST
    )
    assert (named.of(ZERO), named.of(ONE)) == (17, NamedOffset.LATEST)
    assert named.of(Queue("t", "b", 2)) is NamedOffset.EARLIEST
    timed = offsets.starting_specs(options(startingTimestamp="5"), NamedOffset.LATEST)
    assert timed.of(ZERO) == AtTime(5)
    each = options(endingOffsetsByTimestamp='{"t": {"b": {"0": 9}}}')
    assert offsets.ending_specs(each).of(ZERO) == AtTime(9)
    assert offsets.ending_specs(each).of(ONE) is NamedOffset.LATEST


@pytest.mark.parametrize(
    "text",
    ["soon", "[]", '{"t": 1}', '{"t": {"b": {"x": 1}}}', '{"t": {"b": {"0": -3}}}',
     '{"t": {"b": {"0": true}}}', '{"t": {"b": {"0": 9223372036854775808}}}'],
)  # fmt: skip
def test_invalid_starting_offsets_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="option startingOffsets"):
        offsets.starting_specs(options(startingOffsets=text), NamedOffset.LATEST)


def test_assign_names_single_queues() -> None:
    given = {"nameServer": "a:1", "assign": '{"t": {"b": [0, 1]}}'}
    assert read_options(SourceOptions, given).assign == {ZERO, ONE}
    for text in ("", "{}", '{"t": [0]}', '{"t": {"b": 0}}', '{"t": {"b": [-1]}}'):
        with pytest.raises(ConfigError, match="option assign"):
            read_options(SourceOptions, given | {"assign": text})


def test_the_deleted_beginning_of_a_new_queue_is_no_data_loss() -> None:
    wanted, held = [Range(ZERO, 0, 20)], {ZERO: Bounds(5, 15)}
    kept, lost = offsets.clip(wanted, held, {})
    assert kept == [Range(ZERO, 5, 15)]
    assert lost == [LostRange(ZERO, 15, 20, "are not there, the queue ends before")]
    kept, lost = offsets.clip(wanted, held, {ZERO: 0})
    assert str(lost[0]) == (
        "queue t@b:0: 5 messages from 0 to before 5 have been deleted by the broker"
    )


def test_a_batch_waits_for_the_minimum_until_the_maximum_delay() -> None:
    assert offsets.is_batch_due(1, None, 0, 10)
    assert offsets.is_batch_due(5, 5, 0, 10)
    assert not offsets.is_batch_due(4, 5, 9, 10)
    assert offsets.is_batch_due(4, 5, 10, 10)
