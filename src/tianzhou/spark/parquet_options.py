"""How messages are best written to Parquet: options for `df.write.options(**PARQUET).parquet(...)`.

Parquet's writer looks every value up in a dictionary of its column, and keeps the smallest and the
largest value of every page, for whoever skips pages by them. Most columns gain from both. Values
that no two messages share gain nothing from a dictionary, and nobody looks for messages by the
first bytes of their bodies: that work is left out, a third of what such a job costs.
"""

from collections.abc import Mapping

_DISTINCT_VALUES = (
    "body", "value", "msgId", "offsetMsgId", "queueOffset", "physicalOffset", "bodyCrc",
    "bornTimestamp", "storeTimestamp", "keys.list.element", "properties.key_value.value",
)  # fmt: skip
"""Columns, as Parquet names them, whose values differ from message to message."""
_NEVER_FILTERED = ("body", "properties.key_value.key", "properties.key_value.value")

PARQUET: Mapping[str, str] = {
    **{f"parquet.enable.dictionary#{column}": "false" for column in _DISTINCT_VALUES},
    **{f"parquet.column.statistics.enabled#{column}": "false" for column in _NEVER_FILTERED},
}
