"""Large tables are decoded in pieces, and read the same as in one piece."""

from typing import Any

import msgspec
import pytest

from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable
from tianzhou.protocol.bodies.pieces import Pieces, decode_pieces
from tianzhou.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable

TOPICS = msgspec.json.Decoder(dict[str, TopicConfig], strict=False)
OFFSETS = msgspec.json.Decoder(dict[str, dict[int, int]], strict=False)


def in_pieces(
    data: bytes, name: str, decoder: msgspec.json.Decoder[dict[str, Any]]
) -> tuple[Pieces, int]:
    """The pieces, and how many there were."""
    steps, count = decode_pieces(data, name, decoder), 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return end.value, count


def test_topics_are_read_in_pieces() -> None:
    topics = {
        name: TopicConfig(topic_name=name, attributes={'a},"b': '{"c":{', "d": "}"})
        for name in (f"topic-{number}" for number in range(5_000))
    }
    table = TopicConfigTable(topics=topics, data_version=DataVersion(timestamp=5, counter=7))
    (entries, rest), count = in_pieces(encode(table), "topicConfigTable", TOPICS)
    last = decode(TopicConfigTable, rest)
    assert count >= 5
    assert last.data_version == table.data_version
    assert entries | last.topics == topics
    assert len(last.topics) < 1_000


def test_offsets_with_integer_keys_are_read_in_pieces() -> None:
    offsets = {f"t@g{number}": {0: number, 1: 5} for number in range(10_000)}
    body = encode(ConsumerOffsetTable(offsets=offsets))
    assert b"{0:1,1:5}" in body, "as Apache writes it"
    (entries, rest), count = in_pieces(body, "offsetTable", OFFSETS)
    assert count >= 3
    assert entries | decode(ConsumerOffsetTable, rest).offsets == offsets


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"offsetTable":{}}', b'{"offsetTable":' + b" " * 99]
)
def test_what_is_no_large_table_is_left(data: bytes) -> None:
    assert in_pieces(data, "offsetTable", OFFSETS) == (Pieces({}, data), 0)


def test_a_damaged_table_is_left_to_the_decoder_of_the_whole() -> None:
    body = encode(ConsumerOffsetTable(offsets={f"t@g{n}": {0: n} for n in range(9_000)}))
    damaged = body[:30_000] + b"\xff" + body[30_001:]
    (entries, rest), _ = in_pieces(damaged, "offsetTable", OFFSETS)
    assert b"\xff" in rest
    assert len(entries) < 9_000
