"""`make bench`: every benchmark in one go, on one machine, written into docs/performance.md.

Each benchmark fills a part of that page between two comments; the words around them are written by
hand. `--quick` prints the same tables from short rounds and writes nothing. `--only broker --rounds
2 --seconds 3` is the comparison with Apache's broker in about ten minutes.
"""

import argparse
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench import (
    bench_broker,
    bench_client,
    bench_held,
    bench_kinds,
    bench_namesrv,
    bench_stalls,
    bench_store,
    bench_wire,
    broker_servers,
    broker_table,
)
from bench.progress import Progress, minutes, say

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "plots"
SPREAD = "Median, and in brackets the smallest and largest of the rounds.\n\n"


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(heads)]
    lines.append(["---"] * len(lines[0]))
    lines += [[str(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(median: float, low: float, high: float) -> str:
    digits = 0 if median >= 100 else 1 if median >= 10 else 2
    return f"{median:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def git(*arguments: str) -> str:
    """What git says here; nothing outside a checkout."""
    asked = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def conditions(*, quick: bool) -> str:
    """Where and of what the figures are; nothing in it names a machine."""
    commit = git("rev-parse", "--short", "HEAD")
    # The page and the plots that are being written do not make the code another one.
    if git("status", "--porcelain", "--", ".", ":!docs/performance.md", ":!docs/plots"):
        commit += " with changes"
    rounds = "short rounds" if quick else "full rounds"
    return (
        f"Commit {commit}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.machine()}, {os.cpu_count()} cores, {rounds}."
    )


def wire(*, quick: bool) -> str:
    by_what: dict[str, dict[str, bench_wire.Figure]] = {}
    for figure in bench_wire.figures(quick=quick):
        by_what.setdefault(figure.what, {})[figure.by] = figure
    rows: list[list[str]] = []
    for what, by in by_what.items():
        cells = [
            spread(by[name].median_ns, by[name].low_ns, by[name].high_ns) if name in by else ""
            for name in ("kernel", "pure")
        ]
        both = "kernel" in by and "pure" in by
        ratio = f"{by['pure'].median_ns / by['kernel'].median_ns:.1f}" if both else ""
        rows.append([what, *cells, ratio])
    return SPREAD + table(
        ["ns of CPU per frame or record", "kernel", "pure", "pure / kernel"], rows
    )


def namesrv(*, quick: bool) -> str:
    figures = {(f.shape, f.what, f.server): f for f in bench_namesrv.measure(quick=quick)}
    rows: list[list[str]] = []
    for shape, what in dict.fromkeys((shape, what) for shape, what, _ in figures):
        ours, theirs = (figures.get((shape, what, name)) for name in ("tianzhou", "apache"))
        cells = [spread(f.median, f.low, f.high) if f else "" for f in (ours, theirs)]
        ratio = f"{theirs.median / ours.median:.2f}" if ours and theirs else ""
        rows.append([bench_namesrv.SHAPES.get(shape, "-"), what, *cells, ratio])
    return SPREAD + table(
        ["registered", "figure", "Tianzhou", f"Apache {bench_namesrv.APACHE_VERSION}", "ratio"],
        rows,
    )


def store(*, quick: bool) -> str:
    rows = [
        [figure.what, figure.unit, f"{figure.value:,.2f}"]
        for figure in bench_store.figures(quick=quick)
    ]
    return "One run each.\n\n" + table(["figure", "unit", "value"], rows)


def broker(*, quick: bool, plan: bench_broker.Plan = bench_broker.FULL) -> str:
    results = bench_broker.measure(bench_broker.QUICK_PLAN if quick else plan)
    apache = f"Apache {broker_servers.APACHE_VERSION}"
    if not quick:
        broker_table.draw(results, PLOTS, ("Tianzhou", apache))
    works = table(broker_table.HEADS, map(broker_table.cells_of, broker_table.rows_of(results)))
    others = table(broker_table.OTHER_HEADS, broker_table.other_rows(results))
    told = (
        f"{plan.rounds} rounds of {plan.duration_s:g} s. " if not quick else ""
    ) + broker_table.noise(results)
    return f"{apache}. {told} {SPREAD}{works}\n\n{others}"


def held(*, quick: bool) -> str:
    rows = [
        [each.what, each.unit, f"{each.value:,.2f}"] for each in bench_held.figures(quick=quick)
    ]
    return "One run.\n\n" + table(["figure", "unit", "value"], rows)


def kinds(*, quick: bool) -> str:
    rows = [
        [each.what, each.unit, f"{each.value:,.2f}"] for each in bench_kinds.figures(quick=quick)
    ]
    return "One run.\n\n" + table(["figure", "unit", "value"], rows)


def client(*, quick: bool) -> str:
    found = bench_client.measure(
        seconds=1.0 if quick else 5.0, rounds=1 if quick else 3, apache=not quick
    )
    rounds = "One round each." if quick else "The best of three rounds each."
    return (
        f"{rounds} Ratios above 1 are in our favour.\n\n"
        f"{table(bench_client.HEADS, bench_client.rows(found))}\n\n"
        "How long a send of 1 KiB takes that is awaited before the next:\n\n"
        f"{table(bench_client.LATENCY_HEADS, bench_client.latency_rows(found))}"
    )


def stalls(*, quick: bool) -> str:
    found = bench_stalls.measure(quick=quick)
    rounds = 1 if quick else bench_stalls.ROUNDS
    told = table(bench_stalls.HEADS, bench_stalls.rows(found))
    return (
        f"{len(found)} requests, of each the best of {rounds} rounds. The longest wait of all: "
        f"{found[0].wait_ms:.1f} ms.\n\n{told}"
    )


PARTS: dict[str, Callable[..., str]] = {
    "wire": wire,
    "namesrv": namesrv,
    "store": store,
    "broker": broker,
    "held": held,
    "kinds": kinds,
    "stalls": stalls,
    "client": client,
}


EXPECTED_S: dict[str, tuple[float, float]] = {
    "wire": (40, 6),
    "namesrv": (90, 25),
    "store": (70, 12),
    "broker": (0, 50),
    "held": (45, 15),
    "kinds": (590, 60),
    "stalls": (75, 25),
    "client": (600, 60),
}
"""About how long each takes, in full and in short, for the estimate; the broker's has its own."""


def write_part(name: str, text: str) -> None:
    page = PAGE.read_text()
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    page, count = pattern.subn(lambda found: f"{found[1]}{text}\n{found[2]}", page)
    if count != 1:
        raise SystemExit(f"bench: docs/performance.md has {count} places for {name}, not one")
    PAGE.write_text(page)


def _end(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, printed, not written")
    parser.add_argument("--only", choices=PARTS, help="one benchmark")
    parser.add_argument("--rounds", type=int, default=3, help="of the broker's works (3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of these (5)")
    options = parser.parse_args()
    # Whoever stops it gets the servers stopped and their files removed, too.
    signal.signal(signal.SIGTERM, _end)
    plan = bench_broker.plan_of(options.rounds, options.seconds)
    parts = PARTS | {"broker": partial(broker, plan=plan)}
    chosen = {name: parts[name] for name in parts if options.only in (None, name)}
    quick: bool = options.quick
    expected_s = {name: EXPECTED_S[name][quick] for name in chosen}
    if "broker" in chosen and not quick:
        expected_s["broker"] = plan.expected_s()
    progress = Progress(sum(expected_s.values()))
    say(f"{len(chosen)} parts, about {minutes(sum(expected_s.values()))} on a quiet machine")
    told = conditions(quick=quick)
    for number, (name, measure) in enumerate(chosen.items(), 1):
        say(f"{name}, part {number} of {len(chosen)}, about {minutes(expected_s[name])}")
        text = f"{told}\n\n{measure(quick=quick)}"
        print(f"\n{text}", flush=True)
        if not quick:
            write_part(name, text)
        progress.done(expected_s[name], f"{name} is done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
