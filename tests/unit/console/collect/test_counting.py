"""Counts of the days are exact, compared with a plain model that counts every message."""

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.console.collect.counting import (
    NO_OFFSET,
    Counted,
    Growth,
    Ledger,
    Position,
    SeriesKey,
    growth,
    split,
)

TOPIC, GROUP = SeriesKey("t"), SeriesKey("t", "g")
OFFSETS = st.lists(st.integers(0, 50), max_size=4).map(tuple)


def test_growth_of_a_topic_is_what_was_added() -> None:
    assert growth((3, 0), (5, 4)) == Growth(6, 0)
    assert growth((3, 0), (3, 0)) == Growth(0, 0)


def test_a_new_queue_of_a_topic_counts_from_zero() -> None:
    assert growth((3,), (4, 7)) == Growth(8, 0)


def test_a_new_queue_of_a_group_begins_to_count() -> None:
    assert growth((3, NO_OFFSET), (4, 900, 50), (10, 1000, 50)) == Growth(1, 0)


def test_an_offset_that_falls_is_a_reset_and_not_consumption() -> None:
    assert growth((30, 5), (10, 6), (40, 10)) == Growth(1, 1)


def test_an_offset_past_the_end_of_its_queue_is_a_reset() -> None:
    assert growth((30,), (900,), (40,)) == Growth(0, 1)
    assert growth((30,), (40,), (40,)) == Growth(10, 0)


def test_catching_up_is_consumption_even_if_nothing_is_produced() -> None:
    assert growth((0,), (1000,), (1000,)) == Growth(1000, 0)


def test_a_queue_that_is_not_reported_changes_nothing() -> None:
    assert growth((30, 4), (NO_OFFSET, 5), (40, 9)) == Growth(1, 0)
    assert growth((30, 4), (31,), (40, 9)) == Growth(1, 0)


@given(OFFSETS, st.lists(OFFSETS, max_size=4), OFFSETS)
def test_the_parts_of_a_growth_add_up(
    before: tuple[int, ...], cuts: list[tuple[int, ...]], now: tuple[int, ...]
) -> None:
    parts = split(before, cuts, now)
    whole = growth(before, now)
    assert sum(each.added for each in parts) == whole.added
    assert sum(each.resets for each in parts) == whole.resets
    assert all(each.added >= 0 for each in parts)


# -- a model of a topic with a group ---------------------------------------------------------------


@dataclass
class Model:
    """A topic of two brokers that counts each message on the day it is sent or consumed."""

    ends: dict[str, list[int]] = field(default_factory=lambda: {"a": [0, 0], "b": [0, 0, 0]})
    done: dict[str, list[int]] = field(default_factory=lambda: {"a": [0, 0], "b": [0, 0, 0]})
    day: int = 1
    produced: dict[int, int] = field(default_factory=dict[int, int])
    consumed: dict[int, int] = field(default_factory=dict[int, int])
    resets: int = 0
    at_midnight: dict[str, list[tuple[int, tuple[int, ...]]]] = field(
        default_factory=lambda: {"a": [], "b": []}
    )

    def send(self, broker: str, queue_id: int, count: int) -> None:
        queue_id %= len(self.ends[broker])
        self.ends[broker][queue_id] += count
        self.produced[self.day] = self.produced.get(self.day, 0) + count

    def consume(self, broker: str, queue_id: int, count: int) -> None:
        queue_id %= len(self.ends[broker])
        count = min(count, self.ends[broker][queue_id] - self.done[broker][queue_id])
        self.done[broker][queue_id] += count
        self.consumed[self.day] = self.consumed.get(self.day, 0) + count

    def rewind(self, broker: str, queue_id: int) -> None:
        queue_id %= len(self.ends[broker])
        self.resets += self.done[broker][queue_id] > 0
        self.done[broker][queue_id] = 0

    def end_day(self) -> None:
        for broker, ends in self.ends.items():
            self.at_midnight[broker].append((self.day, tuple(ends)))
        self.day += 1


def day_name(number: int) -> str:
    return f"2026-01-{number:02}"


@given(st.randoms(use_true_random=False), st.booleans())
def test_the_counts_of_any_history_are_those_of_the_model(
    chance: random.Random, has_restarts: bool
) -> None:
    model, ledger = Model(), Ledger()
    read: dict[str, int] = {"a": 0, "b": 0}
    for broker, ends in model.ends.items():
        for key in (TOPIC, GROUP):
            at = Position((0,) * len(ends), 0)
            ledger.begin(key, broker, at, day_name(1))
    for now in range(1, chance.randint(2, 30)):
        action = chance.random()
        broker, queue_id = chance.choice("ab"), chance.randrange(3)
        if action < 0.45:
            model.send(broker, queue_id, chance.randint(1, 9))
        elif action < 0.8:
            model.consume(broker, queue_id, chance.randint(1, 9))
        elif action < 0.9 and model.day < 9:
            # The groups are read when the day ends; topics are split by offsets at midnight.
            read_group(ledger, model, "a", now)
            read_group(ledger, model, "b", now)
            model.end_day()
        else:
            for each in "ab" if chance.random() < 0.5 else broker:
                read_topic(ledger, model, each, now, read)
                read_group(ledger, model, each, now)
        if has_restarts and chance.random() < 0.2:
            ledger = restarted(ledger)
    for broker in "ab":
        read_topic(ledger, model, broker, 99, read)
        read_group(ledger, model, broker, 99)
    for number in range(1, model.day + 1):
        day, before = day_name(number), day_name(number - 1)
        assert ledger.counted(TOPIC, day, before).today == model.produced.get(number, 0)
        assert ledger.counted(GROUP, day, before).today == model.consumed.get(number, 0)


def read_topic(ledger: Ledger, model: Model, broker: str, now: int, read: dict[str, int]) -> None:
    cuts = [(day_name(day), ends) for day, ends in model.at_midnight[broker] if day > read[broker]]
    ends = tuple(model.ends[broker])
    ledger.add_split(TOPIC, broker, ends, now, day_name(model.day), cuts)
    read[broker] = model.day - 1


def read_group(ledger: Ledger, model: Model, broker: str, now: int) -> None:
    done, ends = tuple(model.done[broker]), tuple(model.ends[broker])
    ledger.add(GROUP, broker, done, now, day_name(model.day), ends)


def restarted(ledger: Ledger) -> Ledger:
    """A ledger with what a database keeps of it."""
    after = Ledger()
    for key, series in ledger.series.items():
        for broker, at in series.positions.items():
            after.begin(key, broker, Position(at.offsets, at.read_ms), series.since)
        after.series[key].days = series.days
    return after


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=20))
def test_resets_are_counted_apart_from_consumption(steps: list[tuple[int, int]]) -> None:
    model, ledger = Model(), Ledger()
    for key in (TOPIC, GROUP):
        ledger.begin(key, "a", Position((0, 0), 0), day_name(1))
    for now, (kind, count) in enumerate(steps):
        if kind == 0:
            model.send("a", count, count)
        elif kind == 1:
            model.consume("a", count, count)
        else:
            model.rewind("a", count)
        read_group(ledger, model, "a", now)
    found = ledger.counted(GROUP, day_name(1), day_name(0))
    assert (found.today, found.resets_today) == (model.consumed.get(1, 0), model.resets)


# -- days that are not known -----------------------------------------------------------------------


def test_a_day_that_was_not_counted_from_its_beginning_is_not_known() -> None:
    ledger = Ledger()
    ledger.begin(TOPIC, "a", Position((5,), 0), day_name(3))
    ledger.add(TOPIC, "a", (9,), 1, day_name(2))
    assert ledger.counted(TOPIC, day_name(2), day_name(1)) == Counted(None, None, 0)
    ledger.add(TOPIC, "a", (11,), 2, day_name(3))
    assert ledger.counted(TOPIC, day_name(3), day_name(2)) == Counted(2, None, 0)
    assert ledger.counted(TOPIC, day_name(4), day_name(3)) == Counted(0, 2, 0)


def test_one_broker_that_was_counted_late_makes_the_day_unknown() -> None:
    ledger = Ledger()
    ledger.begin(TOPIC, "a", Position((5,), 0), day_name(1))
    ledger.begin(TOPIC, "b", Position((5,), 0), day_name(2))
    assert ledger.counted(TOPIC, day_name(1), day_name(0)).today is None
    assert ledger.counted(TOPIC, day_name(2), day_name(1)).today == 0


def test_a_series_that_was_never_read_is_not_known() -> None:
    assert Ledger().counted(TOPIC, day_name(1), day_name(0)) == Counted(None, None, None)


def test_days_that_are_not_written_are_not_forgotten() -> None:
    ledger = Ledger()
    ledger.begin(TOPIC, "a", Position((0,), 0), day_name(1))
    ledger.add(TOPIC, "a", (9,), 1, day_name(1))
    ledger.forget_days(day_name(2))
    assert ledger.counted(TOPIC, day_name(1), day_name(0)).today == 9
    ledger.series[TOPIC].changed.clear()
    ledger.forget_days(day_name(2))
    assert ledger.series[TOPIC].days == {}
