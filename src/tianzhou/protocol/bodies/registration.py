"""What a broker tells the nameserver every 30 seconds: its topics and filter servers.

The body is JSON, or (header field `compressed`) a deflated stream of sections, each with its length
in four bytes before it; counts have four bytes too:

    data version              JSON
    count, then each topic    "name readQueues writeQueues perm filterType [attributes]"
    filter servers            JSON array of strings
    count, then each mapping  JSON; of static topics, from V5_0_0 on
"""

import struct
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from tianzhou.errors import BodyError
from tianzhou.limits import INFLATED_BYTES_MAX
from tianzhou.protocol.bodies import codec
from tianzhou.protocol.bodies.codec import Body
from tianzhou.protocol.bodies.route import TopicQueueMappingInfo
from tianzhou.protocol.bodies.topics import (
    DataVersion,
    TopicConfig,
    TopicConfigTable,
    format_topic,
    parse_topic,
)
from tianzhou.protocol.version import V5_0_0

_LENGTH = struct.Struct(">i")
_ZLIB_START = b"\x78"


class RegisterBrokerBody(Body, frozen=True, kw_only=True):
    """Body of REGISTER_BROKER."""

    topic_config: TopicConfigTable = msgspec.field(
        default_factory=TopicConfigTable, name="topicConfigSerializeWrapper"
    )
    filter_servers: list[str] = msgspec.field(default_factory=list[str], name="filterServerList")


def decode(data: bytes, *, compressed: bool, broker_version: int) -> RegisterBrokerBody:
    """The registration in `data`; `broker_version` is the version in the request's header.

    Brokers of 5.x that compress say in the header that they do not; JSON begins otherwise than a
    zlib stream, so the body itself tells. Raises BodyError.
    """
    if not compressed and not data.startswith(_ZLIB_START):
        return codec.decode_request(RegisterBrokerBody, data)
    sections = _Sections(_inflate(data))
    data_version = codec.decode_request(DataVersion, sections.next())
    topics = _topics_by_name(sections.next_group())
    filter_servers = codec.decode_request(list[str], sections.next())
    mappings: dict[str, TopicQueueMappingInfo] | None = None
    if broker_version >= V5_0_0:
        infos = [
            codec.decode_request(TopicQueueMappingInfo, info) for info in sections.next_group()
        ]
        mappings = {info.topic: info for info in infos if info.topic is not None}
    return RegisterBrokerBody(
        topic_config=TopicConfigTable(
            topics=topics, data_version=data_version, mapping_infos=mappings
        ),
        filter_servers=filter_servers,
    )


def encode(body: RegisterBrokerBody, *, compressed: bool, broker_version: int) -> bytes:
    """The body of a request whose header says `compressed` and `broker_version`."""
    if not compressed:
        return codec.encode(body)
    table = body.topic_config
    sections = [_section(codec.encode(table.data_version))]
    sections += _group(format_topic(topic).encode() for topic in table.topics.values())
    sections.append(_section(codec.encode(body.filter_servers)))
    if broker_version >= V5_0_0:
        sections += _group(codec.encode(info) for info in (table.mapping_infos or {}).values())
    return zlib.compress(b"".join(sections), 9)


def _topics_by_name(lines: Iterable[bytes]) -> dict[str, TopicConfig]:
    try:
        topics = [parse_topic(str(line, "utf-8")) for line in lines]
    except UnicodeDecodeError as e:
        raise BodyError(f"the name of a topic is not UTF-8: {e}") from e
    return {topic.topic_name: topic for topic in topics if topic.topic_name}


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as e:
        raise BodyError(f"the registration cannot be inflated: {e}") from e
    if inflater.unconsumed_tail:
        raise BodyError(f"the registration inflates to more than {INFLATED_BYTES_MAX} bytes")
    return inflated


class _Sections:
    """Reads one length-prefixed section after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def next(self) -> bytes:
        length = self._int()
        stop = self._at + length
        if length < 0 or stop > len(self._data):
            raise BodyError(
                f"a section of {length} bytes is announced, {len(self._data) - self._at} are left"
            )
        section = self._data[self._at : stop]
        self._at = stop
        return section

    def next_group(self) -> Iterator[bytes]:
        # Each section takes four bytes at least, so a count that lies ends with the data.
        return (self.next() for _ in range(self._int()))

    def _int(self) -> int:
        if len(self._data) - self._at < _LENGTH.size:
            raise BodyError("the registration ends inside a length")
        (number,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += _LENGTH.size
        return int(number)


def _section(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _group(items: Iterable[bytes]) -> list[bytes]:
    sections = [_section(item) for item in items]
    return [_LENGTH.pack(len(sections)), *sections]
