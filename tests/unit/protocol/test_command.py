"""Commands against bytes that RocketMQ's own RemotingCommand wrote, and against broken headers."""

import pytest

from tianzhou.errors import HeaderError
from tianzhou.protocol import command
from tianzhou.protocol.command import Command, HeaderEncoding, Language
from tianzhou.protocol.version import CURRENT_VERSION

pytestmark = pytest.mark.usefixtures("codec")

# RemotingCommand.encode of 5.5.0 for REQUEST and, with a remark, RESPONSE below.
JSON_REQUEST = bytes.fromhex(
    "000000e6000000e07b22636f6465223a3331302c226578744669656c6473223a7b2261223a2267726f7570222c226222"
    "3a22546f70696354657374222c2265223a2233222c2269223a22544147535c7530303031615c75303030324b4559535c"
    "75303030315c22715c22205c5c202f205c6e5c745c625c665c727fe280a820e5a4a9e8889ff09f98805c753030303222"
    "7d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a37372c2273657269616c"
    "697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3339397d6869"
)
JSON_RESPONSE = bytes.fromhex(
    "00000105000000ff7b22636f6465223a3331302c226578744669656c6473223a7b2261223a2267726f7570222c226222"
    "3a22546f70696354657374222c2265223a2233222c2269223a22544147535c7530303031615c75303030324b4559535c"
    "75303030315c22715c22205c5c202f205c6e5c745c625c665c727fe280a820e5a4a9e8889ff09f98805c753030303222"
    "7d2c22666c6167223a312c226c616e6775616765223a224a415641222c226f7061717565223a37372c2272656d61726b"
    "223a22e5a487e6b3a8205c75303030305c7530303166222c2273657269616c697a655479706543757272656e74525043"
    "223a224a534f4e222c2276657273696f6e223a3339397d6869"
)
BINARY_REQUEST = bytes.fromhex(
    "0000006f01000069013600018f0000004d0000000000000000000000540001610000000567726f757000016200000009"
    "546f70696354657374000165000000013300016900000029544147530161024b45595301227122205c202f200a09080c"
    "0d7fe280a820e5a4a9e8889ff09f9880026869"
)
BINARY_RESPONSE = bytes.fromhex(
    "0000007801000072013600018f0000004d0000000100000009e5a487e6b3a820001f000000540001610000000567726f"
    "757000016200000009546f70696354657374000165000000013300016900000029544147530161024b45595301227122"
    "205c202f200a09080c0d7fe280a820e5a4a9e8889ff09f9880026869"
)
# The same request from 4.9.7, whose JSON library escapes more characters, in upper case.
JSON_REQUEST_49 = bytes.fromhex(
    "000000ee000000e87b22636f6465223a3331302c226578744669656c6473223a7b2261223a2267726f7570222c226222"
    "3a22546f70696354657374222c2265223a2233222c2269223a22544147535c7530303031615c75303030324b4559535c"
    "75303030315c22715c22205c5c202f205c6e5c745c625c665c725c75303037465c753230323820e5a4a9e8889ff09f98"
    "805c7530303032227d2c22666c6167223a302c226c616e6775616765223a224a415641222c226f7061717565223a3737"
    "2c2273657269616c697a655479706543757272656e74525043223a224a534f4e222c2276657273696f6e223a3339397d"
    "6869"
)

FIELDS = {
    "a": "group",
    "b": "TopicTest",
    "e": "3",
    "i": 'TAGS\x01a\x02KEYS\x01"q" \\ / \n\t\b\f\r\x7f\u2028 天舟😀\x02',
}
REMARK = "备注 \x00\x1f"


def sent(encoding: HeaderEncoding, remark: str | None) -> Command:
    return Command(
        code=310,
        opaque=77,
        flag=0 if remark is None else 1,
        remark=remark,
        ext_fields=FIELDS,
        body=b"hi",
        language=Language.JAVA,
        version=399,
        encoding=encoding,
    )


@pytest.mark.parametrize(
    ("frame", "encoding", "remark"),
    [
        (JSON_REQUEST, HeaderEncoding.JSON, None),
        (JSON_RESPONSE, HeaderEncoding.JSON, REMARK),
        (BINARY_REQUEST, HeaderEncoding.ROCKETMQ, None),
        (BINARY_RESPONSE, HeaderEncoding.ROCKETMQ, REMARK),
    ],
)
def test_commands_of_rocketmq_round_trip(
    frame: bytes, encoding: HeaderEncoding, remark: str | None
) -> None:
    assert command.decode(frame) == sent(encoding, remark)
    assert command.encode(sent(encoding, remark)) == frame


def test_other_escapes_are_read_alike() -> None:
    assert command.decode(JSON_REQUEST_49) == command.decode(JSON_REQUEST)


def test_a_json_header_has_the_fields_that_have_values_in_rocketmqs_order() -> None:
    bare = command.encode(Command(code=105, opaque=1))
    assert bare[8:] == (
        b'{"code":105,"flag":0,"language":"PYTHON","opaque":1,"serializeTypeCurrentRPC":"JSON",'
        b'"version":%d}' % CURRENT_VERSION
    )
    full = command.encode(Command(code=0, remark="", ext_fields={}, language=99, version=1))
    assert full[8:] == (
        b'{"code":0,"extFields":{},"flag":0,"language":"OTHER","opaque":0,"remark":"",'
        b'"serializeTypeCurrentRPC":"JSON","version":1}'
    )


def test_numbers_and_booleans_in_ext_fields_are_read_as_text() -> None:
    got = command.decode(
        json_frame('{"code":1,"extFields":{"n":7,"b":true,"f":1.5,"s":"x","gone":null}}')
    )
    assert got.ext_fields == {"n": "7", "b": "true", "f": "1.5", "s": "x"}


@pytest.mark.parametrize(
    "header",
    [
        '{"code":"34","flag":"1","opaque":5}',
        ' {\t"opaque" : 5 ,\r\n"flag":1, "code":34 } \n',
        '{"unknown":{"deep":[1,{"a":null}]},"code":34,"flag":1,"opaque":5}',
        '{"code":34,"flag":1,"opaque":5,"extFields":null,"remark":null,"language":null}',
    ],
)
def test_unusual_but_unambiguous_json_is_read(header: str) -> None:
    got = command.decode(json_frame(header))
    assert (got.code, got.flag, got.opaque, got.version) == (34, 1, 5, 0)
    assert (got.language, got.remark, got.ext_fields) == (Language.OTHER, None, None)
    assert (got.is_response, got.is_oneway, got.fields) == (True, False, {})


@pytest.mark.parametrize(
    "header",
    [
        "", "{", "{}", "[]", "null", '{"code":null}', '{"code":1', '{"code":1}}', '{"code":1,}',
        '{"code":2147483648}', '{"code":1.5}', '{"code":1,"flag":null}', '{"code":1,"remark":7}',
        '{"code":1,"extFields":[]}', '{"code":1,"extFields":{"a":{}}}',
        '{"code":1,"remark":"\x01"}', '{"code":1,"remark":"\\ud83d"}', '{"code":1,"remark":"\\q"}',
        "[" * 5000, '{"code":01}', "9" * 5000, '{"code":1,"extFields":{"a":' + "9" * 5000 + "}}",
    ],
)  # fmt: skip
def test_json_that_is_no_header_is_rejected(header: str) -> None:
    with pytest.raises(HeaderError):
        command.decode(json_frame(header))


def test_text_that_is_not_utf8_is_rejected() -> None:
    with pytest.raises(HeaderError):
        command.decode(frame_of(0, b'{"code":1,"remark":"\xff"}'))
    with pytest.raises(HeaderError, match="not UTF-8"):
        command.decode(frame_of(1, bytes(16) + b"\x01\xff" + bytes(4)))


@pytest.mark.parametrize("length", range(8))
def test_less_than_a_frame_is_rejected(length: int) -> None:
    with pytest.raises(HeaderError, match="at least 8 bytes"):
        command.decode(JSON_REQUEST[:length])


def test_lengths_that_contradict_the_frame_are_rejected() -> None:
    with pytest.raises(HeaderError, match="the frame says 230 bytes, 229 are there"):
        command.decode(JSON_REQUEST[:-1])
    with pytest.raises(HeaderError, match="header of 16777215 bytes in a frame of 4"):
        command.decode(b"\x00\x00\x00\x04\x00\xff\xff\xff")
    with pytest.raises(HeaderError, match="encoding 2 is unknown"):
        command.decode(b"\x00\x00\x00\x04\x02\x00\x00\x00")


@pytest.mark.parametrize("at", [*range(8, 29), *range(29, 60)])
def test_a_truncated_binary_header_is_rejected(at: int) -> None:
    with pytest.raises(HeaderError):
        command.decode(frame_of(1, BINARY_REQUEST[8:at]))


@pytest.mark.parametrize(
    ("at", "length", "complaint"),
    [
        (21, b"\xff\xff\xff\xff", "a remark of -1 bytes"),
        (21, b"\x7f\xff\xff\xff", "a remark of 2147483647 bytes"),
        (25, b"\xff\xff\xff\xff", "ext fields of -1 bytes"),
        (25, b"\x00\x00\x00\x55", "ext fields of 85 bytes"),
        (29, b"\xff\xff", "a key of -1 bytes"),
        (29, b"\x00\x7f", "a key of 127 bytes"),
        (32, b"\xff\xff\xff\xff", "the value of 'a', -1 bytes"),
        (32, b"\x00\x00\x01\x00", "the value of 'a', 256 bytes"),
    ],
)
def test_the_error_of_a_wrong_length_in_a_binary_header_names_it(
    at: int, length: bytes, complaint: str
) -> None:
    changed = bytearray(BINARY_REQUEST)
    changed[at : at + len(length)] = length
    with pytest.raises(HeaderError, match=complaint):
        command.decode(changed)


@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_values_that_no_header_can_encode_are_rejected(encoding: HeaderEncoding) -> None:
    for wrong in (
        Command(code=1, opaque=2**31, encoding=encoding),
        Command(code=2**31, encoding=encoding),
        Command(code=1, flag=-(2**31) - 1, encoding=encoding),
        Command(code=1, remark="\ud800", encoding=encoding),
        Command(code=1, ext_fields={"k": "v" * 2**24}, encoding=encoding),
    ):
        with pytest.raises(HeaderError):
            command.encode(wrong)


def test_values_that_only_the_binary_header_cannot_encode_are_rejected() -> None:
    for wrong in (
        Command(code=1, version=2**15, encoding=HeaderEncoding.ROCKETMQ),
        Command(code=1, language=256, encoding=HeaderEncoding.ROCKETMQ),
        Command(code=1, ext_fields={"k" * 2**15: "v"}, encoding=HeaderEncoding.ROCKETMQ),
    ):
        with pytest.raises(HeaderError):
            command.encode(wrong)


def test_a_bool_as_a_number_is_written_as_a_number() -> None:
    assert b'"code":1,' in command.encode(Command(code=True))


@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_a_response_has_the_encoding_of_its_request(encoding: HeaderEncoding) -> None:
    request = Command(code=105, opaque=99, flag=command.FLAG_ONEWAY, encoding=encoding)
    assert request.is_oneway
    got = command.decode(
        command.encode(command.response_to(request, 17, remark="no topic", ext_fields={"a": "b"}))
    )
    assert (got.code, got.opaque, got.encoding) == (17, 99, encoding)
    assert (got.is_response, got.is_oneway) == (True, False)
    assert (got.remark, got.fields, got.language) == ("no topic", {"a": "b"}, Language.PYTHON)


def frame_of(encoding: int, header: bytes) -> bytes:
    headline = encoding << 24 | len(header)
    return (4 + len(header)).to_bytes(4, "big") + headline.to_bytes(4, "big") + header


def json_frame(header: str) -> bytes:
    return frame_of(0, header.encode())
