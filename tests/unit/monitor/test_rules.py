"""Alarms open once, repeat within limits, recover; the most specific rule applies."""

from tianzhou.monitor.ownership import Ownership
from tianzhou.monitor.rules import (
    OPENED,
    RECOVERED,
    REPEATED,
    Alarm,
    Rule,
    evaluate,
    rule_for,
)

RULE = Rule(threshold=100, window_s=600, repeat_max=2)
MINUTE = 60_000


def events_of(values: list[int], rule: Rule = RULE, step_ms: int = MINUTE) -> list[tuple[int, str]]:
    """The events of a series of values, with the minute."""
    alarm: Alarm | None = None
    events: list[tuple[int, str]] = []
    for number, value in enumerate(values):
        alarm, event = evaluate(alarm, value, rule, number * step_ms)
        if event is not None:
            events.append((number, event))
    return events


def test_a_value_at_the_threshold_is_no_alarm() -> None:
    assert events_of([0, 100, 100]) == []


def test_an_alarm_fires_once_and_recovers_once() -> None:
    assert events_of([0, 101, 500, 500, 100, 0, 0]) == [(1, OPENED), (4, RECOVERED)]


def test_an_open_alarm_is_repeated_a_limited_number_of_times_a_window_apart() -> None:
    assert events_of([101] * 60) == [(0, OPENED), (10, REPEATED), (20, REPEATED)]


def test_without_repetitions_there_is_one_notice() -> None:
    assert events_of([101] * 60, Rule(threshold=100, repeat_max=0)) == [(0, OPENED)]


def test_a_flapping_value_is_notified_once_per_window() -> None:
    flapping = [101, 0] * 30
    events = events_of(flapping)
    assert [minute for minute, event in events if event == OPENED] == [0, 10, 20, 30, 40, 50]
    assert [minute for minute, event in events if event == RECOVERED] == [1, 11, 21, 31, 41, 51]


def test_an_alarm_that_opened_while_muted_is_notified_after_the_window() -> None:
    assert events_of([101, 0] + [101] * 10) == [(0, OPENED), (1, RECOVERED), (10, OPENED)]


def test_the_recovery_of_an_alarm_without_notice_is_not_notified() -> None:
    assert events_of([101, 0, 101, 0, 0]) == [(0, OPENED), (1, RECOVERED)]


def test_the_state_has_the_values_that_a_page_shows() -> None:
    alarm, _ = evaluate(None, 150, RULE, 5)
    assert alarm == Alarm(True, 5, 150, is_notified=True, notice_count=1, notified_ms=5)
    alarm, _ = evaluate(alarm, 7, RULE, 9)
    assert alarm is not None
    assert (alarm.is_open, alarm.value, alarm.recovered_ms) == (False, 7, 9)


OWNERSHIP = Ownership(frozenset({"PAY", "TRADE"}), groups={"legacy": "TRADE"})
FALLBACK = Rule(100)


def test_the_most_specific_rule_of_the_tenant_applies() -> None:
    general = Rule(1, tenant="PAY", group="PAY_*")
    exact = Rule(2, tenant="PAY", group="PAY_bills", topic="*")
    both = Rule(3, tenant="PAY", group="PAY_bills", topic="PAY_orders")
    rules = [general, exact, both]
    assert rule_for(rules, "PAY_bills", "PAY_orders", FALLBACK, OWNERSHIP) == both
    assert rule_for(rules, "PAY_bills", "x", FALLBACK, OWNERSHIP) == exact
    assert rule_for(rules, "PAY_x", "x", FALLBACK, OWNERSHIP) == general
    assert rule_for(rules, "other", "x", FALLBACK, OWNERSHIP) == FALLBACK


def test_a_rule_applies_to_groups_of_its_tenant_only() -> None:
    greedy = Rule(1, tenant="PAY", group="*", topic="*")
    exact = Rule(1, tenant="PAY", group="TRADE_billing")
    for group in ("TRADE_billing", "legacy", "unowned", "PAYX_a", "%DLQ%TRADE_billing"):
        assert rule_for([greedy, exact], group, "PAY_t", FALLBACK, OWNERSHIP) == FALLBACK
    assert rule_for([greedy, exact], "PAY_a", "TRADE_t", FALLBACK, OWNERSHIP) == greedy


def test_a_rule_of_the_platform_applies_where_the_tenant_has_none() -> None:
    platform = Rule(5, group="*")
    own = Rule(6, tenant="PAY", group="PAY_a")
    rules = [platform, own]
    assert rule_for(rules, "PAY_a", "t", FALLBACK, OWNERSHIP) == own
    assert rule_for(rules, "PAY_b", "t", FALLBACK, OWNERSHIP) == platform
    assert rule_for(rules, "legacy", "t", FALLBACK, OWNERSHIP) == platform
