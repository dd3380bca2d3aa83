"""Splits a stream of JSON objects, one behind the other, into objects; no I/O.

The gateway sends one object per message of a stream, but pieces arrive as the network cuts them: a
piece may hold part of an object, or several. An object ends with the brace that closes its first
one; braces in strings do not count. Nothing else is checked here: the objects are decoded later.
"""

import re

from tianzhou.errors import ProtocolError

_OUTSIDE_STRING = re.compile(rb'["{}]')
_IN_STRING = re.compile(rb'["\\]')
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
_DEPTH_MAX = 64


class DocumentSplitter:
    """The state between two pieces."""

    def __init__(self, document_bytes_max: int) -> None:
        self._document_bytes_max = document_bytes_max
        self._unread = bytearray()
        self._at = 0
        """Up to here the unfinished object was scanned."""
        self._depth = 0
        self._is_in_string = False

    @property
    def is_between(self) -> bool:
        """No part of an object is waiting for its rest."""
        return not self._unread

    def feed(self, data: bytes) -> list[bytes]:
        """The objects that the piece completes. Raises ProtocolError for anything else."""
        self._unread += data
        documents: list[bytes] = []
        while (end := self._end()) is not None:
            documents.append(bytes(self._unread[:end]))
            del self._unread[:end]
            self._at = 0
        if max(map(len, (self._unread, *documents))) > self._document_bytes_max:
            raise ProtocolError(f"a JSON object of over {self._document_bytes_max} bytes")
        return documents

    def _end(self) -> int | None:
        """Where the object ends; None if it is incomplete."""
        if not self._depth and not self._begins():
            return None
        while True:
            pattern = _IN_STRING if self._is_in_string else _OUTSIDE_STRING
            match = pattern.search(self._unread, self._at)
            if match is None:
                self._at = len(self._unread)
                return None
            self._at = match.end()
            symbol = match[0]
            if symbol == b'"':
                self._is_in_string = not self._is_in_string
            elif symbol == b"\\":
                if self._at == len(self._unread):
                    self._at -= 1  # the escaped character has not arrived
                    return None
                self._at += 1
            elif self._nest(1 if symbol == b"{" else -1):
                return self._at

    def _begins(self) -> bool:
        match = _NOT_SPACE.search(self._unread)
        if match is None:
            self._unread.clear()
            return False
        del self._unread[: match.start()]
        if not self._unread.startswith(b"{"):
            raise ProtocolError(f"no JSON object: {bytes(self._unread[:80])!r}")
        return True

    def _nest(self, change: int) -> bool:
        """Whether this brace ends the object."""
        self._depth += change
        if self._depth > _DEPTH_MAX:
            raise ProtocolError(f"a JSON object of over {_DEPTH_MAX} levels")
        return self._depth == 0
