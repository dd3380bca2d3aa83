"""Mutations of byte strings: what a broken peer, a broken disk or an attacker would send."""

from random import Random

_LENGTHS = (0, 1, 3, 4, 127, 128, 255, 256, 32767, 32768, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_PIECES = (
    b"\x00", b"\xff", b"\x01", b"\x02", b'"', b"{", b"}", b"[", b"]", b":", b",", b"\\u",
    b"\\ud800",
    b"null", b"-1", b"1e999", b"9" * 40, b"\xed\xa0\x80", b"{" * 300, b'{"$ref":"$"}',
)  # fmt: skip


def mutate(random: Random, seed: bytes, other: bytes) -> bytes:
    """One to four changes to `seed`; now and then a piece of `other` is spliced in."""
    data = bytearray(seed)
    for _ in range(random.randint(1, 4)):
        random.choice(_CHANGES)(random, data, other)
    return bytes(data)


def _flip(random: Random, data: bytearray, other: bytes) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(random: Random, data: bytearray, other: bytes) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def _lie(random: Random, data: bytearray, other: bytes) -> None:
    """Overwrite what may be a length with one that is interesting."""
    width = random.choice((1, 2, 4, 8))
    if len(data) >= width:
        at = random.randrange(len(data) - width + 1)
        data[at : at + width] = (random.choice(_LENGTHS) % 256**width).to_bytes(width, "big")


def _cut(random: Random, data: bytearray, other: bytes) -> None:
    if data:
        start = random.randrange(len(data))
        del data[start : start + random.randint(1, 16)]


def _truncate(random: Random, data: bytearray, other: bytes) -> None:
    del data[random.randrange(len(data) + 1) :]


def _insert(random: Random, data: bytearray, other: bytes) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.choice(_PIECES)


def _repeat(random: Random, data: bytearray, other: bytes) -> None:
    if data:
        start = random.randrange(len(data))
        data[start:start] = data[start : start + random.randint(1, 32)]


def _splice(random: Random, data: bytearray, other: bytes) -> None:
    if other:
        start = random.randrange(len(other))
        at = random.randrange(len(data) + 1)
        data[at : at + random.randint(0, 16)] = other[start : start + random.randint(1, 64)]


_CHANGES = (_flip, _flip, _set, _lie, _lie, _cut, _truncate, _insert, _repeat, _splice)
