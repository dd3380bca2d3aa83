"""The state machine of an alarm. Values and `now_ms` in, values out.

    value > threshold    closed --open-->  open --repeat, at most repeat_max times, a window apart
    value <= threshold   open --recovered--> closed

The first value above the threshold opens an alarm; the value need not stay there for a window. The
window is the period of values that are counts over time (dead letters), and the minimum interval
between notices of the same alarm. An alarm that opens again within the window is notified when the
window is over, if it is still open then. A recovery is notified immediately, but only if the alarm
was.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tianzhou.monitor.ownership import Ownership

OPENED, REPEATED, RECOVERED = "open", "repeat", "recovered"


@dataclass(frozen=True, slots=True)
class Rule:
    """A threshold for groups and topics, of a tenant."""

    threshold: int
    window_s: int = 600
    repeat_max: int = 3
    tenant: str = ""
    group: str = "*"
    topic: str = "*"


@dataclass(frozen=True, slots=True)
class Alarm:
    """The state of one alarm between observations."""

    is_open: bool
    opened_ms: int
    value: int
    recovered_ms: int | None = None
    is_notified: bool = False
    """Whether the last notice said that it is open."""
    notice_count: int = 0
    """Notices since it opened."""
    notified_ms: int | None = None
    """Time of the last notice that it is open."""


def evaluate(
    alarm: Alarm | None, value: int, rule: Rule, now_ms: int
) -> tuple[Alarm | None, str | None]:
    """The alarm after an observation, and the event to notify, if any."""
    if value > rule.threshold:
        if alarm is None:
            alarm = Alarm(is_open=True, opened_ms=now_ms, value=value)
        elif not alarm.is_open:
            alarm = replace(
                alarm, is_open=True, opened_ms=now_ms, notice_count=0, recovered_ms=None
            )
        return _evaluate_open(replace(alarm, value=value), rule, now_ms)
    if alarm is None or not alarm.is_open:
        return alarm, None
    closed = replace(alarm, is_open=False, recovered_ms=now_ms, value=value, is_notified=False)
    return closed, RECOVERED if alarm.is_notified else None


def _evaluate_open(alarm: Alarm, rule: Rule, now_ms: int) -> tuple[Alarm, str | None]:
    window_ms = rule.window_s * 1000
    is_muted = alarm.notified_ms is not None and now_ms - alarm.notified_ms < window_ms
    if is_muted or alarm.notice_count > rule.repeat_max:
        return alarm, None
    event = REPEATED if alarm.notice_count else OPENED
    notice_count = alarm.notice_count + 1
    return replace(alarm, is_notified=True, notice_count=notice_count, notified_ms=now_ms), event


def rule_for(
    rules: Iterable[Rule], group: str, topic: str, fallback: Rule, ownership: Ownership
) -> Rule:
    """The rule that applies to a group and a topic: the most specific one of its tenant.

    Without one that of the platform (no tenant), else the fallback. A rule of a tenant applies to
    groups of this tenant only, whatever its pattern matches.
    """
    owner = ownership.of_group(group) or ""
    best: dict[str, Rule] = {}
    for rule in rules:
        if (
            rule.tenant in (owner, "")
            and fnmatchcase(group, rule.group)
            and fnmatchcase(topic, rule.topic)
        ):
            best[rule.tenant] = max(best.get(rule.tenant, rule), rule, key=_specificity)
    return best.get(owner) or best.get("") or fallback


def _specificity(rule: Rule) -> tuple[int, int]:
    """Names before patterns, long patterns before short ones."""
    exact = sum(not set(each) & set("*?[") for each in (rule.group, rule.topic))
    return exact, len(rule.group) + len(rule.topic)
