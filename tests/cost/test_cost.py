"""The kernel's paths cost no more instructions than they did; `make cost` shows the figures.

No time is measured. A change that makes a path more expensive on purpose updates the baseline with
`make cost-baseline` and gives the reason.
"""

from pathlib import Path

import pytest

from tests.cost import counting, driver
from tianzhou.protocol import kernel


def _why_not() -> str | None:
    if kernel.WHY_PURE is not None:
        return f"no kernel: {kernel.WHY_PURE}"
    built_with, _ = counting.read_baseline()
    try:
        here = counting.compiler()
    except OSError:
        return "no rustc here, so the compiler of the kernel is unknown"
    if here != built_with:
        return f"the baseline is of {built_with}, the kernel here of {here}"
    return None


@pytest.mark.kernel
def test_no_path_costs_over_ten_percent_more_than_its_baseline() -> None:
    reason = _why_not()
    if reason is not None:
        pytest.skip(reason)
    program = counting.valgrind()
    if program is None:
        pytest.skip("valgrind is missing")
    _, before = counting.read_baseline()
    costs = counting.count(program)
    assert list(costs) == list(before), "works came or went: make cost-baseline"
    dearer = [name for name, cost in costs.items() if cost > counting.ALLOWED * before[name]]
    assert not dearer, f"{', '.join(dearer)}: over the baseline\n{counting.table(costs, before)}"


@pytest.mark.kernel
def test_every_path_has_a_meaningful_baseline() -> None:
    if kernel.WHY_PURE is not None:
        pytest.skip(f"no kernel: {kernel.WHY_PURE}")
    _, before = counting.read_baseline()
    assert list(before) == [work.name for work in driver.works()]
    assert all(100 < cost < 100_000 for cost in before.values()), before


def test_only_instructions_of_the_kernel_count(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.write_text(
        "events: Ir\nob=/usr/lib/libc.so.6\nfn=memcpy\n0 900\n"
        "ob=/x/tianzhou_kernel.abi3.so\nfn=feed\n0 100\n"
        "cob=/usr/lib/libc.so.6\ncfn=memcpy\ncalls=3 0\n0 900\n0 20\n"
        "fn=walk\n0 5\n"
        "ob=/usr/bin/python3\nfn=main\n0 7000\ncob=/x/tianzhou_kernel.abi3.so\ncfn=feed\n"
        "calls=1 0\n0 1025\n0 3\n"
    )
    assert counting.kernel_cost(dump) == 100 + 20 + 5


def test_the_table_shows_changes() -> None:
    shown = counting.table({"send": 110.0, "new": 5.0}, {"send": 100.0})
    assert "+10.0 %" in shown
    assert shown.splitlines()[2].split() == ["new", "5.0", "-"]
