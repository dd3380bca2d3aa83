"""Message properties against RocketMQ's MessageDecoder, and the hash of tags against Java's."""

import pytest

from tianzhou.errors import FieldError
from tianzhou.message import Message
from tianzhou.protocol import properties

ORDERED = {"a": "1", "bb": "x\x01y", "e": "", "c": "中😀"}


def test_text_is_written_as_rocketmq_does_in_the_order_of_the_map() -> None:
    # messageProperties2String of 5.5.0 and of 4.9.7 for ORDERED.
    text_5 = bytes.fromhex("61013102626201780179026501026301e4b8adf09f988002").decode()
    text_4 = bytes.fromhex("61013102626201780179026501026301e4b8adf09f9880").decode()
    assert properties.encode(ORDERED) == text_5
    assert properties.encode(ORDERED, closed=False) == text_4
    assert properties.encode({}) == properties.encode({}, closed=False) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Results of string2messageProperties, the same in 4.9.7 and 5.5.0.
        ("", {}),
        ("a", {}),
        ("a\x01", {}),
        ("\x01b\x02", {}),
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b\x02\x02c\x01d\x01e\x02", {"a": "b", "c": "d\x01e"}),
        ("a\x01b\x02a\x01c", {"a": "c"}),
        ("xy\x02a\x01b", {"a": "b"}),
        ("\x02\x02a\x01😀", {"a": "😀"}),
        ("\x01\x01b", {}),
        ("a\x01\x01", {"a": "\x01"}),
        ("ab\x02\x01c\x02d\x01\x02e\x01f", {"e": "f"}),
    ],
)
def test_text_is_read_with_rocketmqs_tolerance(text: str, expected: dict[str, str]) -> None:
    assert properties.decode(text) == expected


@pytest.mark.parametrize("wrong", [{"a\x01": "b"}, {"a\x02": "b"}, {"ok": "1", "a": "b\x02c\x01d"}])
def test_a_property_that_does_not_round_trip_is_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(FieldError, match="separate properties"):
        properties.encode(wrong)


@pytest.mark.parametrize(
    ("text", "hash_code"),
    [
        # String.hashCode of Java 17.
        ("", 0),
        ("TagA", 2598919),
        ("标签", 857175),
        ("😀", 1772899),
        ("polygenelubricants", -2147483648),
        ("a\ud800b", 1807491),
    ],
)
def test_hash_equals_javas(text: str, hash_code: int) -> None:
    assert properties.java_hash(text) == hash_code


def test_tags_code_is_the_hash_and_0_without_tags() -> None:
    assert properties.tags_code("TagA") == 2598919
    assert properties.tags_code("") == properties.tags_code(None) == 0


def test_a_message_carries_tags_keys_and_delay_as_properties() -> None:
    plain = Message("topic", b"body")
    assert properties.of_message(plain) == {"WAIT": "true"}
    full = Message(
        "topic",
        b"body",
        tags="TagA",
        keys=("k1", "k2"),
        delay_level=3,
        wait_stored=False,
        properties={"mine": "1"},
    )
    assert properties.of_message(full) == {
        "mine": "1", "TAGS": "TagA", "KEYS": "k1 k2", "WAIT": "false", "DELAY": "3",
    }  # fmt: skip
    assert full.properties == {"mine": "1"}


def test_reserved_names_are_all_known_here() -> None:
    known = {value for name, value in vars(properties).items() if name.isupper()} - {
        properties.RESERVED
    }
    assert known >= properties.RESERVED
    assert len(properties.RESERVED) == 51
