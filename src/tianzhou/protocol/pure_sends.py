"""Headers of sends, read in their usual form; those like one read before cost next to nothing.

What a producer sends to one queue differs in few places: the time of birth, the properties, and the
number by which the answer is known. So a header that was read is kept as the bytes around these
places. The next one is compared with them and not parsed:

    JSON     front 1700000000000 middle KEYS... behind 1234 end
    binary   start 1234 zeros, length, front 1700000000000 middle length KEYS... behind

Bytes that are the same mean the same, for only headers are kept in which nothing but a number or a
plain text can stand in these places. A header that is missing something, or writes it in an unusual
way, declines; `protocol/headers/` reads it then.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from tianzhou.errors import ProtocolError
from tianzhou.protocol import pure
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.pure import ENCODING_JSON, Header
from tianzhou.protocol.pure_fields import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    NUMBER_DIGITS_MAX,
    TRUTHS,
    has_usual_truths,
    integer,
    long_integer,
)
from tianzhou.protocol.pure_leases import Lane
from tianzhou.protocol.pure_record import HOSTS_V6
from tianzhou.protocol.sysflag import TRANSACTION_MASK

SEND_CODES: Final = frozenset((
    int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_MESSAGE_V2),
    int(RequestCode.SEND_BATCH_MESSAGE),
))  # fmt: skip

_LONG_NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag",
    "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes",
    "batch",
)  # fmt: skip
_SHORT_NAMES = tuple("abcdefghijklm")
_REQUIRED_COUNT = 8

_ZERO = ord("0")
_OPAQUE_MAX = b"2147483647"

_KNOWN_MAX = 16_384
_KNOWN_BYTES_MAX = 4096
"""Longer headers are not worth the memory."""
_LAYOUTS_MAX = 4096
_ALIKE_MAX = 4
"""Layouts that are tried for headers of the same length."""

_BORN_MARK, _TEXT_MARK, _OPAQUE_MARK = b'"g":"', b'"i":"', b'"opaque":'
JSON_STARTS = (b'{"code":310,', b'{"code":320,')
"""How headers in JSON begin that can be known."""
_NOT_PLAIN_JSON = b"\\ \t\r\n"
_BINARY_FRONT_AT = 21
_BINARY_HEAD = struct.Struct(">5si8si")
_NO_FLAG_NO_REMARK = bytes(8)


class Send:
    """What a header says besides the few things that differ from message to message."""

    __slots__ = (
        "flag", "is_batch", "is_json", "is_oneway", "lane", "queue_id", "reconsume_count",
        "sys_flag", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        queue_id: int,
        sys_flag: int,
        flag: int,
        reconsume_count: int,
        *,
        is_batch: bool,
        is_oneway: bool,
        is_json: bool,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.sys_flag = sys_flag
        """Without the bits of the addresses, which follow from these."""
        self.flag = flag
        self.reconsume_count = reconsume_count
        self.is_batch = is_batch
        self.is_oneway = is_oneway
        self.is_json = is_json
        self.lane: Lane | None = None
        """Where its messages go, once the feed has looked for it."""


Read = tuple[Send, int, bytes, int | str]
"""A send, the time of birth, the properties, and the opaque or its digits."""

_Unpack = Callable[[bytes], tuple[Any, ...]]
_Fixed = tuple[bytes, bytes, bytes, bytes]
"""The bytes around the places that differ."""


def read_send(header: Header) -> Read | None:
    """A send from its header; None if it is not in its usual form."""
    code, _, _, opaque, flags, _, fields, encoding, _ = header
    if fields is None or flags & FLAG_RESPONSE or not has_usual_truths(fields):
        return None
    names = _LONG_NAMES if code == RequestCode.SEND_MESSAGE else _SHORT_NAMES
    values = [fields.get(name) for name in names]
    if None in values[:_REQUIRED_COUNT]:
        return None
    _, topic, _, count, queue, bits, born, flag, text, times, unit, times_max, batch = values
    numbers = [integer(each or "0") for each in (count, queue, bits, flag, times, times_max)]
    # An empty text is no number, but stands here for one that is left out.
    wrong = "" in (count, queue, bits, born, flag, times, times_max)
    born_ms = long_integer(born or "")
    truths = [TRUTHS.get(each) for each in (unit or "false", batch or "false")]
    if wrong or None in numbers or born_ms is None or None in truths or "" in (unit, batch):
        return None
    try:
        properties = (text or "").encode()
    except UnicodeEncodeError:
        return None
    _, queue_id, sys_flag, flag_number, reconsume_count, _ = (number or 0 for number in numbers)
    if sys_flag & TRANSACTION_MASK:
        return None
    send = Send(
        topic or "", queue_id, sys_flag & ~HOSTS_V6, flag_number, reconsume_count,
        is_batch=code == RequestCode.SEND_BATCH_MESSAGE or truths[1] is True,
        is_oneway=bool(flags & FLAG_ONEWAY), is_json=encoding == ENCODING_JSON,
    )  # fmt: skip
    return send, born_ms, properties, opaque


class SendReader:
    """Reads the headers of sends that are like one before.

    Headers of equal length tend to have their parts at the same places, so these are tried first.
    """

    __slots__ = ("_binary", "_binary_layouts", "_json", "_json_layouts")

    def __init__(self) -> None:
        self._json: dict[_Fixed, Send] = {}
        self._json_layouts: dict[int, tuple[_Unpack, ...]] = {}
        self._binary: dict[_Fixed, Send] = {}
        self._binary_layouts: dict[int, tuple[_Unpack, ...]] = {}

    # -- JSON --------------------------------------------------------------------------------------

    def read_json(self, header: bytes) -> Read | None:
        r"""A send whose header is like one that was kept; None if there is none.

        The properties are as JSON has them, with \u0001 and \u0002 for separators; that they hold
        no other escapes and no quotes is for the caller to see.
        """
        for unpack in self._json_layouts.get(len(header), ()):
            front, born, middle, text, behind, digits, end = unpack(header)
            send = self._json.get((front, middle, behind, end))
            if send is not None:
                break
        else:
            parts = _cut_json(header)
            if parts is None:
                return None
            front, born, middle, text, behind, digits, end = parts
            send = self._json.get((front, middle, behind, end))
            if send is None:
                return None
            _add_layout(self._json_layouts, len(header), "".join(f"{len(part)}s" for part in parts))
        # Numbers in their only usual form; the last test is one of texts of equal length.
        if (
            not born.isdigit() or not digits.isdigit() or born[0] == _ZERO or digits[0] == _ZERO
            or len(born) > NUMBER_DIGITS_MAX or len(digits) > len(_OPAQUE_MAX)
            or (len(digits) == len(_OPAQUE_MAX) and digits > _OPAQUE_MAX)
        ):  # fmt: skip
            return None
        return send, int(born), text, digits.decode()

    def _keep_json(self, header: bytes, send: Send) -> None:
        """Keep a header that `read_send` has read, if only its usual places can change."""
        parts = _cut_json(header)
        if parts is None:
            return
        front, _, middle, _, behind, _, end = parts
        fixed = front + middle + behind + end
        # Without escapes and spaces a mark that is there once is a name that is there once.
        if (
            fixed.isascii()
            and not any(byte in fixed for byte in _NOT_PLAIN_JSON)
            and all(fixed.count(mark) == 1 for mark in (_BORN_MARK, _TEXT_MARK, _OPAQUE_MARK))
        ):
            if len(self._json) >= _KNOWN_MAX:
                self._json.clear()
            self._json[front, middle, behind, end] = send

    # -- binary ------------------------------------------------------------------------------------

    def read_binary(self, header: bytes) -> Read | None:
        """The same for the binary encoding; that properties are UTF-8 is for the caller to see."""
        for unpack in self._binary_layouts.get(len(header), ()):
            (
                start, opaque, zeros, ext_bytes, front, born, middle, text_bytes, text, behind,
            ) = unpack(header)  # fmt: skip
            send = self._binary.get((start, front, middle, behind))
            if send is not None:
                break
        else:
            parts = _cut_binary(header)
            if parts is None:
                return None
            start, opaque, zeros, ext_bytes, front, born, middle, text_bytes, text, behind = parts
            send = self._binary.get((start, front, middle, behind))
            if send is None:
                return None
            lengths = (len(front), len(born), len(middle), len(text), len(behind))
            form = ">5si8si{}s{}s{}si{}s{}s".format(*lengths)
            _add_layout(self._binary_layouts, len(header), form)
        if (
            zeros != _NO_FLAG_NO_REMARK or ext_bytes != len(header) - _BINARY_FRONT_AT
            or text_bytes != len(text) or not born.isdigit() or born[0] == _ZERO
            or len(born) > NUMBER_DIGITS_MAX
        ):  # fmt: skip
            return None
        return send, int(born), text, opaque

    def _keep_binary(self, header: bytes, send: Send) -> None:
        parts = _cut_binary(header)
        if parts is None:
            return
        start, _, zeros, ext_bytes, front, _, middle, _, _, behind = parts
        if zeros == _NO_FLAG_NO_REMARK and ext_bytes == len(header) - _BINARY_FRONT_AT:
            if len(self._binary) >= _KNOWN_MAX:
                self._binary.clear()
            self._binary[start, front, middle, behind] = send

    # -- both --------------------------------------------------------------------------------------

    def keep(self, header: bytes, send: Send) -> None:
        """Know the next header that is like one that `read_send` has read, of code 310 or 320."""
        if len(header) > _KNOWN_BYTES_MAX:
            return
        if send.is_json:
            self._keep_json(header, send)
        else:
            self._keep_binary(header, send)


def _cut_json(header: bytes) -> tuple[bytes, ...] | None:
    """The parts of a header in JSON, in their order; None if they are not all there."""
    if not header.startswith(JSON_STARTS):
        return None
    born_at = header.find(_BORN_MARK) + len(_BORN_MARK)
    born_end = header.find(b'"', born_at)
    text_at = header.find(_TEXT_MARK, born_end) + len(_TEXT_MARK)
    text_end = header.find(b'"', text_at)
    opaque_at = header.find(_OPAQUE_MARK, text_end) + len(_OPAQUE_MARK)
    opaque_end = header.find(b",", opaque_at)
    if not len(_BORN_MARK) < born_at < born_end < text_at <= text_end < opaque_at < opaque_end:
        return None
    return (
        header[:born_at], header[born_at:born_end], header[born_end:text_at],
        header[text_at:text_end], header[text_end:opaque_at], header[opaque_at:opaque_end],
        header[opaque_end:],
    )  # fmt: skip


def _cut_binary(header: bytes) -> tuple[Any, ...] | None:
    """The parts of a binary header, in their order; None if they are not all there."""
    if len(header) < _BINARY_FRONT_AT:
        return None
    start, opaque, zeros, ext_bytes = _BINARY_HEAD.unpack_from(header)
    places: dict[bytes, tuple[int, int]] = {}
    at = _BINARY_FRONT_AT
    while at < len(header):
        key_end = at + 2 + int.from_bytes(header[at : at + 2], "big")
        value_end = key_end + 4 + int.from_bytes(header[key_end : key_end + 4], "big")
        key = header[at + 2 : key_end]
        if key in places or value_end > len(header):
            return None
        places[key] = (key_end + 4, value_end)
        at = value_end
    if b"g" not in places or b"i" not in places:
        return None
    (born_at, born_end), (text_at, text_end) = places[b"g"], places[b"i"]
    if born_end > text_at:
        return None
    return (
        start, opaque, zeros, ext_bytes, header[_BINARY_FRONT_AT:born_at], header[born_at:born_end],
        header[born_end : text_at - 4], text_end - text_at, header[text_at:text_end],
        header[text_end:],
    )  # fmt: skip


def _add_layout(layouts: dict[int, tuple[_Unpack, ...]], length: int, form: str) -> None:
    if len(layouts) >= _LAYOUTS_MAX:
        layouts.clear()
    layouts[length] = (struct.Struct(form).unpack, *layouts.get(length, ())[: _ALIKE_MAX - 1])


def parse(frame: bytes) -> Header | None:
    """The header of one whole frame; None if it cannot be read."""
    try:
        return pure.decode_header(frame)
    except ProtocolError:
        return None
