"""Columns: the full schema, projections, and rejected schemas."""

import dataclasses
import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tianzhou.errors import ConfigError
from tianzhou.spark.options import SourceOptions, StoreOptions, option_name, read_options
from tianzhou.spark.schema import COLUMNS, check_projection, full_schema


def options(**given: str) -> SourceOptions:
    return read_options(SourceOptions, {"subscribe": "x", "nameServer": "a:1"} | given)


def test_the_full_schema_names_every_column_and_the_value() -> None:
    names = [column.name for column in COLUMNS]
    assert re.findall(r"(?:^|, )(\w+) ", full_schema(options())) == names
    assert full_schema(options(valueFormat="text")).endswith(", value string")
    json_schema = full_schema(options(valueFormat="json", valueSchema="a INT"))
    assert json_schema.endswith(", value struct<a INT>")
    with pytest.raises(ConfigError, match="needs a valueSchema"):
        full_schema(options(valueFormat="json"))


def test_a_projection_needs_known_columns_with_their_types() -> None:
    offset = StructField("queueOffset", LongType())
    check_projection(StructType([offset, StructField("topic", StringType(), False)]), options())
    for field, text in [
        (StructField("queueofset", LongType()), "did you mean queueOffset?"),
        (StructField("queueOffset", IntegerType()), "has the type bigint, not int"),
        (StructField("value", StringType()), "the option valueFormat adds it"),
    ]:
        with pytest.raises(ConfigError, match=re.escape(text)):
            check_projection(StructType([field]), options())
    value = StructField("value", StructType([offset]))
    check_projection(StructType([value]), options(valueFormat="json"))
    with pytest.raises(ConfigError, match="column value is a string"):
        check_projection(StructType([value]), options(valueFormat="text"))


def test_every_column_and_option_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    names = [column.name for column in COLUMNS]
    for kind in (SourceOptions, StoreOptions):
        names += [option_name(field.name) for field in dataclasses.fields(kind)]
    assert not [name for name in names if f"`{name}`" not in page]
