"""What came and what went between two examinations of a cluster."""

from collections.abc import Iterable
from dataclasses import dataclass

from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.doctor.presence import BROKERS

CAME, GONE = "came", "gone"
WATCH = "watch"
"""The check that failed when nothing could be looked at."""
_REACH = (WATCH, "nameservers", BROKERS, "addresses")
"""Checks of whether servers are there; without one, nothing can be said of what it knew."""


@dataclass(frozen=True, slots=True)
class Change:
    """One finding that is new, or is there no more."""

    kind: str
    finding: Finding


def changes(before: Iterable[Finding], after: Iterable[Finding]) -> list[Change]:
    """Faults that came, worst first, then those that are gone.

    A fault stays the same while its check, subject and level do: a backlog that grows is no news.
    """
    was, now = _faults(before), _faults(after)
    came = [Change(CAME, finding) for key, finding in now.items() if key not in was]
    came.sort(key=lambda change: change.finding.level is not Level.ERROR)
    return came + [Change(GONE, finding) for key, finding in was.items() if key not in now]


def with_unseen(before: Iterable[Finding], after: Iterable[Finding]) -> list[Finding]:
    """`after`, and while a server is away the earlier faults that it might still have.

    A broker that is gone tells nothing of its disk and its backlogs; that is no betterment.
    """
    now = list(after)
    if not any(each.check in _REACH and each.level is Level.ERROR for each in now):
        return now
    seen = _faults(now)
    kept = [
        each
        for key, each in _faults(before).items()
        if key not in seen and (each.check not in _REACH or _blind(now))
    ]
    return now + kept


def _blind(findings: Iterable[Finding]) -> bool:
    """Whether no nameserver could be asked."""
    return all(each.level is Level.ERROR and each.check in _REACH[:2] for each in findings)


def _faults(findings: Iterable[Finding]) -> dict[tuple[str, str, Level, str], Finding]:
    faults = [each for each in findings if each.level is not Level.OK]
    # The advice tells faults of one subject apart that have the same check: it holds no figures.
    return {(each.check, each.subject, each.level, each.advice): each for each in faults}
