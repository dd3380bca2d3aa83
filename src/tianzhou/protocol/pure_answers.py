"""Answers to ordinary sends and pulls, put together from pieces that stay the same.

They are those of `broker/handlers/send.py` and `pull.py` to the byte. An answer to a send is a text
with one character for each byte (Latin-1), since texts are quicker to put together; many are joined
before they become bytes.
"""

import struct

import msgspec

from tianzhou.protocol.pure import ENCODING_BINARY

_PYTHON = 3
_RESPONSE = 1
_HEAD = struct.Struct(">II")
_BINARY_HEAD = struct.Struct(">hBhiii")
_HEADS_MAX = 1024
"""There are as many as there are lengths of numbers, but for batches."""


class Answers:
    """What an answer is made of, under settings that do not change."""

    __slots__ = (
        "_id_prefix",
        "_tail",
        "_version",
        "heads",
        "json_end",
        "json_middle",
        "json_start",
    )

    def __init__(self, id_prefix: str, region: str, version: int, *, trace_on: bool) -> None:
        trace = "true" if trace_on else "false"
        quoted = msgspec.json.encode(region).decode("latin-1")
        self._id_prefix = id_prefix
        self._version = version
        self.json_start = f'{{"code":0,"extFields":{{"msgId":"{id_prefix}'
        """What stands before the log offset, between queue offset and opaque, and at the end."""
        self.json_middle = (
            f'","MSG_REGION":{quoted},"TRACE_ON":"{trace}"}},"flag":1,"language":"PYTHON","opaque":'
        )
        self.json_end = f',"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        self._tail = _pair("MSG_REGION", region.encode().decode("latin-1")) + _pair(
            "TRACE_ON", trace
        )
        self.heads: dict[int, str] = {}
        """The first 8 bytes of a frame with a JSON header of so many bytes, and no body."""

    # -- sends -------------------------------------------------------------------------------------

    def json_head(self, size_bytes: int) -> str:
        """What `heads` has, or will have from now on."""
        if len(self.heads) >= _HEADS_MAX:
            self.heads.clear()
        head = self.heads[size_bytes] = _frame_head(size_bytes, 0, 0).decode("latin-1")
        return head

    def json(self, log_offsets: list[int], queue: str, queue_offset: int, opaque: int | str) -> str:
        """The answer to a send; `queue` comes from `json_queue`."""
        separator = f",{self._id_prefix}"
        ids = separator.join([f"{log_offset:016X}" for log_offset in log_offsets])
        header = (
            f"{self.json_start}{ids}{queue}{queue_offset}{self.json_middle}{opaque}{self.json_end}"
        )
        return self.json_head(len(header)) + header

    def binary(self, log_offsets: list[int], queue: str, queue_offset: int, opaque: int) -> str:
        """The same in binary; `queue` comes from `binary_queue`."""
        prefix = self._id_prefix
        ids = ",".join([f"{prefix}{log_offset:016X}" for log_offset in log_offsets])
        offset = str(queue_offset)
        pairs = (
            f"\0\5msgId{_length(len(ids))}{ids}{queue}{_length(len(offset))}{offset}{self._tail}"
        )
        fixed = _BINARY_HEAD.pack(0, _PYTHON, self._version, opaque, _RESPONSE, 0)
        header = f"{fixed.decode('latin-1')}{_length(len(pairs))}{pairs}"
        return _frame_head(len(header), ENCODING_BINARY, 0).decode("latin-1") + header

    # -- pulls -------------------------------------------------------------------------------------

    def found_json(self, opaque: int, next_: int, low: int, high: int, body_bytes: int) -> bytes:
        """What stands before the records that a pull has found."""
        header = (
            f'{{"code":0,"extFields":{{"suggestWhichBrokerId":"0","nextBeginOffset":"{next_}",'
            f'"minOffset":"{low}","maxOffset":"{high}"}},"flag":1,"language":"PYTHON",'
            f'"opaque":{opaque},"remark":"FOUND"{self.json_end}'
        ).encode("latin-1")
        return _frame_head(len(header), 0, body_bytes) + header

    def found_binary(self, opaque: int, next_: int, low: int, high: int, body_bytes: int) -> bytes:
        """The same in binary."""
        pairs = (
            _pair("suggestWhichBrokerId", "0")
            + _pair("nextBeginOffset", str(next_))
            + _pair("minOffset", str(low))
            + _pair("maxOffset", str(high))
        ).encode("latin-1")
        remark = b"FOUND"
        fixed = _BINARY_HEAD.pack(0, _PYTHON, self._version, opaque, _RESPONSE, len(remark))
        header = b"".join((fixed, remark, len(pairs).to_bytes(4, "big"), pairs))
        return _frame_head(len(header), ENCODING_BINARY, body_bytes) + header


def json_queue(queue_id: int) -> str:
    """What stands between the id of a message and its queue offset."""
    return f'","queueId":"{queue_id}","queueOffset":"'


def binary_queue(queue_id: int) -> str:
    """The same in binary; the length of the queue offset follows."""
    return _pair("queueId", str(queue_id)) + "\0\x0bqueueOffset"


def _frame_head(header_bytes: int, encoding: int, body_bytes: int) -> bytes:
    return _HEAD.pack(4 + header_bytes + body_bytes, encoding << 24 | header_bytes)


def _length(number: int) -> str:
    return number.to_bytes(4, "big").decode("latin-1")


def _pair(key: str, value: str) -> str:
    return f"\0{chr(len(key))}{key}{_length(len(value))}{value}"
