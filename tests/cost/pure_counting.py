"""Calls and bytecodes per message of the broker without its kernel, and their stored baseline.

    python -m tests.cost.pure_counting             prints the counts beside the baseline
    python -m tests.cost.pure_counting --write     makes them the baseline

Counted by the interpreter itself, so no time is measured and no machine matters. Another minor
version of Python makes other bytecode, so its version stands beside the figures, and they are
compared only where it is the same.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

BASELINE = Path(__file__).with_name("pure_baseline.json")
ROOT = Path(__file__).resolve().parents[2]
ALLOWED = 1.10
"""How many times the baseline a path may cost."""
DEADLINE_S = 600

Costs = dict[str, dict[str, float]]
"""Calls and bytecodes per message, by the name of the work."""


def python() -> str:
    """The version that decides about bytecode."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def count() -> Costs:
    """Walk every path in a process without the kernel. Raises RuntimeError if that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.cost.pure_driver"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "TIANZHOU_PURE": "1", "PYTHONHASHSEED": "0"}, check=False,
        timeout=DEADLINE_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the walk failed: {done.stdout}{done.stderr}")
    costs: Costs = json.loads(done.stdout)
    return costs


def read_baseline() -> tuple[str, Costs]:
    """The version of Python that it was counted with, and the figures."""
    stored = json.loads(BASELINE.read_text())
    return stored["python"], stored["per_message"]


def write_baseline(costs: Costs) -> None:
    stored = {"python": python(), "per_message": costs}
    BASELINE.write_text(json.dumps(stored, indent=2) + "\n")


def dearer(costs: Costs, before: Costs) -> list[str]:
    """What costs over a tenth more than it did, with both figures."""
    return [
        f"{name}: {cost} {unit} per message, {before[name][unit]} before"
        for name, by_unit in costs.items()
        for unit, cost in by_unit.items()
        if cost > ALLOWED * before[name][unit]
    ]


def table(costs: Costs, before: Costs) -> str:
    """One line for each figure."""
    lines = [f"{'without the kernel, per message':<40} {'now':>10} {'baseline':>10}"]
    for name, by_unit in costs.items():
        for unit, cost in by_unit.items():
            known = before.get(name, {}).get(unit)
            change = f"{known:>10,.1f} {100 * (cost / known - 1):>+7.1f} %" if known else "-"
            lines.append(f"{f'{name}, {unit}':<40} {cost:>10,.1f} {change:>10}")
    return "\n".join(lines)


def main() -> None:
    costs = count()
    if "--write" in sys.argv[1:]:
        write_baseline(costs)
    counted_with, before = read_baseline()
    sys.stdout.write(table(costs, before) + "\n")
    if counted_with != python():
        sys.stdout.write(f"not comparable: that is of Python {counted_with}, this is {python()}\n")


if __name__ == "__main__":
    main()
