"""Bodies of messages as JSON, text or hex, and rows of lists of messages.

What is shown is bounded (`SHOWN_BYTES`) and says that it is cut. Characters that would hide or
reorder text are shown by their number. All of it is plain text, which templates escape.
"""

import base64
import codecs
from functools import lru_cache

import msgspec

from tianzhou.admin.messages import body_of
from tianzhou.errors import BodyError
from tianzhou.message import StoredMessage
from tianzhou.protocol.records.message_id import id_of, offset_id_of
from tianzhou.remoting.address import format_address

SHOWN_BYTES = 64 * 1024
PREVIEW_CHARACTERS = 160
CHARSETS = {"text": "utf-8", "gb18030": "gb18030"}
FORMS = ("json", "text", "gb18030", "hex")
_HEX_COLUMNS = 16
_HEX_LINES = SHOWN_BYTES // 80
_PLAIN = "\r\n\t"


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body in one form."""

    form: str
    """json, text, gb18030 or hex."""
    forms: tuple[str, ...]
    """The forms that this body has."""
    text: str
    size: int
    """Bytes, uncompressed."""
    stored_size: int
    """Bytes as stored; less if it is compressed."""
    shown: int
    """Bytes of the body that `text` shows; less than `size`: it is cut."""
    problem: str = ""
    """Why the body cannot be uncompressed; `text` then shows the stored bytes."""


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a list."""

    id: str
    offset_id: str
    topic: str
    tags: str
    keys: tuple[str, ...]
    broker: str
    queue: int
    queue_offset: int
    born_ms: int
    stored_ms: int
    size: int
    """Bytes of the body, uncompressed."""
    preview: str | None
    """The beginning of the body as one line; None: it is binary."""
    is_cut: bool
    """Whether the body is longer than the preview."""


def plain_bytes(message: StoredMessage) -> tuple[bytes, str]:
    """The uncompressed body; or the stored bytes, and why they cannot be uncompressed."""
    try:
        return body_of(message), ""
    except BodyError as e:
        return message.body, str(e)


def body_in(message: StoredMessage, wanted: str = "") -> Body:
    """The body in a form; in the first that it has if it has not that one."""
    whole, problem = plain_bytes(message)
    text = _decoded(whole, "utf-8")
    json_text = _json(whole) if text is not None else None
    other = _decoded(whole, "gb18030") if text is None else None
    given = {"json": json_text, "text": text, "gb18030": other, "hex": ""}
    forms = tuple(each for each in FORMS if given[each] is not None)
    usual = "text" if json_text is None and text is not None else forms[0]
    if text is None:
        # Most binary data can be read as GB18030, too.
        usual = "hex"
    form = wanted if wanted in forms else usual
    if form == "hex":
        shown_text = hex_dump(whole)
        shown = min(len(whole), _HEX_LINES * _HEX_COLUMNS)
    else:
        shown_text = given[form] or ""
        shown = min(len(whole), SHOWN_BYTES)
    if len(shown_text) > SHOWN_BYTES and form == "json":
        # Indented JSON may be much longer than the body.
        shown_text, shown = shown_text[:SHOWN_BYTES], len(whole) * SHOWN_BYTES // len(shown_text)
    return Body(
        form=form, forms=forms, text=visible(shown_text), size=len(whole),
        stored_size=len(message.body), shown=shown, problem=problem,
    )  # fmt: skip


def row_of(message: StoredMessage, broker: str) -> MessageRow:
    """A message as a row of a list."""
    whole, _ = plain_bytes(message)
    beginning = _decoded(whole[: PREVIEW_CHARACTERS * 4], "utf-8", is_cut=True)
    preview: str | None = None
    if beginning is not None:
        preview = visible(" ".join(beginning.split()))[:PREVIEW_CHARACTERS]
    return MessageRow(
        id=id_of(message), offset_id=offset_id_of(message), topic=message.topic,
        tags=message.tags or "", keys=tuple(message.keys), broker=broker, queue=message.queue_id,
        queue_offset=message.queue_offset, born_ms=message.born_time_ms,
        stored_ms=message.store_time_ms, size=len(whole), preview=preview,
        is_cut=preview is not None and len(whole) > len(preview.encode()),
    )  # fmt: skip


def exported(message: StoredMessage, broker: str) -> dict[str, object]:
    """A message with all its fields and the whole body, as `tianzhou dlq export` writes it."""
    whole, _ = plain_bytes(message)
    data: dict[str, object] = {
        "id": id_of(message), "offset_id": offset_id_of(message), "topic": message.topic,
        "tags": message.tags, "keys": message.keys, "broker": broker, "queue": message.queue_id,
        "queue_offset": message.queue_offset, "born_ms": message.born_time_ms,
        "born_host": format_address(*message.born_host), "stored_ms": message.store_time_ms,
        "store_host": format_address(*message.store_host), "retries": message.reconsume_count,
        "flag": message.flag, "sys_flag": message.sys_flag, "properties": message.properties,
    }  # fmt: skip
    try:
        data["body"] = whole.decode()
    except UnicodeDecodeError:
        data["body_base64"] = base64.b64encode(whole).decode()
    return data


def hex_dump(data: bytes) -> str:
    """Lines of 16 bytes: offset, hex, ASCII."""
    lines: list[str] = []
    for at in range(0, min(len(data), _HEX_LINES * _HEX_COLUMNS), _HEX_COLUMNS):
        part = data[at : at + _HEX_COLUMNS]
        ascii_text = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{at:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {ascii_text}")
    return "\n".join(lines)


def visible(text: str) -> str:
    """The text with control characters, and those that reorder text, by their numbers."""
    if text.isprintable():
        return text
    return "".join(
        each if each in _PLAIN or not _is_hidden(each) else _named(each) for each in text
    )


@lru_cache(maxsize=1024)
def _is_hidden(each: str) -> bool:
    if each.isprintable():
        return False
    # Joiners are part of emoji and of some scripts.
    return each not in "\u200c\u200d\ufeff\u00ad\u3000\u00a0\u2028\u2029"


def _named(each: str) -> str:
    return f"\\u{ord(each):04x}" if ord(each) < 0x10000 else f"\\U{ord(each):08x}"


def _decoded(data: bytes, charset: str, *, is_cut: bool = False) -> str | None:
    """The first 64 KiB as text; None if they are binary."""
    part = data[:SHOWN_BYTES]
    decoder = codecs.getincrementaldecoder(charset)("strict")
    try:
        text = decoder.decode(part, final=len(part) == len(data) and not is_cut)
    except UnicodeDecodeError:
        return None
    if any(each < " " and each not in _PLAIN for each in text):
        return None
    return text


def _json(data: bytes) -> str | None:
    """Indented JSON; None for other text, and for what is longer than pages show."""
    if len(data) > SHOWN_BYTES or data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        msgspec.json.decode(data)
        return msgspec.json.format(data, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None
