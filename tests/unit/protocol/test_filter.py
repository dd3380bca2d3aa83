"""Filters: tags as a heartbeat lists them, SQL92 as RocketMQ's own filter decides it."""

import pytest

from tianzhou.errors import FilterError
from tianzhou.limits import SQL_CHARACTERS_MAX
from tianzhou.protocol import properties
from tianzhou.protocol.filter import (
    SUBSCRIBE_ALL,
    compile_sql,
    find_property,
    is_tag_type,
    parse_tags,
    property_finder,
)
from tianzhou.protocol.filter.java_numbers import compare_doubles, parse_double, parse_int

# -- tags --------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_no_expression_and_the_star_select_everything(expression: str | None) -> None:
    tags = parse_tags(expression)
    assert (tags.text, tags.selects_all, tags.tags) == (SUBSCRIBE_ALL, True, ())
    assert tags.matches(0)
    assert tags.matches(properties.tags_code("anything"))


def test_tags_are_trimmed_and_hashed_as_java_does() -> None:
    tags = parse_tags(" TagA||TagB || TagA|| ||\tTagC ")
    assert tags.tags == ("TagA", "TagB", "TagC")
    assert tags.codes == frozenset((2598919, 2598920, 2598921))
    assert tags.matches(2598919)
    assert not tags.matches(0)


def test_separators_alone_select_nothing() -> None:
    tags = parse_tags(" || ")
    assert not tags.selects_all
    assert not tags.matches(0)


def test_the_default_type_of_an_expression_is_tag() -> None:
    assert [is_tag_type(name) for name in (None, "", "TAG", "SQL92", "tag")] == [
        True, True, True, False, False,
    ]  # fmt: skip


# -- SQL92 -------------------------------------------------------------------------------------

ERROR = "evaluation fails"
REFUSED = "the expression is refused"

PROPERTIES = {
    "a": "5", "b": "x", "c": "5.5", "t": "TRUE", "n": "-7", "s": "it's", "big": "99999999999",
    "nan": "NaN",
}  # fmt: skip

# Results of RocketMQ 5.5.0 for each expression over these properties.
DECIDED_BY_ROCKETMQ: list[tuple[str, object]] = [
    ("a = 5", True),
    ("a = '5'", True),
    ("a <> 5", False),
    ("a <> 6", True),
    ("a > 4", True),
    ("a >= 5", True),
    ("a < 5", False),
    ("a <= 5", True),
    ("a = 5.0", True),
    ("a > 4.9", True),
    ("c > 5", ERROR),
    ("c > 5.0", True),
    ("c = 5.5", True),
    ("5 = a", True),
    ("4 < a", True),
    ("5.5 = c", True),
    ("b = 'x'", True),
    ("b = 'X'", False),
    ("b <> 'y'", True),
    ("b = 5", ERROR),
    ("5 = b", ERROR),
    ("b > 5", ERROR),
    ("b = TRUE", False),
    ("t = TRUE", True),
    ("t = FALSE", False),
    ("TRUE = t", ERROR),
    ("TRUE = TRUE", True),
    ("TRUE = FALSE", False),
    ("TRUE = 'x'", REFUSED),
    ("'x' = TRUE", False),
    ("1 = TRUE", False),
    ("missing = 5", None),
    ("missing <> 5", None),
    ("missing > 5", None),
    ("missing IS NULL", True),
    ("missing IS NOT NULL", False),
    ("a IS NULL", False),
    ("a IS NOT NULL", True),
    ("missing = other", True),
    ("a = missing", False),
    ("missing = a", None),
    ("NOT missing", None),
    ("NOT a", True),
    ("a", False),
    ("missing", None),
    ("TRUE", True),
    ("FALSE", False),
    ("NULL", None),
    ("NOT NULL", None),
    ("NOT TRUE", False),
    ("a = 5 AND b = 'x'", True),
    ("a = 5 AND b = 'y'", False),
    ("a = 5 OR b = 'y'", True),
    ("b > 5 OR a = 5", ERROR),
    ("a = 5 OR b > 5", True),
    ("missing = 1 OR a = 5", True),
    ("missing = 1 AND a = 5", None),
    ("missing = 1 AND a = 6", False),
    ("missing = 1 OR a = 6", None),
    ("NOT (missing = 1)", None),
    ("a BETWEEN 1 AND 9", True),
    ("a BETWEEN 5 AND 5", True),
    ("a BETWEEN 6 AND 9", False),
    ("a NOT BETWEEN 6 AND 9", True),
    ("a NOT BETWEEN 1 AND 9", False),
    ("a NOT BETWEEN 9 AND 1", True),
    ("a BETWEEN 9 AND 1", REFUSED),
    ("a BETWEEN -9 AND 9", True),
    ("a BETWEEN -1 AND -9", False),
    ("a BETWEEN 'a' AND 'b'", REFUSED),
    ("missing BETWEEN 1 AND 2", None),
    ("missing NOT BETWEEN 1 AND 2", None),
    ("c BETWEEN 5.0 AND 6.0", True),
    ("c BETWEEN 5 AND 6", ERROR),
    ("b IN ('x', 'y')", True),
    ("b IN ('y')", False),
    ("b NOT IN ('x')", False),
    ("b NOT IN ('y', 'z')", True),
    ("missing IN ('x')", None),
    ("missing NOT IN ('x')", None),
    ("a IN ('1', '2', '3', '4', '5', '6')", True),
    ("a IN (5)", REFUSED),
    ("5 IN ('5')", REFUSED),
    ("(b) IN ('x')", True),
    ("b CONTAINS 'x'", True),
    ("s CONTAINS 't''s'", True),
    ("s STARTSWITH 'it'", True),
    ("s ENDSWITH 's'", True),
    ("s NOT CONTAINS 'q'", True),
    ("s NOT STARTSWITH 'it'", False),
    ("s NOT ENDSWITH 'z'", True),
    ("s CONTAINS ''", False),
    ("s NOT CONTAINS ''", False),
    ("missing CONTAINS 'x'", False),
    ("missing NOT CONTAINS 'x'", False),
    ("s contains 't'", True),
    ("n = -7", True),
    ("n < 0", True),
    ("n < -6", True),
    ("-n = 7", None),
    ("- -5 = a", True),
    ("+5 = a", True),
    ("n = - 7", True),
    ("big > 5", ERROR),
    ("big > 5000000000", True),
    ("big = 99999999999", True),
    ("5L = a", True),
    ("a = 5L", True),
    ("a = 5l", True),
    ("nan > 1.5", True),
    ("nan > 1", ERROR),
    ("a = 0.0", REFUSED),
    ("a = 0", False),
    ("a = 5.", True),
    ("a > .5", True),
    ("a > 4e0", True),
    ("a = 1E400", REFUSED),
    ("a = 9223372036854775807", False),
    ("a = 9223372036854775808", REFUSED),
    ("a = NULL", REFUSED),
    ("a <> NULL", REFUSED),
    ("a > 'x'", REFUSED),
    ("'x' < a", REFUSED),
    ("a > TRUE", REFUSED),
    ("a < c", True),
    ("c > a", True),
    ("a < b", ERROR),
    ("b < missing", None),
    ("a == 5", REFUSED),
    ("a != 5", REFUSED),
    ("a >> 5", REFUSED),
    ("a >", REFUSED),
    ("> 5", REFUSED),
    ("5", REFUSED),
    ("'x'", REFUSED),
    ("a = 'x", REFUSED),
    ('a = "x"', REFUSED),
    ("a = 5 AND", REFUSED),
    ("(a = 5", REFUSED),
    ("a = 5)", True),
    ("a = 5 b", True),
    ("a = 5 ;", REFUSED),
    ("a = 5 b ;", True),
    ("NOT a = 5", False),
    ("NOT a > 5", REFUSED),
    ("NOT (a = 5)", False),
    ("NOT NOT (a = 5)", True),
    ("a = 5 = TRUE", True),
    ("a IS NULL IS NULL", False),
    ("a > 1 > 0", REFUSED),
    ("a and b", False),
    ("A = 5", None),
    ("a = 5 And B IS null", True),
    ("a /* note */ = 5", True),
    ("a = 5 -- note", True),
    ("a = 6 -- note\nOR a = 5", True),
    ("a\n=\t5", True),
    ("$d = 5", None),
    ("_u IS NULL", True),
    ("a LIKE 'x'", False),
    ("a = 5 + 1", True),
    ("a = (5)", True),
    ("a = (b = 'x')", False),
    ("-'x' = a", None),
    ("-TRUE = a", None),
    ("- (a = 5) = b", None),
    ("", REFUSED),
    ("  ", REFUSED),
    ("a IS TRUE", REFUSED),
    ("a NOT 5", REFUSED),
    ("a IN ()", REFUSED),
    ("a IN ('x',)", REFUSED),
    ("a = 007", False),
    ("a.b = 5", REFUSED),
]


@pytest.mark.parametrize(("expression", "expected"), DECIDED_BY_ROCKETMQ)
def test_sql_selects_as_rocketmq(expression: str, expected: object) -> None:
    try:
        sql = compile_sql(expression)
    except FilterError:
        assert expected is REFUSED
        return
    assert expected is not REFUSED
    try:
        value: object = sql.evaluate(PROPERTIES.get)
    except (ValueError, TypeError):
        value = ERROR
    assert value is expected
    assert sql.matches(PROPERTIES.get) is (expected is True)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("a >", "the expression ends where a value is expected"),
        ("(a = 5", "the expression ends where a closing bracket is expected"),
        ("a = 5 AND >", "character 11: found '>', expected a value"),
        ("a = 'x", "character 5: this string has no closing quote"),
        ('a = "x"', "character 5: strings stand in single quotes"),
        ("a ! 5", "character 3: '!' does not belong into an expression"),
        ("a > 'x'", "character 3: > compares numbers and properties, not 'x'"),
        ("a IN (5)", "character 7: found '5', expected a string in single quotes"),
        ("5 IN ('5')", "character 3: IN wants a property before it, not 5"),
        ("a BETWEEN 9 AND 1", "character 3: nothing is between 9 and 1"),
        ("a = 0.0", "character 5: 0.0 is not a positive double; write zero as 0"),
        ("a = NULL", "character 3: write IS NULL or IS NOT NULL"),
        ("TRUE = 5", "character 6: True cannot be compared with 5"),
        ("a = 9223372036854775808", "character 5: 9223372036854775808 does not fit 64 bits"),
        ("a IS 5", "character 6: found '5', expected NULL"),
        ("NOT 5", "character 1: 5 is a value where a condition is expected"),
    ],
)
def test_the_error_of_an_invalid_expression_has_its_position(
    expression: str, complaint: str
) -> None:
    with pytest.raises(FilterError) as caught:
        compile_sql(expression)
    assert complaint in str(caught.value)
    assert str(caught.value).endswith(f"the filter is: {expression}")


def test_text_after_a_complete_expression_is_ignored_and_reported() -> None:
    sql = compile_sql("a = 5 b = 6")
    assert sql.ignored == "b = 6"
    assert sql.matches(PROPERTIES.get)
    assert compile_sql("a = 5 ").ignored == ""


def test_long_and_deep_expressions_are_rejected() -> None:
    with pytest.raises(FilterError, match="at most 65536"):
        compile_sql("a" * (SQL_CHARACTERS_MAX + 1))
    with pytest.raises(FilterError, match="nest deeper"):
        compile_sql("NOT " * 1000 + "a")
    wide = compile_sql("a = 4 OR " * 499 + "a = 5")
    assert wide.matches(PROPERTIES.get)


# -- numbers and raw properties ----------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "1_0", " 5", "5.0", "2147483648", "-", "0x5", "1" * 2000])
def test_integers_that_java_rejects(text: str) -> None:
    with pytest.raises(ValueError, match=r"no integer|does not fit"):
        parse_int(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" 5 ", 5.0), ("5f", 5.0), ("5D", 5.0), (".5", 0.5), ("5.", 5.0), ("0x1p3", 8.0),
        ("-0x.8p1d", -1.0), ("1e400", float("inf")), ("-Infinity", float("-inf")),
        ("-0x1p9999", float("-inf")),
    ],
)  # fmt: skip
def test_doubles_as_java_reads_them(text: str, number: float) -> None:
    assert parse_double(text) == number


@pytest.mark.parametrize("text", ["", "inf", "nan", "1_0", "0x5", "five", "5L", "."])
def test_doubles_that_java_rejects(text: str) -> None:
    with pytest.raises(ValueError, match="no number"):
        parse_double(text)


def test_doubles_are_ordered_as_java_orders_them() -> None:
    nan = parse_double("NaN")
    rising = [float("-inf"), -1.0, -0.0, 0.0, 1.0, float("inf"), nan]
    for i, left in enumerate(rising):
        for j, right in enumerate(rising):
            assert compare_doubles(left, right) == (i > j) - (i < j)


def test_one_property_is_read_from_the_raw_text() -> None:
    raw = "TAGS\x01x\x02a\x015\x02empty\x01\x02a\x016\x02\x02odd\x02ö\x01ü".encode()
    assert find_property(raw, "TAGS") == "x"
    assert find_property(raw, "a") == "6"
    assert find_property(raw, "ö") == "ü"
    assert [find_property(raw, name) for name in ("AGS", "empty", "odd", "", "x")] == [None] * 5
    assert compile_sql("a = 6 AND TAGS = 'x'").matches(property_finder(raw))
