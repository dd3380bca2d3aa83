"""Hypothesis strategies for wire values, and for slightly corrupted bytes."""

from typing import Any

from hypothesis import strategies as st

from tianzhou.message import Host, StoredMessage
from tianzhou.protocol.command import HeaderEncoding
from tianzhou.protocol.records import record

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)

# Every character UTF-8 can carry; the separators and quotes that matter come often.
characters = st.one_of(
    st.sampled_from('\x01\x02"\\/\n\x00\x1f\x7f '), st.characters(exclude_categories=["Cs"])
)
texts = st.text(characters, max_size=40)
ext_fields = st.none() | st.dictionaries(texts, texts, max_size=8)
bodies = st.binary(max_size=200)

commands: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({
    "code": int16,
    "language": st.integers(0, 13),
    "version": int16,
    "opaque": int32,
    "flag": int32,
    "remark": st.none() | texts,
    "ext_fields": ext_fields,
    "encoding": st.sampled_from(HeaderEncoding),
    "body": bodies,
})  # fmt: skip


def _host(v6: bool) -> st.SearchStrategy[Host]:
    # IPv4-mapped IPv6 addresses are excluded: they are read as IPv4, on purpose.
    addresses = st.ip_addresses(v=6 if v6 else 4)
    addresses = addresses.filter(lambda address: getattr(address, "ipv4_mapped", None) is None)
    return st.tuples(addresses.map(str), int32)


hosts = _host(v6=False) | _host(v6=True)
_names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1
)
_values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1)
property_maps = st.dictionaries(_names, _values, max_size=6)


stored_messages = st.builds(
    StoredMessage,
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=150),
    body=bodies,
    properties=property_maps,
    queue_id=int32,
    queue_offset=int64,
    log_offset=int64,
    flag=int32,
    sys_flag=int32,
    born_time_ms=int64,
    born_host=hosts,
    store_time_ms=int64,
    store_host=hosts,
    reconsume_count=int32,
    prepared_log_offset=int64,
    body_crc=st.just(0),
    size_bytes=st.just(0),
)
records = st.builds(record.encode_stored, stored_messages, closed=st.booleans())

_edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "repeat"]),
        st.integers(0, 2**16),
        st.binary(max_size=4),
    ),
    min_size=1,
    max_size=3,
)


def mutated(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """The same bytes, changed in a few places."""
    return st.builds(_mutate, data, _edits)


def _mutate(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    changed = bytearray(data)
    for kind, where, new in edits:
        at = where % (len(changed) + 1)
        if kind == "flip" and at < len(changed):
            changed[at] ^= 1 << (where >> 3) % 8
        elif kind == "cut":
            del changed[at : at + 1 + len(new)]
        elif kind == "insert":
            changed[at:at] = new
        elif kind == "repeat":
            changed[at:at] = changed[at : at + 8]
    return bytes(changed)
