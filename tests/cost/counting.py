"""Instructions per message of the kernel's paths, counted by valgrind, and the stored baseline.

    python -m tests.cost.counting             prints the counts beside the baseline
    python -m tests.cost.counting --write     makes them the baseline

Only instructions of the kernel's own library count: the speed and load of the machine do not
matter, nor does the version of Python. Another Rust compiler generates other code, so its version
is stored with the figures, and they are compared only if it is the same. Instructions of the C
library (copying, allocating) and of Python (creating objects) are not included.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cost.driver import MARK, TIMES

BASELINE = Path(__file__).with_name("baseline.json")
ROOT = Path(__file__).resolve().parents[2]
ALLOWED = 1.10
"""The maximum cost of a path relative to the baseline."""
DEADLINE_S = 1200

Costs = dict[str, float]
"""Instructions per message, by the name of the path."""


def valgrind() -> str | None:
    """The program, if it is installed."""
    return shutil.which("valgrind")


def compiler() -> str:
    """The Rust compiler that the kernel is built with here, and for which machine."""
    shown = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True)
    release, host = (
        re.search(rf"^{key}: (.+)$", shown.stdout, re.M) for key in ("release", "host")
    )
    assert release is not None, shown.stdout
    assert host is not None, shown.stdout
    return f"rustc {release[1]} for {host[1]}"


def count(program: str) -> Costs:
    """Run every path under callgrind. Raises RuntimeError with its output if that fails."""
    with tempfile.TemporaryDirectory(prefix="cost-") as folder:
        out = Path(folder) / "out"
        command = [
            program, "--tool=callgrind", f"--dump-before={MARK}", "--compress-strings=no",
            "--compress-pos=no", f"--callgrind-out-file={out}", sys.executable, "-m",
            "tests.cost.driver",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
            timeout=DEADLINE_S,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"the walk under valgrind failed: {done.stdout}{done.stderr}")
        costs: Costs = {}
        for number, line in enumerate(done.stdout.splitlines()):
            message_count, _, name = line.partition("\t")
            # Three dumps for each path: the set-up, one run, and `TIMES` runs.
            once, more = (kernel_cost(Path(f"{out}.{3 * number + part}")) for part in (2, 3))
            costs[name] = round((more - once) / (TIMES - 1) / int(message_count), 1)
    return costs


def kernel_cost(dump: Path) -> int:
    """Instructions that functions of the kernel's library ran themselves."""
    total, is_kernel, is_call = 0, False, False
    for line in dump.read_text().splitlines():
        if line.startswith("ob="):
            is_kernel = "tianzhou_kernel" in line
        elif line.startswith("calls="):
            is_call = True  # the next line is the cost of the callee
        elif line[:1].isdigit():
            if is_kernel and not is_call:
                total += int(line.split()[1])
            is_call = False
    return total


def read_baseline() -> tuple[str, Costs]:
    """The compiler of the baseline, and the figures."""
    stored = json.loads(BASELINE.read_text())
    return stored["compiler"], stored["instructions_per_message"]


def write_baseline(costs: Costs) -> None:
    stored = {"compiler": compiler(), "instructions_per_message": costs}
    BASELINE.write_text(json.dumps(stored, indent=2) + "\n")


def table(costs: Costs, before: Costs) -> str:
    """One line for each path."""
    lines = [f"{'instructions of the kernel per message':<40} {'now':>10} {'baseline':>10}"]
    for name, cost in costs.items():
        known = before.get(name)
        change = f"{known:>10,.1f} {100 * (cost / known - 1):>+7.1f} %" if known else f"{'-':>10}"
        lines.append(f"{name:<40} {cost:>10,.1f} {change}")
    return "\n".join(lines)


def main() -> None:
    program = valgrind()
    if program is None:
        raise SystemExit("cost: valgrind is missing; install it (on Debian: apt install valgrind)")
    costs = count(program)
    if "--write" in sys.argv[1:]:
        write_baseline(costs)
    built_with, before = read_baseline()
    sys.stdout.write(table(costs, before) + "\n")
    if built_with != compiler():
        sys.stdout.write(f"not comparable: that is of {built_with}, this is {compiler()}\n")


if __name__ == "__main__":
    main()
