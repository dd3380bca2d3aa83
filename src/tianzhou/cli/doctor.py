"""`tianzhou doctor`: the usual faults of a cluster, and what to do about each."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tianzhou.admin.doctor import WATCH_S, Level, examine
from tianzhou.cli.session import Session, verb
from tianzhou.cli.show import Shown, several

app = typer.Typer(name="doctor", add_completion=False)

_MARKS = {
    Level.OK: ("ok", "green"),
    Level.WARNING: ("warning", "yellow"),
    Level.ERROR: ("ERROR", "bold red"),
}


@verb(
    app, "", reads=True,
    examples=["tianzhou doctor", "tianzhou doctor --json", "tianzhou doctor --wait 10"],
)  # fmt: skip
async def doctor(
    session: Session,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            max=300,
            help="How long to watch queues that have a backlog; 0 does not look for stuck ones.",
        ),
    ] = WATCH_S,
) -> Shown:
    """Find the usual faults of a cluster, and say what to do.

    Looks for: nameservers that are away or disagree, advertised addresses that lead nowhere, clocks
    that differ, full disks, members that subscribe differently, queues that stand still, dead
    letters, topics and groups that are created by themselves. Exit code 1 if there is an error.
    """
    findings = await examine(session.admin, wait_s=wait_s)
    grid = Table.grid(padding=(0, 2))
    for each in findings:
        word, style = _MARKS[each.level]
        text = Text.assemble((f"{each.subject}: ", "bold"), each.what)
        if each.advice:
            text.append(f"\n-> {each.advice}", style="cyan")
        grid.add_row(Text(word, style=style), Text(each.check, style="dim"), text)
    errors = sum(each.level is Level.ERROR for each in findings)
    warnings = sum(each.level is Level.WARNING for each in findings)
    notes = [f"{several(errors, 'error')}, {several(warnings, 'warning')}"]
    data = [asdict(each) for each in findings]
    return Shown(data, [grid], exit_code=1 if errors else 0, notes=notes)
