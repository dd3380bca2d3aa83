"""Decodes a large table in pieces, so that no step takes long.

A body like {"dataVersion":{...},"topicConfigTable":{"a":{...},"b":{...}}} is cut where the next key
of the table begins. Braces and quotes of a piece that is cut elsewhere, in a string or in a nested
object, do not match, so it cannot be read and is cut earlier.
"""

from collections.abc import Generator
from typing import Any, NamedTuple

import msgspec

from tianzhou.protocol import fastjson

_NEXT_KEY = b'},"'
_PIECE_BYTES = 64 * 1024
_CUTS_MAX = 8


class Pieces(NamedTuple):
    """The entries that were read, and the body without them."""

    entries: dict[str, Any]
    rest: bytes


def decode_pieces(
    data: bytes, table_name: str, decoder: msgspec.json.Decoder[dict[str, Any]]
) -> Generator[None, None, Pieces]:
    """Read most entries of a table whose entries are objects; all is left if it looks otherwise.

    The rest has the last entries, and is decoded as a body of its own.
    """
    before = b'"%s":{' % table_name.encode()
    found = data.find(before)
    start = at = found + len(before)
    entries: dict[str, Any] = {}
    while found >= 0 and (piece := _next_piece(data, at, decoder)) is not None:
        stop, some = piece
        entries.update(some)
        at = stop + len(b"},")
        yield
    return Pieces(entries, data[:start] + data[at:] if entries else data)


def _next_piece(
    data: bytes, at: int, decoder: msgspec.json.Decoder[dict[str, Any]]
) -> tuple[int, dict[str, Any]] | None:
    """Where the last entry of a piece ends, and its entries; None if what is left is no piece."""
    window = at + _PIECE_BYTES
    if window >= len(data):
        return None
    for _ in range(_CUTS_MAX):
        stop = data.rfind(_NEXT_KEY, at, window)
        if stop < 0:
            return None
        entries = _decode(b"{" + data[at : stop + 1] + b"}", decoder)
        if entries is not None:
            return stop, entries
        window = stop + 1
    return None


def _decode(text: bytes, decoder: msgspec.json.Decoder[dict[str, Any]]) -> dict[str, Any] | None:
    # Brokers of Apache write integer keys without quotes.
    for dialect in (bytes, fastjson.quote_integer_keys):
        try:
            return decoder.decode(dialect(text))
        except (ValueError, RecursionError):
            continue
    return None
