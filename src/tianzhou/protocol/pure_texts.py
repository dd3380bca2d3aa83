r"""Properties of messages to store, read without making texts of them: the feed's way.

What is asked of them: tags, keys, whether the sender waits, and the bytes to store. They come as
`name \x01 value \x02 ...` in UTF-8. Senders use the same names in the same order again and again,
so the places of the few that matter are learned once for each list of names. Whatever has another
form is read property by property; what makes a message more than an ordinary one declines.
"""

from collections.abc import Iterable

from tianzhou.protocol.properties import KEYS, STAMPED, TAGS, UNIQUE_KEY, WAIT_STORED, java_hash

Found = tuple[bytes, int, tuple[bytes, ...], bool]
"""The bytes to store, what a queue entry keeps of the tags, the keys under which the message is
filed, the unique one first, and whether the sender waits for the disk."""

_NAMES_MAX = 64
"""More properties than any client sends; such a message is the handlers'."""
_SHAPES_MAX = 1024
_HASHES_MAX = 4096
_REMEMBERED_BYTES_MAX = 1024
"""Longer names and tags are not worth the memory."""
_POWERS_COUNT = 256

_TAGS, _KEYS, _UNIQUE = TAGS.encode(), KEYS.encode(), UNIQUE_KEY.encode()
_WAIT = WAIT_STORED.encode()
_STAMPED = frozenset(name.encode() for name in STAMPED)
_WAIT_LATER = b"\2" + _WAIT + b"\1"

PLAIN = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
"""What texts are made of, but for separators; JSON writes it as it is."""

_Shape = tuple[bytes, bool, int, int, int, int]
"""The separators of a text with these names, whether its end is left open as older clients do, and
where tags, keys, unique key and WAIT stand among names and values; -1 for the empty last one."""


class Texts:
    """Reads properties; `odd_names` are those that make a message more than an ordinary one."""

    __slots__ = ("_codes", "_odd_names", "_shapes")

    def __init__(self, odd_names: Iterable[str]) -> None:
        self._odd_names = frozenset(name.encode() for name in odd_names)
        self._shapes: dict[tuple[bytes, ...], _Shape] = {}
        self._codes: dict[bytes, int] = {}

    def read_escaped(self, raw: bytes) -> Found | None:
        r"""The same as JSON has it between quotes; None also if there is more to it than names and
        values in plain ASCII and \u0001 and \u0002 between them."""
        text = raw.replace(b"\\u0001", b"\1").replace(b"\\u0002", b"\2")
        separators = text.translate(None, PLAIN)
        # Separators that were not escaped, which JSON forbids, have not become shorter.
        if len(raw) - len(text) != 5 * len(separators):
            return None
        return self._read_shaped(text, separators)

    def read_plain(self, text: bytes) -> Found | None:
        """What `read` gives, None also for anything but names and values in plain ASCII."""
        return self._read_shaped(text, text.translate(None, PLAIN))

    def read(self, text: bytes) -> Found | None:
        """What the properties of a send say, WAIT not being stored; None if they decline."""
        return self.read_plain(text) or self._read_each(text)

    def read_item(self, text: bytes) -> Found | None:
        """The same for a message of a batch, whose properties are stored as they come."""
        found = self.read_plain(text) or self._read_each(text, is_item=True)
        if found is None:
            return None
        _, code, filed, waits = found
        return text, code, filed, waits

    def _read_shaped(self, text: bytes, separators: bytes) -> Found | None:
        pieces = text.replace(b"\2", b"\1").split(b"\1")
        names = tuple(pieces[::2])
        shape = self._shapes.get(names) or self._learn(names, len(pieces))
        if shape is None:
            return None
        wanted, is_open, tags_at, keys_at, unique_at, wait_at = shape
        if is_open:
            text += b"\2"
            pieces.append(b"")
        if separators != wanted or b"\1\2" in text:
            return None
        code = self._codes.get(pieces[tags_at])
        if code is None:
            code = self._code_of(pieces[tags_at])
        unique, keys = pieces[unique_at], pieces[keys_at]
        if unique and keys and b" " not in keys:
            filed: tuple[bytes, ...] = (unique, keys)
        else:
            filed = filed_under(unique, keys)
        if wait_at < 0:
            return text, code, filed, True
        wait = pieces[wait_at]
        if wait_at == 1:
            text = text[len(_WAIT_LATER) + len(wait) :]
        else:
            at = text.find(_WAIT_LATER)
            text = text[:at] + text[at + len(_WAIT_LATER) + len(wait) :]
        return text, code, filed, wait.lower() == b"true"

    def _learn(self, names: tuple[bytes, ...], piece_count: int) -> _Shape | None:
        """What to expect of a text with these names; None if it needs a closer look."""
        is_open = piece_count % 2 == 0
        known = names if is_open else names[:-1]
        if (
            not (is_open or names[-1] == b"")
            or len(set(known)) < len(known)
            or len(known) > _NAMES_MAX
            or b"" in known
            or not _STAMPED.isdisjoint(known)
            or not self._odd_names.isdisjoint(known)
        ):
            return None
        tags_at, keys_at, unique_at, wait_at = (
            2 * known.index(name) + 1 if name in known else -1
            for name in (_TAGS, _KEYS, _UNIQUE, _WAIT)
        )
        separators = (b"\1\2" * len(known))[: piece_count - 1]
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes.clear()
        shape = (separators, is_open, tags_at, keys_at, unique_at, wait_at)
        if sum(map(len, names)) <= _REMEMBERED_BYTES_MAX:
            self._shapes[names] = shape
        return shape

    def _read_each(self, text: bytes, *, is_item: bool = False) -> Found | None:
        found: dict[bytes, bytes] = {}
        stored: list[bytes] = []
        for part in text.split(b"\2"):
            name, _, value = part.partition(b"\1")
            if not name or not value:
                continue
            if name in found or name in self._odd_names or len(found) >= _NAMES_MAX:
                return None
            found[name] = value
            if name in _STAMPED and not is_item:
                return None  # it keeps its place and changes its value
            if name != _WAIT:
                stored += (part, b"\2")
        filed = filed_under(found.get(_UNIQUE, b""), found.get(_KEYS, b""))
        waits = found.get(_WAIT, b"true").lower() == b"true"
        return b"".join(stored), self._code_of(found.get(_TAGS, b"")), filed, waits

    def _code_of(self, tags: bytes) -> int:
        code = self._codes.get(tags)
        if code is None:
            code = java_hash(tags.decode(errors="replace"))
            if len(self._codes) >= _HASHES_MAX:
                self._codes.clear()
            if len(tags) <= _REMEMBERED_BYTES_MAX:
                self._codes[tags] = code
        return code


def filed_under(unique: bytes, keys: bytes) -> tuple[bytes, ...]:
    """The keys of a message, its unique key first."""
    filed = [key for key in keys.split(b" ") if key]
    return (unique, *filed) if unique else tuple(filed)


# -- hashes ----------------------------------------------------------------------------------------

POWERS: list[int] = [31**count & 0xFFFF_FFFF for count in range(_POWERS_COUNT)]
"""Java's factor of what stands so many characters before the end of a text."""

_DIGITS = b"0123456789abcdefghijklmnopqrstu"
_HIGH = bytes(_DIGITS[byte // 31] for byte in range(256))
_LOW = bytes(_DIGITS[byte % 31] for byte in range(256))


class KeyHashes:
    """Hashes of keys; keys tend to count, so those of their fronts are remembered.

    A key is its front and its last two bytes. Where `fronts` and `ends` know both, the hash of
    `topic#key` is `hash(topic#) * POWERS[len(key)] + fronts[front] + ends[end]`, in 32 bits; `of`
    says it otherwise, and knows both then if they are ASCII.
    """

    __slots__ = ("ends", "fronts")

    def __init__(self) -> None:
        self.fronts: dict[bytes, int] = {}
        self.ends: dict[bytes, int] = {}

    def of(self, topic_hash: int, key: bytes) -> int:
        """The hash of a key without a sign, in 32 bits, given that of its topic and `#`."""
        if not key.isascii() or len(key) >= _POWERS_COUNT:
            text = key.decode(errors="replace")
            count = len(text.encode("utf-16-be")) // 2
            power = 1
            for _ in range(count):
                power = power * 31 & 0xFFFF_FFFF
            return topic_hash * power + java_hash(text) & 0xFFFF_FFFF
        front, end = key[:-2], key[-2:]
        if len(self.fronts) >= _HASHES_MAX:
            self.fronts.clear()
        before = self.fronts[front] = _ascii_hash(front) * POWERS[len(end)]
        last = self.ends[end] = _ascii_hash(end)
        return topic_hash * POWERS[len(key)] + before + last & 0xFFFF_FFFF


def _ascii_hash(text: bytes) -> int:
    """Java's hash without its sign.

    It is the text taken as a number to the base of 31, but for digits that are larger than that;
    each is taken apart into two that are not, and Python's own reading of numbers does the rest.
    """
    if not text:
        return 0
    number = 31 * int(text.translate(_HIGH), 31) + int(text.translate(_LOW), 31)
    return number & 0xFFFF_FFFF
