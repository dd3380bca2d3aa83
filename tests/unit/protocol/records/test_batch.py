"""The batch body against RocketMQ's MessageDecoder.encodeMessages, and wrong lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.errors import RecordError
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.batch import BatchItem

# Two messages, the second empty, as 5.5.0 and 4.9.7 write them.
BATCH_5 = bytes.fromhex(
    "0000002a000000000000000000000005000000036f6e650011544147530178025741495401747275650200000016"
    "000000000000000000000000000000000000"
)
BATCH_4 = bytes.fromhex(
    "00000029000000000000000000000005000000036f6e6500105441475301780257414954017472756500000016"
    "000000000000000000000000000000000000"
)
TEXT = "TAGS\x01x\x02WAIT\x01true"


@pytest.mark.parametrize(("body", "text"), [(BATCH_5, TEXT + "\x02"), (BATCH_4, TEXT)])
def test_batches_of_rocketmq_round_trip(body: bytes, text: str) -> None:
    items = [BatchItem(b"one", text, 5), BatchItem(b"")]
    assert batch.decode(body) == items
    assert batch.decode(memoryview(bytearray(body))) == items
    assert batch.encode(items) == body


def test_an_empty_batch_body_has_no_messages() -> None:
    assert batch.decode(b"") == []
    assert batch.encode([]) == b""


def test_magic_and_crc_of_a_batch_are_ignored() -> None:
    body = BATCH_5[:4] + b"12345678" + BATCH_5[12:]
    assert batch.decode(body) == batch.decode(BATCH_5)


def test_a_batch_cut_inside_a_message_is_rejected() -> None:
    for length in range(len(BATCH_5)):
        if length not in (0, 42):
            with pytest.raises(RecordError, match=r"batch item at (0|42)"):
                batch.decode(BATCH_5[:length])


@pytest.mark.parametrize(
    ("at", "change", "complaint"),
    [
        (0, b"\x00\x00\x00\x15", "21 bytes announced"),
        (0, b"\xff\xff\xff\xff", "-1 bytes announced"),
        (0, b"\x7f\xff\xff\xff", "2147483647 bytes announced, 64 are there"),
        (0, b"\x00\x00\x00\x2b", "43 bytes announced, but its body has 3 and its properties 17"),
        (16, b"\xff\xff\xff\xff", "a body of -1 bytes"),
        (16, b"\x00\x00\x00\x15", "a body of 21 bytes in 42"),
        (23, b"\xff\xff", "its properties -1"),
        (23, b"\x7f\xff", "its properties 32767"),
        (42, b"\x00\x00\x00\x17", "batch item at 42: 23 bytes announced, 22 are there"),
    ],
)
def test_the_error_of_a_wrong_length_names_its_position(
    at: int, change: bytes, complaint: str
) -> None:
    body = bytearray(BATCH_5)
    body[at : at + len(change)] = change
    with pytest.raises(RecordError, match=complaint):
        batch.decode(body)


@pytest.mark.parametrize(
    "item", [BatchItem(b"", "p" * 32_768), BatchItem(b"", "\ud800"), BatchItem(b"", "", 2**31)]
)
def test_the_error_of_an_oversized_message_has_its_number(item: BatchItem) -> None:
    with pytest.raises(RecordError, match="message 1 does not fit a batch"):
        batch.encode([BatchItem(b"fits"), item])


@given(
    st.lists(
        st.builds(
            BatchItem,
            body=st.binary(max_size=50),
            properties_text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
            flag=st.integers(-(2**31), 2**31 - 1),
        ),
        max_size=5,
    )
)
def test_a_batch_round_trips(items: list[BatchItem]) -> None:
    assert batch.decode(batch.encode(items)) == items


@given(st.binary(max_size=120))
def test_random_bytes_are_rejected_or_read(body: bytes) -> None:
    try:
        items = batch.decode(body)
    except RecordError:
        return
    assert sum(22 + len(item.body) for item in items) <= len(body)
