"""Faults that appeared or were solved between two diagnoses of a cluster."""

from collections.abc import Iterable
from dataclasses import dataclass

from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.doctor.presence import BROKERS

CAME, GONE = "came", "gone"
WATCH = "watch"
"""The name of the check if the diagnosis itself failed."""
_REACH = (WATCH, "nameservers", BROKERS, "addresses")
"""Checks of reachability; while a server is down its other faults are unknown."""


@dataclass(frozen=True, slots=True)
class Change:
    """A finding that appeared or was solved."""

    kind: str
    finding: Finding


def changes(before: Iterable[Finding], after: Iterable[Finding]) -> list[Change]:
    """Faults that appeared, errors first, then those that were solved.

    A fault is the same while its check, subject and level are: a growing backlog is no change.
    """
    was, now = _faults(before), _faults(after)
    came = [Change(CAME, finding) for key, finding in now.items() if key not in was]
    came.sort(key=lambda change: change.finding.level is not Level.ERROR)
    return came + [Change(GONE, finding) for key, finding in was.items() if key not in now]


def with_unseen(before: Iterable[Finding], after: Iterable[Finding]) -> list[Finding]:
    """`after`, plus earlier faults that cannot be checked while a server is down.

    A broker that is down reports neither disk nor backlogs; that does not solve their faults.
    """
    now = list(after)
    if not any(each.check in _REACH and each.level is Level.ERROR for each in now):
        return now
    seen = _faults(now)
    unchecked = [
        each
        for key, each in _faults(before).items()
        if key not in seen and (each.check not in _REACH or _no_nameserver(now))
    ]
    return now + unchecked


def _no_nameserver(findings: Iterable[Finding]) -> bool:
    """Whether no nameserver responded."""
    return all(each.level is Level.ERROR and each.check in _REACH[:2] for each in findings)


def _faults(findings: Iterable[Finding]) -> dict[tuple[str, str, Level, str], Finding]:
    faults = [each for each in findings if each.level is not Level.OK]
    # The advice distinguishes faults of the same check and subject: it contains no figures.
    return {(each.check, each.subject, each.level, each.advice): each for each in faults}
