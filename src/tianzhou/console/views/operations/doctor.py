"""The findings of the last examination of a cluster, the worst first."""

import msgspec
from sqlalchemy import Connection

from tianzhou.console.jobs import rows
from tianzhou.console.jobs.doctor import Finding
from tianzhou.console.jobs.rows import Job
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing

_ORDER = ("error", "warning", "ok")


class Doctor(msgspec.Struct, frozen=True, kw_only=True):
    """The last examination."""

    running: Job | None
    """One that has not ended."""
    failed: Job | None
    """The newest one, if it has failed."""
    ended_ms: int | None
    """Of the one whose findings are shown; None: there was none."""
    errors: int
    warnings: int
    passed: int
    findings: Listing[Finding]


async def doctor(ask: Ask) -> Doctor:
    """The findings of the last examination, the worst first."""
    cluster = ask.cluster.name

    def read(connection: Connection) -> tuple[list[Job], bytes]:
        jobs = [each for each in rows.listed(connection, cluster) if each.kind == "doctor"]
        done = next((each for each in jobs if each.state == "done"), None)
        content = b""
        part = rows.output(connection, done.id, 0) if done is not None else None
        number = 0
        while done is not None and part is not None:
            content += part
            number += 1
            part = rows.output(connection, done.id, number)
        return jobs, content

    jobs, content = await ask.database.read(read)
    done = next((each for each in jobs if each.state == "done"), None)
    findings = msgspec.json.decode(content, type=list[Finding]) if content else []
    counts = {level: sum(each.level == level for each in findings) for level in _ORDER}
    newest = jobs[0] if jobs else None
    return Doctor(
        running=next((each for each in jobs if not each.is_ended), None),
        failed=newest if newest is not None and newest.state == "failed" else None,
        ended_ms=done.ended_ms if done is not None else None,
        errors=counts["error"],
        warnings=counts["warning"],
        passed=counts["ok"],
        findings=listing(
            ask,
            findings,
            find=lambda row: (row.check, row.subject, row.what),
            sort={
                "level": lambda row: (_ORDER.index(row.level), row.check, row.subject),
                "check": lambda row: (row.check, _ORDER.index(row.level)),
            },
            first="level",
        ),
    )
