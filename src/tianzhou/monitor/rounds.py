"""Rounds of alarms: observations update alarms, and alarms create notices.

A round is one transaction of the caller. Notices are stored as rows until they are delivered; the
next rounds retry failed deliveries.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, select, update

from tianzhou.monitor import tables
from tianzhou.monitor.channels import Notice, NoticeError, notifiers, notify_all
from tianzhou.monitor.rules import Alarm, Rule, evaluate, rules_for

log = logging.getLogger(__name__)

_ATTEMPTS_MAX = 100


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed value of a group and a topic."""

    group: str
    topic: str
    value: int = 0
    by_window: Mapping[int, int] = field(default_factory=dict[int, int])
    """Values by window length in seconds, where they depend on it."""
    detail: str = ""


def rules_of(connection: Connection, kind: str) -> list[Rule]:
    """The enabled rules of a kind."""
    return [
        Rule(row.threshold, row.window_s, row.repeat_max, row.tenant, row.consumer_group, row.topic)
        for row in tables.rows_of(connection, tables.alarm_rules, kind=kind)
        if row.enabled
    ]


def update_alarms(
    connection: Connection,
    kind: str,
    observations: Iterable[Observation],
    fallback: Rule,
    now_ms: int,
) -> int:
    """Update the alarms of a kind; returns the number of new notices.

    An alarm whose group or topic was not observed counts as observed with 0.
    """
    rules = rules_of(connection, kind)
    known = {
        (row.tenant, row.consumer_group, row.topic): row
        for row in tables.rows_of(connection, tables.alarms, kind=kind)
    }
    notice_count = 0
    seen: set[tuple[str, str, str]] = set()
    for each in observations:
        for rule in rules_for(rules, each.group, each.topic, fallback):
            key = (rule.tenant, each.group, each.topic)
            seen.add(key)
            notice_count += _evaluate(connection, kind, each, rule, known.get(key), now_ms)
    for key, row in known.items():
        if row.is_open and key not in seen:
            rule = Rule(row.threshold, tenant=row.tenant)
            unobserved = Observation(row.consumer_group, row.topic)
            notice_count += _evaluate(connection, kind, unobserved, rule, row, now_ms)
    return notice_count


def _evaluate(
    connection: Connection, kind: str, seen: Observation, rule: Rule, row: Any, now_ms: int  # noqa: ANN401 - a row of alarms
) -> int:  # fmt: skip
    before = None if row is None else _alarm_of(row)
    value = seen.by_window.get(rule.window_s, seen.value)
    after, event = evaluate(before, value, rule, now_ms)
    key = {
        "kind": kind, "tenant": rule.tenant, "consumer_group": seen.group, "topic": seen.topic,
    }  # fmt: skip
    if after is not None and after != before:
        values = _columns(after) | {"threshold": rule.threshold}
        tables.upsert(connection, tables.alarms, [key | values])
    if event is None:
        return 0
    values = {
        "event": event, "value": value, "threshold": rule.threshold, "at_ms": now_ms,
        "detail": seen.detail,
    }  # fmt: skip
    connection.execute(tables.alarm_events.insert().values(key | values))
    return 1


_STATE_COLUMNS = {
    "is_open": "is_open",
    "opened_ms": "opened_ms",
    "recovered_ms": "recovered_ms",
    "is_notified": "told_open",
    "notice_count": "told_count",
    "notified_ms": "told_ms",
    "value": "value",
}
"""The column of each field of an alarm."""


def _alarm_of(row: Any) -> Alarm:  # noqa: ANN401 - a row of alarms
    return Alarm(**{name: getattr(row, column) for name, column in _STATE_COLUMNS.items()})


def _columns(alarm: Alarm) -> dict[str, object]:
    values = {column: getattr(alarm, name) for name, column in _STATE_COLUMNS.items()}
    # The columns of flags are numbers.
    return {name: int(each) if isinstance(each, bool) else each for name, each in values.items()}


def deliver(engine: Engine, notify: str, now_ms: int) -> int:
    """Deliver the outstanding notices; returns the number of delivered ones."""
    table = tables.alarm_events
    to = notifiers(notify)
    with engine.connect() as connection:
        due = (table.c.told_ms.is_(None)) & (table.c.try_count < _ATTEMPTS_MAX)
        rows = connection.execute(select(table).where(due).order_by(table.c.id)).all()
    delivered_count = 0
    for row in rows:
        notice = Notice(
            row.kind, row.event, row.tenant, row.consumer_group, row.topic, row.value,
            row.threshold, row.at_ms, row.detail,
        )  # fmt: skip
        try:
            notify_all(notice, to)
            changed: dict[str, object] = {"told_ms": now_ms}
            delivered_count += 1
        except NoticeError as e:
            log.warning("alarm of group %s: notice not delivered: %s", row.consumer_group, e)
            changed = {"try_count": row.try_count + 1}
        with engine.begin() as connection:
            connection.execute(update(table).where(table.c.id == row.id).values(changed))
    return delivered_count
