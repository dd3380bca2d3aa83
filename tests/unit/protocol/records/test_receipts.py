"""Receipt handles, and the lists that come with popped messages."""

from dataclasses import replace

import pytest

from tianzhou.errors import FieldError
from tianzhou.protocol.records import receipts
from tianzhou.protocol.records.receipts import Receipt, parse_receipt

HANDLE = "5 1700000000000 60000 3 1 broker-a 2 7"


def test_a_handle_round_trips() -> None:
    handle = parse_receipt(HANDLE)
    assert handle == Receipt(5, 1_700_000_000_000, 60_000, 3, "1", "broker-a", 2, 7)
    assert str(handle) == HANDLE
    assert not handle.is_ordered
    assert parse_receipt("0 1 2 999 0 b 0 0").is_ordered


def test_handles_of_the_first_clients_end_before_the_offset() -> None:
    short = HANDLE.rpartition(" ")[0]
    handle = parse_receipt(short)
    assert handle.queue_offset is None
    assert str(handle) == short


def test_the_log_offset_appended_by_a_proxy_is_preserved() -> None:
    handle = parse_receipt(f"{HANDLE} 4096")
    assert handle == replace(parse_receipt(HANDLE), log_offset=4096)
    assert str(handle) == f"{HANDLE} 4096"
    assert str(parse_receipt(f"{HANDLE} -1")) == f"{HANDLE} -1"
    assert receipts.without_message(handle) == receipts.without_message(parse_receipt(HANDLE))


def test_fields_of_later_versions_are_ignored() -> None:
    assert parse_receipt(f"{HANDLE} 4096 new") == parse_receipt(f"{HANDLE} 4096")


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "1 2 3", "a 2 3 4 0 b 1 2", "1 2 3 4 7 b 1 2", f"1 {2**64} 3 4 0 b 1 2",
        "1 2 3 4 0 b 1 2 x", "1 2 3 4 0 b 1 2 3" + " 4" * 2000, "1  2 3 4 0 b 1", "1 2 3 4 0 b ² 2",
    ],
)  # fmt: skip
def test_an_invalid_handle_is_rejected(text: str) -> None:
    with pytest.raises(FieldError, match="no receipt handle"):
        parse_receipt(text)


def test_topics_have_the_mark_of_their_kind() -> None:
    assert receipts.retry_topic("g", "t", v2=False) == "%RETRY%g_t"
    assert receipts.retry_topic("g", "t", v2=True) == "%RETRY%g+t"
    for mark in ("0", "1", "2"):
        topic = receipts.real_topic("a_b", "g", mark)
        assert receipts.mark_of(topic) == mark
        assert receipts.origin_topic("g", topic) == "a_b"


def test_a_group_name_that_is_a_prefix_of_another_is_distinguished() -> None:
    assert receipts.origin_topic("g", "%RETRY%g_x_t") == "x_t"
    assert receipts.origin_topic("g_x", "%RETRY%g_x_t") == "t"


def test_lists_have_the_format_that_clients_read() -> None:
    assert receipts.start_offset_info("t", 3, 17) == "0 3 17"
    assert receipts.message_offset_info("%RETRY%g_t", 0, [1, 2, 5]) == "1 0 1,2,5"
    assert receipts.order_count_info("t", 3, [7, 8], {7: 2, 8: 1}) == [
        "0 qo3%7 2", "0 qo3%8 1", "0 3 1",
    ]  # fmt: skip
    assert receipts.order_count_info("t", 3, [7, 8], {7: 2}) == ["0 qo3%7 2", "0 3 0"]
    assert receipts.order_count_info("t", 3, [7], {}) == ["0 3 0"]
