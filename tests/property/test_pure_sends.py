"""Headers of sends that are recognised by their bytes say what the full parser says."""

import random

import pytest

from tianzhou.protocol import properties
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import FLAG_ONEWAY, Command, HeaderEncoding, encode
from tianzhou.protocol.pure_sends import Read, Send, SendReader, parse, read_send
from tianzhou.protocol.pure_texts import POWERS, Found, KeyHashes, Texts

SENDS_COUNT = 4000
TEXT = "KEYS\x01k1 k2\x02UNIQ_KEY\x01AC1400018D4F\x02WAIT\x01true\x02TAGS\x01red\x02"
ODD_BYTES = (
    b'"',
    b"\\",
    b",",
    b"{",
    b"}",
    b"\x00",
    b"\x01",
    b"\x7f",
    b" ",
    b"0",
    b"\xc3",
    b'"i":"',
)


def frame_of(encoding: HeaderEncoding, **fields: str) -> bytes:
    values = {
        "a": "producers", "b": "orders", "c": "TBW102", "d": "4", "e": "3", "f": "0",
        "g": "1700000000001", "h": "0", "i": TEXT, "j": "0", "k": "false", "l": "16", "m": "false",
        "n": "broker-a",
    }  # fmt: skip
    return encode(
        Command(
            code=RequestCode.SEND_MESSAGE_V2, opaque=1234, ext_fields=values | fields,
            encoding=encoding,
        )
    )  # fmt: skip


def learned(frame: bytes) -> SendReader:
    """A reader that has kept the header of a frame."""
    reader = SendReader()
    header = parse(frame)
    assert header is not None
    read = read_send(header)
    assert read is not None
    reader.keep(frame[8:], read[0])
    return reader


def known(reader: SendReader, texts: Texts, frame: bytes) -> tuple[Read, Found] | None:
    """What the feed would go on with, without parsing the header."""
    if frame[4] == HeaderEncoding.JSON:
        read = reader.read_json(frame[8:])
        found = texts.read_escaped(read[2]) if read is not None else None
    else:
        read = reader.read_binary(frame[8:])
        found = texts.read_plain(read[2]) if read is not None else None
    return (read, found) if read is not None and found is not None else None


def said(send: Send) -> tuple[object, ...]:
    return (
        send.topic, send.queue_id, send.sys_flag, send.flag, send.reconsume_count, send.is_batch,
        send.is_oneway, send.is_json,
    )  # fmt: skip


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """The frame with some bytes of its header replaced, taken out or put in."""
    header = bytearray(frame[8:])
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, length = rng.randrange(len(header)), rng.choice((0, 1, 1, 1, 4))
        piece = rng.choice((*ODD_BYTES, bytes(header[at : at + 3]), bytes((rng.randrange(256),))))
        header[at : at + length] = piece
    rest = bytes((frame[4],)) + len(header).to_bytes(3, "big") + bytes(header)
    return len(rest).to_bytes(4, "big") + rest


@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_what_is_known_is_what_the_parser_reads(encoding: HeaderEncoding) -> None:
    rng, texts = random.Random(7), Texts(["DELAY"])
    frame = frame_of(encoding)
    reader = learned(frame)
    known_count = 0
    for number in range(SENDS_COUNT):
        other = mutated(frame, rng) if number else frame
        taken = known(reader, texts, other)
        if taken is None:
            continue
        known_count += 1
        header = parse(other)
        read = read_send(header) if header is not None else None
        assert read is not None, other
        (send, born_ms, _, opaque), found = taken
        assert said(send) == said(read[0]), other
        assert (born_ms, int(opaque)) == (read[1], read[3]), other
        assert found == texts.read(read[2]), other
    assert known_count > SENDS_COUNT // 100, "next to nothing was known, so nothing was compared"


@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_time_properties_and_opaque_may_differ(encoding: HeaderEncoding) -> None:
    texts = Texts(())
    reader = learned(frame_of(encoding))
    later = "1700000099999"
    for fields in (
        {},
        {"g": later},
        {"i": "TAGS\x01a\x02"},
        {"i": ""},
        {"g": later, "i": "a\x01b"},
    ):
        assert known(reader, texts, frame_of(encoding, **fields)) is not None, fields
    for fields in ({"b": "payments"}, {"e": "2"}, {"j": "1"}, {"n": "broker-b"}, {"g": "01"}):
        assert known(reader, texts, frame_of(encoding, **fields)) is None, fields


@pytest.mark.parametrize("encoding", HeaderEncoding)
def test_headers_of_many_producers_are_known_beside_each_other(encoding: HeaderEncoding) -> None:
    reader, texts = SendReader(), Texts(())
    frames = [frame_of(encoding, b=f"t{n % 7:x<{n}}", e=str(n % 5)) for n in range(1, 40)]
    for frame in frames:
        header = parse(frame)
        assert header is not None
        read = read_send(header)
        assert read is not None
        reader.keep(frame[8:], read[0])
    for number, frame in enumerate(frames * 2, 1):
        taken = known(reader, texts, frame)
        assert taken is not None
        assert taken[0][0].queue_id == ((number - 1) % 39 + 1) % 5


@pytest.mark.parametrize(
    "fields",
    [
        {"e": "01"}, {"e": "+1"}, {"e": ""}, {"f": "4"}, {"f": "1.0"}, {"g": ""}, {"g": "x"},
        {"j": "five"}, {"k": "0"}, {"m": "TRUE"}, {"lo": "yes"}, {"d": "2147483648"}, {"k": ""},
        {"g": "9" * 19}, {"l": " 1"},
    ],
)  # fmt: skip
def test_unusual_headers_are_for_others(fields: dict[str, str]) -> None:
    header = parse(frame_of(HeaderEncoding.JSON, **fields))
    assert header is not None
    assert read_send(header) is None


def test_a_header_that_asks_for_no_answer_is_known_as_that() -> None:
    command = Command(
        code=RequestCode.SEND_BATCH_MESSAGE,
        flag=FLAG_ONEWAY,
        opaque=5,
        ext_fields=dict(
            zip("abcdefghi", ("p", "t", "c", "1", "0", "0", "1", "0", ""), strict=True)
        ),
    )
    reader = learned(encode(command))
    command.opaque = 77
    read = reader.read_json(encode(command)[8:])
    assert read is not None
    assert read[0].is_oneway
    assert read[0].is_batch
    assert read[3] == "77"


# -- properties ------------------------------------------------------------------------------------

NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "AWAIT", "colour", "größe", "", "WAIT\x01x")
VALUES = ("", "a", "b c", "true", "TRUE", "false", " x  y ", "天舟", "\x01", "k" * 300)


def test_properties_are_stored_as_the_handlers_store_them() -> None:
    rng, texts = random.Random(3), Texts(["DELAY"])
    taken_count = 0
    for _ in range(SENDS_COUNT):
        chosen = [(rng.choice(NAMES), rng.choice(VALUES)) for _ in range(rng.randrange(6))]
        text = "\x02".join(f"{name}\x01{value}" for name, value in chosen)
        text += rng.choice(("", "\x02", "\x02\x02", "\x02name"))
        wanted = properties.decode(text)
        found = texts.read(text.encode())
        if found is None:
            names = [name.partition("\x01")[0] for name, _ in chosen]
            assert len(set(names)) < len(names), "only names that come twice are for others"
            continue
        taken_count += 1
        stored, code, filed, waits = found
        stamps = properties.stamps("c", "r", trace_on=True)
        added = properties.encode(stamps)
        assert stored.decode() + added == properties.encode_stored(text, wanted, stamps)
        assert code == properties.tags_code(wanted.get("TAGS"))
        unique, keys = wanted.get("UNIQ_KEY", ""), wanted.get("KEYS", "").split(" ")
        assert [key.decode() for key in filed] == [key for key in (unique, *keys) if key]
        assert waits == (wanted.get("WAIT", "true").lower() == "true")
    assert taken_count > SENDS_COUNT // 2


def test_names_of_other_kinds_of_messages_are_for_others() -> None:
    texts = Texts(["DELAY"])
    assert texts.read(b"TAGS\1a\2DELAY\x013\2") is None
    assert texts.read(b"TAGS\1a\2CLUSTER\1c\2") is None
    assert texts.read(b"TAGS\1a\2TAGS\1b\2") is None
    assert texts.read_item(b"TAGS\1a\2CLUSTER\1c\2") is not None
    assert texts.read_item(b"TAGS\1a\2DELAY\x013\2") is None
    assert texts.read(b"".join(b"n%d\1v\2" % n for n in range(65))) is None


def test_keys_are_hashed_as_java_does() -> None:
    rng, hashes = random.Random(5), KeyHashes()
    topic_hash = properties.java_hash("orders#")
    alphabet = "0123456789ABCDEFxyz_-~ !"
    for number in range(SENDS_COUNT):
        letters = alphabet if number % 5 else alphabet + "ü天🚢"
        key = "".join(rng.choices(letters, k=rng.choice((1, 2, 3, 17, 32, 255, 256, 700))))
        wanted = properties.java_hash(f"orders#{key}") & 0xFFFF_FFFF
        raw = key.encode()
        assert hashes.of(topic_hash, raw) == wanted
        if len(raw) < len(POWERS) and raw.isascii():
            parts = hashes.fronts[raw[:-2]] + hashes.ends[raw[-2:]]
            assert topic_hash * POWERS[len(raw)] + parts & 0xFFFF_FFFF == wanted
