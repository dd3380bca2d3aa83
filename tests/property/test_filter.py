"""The compiled SQL92 filter equals a simple evaluation of the expression."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.records import encode_record

from tianzhou.errors import FilterError
from tianzhou.protocol import properties
from tianzhou.protocol.filter import (
    compile_sql,
    find_property,
    parse_tags,
    property_finder,
    record_properties,
)

NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["", "x", "5", "5.0", "-5", "true", "7.5", "99999999999", "it's", "NaN"])
PROPERTIES = st.dictionaries(NAMES, TEXTS)

# An expression is a tuple that opens with its kind; its SQL text has all brackets.
NUMBERS = st.sampled_from([("int", 0), ("int", 5), ("long", 99999999999), ("double", 7.5)])
CONDITIONS = st.recursive(
    st.one_of(
        st.tuples(st.just("order"), st.sampled_from(["<", "<=", ">", ">="]), NAMES, NUMBERS),
        st.tuples(st.just("number="), NAMES, NUMBERS),
        st.tuples(st.just("text="), NAMES, TEXTS),
        st.tuples(st.just("null"), NAMES),
        st.tuples(st.just("in"), NAMES, st.lists(TEXTS, min_size=1, max_size=6)),
        st.tuples(st.just("contains"), NAMES, TEXTS),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("and"), inner, inner),
        st.tuples(st.just("or"), inner, inner),
    ),
    max_leaves=8,
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def as_sql(node: Any) -> str:  # noqa: ANN401 - a tree of tuples
    match node:
        case ("order", symbol, name, (_, number)):
            return f"{name} {symbol} {number}"
        case ("number=", name, (_, number)):
            return f"{name} = {number}"
        case ("text=", name, text):
            return f"{name} = {quoted(text)}"
        case ("null", name):
            return f"{name} IS NULL"
        case ("in", name, texts):
            return f"{name} IN ({', '.join(map(quoted, texts))})"
        case ("contains", name, text):
            return f"{name} CONTAINS {quoted(text)}"
        case ("not", inner):
            return f"NOT ({as_sql(inner)})"
        case (operator, left, right):
            return f"({as_sql(left)}) {operator.upper()} ({as_sql(right)})"
        case _:
            raise AssertionError(node)


def walk(node: Any, message: dict[str, str]) -> bool | None:  # noqa: ANN401 - a tree of tuples
    """Evaluate the expression as simply as possible; ValueError where RocketMQ fails."""
    match node:
        case ("order", symbol, name, number):
            text = message.get(name)
            if text is None:
                return None
            sign = compared(text, number)
            return {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[symbol]
        case ("number=", name, number):
            text = message.get(name)
            return None if text is None else compared(text, number) == 0
        case ("text=", name, text):
            return None if name not in message else message[name] == text
        case ("null", name):
            return name not in message
        case ("in", name, texts):
            return None if name not in message else message[name] in texts
        case ("contains", name, text):
            return text != "" and name in message and text in message[name]
        case ("not", inner):
            value = walk(inner, message)
            return None if value is None else not value
        case ("and", left, right):
            return walk_both(left, right, message, decided=False)
        case ("or", left, right):
            return walk_both(left, right, message, decided=True)
        case _:
            raise AssertionError(node)


def walk_both(left: Any, right: Any, message: dict[str, str], *, decided: bool) -> bool | None:  # noqa: ANN401
    first = walk(left, message)
    if first is decided:
        return decided
    second = walk(right, message)
    if second is decided:
        return decided
    return None if first is None or second is None else not decided


def compared(text: str, number: tuple[str, float]) -> int:
    kind, value = number
    if kind == "double":
        if text == "NaN":
            return 1
        return (float(text) > value) - (float(text) < value)
    read = int(text)
    if kind == "int" and not -(2**31) <= read < 2**31:
        raise ValueError(text)
    return (read > value) - (read < value)


@given(CONDITIONS, PROPERTIES)
def test_the_compiled_filter_agrees_with_the_walk(node: Any, message: dict[str, str]) -> None:  # noqa: ANN401
    try:
        expected = walk(node, message) is True
    except ValueError:
        expected = False
    sql = compile_sql(as_sql(node))
    assert sql.ignored == ""
    assert sql.matches(message.get) is expected


@given(st.text(alphabet="ab5.'()<>=,-+ /*\n\"ANDORTINUL", max_size=30))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        sql = compile_sql(text)
    except FilterError:
        return
    assert sql.matches({"a": "5"}.get) in (True, False)


@given(st.text(alphabet="ab\x01\x02ö", max_size=40), st.text(alphabet="abö", max_size=2))
def test_raw_property_lookup_equals_decoding(text: str, name: str) -> None:
    decoded = properties.decode(text)
    raw = text.encode()
    assert find_property(raw, name) == decoded.get(name)
    assert all(property_finder(raw)(key) == value for key, value in decoded.items())


@given(st.lists(st.text(alphabet="abc", min_size=1), min_size=1))
def test_every_tag_named_is_selected(tags: list[str]) -> None:
    selected = parse_tags(" || ".join(tags))
    assert set(selected.tags) == set(tags)
    assert all(selected.matches(properties.tags_code(tag)) for tag in tags)


@given(
    st.sampled_from(["t", "x" * 127, "x" * 128, "x" * 300]),
    st.binary(max_size=40),
    st.dictionaries(st.text("ab", min_size=1), st.text("cdö", min_size=1)),
    st.sampled_from(["10.0.0.1", "::1"]),
    st.sampled_from(["10.0.0.1", "::1"]),
)
def test_properties_are_located_in_every_record_layout(
    topic: str, body: bytes, props: dict[str, str], born: str, store: str
) -> None:
    text = properties.encode(props)
    record = encode_record(
        topic=topic, body=body, properties_text=text, queue_id=0, born_time_ms=0,
        born_host=(born, 1), store_host=(store, 2),
    )  # fmt: skip
    assert record_properties(memoryview(record)) == text.encode()
