"""Without the kernel a message costs no more calls and bytecodes than it did (`make cost`).

No time is measured. Whoever makes a path dearer on purpose writes the new baseline with
`make cost-baseline` and says why.
"""

import pytest

from tests.cost import pure_counting


def test_no_path_costs_over_a_tenth_more_than_its_baseline() -> None:
    counted_with, before = pure_counting.read_baseline()
    if counted_with != pure_counting.python():
        pytest.skip(f"the baseline is of Python {counted_with}, this is {pure_counting.python()}")
    costs = pure_counting.count()
    assert list(costs) == list(before), "works came or went: make cost-baseline"
    dearer = pure_counting.dearer(costs, before)
    assert not dearer, "\n".join([*dearer, pure_counting.table(costs, before)])


def test_a_tenth_more_is_let_pass_and_what_is_beyond_it_is_named() -> None:
    before = {"send": {"calls": 100.0, "bytecodes": 2000.0}}
    assert not pure_counting.dearer({"send": {"calls": 110.0, "bytecodes": 1000.0}}, before)
    (told,) = pure_counting.dearer({"send": {"calls": 90.0, "bytecodes": 2201.0}}, before)
    assert told == "send: 2201.0 bytecodes per message, 2000.0 before"


def test_the_table_shows_what_has_changed() -> None:
    shown = pure_counting.table(
        {"send": {"calls": 110.0}, "new": {"calls": 5.0}}, {"send": {"calls": 100.0}}
    )
    assert "+10.0 %" in shown
    assert shown.splitlines()[2].split() == ["new,", "calls", "5.0", "-"]
