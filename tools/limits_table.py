"""Write the table of limits into docs/security.md; with --check only compare it with the code."""

import sys
from pathlib import Path

from tianzhou.limits import TABLE, Limit

PAGE = Path(__file__).resolve().parent.parent / "docs" / "security.md"
BEGIN = "<!-- limits: written by tools/limits_table.py -->"
END = "<!-- end of limits -->"
_MIB, _KIB = 1024 * 1024, 1024


def amount_of(limit: Limit) -> str:
    if limit.unit == "bytes" and limit.value % _MIB == 0:
        return f"{limit.value // _MIB} MiB"
    if limit.unit == "bytes" and limit.value % _KIB == 0:
        return f"{limit.value // _KIB} KiB"
    return f"{limit.value:,} {limit.unit}"


def render() -> str:
    lines = ["| what | limit | above it | setting |", "|---|---|---|---|"]
    lines += [
        f"| {limit.bounds} | {amount_of(limit)} | {limit.above} "
        f"| {f'`{limit.setting}`' if limit.setting else 'fixed'} |"
        for limit in TABLE
    ]
    return "\n".join(lines)


def main() -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        sys.exit(f"{PAGE} lacks the markers {BEGIN} and {END}")
    wanted = f"{before}{BEGIN}\n{render()}\n{END}{after}"
    if page == wanted:
        return
    if "--check" in sys.argv:
        sys.exit("docs/security.md differs: run python tools/limits_table.py")
    PAGE.write_text(wanted)


if __name__ == "__main__":
    main()
