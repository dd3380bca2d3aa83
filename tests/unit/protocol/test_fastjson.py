"""The JSON dialects of RocketMQ's bodies. Expected texts are what fastjson itself writes."""

import json
from typing import Any

import msgspec
import pytest

from tianzhou.errors import BodyError
from tianzhou.protocol.fastjson import DEPTH_LIMIT, EXPANSION_LIMIT, ObjectKey, dumps, loads

# -- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Strict JSON.
        ("null", None),
        (' [1, -2.5, true, false, null, ""] ', [1, -2.5, True, False, None, ""]),
        ('{"a":{"b":[]}}', {"a": {"b": []}}),
        ('"\\u4E2D\\ud83d\\ude00\\/"', "中😀/"),
        # Output of fastjson that is not valid JSON.
        ('{0:"a",-1:"b",10:"c"}', {0: "a", -1: "b", 10: "c"}),
        ("{1L:2}", {1: 2}),
        ('{{"topic":"t","queueId":1}:5}', {ObjectKey(topic="t", queueId=1): 5}),
        ('{{"a":[1,{"b":2}]}:1}', {ObjectKey(a=(1, ObjectKey(b=2))): 1}),
        ("{[1,2]:3}", {(1, 2): 3}),
        ("{null:1,true:2,1.5:3}", {"null": 1, "true": 2, "1.5": 3}),
        # What fastjson reads.
        ("{a:1,_b$2:2,$c:3,中:4}", {"a": 1, "_b$2": 2, "$c": 3, "中": 4}),
        ("{'a':'b\"c','d':'e\\'f'}", {"a": 'b"c', "d": "e'f"}),
        ('{"a":1,}', {"a": 1}),
        ('{,"a":1,,"b":2}', {"a": 1, "b": 2}),
        ("[,1,,2,]", [1, 2]),
        ('/*c*/{"a"/*x*/://y\n1}//z', {"a": 1}),
        ("/* * / ** */[1]", [1]),
        ('\ufeff{"a":1}', {"a": 1}),
        ("\f\v\b[1]", [1]),
        ("[1L,2S,3B,4F,5D,+6,007,-08,9.]", [1, 2, 3, 4.0, 5.0, 6, 7, -8, 9]),
        ("[1E+3,]", [1000.0]),
        ("[undefined,NaN]", [None, None]),
        ('{"a":"x\ny\u0001z"}', {"a": "x\ny\u0001z"}),
        ("'\\x41\\v\\0\\7\\F'", "A\v\0\a\f"),
        ("'\\ud83d'", "?"),
        ("'\\ude00\\ud83d'", "??"),
        ('{1:1,"1":2}', {1: 1, "1": 2}),
        ("12345678901234567890123", 12345678901234567890123),
    ],
)
def test_reads(text: str, value: object) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value
    assert loads(memoryview(text.encode())) == value


def test_unquoted_integers_are_integers_and_quoted_ones_are_not() -> None:
    assert list(loads('{1:0,"2":0}')) == [1, "2"]
    assert list(loads('{"1":0,"2":0}')) == ["1", "2"]


def test_integers_beyond_a_long_are_no_integer_keys() -> None:
    assert list(loads(f"{{{2**63 - 1}:0,{2**63}:0}}")) == [2**63 - 1, str(2**63)]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "a value expected, the end found"),
        (b"  ", "a value expected, the end found"),
        (b"{", "a key expected, the end found"),
        (b'{"a"', "':' expected, the end found"),
        (b'{"a":', "a value expected, the end found"),
        (b'{"a":}', "character 5: a value expected, '}' found"),
        (b'{"a" 1}', "character 5: ':' expected"),
        (b'{"a":1;"b":2}', "',' or '}' expected"),
        (b'{"a":1 "b":2}', "',' or '}' expected"),
        (b"[1 2]", "',' or ']' expected"),
        (b"[1", "',' or ']' expected, the end found"),
        (b"{:1}", "a key expected"),
        (b"{a.b:1}", "':' expected"),
        (b'{"a":1}x', "the end of the body expected, 'x' found"),
        (b'{"a":1}{"b":2}', "the end of the body expected"),
        (b'"a', 'the closing " of a string expected'),
        (b"'a", "the closing ' of a string expected"),
        (b'"\\q"', "a known escape"),
        (b'"\\u12"', "a known escape"),
        (b"[TRUE]", "a value expected"),
        (b"[nul]", "a value expected"),
        (b"[Infinity]", "a value expected"),
        (b"[.5]", "a value expected"),
        (b"[0x1F]", "',' or ']' expected"),
        (b"/* never closed", "a value expected"),
        (b"new Date(1)", "a value expected"),
        (b"[1e999]", "a number that fits a double"),
        (b"[" + b"9" * 5000 + b"]", "a number of at most 400 digits"),
        (b'"\xff"', "the body is not UTF-8"),
        (b"\xc3\x28", "the body is not UTF-8"),
        (b"{1:'\xed\xa0\x80'}", "the body is not UTF-8"),
    ],
)
def test_refuses(data: bytes, problem: str) -> None:
    with pytest.raises(BodyError) as refused:
        loads(data)
    assert problem in str(refused.value)


def test_the_text_of_an_error_is_short() -> None:
    with pytest.raises(BodyError) as refused:
        loads("x" * 1_000_000)
    assert len(str(refused.value)) < 200


# -- limits ---------------------------------------------------------------------------------------

NESTINGS = {
    "strict array": ("[", "]"),
    "strict object": ('{"a":', "}"),
    "loose array": ("[,", "]"),
    "loose object": ("{a:", "}"),
    "object key": ("{", ":1}"),
}


@pytest.mark.parametrize("kind", NESTINGS)
def test_nesting_up_to_the_limit_is_read(kind: str) -> None:
    opening, closing = NESTINGS[kind]
    inside = "{}" if kind == "object key" else "[]"
    text = opening * (DEPTH_LIMIT - 1) + inside + closing * (DEPTH_LIMIT - 1)
    assert loads(text) is not None


@pytest.mark.parametrize("kind", NESTINGS)
@pytest.mark.parametrize("levels", [DEPTH_LIMIT, 1000, 200_000])
def test_nesting_beyond_the_limit_is_rejected(kind: str, levels: int) -> None:
    opening, closing = NESTINGS[kind]
    inside = "{}" if kind == "object key" else "[]"
    with pytest.raises(BodyError, match="nested more than 128 levels deep"):
        loads(opening * levels + inside + closing * levels)


def test_unclosed_brackets_are_rejected() -> None:
    with pytest.raises(BodyError, match="nested more than 128 levels deep"):
        loads("[" * 1_000_000)


# -- references -----------------------------------------------------------------------------------

# Texts of fastjson 1 for maps with one list under a key and again under "again".
REFERENCES = [
    ('{"tab":{"a":[{"q":1}]},"again":[{"$ref":"$.tab.a[0]"}]}', "a"),
    ('{"tab":{"a-b":[{"q":1}]},"again":[{"$ref":"$.tab.a\\\\-b[0]"}]}', "a-b"),
    ('{"tab":{"a.b":[{"q":1}]},"again":[{"$ref":"$.tab.a\\\\.b[0]"}]}', "a.b"),
    ('{"tab":{"a[0]":[{"q":1}]},"again":[{"$ref":"$.tab.a\\\\[0\\\\][0]"}]}', "a[0]"),
    ('{"tab":{"a\\\\b":[{"q":1}]},"again":[{"$ref":"$.tab.a\\\\\\\\b[0]"}]}', "a\\b"),
    ('{"tab":{"%RETRY%g":[{"q":1}]},"again":[{"$ref":"$.tab.\\\\%RETRY\\\\%g[0]"}]}', "%RETRY%g"),
    ('{"tab":{"中":[{"q":1}]},"again":[{"$ref":"$.tab.中[0]"}]}', "中"),
    ('{"tab":{5:[{"q":1}]},"again":[{"$ref":"$.tab[5][0]"}]}', 5),
    ('{"tab":{5:[{"q":1}]},"again":[{"$ref":"$.tab.5[0]"}]}', 5),
    ('{"tab":{-5:[{"q":1}]},"again":[{"$ref":"$.tab[-5][0]"}]}', -5),
]


@pytest.mark.parametrize(("text", "key"), REFERENCES)
def test_references_are_resolved(text: str, key: object) -> None:
    assert loads(text) == {"tab": {key: [{"q": 1}]}, "again": [{"q": 1}]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[{"a":1},{"$ref":"$[0]"}]', [{"a": 1}, {"a": 1}]),
        ('{"a":{"$ref":"$.b"},"b":{"c":1}}', {"a": {"c": 1}, "b": {"c": 1}}),
        ('{"a":{"$ref":"$.b"},"b":{"$ref":"$.c"},"c":[1]}', {"a": [1], "b": [1], "c": [1]}),
        ('{"a":{"$ref":"$.nowhere"}}', {"a": None}),
        ('{"a":[],"b":{"$ref":"$.a[3]"}}', {"a": [], "b": None}),
        ('{"a":1,"b":{"$ref":"$.a.c"}}', {"a": 1, "b": None}),
        ('{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}', {"a": None, "b": None}),
        # These are no references.
        ('{"$ref":1}', {"$ref": 1}),
        ('{"a":{"$ref":"$.b","x":1}}', {"a": {"$ref": "$.b", "x": 1}}),
        ('{"a":"$ref"}', {"a": "$ref"}),
    ],
)
def test_unusual_references(text: str, value: object) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a":{"$ref":"$"}}', "contain itself"),
        ('{"a":{"b":{"$ref":".."}}}', "contain itself"),
        ('{"a":{"b":{"$ref":"@"}}}', "contain itself"),
        ('{"a":[{"$ref":"$.a"}]}', "contain itself"),
        ('{"a":[{"$ref":"$.b"}],"b":[{"$ref":"$.a"}]}', "contain itself"),
        ('{"a":{"$ref":"elsewhere"}}', "'elsewhere' leads nowhere"),
        ('{"a":{"$ref":"$a"}}', "'\\$a' cannot be read at character 1"),
        ('{"a":{"$ref":"$.b[x]"}}', "cannot be read"),
    ],
)
def test_invalid_references_are_rejected(text: str, problem: str) -> None:
    with pytest.raises(BodyError, match=problem):
        loads(text)


def test_references_cannot_multiply_a_body() -> None:
    # Each list holds the one before it ten times: 10 ** 8 values, if they were written out.
    levels = [[0] * 10] + [[{"$ref": f"$[{n}]"}] * 10 for n in range(7)]
    with pytest.raises(BodyError, match=f"beyond {EXPANSION_LIMIT} values"):
        loads(json.dumps(levels))


def test_references_cannot_deepen_a_body() -> None:
    levels = [[0]] + [[{"$ref": f"$[{n}]"}] for n in range(1000)]
    with pytest.raises(BodyError, match="nested more than 128 levels deep"):
        loads(json.dumps(levels))


def test_a_long_chain_of_references_is_rejected() -> None:
    members = {f"k{n}": {"$ref": f"$.k{n + 1}"} for n in range(5000)}
    with pytest.raises(BodyError, match="leads nowhere"):
        loads(json.dumps(members))


# -- writing --------------------------------------------------------------------------------------

CONTROL = "".join(map(chr, range(0x20)))
CONTROL_NATIVE = (
    r"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000B\f\r\u000E\u000F"
    r"\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001A\u001B\u001C\u001D\u001E\u001F"
)


@pytest.mark.parametrize(
    ("value", "native", "standard"),
    [
        (CONTROL, CONTROL_NATIVE, CONTROL_NATIVE.lower()),
        ("a\"b\\c/d'e", "a\\\"b\\\\c/d'e", "a\\\"b\\\\c/d'e"),
        ("~\x7f\x80\x9f\xa0", "~\\u007F\\u0080\\u009F\xa0", "~\x7f\x80\x9f\xa0"),
        ("\u2027\u2028\u2029\u202a", "\u2027\\u2028\\u2029\u202a", "\u2027\u2028\u2029\u202a"),
        ("é中😀\ufeff\uffff<>&", "é中😀\ufeff\uffff<>&", "é中😀\ufeff\uffff<>&"),
    ],
)
def test_strings_are_escaped_as_fastjson_does(value: str, native: str, standard: str) -> None:
    assert dumps(value, standard=False).decode() == f'"{native}"'
    assert dumps(value, standard=True).decode() == f'"{standard}"'
    assert dumps({value: 1}, standard=False).decode() == f'{{"{native}":1}}'
    assert loads(dumps(value, standard=False)) == loads(dumps(value, standard=True)) == value


def test_an_unpaired_surrogate_becomes_a_question_mark_as_in_java() -> None:
    assert dumps("a\ud83d", standard=False) == b'"a?"'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (1e-7, "1.0E-7"),
        (9999999.5, "9999999.5"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (123456789012345680.0, "1.2345678901234568E17"),
        (1e23, "1.0E23"),
        (-1.5e300, "-1.5E300"),
        (5e-324, "5.0E-324"),
        (float("nan"), "null"),
        (float("inf"), "null"),
    ],
)
def test_doubles_are_written_as_java_does(value: float, text: str) -> None:
    assert dumps([value], standard=False).decode() == f"[{text}]"
    assert dumps([value], standard=True).decode() == f"[{text}]"


@pytest.mark.parametrize(
    ("value", "native", "standard"),
    [
        (None, "null", "null"),
        (True, "true", "true"),
        ([], "[]", "[]"),
        ({}, "{}", "{}"),
        ([None, 1, "a"], '[null,1,"a"]', '[null,1,"a"]'),
        ({"a": None, "b": 1}, '{"b":1}', '{"b":1}'),
        ({"a": None}, "{}", "{}"),
        ({10: 1, 2: 2, -1: 3}, "{10:1,2:2,-1:3}", '{"-1":3,"2":2,"10":1}'),
        ({"b": 1, "B": 2, "a": 3}, '{"b":1,"B":2,"a":3}', '{"B":2,"a":3,"b":1}'),
        ({"\ue000": 1, "\U0001f600": 2}, '{"\ue000":1,"😀":2}', '{"😀":2,"\ue000":1}'),
        ({True: 1, 1.5: 2}, "{true:1,1.5:2}", '{"true":1,"1.5":2}'),
        (
            {ObjectKey(topic="t", queueId=1): {"x": 5}},
            '{{"topic":"t","queueId":1}:{"x":5}}',
            '{"{\\"queueId\\":1,\\"topic\\":\\"t\\"}":{"x":5}}',
        ),
        (2**53 - 1, "9007199254740991", "9007199254740991"),
        (2**53, "9007199254740992", '"9007199254740992"'),
        (-(2**53), "-9007199254740992", '"-9007199254740992"'),
    ],
)
def test_the_two_dialects(value: object, native: str, standard: str) -> None:
    assert dumps(value, standard=False).decode() == native
    assert dumps(value, standard=True).decode() == standard


class _Queue(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    queue_id: int = 0
    broker_name: str | None = None


def test_structs_are_written_by_wire_name_without_absent_fields() -> None:
    queue = _Queue("t", 1)
    assert dumps(queue, standard=False) == b'{"queueId":1,"topic":"t"}'
    assert dumps({queue: [queue]}, standard=False) == (
        b'{{"queueId":1,"topic":"t"}:[{"queueId":1,"topic":"t"}]}'
    )
    assert dumps(_Queue("t", broker_name="b"), standard=True) == (
        b'{"brokerName":"b","queueId":0,"topic":"t"}'
    )


@pytest.mark.parametrize("standard", [False, True])
def test_values_that_json_cannot_represent_are_rejected(standard: bool) -> None:
    with pytest.raises(BodyError, match="bytes cannot be written"):
        dumps({"a": b"b"}, standard=standard)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(BodyError, match="nested more than 128 levels deep"):
        dumps(endless, standard=standard)


def test_standard_output_is_strict_json() -> None:
    value = {"z": {10: "a", 2: "b"}, "a": [{ObjectKey(x=1): 1.5e300}], "é": CONTROL}
    assert json.loads(dumps(value, standard=True)) == {
        "z": {"2": "b", "10": "a"},
        "a": [{'{"x":1}': 1.5e300}],
        "é": CONTROL,
    }
