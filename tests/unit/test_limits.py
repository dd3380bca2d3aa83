"""The table of limits, and the page that shows it."""

import subprocess
import sys
from pathlib import Path

from tianzhou.limits import TABLE

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_page_shows_the_table_of_the_code() -> None:
    checked = subprocess.run(
        [sys.executable, "tools/limits_table.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr


def test_each_row_says_what_it_bounds_and_what_happens_above_it() -> None:
    assert len({limit.bounds for limit in TABLE}) == len(TABLE)
    assert all(limit.value > 0 and limit.unit and limit.above for limit in TABLE)
