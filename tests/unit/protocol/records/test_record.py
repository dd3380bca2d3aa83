"""Records against bytes that RocketMQ's own MessageDecoder and MessageExtEncoder wrote."""

import pytest
from tests.support.records import encode_record, property_crc_matches

from tianzhou.errors import RecordError
from tianzhou.message import StoredMessage
from tianzhou.protocol import sysflag
from tianzhou.protocol.pure import record as pure_record
from tianzhou.protocol.records import record

pytestmark = pytest.mark.usefixtures("codec")

# One message as MessageDecoder.encode of 5.5.0 writes it, by the kinds of its two hosts.
V4_V4 = bytes.fromhex(
    "00000097daa320a773307b0900000003000000070000011f71fb04cb000000024cb016ea000000000000018bcfe5687b"
    "0a0102030000d4310000018bcfe569c8c0a8070800002a9f00000002000000000000002a0000000e68656c6c6f20726f"
    "636b65746d7109546f706963546573740025544147530154616741024b455953016b31206b32026e616d6501e5a4a9e8"
    "889ff09f988002"
)
V6_V4 = bytes.fromhex(
    "000000a3daa320a773307b0900000003000000070000011f71fb04cb000000024cb016ea000000100000018bcfe5687b"
    "20010db80000000000000000000000010000d4310000018bcfe569c8c0a8070800002a9f00000002000000000000002a"
    "0000000e68656c6c6f20726f636b65746d7109546f706963546573740025544147530154616741024b455953016b3120"
    "6b32026e616d6501e5a4a9e8889ff09f988002"
)
V4_V6 = bytes.fromhex(
    "000000a3daa320a773307b0900000003000000070000011f71fb04cb000000024cb016ea000000200000018bcfe5687b"
    "0a0102030000d4310000018bcfe569c8fe80000000000000000000000001000200002a9f00000002000000000000002a"
    "0000000e68656c6c6f20726f636b65746d7109546f706963546573740025544147530154616741024b455953016b3120"
    "6b32026e616d6501e5a4a9e8889ff09f988002"
)
V6_V6 = bytes.fromhex(
    "000000afdaa320a773307b0900000003000000070000011f71fb04cb000000024cb016ea000000300000018bcfe5687b"
    "20010db80000000000000000000000010000d4310000018bcfe569c80000000000000000000000000000000100002a9f"
    "00000002000000000000002a0000000e68656c6c6f20726f636b65746d7109546f706963546573740025544147530154"
    "616741024b455953016b31206b32026e616d6501e5a4a9e8889ff09f988002"
)
# The first of them from 4.9.7, which omits the last separator.
V4_V4_49 = bytes.fromhex(
    "00000096daa320a773307b0900000003000000070000011f71fb04cb000000024cb016ea000000000000018bcfe5687b"
    "0a0102030000d4310000018bcfe569c8c0a8070800002a9f00000002000000000000002a0000000e68656c6c6f20726f"
    "636b65746d7109546f706963546573740024544147530154616741024b455953016b31206b32026e616d6501e5a4a9e8"
    "889ff09f9880"
)
# MessageExtEncoder of 5.5.0: a topic of 130 letters, and a record with its CRC as last property.
LONG_TOPIC = bytes.fromhex(
    "000000f2daa320ab73307b090000000300000007000000000000000b0000000000000000000000000000018bcfe5687b"
    "0a0102030000d4310000018bcfe569c8c0a8070800002a9f0000000200000000000000000000000e68656c6c6f20726f"
    "636b65746d710082" + "74" * 130 + "0006544147530161"
)
PROPERTY_CRC = bytes.fromhex(
    "0000008ddaa320a773307b090000000300000007000000000000000b0000000000000000000000000000018bcfe5687b"
    "0a0102030000d4310000018bcfe569c8c0a8070800002a9f0000000200000000000000000000000e68656c6c6f20726f"
    "636b65746d7109546f70696354657374001b544147530161025f5f435243333223013632303437333733303202"
)


def message(born: str, store: str, sys_flag: int, size_bytes: int) -> StoredMessage:
    return StoredMessage(
        topic="TopicTest",
        body=b"hello rocketmq",
        properties={"TAGS": "TagA", "KEYS": "k1 k2", "name": "天舟😀"},
        queue_id=3,
        queue_offset=1234567890123,
        log_offset=9876543210,
        flag=7,
        sys_flag=sys_flag,
        born_time_ms=1700000000123,
        born_host=(born, 54321),
        store_time_ms=1700000000456,
        store_host=(store, 10911),
        reconsume_count=2,
        prepared_log_offset=42,
        body_crc=0x73307B09,
        size_bytes=size_bytes,
    )


@pytest.mark.parametrize(
    ("data", "born", "store", "sys_flag"),
    [
        (V4_V4, "10.1.2.3", "192.168.7.8", 0),
        (V6_V4, "2001:db8::1", "192.168.7.8", sysflag.BORN_HOST_V6),
        (V4_V6, "10.1.2.3", "fe80::1:2", sysflag.STORE_HOST_V6),
        (V6_V6, "2001:db8::1", "::1", sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6),
    ],
)
def test_records_of_rocketmq_round_trip(data: bytes, born: str, store: str, sys_flag: int) -> None:
    expected = message(born, store, sys_flag, len(data))
    assert record.decode_record(data) == expected
    assert record.encode_stored(expected) == data


def test_a_record_of_4_9_has_no_last_separator() -> None:
    expected = message("10.1.2.3", "192.168.7.8", 0, len(V4_V4_49))
    assert record.decode_record(V4_V4_49) == expected
    assert record.encode_stored(expected, closed=False) == V4_V4_49


def test_tags_and_keys_come_from_the_properties() -> None:
    read = record.decode_record(V4_V4)
    assert (read.tags, read.keys) == ("TagA", ["k1", "k2"])


def test_a_topic_over_127_bytes_makes_version_2() -> None:
    read = record.decode_record(LONG_TOPIC)
    assert (read.topic, read.properties) == ("t" * 130, {"TAGS": "a"})
    assert record.encode_stored(read, closed=False) == LONG_TOPIC
    for length, magic in ((127, pure_record.MAGIC_V1), (128, pure_record.MAGIC_V2)):
        written = encode(topic="t" * length)
        assert int.from_bytes(written[4:8], "big") == magic
        assert record.decode_record(written).topic == "t" * length


def test_a_pull_reply_is_its_records_in_order() -> None:
    kinds = [V4_V4, LONG_TOPIC, V6_V6, PROPERTY_CRC, V4_V6]
    reply = b"".join(kinds)
    read = record.decode_records(memoryview(bytearray(reply)), check_crc=True)
    assert read == [record.decode_record(data) for data in kinds]
    assert record.decode_records(b"") == []


def test_a_record_is_read_at_an_offset_in_a_buffer() -> None:
    assert record.decode_record(b"xyz" + V4_V4 + b"xyz", 3) == record.decode_record(V4_V4)


def test_a_skipped_body_is_still_checked() -> None:
    assert record.decode_record(V4_V4, read_body=False).body == b""
    damaged = V4_V4.replace(b"hello", b"jello")
    for read_body in (True, False):
        with pytest.raises(RecordError, match="record at 0: the body does not match its CRC"):
            record.decode_record(damaged, read_body=read_body)
    assert record.decode_record(damaged, check_crc=False).body == b"jello rocketmq"
    with pytest.raises(RecordError, match=f"record at {len(V4_V4)}: the body does not match"):
        record.decode_records(V4_V4 + damaged, check_crc=True)


@pytest.mark.parametrize("data", [V4_V4, V6_V6, LONG_TOPIC], ids=["v4", "v6", "version 2"])
def test_a_truncated_record_is_rejected(data: bytes) -> None:
    for length in range(len(data)):
        with pytest.raises(RecordError, match="record at 0"):
            record.decode_record(data[:length])


@pytest.mark.parametrize(
    ("at", "change", "complaint"),
    [
        (0, b"\x00\x00\x00\x00", "0 bytes announced"),
        (0, b"\xff\xff\xff\xff", "-1 bytes announced"),
        (0, b"\x00\x00\x00\x98", "152 bytes announced, 151 are there"),
        (0, b"\x00\x00\x00\x96", "properties of 37 bytes where 36 are left"),
        (0, b"\x00\x00\x00\x5b", "a body of 14 bytes in 91"),
        (4, b"\x00\x00\x00\x00", "magic number 0x00000000 is unknown"),
        (4, b"\xcb\xd4\x31\x94", "filler"),
        (84, b"\xff\xff\xff\xff", "a body of -1 bytes"),
        (84, b"\x7f\xff\xff\xff", "a body of 2147483647 bytes"),
        (102, b"\xff", "a topic of -1 bytes"),
        (102, b"\x7f", "a topic of 127 bytes"),
        (112, b"\x80\x00", "properties of -32768 bytes"),
        (112, b"\x00\x24", "151 bytes announced, 150 used"),
    ],
)
def test_the_error_of_damage_names_its_position(at: int, change: bytes, complaint: str) -> None:
    damaged = bytearray(V4_V4)
    damaged[at : at + len(change)] = change
    with pytest.raises(RecordError, match=complaint):
        record.decode_record(damaged)


def test_addresses_that_do_not_fit_the_size_are_rejected() -> None:
    smallest = bytearray(encode(topic="", body=b"", properties_text=""))
    assert len(smallest) == pure_record.SIZE_MIN
    smallest[39] = sysflag.BORN_HOST_V6
    with pytest.raises(RecordError, match="91 bytes are too few for its addresses"):
        record.decode_record(smallest)


def test_a_start_outside_the_data_is_rejected() -> None:
    for start in (-1, len(V4_V4), len(V4_V4) - 7, 2**40):
        with pytest.raises(RecordError, match=f"record at {start}"):
            record.decode_record(V4_V4, start)


def test_a_message_with_names_that_are_not_utf8_is_read() -> None:
    damaged = V4_V4.replace(b"TagA", b"T\xff\xfeA").replace(b"TopicTest", b"Topic\xc3est")
    read = record.decode_record(damaged)
    assert (read.topic, read.tags) == ("Topic\ufffdest", "T\ufffd\ufffdA")
    assert read.body == b"hello rocketmq"


def test_an_ipv4_mapped_ipv6_address_is_read_as_ipv4() -> None:
    mapped = bytes.fromhex("00000000000000000000ffff0a010203")
    data = V6_V4.replace(bytes.fromhex("20010db8000000000000000000000001"), mapped)
    assert record.decode_record(data).born_host == ("10.1.2.3", 54321)
    written = encode(born_host=("::ffff:10.1.2.3", 5))
    assert written == encode(born_host=("10.1.2.3", 5))


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",  # noqa: S104 - an address to write down, not to listen on
        "255.255.255.255", "::", "::1", "1::", "::102:304", "1:0:0:2::3", "1::2:0:0:3",
        "64:ff9b::1", "1:0:2:3:4:5:6:7", "2001:db8:0:1:1:1:1:1",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fe80::abcd:ef01", "0:1::", "::ffff:0:1.2.3.4",
    ],
)  # fmt: skip
def test_addresses_are_written_in_their_short_form(address: str) -> None:
    short = "::ffff:0:102:304" if address == "::ffff:0:1.2.3.4" else address
    data = encode(born_host=(address, 65_535), store_host=(address.upper(), -1))
    read = record.decode_record(data)
    assert (read.born_host, read.store_host) == ((short, 65_535), (short, -1))


def test_the_address_bits_follow_the_hosts() -> None:
    lying = sysflag.COMPRESSED | sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6
    assert record.decode_record(encode(sys_flag=lying)).sys_flag == sysflag.COMPRESSED


def test_scanning_returns_positions_without_decoding() -> None:
    blank = record.encode_blank(20) + b"anything....."[:12]
    log = V4_V4 + LONG_TOPIC + blank
    first, second = len(V4_V4), len(V4_V4) + len(LONG_TOPIC)
    assert list(record.scan_records(log)) == [
        (0, first, pure_record.MAGIC_V1),
        (first, len(LONG_TOPIC), pure_record.MAGIC_V2),
        (second, 20, pure_record.MAGIC_BLANK),
    ]
    assert [start for start, _, _ in record.scan_records(log, first, second)] == [first]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (bytes(64), "magic number 0x00000000"),
        (V4_V4[:7], "only 7 bytes"),
        (b"\x00\x00\x00\x07\xcb\xd4\x31\x94", "7 bytes announced"),
        (b"\x00\x00\x00\x5a\xda\xa3\x20\xa7" + bytes(90), "90 bytes announced"),
        (b"\x7f\xff\xff\xff\xda\xa3\x20\xa7" + bytes(90), "2147483647 bytes announced, 98"),
    ],
)
def test_scanning_rejects_bytes_that_are_no_record(data: bytes, complaint: str) -> None:
    with pytest.raises(RecordError, match=f"record at {len(V4_V4)}: .*{complaint}"):
        list(record.scan_records(V4_V4 + data))


def test_a_filler_is_at_least_as_long_as_its_header() -> None:
    assert record.encode_blank(4096) == bytes.fromhex("00001000cbd43194")
    with pytest.raises(RecordError, match="at least 8 bytes"):
        record.encode_blank(7)


@pytest.mark.parametrize("data", [V4_V4, V6_V4, V4_V6, V6_V6])
def test_offset_and_store_time_are_patched(data: bytes) -> None:
    buffer = bytearray(b"\x00" * 5 + data)
    record.patch_record(buffer, 5, queue_offset=2**40, log_offset=-1, store_time_ms=2**41)
    read = record.decode_record(buffer, 5)
    assert (read.queue_offset, read.log_offset, read.store_time_ms) == (2**40, -1, 2**41)
    back = record.decode_record(data)
    record.patch_record(
        buffer,
        5,
        queue_offset=back.queue_offset,
        log_offset=back.log_offset,
        store_time_ms=back.store_time_ms,
    )
    assert buffer[5:] == data


def test_the_property_crc_of_5_covers_the_whole_record() -> None:
    assert record.decode_record(PROPERTY_CRC).properties["__CRC32#"] == "6204737302"
    assert property_crc_matches(PROPERTY_CRC) is True
    assert property_crc_matches(memoryview(PROPERTY_CRC)) is True
    patched = bytearray(PROPERTY_CRC)
    record.patch_record(patched, 0, queue_offset=12, log_offset=0, store_time_ms=0)
    assert property_crc_matches(patched) is False
    assert property_crc_matches(V4_V4) is None
    assert property_crc_matches(b"") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "t" * 32_768},
        {"properties_text": "p" * 32_768},
        {"topic": "\ud800"},
        {"queue_id": 2**31},
        {"queue_offset": 2**63},
        {"store_host": ("localhost", 1)},
        {"store_host": ("1.2.3.4", 2**31)},
        {"born_host": ("", 1)},
    ],
)
def test_values_that_do_not_fit_a_record_are_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        encode(**changes)


def encode(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "topic": "TopicTest",
        "body": b"hello",
        "properties_text": "TAGS\x01a",
        "queue_id": 0,
        "born_time_ms": 1,
        "born_host": ("10.1.2.3", 5),
        "store_host": ("10.1.2.4", 6),
    }
    return encode_record(**{**fields, **changes})  # type: ignore[arg-type]  # some are wrong
