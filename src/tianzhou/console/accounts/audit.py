"""The audit log: one row for each change, also for one that failed or was refused. Insert only."""

import json
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select

from tianzhou.console.tables import audit, values_of

KEPT_MS = 400 * 24 * 3600_000
EXPORT_MAX = 100_000
_TEXT_MAX = 20_000
_HIDDEN = ("password", "secret")
"""Texts in fields whose name contains one of these are never written."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    id: int
    at_ms: int
    person: str
    token: str
    ip: str
    agent: str
    cluster: str
    verb: str
    subject: str
    before: str
    after: str
    """JSON, as is `before`; empty: there was nothing."""
    result: str
    """"ok", "failed" or "refused"."""
    reason: str


def record(connection: Connection, now_ms: int, **values: object) -> int:
    """Write a row; returns its id. `before` and `after` may be structs or mappings."""
    row: dict[str, object] = {"at_ms": now_ms, **values}
    for side in ("before", "after"):
        row[side] = _shown(row.get(side))
    for name, longest in (("subject", 512), ("agent", 255), ("reason", _TEXT_MAX)):
        row[name] = _one_line(str(row.get(name, "")))[:longest]
    return int(connection.execute(audit.insert().values(**row)).inserted_primary_key[0])  # type: ignore[index]


def expire(connection: Connection, now_ms: int) -> None:
    """Delete rows that are older than 400 days."""
    connection.execute(delete(audit).where(audit.c.at_ms < now_ms - KEPT_MS))


def search(
    connection: Connection, find: str, *, oldest_first: bool = False, offset: int = 0, limit: int
) -> tuple[list[Entry], int]:
    """The rows with a text in person, subject, verb or cluster; and how many there are."""
    matching = _matching(find)
    order = audit.c.id.asc() if oldest_first else audit.c.id.desc()
    columns = [audit.c[name] for name in Entry.__struct_fields__]
    rows = connection.execute(
        select(*columns).where(matching).order_by(order).offset(offset).limit(limit)
    )
    entries = [msgspec.convert(values_of(row), Entry) for row in rows]
    count = connection.execute(select(func.count()).select_from(audit).where(matching)).scalar_one()
    return entries, int(count)


def by_id(connection: Connection, number: int) -> Entry | None:
    """One row."""
    columns = [audit.c[name] for name in Entry.__struct_fields__]
    row = connection.execute(select(*columns).where(audit.c.id == number)).first()
    return msgspec.convert(values_of(row), Entry) if row is not None else None


def _matching(find: str) -> ColumnElement[bool]:
    columns = (audit.c.person, audit.c.subject, audit.c.verb, audit.c.cluster)
    parts = [
        or_(*(column.icontains(part, autoescape=True) for column in columns))
        for part in find.split()
    ]
    return and_(True, *parts)


def _shown(value: object) -> str:
    if value is None or value == "":
        return ""
    plain = msgspec.to_builtins(value, enc_hook=str)
    text = json.dumps(without_secrets(plain), ensure_ascii=False, sort_keys=True)
    return text if len(text) <= _TEXT_MAX else json.dumps({"cut": text[:_TEXT_MAX]})


def without_secrets(value: object) -> object:
    """The value with the fields masked that hold secrets."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        return {
            name: "***" if _is_secret(name, each) else without_secrets(each)
            for name, each in fields.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(each) for each in cast("list[object]", value)]
    return value


def _is_secret(name: str, value: object) -> bool:
    return isinstance(value, str) and value != "" and any(part in name for part in _HIDDEN)


def _one_line(text: str) -> str:
    return " ".join(text.split())
