"""The messages of a batch as the pure feed stores them; the layout is drawn in `batch.py`."""

import struct

from tianzhou.protocol.pure_texts import Texts

_HEAD = struct.Struct(">iiiii")
_read_item = _HEAD.unpack_from
_ITEM_BYTES_MIN = 22

Item = tuple[bytes, bytes, int, int, tuple[bytes, ...]]
"""Body, properties, flag, tags code, and the keys under which it is filed."""


def items_of(body: bytes, texts: Texts, count_max: int) -> list[Item] | None:
    """What a batch holds; None if it is not plainly a batch of ordinary messages."""
    items: list[Item] = []
    at, end = 0, len(body)
    while at < end:
        if end - at < _ITEM_BYTES_MIN or len(items) >= count_max:
            return None
        size, _, _, flag, body_bytes = _read_item(body, at)
        body_at, stop = at + _HEAD.size, at + size
        text_at = body_at + body_bytes + 2
        if size < _ITEM_BYTES_MIN or stop > end or body_bytes < 0 or text_at > stop:
            return None
        text = body[text_at:stop]
        if int.from_bytes(body[text_at - 2 : text_at], "big") != len(text):
            return None
        found = texts.read_item(text)
        if found is None or not _is_text(text):
            return None
        _, code, filed, _ = found
        items.append((body[body_at : text_at - 2], text, flag, code, filed))
        at = stop
    return items or None


def _is_text(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
