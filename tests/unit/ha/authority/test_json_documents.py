"""A stream of JSON objects, in pieces of any size."""

import json
import random

import pytest

from tianzhou.errors import ProtocolError
from tianzhou.ha.authority.json_documents import DocumentSplitter

DOCUMENTS = [
    {"result": {"created": True}},
    {"result": {"events": [{"kv": {"value": 'a"}{\\'}}], "text": '\u00e9 \\ " }'}},
    {},
    {"a": {"b": [{"c": "}"}]}},
]
STREAM = b" \r\n" + b"\n".join(json.dumps(each).encode() for each in DOCUMENTS) + b"\n"


def split(pieces: list[bytes], limit: int = 1000) -> list[object]:
    splitter = DocumentSplitter(limit)
    found = [json.loads(document) for piece in pieces for document in splitter.feed(piece)]
    assert splitter.is_between
    return found


def test_every_split_gives_the_same_documents() -> None:
    for at in range(len(STREAM) + 1):
        assert split([STREAM[:at], STREAM[at:]]) == DOCUMENTS
    assert split([bytes([byte]) for byte in STREAM]) == DOCUMENTS
    assert split([STREAM.replace(b"\n", b"")]) == DOCUMENTS


def test_random_splits_give_the_same_documents() -> None:
    dice = random.Random(7)
    for _ in range(200):
        cuts = sorted(dice.sample(range(len(STREAM)), 5))
        pieces = [STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
        assert split(pieces) == DOCUMENTS


def test_a_part_is_kept_until_its_rest_arrives() -> None:
    splitter = DocumentSplitter(100)
    assert splitter.feed(b'{"a": "x') == []
    assert not splitter.is_between
    assert splitter.feed(b'"}') == [b'{"a": "x"}']
    assert splitter.is_between


@pytest.mark.parametrize("stream", [b"<html>", b"[1]", b'{"a":1}}', b"null", b'"text"'])
def test_other_content_is_refused(stream: bytes) -> None:
    with pytest.raises(ProtocolError, match="no JSON object"):
        DocumentSplitter(100).feed(stream)


@pytest.mark.parametrize("piece", [b'"xxxxxxxxxxxxxxxxxxx', b" ", b'"' + b"x" * 200 + b'"}'])
def test_an_object_without_end_is_refused_at_its_limit(piece: bytes) -> None:
    splitter = DocumentSplitter(100)
    splitter.feed(b'{"a":')
    with pytest.raises(ProtocolError, match="over 100 bytes"):  # noqa: PT012 - which one is open
        for _ in range(200):
            splitter.feed(piece)


def test_deep_objects_are_refused() -> None:
    with pytest.raises(ProtocolError, match="levels"):
        DocumentSplitter(10_000).feed(b'{"a":' * 100)
