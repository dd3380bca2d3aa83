"""Rounds of alarms: observations update alarms, and alarms create notices.

A round is one transaction of the caller, for one cluster. Notices are stored as rows until they are
delivered, to each channel once; the next rounds retry the channels that failed.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, select, update

from tianzhou.monitor import tables
from tianzhou.monitor.channels import Channel, channels_of
from tianzhou.monitor.notices import Notice, NoticeError
from tianzhou.monitor.ownership import Ownership
from tianzhou.monitor.rules import Alarm, Rule, evaluate, rule_for

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


def rules_of(connection: Connection, cluster: str, kind: str) -> list[Rule]:
    """The enabled rules of a kind in a cluster; those without a cluster hold in every one."""
    return [
        Rule(row.threshold, row.window_s, row.repeat_max, row.tenant, row.consumer_group, row.topic)
        for row in tables.rows_of(connection, tables.alarm_rules, kind=kind)
        if row.enabled and row.cluster in (cluster, "")
    ]


def tenants_of(connection: Connection) -> Ownership:
    """Which tenant owns which name, where only the rules name tenants."""
    codes = connection.execute(select(tables.alarm_rules.c.tenant).distinct()).scalars()
    return Ownership(frozenset(code for code in codes if code))


def update_alarms(
    connection: Connection,
    cluster: str,
    kind: str,
    observations: Iterable[Observation],
    fallback: Rule,
    now_ms: int,
    ownership: Ownership | None = None,
) -> int:
    """Update the alarms of a kind in a cluster; returns the number of new notices.

    An alarm whose group or topic was not observed counts as observed with 0.
    """
    rules = rules_of(connection, cluster, kind)
    owners = tenants_of(connection) if ownership is None else ownership
    scope = {"cluster": cluster, "kind": kind}
    known = {
        (row.tenant, row.consumer_group, row.topic): row
        for row in tables.rows_of(connection, tables.alarms, **scope)
    }
    notice_count = 0
    seen: set[tuple[str, str, str]] = set()
    for each in observations:
        rule = rule_for(rules, each.group, each.topic, fallback, owners)
        key = (rule.tenant, each.group, each.topic)
        seen.add(key)
        notice_count += _evaluate(connection, scope, each, rule, known.get(key), now_ms)
    for key, row in known.items():
        if row.is_open and key not in seen:
            rule = Rule(row.threshold, tenant=row.tenant)
            unobserved = Observation(row.consumer_group, row.topic)
            notice_count += _evaluate(connection, scope, unobserved, rule, row, now_ms)
    return notice_count


def _evaluate(
    connection: Connection, scope: Mapping[str, str], seen: Observation, rule: Rule, row: Any,  # noqa: ANN401 - a row of alarms
    now_ms: int,
) -> int:  # fmt: skip
    before = None if row is None else _alarm_of(row)
    value = seen.by_window.get(rule.window_s, seen.value)
    after, event = evaluate(before, value, rule, now_ms)
    key = dict(scope) | {
        "tenant": rule.tenant, "consumer_group": seen.group, "topic": seen.topic,
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


def deliver(engine: Engine, cluster: str, notify: str, now_ms: int) -> int:
    """Deliver the outstanding notices of a cluster to every channel that has not got them.

    Returns the number of notices that every channel has now.
    """
    table, channels = tables.alarm_events, channels_of(notify)
    with engine.connect() as connection:
        due = (
            (table.c.cluster == cluster)
            & table.c.told_ms.is_(None)
            & (table.c.try_count < _ATTEMPTS_MAX)
        )
        rows = connection.execute(select(table).where(due).order_by(table.c.id)).all()
    return sum(_deliver_event(engine, row, channels, now_ms) for row in rows)


def _deliver_event(engine: Engine, row: Any, channels: Iterable[Channel], now_ms: int) -> bool:  # noqa: ANN401 - a row of alarm_events
    """Whether every channel has the notice."""
    notice = Notice(
        row.kind, row.event, row.tenant, row.consumer_group, row.topic, row.value, row.threshold,
        row.at_ms, row.detail,
    )  # fmt: skip
    with engine.connect() as connection:
        before = {
            each.channel: each
            for each in tables.rows_of(connection, tables.deliveries, event=row.id)
        }
    tries_max, has_all = row.try_count, True
    for channel in channels:
        earlier = before.get(channel.key)
        if earlier is not None and earlier.delivered_ms is not None:
            continue
        tries = 0 if earlier is None else earlier.tries
        try:
            channel.send(notice)
            result: dict[str, object] = {"delivered_ms": now_ms, "error": "", "tries": tries}
        except NoticeError as e:
            log.warning("alarm of group %s: notice not delivered: %s", row.consumer_group, e)
            result = {"delivered_ms": None, "error": str(e), "tries": tries + 1}
            tries_max, has_all = max(tries_max, tries + 1), False
        # Recorded at once, so that a failure of another channel does not repeat this one.
        with engine.begin() as connection:
            key = {"event": row.id, "channel": channel.key}
            tables.upsert(connection, tables.deliveries, [key | result])
    changed: dict[str, object] = {"told_ms": now_ms} if has_all else {"try_count": tries_max}
    with engine.begin() as connection:
        table = tables.alarm_events
        connection.execute(update(table).where(table.c.id == row.id).values(changed))
    return has_all
