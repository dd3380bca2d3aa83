"""The compiled kernel and the pure-Python code agree.

The kernel may decline by returning None; then the Python code decides. It must not raise, it must
not accept what the Python code refuses, and its results must be identical.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support import wire_strategies as wire
from tests.support.records import encode_record

from tianzhou.errors import RecordError, TianzhouError
from tianzhou.protocol import host, kernel
from tianzhou.protocol.pure import frames as pure
from tianzhou.protocol.pure import record as pure_record
from tianzhou.protocol.pure import walk as pure_walk

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(kernel.WHY_PURE is not None, reason=f"no kernel: {kernel.WHY_PURE}"),
]

native = pytest.importorskip("tianzhou_kernel", reason="the kernel is not built")

BUFFERS: list[Callable[[bytes], pure.Buffer]] = [
    bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(b"\xff" + data + b"\xff")[1:-1],
    lambda data: memoryview(bytearray(b"\xff" + data + b"\xff"))[1:-1],
]
buffers = st.sampled_from(BUFFERS)


def agree(name: str, twin: Callable[..., Any], *arguments: Any) -> bool:  # noqa: ANN401 - any codec
    """Check one call on both; True if the kernel did not decline."""
    compiled = getattr(native, name)(*arguments)
    expected = outcome(twin, *arguments)
    if compiled is not None:
        assert repr(compiled) == expected
    assert outcome(getattr(kernel, name), *arguments) == expected
    return compiled is not None


def outcome(call: Callable[..., Any], *arguments: Any) -> str:  # noqa: ANN401 - same
    """The result, or the class and text of the error, as text."""
    try:
        return repr(call(*arguments))
    except TianzhouError as refused:
        return repr(refused)


def framed(encoding: int, header: bytes, body: bytes = b"") -> bytes:
    headline = encoding << 24 | len(header)
    return b"".join((
        (4 + len(header) + len(body)).to_bytes(4, "big"), headline.to_bytes(4, "big"), header, body,
    ))  # fmt: skip


# -- frames ----------------------------------------------------------------------------------------


def encoded(values: dict[str, Any]) -> bytes:
    return pure.encode_frame(**values)


frames = wire.commands.map(encoded)
streams = st.lists(frames | st.binary(max_size=12), max_size=4).map(b"".join)


@given(streams | wire.mutated(streams), st.integers(-1, 2**40) | st.just(2**70), buffers)
def test_split_frames(stream: bytes, limit: int, kind: Callable[[bytes], pure.Buffer]) -> None:
    agree("split_frames", pure.split_frames, kind(stream), limit)


@given(wire.commands)
def test_encode_frame(values: dict[str, Any]) -> None:
    order = (
        "code", "language", "version", "opaque", "flag", "remark", "ext_fields", "encoding", "body",
    )  # fmt: skip
    assert agree("encode_frame", pure.encode_frame, *[values[name] for name in order])


odd_numbers = st.integers() | st.booleans() | st.floats() | st.none() | st.text(max_size=2)
odd_texts = st.none() | st.text(st.characters(), max_size=3) | st.binary(max_size=3) | st.integers()


@given(
    st.lists(wire.int32 | odd_numbers, min_size=5, max_size=5),
    odd_texts,
    st.none() | st.dictionaries(odd_texts, odd_texts, max_size=2),
    st.integers(-1, 2) | odd_numbers,
)
def test_encode_frame_of_unusual_values(
    numbers: list[object],
    remark: object,
    ext_fields: object,
    encoding: object,
) -> None:
    agree("encode_frame", pure.encode_frame, *numbers, remark, ext_fields, encoding, b"body")


@pytest.mark.parametrize("encoding", [0, 1])
def test_encode_frame_at_the_limits_of_its_lengths(encoding: int) -> None:
    for length in (2**15 - 1, 2**15, 2**24 - 200, 2**24):
        for fields in ({"k": "v" * length}, {"k" * length: "v"}):
            agree("encode_frame", pure.encode_frame, 1, 0, 0, 0, 0, None, fields, encoding, b"")


@pytest.mark.parametrize("encoding", [0, 1])
def test_every_character_below_300_and_around_the_surrogates(encoding: int) -> None:
    for number in [*range(300), 0x2028, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]:
        text = f"a{chr(number)}b"
        arguments = (1, 0, 0, 0, 0, text, {text: text * 9}, encoding, b"")
        assert agree("encode_frame", pure.encode_frame, *arguments)
        assert agree("decode_header", pure.decode_header, pure.encode_frame(*arguments)) or (
            # Escapes in the name of an ext field are rare, so the kernel declines them.
            encoding == 0 and (number < 0x20 or chr(number) in '"\\')
        )


# -- headers ---------------------------------------------------------------------------------------


@given(frames, buffers)
def test_decode_header(frame: bytes, kind: Callable[[bytes], pure.Buffer]) -> None:
    agree("decode_header", pure.decode_header, kind(frame))


@given(frames | st.binary(max_size=40), st.data())
def test_decode_header_of_damaged_frames(frame: bytes, data: st.DataObject) -> None:
    agree("decode_header", pure.decode_header, data.draw(wire.mutated(st.just(frame))))


@given(frames, st.data())
def test_decode_header_of_damaged_headers_in_whole_frames(
    frame: bytes, data: st.DataObject
) -> None:
    header = data.draw(wire.mutated(st.just(frame[8 : pure.decode_header(frame)[-1]])))
    agree("decode_header", pure.decode_header, framed(frame[4], header, b"body"))


names = st.sampled_from([
    "code", "flag", "opaque", "version", "language", "remark", "extFields",
    "serializeTypeCurrentRPC", "unknown", "Code", "",
])  # fmt: skip
RPC = b"serializeTypeCurrentRPC"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | wire.int32 | st.floats() | wire.texts
    | st.sampled_from(["JAVA", "NODE_JS", "java", "7"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(wire.texts, inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
likely_values = wire.int32 | wire.texts | st.none() | wire.ext_fields
json_styles = st.sampled_from([
    {"separators": (",", ":")},
    {"separators": (",", ":"), "ensure_ascii": False},
    {"indent": 1},
    {"separators": (" ,\t", " :\r\n")},
])  # fmt: skip


@given(st.dictionaries(names, likely_values | json_values), json_styles)
@example({"code": 1, "extFields": {"i": "\x01\x02", "n": "😀"}}, {})
def test_decode_header_of_any_json_object(header: dict[str, Any], style: dict[str, Any]) -> None:
    written = json.dumps(header, **style).encode()
    agree("decode_header", pure.decode_header, framed(0, written))


json_pieces = st.sampled_from([
    "{", "}", ":", ",", '"', "\\", " ", "\n", "null", "true", "false", '"code"', '"flag"', '"x"',
    '"extFields"', '"remark"', '"language"', '"JAVA"', "0", "1", "-", "310", "-0", "01", "1.0",
    "1e2", "2147483647", "2147483648", "-2147483648", "-2147483649", "9" * 18, "9" * 19,
    '"code":1', '{"code":1', '"\\u0001"', '"\\ud83d\\ude00"', '"\\ude00\\ud83d"',
    '"\\ude00\\ude00"', '"\\ud83d\\ud83d"', '"\\ud83d\\u0041"', '"\\ud83d"', '"\\ude00"',
    '"\\u00e9"', '"\\u00E9"', '"\\/"', '"\\x"', '"\\u12"', '"\\u+123"', '"\x01"',
    '"é"', "[]", "[", "]", "\ufeff", "\x00",
])  # fmt: skip


@given(st.lists(json_pieces, max_size=14).map("".join))
@example('{"code":1,"code":2}')
@example('{"code":1,"extFields":{"a":"1","a":"2"}}')
@example('{"code":1,"extFields":{"a":1,"b":true,"c":null,"d":1.5}}')
@example('{"code":1}\n')
@example('{"code":1}x')
@example('{"code":1,}')
@example('{"code":1,"x":01}')
@example('{"code":1,"x":"\\ud83d"}')
def test_decode_header_of_almost_json(text: str) -> None:
    agree("decode_header", pure.decode_header, framed(0, text.encode()))


@pytest.mark.parametrize(
    "members",
    [
        b'"%s":"\\ude00\\ude00"', b'"%s":"\\ud83d\\ud83d"', b'"%s":"\\ud83d\\u0041"',
        b'"%s":"\\ud83d\\n"', b'"%s":"\\ud83dxx"', b'"%s":"\\ud83d\\ude00"', b'"%s":"\xff"',
        b'"%s":"\xed\xa0\x80"', b'"%s\xff":"x"', b'"%s":"\\u00g0"', b'"%s":{"a":"\xff"}',
        b'"%s":{"\xff":"a"}', b'"%s":-0', b'"%s":1,"%s":2', b'"%s":"x","%s":"y"', b'"%s":null',
        b'"%s":"\x1f"', b'"%s":"\x7f"', b'"%s":"12345678\x1f"', b'"%s":--1', b'"%s":+1',
        b'"%s":00', b'"%s":1 ',
    ],
)  # fmt: skip
def test_decode_header_of_peculiar_values_in_every_field(members: bytes) -> None:
    for name in (b"code", b"flag", b"language", b"remark", b"extFields", b"unknown", RPC):
        header = b'{"code":1,%s}' % members.replace(b"%s", name)
        agree("decode_header", pure.decode_header, framed(0, header))


@given(st.binary(max_size=60), st.integers(0, 2))
def test_decode_header_of_random_headers(header: bytes, encoding: int) -> None:
    agree("decode_header", pure.decode_header, framed(encoding, header))


def test_kernel_decodes_frames_of_clients_without_fallback() -> None:
    fields = {"a": "group", "i": "TAGS\x01a\x02KEYS\x01天舟 😀\x02", "e": "3", "l": ""}
    for encoding in (0, 1):
        for ext_fields in (None, fields):
            for remark in (None, 'say "no"'):
                arguments = (310, 0, 399, -7, 1, remark, ext_fields, encoding, b"body")
                assert agree("encode_frame", pure.encode_frame, *arguments)
                frame = pure.encode_frame(*arguments)
                for kind in BUFFERS:
                    assert agree("decode_header", pure.decode_header, kind(frame))


# -- records ---------------------------------------------------------------------------------------

HOST = bytes(8)
flags = st.booleans()
pull_replies = st.lists(wire.records, max_size=3).map(b"".join)


@given(pull_replies, flags, flags, buffers)
def test_decode_records(
    reply: bytes, check_crc: bool, read_body: bool, kind: Callable[[bytes], pure.Buffer]
) -> None:
    arguments = (kind(reply), check_crc, read_body)
    assert agree("decode_records", pure_record.decode_records, *arguments)


@given(wire.mutated(pull_replies) | st.binary(max_size=200), flags, flags, buffers)
def test_decode_records_of_damaged_bytes(
    reply: bytes, check_crc: bool, read_body: bool, kind: Callable[[bytes], pure.Buffer]
) -> None:
    agree("decode_records", pure_record.decode_records, kind(reply), check_crc, read_body)


@given(wire.records, st.binary(max_size=9), st.integers(-2, 300) | st.just(2**70), flags)
def test_decode_record_anywhere(data: bytes, before: bytes, start: int, check_crc: bool) -> None:
    arguments = (before + data + before, len(before), check_crc, True)
    assert agree("decode_record", pure_record.decode_record, *arguments)
    agree("decode_record", pure_record.decode_record, before + data, start, check_crc, True)


@given(
    st.text(st.characters(), max_size=200), wire.bodies, st.text(st.characters(), max_size=20),
    st.lists(wire.int32, min_size=5, max_size=5), st.lists(wire.int64, min_size=5, max_size=5),
    wire.hosts, wire.hosts, buffers,
)  # fmt: skip
def test_encode_record(
    topic: str,
    body: bytes,
    text: str,
    small: list[int],
    large: list[int],
    born_host: tuple[str, int],
    store_host: tuple[str, int],
    kind: Callable[[bytes], pure.Buffer],
) -> None:
    queue_id, flag, sys_flag, reconsume_count, _ = small
    queue_offset, log_offset, born_time, store_time, prepared = large
    agree(
        "encode_record", pure_record.encode_record, topic, kind(body), text, queue_id, queue_offset,
        log_offset, flag, sys_flag, born_time, host.pack(born_host), store_time,
        host.pack(store_host), reconsume_count, prepared,
    )  # fmt: skip


@given(st.integers(3, 13).filter(lambda at: at not in (9, 11)), st.integers())
def test_encode_record_of_numbers_that_may_not_fit(at: int, number: int) -> None:
    packed = bytes(8)
    arguments: list[Any] = ["t", b"b", "p", 1, 2, 3, 4, 0, 6, packed, 8, packed, 10, 11]
    arguments[at] = number
    agree("encode_record", pure_record.encode_record, *arguments)


@pytest.mark.parametrize("length", [0, 127, 128, 2**15 - 1, 2**15])
def test_encode_record_at_the_limits_of_its_lengths(length: int) -> None:
    rest = (1, 2, 3, 4, 0, 6, bytes(8), 8, bytes(20), 10, 11)
    fits = length < 2**15
    for topic, text in (("t" * length, ""), ("", "p" * length)):
        assert agree("encode_record", pure_record.encode_record, topic, b"", text, *rest) == fits


@pytest.mark.parametrize("length", [127, 128, 200, 255])
def test_a_topic_length_of_one_byte_is_signed(length: int) -> None:
    head = bytearray(pure_record.encode_record("", b"", "", 1, 2, 3, 4, 0, 6, HOST, 8, HOST, 0, 0))
    data = head[:88] + bytes([length]) + b"t" * length + bytes(2)
    data[:4] = len(data).to_bytes(4, "big")
    alone = agree("decode_records", pure_record.decode_records, data, True, True)
    assert alone == (length <= pure_record.TOPIC_V1_BYTES_MAX)


@pytest.mark.parametrize("length", [0, 4, 7, 9, 16, 19, 21])
def test_encode_record_with_hosts_of_a_wrong_length(length: int) -> None:
    for hosts in ((bytes(length), bytes(8)), (bytes(20), bytes(length))):
        arguments = ("t", b"", "", 1, 2, 3, 4, 0, 6, hosts[0], 8, hosts[1], 10, 11)
        assert not agree("encode_record", pure_record.encode_record, *arguments)
        with pytest.raises(RecordError, match=f"8 or 20 bytes, not {length}"):
            pure_record.encode_record(*arguments)


def test_every_byte_of_a_record_changed_in_turn() -> None:
    data = encode_record(
        topic="topic", body=b"body", properties_text="TAGS\x01a\x02", queue_id=1, born_time_ms=2,
        born_host=("10.0.0.1", 3), store_host=("2001:db8::1", 4),
    )  # fmt: skip
    for at in range(len(data)):
        for bits in (0x01, 0x10, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] ^= bits
            for check_crc in (False, True):
                agree("decode_records", pure_record.decode_records, changed, check_crc, True)
    for length in range(len(data)):
        agree("decode_records", pure_record.decode_records, data[:length], True, True)


# -- walking ---------------------------------------------------------------------------------------

FIRST = 4096
walk_topics = st.sampled_from([
    "a", "b", "SCHEDULE_TOPIC_XXXX", "天舟", "t" * 130, "", ".", "..", "a/b", "a\0", "%RETRY%a",
])  # fmt: skip
walk_names = st.sampled_from(["KEYS", "UNIQ_KEY", "TAGS", "DELAY", "x", ""])
walk_values = st.sampled_from([
    "", "k", " ", "k l", "  k  l ", "7F00", "0", "1", "2", "19", "-1", "1" * 12, "\uff11", "é😀",
    "a\x01b", "\0" * 700,
]) | st.text(max_size=5)  # fmt: skip
walk_texts = st.lists(st.tuples(walk_names, walk_values), max_size=5).map(
    lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
)
walk_records_drawn = st.tuples(
    walk_topics, wire.bodies, walk_texts, st.integers(-1, 3), st.integers(-1, 4) | wire.int64,
    st.integers(0, 63), st.sampled_from([0, 1_700_000_000_000, -5, 2**63 - 1]),
)  # fmt: skip


def log_file(drawn: list[tuple[Any, ...]], end: bytes) -> bytes:
    data = b""
    for topic, body, text, queue_id, queue_offset, sys_flag, store_time in drawn:
        born, stored = (bytes(20 if sys_flag & bit else 8) for bit in (16, 32))
        data += pure_record.encode_record(
            topic, body, text, queue_id, queue_offset, FIRST + len(data), 0, sys_flag, 1, born,
            store_time, stored, 0, 0,
        )  # fmt: skip
    return data + end


log_files = st.builds(
    log_file,
    st.lists(walk_records_drawn, max_size=6),
    st.sampled_from([b"", bytes(7), bytes(8), bytes(600), b"\0\0\0\x08\xcb\xd4\x31\x94"]),
)
bounds = st.integers(0, 3000) | st.sampled_from([-1, FIRST + 200, 2**63 - 1, 2**70])


@given(
    log_files | wire.mutated(log_files), bounds, bounds, bounds, bounds, st.integers(0, 3), flags,
    flags, buffers,
)  # fmt: skip
def test_walk_records(
    data: bytes,
    start: int,
    stop: int,
    queues_from: int,
    index_from: int,
    keys_max: int,
    check_crc: bool,
    torn: bool,
    kind: Callable[[bytes], pure.Buffer],
) -> None:
    for begin, end in ((0, len(data)), (start, stop)):
        agree(
            "walk_records", pure_walk.walk_records, kind(data), FIRST, begin, end, queues_from,
            index_from, keys_max, (1000, 2**62), check_crc, torn,
        )  # fmt: skip


def test_kernel_walks_ordinary_records_without_fallback() -> None:
    text = "KEYS\x01one two\x02UNIQ_KEY\x01u\x02TAGS\x01red"
    drawn = [("a", b"body", text, n % 2, n // 2, 0, 1000 + n) for n in range(10)]
    data = log_file(drawn, bytes(100))
    walk = pure_walk.walk_records(data, FIRST, 0, len(data), 0, 0, 11, (), True, True)
    assert walk[:3] == (len(data) - 100, 10, 1009)
    assert [run[:3] for run in walk[3]] == [("a", 0, 0), ("a", 1, 0)]
    assert [len(run[3]) for run in walk[3]] == [100, 100]
    assert len(walk[4]) == 10 * 3 * pure_walk.LOOSE_ITEM.size
    assert agree(
        "walk_records", pure_walk.walk_records, data, FIRST, 0, len(data), 0, 0, 11, (), True, True
    )


def test_every_byte_of_a_walked_file_changed_in_turn() -> None:
    data = log_file(
        [("a", b"body", "KEYS\x01k\x02TAGS\x01t", 0, n, 16, 5) for n in (0, 1)], bytes(9)
    )
    for at in range(len(data)):
        for bits in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] ^= bits
            for torn in (False, True):
                agree(
                    "walk_records", pure_walk.walk_records, changed, FIRST, 0, len(data), 0, 0, 9,
                    (1000,), True, torn,
                )  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**31 - 1), wire.int64,
            st.integers(-(2**40), 2**40) | st.just(2**62),
        ),
        max_size=12,
    ),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(-(2**40), 2**40),
)  # fmt: skip
def test_put_index_items(
    drawn: list[tuple[int, int, int]], slots: int, number: int, begin_ms: int
) -> None:
    items = b"".join(pure_walk.LOOSE_ITEM.pack(*item) for item in drawn)
    files = [bytearray(40 + slots * 4 + 20 * 20) for _ in range(2)]
    used = native.put_index_items(memoryview(files[0]), slots, number, begin_ms, items)
    twin = pure_walk.put_index_items(memoryview(files[1]), slots, number, begin_ms, items)
    assert used == twin
    assert files[0] == files[1]


def test_put_index_items_declines_what_does_not_fit() -> None:
    item = pure_walk.LOOSE_ITEM.pack(1, 2, 3)
    file = bytearray(40 + 4 + 20 * 3)
    assert native.put_index_items(memoryview(file), 1, 1, 0, item * 3) is None
    assert native.put_index_items(memoryview(file), 1, 1, 0, item[:-1]) is None
    assert native.put_index_items(memoryview(file), 0, 1, 0, item) is None
    assert native.put_index_items(memoryview(bytes(file)), 1, 1, 0, item) is None
    assert not any(file)
    assert native.put_index_items(memoryview(file), 1, 1, 0, item * 2) == 1


# -- the rest --------------------------------------------------------------------------------------


@given(st.binary(max_size=200) | st.integers(4090, 12300).map(bytes), buffers)
def test_body_crc(data: bytes, kind: Callable[[bytes], pure.Buffer]) -> None:
    assert agree("body_crc", pure_record.body_crc, kind(data))


def test_non_contiguous_buffers_are_declined() -> None:
    frame = framed(0, b'{"code":1}', bytes(82))
    data = pure_record.encode_record("t" * 9, b"", "", 1, 2, 3, 4, 0, 6, HOST, 8, HOST, 0, 0)
    for right in (frame, data):
        assert len(right) == 100
        spread = bytearray(200)
        spread[::2] = right
        every_second = memoryview(spread)[::2]
        table = memoryview(right).cast("B", (10, 10))
        unsigned_ints = memoryview(right).cast("I")
        for invalid in (every_second, table, unsigned_ints, "text", None, 7):
            assert native.decode_header(invalid) is None
            assert native.split_frames(invalid, 1000) is None
            assert native.decode_records(invalid, True, True) is None
            assert native.encode_frame(1, 0, 0, 0, 0, None, None, 0, invalid) is None
            assert native.body_crc(invalid) is None


def test_buffer_is_released_after_each_call() -> None:
    buffer = bytearray(framed(0, b'{"code":1}') * 2)
    native.split_frames(buffer, 1000)
    native.decode_header(buffer)
    native.decode_records(buffer, True, True)
    buffer.extend(b"an export that was kept would make this raise BufferError")


def test_a_panic_becomes_an_ordinary_exception(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="the kernel panicked: as asked"):
        native.provoke_panic()
    assert "as asked" in capfd.readouterr().err
