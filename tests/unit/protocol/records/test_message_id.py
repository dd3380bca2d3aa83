"""Message ids against RocketMQ's MessageDecoder and MessageClientIDSetter."""

from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from tests.support.unique_ids import decode_unique_id

from tianzhou.errors import FieldError
from tianzhou.message import Host, StoredMessage
from tianzhou.protocol.records import message_id
from tianzhou.protocol.records.message_id import UniqueId

STORED = StoredMessage(
    topic="t", body=b"", properties={}, queue_id=0, queue_offset=0, log_offset=9876543210, flag=0,
    sys_flag=0, born_time_ms=0, born_host=("10.1.2.9", 1), store_time_ms=0,
    store_host=("10.1.2.3", 10911), reconsume_count=0, prepared_log_offset=0, body_crc=0,
    size_bytes=0,
)  # fmt: skip

# createUniqID of 5.5.0 on a host with an IPv6 address, with its address and process id.
MADE = "FD000000000000000000000000000002363830946E094EC41F720000"
MADE_PARTS = UniqueId("fd00::2", 13880, 815033865, 0x4EC41F72, 0)
MADE_AT_MS = 1794812675954


def ms(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp() * 1000)  # type: ignore[arg-type, misc]  # y, m, d ...


@pytest.mark.parametrize(
    ("store_host", "log_offset", "text"),
    [
        # createMessageId of 4.9.7 and 5.5.0.
        (("10.1.2.3", 10911), 9876543210, "0A01020300002A9F000000024CB016EA"),
        (
            ("2001:db8::1", 10911),
            -1,
            "20010DB800000000000000000000000100002A9FFFFFFFFFFFFFFFFF",
        ),
    ],
)
def test_offset_id(store_host: Host, log_offset: int, text: str) -> None:
    assert message_id.encode_offset_id(store_host, log_offset) == text
    assert message_id.decode_offset_id(text) == (store_host, log_offset)
    assert message_id.decode_offset_id(text.lower()) == (store_host, log_offset)


@pytest.mark.parametrize(
    "text", ["", "0A", "0A" * 15, "0A" * 17, "0A" * 27, "0A" * 29, "0G" * 16, "0A " * 16, "é" * 32]
)
def test_an_invalid_id_is_rejected(text: str) -> None:
    with pytest.raises(FieldError, match="message id"):
        message_id.decode_offset_id(text)


def test_an_offset_id_of_invalid_values_is_rejected() -> None:
    for store_host, log_offset in ((("host", 1), 0), (("10.1.2.3", 1), 2**63)):
        with pytest.raises(FieldError, match="no message id"):
            message_id.encode_offset_id(store_host, log_offset)


def test_unique_id_of_a_stock_producer() -> None:
    assert decode_unique_id(MADE) == MADE_PARTS
    assert message_id.encode_unique_id(MADE_PARTS) == MADE
    assert message_id.span_ms(MADE_AT_MS) == MADE_PARTS.span_ms


def test_unique_id_with_an_ipv4_address() -> None:
    # getIPStrFromID and getPidFromID return 127.0.0.1 and 2587.
    parts = decode_unique_id("7F0000010A1B18B4AAC2950000000001")
    assert parts == UniqueId("127.0.0.1", 2587, 0x18B4AAC2, 0x95000000, 1)
    assert message_id.encode_unique_id(parts) == "7F0000010A1B18B4AAC2950000000001"


def test_large_numbers_are_truncated_to_their_low_bits() -> None:
    text = message_id.encode_unique_id(UniqueId("127.0.0.1", 0x5ABCD, -1, 5, 0x12345))
    assert text == "7F000001ABCDFFFFFFFF000000052345"
    with pytest.raises(FieldError, match="no message id of address 'nowhere'"):
        message_id.encode_unique_id(UniqueId("nowhere", 1, 2, 3, 4))


def test_the_month_begins_in_the_time_zone_of_the_producer() -> None:
    zone = timezone(timedelta(hours=8))
    now_ms = ms(2026, 1, 31, 17)
    assert message_id.span_ms(now_ms, zone) == 3_600_000
    assert message_id.span_ms(now_ms) == now_ms - ms(2026, 1, 1)


def test_a_time_outside_of_the_calendar_is_rejected() -> None:
    with pytest.raises(FieldError, match="is no date"):
        message_id.span_ms(10**17)


def test_ids_of_a_message() -> None:
    assert message_id.offset_id_of(STORED) == "0A01020300002A9F000000024CB016EA"
    assert message_id.id_of(STORED) == message_id.offset_id_of(STORED)
    named = msgspec.structs.replace(STORED, properties={"UNIQ_KEY": MADE})
    assert message_id.id_of(named) == MADE
