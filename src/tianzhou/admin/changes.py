"""What came and what went between two examinations of a cluster."""

from collections.abc import Iterable
from dataclasses import dataclass

from tianzhou.admin.doctor import Finding, Level

CAME, GONE = "came", "gone"


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


def _faults(findings: Iterable[Finding]) -> dict[tuple[str, str, Level, str], Finding]:
    faults = [each for each in findings if each.level is not Level.OK]
    # The advice tells faults of one subject apart that have the same check: it holds no figures.
    return {(each.check, each.subject, each.level, each.advice): each for each in faults}
