"""Run all benchmarks on this machine and write the results into docs/performance.md.

Each benchmark replaces its tables on that page, between two comments; the text around them is
edited manually. Run on an otherwise idle machine: rounds with other load are repeated.

examples:
  make bench                                                all, about an hour; updates the page
  python -m bench.run --quick                               all, a few minutes; prints only
  python -m bench.run --quick --only wire                   one benchmark, a few seconds
  python -m bench.run --only broker --rounds 2 --seconds 3  comparison with Apache, ten minutes

benchmarks:
  wire      CPU per frame and record: kernel and pure Python
  namesrv   route queries, memory and start-up, compared with Apache's nameserver
  store     appends, reads, group commit, recovery
  broker    sends and pulls, memory, idle CPU, compared with Apache's broker
  held      cost of idle connections, topics and long polls; long-poll latency
  kinds     delayed, timer and transactional messages, retries
  stalls    longest wait of other requests during the most expensive ones
  replication  a master with a slave, compared with one without and with Apache's
  failover  how long a switch takes, and how long clients wait: kill, stop, planned switch
  failover-price  three elected replicas, compared with one broker and with Apache's controller mode
  client    sending and consuming in one process, compared with the Java client
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
    bench_failover,
    bench_failover_price,
    bench_held,
    bench_kinds,
    bench_namesrv,
    bench_replication,
    bench_stalls,
    bench_store,
    bench_wire,
    broker_servers,
    broker_table,
    replication_table,
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
    """The output of a git command; empty outside a checkout."""
    asked = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def conditions(*, quick: bool) -> str:
    """Commit, versions and cores of a measurement, without the name of the machine."""
    commit = git("rev-parse", "--short", "HEAD")
    # Changes of the page and plots written here do not count as changes of the code.
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
    workloads = table(broker_table.HEADS, map(broker_table.cells_of, broker_table.rows_of(results)))
    others = table(broker_table.OTHER_HEADS, broker_table.other_rows(results))
    summary = (
        f"{plan.rounds} rounds of {plan.duration_s:g} s. " if not quick else ""
    ) + broker_table.noise(results)
    return f"{apache}. {summary} {SPREAD}{workloads}\n\n{others}"


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


def replication(*, quick: bool) -> str:
    plan = bench_replication.QUICK if quick else bench_replication.FULL
    return replication_table.text(bench_replication.measure(plan), table)


def failover(*, quick: bool) -> str:
    runs = bench_failover.QUICK_RUNS if quick else bench_failover.RUNS
    found = bench_failover.rows(bench_failover.measure(runs))
    count = "One run each." if quick else f"Median of {runs} runs, with the shortest and longest."
    return f"{count}\n\n{table(bench_failover.HEADS, found)}"


def failover_price(*, quick: bool) -> str:
    plan = bench_failover_price.QUICK if quick else bench_failover_price.FULL
    return bench_failover_price.text(bench_failover_price.measure(plan), table)


def client(*, quick: bool) -> str:
    found = bench_client.measure(
        seconds=1.0 if quick else 5.0, rounds=1 if quick else 3, apache=not quick
    )
    rounds = "One round each." if quick else "The best of three rounds each."
    return (
        f"{rounds} Ratios above 1: Tianzhou is better.\n\n"
        f"{table(bench_client.HEADS, bench_client.rows(found))}\n\n"
        "Latency of a 1 KiB send, one at a time:\n\n"
        f"{table(bench_client.LATENCY_HEADS, bench_client.latency_rows(found))}"
    )


def stalls(*, quick: bool) -> str:
    found = bench_stalls.measure(quick=quick)
    rounds = 1 if quick else bench_stalls.ROUNDS
    waits = table(bench_stalls.HEADS, bench_stalls.rows(found))
    return (
        f"{len(found)} requests, the best of {rounds} rounds of each. The longest wait: "
        f"{found[0].wait_ms:.1f} ms.\n\n{waits}"
    )


PARTS: dict[str, Callable[..., str]] = {
    "wire": wire,
    "namesrv": namesrv,
    "store": store,
    "broker": broker,
    "held": held,
    "kinds": kinds,
    "stalls": stalls,
    "replication": replication,
    "failover": failover,
    "failover-price": failover_price,
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
    "replication": (bench_replication.FULL.expected_s(), bench_replication.QUICK.expected_s()),
    "failover": (bench_failover.expected_s(quick=False), bench_failover.expected_s(quick=True)),
    "failover-price": (
        bench_failover_price.FULL.expected_s(),
        bench_failover_price.QUICK.expected_s(),
    ),
    "client": (600, 60),
}
"""Expected durations, full and quick, for the estimate; that of the broker is computed."""


def write_part(name: str, text: str) -> None:
    page = PAGE.read_text()
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    page, count = pattern.subn(lambda found: f"{found[1]}{text}\n{found[2]}", page)
    if count != 1:
        raise SystemExit(
            f"bench: docs/performance.md needs one <!-- {name} --> ... <!-- end of {name} -->, "
            f"it has {count}"
        )
    PAGE.write_text(page)


def _end(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="short rounds; print the tables, change no file"
    )
    parser.add_argument("--only", choices=PARTS, metavar="NAME", help="run one benchmark")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of each broker workload (default 3)"
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="duration of such a round (default 5)"
    )
    options = parser.parse_args()
    # SIGTERM also stops the servers and removes their files.
    signal.signal(signal.SIGTERM, _end)
    plan = bench_broker.plan_of(options.rounds, options.seconds)
    parts = PARTS | {"broker": partial(broker, plan=plan)}
    chosen = {name: parts[name] for name in parts if options.only in (None, name)}
    quick: bool = options.quick
    expected_s = {name: EXPECTED_S[name][quick] for name in chosen}
    if "broker" in chosen and not quick:
        expected_s["broker"] = plan.expected_s()
    progress = Progress(sum(expected_s.values()))
    say(f"{len(chosen)} benchmarks, about {minutes(sum(expected_s.values()))} on an idle machine")
    header = conditions(quick=quick)
    for number, (name, measure) in enumerate(chosen.items(), 1):
        say(f"{name}, {number} of {len(chosen)}, about {minutes(expected_s[name])}")
        text = f"{header}\n\n{measure(quick=quick)}"
        print(f"\n{text}", flush=True)
        if not quick:
            write_part(name, text)
        progress.done(expected_s[name], f"{name} is done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
