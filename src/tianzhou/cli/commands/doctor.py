"""`tianzhou doctor`: common faults of a cluster, and how to fix them."""

from typing import Annotated

import typer
from rich.text import Text

from tianzhou.admin.doctor.checks import WATCH_S, examine, registered_brokers
from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.doctor.presence import Presence, expectation
from tianzhou.cli.shared.command import Session, command
from tianzhou.cli.shared.context_file import contexts_path
from tianzhou.cli.shared.output import CommandResult, plural
from tianzhou.cli.shared.parameters import option
from tianzhou.cli.shared.seen_brokers import SeenBrokers
from tianzhou.cli.shared.tables import KeyValues

app = typer.Typer(name="doctor", add_completion=False)

_MARKS = {
    Level.OK: ("ok", "green"),
    Level.WARNING: ("warning", "yellow"),
    Level.ERROR: ("ERROR", "bold red"),
}

WaitOption = Annotated[
    float,
    option(
        "--wait SECONDS",
        "How long to observe queues with a backlog; 0 does not check for stuck queues.",
        min=0,
        max=300,
    ),
]
ExpectOption = Annotated[
    list[str] | None,
    option(
        "--expect BROKER",
        "A broker that must be registered: NAME, NAME[ID] for a slave, or a minimum number "
        "of brokers. May be repeated.",
    ),
]


class BrokerHistory:
    """The brokers of the cluster that earlier runs saw, saved in a file."""

    def __init__(self, session: Session, expect: list[str] | None) -> None:
        """Raises ConfigError for an invalid --expect."""
        self._session = session
        self._seen = SeenBrokers(contexts_path().parent, session.admin.namesrv.addresses)
        expected = [expectation(each) for each in expect or ()]
        known, warning = self._seen.load()
        self.presence = Presence(known, expected)
        session.warn_all([warning] if warning else [])

    def save(self) -> None:
        warning = self._seen.save(self.presence.known)
        self._session.warn_all([warning] if warning else [])


@command(
    app, "", reads=True,
    examples=[
        "tianzhou doctor", "tianzhou doctor --json", "tianzhou doctor --wait 10",
        "tianzhou doctor --expect broker-a --expect broker-b",
        "tianzhou doctor --expect 3",
        "tianzhou doctor --forget broker-b        # it was removed on purpose",
    ],
)  # fmt: skip
async def doctor(
    session: Session,
    wait_s: WaitOption = WATCH_S,
    expect: ExpectOption = None,
    forget: Annotated[
        list[str] | None,
        option(
            "--forget BROKER", "Forget a missing broker by name; `all` forgets every missing one."
        ),
    ] = None,
) -> CommandResult:
    """Diagnose a cluster: find common faults and how to fix them.

    Checks for: brokers that an earlier run saw and that are missing, nameservers that are down or
    disagree, advertised addresses that cannot be reached, slaves that do not follow their master or
    are far behind, clock skew, full disks, members with different subscriptions, stuck queues, dead
    letters, automatic creation of topics and groups.
    Exit code 1 if there is an error.
    """
    history = BrokerHistory(session, expect)
    if forget:
        for broker in history.presence.forget(forget, await registered_brokers(session.admin)):
            session.print(f"{broker.label} ({broker.address}) forgotten")
    findings = await examine(session.admin, history.presence, wait_s=wait_s)
    history.save()
    lines = KeyValues(map(_line, findings))
    errors = sum(each.level is Level.ERROR for each in findings)
    warnings = sum(each.level is Level.WARNING for each in findings)
    notes = [f"{plural(errors, 'error')}, {plural(warnings, 'warning')}"]
    return CommandResult(findings, [lines], exit_code=1 if errors else 0, notes=notes)


def _line(each: Finding) -> tuple[Text, Text]:
    word, style = _MARKS[each.level]
    text = Text.assemble((f"{each.subject}: ", "bold"), each.what)
    if each.advice:
        text.append(f"\n-> {each.advice}", style="cyan")
    return Text.assemble((f"{word:9}", style), (each.check, "dim")), text
