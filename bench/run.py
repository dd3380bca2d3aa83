"""`make bench`: every benchmark in one go, on one machine, written into docs/performance.md.

Each benchmark fills a part of that page between two comments; the words around them are written by
hand. `--quick` prints the same tables from short rounds and writes nothing.
"""

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from bench import (
    bench_broker,
    bench_client,
    bench_held,
    bench_kinds,
    bench_namesrv,
    bench_store,
    bench_wire,
    broker_servers,
    plots,
)
from bench.machine import median_and_spread

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
    # The page that is being written does not make the code another one.
    if git("status", "--porcelain", "--", ".", ":!docs/performance.md"):
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


def broker(*, quick: bool) -> str:
    results = bench_broker.measure(quick=quick)
    rows: list[list[str]] = []
    bars: list[tuple[str, float, float]] = []
    for work in bench_broker.WORKS:
        both = [results.works.get((work.name, name)) for name in ("tianzhou", "apache")]
        if both[0] is None or both[1] is None:
            continue
        for what, of in bench_broker.COLUMNS.items():
            ours, theirs = (median_and_spread(of(samples)) for samples in both if samples)
            ratio = f"{theirs[0] / ours[0]:.2f}" if ours[0] else ""
            rows.append([work.meaning, what, spread(*ours), spread(*theirs), ratio])
        cpu = [statistics.median(samples.cpu_us) for samples in both if samples]
        bars.append((work.meaning, cpu[0], cpu[1]))
    for what, by_server in results.others().items():
        ours, theirs = (median_and_spread(by_server[name]) for name in ("tianzhou", "apache"))
        rows.append(["-", what, spread(*ours), spread(*theirs), f"{theirs[0] / ours[0]:.2f}"])
    all_samples = results.works.values()
    kept = sum(len(samples.rate) for samples in all_samples)
    disturbed = sum(samples.disturbed_count for samples in all_samples)
    repeated = sum(samples.repeated_count for samples in all_samples)
    apache = f"Apache {broker_servers.APACHE_VERSION}"
    if not quick:
        plots.pairs(
            PLOTS / "broker-cpu.svg", "The server's CPU per message",
            "microseconds, less is better", bars, ("Tianzhou", apache),
        )  # fmt: skip
    noise = (
        f"{disturbed} of {kept} rounds were disturbed by others on the machine, {repeated} more "
        "were repeated for that.\n\n"
    )
    return SPREAD + noise + table(["work", "figure", "Tianzhou", apache, "ratio"], rows)


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
    found = bench_client.measure(seconds=1.5 if quick else 5.0, apache=not quick)
    rows = [
        [each.server, each.work, f"{each.messages_per_s:,}", f"{each.cpu_us:,.1f}"]
        for each in found
    ]
    return "One run.\n\n" + table(
        ["broker", "work", "messages/s", "CPU us of the client per message"], rows
    )


PARTS: dict[str, Callable[..., str]] = {
    "wire": wire,
    "namesrv": namesrv,
    "store": store,
    "broker": broker,
    "held": held,
    "kinds": kinds,
    "client": client,
}


def write_part(name: str, text: str) -> None:
    page = PAGE.read_text()
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    page, count = pattern.subn(lambda found: f"{found[1]}{text}\n{found[2]}", page)
    if count != 1:
        raise SystemExit(f"bench: docs/performance.md has {count} places for {name}, not one")
    PAGE.write_text(page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, printed, not written")
    parser.add_argument("--only", choices=PARTS, help="one benchmark")
    options = parser.parse_args()
    told = conditions(quick=options.quick)
    for name, measure in PARTS.items():
        if options.only in (None, name):
            print(f"bench: {name}", file=sys.stderr)
            text = f"{told}\n\n{measure(quick=options.quick)}"
            print(f"\n{text}")
            if not options.quick:
                write_part(name, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
