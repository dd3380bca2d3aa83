"""Examining a cluster: every check of `tianzhou doctor`, as items and as JSON."""

import msgspec

from tianzhou.admin.doctor.checks import examine
from tianzhou.admin.doctor.findings import Level
from tianzhou.console.jobs.worker import Running

OUTPUT_NAME = "findings.json"


class Examine(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to choose."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check on one subject."""

    level: str
    """error, warning or ok."""
    check: str
    subject: str
    what: str
    advice: str = ""


async def run(running: Running) -> None:
    """Examine the cluster. Raises JobCancelled, JobLost, TianzhouError."""
    order = [Level.ERROR, Level.WARNING, Level.OK]
    findings = sorted(await examine(running.admin), key=lambda each: order.index(each.level))
    shown = [
        Finding(
            level=each.level.value,
            check=each.check,
            subject=each.subject,
            what=each.what,
            advice=each.advice,
        )
        for each in findings
    ]
    for each in shown:
        subject = f"{each.level} {each.check}: {each.subject}"
        running.item(subject, is_ok=True, detail=each.what)
    running.total = running.done
    await running.store({}, msgspec.json.encode(shown))
