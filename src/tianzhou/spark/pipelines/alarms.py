"""When an alarm opens, is told again, and recovers. Values and `now_ms` in, values out.

    value > threshold    closed --open-->  open --repeat, at most repeat_max times, a window apart
    value <= threshold   open --recovered--> closed

The first value above the threshold opens an alarm; it need not stay there for a window. What counts
for a window is the value itself where it is a count over time (dead letters), and how often people
are told: nobody is told of the same alarm more than once in it. One that opens again soon after it
recovered is told when the window since the last time is over, if it is still open then. A recovery
is told at once, but only to those who were told of the alarm.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

OPENED, REPEATED, RECOVERED = "open", "repeat", "recovered"


@dataclass(frozen=True, slots=True)
class Rule:
    """What is too much, for whom."""

    threshold: int
    window_s: int = 600
    repeat_max: int = 3
    tenant: str = ""
    group: str = "*"
    topic: str = "*"

    @property
    def window_ms(self) -> int:
        return self.window_s * 1000


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm as it is kept between observations."""

    is_open: bool
    opened_ms: int
    value: int
    recovered_ms: int | None = None
    told_open: bool = False
    """What those who are told believe."""
    told_count: int = 0
    """How often since it opened."""
    told_ms: int | None = None
    """When it was last told that it is open."""


def judge(
    alarm: Alarm | None, value: int, rule: Rule, now_ms: int
) -> tuple[Alarm | None, str | None]:
    """The alarm after an observation, and what is to be told of it, if anything."""
    if value > rule.threshold:
        if alarm is None:
            alarm = Alarm(is_open=True, opened_ms=now_ms, value=value)
        elif not alarm.is_open:
            alarm = replace(alarm, is_open=True, opened_ms=now_ms, told_count=0, recovered_ms=None)
        return _judge_open(replace(alarm, value=value), rule, now_ms)
    if alarm is None or not alarm.is_open:
        return alarm, None
    closed = replace(alarm, is_open=False, recovered_ms=now_ms, value=value, told_open=False)
    return closed, RECOVERED if alarm.told_open else None


def _judge_open(alarm: Alarm, rule: Rule, now_ms: int) -> tuple[Alarm, str | None]:
    is_quiet = alarm.told_ms is not None and now_ms - alarm.told_ms < rule.window_ms
    if is_quiet or alarm.told_count > rule.repeat_max:
        return alarm, None
    what = REPEATED if alarm.told_count else OPENED
    told = replace(alarm, told_open=True, told_count=alarm.told_count + 1, told_ms=now_ms)
    return told, what


def rules_for(rules: Iterable[Rule], group: str, topic: str, fallback: Rule) -> list[Rule]:
    """The rules that hold for a group and a topic: of each tenant the most exact one.

    The fallback holds where no rule does.
    """
    best: dict[str, Rule] = {}
    for rule in rules:
        if not (fnmatchcase(group, rule.group) and fnmatchcase(topic, rule.topic)):
            continue
        known = best.get(rule.tenant)
        if known is None or _exactness(rule) > _exactness(known):
            best[rule.tenant] = rule
    return [best[tenant] for tenant in sorted(best)] or [fallback]


def _exactness(rule: Rule) -> tuple[int, int]:
    """Names before patterns, long patterns before short ones."""
    exact = sum(not set(each) & set("*?[") for each in (rule.group, rule.topic))
    return exact, len(rule.group) + len(rule.topic)
