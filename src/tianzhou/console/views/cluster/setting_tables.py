"""Settings side by side: one column for each broker, rows that differ are marked."""

from collections.abc import Mapping

import msgspec

_SECRET = ("secret", "password", "accesskey", "credentials")
HIDDEN = "***"


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One setting."""

    key: str
    values: tuple[str | None, ...]
    """By column; None: this one does not have it."""
    differs: bool


class SettingTable(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of several brokers or nameservers."""

    columns: tuple[str, ...]
    rows: tuple[SettingRow, ...]
    problems: tuple[tuple[str, str], ...] = ()
    """(column, reason) of those that could not be asked."""

    @property
    def differing(self) -> int:
        """How many settings differ."""
        return sum(each.differs for each in self.rows)


def side_by_side(
    tables: Mapping[str, Mapping[str, str]], problems: Mapping[str, str] | None = None
) -> SettingTable:
    """The settings of several, by name; secrets are hidden."""
    columns = tuple(tables)
    keys = dict.fromkeys(key for table in tables.values() for key in table)
    rows: list[SettingRow] = []
    for key in keys:
        plain = tuple(tables[name].get(key) for name in columns)
        values = tuple(None if each is None else shown(key, each) for each in plain)
        rows.append(SettingRow(key=key, values=values, differs=len(set(plain)) > 1))
    return SettingTable(columns=columns, rows=tuple(rows), problems=tuple((problems or {}).items()))


def shown(key: str, value: str) -> str:
    """A value without its secret."""
    return HIDDEN if value and any(each in key.lower() for each in _SECRET) else value


def fields_of(config: object, *without: str) -> dict[str, str]:
    """A settings struct of the wire as texts, by RocketMQ's names."""
    plain = msgspec.to_builtins(config)
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in plain.items()
        if key not in without and value is not None
    }
