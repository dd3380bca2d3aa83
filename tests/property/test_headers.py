"""Laws of typed headers."""

import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from tests.support.header_table import REQUEST_HEADERS, RESPONSE_HEADERS

from tianzhou.errors import FieldError
from tianzhou.protocol.headers import Header, decode, encode
from tianzhou.protocol.headers.pull import ViewMessageRequest
from tianzhou.protocol.headers.send import EndTransactionRequest

HEADER_TYPES = sorted(
    set(REQUEST_HEADERS.values()) | set(RESPONSE_HEADERS.values()), key=lambda kind: kind.__name__
)


def values_of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Every value that a field of this kind may hold."""
    if isinstance(kind, inspect.UnionType):
        return st.one_of([values_of(member) for member in kind.types])
    if isinstance(kind, inspect.NoneType):
        return st.none()
    if isinstance(kind, inspect.BoolType):
        return st.booleans()
    if isinstance(kind, inspect.IntType):
        return st.integers(kind.ge, kind.le)
    assert isinstance(kind, inspect.StrType)
    return st.text(max_size=20)


@st.composite
def any_header(draw: st.DrawFn) -> Header:
    header_type = draw(st.sampled_from(HEADER_TYPES))
    info = inspect.type_info(header_type)
    assert isinstance(info, inspect.StructType)
    values = {field.name: draw(values_of(field.type)) for field in info.fields}
    return header_type(**values)


@given(any_header())
def test_headers_round_trip(header: Header) -> None:
    fields = encode(header)
    assert decode(type(header), fields) == header
    assert all(isinstance(text, str) for text in fields.values())


@given(any_header(), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5))
def test_unknown_fields_change_nothing(header: Header, others: dict[str, str]) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(type(header))}
    unknown = {f"?{name}": text for name, text in others.items() if f"?{name}" not in known}
    assert decode(type(header), encode(header) | unknown) == header


@given(any_header(), st.data())
def test_any_text_is_decoded_or_refused_with_the_field_name(
    header: Header, data: st.DataObject
) -> None:
    fields = encode(header)
    if not fields:
        return
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(st.text(max_size=30) | st.integers().map(str))
    try:
        decode(type(header), fields)
    except FieldError as refused:
        assert f"field {name!r}" in str(refused)  # noqa: PT017 - either outcome is legal


_JAVA_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


@given(
    st.sampled_from([(EndTransactionRequest, "commitLogOffset"), (ViewMessageRequest, "offset")]),
    st.text("0123456789+-.eE_ xnul", max_size=24)
    | st.integers(-(2**65), 2**65).map(str)
    | st.integers(0, 2**63 - 1).map("{}.0".format)
    | st.integers(0, 2**63 - 1).map("{}e0".format)
    | st.floats().map(str)
    | st.text(max_size=5),
)
def test_integers_are_what_java_reads_and_nothing_else(
    field: tuple[type[Header], str], text: str
) -> None:
    kind, name = field
    fields = encode(
        EndTransactionRequest(
            producer_group="g", queue_offset=0, log_offset=0, commit_or_rollback=8, msg_id="m"
        )
    )
    is_legal = bool(_JAVA_INTEGER.fullmatch(text)) and -(2**63) <= int(text) < 2**63
    try:
        header: Any = decode(kind, fields | {name: text})
    except FieldError:
        assert not is_legal
    else:
        assert is_legal
        assert header.log_offset == int(text)
