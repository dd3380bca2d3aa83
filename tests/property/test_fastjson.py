"""Laws of the JSON dialects."""

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from tianzhou.errors import BodyError
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies import Body
from tianzhou.protocol.bodies.clients import HeartbeatData
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable, ResetOffsetBody
from tianzhou.protocol.bodies.registration import RegisterBrokerBody
from tianzhou.protocol.bodies.route import ClusterInfo, TopicRouteData
from tianzhou.protocol.bodies.stats import ConsumeStats
from tianzhou.protocol.fastjson import (
    Json,
    ObjectKey,
    dumps,
    is_array,
    is_object,
    loads,
    quote_integer_keys,
)

SAFE = 2**53 - 1

# Java writes what is no number as null, and a standard reader wants large integers as strings.
SCALARS = (
    st.booleans()
    | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
STRING_KEYS = st.text()
LONG_KEYS = st.integers(-(2**63) + 1, 2**63 - 1)
OBJECT_KEYS = st.dictionaries(STRING_KEYS, SCALARS, max_size=2).map(ObjectKey)


def values(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """JSON values; None only where fastjson keeps it."""
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner | st.none()) | st.dictionaries(keys, inner),
        max_leaves=12,
    )


@given(values(STRING_KEYS))
def test_both_dialects_are_read_back(value: object) -> None:
    assert loads(dumps(value, standard=True)) == value
    assert loads(dumps(value, standard=False)) == value


@given(values(STRING_KEYS))
def test_other_readers_read_both_dialects_of_plain_values(value: object) -> None:
    assert json.loads(dumps(value, standard=True)) == value
    assert json.loads(dumps(value, standard=False)) == value


@given(values(STRING_KEYS | LONG_KEYS | OBJECT_KEYS))
@example({ObjectKey(): {}})
@example({0: {"$": ObjectKey(a=1)}})
def test_keys_of_every_kind_are_read_back(value: object) -> None:
    assert loads(dumps(value, standard=False)) == value


@given(values(STRING_KEYS | LONG_KEYS | OBJECT_KEYS))
def test_the_standard_dialect_is_strict_json(value: object) -> None:
    json.loads(dumps(value, standard=True))
    msgspec.json.decode(dumps(value, standard=True))


@given(values(STRING_KEYS | LONG_KEYS))
def test_quoting_keys_is_right_or_unreadable(value: object) -> None:
    native = dumps(value, standard=False)
    try:
        quoted = msgspec.json.decode(quote_integer_keys(native))
    except ValueError:
        return
    assert quoted == with_text_keys(loads(native))


def with_text_keys(value: Json) -> Json:
    if is_object(value):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    return [with_text_keys(item) for item in value] if is_array(value) else value


@given(st.text(alphabet="{}[]:,\"'\\/*0123456789.eEL+-truefalsn $ref@\n\u00e9", max_size=60))
@example('{"$ref":"$"}')
@example('[{"$ref":"$[0]"}]')
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        value = loads(text)
    except BodyError:
        return
    dumps(value, standard=False)
    dumps(value, standard=True)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        loads(data)
    except BodyError:
        return


# -- typed bodies ---------------------------------------------------------------------------------

BODY_TYPES: list[type[Body]] = [
    TopicRouteData,
    ClusterInfo,
    RegisterBrokerBody,
    HeartbeatData,
    ConsumerOffsetTable,
    ConsumeStats,
    ResetOffsetBody,
]


@cache
def bodies_of(body_type: type[Body]) -> st.SearchStrategy[Any]:
    return values_of(inspect.type_info(body_type))


def values_of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Every value that a field of this kind may hold."""
    if isinstance(kind, inspect.UnionType):
        # Where a name or its ordinal may stand, only names come back as they are.
        kinds = [each for each in kind.types if not isinstance(each, inspect.StrType)]
        text = len(kinds) < len(kind.types)
        kinds = [each for each in kinds if not (text and isinstance(each, inspect.IntType))]
        return st.one_of([values_of(each) for each in kinds] + [st.text(max_size=8)] * text)
    if isinstance(kind, inspect.StructType):
        members = {field.name: values_of(field.type) for field in kind.fields}
        return st.builds(kind.cls, **members)
    if isinstance(kind, inspect.DictType):
        return st.dictionaries(values_of(kind.key_type), values_of(kind.value_type), max_size=2)
    if isinstance(kind, inspect.ListType):
        return st.lists(values_of(kind.item_type), max_size=2)
    if isinstance(kind, inspect.IntType):
        return st.integers(kind.ge, kind.le)
    if isinstance(kind, inspect.FloatType):
        return st.floats(allow_nan=False, allow_infinity=False)
    if isinstance(kind, inspect.NoneType):
        return st.none()
    if isinstance(kind, inspect.BoolType):
        return st.booleans()
    assert isinstance(kind, inspect.StrType)
    return st.text(max_size=8)


@pytest.mark.parametrize("body_type", BODY_TYPES, ids=lambda kind: kind.__name__)
@given(st.data())
@settings(max_examples=30)
def test_bodies_are_read_back_in_both_dialects(body_type: type[Body], data: st.DataObject) -> None:
    body = data.draw(bodies_of(body_type))
    assert bodies.decode(body_type, bodies.encode(body, standard=False)) == body
    assert bodies.decode(body_type, bodies.encode(body, standard=True)) == body
