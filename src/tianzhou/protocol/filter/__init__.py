"""Which messages a subscription wants: by tags or by an SQL92 expression over the properties.

Both are compiled once per expression. Tags are decided from the queue entry alone, SQL92 from the
raw properties of the record; the body is never read.
"""

from tianzhou.protocol.filter.raw import find_property, property_finder, record_properties
from tianzhou.protocol.filter.sql import SqlFilter, compile_sql
from tianzhou.protocol.filter.tags import SUBSCRIBE_ALL, TagFilter, is_tag_type, parse_tags

__all__ = [
    "SUBSCRIBE_ALL",
    "SqlFilter",
    "TagFilter",
    "compile_sql",
    "find_property",
    "is_tag_type",
    "parse_tags",
    "property_finder",
    "record_properties",
]
